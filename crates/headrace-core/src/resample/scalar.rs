//! The two passes of a resize in scalar Rust: the reference that every vector kernel must reproduce bit for bit.

use super::coefficients::{Weights, WEIGHT_BITS};

const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// Round an accumulator to a pixel. Sums wrap like Pillow's `int`; no real filter reaches that.
#[inline(always)]
fn to_pixel(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Run the horizontal pass on one row: from interleaved RGB `source` to `output`, 3 bytes per entry of `weights`.
pub fn horizontal(weights: &Weights, source: &[u8], output: &mut [u8]) {
    for (i, pixel) in output.chunks_exact_mut(3).enumerate() {
        let count = weights.counts[i] as usize;
        let taps = source[weights.starts[i] as usize * 3..].chunks_exact(3);
        let mut sums = [HALF; 3];
        for (values, &weight) in taps.zip(&weights.of(i)[..count]) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum = sum.wrapping_add(i32::from(value).wrapping_mul(weight));
            }
        }
        for (value, sum) in pixel.iter_mut().zip(sums) {
            *value = to_pixel(sum);
        }
    }
}

/// Compute one output row of the vertical pass. `rows` starts at the first source row; rows are `stride` bytes apart, one per
/// weight.
pub fn vertical(weights: &[i32], rows: &[u8], stride: usize, output: &mut [u8]) {
    for (i, value) in output.iter_mut().enumerate() {
        let mut sum = HALF;
        for (tap, &weight) in weights.iter().enumerate() {
            sum = sum.wrapping_add(i32::from(rows[tap * stride + i]).wrapping_mul(weight));
        }
        *value = to_pixel(sum);
    }
}
