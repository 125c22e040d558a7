//! The operations of a pipeline, and the steps that each draws for an image.

use super::augment::Augment;
use super::filters::Filters;
use super::sizes;
use super::step::{Sampling, Step};
use crate::colour::draw::ColourStep;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::resample::Filter;
use crate::rng::Rng;

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
    /// `Resize(size, max_size=…)`: the shorter side becomes `short`; the longer keeps the ratio but is at most `max` (0: no limit).
    ResizeShort {
        /// Length of the shorter side.
        short: u32,
        /// Limit of the longer side, or 0.
        max: u32,
        /// Resampling filter.
        filter: Filter,
    },
    /// `CenterCrop(size)`, which pads smaller images with black.
    CenterCrop {
        /// Output height and width.
        size: (u32, u32),
    },
    /// `RandomCrop(size, padding)`: pads (left, top, right, bottom) with black, then crops.
    RandomCrop {
        /// Output height and width.
        size: (u32, u32),
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Pad more if the image is still too small; otherwise a small image is an error.
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
        /// Enlarge the output so that the whole image stays visible.
        expand: bool,
        /// Centre (x, y) in pixels; `None` for the centre of the image.
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
        /// Centre (x, y) in pixels; `None` for the centre of the image.
        center: Option<(f64, f64)>,
        /// Interpolation and fill.
        sampling: Sampling,
    },
    /// `RandomApply`: the next `count` operations, together, with probability `p`.
    Apply {
        /// Probability.
        p: f64,
        /// Number of operations.
        count: u32,
    },
    /// RandAugment, TrivialAugmentWide, AutoAugment.
    Augment(Augment),
    /// An operation on colours or small neighbourhoods, which moves no pixel.
    Colour(ColourStep),
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
    /// Return an error message if a parameter is out of range.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
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

    /// Append the steps that `rng` draws for an image of `size`.
    pub(super) fn draw(&self, size: Size, rng: &mut Rng, steps: &mut Vec<Step>) -> Result<()> {
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        match *self {
            Op::RandomResizedCrop {
                size: out,
                scale,
                ratio,
                filters,
            } => {
                let Rect { x, y, w, h } = sizes::random_resized_crop(size, scale, ratio, rng);
                let [x, y, w, h] = [x, y, w, h].map(i64::from);
                steps.push(crop((x, y), (w, h), [0; 3]));
                let filter = filters.draw(rng);
                steps.push(Step::Resize { size: out, filter });
            }
            Op::ResizeExact { .. }
            | Op::ResizeShort { .. }
            | Op::CenterCrop { .. }
            | Op::Pad { .. } => return self.fixed(size, steps),
            Op::RandomCrop {
                size: (h, w),
                padding,
                pad_if_needed,
            } => {
                let (w, h) = (i64::from(w), i64::from(h));
                let crop = random_crop((width, height), (w, h), padding, pad_if_needed, rng)?;
                steps.push(crop);
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
            Op::RandomAffine { .. } => steps.extend(self.draw_affine(size, rng)),
            Op::Augment(augment) => augment.draw(size, rng, steps),
            Op::Colour(step) => {
                self.require_room(size)?;
                step.draw_each(rng, |op| steps.push(Step::Colour(op)));
            }
            Op::Apply { .. } => {}
        }
        Ok(())
    }

    /// Append the steps of an operation that draws nothing for an image of `size`.
    pub(super) fn fixed(&self, size: Size, steps: &mut Vec<Step>) -> Result<()> {
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        match *self {
            Op::ResizeExact { size, filter } => steps.push(Step::Resize { size, filter }),
            Op::ResizeShort { short, max, filter } => {
                let size = sizes::resized(size, short, max)?;
                steps.push(Step::Resize { size, filter });
            }
            Op::CenterCrop { size: (h, w) } => {
                let (w, h) = (i64::from(w), i64::from(h));
                let corner = (sizes::centre(width, w), sizes::centre(height, h));
                steps.push(crop(corner, (w, h), [0; 3]));
            }
            Op::Pad { padding, fill } => {
                let [left, top, right, bottom] = padding.map(i64::from);
                let size = (width + left + right, height + top + bottom);
                steps.push(crop((-left, -top), size, fill));
            }
            _ => {}
        }
        Ok(())
    }

    /// Fail with [`Status::TooSmall`] if an image of `size` has no room for the reflected border of a blur.
    pub(super) fn require_room(&self, size: Size) -> Result<()> {
        match self {
            Op::Colour(ColourStep::Blur { kernel, .. } | ColourStep::TorchBlur { kernel, .. })
                if size.width <= u32::from(kernel.0 / 2)
                    || size.height <= u32::from(kernel.1 / 2) =>
            {
                Err(Status::TooSmall)
            }
            _ => Ok(()),
        }
    }

    /// Return the step that `rng` draws for [`Op::RandomAffine`]; `None` for other operations.
    fn draw_affine(&self, size: Size, rng: &mut Rng) -> Option<Step> {
        let Op::RandomAffine {
            degrees,
            translate,
            scale,
            shear,
            center,
            sampling,
        } = *self
        else {
            return None;
        };
        let angle = rng.uniform(degrees.0, degrees.1);
        let mut shift = |most: f64| rng.uniform(-most, most).round_ties_even();
        let translate = translate.map_or((0.0, 0.0), |(x, y)| {
            (
                shift(x * f64::from(size.width)),
                shift(y * f64::from(size.height)),
            )
        });
        Some(Step::Affine {
            angle,
            translate,
            scale: scale.map_or(1.0, |(low, high)| rng.uniform(low, high)),
            shear: (
                rng.uniform(shear[0].0, shear[0].1),
                rng.uniform(shear[1].0, shear[1].1),
            ),
            center,
            sampling,
        })
    }
}

/// Return the step that crops to a rectangle at `(x, y)` of size `(w, h)`.
fn crop((x, y): (i64, i64), (w, h): (i64, i64), fill: [u8; 3]) -> Step {
    Step::Crop { x, y, w, h, fill }
}

/// Draw torchvision's `RandomCrop`: pad, pad a small image more on both sides if allowed, then crop. y is drawn first.
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
    let corner = (i64::from(x) - grow_x - left, i64::from(y) - grow_y - top);
    Ok(crop(corner, (w, h), [0; 3]))
}
