//! The passes of one image: from decoded pixels to the finished image, through at most two buffers.

use crate::colour::{ColourOp, Colourist};
use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView};
use crate::limits;
use crate::program::cut::Cut;
use crate::program::route::{Leg, Pass, Route};
use crate::warp::Warper;

/// The reusable memory of one thread. After the first images nothing is allocated.
#[derive(Default)]
pub struct Renderer {
    warper: Warper,
    colourist: Colourist,
    colours: Vec<ColourOp>,
    buffers: [Vec<u8>; 2],
}

/// Bytes after the last pixel of a buffer: vector kernels read pixels two at a time, eight bytes.
const SLACK: usize = 8;

impl Renderer {
    /// Return the resampler of crops and resizes, to set its pass order.
    pub fn resampler(&mut self) -> &mut crate::resample::Resampler {
        self.warper.resampler()
    }

    /// Run `route` on `source`, which holds at least [`Route::source`], and write the result to `out`, uint8 RGB without gaps.
    ///
    /// Errors: [`Status::Internal`] if `out` has another size than the result, and the errors of the passes.
    pub fn render(&mut self, source: RgbView<'_>, route: &Route, out: &mut [u8]) -> Result<()> {
        let geometric = |leg: &Leg| !matches!(leg.pass, Pass::Colour(_));
        let Some(last) = route.legs.iter().rposition(geometric) else {
            return Err(Status::Internal);
        };
        let mut buffers = std::mem::take(&mut self.buffers);
        let result = self.passes(source, route, last, &mut buffers, out);
        self.buffers = buffers;
        result
    }

    fn passes(
        &mut self,
        source: RgbView<'_>,
        route: &Route,
        last: usize,
        buffers: &mut [Vec<u8>; 2],
        out: &mut [u8],
    ) -> Result<()> {
        let [current, next] = buffers;
        let mut region: Option<Rect> = None; // of the pixels in `current`; None: the source itself
        let mut at = 0;
        while at < route.legs.len() {
            let leg = &route.legs[at];
            let from = match region {
                None => source,
                Some(region) => RgbView {
                    pixels: current,
                    stride: region.w as usize * 3,
                    region,
                },
            };
            let bytes = leg.window.w as usize * leg.window.h as usize * 3;
            at += 1;
            let colours = self.take_colours(&route.legs[at..]);
            let target = if at - 1 == last {
                if out.len() != bytes {
                    return Err(Status::Internal);
                }
                &mut *out
            } else {
                limits::grow(next, bytes + SLACK, 0)?;
                &mut next[..bytes]
            };
            self.geometry(from, leg, route, target)?;
            self.colourist
                .apply_all(&self.colours, target, leg.window.w)?;
            region = Some(leg.window);
            std::mem::swap(current, next);
            at += colours;
        }
        Ok(())
    }

    /// Collect the colour operations at the start of `legs`; return their number.
    fn take_colours(&mut self, legs: &[Leg]) -> usize {
        self.colours.clear();
        self.colours
            .extend(legs.iter().map_while(|leg| match leg.pass {
                Pass::Colour(op) => Some(op),
                _ => None,
            }));
        self.colours.len()
    }

    fn geometry(
        &mut self,
        from: RgbView<'_>,
        leg: &Leg,
        route: &Route,
        target: &mut [u8],
    ) -> Result<()> {
        let row = leg.window.w as usize * 3;
        match &leg.pass {
            Pass::Cut(cut) => self.cut(from, &cut.part(leg.window), target, row),
            Pass::Warp { spec, edges } => {
                let edges = &route.edges[edges.0..edges.0 + edges.1];
                self.warper.warp_into(from, spec, edges, target, row)
            }
            Pass::Colour(_) => Err(Status::Internal),
        }
    }

    fn cut(&mut self, from: RgbView<'_>, cut: &Cut, out: &mut [u8], row: usize) -> Result<()> {
        let placement = cut.placement();
        if placement.padded {
            for pixel in out.chunks_exact_mut(3) {
                pixel.copy_from_slice(&placement.fill);
            }
        }
        if !placement.visible {
            return Ok(());
        }
        let start = placement.at.1 as usize * row + placement.at.0 as usize * 3;
        self.warper
            .resampler()
            .resize_into(from, &placement.spec, &mut out[start..], row)
    }
}
