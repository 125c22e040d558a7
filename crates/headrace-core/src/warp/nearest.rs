//! Nearest neighbour sampling. Pillow has three arithmetics for it, which differ in rare pixels: accumulated doubles if the axes
//! stay straight, 16.16 fixed point otherwise, and accumulated doubles again if fixed point would overflow (`Geometry.c`).

#![allow(unsafe_code)]

use super::{Affine, Line, Picture, WarpSpec};
use crate::cpu::Extension;

/// The walk over the rows of one output, in Pillow's arithmetic.
pub enum Nearest {
    /// 16.16 fixed point: the source of any pixel is computed directly.
    Fixed(Walk<i64>, Extension),
    /// Doubles that are accumulated pixel by pixel and row by row from the corner of the output, and the row of `start`.
    Added(Walk<f64>, u32),
}

impl Nearest {
    /// Make the walk for the whole output of `spec`, whatever its window is.
    pub fn new(picture: &Picture<'_>, map: &Affine, spec: &WarpSpec, extension: Extension) -> Self {
        let (w, h) = (spec.width, spec.height);
        // The scalar code handles pictures of 2³¹ bytes or more.
        let small = i32::try_from(picture.bytes.len()).is_ok();
        if !is_straight(map) && fits_fixed_point(map, w, h) {
            let fixed = Walk::new(map, |value| (value * 65536.0 + 0.5).floor() as i64);
            let extension = if small { extension } else { Extension::Scalar };
            Nearest::Fixed(fixed, extension)
        } else {
            Nearest::Added(Walk::new(map, |value| value), 0)
        }
    }

    /// Sample a row; rows must come in order.
    pub fn row(&mut self, picture: &Picture<'_>, line: Line, output: &mut [u8]) {
        match self {
            Nearest::Fixed(walk, extension) => {
                let (y, first) = (i64::from(line.y), i64::from(line.first));
                let from = |start: i64, across: i64, down: i64| start + down * y + across * first;
                let at = (
                    from(walk.start.0, walk.step_x.0, walk.step_y.0),
                    from(walk.start.1, walk.step_x.1, walk.step_y.1),
                );
                fixed(*extension, picture, at, walk.step_x, line.fill, output);
            }
            Nearest::Added(walk, row) => {
                while *row < line.y {
                    walk.start = walk.next(walk.start, walk.step_y);
                    *row += 1;
                }
                let mut at = walk.start;
                for _ in 0..line.first {
                    at = walk.next(at, walk.step_x);
                }
                let index = |value: f64| if value < 0.0 { -1 } else { value as i64 };
                for pixel in output.chunks_exact_mut(3) {
                    let value = picture.inside(index(at.0), index(at.1));
                    pixel.copy_from_slice(&value.unwrap_or(line.fill));
                    at = walk.next(at, walk.step_x);
                }
            }
        }
    }
}

/// Return whether source columns depend on output columns alone, and rows on rows.
pub fn is_straight(map: &Affine) -> bool {
    map.b == 0.0 && map.d == 0.0
}

/// Return whether the source of every pixel of an output of `width` × `height` has 16.16 fixed-point coordinates.
pub fn fits_fixed_point(map: &Affine, width: u32, height: u32) -> bool {
    let fits = |x: u32, y: u32| {
        let (x, y) = map.apply(f64::from(x), f64::from(y));
        x.abs() < 32768.0 && y.abs() < 32768.0
    };
    fits(0, 0) && fits(width, 0) && fits(0, height) && fits(width, height)
}

/// Source coordinates that advance by addition, as in Pillow.
pub struct Walk<T> {
    start: (T, T),
    step_x: (T, T),
    step_y: (T, T),
}

impl<T: Copy + std::ops::Add<Output = T>> Walk<T> {
    fn new(map: &Affine, convert: impl Fn(f64) -> T) -> Self {
        let half = |across: f64, down: f64, shift: f64| shift + across * 0.5 + down * 0.5;
        Walk {
            start: (
                convert(half(map.a, map.b, map.c)),
                convert(half(map.d, map.e, map.f)),
            ),
            step_x: (convert(map.a), convert(map.d)),
            step_y: (convert(map.b), convert(map.e)),
        }
    }

    fn next(&self, at: (T, T), step: (T, T)) -> (T, T) {
        (at.0 + step.0, at.1 + step.1)
    }
}

/// Sample one row in fixed point: pixel i comes from `at + i * step`.
fn fixed(
    extension: Extension,
    picture: &Picture<'_>,
    at: (i64, i64),
    step: (i64, i64),
    fill: [u8; 3],
    output: &mut [u8],
) {
    let count = output.len() / 3;
    let from = |i: usize| (at.0 + step.0 * i as i64, at.1 + step.1 * i as i64);
    let window = picture.window;
    let x = within(at.0, step.0, (0, picture.width), count);
    let y = within(at.1, step.1, (0, picture.height), count);
    let (first, end) = overlap(x, y);
    super::paint(&mut output[..first * 3], fill);
    super::paint(&mut output[end * 3..], fill);
    // The vector code reads only pixels that are certainly in the window.
    let x = within(at.0, step.0, (window.x, window.x + window.w), count);
    let y = within(at.1, step.1, (window.y, window.y + window.h), count);
    let (inner, stop) = overlap(overlap(x, y), (first, end));
    let stop = if readable(picture, from(inner).1, from(stop).1) {
        stop
    } else {
        inner
    };
    let mut plain = |from_pixel: usize, to: usize| {
        for i in from_pixel..to {
            let (x, y) = from(i);
            output[i * 3..i * 3 + 3].copy_from_slice(&picture.pixel(x >> 16, y >> 16));
        }
    };
    if stop <= inner || matches!(extension, Extension::Scalar | Extension::Neon) {
        plain(first, end);
        return;
    }
    plain(first, inner);
    plain(stop, end);
    let (x, y) = from(inner);
    let place = (
        x - (i64::from(window.x) << 16),
        y - (i64::from(window.y) << 16),
    );
    #[cfg(target_arch = "x86_64")]
    {
        let pixels = (stop - inner - 1) as i64;
        let last = (place.0 + step.0 * pixels, place.1 + step.1 * pixels);
        let ends = [place, last].map(|(x, y)| (x >> 16, y >> 16));
        picture.assert_readable(ends, 0, 4);
    }
    let output = &mut output[inner * 3..stop * 3];
    match extension {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the extension was checked when the warper was made; every pixel of `output` comes from inside the window, and
        // four bytes can be read there (`assert_readable`).
        Extension::Avx512 => unsafe { super::avx512::nearest(picture, place, step, output) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Extension::Avx2 => unsafe { super::avx2::nearest(picture, place, step, output) },
        _ => {
            let _ = (place, output); // unused on architectures without kernels
        }
    }
}

/// Return the range of i in 0..count in which the whole part of `at + i * step` (16.16) lies in the range of `pixels`.
fn within(at: i64, step: i64, pixels: (u32, u32), count: usize) -> (usize, usize) {
    let (low, high) = (i64::from(pixels.0) << 16, (i64::from(pixels.1) << 16) - 1);
    let clip = |i: i64| i.clamp(0, count as i64) as usize;
    // The first i at which the remaining distance is covered, rounded up.
    let steps = |distance: i64, step: i64| (distance + step - 1).div_euclid(step);
    match step {
        0 if (low..=high).contains(&at) => (0, count),
        0 => (0, 0),
        step if step > 0 => (
            clip(steps(low - at, step)),
            clip(steps(high + 1 - at, step)),
        ),
        step => (
            clip(steps(at - high, -step)),
            clip(steps(at - low + 1, -step)),
        ),
    }
}

/// Return the intersection of two ranges; an empty range begins and ends at the same place.
fn overlap(a: (usize, usize), b: (usize, usize)) -> (usize, usize) {
    let first = a.0.max(b.0);
    (first, a.1.min(b.1).max(first))
}

/// Return whether a row that runs from source row `from` to `to` (16.16) may read four bytes at each pixel. The last pixel of the
/// buffer may lack the fourth byte.
fn readable(picture: &Picture<'_>, from: i64, to: i64) -> bool {
    let window = picture.window;
    let used = (window.h as usize - 1) * picture.stride + window.w as usize * 3;
    let last = i64::from(window.y + window.h) - 2;
    picture.bytes.len() > used || (from >> 16 <= last && to >> 16 <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_exact() {
        for step in [-200_000, -65_536, -3, 0, 1, 40_000, 65_536, 131_073] {
            for at in [-500_000, -65_536, -1, 0, 1, 65_535, 700_000, 3_000_000] {
                for pixels in [(0, 1), (0, 9), (3, 4), (5, 40)] {
                    let (first, end) = within(at, step, pixels, 30);
                    for i in 0..30 {
                        let place = (at + step * i as i64) >> 16;
                        let inside = i64::from(pixels.0) <= place && place < i64::from(pixels.1);
                        assert_eq!(
                            inside,
                            (first..end).contains(&i),
                            "{at} {step} {pixels:?} {i}"
                        );
                    }
                }
            }
        }
    }
}
