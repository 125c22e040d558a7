//! The two passes of a resize with NEON, bit-identical to [`super::scalar`].
//!
//! A table look-up spreads pixels to 32-bit lanes, which are multiplied by the full weights. The sums wrap like those of the scalar
//! code, so every filter fits.
#![allow(unsafe_code)]
// The kernels are unsafe throughout: each one states what its caller must guarantee.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::aarch64::*;

use super::coefficients::{Weights, WEIGHT_BITS};
use super::Rows;

/// The rounding constant.
const HALF: i32 = 1 << (WEIGHT_BITS - 1);
/// Index byte for which `tbl` returns zero, also after the offset of a [`Quad`] is added.
const NOTHING: u8 = 0x80;
/// Rows of the horizontal pass that share each load of a table entry.
const TOGETHER: usize = 4;

/// The bytes of 16 that make the 32-bit lanes of four taps: the three channels of a pixel and an unused lane.
static TAPS: [[u8; 16]; 4] = {
    let mut pick = [[NOTHING; 16]; 4];
    let mut i = 0;
    while i < 12 {
        pick[i / 3][i % 3 * 4] = i as u8;
        i += 1;
    }
    pick
};

/// The bytes of 16 that make the 32-bit lanes of each four bytes.
static FOURS: [[u8; 16]; 4] = {
    let mut pick = [[NOTHING; 16]; 4];
    let mut i = 0;
    while i < 16 {
        pick[i / 4][i % 4 * 4] = i as u8;
        i += 1;
    }
    pick
};

/// Convert eight sums to eight pixels by two saturating shifts, the first of which clips at zero.
#[inline]
#[target_feature(enable = "neon")]
fn to_pixels(low: int32x4_t, high: int32x4_t) -> uint8x8_t {
    let upper = vqshrun_high_n_s32::<16>(vqshrun_n_s32::<16>(low), high);
    vqshrn_n_u16::<{ WEIGHT_BITS as i32 - 16 }>(upper)
}

/// Return `sum + pixels * weight`; the pixels are the bytes of `source` at the indices `pick`.
#[inline]
#[target_feature(enable = "neon")]
fn accumulate(
    sum: int32x4_t,
    source: uint8x16_t,
    pick: uint8x16_t,
    weight: int32x4_t,
) -> int32x4_t {
    let pixels = vreinterpretq_s32_u8(vqtbl1q_u8(source, pick));
    vmlaq_s32(sum, pixels, weight)
}

/// Four taps of one pixel of the horizontal pass.
#[derive(Debug, Clone, Copy)]
struct Quad {
    /// The weights; after the last they are zero.
    weights: [i32; 4],
    /// Offset of the 16 source bytes that hold the taps.
    start: u32,
    /// Offset of the first tap in these bytes; more than zero if they were moved to end with the row.
    offset: u8,
}

/// Tables of the horizontal pass.
#[derive(Debug, Default)]
pub struct Columns {
    source_bytes: usize,
    quads: Vec<Quad>,
    /// Number of quads up to each pixel, inclusive.
    ends: Vec<u32>,
}

impl Columns {
    /// Build the tables for source rows of `source_bytes` bytes. False if rows are shorter than 16 bytes.
    pub fn fill(&mut self, weights: &Weights, source_bytes: usize) -> bool {
        self.source_bytes = source_bytes;
        if source_bytes < 16 {
            return false;
        }
        self.quads.clear();
        self.ends.clear();
        for (pixel, (&start, &count)) in weights.starts.iter().zip(&weights.counts).enumerate() {
            let used = &weights.of(pixel)[..count as usize];
            for (number, taps) in used.chunks(4).enumerate() {
                let wanted = (start as usize + number * 4) * 3;
                let start = wanted.min(source_bytes - 16);
                let mut weights = [0; 4];
                weights[..taps.len()].copy_from_slice(taps);
                self.quads.push(Quad {
                    weights,
                    start: start as u32,
                    offset: (wanted - start) as u8,
                });
            }
            self.ends.push(self.quads.len() as u32);
        }
        true
    }

    /// Run the horizontal pass on `count` rows of `source` from row `first` on, into rows of `output` that are `output_stride`
    /// bytes apart.
    pub fn run(
        &self,
        source: &Rows<'_>,
        first: usize,
        count: usize,
        output: &mut [u8],
        output_stride: usize,
    ) {
        assert!(count > 0);
        assert!((first + count - 1) * source.stride + self.source_bytes <= source.bytes.len());
        assert!((count - 1) * output_stride + self.ends.len() * 3 <= output.len());
        let whole = count - count % TOGETHER;
        // SAFETY: the extension was checked when the resampler was made; `fill` keeps every 16-byte load within `source_bytes` of
        // its row, and rows are bounded above.
        unsafe {
            let mut input = source.bytes.as_ptr().add(first * source.stride);
            let mut output = output.as_mut_ptr();
            for _ in 0..whole / TOGETHER {
                self.run_rows::<TOGETHER>(input, source.stride, output, output_stride);
                input = input.wrapping_add(TOGETHER * source.stride);
                output = output.wrapping_add(TOGETHER * output_stride);
            }
            for _ in whole..count {
                self.run_rows::<1>(input, source.stride, output, output_stride);
                input = input.wrapping_add(source.stride);
                output = output.wrapping_add(output_stride);
            }
        }
    }

    /// Compute `ROWS` (at most four) rows at once.
    ///
    /// # Safety
    /// `ROWS` rows of `source_bytes` are readable from `input` on, `ROWS` rows of three bytes per pixel writable from `output` on.
    #[target_feature(enable = "neon")]
    unsafe fn run_rows<const ROWS: usize>(
        &self,
        input: *const u8,
        input_stride: usize,
        output: *mut u8,
        output_stride: usize,
    ) {
        let picks = TAPS.map(|pick| vld1q_u8(pick.as_ptr()));
        let values = self.ends.len() * 3;
        let mut from = 0;
        for (pixel, &end) in self.ends.iter().enumerate() {
            let mut sums = [vdupq_n_s32(HALF); 4];
            for quad in &self.quads[from..end as usize] {
                let weights = vld1q_s32(quad.weights.as_ptr());
                let weights = [
                    vdupq_laneq_s32::<0>(weights),
                    vdupq_laneq_s32::<1>(weights),
                    vdupq_laneq_s32::<2>(weights),
                    vdupq_laneq_s32::<3>(weights),
                ];
                let offset = vdupq_n_u8(quad.offset);
                let picks = picks.map(|pick| vaddq_u8(pick, offset));
                for (row, sum) in sums.iter_mut().enumerate().take(ROWS) {
                    let source = vld1q_u8(input.add(row * input_stride + quad.start as usize));
                    for tap in 0..4 {
                        *sum = accumulate(*sum, source, picks[tap], weights[tap]);
                    }
                }
            }
            from = end as usize;
            let pixels = vreinterpretq_u32_u8(vcombine_u8(
                to_pixels(sums[0], sums[1]),
                to_pixels(sums[2], sums[3]),
            ));
            let mut buffer = [0_u32; 4];
            vst1q_u32(buffer.as_mut_ptr(), pixels);
            for (row, four) in buffer.iter().enumerate().take(ROWS) {
                let to = output.add(row * output_stride + pixel * 3);
                // Four bytes are stored of which three are valid. The next store overwrites the rest; at the end of the row it
                // must not.
                if pixel * 3 + 4 <= values {
                    to.cast::<u32>().write_unaligned(*four);
                } else {
                    std::ptr::copy_nonoverlapping(four.to_ne_bytes().as_ptr(), to, 3);
                }
            }
        }
    }
}

/// Compute one output row of the vertical pass from rows of `source` from row `start` on, one per weight. `output` holds at least
/// 16 bytes.
pub fn vertical(weights: &[i32], source: &Rows<'_>, start: usize, output: &mut [u8]) {
    let length = output.len();
    assert!(!weights.is_empty() && length >= 16);
    assert!((start + weights.len() - 1) * source.stride + length <= source.bytes.len());
    // SAFETY: the extension was checked when the resampler was made; the asserts bound what is read and written.
    unsafe {
        let input = source.bytes.as_ptr().add(start * source.stride);
        vertical_row(weights, input, source.stride, output);
    }
}

/// Compute one output row of at least 16 bytes; the last block ends with the row.
///
/// # Safety
/// A row as long as `output` is readable for each weight from `input` on, `stride` bytes apart.
#[target_feature(enable = "neon")]
unsafe fn vertical_row(weights: &[i32], input: *const u8, stride: usize, output: &mut [u8]) {
    let picks = FOURS.map(|pick| vld1q_u8(pick.as_ptr()));
    let length = output.len();
    for at in (0..length).step_by(16) {
        let at = at.min(length - 16);
        let mut sums = [vdupq_n_s32(HALF); 4];
        for (tap, &weight) in weights.iter().enumerate() {
            let source = vld1q_u8(input.add(at + tap * stride));
            let weight = vdupq_n_s32(weight);
            for (sum, pick) in sums.iter_mut().zip(picks) {
                *sum = accumulate(*sum, source, pick, weight);
            }
        }
        let pixels = vcombine_u8(to_pixels(sums[0], sums[1]), to_pixels(sums[2], sums[3]));
        vst1q_u8(output.as_mut_ptr().add(at), pixels);
    }
}
