//! Helpers of the fuzz targets: regions from bytes, and whether a difference from libjpeg-turbo is a fault.

use headrace_core::geometry::{Rect, Size};
use headrace_core::jpeg::turbo;

/// Larger images are skipped: they take time and find nothing that small images do not.
pub const MAX_PIXELS: u64 = 1 << 16;

/// Return whether an image is small enough.
pub fn is_small(size: Size) -> bool {
    u64::from(size.width) * u64::from(size.height) <= MAX_PIXELS
}

/// Return the whole image.
pub fn whole(size: Size) -> Rect {
    Rect::new(0, 0, size.width, size.height)
}

/// Return a region of the image from four bytes.
pub fn region(size: Size, choice: [u8; 4]) -> Rect {
    let within = |limit: u32, byte: u8| limit * u32::from(byte) / 256;
    let (x, y) = (
        within(size.width, choice[0]),
        within(size.height, choice[1]),
    );
    Rect::new(
        x,
        y,
        1 + within(size.width - x, choice[2]),
        1 + within(size.height - y, choice[3]),
    )
}

/// Return the rows of a region without gaps; the rows of `pixels` are `stride` bytes apart and begin with the region.
pub fn rows(pixels: &[u8], stride: usize, part: Rect) -> Vec<u8> {
    let row = |y: usize| &pixels[y * stride..][..part.w as usize * 3];
    (0..part.h as usize)
        .flat_map(|y| row(y).iter().copied())
        .collect()
}

/// Return the part of a whole image's pixels.
pub fn crop(pixels: &[u8], size: Size, part: Rect) -> Vec<u8> {
    let stride = size.width as usize * 3;
    let start = part.y as usize * stride + part.x as usize * 3;
    rows(&pixels[start..], stride, part)
}

/// Return whether all dequantised coefficients are in the range that an encoder can produce from 8-bit samples, with a margin:
/// those of each block sum to less than 2^13. Above, the 16-bit sums of libjpeg-turbo's SIMD transform wrap, those of its scalar
/// transform do not (the first pass keeps two more bits), so no result is correct.
pub fn is_in_range(jpeg: &[u8]) -> bool {
    let mut largest = [[0i32; 64]; 4];
    let read = turbo::coefficients(jpeg, &mut |rows| {
        for (component, largest) in largest.iter_mut().enumerate() {
            for block in (0..4)
                .flat_map(|line| (0..).map_while(move |column| rows.block(component, line, column)))
            {
                for (largest, &value) in largest.iter_mut().zip(block) {
                    *largest = (*largest).max(i32::from(value).abs());
                }
            }
        }
        Ok(())
    });
    let Ok(tables) = read else { return false };
    let fits = |(values, steps): (&[i32; 64], &[u16; 64])| {
        let sum: i64 = values
            .iter()
            .zip(steps)
            .map(|(&value, &step)| i64::from(value) * i64::from(step))
            .sum();
        sum < 1 << 13
    };
    largest.iter().zip(&tables).all(fits)
}
