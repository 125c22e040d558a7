//! A concrete operation on one image: a random operation after its draw.

use crate::colour::ColourOp;
use crate::error::{Result, Status};
use crate::geometry::Size;
use crate::limits::max_pixels;
use crate::resample::Filter;
use crate::warp::{Affine, Interpolation};

/// How an affine operation samples its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Interpolation between pixels.
    pub interpolation: Interpolation,
    /// Colour of pixels from outside the image.
    pub fill: [u8; 3],
}

/// An operation with all its numbers, with the meaning of torchvision's functional of the same name on a Pillow image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// `crop`. Pixels outside the image get the fill colour (`pad`, then `crop`).
    Crop {
        /// Left edge; negative for padding.
        x: i64,
        /// Top edge; negative for padding.
        y: i64,
        /// Width in pixels.
        w: i64,
        /// Height in pixels.
        h: i64,
        /// Colour outside the image.
        fill: [u8; 3],
    },
    /// `resize` to (height, width), antialiased.
    Resize {
        /// Height and width.
        size: (u32, u32),
        /// Resampling filter.
        filter: Filter,
    },
    /// `horizontal_flip`.
    FlipX,
    /// `vertical_flip`.
    FlipY,
    /// `rotate`, counter-clockwise.
    Rotate {
        /// Angle in degrees.
        degrees: f64,
        /// Enlarge the output so that the whole image stays visible.
        expand: bool,
        /// Centre (x, y) in pixels; `None` for the centre of the image.
        center: Option<(f64, f64)>,
        /// Interpolation and fill.
        sampling: Sampling,
    },
    /// `affine`.
    Affine {
        /// Angle in degrees, clockwise.
        angle: f64,
        /// Shift in pixels, (x, y).
        translate: (f64, f64),
        /// Scale factor.
        scale: f64,
        /// Shear in degrees, (x, y).
        shear: (f64, f64),
        /// Centre (x, y) in pixels; `None` for the centre of the image.
        center: Option<(f64, f64)>,
        /// Interpolation and fill.
        sampling: Sampling,
    },
    /// An operation on colours or small neighbourhoods, which moves no pixel.
    Colour(ColourOp),
}

/// The effect of an affine step on an image of a given size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Motion {
    /// No pixel moves.
    Still,
    /// A half turn, which is two flips.
    HalfTurn,
    /// The map from output points to source points, and the size of the result.
    Map(Affine, Size),
}

impl Step {
    /// Return the size of the image after the step. Errors: [`Status::BadBox`] for an empty crop, [`Status::TooLarge`].
    pub fn size_after(&self, size: Size) -> Result<Size> {
        let checked = |width: i64, height: i64| {
            if width < 1 || height < 1 {
                return Err(Status::BadBox);
            }
            let pixels = i128::from(width) * i128::from(height);
            let side = i64::from(crate::resample::MAX_SOURCE);
            if pixels > i128::from(max_pixels()) || width > side || height > side {
                return Err(Status::TooLarge);
            }
            Ok(Size {
                width: width as u32,
                height: height as u32,
            })
        };
        match *self {
            Step::Crop { w, h, .. } => checked(w, h),
            Step::Resize {
                size: (height, width),
                ..
            } => checked(i64::from(width), i64::from(height)),
            Step::Rotate { .. } => match self.motion(size) {
                Motion::Map(_, size) => checked(i64::from(size.width), i64::from(size.height)),
                _ => Ok(size),
            },
            _ => Ok(size),
        }
    }

    /// Return the effect of a `Rotate` or `Affine` step on an image of this size; [`Motion::Still`] for any other step.
    pub fn motion(&self, size: Size) -> Motion {
        match *self {
            Step::Rotate {
                degrees,
                expand,
                center,
                ..
            } => rotation(degrees, expand, center, size),
            Step::Affine {
                angle,
                translate,
                scale,
                shear,
                center,
                ..
            } => {
                let center = center.unwrap_or(middle(size));
                Motion::Map(
                    Affine::torchvision(angle, translate, scale, shear, center),
                    size,
                )
            }
            _ => Motion::Still,
        }
    }
}

fn middle(size: Size) -> (f64, f64) {
    (f64::from(size.width) * 0.5, f64::from(size.height) * 0.5)
}

/// Return the effect of Pillow's `Image.rotate`, with its short cuts for quarter turns.
fn rotation(degrees: f64, expand: bool, center: Option<(f64, f64)>, size: Size) -> Motion {
    let turn = degrees.rem_euclid(360.0);
    if center.is_none() {
        if turn == 0.0 || turn == 360.0 {
            return Motion::Still;
        }
        if turn == 180.0 {
            return Motion::HalfTurn;
        }
    }
    let map = Affine::rotation_about(degrees, center.unwrap_or(middle(size)));
    if !expand {
        return Motion::Map(map, size);
    }
    let (w, h) = (f64::from(size.width), f64::from(size.height));
    let corners = [(0.0, 0.0), (w, 0.0), (w, h), (0.0, h)].map(|(x, y)| map.apply(x, y));
    let length = |values: [f64; 4]| {
        let high = values.into_iter().fold(f64::NEG_INFINITY, f64::max).ceil();
        let low = values.into_iter().fold(f64::INFINITY, f64::min).floor();
        high - low
    };
    let (width, height) = (
        length(corners.map(|at| at.0)),
        length(corners.map(|at| at.1)),
    );
    let (c, f) = map.apply(-(width - w) / 2.0, -(height - h) / 2.0);
    let grown = Size {
        width: width as u32,
        height: height as u32,
    };
    Motion::Map(Affine { c, f, ..map }, grown)
}
