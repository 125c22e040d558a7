//! Gaussian blur as Pillow's `ImageFilter.GaussianBlur`: three box blurs across, then three down, in integers.
//!
//! Source: Pillow `src/libImaging/BoxBlur.c`. A box of radius r + f (f < 1) is the sum of 2 r + 1 values, plus the share f of the
//! next value on each side; beyond the edge, the edge value repeats.

use crate::cpu::{vectorised, Extension};

/// Number of box blurs in each direction (Pillow's `GaussianBlur` passes 3).
const PASSES: u32 = 3;

/// Fraction bits of a weight.
const BITS: u32 = 24;

/// Largest radius of the Gaussian in pixels: wider ones blur any image to one colour.
pub const MAX_RADIUS: f32 = 1000.0;

/// The weights of a box: `radius` whole values on each side of the middle, and one more of less weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Box24 {
    radius: usize,
    inner: u32,
    outer: u32,
}

impl Box24 {
    /// Return the box that, applied three times, approximates a Gaussian of this radius; `None` if it changes nothing.
    ///
    /// Single and double precision are mixed as in Pillow's `_gaussian_blur_radius` and `ImagingHorizontalBoxBlur`.
    pub fn of_gaussian(radius: f32) -> Option<Self> {
        let variance = radius * radius / PASSES as f32;
        let length = (12.0 * f64::from(variance) + 1.0).sqrt() as f32;
        let whole = ((f64::from(length) - 1.0) / 2.0).floor() as f32;
        let mut part = (2.0 * whole + 1.0) * (whole * (whole + 1.0) - 3.0 * variance);
        part /= 6.0 * (variance - (whole + 1.0) * (whole + 1.0));
        let box_radius = whole + part;
        if box_radius == 0.0 {
            return None;
        }
        let radius = box_radius as u32;
        let inner = ((1 << BITS) as f32 / (box_radius * 2.0 + 1.0)) as u32;
        let outer = ((1 << BITS) - (radius * 2 + 1) * inner) / 2;
        Some(Box24 {
            radius: radius as usize,
            inner,
            outer,
        })
    }
}

/// Scratch memory of the blur.
#[derive(Debug, Default)]
pub struct Scratch {
    padded: Vec<u8>,
    column: Vec<u8>,
    sums: Vec<u32>,
}

impl Scratch {
    /// Blur uint8 RGB pixels in place, in rows of `width` pixels without gaps. `radius`: the Gaussian's standard deviation in
    /// pixels, 0 to [`MAX_RADIUS`].
    pub fn blur(&mut self, extension: Extension, pixels: &mut [u8], width: usize, radius: f32) {
        let Some(weights) = Box24::of_gaussian(radius) else {
            return;
        };
        let row = width * 3;
        for line in pixels.chunks_exact_mut(row) {
            for _ in 0..PASSES {
                self.across(extension, line, weights);
            }
        }
        for _ in 0..PASSES {
            self.down(extension, pixels, row, weights);
        }
    }

    /// Blur one row.
    fn across(&mut self, extension: Extension, line: &mut [u8], weights: Box24) {
        let side = (weights.radius + 1) * 3;
        let (first, last) = ([line[0], line[1], line[2]], line.len() - 3);
        let last = [line[last], line[last + 1], line[last + 2]];
        self.padded.clear();
        for _ in 0..=weights.radius {
            self.padded.extend_from_slice(&first);
        }
        self.padded.extend_from_slice(line);
        for _ in 0..=weights.radius {
            self.padded.extend_from_slice(&last);
        }
        self.sums.clear();
        self.sums.resize(line.len(), 0);
        for tap in 1..=2 * weights.radius + 1 {
            add(
                extension,
                &mut self.sums,
                &self.padded[tap * 3..][..line.len()],
            );
        }
        let (left, right) = (
            &self.padded[..line.len()],
            &self.padded[2 * side..][..line.len()],
        );
        finish(
            extension,
            &self.sums,
            left,
            right,
            (weights.inner, weights.outer),
            line,
        );
    }

    /// Blur all columns: the sums of a row's box follow from those of the row above.
    fn down(&mut self, extension: Extension, pixels: &mut [u8], row: usize, weights: Box24) {
        let height = (pixels.len() / row) as isize;
        let radius = weights.radius as isize;
        self.column.clear();
        self.column.extend_from_slice(pixels);
        let source = &self.column;
        let line = |y: isize| &source[y.clamp(0, height - 1) as usize * row..][..row];
        self.sums.clear();
        self.sums.resize(row, 0);
        for y in -radius..=radius {
            add(extension, &mut self.sums, line(y));
        }
        for (y, output) in (0..height).zip(pixels.chunks_exact_mut(row)) {
            if y > 0 {
                move_on(
                    extension,
                    &mut self.sums,
                    line(y - radius - 1),
                    line(y + radius),
                );
            }
            let (above, below) = (line(y - radius - 1), line(y + radius + 1));
            finish(
                extension,
                &self.sums,
                above,
                below,
                (weights.inner, weights.outer),
                output,
            );
        }
    }
}

vectorised! {
    fn add(sums: &mut [u32], values: &[u8]) = add_body
}

#[inline(always)]
fn add_body(sums: &mut [u32], values: &[u8]) {
    for (sum, &value) in sums.iter_mut().zip(values) {
        *sum += u32::from(value);
    }
}

vectorised! {
    fn move_on(sums: &mut [u32], leaving: &[u8], entering: &[u8]) = move_on_body
}

#[inline(always)]
fn move_on_body(sums: &mut [u32], leaving: &[u8], entering: &[u8]) {
    let length = sums.len();
    let (leaving, entering) = (&leaving[..length], &entering[..length]);
    for i in 0..length {
        sums[i] = sums[i] + u32::from(entering[i]) - u32::from(leaving[i]);
    }
}

vectorised! {
    fn finish(sums: &[u32], before: &[u8], after: &[u8], weights: (u32, u32), output: &mut [u8]) = finish_body
}

#[inline(always)]
fn finish_body(sums: &[u32], before: &[u8], after: &[u8], weights: (u32, u32), output: &mut [u8]) {
    let length = output.len();
    let (sums, before, after) = (&sums[..length], &before[..length], &after[..length]);
    for i in 0..length {
        let far = u32::from(before[i]) + u32::from(after[i]);
        let sum = sums[i] * weights.0 + far * weights.1;
        output[i] = ((sum + (1 << (BITS - 1))) >> BITS) as u8;
    }
}
