//! A pipeline of random operations as data, and what becomes of it on one image.
//!
//! [`Program::draw`] turns the operations into concrete [`step::Step`]s, by torchvision's algorithms and a random stream of their own for
//! each; [`route::Route::plan`] turns the steps into passes over the pixels.

pub mod augment;
pub mod cut;
pub mod filters;
pub mod route;
mod sizes;
pub mod step;

use crate::colour::draw::ColourStep;
use crate::colour::ColourOp;
use crate::decode::Size;
use crate::error::{Result, Status};
use crate::resample::Filter;
use crate::rng::{Key, Rng};
use augment::Augment;
use cut::Placement;
use filters::Filters;
use route::{Fuse, Pass, Route};
use step::{Sampling, Step};

/// One operation, with torchvision's meaning. Sizes are (height, width) in pixels, angles in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// `RandomResizedCrop(size, scale, ratio)`.
    RandomResizedCrop {
        /// Output height and width.
        size: (u32, u32),
        /// Range of the crop's share of the image area.
        scale: (f64, f64),
        /// Range of width / height.
        ratio: (f64, f64),
        /// Resampling filter, or several to draw from.
        filters: Filters,
    },
    /// `Resize((h, w))`.
    ResizeExact {
        /// Output height and width.
        size: (u32, u32),
        /// Resampling filter.
        filter: Filter,
    },
    /// `Resize(size, max_size=…)`: the shorter side becomes `short`, the longer keeps the ratio but is at most `max` (0: no limit).
    ResizeShort {
        /// Length of the shorter side.
        short: u32,
        /// Limit of the longer side, or 0.
        max: u32,
        /// Resampling filter.
        filter: Filter,
    },
    /// `CenterCrop(size)`; pads with black where the image is smaller.
    CenterCrop {
        /// Output height and width.
        size: (u32, u32),
    },
    /// `RandomCrop(size, padding)`: pads (left, top, right, bottom) with black, then cuts.
    RandomCrop {
        /// Output height and width.
        size: (u32, u32),
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Pad more where the image is still too small; otherwise that is an error.
        pad_if_needed: bool,
    },
    /// `Pad(padding, fill)`.
    Pad {
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Their colour.
        fill: [u8; 3],
    },
    /// `RandomHorizontalFlip(p)`.
    FlipX {
        /// Probability.
        p: f64,
    },
    /// `RandomVerticalFlip(p)`.
    FlipY {
        /// Probability.
        p: f64,
    },
    /// `RandomRotation(degrees, expand=…, center=…)`.
    RandomRotation {
        /// Range of the angle.
        degrees: (f64, f64),
        /// Grow the picture so that all of it stays visible.
        expand: bool,
        /// Centre (x, y) in pixels; None: the picture's middle.
        center: Option<(f64, f64)>,
        /// Interpolation and fill.
        sampling: Sampling,
    },
    /// `RandomAffine(degrees, translate, scale, shear, center=…)`.
    RandomAffine {
        /// Range of the angle.
        degrees: (f64, f64),
        /// Largest shift as a share of the width and of the height.
        translate: Option<(f64, f64)>,
        /// Range of the enlargement.
        scale: Option<(f64, f64)>,
        /// Ranges of the shear along x and along y.
        shear: [(f64, f64); 2],
        /// Centre (x, y) in pixels; None: the picture's middle.
        center: Option<(f64, f64)>,
        /// Interpolation and fill.
        sampling: Sampling,
    },
    /// `RandomApply`: the next `count` operations, together, with probability `p`.
    Apply {
        /// Probability.
        p: f64,
        /// How many operations.
        count: u32,
    },
    /// RandAugment, TrivialAugmentWide, AutoAugment.
    Augment(Augment),
    /// Colours and small neighbourhoods; no pixel moves.
    Colour(ColourStep),
}

/// Operations in order, ending in images of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    ops: Vec<Op>,
    out: (u32, u32),
    fuse: Fuse,
    dct_scale: bool,
}

/// Most pixels of an output image.
const MAX_OUT: u64 = 1 << 28;

impl Program {
    /// Checks the operations, and that every image ends in one size; says in words why not.
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
        })
    }

    /// Output height and width in pixels.
    pub fn out(&self) -> (u32, u32) {
        self.out
    }

    /// What is folded into one sampling.
    pub fn fuse(&self) -> Fuse {
        self.fuse
    }

    /// Lets JPEGs be decoded at half or quarter size where the first resize shrinks them that much.
    #[must_use]
    pub fn with_dct_scale(self, dct_scale: bool) -> Self {
        Program { dct_scale, ..self }
    }

    /// See [`Program::with_dct_scale`].
    pub fn dct_scale(&self) -> bool {
        self.dct_scale
    }

    /// The colour operations of `ColorJitter` and the like under this key, in order, in place of what `ops` held.
    pub fn colours(&self, key: Key, ops: &mut Vec<ColourOp>) {
        ops.clear();
        for (number, op) in self.ops.iter().enumerate() {
            if let Op::Colour(step) = op {
                step.draw(&mut Rng::new(key, number as u64), ops);
            }
        }
    }

    /// The concrete operations for an image of this size under this key, in place of what `steps` held.
    ///
    /// Errors: [`Status::BadBox`] where a crop does not fit, [`Status::TooSmall`] where a blur does not, [`Status::TooLarge`].
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

    /// The single resampling for an image of this size under this key. Error: [`Status::Unsupported`] where it takes more than one pass.
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

/// The output size after `ops`, if it is the same for every image; `before` is that of what they get.
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

fn check_range(name: &str, (low, high): (f64, f64)) -> std::result::Result<(), String> {
    if low > 0.0 && low <= high && high.is_finite() {
        Ok(())
    } else {
        Err(format!("a {name} range of ({low}, {high})"))
    }
}

fn check_angles(name: &str, (low, high): (f64, f64)) -> std::result::Result<(), String> {
    if low <= high && low.abs() < 1e9 && high.abs() < 1e9 {
        Ok(())
    } else {
        Err(format!("a {name} range of ({low}, {high}) degrees"))
    }
}

fn check_center(center: Option<(f64, f64)>) -> std::result::Result<(), String> {
    match center {
        Some((x, y)) if !(x.abs() < 1e9 && y.abs() < 1e9) => Err(format!("a centre at ({x}, {y})")),
        _ => Ok(()),
    }
}

impl Op {
    /// Says in words which parameter is out of its range.
    fn check(&self) -> std::result::Result<(), String> {
        match *self {
            Op::RandomResizedCrop { scale, ratio, .. } => {
                check_range("scale", scale)?;
                check_range("ratio", ratio)
            }
            Op::ResizeShort { short: 0, .. } => Err("Resize to 0 pixels".into()),
            Op::FlipX { p } | Op::FlipY { p } | Op::Apply { p, .. }
                if !(0.0..=1.0).contains(&p) =>
            {
                Err(format!("a probability of {p}"))
            }
            Op::RandomRotation {
                degrees, center, ..
            } => {
                check_angles("rotation", degrees)?;
                check_center(center)
            }
            Op::RandomAffine {
                degrees,
                translate,
                scale,
                shear,
                center,
                ..
            } => {
                check_angles("rotation", degrees)?;
                check_angles("shear", shear[0])?;
                check_angles("shear", shear[1])?;
                check_center(center)?;
                if let Some(scale) = scale {
                    check_range("scale", scale)?;
                }
                match translate {
                    Some((x, y)) if !(0.0..=1.0).contains(&x) || !(0.0..=1.0).contains(&y) => {
                        Err(format!("a translation of ({x}, {y}) of the picture"))
                    }
                    _ => Ok(()),
                }
            }
            Op::Augment(augment) => augment.check(),
            Op::Colour(step) => step.check(),
            _ => Ok(()),
        }
    }

    /// Appends the steps that `rng` draws for a picture of `size`.
    fn draw(&self, size: Size, rng: &mut Rng, steps: &mut Vec<Step>) -> Result<()> {
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        match *self {
            Op::RandomResizedCrop {
                size: out,
                scale,
                ratio,
                filters,
            } => {
                let crop = sizes::random_resized_crop(size, scale, ratio, rng);
                steps.push(Step::Crop {
                    x: i64::from(crop.x),
                    y: i64::from(crop.y),
                    w: i64::from(crop.w),
                    h: i64::from(crop.h),
                    fill: [0; 3],
                });
                steps.push(Step::Resize {
                    size: out,
                    filter: filters.draw(rng),
                });
            }
            Op::ResizeExact { size, filter } => steps.push(Step::Resize { size, filter }),
            Op::ResizeShort { short, max, filter } => {
                let size = sizes::resized(size, short, max)?;
                steps.push(Step::Resize { size, filter });
            }
            Op::CenterCrop { size: (h, w) } => {
                let (w, h) = (i64::from(w), i64::from(h));
                steps.push(Step::Crop {
                    x: sizes::centre(width, w),
                    y: sizes::centre(height, h),
                    w,
                    h,
                    fill: [0; 3],
                });
            }
            Op::RandomCrop {
                size: (h, w),
                padding,
                pad_if_needed,
            } => {
                let (w, h) = (i64::from(w), i64::from(h));
                let crop = random_crop((width, height), (w, h), padding, pad_if_needed, rng)?;
                steps.push(crop);
            }
            Op::Pad { padding, fill } => {
                let [left, top, right, bottom] = padding.map(i64::from);
                steps.push(Step::Crop {
                    x: -left,
                    y: -top,
                    w: width + left + right,
                    h: height + top + bottom,
                    fill,
                });
            }
            Op::FlipX { p } => steps.extend((rng.unit() < p).then_some(Step::FlipX)),
            Op::FlipY { p } => steps.extend((rng.unit() < p).then_some(Step::FlipY)),
            Op::RandomRotation {
                degrees,
                expand,
                center,
                sampling,
            } => steps.push(Step::Rotate {
                degrees: rng.uniform(degrees.0, degrees.1),
                expand,
                center,
                sampling,
            }),
            Op::RandomAffine {
                degrees,
                translate,
                scale,
                shear,
                center,
                sampling,
            } => {
                let angle = rng.uniform(degrees.0, degrees.1);
                let mut shift = |most: f64| rng.uniform(-most, most).round_ties_even();
                let translate = translate.map_or((0.0, 0.0), |(x, y)| {
                    (shift(x * width as f64), shift(y * height as f64))
                });
                steps.push(Step::Affine {
                    angle,
                    translate,
                    scale: scale.map_or(1.0, |(low, high)| rng.uniform(low, high)),
                    shear: (
                        rng.uniform(shear[0].0, shear[0].1),
                        rng.uniform(shear[1].0, shear[1].1),
                    ),
                    center,
                    sampling,
                });
            }
            Op::Augment(augment) => augment.draw(size, rng, steps),
            Op::Colour(step) => {
                if let ColourStep::Blur { kernel, .. } = step {
                    // Reflected borders need that many pixels.
                    if width <= i64::from(kernel.0 / 2) || height <= i64::from(kernel.1 / 2) {
                        return Err(Status::TooSmall);
                    }
                }
                step.draw_each(rng, |op| steps.push(Step::Colour(op)));
            }
            Op::Apply { .. } => {}
        }
        Ok(())
    }
}

/// torchvision's `RandomCrop`: pads, pads more on both sides where it is too small and may, then cuts; y is drawn first.
fn random_crop(
    (width, height): (i64, i64),
    (w, h): (i64, i64),
    padding: [u32; 4],
    pad_if_needed: bool,
    rng: &mut Rng,
) -> Result<Step> {
    let [left, top, right, bottom] = padding.map(i64::from);
    let (padded_w, padded_h) = (width + left + right, height + top + bottom);
    let (grow_x, grow_y) = ((w - padded_w).max(0), (h - padded_h).max(0));
    if (grow_x > 0 || grow_y > 0) && !pad_if_needed {
        return Err(Status::BadBox);
    }
    let y = rng.below((padded_h + 2 * grow_y - h + 1) as u32);
    let x = rng.below((padded_w + 2 * grow_x - w + 1) as u32);
    Ok(Step::Crop {
        x: i64::from(x) - grow_x - left,
        y: i64::from(y) - grow_y - top,
        w,
        h,
        fill: [0; 3],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Rect;

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
    fn what_has_no_size_is_refused_in_words() {
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
