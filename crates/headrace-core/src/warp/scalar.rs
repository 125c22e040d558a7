//! Sampling in plain Rust, in the arithmetic of Pillow's `Geometry.c`: the definition for the vector kernels.

use std::ops::Range;

use super::{Affine, Picture};

/// One output pixel, bilinear; None outside the picture.
#[inline]
pub fn bilinear_pixel(picture: &Picture<'_>, map: &Affine, x: u32, y: u32) -> Option<[u8; 3]> {
    let (x, y) = map.apply(f64::from(x) + 0.5, f64::from(y) + 0.5);
    let (width, height) = (f64::from(picture.width), f64::from(picture.height));
    if !(x >= 0.0 && x < width && y >= 0.0 && y < height) {
        return None;
    }
    let (x, y) = (x - 0.5, y - 0.5);
    let (column, row) = (floor(x), floor(y));
    let (across, down) = (x - column as f64, y - row as f64);
    // The row below the last one and the column right of it repeat the edge, which gives what Pillow's special case gives.
    let upper = [picture.pixel(column, row), picture.pixel(column + 1, row)];
    let lower = [
        picture.pixel(column, row + 1),
        picture.pixel(column + 1, row + 1),
    ];
    let blend = |from: f64, to: f64, share: f64| from + (to - from) * share;
    Some(std::array::from_fn(|channel| {
        let value = |pixel: [u8; 3]| f64::from(pixel[channel]);
        let top = blend(value(upper[0]), value(upper[1]), across);
        let bottom = blend(value(lower[0]), value(lower[1]), across);
        blend(top, bottom, down) as u8 // Pillow truncates
    }))
}

/// The whole number at or below `value` (without SSE4.1, `f64::floor` is a function call).
#[inline(always)]
fn floor(value: f64) -> i64 {
    let whole = value as i64;
    whole - i64::from(value < whole as f64)
}

/// Some pixels of one output row, bilinear.
pub fn bilinear_part(
    picture: &Picture<'_>,
    map: &Affine,
    y: u32,
    fill: [u8; 3],
    output: &mut [u8],
    pixels: Range<usize>,
) {
    for x in pixels {
        let pixel = bilinear_pixel(picture, map, x as u32, y).unwrap_or(fill);
        output[x * 3..x * 3 + 3].copy_from_slice(&pixel);
    }
}

/// A map that takes pixel centres to pixel centres (flips, quarter turns, shifts by whole pixels): each sample is one pixel.
pub fn lattice(picture: &Picture<'_>, map: &Affine, y: u32, fill: [u8; 3], output: &mut [u8]) {
    for (x, pixel) in output.chunks_exact_mut(3).enumerate() {
        let (x, y) = map.apply(x as f64 + 0.5, f64::from(y) + 0.5);
        let value = picture.inside((x - 0.5) as i64, (y - 0.5) as i64);
        pixel.copy_from_slice(&value.unwrap_or(fill));
    }
}

/// Nearest neighbour over the whole output. Pillow has three arithmetics here, which differ in rare pixels: accumulated doubles where the
/// axes stay straight, 16.16 fixed point otherwise, and accumulated doubles again where that would overflow.
pub fn nearest(
    picture: &Picture<'_>,
    map: &Affine,
    size: (u32, u32),
    fill: [u8; 3],
    mut row: impl FnMut(u32, &mut dyn FnMut(&mut [u8])),
) {
    let fits = |x: u32, y: u32| {
        let (x, y) = map.apply(f64::from(x), f64::from(y));
        x.abs() < 32768.0 && y.abs() < 32768.0
    };
    let straight = map.b == 0.0 && map.d == 0.0;
    let fixed =
        !straight && fits(0, 0) && fits(size.0, 0) && fits(0, size.1) && fits(size.0, size.1);
    if fixed {
        let mut at = Walk::new(map, |value| (value * 65536.0 + 0.5).floor() as i64);
        for y in 0..size.1 {
            row(y, &mut |output| {
                at.row(output, |x, y| {
                    picture.inside(x >> 16, y >> 16).unwrap_or(fill)
                });
            });
        }
        return;
    }
    let mut at = Walk::new(map, |value| value);
    let index = |value: f64| if value < 0.0 { -1 } else { value as i64 };
    for y in 0..size.1 {
        row(y, &mut |output| {
            at.row(output, |x, y| {
                picture.inside(index(x), index(y)).unwrap_or(fill)
            });
        });
    }
}

/// Source coordinates that advance by addition, as Pillow's do.
struct Walk<T> {
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

    fn row(&mut self, output: &mut [u8], pixel: impl Fn(T, T) -> [u8; 3]) {
        let (mut x, mut y) = self.start;
        for value in output.chunks_exact_mut(3) {
            value.copy_from_slice(&pixel(x, y));
            (x, y) = (x + self.step_x.0, y + self.step_x.1);
        }
        self.start = (self.start.0 + self.step_y.0, self.start.1 + self.step_y.1);
    }
}
