//! Brightness, contrast, saturation, grayscale and sharpness, exactly as Pillow's `ImageEnhance` (which torchvision's PIL path
//! calls).
//!
//! Each is `Image.blend(degenerate, image, factor)`: `degenerate + factor · (image - degenerate)` in single precision, truncated
//! and clipped (Pillow `Blend.c`). Results are bit-identical to Pillow's.

use super::planes::{luma, to_byte, Planes, BLOCK, BLOCK_BYTES};
use crate::cpu::vectorised;

#[inline(always)]
fn blend(degenerate: u8, value: u8, factor: f32) -> u8 {
    let difference = i32::from(value) - i32::from(degenerate);
    to_byte(f32::from(degenerate) + factor * difference as f32)
}

vectorised! {
    /// Blend every value with one constant: 0 for brightness, the mean luma for contrast.
    pub fn with_constant(pixels: &mut [u8], constant: u8, factor: f32) = with_constant_body
}

#[inline(always)]
fn with_constant_body(pixels: &mut [u8], constant: u8, factor: f32) {
    for value in pixels {
        *value = blend(constant, *value, factor);
    }
}

vectorised! {
    /// Blend every pixel with its luma.
    pub fn saturation(pixels: &mut [u8], factor: f32) = saturation_body
}

#[inline(always)]
fn saturation_body(pixels: &mut [u8], factor: f32) {
    for part in pixels.chunks_mut(BLOCK_BYTES) {
        let mut planes = Planes::load(part);
        let [red, green, blue] = &mut planes.channels;
        for i in 0..BLOCK {
            let grey = luma(red[i], green[i], blue[i]);
            red[i] = blend(grey, red[i], factor);
            green[i] = blend(grey, green[i], factor);
            blue[i] = blend(grey, blue[i], factor);
        }
        planes.store(part);
    }
}

vectorised! {
    /// Replace every pixel by its luma.
    pub fn grayscale(pixels: &mut [u8]) = grayscale_body
}

#[inline(always)]
fn grayscale_body(pixels: &mut [u8]) {
    for part in pixels.chunks_mut(BLOCK_BYTES) {
        let mut planes = Planes::load(part);
        let [red, green, blue] = &mut planes.channels;
        for i in 0..BLOCK {
            let grey = luma(red[i], green[i], blue[i]);
            (red[i], green[i], blue[i]) = (grey, grey, grey);
        }
        planes.store(part);
    }
}

vectorised! {
    /// Return the sum of the luma of all pixels.
    fn luma_sum(pixels: &[u8]) -> u64 = luma_sum_body
}

#[inline(always)]
fn luma_sum_body(pixels: &[u8]) -> u64 {
    let mut total = 0;
    for block in pixels.chunks(BLOCK_BYTES) {
        let mut sum = 0_u32;
        for pixel in block.chunks_exact(3) {
            sum += u32::from(luma(pixel[0], pixel[1], pixel[2]));
        }
        total += u64::from(sum);
    }
    total
}

/// Return the rounded mean luma, which contrast blends with.
pub fn mean_luma(extension: crate::cpu::Extension, pixels: &[u8]) -> u8 {
    let count = (pixels.len() / 3) as f64;
    (luma_sum(extension, pixels) as f64 / count + 0.5) as u8
}

vectorised! {
    /// Sharpen one row: blend it with Pillow's SMOOTH filter, (1 1 1, 1 5 1, 1 1 1) / 13. The first and last pixel stay unchanged.
    pub fn sharpness_row(rows: [&[u8]; 3], output: &mut [u8], factor: f32) = sharpness_row_body
}

#[inline(always)]
fn sharpness_row_body(rows: [&[u8]; 3], output: &mut [u8], factor: f32) {
    let length = output.len();
    let [above, here, below] = rows.map(|row| &row[..length]);
    for i in 3..length - 3 {
        let column = |i: usize| u32::from(above[i]) + u32::from(here[i]) + u32::from(below[i]);
        let sum = column(i - 3) + column(i) + column(i + 3) + 4 * u32::from(here[i]);
        // Pillow rounds sum / 13 + 0.5 down, in floats. No sum is within 1/26 of a whole number there, so integers give the same
        // result.
        let smooth = ((2 * sum + 13) / 26) as u8;
        output[i] = blend(smooth, here[i], factor);
    }
    // Pillow's filter copies the border, and a value blended with itself is itself.
    output[..3].copy_from_slice(&here[..3]);
    output[length - 3..].copy_from_slice(&here[length - 3..]);
}
