//! Chains of colour operations, in as few passes over memory as possible.

use super::{ColourOp, Colourist};
use crate::error::{Result, Status};

/// Bytes that go through all operations of a chain at a time: with the tables they fit the L1 cache. A multiple of three.
const PART: usize = 3 << 12;

impl Colourist {
    /// Apply `ops` in order and in place, with the same result as [`Colourist::apply`] for each.
    ///
    /// Consecutive operations on single pixels take one pass, block by block. An operation that first needs a statistic of the
    /// whole image (contrast the mean, autocontrast and equalize histograms), or reads a neighbourhood, begins a new pass.
    pub fn apply_all(&mut self, ops: &[ColourOp], pixels: &mut [u8], width: u32) -> Result<()> {
        let mut rest = ops;
        while let [first, others @ ..] = rest {
            if first.is_pointwise() {
                let run = rest.iter().take_while(|op| op.is_pointwise()).count();
                let (now, later) = rest.split_at(run);
                self.pointwise(now, pixels, width)?;
                rest = later;
            } else {
                self.apply(*first, pixels, width)?;
                rest = others;
            }
        }
        Ok(())
    }

    fn pointwise(&mut self, ops: &[ColourOp], pixels: &mut [u8], width: u32) -> Result<()> {
        if width == 0 || pixels.len() % (width as usize * 3) != 0 {
            return Err(Status::Internal);
        }
        for part in pixels.chunks_mut(PART) {
            for op in ops {
                let pixels = (part.len() / 3) as u32;
                self.apply(*op, part, pixels)?;
            }
        }
        Ok(())
    }
}
