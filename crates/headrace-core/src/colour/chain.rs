//! Colour operations one after the other, in as few passes over memory as their meaning allows.

use super::{ColourOp, Colourist};
use crate::error::{Result, Status};

/// Bytes that go through all operations of a chain at a time: with the tables they fit the first cache. A multiple of three.
const PART: usize = 3 << 12;

impl Colourist {
    /// Applies `ops` in order, in place, with the result of [`Colourist::apply`] for each.
    ///
    /// Runs of operations that treat each pixel by itself take one pass, block by block. An operation that needs something of the whole
    /// picture first (contrast its mean, autocontrast and equalize their histograms) or of a neighbourhood begins a new pass.
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
