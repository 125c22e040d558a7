//! The pixels of an output row that are well inside the image, and their coordinates in fixed point, for the vector kernels.

use super::{Affine, Line, Picture};

/// Largest number of pixels of a row at a time, so that the fixed-point error stays below the bound of the kernels.
pub const LONGEST_PART: usize = super::PART;

/// Bound of the error of a blended value, with margin. In fixed point a fraction is off by at most 2¹⁰ steps of 2⁻³³, plus 2⁻²⁵
/// from its conversion, about 2⁻²² in total. Two fractions times 255 make 1.2·10⁻⁴. Three fused multiply-adds add 2⁻¹⁷ each.
pub const DOUBT: f32 = 1.0 / 4096.0;

/// Distance in steps of 2⁻³²: a coordinate this near to a whole number may belong to the neighbouring cell.
pub const NEAR: u32 = 1 << 12;

/// A coordinate along the row in 32.32 fixed point: its value at the first pixel inside, and its change per pixel.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// Value at the first pixel inside.
    pub start: i64,
    /// Change per pixel.
    pub step: i64,
    /// Each value is a whole number, and so exact: the map moves pixels along the other axis only.
    pub exact: bool,
}

/// The pixels from `first` to `end` of a row: their four neighbours are in the window and can be read eight bytes at a time.
#[derive(Debug, Clone, Copy)]
pub struct Cells {
    /// Pixels before this one are outside the image.
    pub visible: usize,
    /// First pixel inside.
    pub first: usize,
    /// One past the last pixel inside.
    pub end: usize,
    /// Pixels from this one on are outside the image.
    pub hidden: usize,
    /// Column of the left neighbour in the window.
    pub x: Course,
    /// Row of the upper neighbour in the window.
    pub y: Course,
}

impl Cells {
    /// Find the inside of an output row of `pixels` pixels.
    pub fn of_row(picture: &Picture<'_>, map: &Affine, line: Line, pixels: usize) -> Self {
        let window = picture.window;
        let (across, down) = (f64::from(line.first) + 0.5, f64::from(line.y) + 0.5);
        // Cell coordinates: the centre of a pixel is a whole number.
        let origin_x = map.a * across + map.b * down + map.c - 0.5 - f64::from(window.x);
        let origin_y = map.d * across + map.e * down + map.f - 0.5 - f64::from(window.y);
        let used = (window.h as usize - 1) * picture.stride + window.w as usize * 3;
        let small = picture.bytes.len() <= i32::MAX as usize && window.w > 2 && window.h > 2;
        // Reading eight bytes at the last column but one of the last row needs two bytes after it; without them that row is
        // excluded.
        let spare = picture.bytes.len() >= used + 2;
        let columns = f64::from(window.w) - 1.0 - MARGIN;
        let rows = f64::from(window.h) - if spare { 1.0 } else { 2.0 };
        let inside_x = between(origin_x, map.a, MARGIN, columns, pixels);
        let inside_y = between(origin_y, map.d, MARGIN, rows - MARGIN, pixels);
        let first = inside_x.0.max(inside_y.0);
        let end = if small {
            inside_x.1.min(inside_y.1).max(first)
        } else {
            first
        };
        let (width, height) = (f64::from(picture.width), f64::from(picture.height));
        let (left, top) = (
            origin_x + 0.5 + f64::from(window.x),
            origin_y + 0.5 + f64::from(window.y),
        );
        let seen_x = between(left, map.a, -MARGIN, width + MARGIN, pixels);
        let seen_y = between(top, map.d, -MARGIN, height + MARGIN, pixels);
        let course = |origin: f64, step: f64, whole: bool| {
            let fixed = |value: f64| (value * 4_294_967_296.0) as i64;
            Course {
                start: fixed(origin + step * first as f64),
                step: fixed(step),
                exact: whole && origin.fract() == 0.0,
            }
        };
        let visible = seen_x.0.max(seen_y.0).saturating_sub(1).min(first);
        let hidden = (seen_x.1.min(seen_y.1) + 1).clamp(end, pixels);
        Cells {
            visible,
            first,
            end,
            hidden,
            x: course(origin_x, map.a, map.a.fract() == 0.0 && map.b == 0.0),
            y: course(origin_y, map.d, map.d == 0.0),
        }
    }
}

impl Cells {
    /// Panic unless the pixels from `first` to `end` are among the row's `pixels`, and eight bytes can be read at the four
    /// neighbours of each. The vector kernels rely on it.
    pub fn assert_readable(&self, picture: &Picture<'_>, pixels: usize) {
        assert!(self.first <= self.end && self.end <= pixels);
        if self.first == self.end {
            return;
        }
        let steps = (self.end - 1 - self.first) as i64;
        let cell = |course: Course, steps: i64| {
            course.start.wrapping_add(course.step.wrapping_mul(steps)) >> 32
        };
        let ends = [0, steps].map(|steps| (cell(self.x, steps), cell(self.y, steps)));
        picture.assert_readable(ends, 1, 8);
    }

    /// Return the four neighbours that are blended to a sample. Where a neighbour's weight is always 0, another one is in its place.
    #[inline(always)]
    pub fn blended<T: Copy>(&self, corners: [T; 4]) -> [T; 4] {
        let [left, right, lower_left, lower_right] = corners;
        match (self.x.exact, self.y.exact) {
            (false, false) => [left, right, lower_left, lower_right],
            (true, false) => [left, left, lower_left, lower_left],
            (false, true) => [left, right, left, right],
            (true, true) => [left; 4],
        }
    }

    /// Fill the pixels outside the image.
    pub fn fill_outside(&self, fill: [u8; 3], output: &mut [u8]) {
        let (head, tail) = output.split_at_mut(self.hidden * 3);
        for pixel in head[..self.visible * 3]
            .chunks_exact_mut(3)
            .chain(tail.chunks_exact_mut(3))
        {
            pixel.copy_from_slice(&fill);
        }
    }
}

/// Margin in pixels, far more than the error of a fixed-point coordinate, so that its whole part stays in the window.
const MARGIN: f64 = 1e-3;

/// Return a range of i in 0..count in which `low <= origin + i * step <= high`, at most one short at either end.
fn between(origin: f64, step: f64, low: f64, high: f64, count: usize) -> (usize, usize) {
    let (low, high) = (low - origin, high - origin);
    if step == 0.0 {
        return (0, if low <= 0.0 && high >= 0.0 { count } else { 0 });
    }
    let (from, to) = if step > 0.0 {
        (low / step, high / step)
    } else {
        (high / step, low / step)
    };
    // The casts clip negative values to 0.
    let first = if from <= 0.0 {
        0
    } else {
        (from as usize).saturating_add(1).min(count)
    };
    let end = if to < 0.0 {
        0
    } else {
        (to as usize).saturating_add(1).min(count)
    };
    (first, end.max(first))
}
