//! The passes of one image, split where a device takes over: the resampling that its decoder does, and what follows on an image
//! that has the size of the output already.

use super::cut::{Cut, Placement};
use super::route::{Leg, Pass, Route};
use super::Program;
use crate::colour::ColourOp;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::resample::ResizeSpec;
use crate::rng::Key;
use crate::warp::{Edge, WarpSpec};

/// A pass over an image that has the size of the output.
#[derive(Debug, Clone, PartialEq)]
pub enum Later {
    /// A colour operation.
    Colour(ColourOp),
    /// Mirror left to right, top to bottom.
    Flip(bool, bool),
    /// Affine sampling of the whole image into the whole image, clipped to the edges, then mirrored as the spec says.
    Warp(WarpSpec, Vec<Edge>),
}

impl Program {
    /// Return the first resampling of an image of this size under this key, and the passes that follow it.
    ///
    /// Errors: those of [`Program::draw`], and [`Status::Unsupported`] if the first resampling does not give the whole output, or
    /// a later pass changes the size or needs more than the output's pixels.
    pub fn split(
        &self,
        size: Size,
        key: Key,
        route: &mut Route,
    ) -> Result<(Placement, Vec<Later>)> {
        let mut steps = Vec::new();
        self.draw(size, key, &mut steps)?;
        route.plan(&steps, size, self.fuse)?;
        let (height, width) = self.out;
        let out = Size { width, height };
        if route.legs.iter().any(|leg| leg.size != out) {
            return Err(Status::Unsupported);
        }
        let [first, rest @ ..] = route.legs.as_slice() else {
            return Err(Status::Unsupported);
        };
        let (placement, mut passes) = begin(first, &route.edges, out)?;
        for leg in rest {
            passes.push(match &leg.pass {
                Pass::Colour(op) => Later::Colour(*op),
                Pass::Cut(cut) => flips(cut, out)?,
                Pass::Warp { spec, edges } if spec.box_ == whole(out) => {
                    warp(spec, *edges, &route.edges, out)?
                }
                Pass::Warp { .. } => return Err(Status::Unsupported),
            });
        }
        Ok((placement, passes))
    }
}

/// Return the resampling of the first pass, and what is left of this pass.
fn begin(first: &Leg, edges: &[Edge], out: Size) -> Result<(Placement, Vec<Later>)> {
    match &first.pass {
        Pass::Cut(cut) if !cut.placement().padded => Ok((cut.placement(), Vec::new())),
        Pass::Warp { spec, edges: range } => {
            let later = warp(spec, *range, edges, out)?;
            let resize = ResizeSpec {
                box_: spec.box_,
                grid_w: spec.grid_w,
                grid_h: spec.grid_h,
                window: whole(out),
                filter: spec.filter,
                flip_x: false,
                flip_y: false,
            };
            let placement = Placement {
                spec: resize,
                at: (0, 0),
                padded: false,
                visible: true,
                fill: spec.fill,
            };
            Ok((placement, vec![later]))
        }
        _ => Err(Status::Unsupported),
    }
}

fn whole(size: Size) -> Rect {
    Rect::new(0, 0, size.width, size.height)
}

/// Return a cut that only mirrors.
fn flips(cut: &Cut, out: Size) -> Result<Later> {
    let placement = cut.placement();
    let spec = placement.spec;
    let is_whole = spec.box_ == whole(out) && spec.window == whole(out);
    if !is_whole || placement.padded || (spec.grid_w, spec.grid_h) != (out.width, out.height) {
        return Err(Status::Unsupported);
    }
    Ok(Later::Flip(spec.flip_x, spec.flip_y))
}

/// Return a sampling of an image of the output's size.
fn warp(spec: &WarpSpec, range: (usize, usize), edges: &[Edge], out: Size) -> Result<Later> {
    let same = (spec.grid_w, spec.grid_h) == (out.width, out.height);
    if !same || spec.antialias || !spec.is_valid() || !spec.is_direct() {
        return Err(Status::Unsupported);
    }
    let spec = WarpSpec {
        window: whole(out),
        ..*spec
    };
    Ok(Later::Warp(spec, edges[range.0..][..range.1].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colour::draw::ColourStep;
    use crate::program::op::Op;
    use crate::program::route::Fuse;
    use crate::program::step::Sampling;
    use crate::resample::Filter;
    use crate::warp::Interpolation;

    const IMAGE: Size = Size {
        width: 120,
        height: 90,
    };
    const KEY: Key = Key {
        seed: 1,
        epoch: 0,
        draw: 4,
    };

    fn crop() -> Op {
        Op::RandomResizedCrop {
            size: (32, 40),
            scale: (0.1, 1.0),
            ratio: (0.8, 1.2),
            filters: Filter::Bilinear.into(),
        }
    }

    fn rotation() -> Op {
        Op::RandomRotation {
            degrees: (5.0, 9.0),
            expand: false,
            center: None,
            sampling: Sampling {
                interpolation: Interpolation::Bilinear,
                fill: [0; 3],
            },
        }
    }

    fn invert() -> Op {
        Op::Colour(ColourStep::Sometimes {
            p: 1.0,
            op: ColourOp::Invert,
        })
    }

    fn split(ops: Vec<Op>, fuse: Fuse) -> Result<(Placement, Vec<Later>)> {
        let program = Program::new(ops, fuse).expect("valid");
        program.split(IMAGE, KEY, &mut Route::default())
    }

    #[test]
    fn a_rotation_after_the_crop_samples_the_resized_crop() {
        for fuse in [Fuse::Geometry, Fuse::Off] {
            let (placement, passes) =
                split(vec![crop(), rotation(), invert()], fuse).expect("fits");
            assert_eq!(placement.spec.window, Rect::new(0, 0, 40, 32));
            assert!(matches!(
                passes[..],
                [Later::Warp(..), Later::Colour(ColourOp::Invert)]
            ));
            let plain = split(vec![crop()], fuse).expect("fits");
            assert_eq!(plain.0.spec, placement.spec);
            assert!(plain.1.is_empty());
        }
    }

    #[test]
    fn a_flip_joins_the_crop_or_follows_the_blur() {
        let flip = Op::FlipX { p: 1.0 };
        let (placement, passes) = split(vec![crop(), invert(), flip], Fuse::Off).expect("fits");
        assert!(placement.spec.flip_x);
        assert_eq!(passes, [Later::Colour(ColourOp::Invert)]);
        let blur = Op::Colour(ColourStep::Blur {
            kernel: (3, 3),
            sigma: (1.0, 1.0),
        });
        let (placement, passes) = split(vec![crop(), blur, flip], Fuse::Off).expect("fits");
        assert!(!placement.spec.flip_x);
        assert!(matches!(
            passes[..],
            [Later::Colour(_), Later::Flip(true, false)]
        ));
    }

    #[test]
    fn passes_over_more_than_the_output_stay_on_the_cpu() {
        let resize = Op::ResizeShort {
            short: 64,
            max: 0,
            filter: Filter::Bilinear,
        };
        let center = Op::CenterCrop { size: (32, 40) };
        let unsupported = |ops, fuse| {
            assert_eq!(split(ops, fuse).expect_err("too much"), Status::Unsupported);
        };
        // One sampling of the whole resized picture: its pixels beyond the crop are blended in.
        unsupported(vec![resize, center, rotation()], Fuse::Geometry);
        assert!(split(vec![resize, center, rotation()], Fuse::Off).is_ok());
        unsupported(vec![resize, rotation(), center], Fuse::Off);
        unsupported(vec![crop(), invert(), center, crop()], Fuse::Off);
        let large = Op::CenterCrop { size: (200, 200) };
        unsupported(vec![large], Fuse::Off);
    }
}
