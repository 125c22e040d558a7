//! Sizes, scales, rectangles, orientations and pixel views: the types that decoder, transforms and resampler share.

use crate::error::{Result, Status};
use crate::limits::max_pixels;

/// Width and height of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Size {
    /// Return the size of the image after it is reduced by `scale`.
    pub fn scaled(self, scale: Scale) -> Self {
        let divisor = scale.divisor();
        Size {
            width: self.width.div_ceil(divisor),
            height: self.height.div_ceil(divisor),
        }
    }

    /// Return the number of pixels.
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Return the size, or [`Status::TooLarge`] if it has more pixels than [`max_pixels`].
    pub fn checked(self) -> Result<Self> {
        if self.pixels() > max_pixels() {
            Err(Status::TooLarge)
        } else {
            Ok(self)
        }
    }
}

/// The scale at which a JPEG is decoded. A reduced image comes from the low frequencies alone: it costs less and is softer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Scale {
    /// Full size.
    #[default]
    Full,
    /// Half the width and height, rounded up.
    Half,
    /// A quarter of the width and height, rounded up.
    Quarter,
}

impl Scale {
    /// Return the side of a decoded block in samples: 8, 4 or 2.
    pub fn block(self) -> u32 {
        8 / self.divisor()
    }

    /// Return the greatest reduction at which the crop is at least as large as the target; both are (width, height).
    pub fn for_target(crop: (u32, u32), target: (u32, u32)) -> Self {
        let room = |scale: Scale| {
            let divisor = scale.divisor();
            crop.0 / divisor >= target.0 && crop.1 / divisor >= target.1
        };
        [Scale::Quarter, Scale::Half]
            .into_iter()
            .find(|&scale| room(scale))
            .unwrap_or(Scale::Full)
    }

    /// Return the factor by which width and height shrink: 1, 2 or 4.
    pub fn divisor(self) -> u32 {
        match self {
            Scale::Full => 1,
            Scale::Half => 2,
            Scale::Quarter => 4,
        }
    }
}

/// A rectangle in image pixels; `x`, `y` is the top-left corner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    /// Width in pixels, at least 1 where valid.
    pub w: u32,
    /// Height in pixels, at least 1 where valid.
    pub h: u32,
}

impl Rect {
    /// Make the rectangle with this corner and size.
    pub fn new(x: u32, y: u32, w: u32, h: u32) -> Self {
        Rect { x, y, w, h }
    }

    /// Return true if the rectangle has pixels and lies in an image of `width` × `height`. No value overflows.
    pub fn fits(&self, width: u32, height: u32) -> bool {
        let inside = |start: u32, length: u32, limit: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        inside(self.x, self.w, width) && inside(self.y, self.h, height)
    }

    /// Return the smallest rectangle that contains both.
    #[must_use]
    pub fn around(&self, other: &Rect) -> Rect {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let right = (self.x + self.w).max(other.x + other.w);
        let bottom = (self.y + self.h).max(other.y + other.h);
        Rect::new(x, y, right - x, bottom - y)
    }

    /// Return the number of pixels.
    pub fn area(&self) -> u64 {
        u64::from(self.w) * u64::from(self.h)
    }

    /// Return the rectangle in the image reduced by `divisor`, whose size is then `width` × `height`. Edges are rounded to the
    /// nearest pixel; at least one pixel remains.
    #[must_use]
    pub fn reduced(&self, divisor: u32, width: u32, height: u32) -> Rect {
        let part = |start: u32, length: u32, limit: u32| {
            let first = ((start + divisor / 2) / divisor).min(limit - 1);
            let end = ((start + length + divisor / 2) / divisor).clamp(first + 1, limit);
            (first, end - first)
        };
        let (x, w) = part(self.x, self.w, width);
        let (y, h) = part(self.y, self.h, height);
        Rect::new(x, y, w, h)
    }
}

/// Decoded pixels: uint8 RGB, interleaved, rows `stride` bytes apart. `region` says which part of the image they are, so that a
/// part can be resampled on the grid of the whole image.
#[derive(Debug, Clone, Copy)]
pub struct RgbView<'a> {
    /// The bytes, at least `(h - 1) * stride + 3 * w` of them.
    pub pixels: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The part of the image that the pixels are.
    pub region: Rect,
}

/// How stored pixels must be turned to be upright (EXIF tag 0x0112).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Orientation {
    /// As stored.
    #[default]
    Upright = 1,
    /// Mirror left-right.
    FlipX = 2,
    /// Turn by 180°.
    Rotate180 = 3,
    /// Mirror top-bottom.
    FlipY = 4,
    /// Mirror along the main diagonal.
    Transpose = 5,
    /// Turn by 90° clockwise.
    Rotate90 = 6,
    /// Mirror along the other diagonal.
    Transverse = 7,
    /// Turn by 90° counter-clockwise.
    Rotate270 = 8,
}

impl Orientation {
    /// Return the orientation with this EXIF number, 1 to 8.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Orientation::Upright,
            2 => Orientation::FlipX,
            3 => Orientation::Rotate180,
            4 => Orientation::FlipY,
            5 => Orientation::Transpose,
            6 => Orientation::Rotate90,
            7 => Orientation::Transverse,
            8 => Orientation::Rotate270,
            _ => return None,
        })
    }
}

impl Orientation {
    /// Return how to read the stored image: with rows and columns exchanged, from the right, from the bottom.
    fn reading(self) -> (bool, bool, bool) {
        match self {
            Orientation::Upright => (false, false, false),
            Orientation::FlipX => (false, true, false),
            Orientation::Rotate180 => (false, true, true),
            Orientation::FlipY => (false, false, true),
            Orientation::Transpose => (true, false, false),
            Orientation::Rotate90 => (true, false, true),
            Orientation::Transverse => (true, true, true),
            Orientation::Rotate270 => (true, true, false),
        }
    }

    /// Return the size of the upright image for a `stored` size.
    pub fn upright(self, stored: Size) -> Size {
        match self.reading() {
            (true, _, _) => Size {
                width: stored.height,
                height: stored.width,
            },
            _ => stored,
        }
    }

    /// Return the part of the stored image that shows `region`, which must lie in the upright image.
    pub fn stored_region(self, region: Rect, stored: Size) -> Rect {
        let (exchanged, from_right, from_bottom) = self.reading();
        let Rect { x, y, w, h } = match exchanged {
            true => Rect::new(region.y, region.x, region.h, region.w),
            false => region,
        };
        let x = if from_right { stored.width - x - w } else { x };
        let y = if from_bottom {
            stored.height - y - h
        } else {
            y
        };
        Rect { x, y, w, h }
    }

    /// Write the RGB pixels of a stored region of `part`'s size, whose rows are `stride` bytes apart, upright into `out`, whose
    /// rows follow each other without gaps.
    pub fn turn(self, pixels: &[u8], stride: usize, part: Rect, out: &mut Vec<u8>) {
        let (exchanged, from_right, from_bottom) = self.reading();
        let (w, h) = (part.w as usize, part.h as usize);
        let (out_w, out_h) = if exchanged { (h, w) } else { (w, h) };
        out.resize(out_w * out_h * 3, 0);
        for (y, row) in out.chunks_exact_mut(out_w * 3).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let (column, line) = if exchanged { (y, x) } else { (x, y) };
                let column = if from_right { w - 1 - column } else { column };
                let line = if from_bottom { h - 1 - line } else { line };
                let start = line * stride + column * 3;
                pixel.copy_from_slice(&pixels[start..start + 3]);
            }
        }
    }
}
