//! Sampling in scalar Rust with the arithmetic of Pillow's `Geometry.c`: the reference of the vector kernels.

use std::ops::Range;

use super::{Affine, Line, Picture};

/// Return one bilinear output pixel, or `None` outside the image.
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
    // The edge is repeated below the last row and right of the last column, which equals Pillow's special case.
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

/// Return the largest integer at or below `value` (without SSE4.1, `f64::floor` is a function call).
#[inline(always)]
pub fn floor(value: f64) -> i64 {
    let whole = value as i64;
    whole - i64::from(value < whole as f64)
}

/// Sample some pixels of one output row bilinearly, counted from the first pixel of the line.
pub fn bilinear_part(
    picture: &Picture<'_>,
    map: &Affine,
    line: Line,
    output: &mut [u8],
    pixels: Range<usize>,
) {
    for x in pixels {
        let pixel = bilinear_pixel(picture, map, line.first + x as u32, line.y);
        output[x * 3..x * 3 + 3].copy_from_slice(&pixel.unwrap_or(line.fill));
    }
}

/// Sample a row for a map from pixel centres to pixel centres (flips, quarter turns, shifts by whole pixels): each sample is one
/// pixel.
pub fn lattice(picture: &Picture<'_>, map: &Affine, line: Line, output: &mut [u8]) {
    let first = f64::from(line.first) + 0.5;
    for (x, pixel) in output.chunks_exact_mut(3).enumerate() {
        let (x, y) = map.apply(x as f64 + first, f64::from(line.y) + 0.5);
        let value = picture.inside((x - 0.5) as i64, (y - 0.5) as i64);
        pixel.copy_from_slice(&value.unwrap_or(line.fill));
    }
}
