//! Operations on neighbourhoods: Gaussian blur, dilation, erosion.

use crate::cpu::{vectorised, Extension};

/// Largest side of a blur kernel in pixels; torchvision's training scripts use up to 23.
pub const MAX_KERNEL: usize = 127;

/// Write the weights of one axis of torchvision's Gaussian to `weights`: softmax of -(x / sigma)², with x from -limit to limit,
/// limit = (size - 1) / √8.
pub fn gaussian(size: usize, sigma: f32, weights: &mut Vec<f32>) {
    let limit = ((size - 1) as f64 / (2.0 * 2.0_f64.sqrt())) as f32;
    let step = if size > 1 {
        2.0 * limit / (size - 1) as f32
    } else {
        0.0
    };
    weights.clear();
    weights.extend((0..size).map(|i| {
        // Symmetric, because torch.linspace counts from both ends.
        let from_end = i.min(size - 1 - i) as f32;
        let x = (-limit + step * from_end) / sigma;
        (-(x * x)).exp()
    }));
    let sum: f32 = weights.iter().sum();
    for weight in weights.iter_mut() {
        *weight /= sum;
    }
}

/// Return the position that a reflected border repeats (the edge pixel itself is not repeated).
pub(super) fn reflect(at: isize, length: usize) -> usize {
    let last = length as isize - 1;
    let at = at.abs();
    (if at > last { 2 * last - at } else { at }).clamp(0, last) as usize
}

/// Scratch memory of the neighbourhood operations.
#[derive(Debug, Default)]
pub struct Scratch {
    padded: Vec<u8>,
    rows: Vec<f32>,
    bytes: Vec<u8>,
    weights: [Vec<f32>; 2],
}

impl Scratch {
    /// Blur in place with a Gaussian: reflected borders, single precision, rounded half to even. The result equals torchvision's
    /// `gaussian_blur` on uint8 up to the order of sums (a value within 10⁻⁴ of a half may round the other way). Kernel sides are
    /// odd and at most twice the image's side minus one.
    pub fn blur(
        &mut self,
        extension: Extension,
        pixels: &mut [u8],
        width: usize,
        kernel: (usize, usize),
        sigma: (f32, f32),
    ) {
        let height = pixels.len() / 3 / width;
        gaussian(kernel.0, sigma.0, &mut self.weights[0]);
        gaussian(kernel.1, sigma.1, &mut self.weights[1]);
        let row = width * 3;
        let (side, above) = (kernel.0 / 2, kernel.1 / 2);
        let slot = row.next_multiple_of(PART);
        self.padded.clear();
        self.padded.resize(slot + side * 6, 0);
        self.rows.resize(slot * kernel.1, 0.0);
        self.bytes.resize(pixels.len(), 0);
        // A ring of horizontally blurred rows: row y of the padded image is at y % kernel height.
        for y in 0..height + 2 * above {
            let source = reflect(y as isize - above as isize, height);
            pad_row(&pixels[source * row..][..row], side, &mut self.padded);
            let across = &mut self.rows[y % kernel.1 * slot..][..slot];
            blur_across(extension, &self.padded, &self.weights[0], across);
            if y >= 2 * above {
                let first = y - 2 * above;
                let output = &mut self.bytes[first * row..][..row];
                blur_down(
                    extension,
                    &self.rows,
                    first % kernel.1,
                    &self.weights[1],
                    output,
                );
            }
        }
        pixels.copy_from_slice(&self.bytes);
    }

    /// Replace every value by the largest (`dilate`) or smallest of its 3 × 3 neighbourhood inside the image (Pillow's
    /// `MaxFilter(3)` and `MinFilter(3)`).
    pub fn morphology(
        &mut self,
        extension: Extension,
        pixels: &mut [u8],
        width: usize,
        dilate: bool,
    ) {
        let row = width * 3;
        let height = pixels.len() / row;
        self.bytes.resize(pixels.len(), 0);
        self.padded.resize(row + 6, 0);
        for y in 0..height {
            let rows = [y.saturating_sub(1), y, (y + 1).min(height - 1)];
            let rows = rows.map(|y| &pixels[y * row..][..row]);
            extreme_down(extension, rows, &mut self.padded[3..row + 3], dilate);
            self.padded.copy_within(3..6, 0);
            self.padded.copy_within(row..row + 3, row + 3);
            extreme_across(
                extension,
                &self.padded,
                &mut self.bytes[y * row..][..row],
                dilate,
            );
        }
        pixels.copy_from_slice(&self.bytes);
    }

    /// Blend every value with the mean of its neighbourhood (see [`super::blend::sharpness_row`]). Images below 3 × 3 pixels stay
    /// unchanged, as in Pillow.
    pub fn sharpness(
        &mut self,
        extension: Extension,
        pixels: &mut [u8],
        width: usize,
        factor: f32,
    ) {
        let row = width * 3;
        let height = pixels.len() / row;
        if width < 3 || height < 3 {
            return;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(pixels);
        for y in 1..height - 1 {
            let rows = [y - 1, y, y + 1].map(|y| &self.bytes[y * row..][..row]);
            super::blend::sharpness_row(extension, rows, &mut pixels[y * row..][..row], factor);
        }
    }
}

/// Copy a row with `side` reflected pixels at each end.
pub(super) fn pad_row(source: &[u8], side: usize, padded: &mut [u8]) {
    let width = source.len() / 3;
    padded[side * 3..][..source.len()].copy_from_slice(source);
    for i in 0..side {
        let left = reflect(i as isize - side as isize, width) * 3;
        padded[i * 3..][..3].copy_from_slice(&source[left..][..3]);
        let right = reflect((width + i) as isize, width) * 3;
        padded[(side + width + i) * 3..][..3].copy_from_slice(&source[right..][..3]);
    }
}

/// Values summed at a time; rows of the ring are padded to whole parts.
const PART: usize = 64;

vectorised! {
    fn blur_across(padded: &[u8], weights: &[f32], output: &mut [f32]) = blur_across_body
}

#[inline(always)]
fn blur_across_body(padded: &[u8], weights: &[f32], output: &mut [f32]) {
    // The small kernels are unrolled.
    match *weights {
        [a, b, c] => sum_across(padded, &[a, b, c], output),
        [a, b, c, d, e] => sum_across(padded, &[a, b, c, d, e], output),
        _ => sum_across(padded, weights, output),
    }
}

#[inline(always)]
fn sum_across(padded: &[u8], weights: &[f32], output: &mut [f32]) {
    for (part, output) in output.chunks_exact_mut(PART).enumerate() {
        let mut sums = [0.0_f32; PART];
        for (tap, &weight) in weights.iter().enumerate() {
            let source = &padded[part * PART + tap * 3..][..PART];
            for i in 0..PART {
                sums[i] += weight * f32::from(source[i]);
            }
        }
        output.copy_from_slice(&sums);
    }
}

vectorised! {
    fn blur_down(rows: &[f32], first: usize, weights: &[f32], output: &mut [u8]) = blur_down_body
}

#[inline(always)]
fn blur_down_body(rows: &[f32], first: usize, weights: &[f32], output: &mut [u8]) {
    match *weights {
        [a, b, c] => sum_down(rows, first, &[a, b, c], output),
        [a, b, c, d, e] => sum_down(rows, first, &[a, b, c, d, e], output),
        _ => sum_down(rows, first, weights, output),
    }
}

#[inline(always)]
fn sum_down(rows: &[f32], first: usize, weights: &[f32], output: &mut [u8]) {
    let slot = output.len().next_multiple_of(PART);
    for (part, output) in output.chunks_mut(PART).enumerate() {
        let mut sums = [0.0_f32; PART];
        for (tap, &weight) in weights.iter().enumerate() {
            let row = (first + tap) % weights.len();
            let source = &rows[row * slot + part * PART..][..PART];
            for i in 0..PART {
                sums[i] += weight * source[i];
            }
        }
        let bytes = sums.map(|sum| super::planes::to_byte(sum.round_ties_even()));
        output.copy_from_slice(&bytes[..output.len()]);
    }
}

vectorised! {
    fn extreme_down(rows: [&[u8]; 3], output: &mut [u8], dilate: bool) = extreme_down_body
}

#[inline(always)]
fn extreme_down_body(rows: [&[u8]; 3], output: &mut [u8], dilate: bool) {
    let length = output.len();
    let [above, here, below] = rows.map(|row| &row[..length]);
    for i in 0..length {
        output[i] = if dilate {
            above[i].max(here[i]).max(below[i])
        } else {
            above[i].min(here[i]).min(below[i])
        };
    }
}

vectorised! {
    fn extreme_across(padded: &[u8], output: &mut [u8], dilate: bool) = extreme_across_body
}

#[inline(always)]
fn extreme_across_body(padded: &[u8], output: &mut [u8], dilate: bool) {
    let length = output.len();
    let (left, here, right) = (
        &padded[..length],
        &padded[3..][..length],
        &padded[6..][..length],
    );
    for i in 0..length {
        output[i] = if dilate {
            left[i].max(here[i]).max(right[i])
        } else {
            left[i].min(here[i]).min(right[i])
        };
    }
}
