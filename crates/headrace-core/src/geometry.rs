//! Rectangles and pixel views: the vocabulary between the decoder and the resampler.

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
    /// The rectangle with this corner and size.
    pub fn new(x: u32, y: u32, w: u32, h: u32) -> Self {
        Rect { x, y, w, h }
    }

    /// True if it is not empty and lies in an image of `width` × `height` (no overflow on hostile values).
    pub fn fits(&self, width: u32, height: u32) -> bool {
        let inside = |start: u32, length: u32, limit: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        inside(self.x, self.w, width) && inside(self.y, self.h, height)
    }

    /// The smallest rectangle that holds both.
    #[must_use]
    pub fn around(&self, other: &Rect) -> Rect {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let right = (self.x + self.w).max(other.x + other.w);
        let bottom = (self.y + self.h).max(other.y + other.h);
        Rect::new(x, y, right - x, bottom - y)
    }

    /// How many pixels it holds.
    pub fn area(&self) -> u64 {
        u64::from(self.w) * u64::from(self.h)
    }

    /// The rectangle in the image reduced by `divisor`, which is `width` × `height` then: edges rounded to the nearest of its pixels, at
    /// least one pixel.
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

/// Decoded pixels: uint8 RGB, interleaved, rows `stride` bytes apart. `origin` says which image pixel the first one is, so a
/// view of a region can be resampled on the whole image's grid.
#[derive(Debug, Clone, Copy)]
pub struct RgbView<'a> {
    /// The bytes, at least `(h - 1) * stride + 3 * w` of them.
    pub pixels: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The region of the image that the view holds.
    pub region: Rect,
}
