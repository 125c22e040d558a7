//! A pipeline of random operations as data, and its steps for one image.
//!
//! [`Program::draw`] turns the operations into concrete [`step::Step`]s with torchvision's algorithms and a separate random
//! stream for each operation. [`route::Route::plan`] turns the steps into passes over the pixels.

pub mod augment;
pub mod cut;
pub mod filters;
pub mod op;
pub mod replay;
pub mod route;
mod sizes;
pub mod split;
pub mod step;
pub mod streams;

use crate::error::{Result, Status};
use crate::geometry::Size;
use crate::rng::{Key, Rng};
use cut::Placement;
use op::Op;
use replay::Plan;
use route::{Fuse, Pass, Route};
use step::Step;
use streams::Source;

/// A pipeline: operations in order, after which all images have one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    ops: Vec<Op>,
    out: (u32, u32),
    fuse: Fuse,
    dct_scale: bool,
    scale_depth: bool,
}

/// Largest number of pixels in an output image.
const MAX_OUT: u64 = 1 << 28;

impl Program {
    /// Check the operations, and that all images end with one size. Fails with a message.
    pub fn new(ops: Vec<Op>, fuse: Fuse) -> std::result::Result<Self, String> {
        for (number, op) in ops.iter().enumerate() {
            op.check()?;
            if let Op::Apply { count, .. } = op {
                if ops.len() - 1 - number < *count as usize {
                    return Err("RandomApply of more operations than there are".into());
                }
            }
        }
        let Some(out) = out_after(&ops, None) else {
            return Err("the output size differs from image to image".into());
        };
        if out.0 == 0 || out.1 == 0 || u64::from(out.0) * u64::from(out.1) > MAX_OUT {
            return Err(format!("an output size of {}×{}", out.1, out.0));
        }
        Ok(Program {
            ops,
            out,
            fuse,
            dct_scale: false,
            scale_depth: false,
        })
    }

    /// Return output height and width in pixels.
    pub fn out(&self) -> (u32, u32) {
        self.out
    }

    /// Return which steps are combined into one sampling.
    pub fn fuse(&self) -> Fuse {
        self.fuse
    }

    /// Allow decoding JPEGs at half or quarter size if the first resize shrinks them that much.
    #[must_use]
    pub fn with_dct_scale(self, dct_scale: bool) -> Self {
        Program { dct_scale, ..self }
    }

    /// Return whether JPEGs may be decoded at reduced size, see [`Program::with_dct_scale`].
    pub fn dct_scale(&self) -> bool {
        self.dct_scale
    }

    /// Scale gray of 16 bits to 8 bits, see [`crate::decode::Decoder::set_scale_depth`]. All views of a batch agree.
    #[must_use]
    pub fn with_scale_depth(self, scale_depth: bool) -> Self {
        Program {
            scale_depth,
            ..self
        }
    }

    /// Return whether gray of 16 bits is scaled to 8 bits.
    pub fn scale_depth(&self) -> bool {
        self.scale_depth
    }

    /// Replace the contents of `steps` by the concrete operations for an image of this size under this key.
    ///
    /// Errors: [`Status::BadBox`] if a crop does not fit, [`Status::TooSmall`] if a blur does not, [`Status::TooLarge`].
    pub fn draw(&self, size: Size, key: Key, steps: &mut Vec<Step>) -> Result<()> {
        steps.clear();
        let mut size = size;
        let mut number = 0;
        while let Some(op) = self.ops.get(number) {
            let mut rng = Rng::new(key, number as u64);
            number += 1;
            if let Op::Apply { p, count } = op {
                if rng.unit() >= *p {
                    number += *count as usize;
                }
                continue;
            }
            let first = steps.len();
            op.draw(size, &mut rng, steps)?;
            for step in &steps[first..] {
                size = step.size_after(size)?;
            }
        }
        Ok(())
    }

    /// Replace the contents of `steps` by the concrete operations for an image of this size, with the numbers that the script's own
    /// transforms would draw, as `plan` describes them.
    ///
    /// Errors: those of [`Program::draw`], and [`Status::NotDrawn`] if the plan is that of another program or an exponential is not known.
    pub fn replay(
        &self,
        size: Size,
        plan: &Plan,
        source: &mut Source<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        steps.clear();
        let mut size = size;
        let mut number = 0;
        while let Some(op) = self.ops.get(number) {
            let draw = plan.draws.get(number).ok_or(Status::NotDrawn)?;
            number += 1;
            if let Op::Apply { count, .. } = op {
                if !draw.decide(source)? {
                    number += *count as usize;
                }
                continue;
            }
            let first = steps.len();
            op.replay(size, draw, source, steps)?;
            for step in &steps[first..] {
                size = step.size_after(size)?;
            }
        }
        Ok(())
    }

    /// Return the single resampling for an image of this size under this key.
    ///
    /// Errors: those of [`Program::draw`], and [`Status::Unsupported`] if the image takes more than one pass.
    pub fn place(&self, size: Size, key: Key) -> Result<Placement> {
        let (mut steps, mut route) = (Vec::new(), Route::default());
        self.draw(size, key, &mut steps)?;
        route.plan(&steps, size, self.fuse)?;
        match route.legs.as_slice() {
            [first, rest @ ..] if rest.iter().all(|leg| matches!(leg.pass, Pass::Colour(_))) => {
                match &first.pass {
                    Pass::Cut(cut) => Ok(cut.placement()),
                    _ => Err(Status::Unsupported),
                }
            }
            _ => Err(Status::Unsupported),
        }
    }
}

/// Return the output size (height, width) after `ops` if it is the same for every image; `before` is the size before them.
fn out_after(ops: &[Op], before: Option<(u32, u32)>) -> Option<(u32, u32)> {
    let mut out = before;
    let mut number = 0;
    while let Some(op) = ops.get(number) {
        number += 1;
        match *op {
            Op::RandomResizedCrop { size, .. }
            | Op::ResizeExact { size, .. }
            | Op::CenterCrop { size }
            | Op::RandomCrop { size, .. } => out = Some(size),
            Op::ResizeShort { short, max, .. } => {
                out = out.and_then(|(height, width)| {
                    sizes::resized(Size { width, height }, short, max).ok()
                });
            }
            Op::Pad { padding, .. } => {
                let [left, top, right, bottom] = padding;
                let grown = |side: u32, by: [u32; 2]| {
                    side.checked_add(by[0])
                        .and_then(|side| side.checked_add(by[1]))
                };
                out = out.and_then(|(height, width)| {
                    Some((grown(height, [top, bottom])?, grown(width, [left, right])?))
                });
            }
            Op::RandomRotation { expand: true, .. } => out = None,
            Op::Apply { count, .. } => {
                let end = (number + count as usize).min(ops.len());
                let applied = out_after(&ops[number..end], out);
                out = out.filter(|_| applied == out);
                number = end;
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Rect;
    use crate::resample::Filter;

    const IMAGE: Size = Size {
        width: 500,
        height: 375,
    };

    fn key(draw: u64) -> Key {
        Key {
            seed: 7,
            epoch: 0,
            draw,
        }
    }

    fn program(ops: Vec<Op>) -> Program {
        Program::new(ops, Fuse::Geometry).expect("valid")
    }

    #[test]
    fn evaluation_pipeline_is_one_resize_with_a_window() {
        let eval = program(vec![
            Op::ResizeShort {
                short: 256,
                max: 0,
                filter: Filter::Bilinear,
            },
            Op::CenterCrop { size: (224, 224) },
        ]);
        let placed = eval.place(IMAGE, key(0)).expect("fits");
        // 256 * 500 / 375 = 341.33; (341 - 224) / 2 = 58.5 rounds to even: 58.
        assert_eq!((placed.spec.grid_w, placed.spec.grid_h), (341, 256));
        assert_eq!(placed.spec.window, Rect::new(58, 16, 224, 224));
        assert!(!placed.padded);
    }

    #[test]
    fn a_flip_before_a_crop_mirrors_the_crop() {
        let ops = |flip| {
            vec![
                Op::ResizeShort {
                    short: 256,
                    max: 0,
                    filter: Filter::Bilinear,
                },
                Op::FlipX { p: flip },
                Op::CenterCrop { size: (224, 224) },
            ]
        };
        let plain = program(ops(0.0)).place(IMAGE, key(0)).expect("fits");
        let flipped = program(ops(1.0)).place(IMAGE, key(0)).expect("fits");
        assert_eq!(plain.spec.window.x, 58);
        // Mirrored grid: the window that starts at 58 from the right starts at 341 - 58 - 224 = 59 from the left.
        assert_eq!(flipped.spec.window.x, 59);
        assert!(flipped.spec.flip_x);
    }

    #[test]
    fn random_resized_crops_have_torchvisions_distribution() {
        let crop = Op::RandomResizedCrop {
            size: (224, 224),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            filters: Filter::Bilinear.into(),
        };
        let train = program(vec![crop, Op::FlipX { p: 0.5 }]);
        let (mut area, mut flips) = (0.0, 0);
        let n = 20_000;
        for draw in 0..n {
            let placed = train.place(IMAGE, key(draw)).expect("fits");
            let source = placed.spec.box_;
            assert!(source.fits(IMAGE.width, IMAGE.height));
            area += f64::from(source.w) * f64::from(source.h) / (500.0 * 375.0);
            flips += u32::from(placed.spec.flip_x);
        }
        // 0.4339: the mean of torchvision 0.29's own algorithm on 500×375 (200,000 draws, standard error 0.0005).
        assert!(
            (area / n as f64 - 0.4339).abs() < 0.01,
            "{}",
            area / n as f64
        );
        assert!((f64::from(flips) / n as f64 - 0.5).abs() < 0.02);
    }

    #[test]
    fn crops_larger_than_the_image_are_padded_around_it() {
        let placed = program(vec![Op::CenterCrop { size: (10, 8) }])
            .place(
                Size {
                    width: 5,
                    height: 20,
                },
                key(0),
            )
            .expect("fits");
        assert_eq!(placed.spec.window, Rect::new(0, 5, 5, 10));
        assert_eq!(placed.at, (1, 0));
        assert!(placed.padded);
    }

    #[test]
    fn random_crop_with_padding_stays_in_the_padded_image() {
        let crop = program(vec![Op::RandomCrop {
            size: (32, 32),
            padding: [4; 4],
            pad_if_needed: false,
        }]);
        let mut corners = std::collections::HashSet::new();
        for draw in 0..2000 {
            let placed = crop
                .place(
                    Size {
                        width: 32,
                        height: 32,
                    },
                    key(draw),
                )
                .expect("fits");
            assert!(placed.at.0 <= 4 && placed.at.1 <= 4);
            corners.insert((placed.spec.window.x, placed.at.0));
        }
        assert_eq!(corners.len(), 9);
    }

    #[test]
    fn pipelines_without_one_output_size_are_refused_with_a_message() {
        let resize = Op::ResizeShort {
            short: 256,
            max: 0,
            filter: Filter::Bilinear,
        };
        let refused = |ops| Program::new(ops, Fuse::Off).expect_err("refused");
        assert!(refused(vec![resize]).contains("differs"));
        assert!(refused(vec![]).contains("differs"));
        let crop = |side| Op::CenterCrop { size: (side, side) };
        let apply = |p, count| Op::Apply { p, count };
        assert!(refused(vec![crop(8), apply(0.5, 1), crop(9)]).contains("differs"));
        assert!(refused(vec![crop(8), apply(0.5, 2), crop(9)]).contains("more operations"));
        assert!(refused(vec![crop(8), apply(1.5, 0)]).contains("probability"));
        assert!(Program::new(vec![crop(8), apply(0.5, 1), crop(8)], Fuse::Off).is_ok());
        let crop = program(vec![Op::RandomCrop {
            size: (32, 32),
            padding: [0; 4],
            pad_if_needed: false,
        }]);
        assert_eq!(
            crop.place(
                Size {
                    width: 20,
                    height: 40
                },
                key(0)
            ),
            Err(Status::BadBox)
        );
    }
}
