//! The two passes of a resize with AVX2, bit-identical to [`super::scalar`].
//!
//! A weight is the exact sum `high << 16 + low`, `high` a signed byte and `low` a signed 16-bit number. Taps are taken in pairs:
//! `vpmaddubsw` sums pixel × high of a pair into 16 bits, `vpmaddwd` pixel × low into 32 bits. With S the exact sum, `S >> 16 = Σ
//! high + (Σ low >> 16)` holds modulo 2¹⁶, and S fits 32 bits, so 16-bit lanes hold it exactly; six more bits are fraction.
//! `vpmaddubsw` must not saturate: `|high₀| + |high₁| ≤ 128` for every pair is checked when the tables are made.
#![allow(unsafe_code)]
// The kernels are unsafe throughout: each one states what its caller must guarantee.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::coefficients::{Weights, WEIGHT_BITS};
use super::Rows;

/// Fraction bits that remain in the upper half of a sum.
const UPPER_BITS: i32 = WEIGHT_BITS as i32 - 16;
/// The rounding constant in the upper half of a sum.
const HALF_UPPER: i16 = 1 << (UPPER_BITS - 1);
/// Index byte for which `vpshufb` returns zero.
const NOTHING: u8 = 0x80;

/// Split a weight into (high, low) with `weight = high << 16 + low`; `high` fits a byte for every filter.
#[inline(always)]
fn split(weight: i32) -> (i32, i16) {
    let low = weight as i16;
    ((weight - i32::from(low)) >> 16, low)
}

/// Return the two weights from tap `tap` on, split; the second is zero past the end. `None` if `vpmaddubsw` could saturate.
#[inline(always)]
fn split_pair(weights: &[i32], tap: usize) -> Option<([i8; 2], [i16; 2])> {
    let first = split(weights[tap]);
    let second = split(weights.get(tap + 1).copied().unwrap_or(0));
    let safe = first.0.abs() + second.0.abs() <= 128 && first.0.abs().max(second.0.abs()) <= 127;
    safe.then_some(([first.0 as i8, second.0 as i8], [first.1, second.1]))
}

/// One pair of taps of one vector of output values. A lane holds two pixels (six values and two unused), or one pixel if the image
/// shrinks so much that the taps of two pixels are more than 16 bytes apart.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Pair {
    /// Which bytes of the lane's 16 source bytes form (first tap, second tap) of each value.
    pick: [u8; 32],
    /// Upper digits, interleaved like `pick`.
    high: [i8; 32],
    /// Lower digits of values 0..4 of each lane.
    low_first: [i16; 16],
    /// Lower digits of values 4..8 of each lane.
    low_second: [i16; 16],
    /// Offset of each lane's 16 source bytes.
    starts: [u32; 2],
}

const EMPTY_PAIR: Pair = Pair {
    pick: [NOTHING; 32],
    high: [0; 32],
    low_first: [0; 16],
    low_second: [0; 16],
    starts: [0; 2],
};

/// Tables of the horizontal pass.
#[derive(Debug, Default)]
pub struct Columns {
    values: usize,
    pairs: usize,
    lane_pixels: usize,
    source_bytes: usize,
    table: Vec<Pair>,
}

impl Columns {
    /// Build the tables for source rows of `source_bytes` bytes. False if the pass does not fit this kernel: rows shorter than 16
    /// bytes or weights that could saturate.
    pub fn fill(&mut self, weights: &Weights, source_bytes: usize) -> bool {
        self.values = weights.starts.len() * 3;
        self.pairs = weights.taps.div_ceil(2);
        self.source_bytes = source_bytes;
        if source_bytes < 16 {
            return false;
        }
        let near = |two: &[u32]| two.len() < 2 || two[0].abs_diff(two[1]) <= 3;
        self.lane_pixels = if weights.starts.chunks(2).all(near) {
            2
        } else {
            1
        };
        let vectors = weights.starts.len().div_ceil(2 * self.lane_pixels);
        self.table.clear();
        self.table.resize(vectors * self.pairs, EMPTY_PAIR);
        (0..weights.starts.len())
            .step_by(self.lane_pixels)
            .all(|pixel| self.fill_lane(weights, pixel))
    }

    /// Fill the lane that holds `pixel` first.
    fn fill_lane(&mut self, weights: &Weights, pixel: usize) -> bool {
        let lane = pixel / self.lane_pixels;
        let pixels = pixel..(pixel + self.lane_pixels).min(weights.starts.len());
        let first = weights.starts[pixels.clone()]
            .iter()
            .min()
            .copied()
            .unwrap_or(0) as usize;
        for pair in 0..self.pairs {
            let entry = &mut self.table[lane / 2 * self.pairs + pair];
            // A load must stay in the row, so the indices of the selected bytes shift accordingly.
            let start = (first * 3 + pair * 6).min(self.source_bytes - 16);
            entry.starts[lane % 2] = start as u32;
            for (slot, pixel) in pixels.clone().enumerate() {
                let count = weights.counts[pixel] as usize;
                if pair * 2 >= count {
                    continue;
                }
                let Some((high, low)) = split_pair(&weights.of(pixel)[..count], pair * 2) else {
                    return false;
                };
                let offset = (weights.starts[pixel] as usize + pair * 2) * 3 - start;
                for channel in 0..3 {
                    let value = slot * 3 + channel;
                    let at = lane % 2 * 16 + value * 2;
                    entry.pick[at] = (offset + channel) as u8;
                    if pair * 2 + 1 < count {
                        entry.pick[at + 1] = (offset + channel + 3) as u8;
                    }
                    entry.high[at..at + 2].copy_from_slice(&high);
                    let half = if value < 4 {
                        &mut entry.low_first
                    } else {
                        &mut entry.low_second
                    };
                    half[lane % 2 * 8 + value % 4 * 2..][..2].copy_from_slice(&low);
                }
            }
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
        assert!((count - 1) * output_stride + self.values <= output.len());
        // SAFETY: the extension was checked when the resampler was made; `fill` keeps every 16-byte load within `source_bytes` of
        // its row, and rows are bounded above.
        unsafe {
            for row in (0..count).step_by(2) {
                let next = (row + 1).min(count - 1); // an odd last row is computed twice
                let input =
                    [row, next].map(|row| source.bytes.as_ptr().add((first + row) * source.stride));
                let output = [row, next].map(|row| output.as_mut_ptr().add(row * output_stride));
                match (self.lane_pixels, self.pairs) {
                    (2, 1) => self.run_rows::<2, 1>(input, output),
                    (2, 2) => self.run_rows::<2, 2>(input, output),
                    (2, _) => self.run_rows::<2, 0>(input, output),
                    _ => self.run_rows::<1, 0>(input, output),
                }
            }
        }
    }

    /// Compute two rows at once, so that each table entry is loaded once for both. `PAIRS` is the number of pairs, or 0 if it is
    /// known only at run time.
    #[target_feature(enable = "avx2")]
    unsafe fn run_rows<const LANE_PIXELS: usize, const PAIRS: usize>(
        &self,
        input: [*const u8; 2],
        output: [*mut u8; 2],
    ) {
        let pairs = if PAIRS == 0 { self.pairs } else { PAIRS };
        let lane_bytes = LANE_PIXELS * 3;
        for (vector, entries) in self.table.chunks_exact(pairs).enumerate() {
            let bytes = sum_pairs(entries, input);
            let at = vector * lane_bytes * 2;
            let (left, right) = (
                _mm256_castsi256_si128(bytes),
                _mm256_extracti128_si256::<1>(bytes),
            );
            // Eight bytes are stored of which six (or three) are valid. The next store overwrites the rest; at the end of the row
            // it must not.
            if at + lane_bytes + 8 <= self.values {
                for (lane, half) in [left, right].into_iter().enumerate() {
                    let at = at + lane * lane_bytes;
                    _mm_storel_epi64(output[0].add(at).cast(), half);
                    _mm_storeh_pd(output[1].add(at).cast(), _mm_castsi128_pd(half));
                }
            } else {
                let mut buffer = [0_u8; 32];
                _mm256_storeu_si256(buffer.as_mut_ptr().cast(), bytes);
                for (row, output) in output.into_iter().enumerate() {
                    for lane in 0..2 {
                        let at = at + lane * lane_bytes;
                        let length = lane_bytes.min(self.values.saturating_sub(at));
                        let from = buffer.as_ptr().add(lane * 16 + row * 8);
                        std::ptr::copy_nonoverlapping(from, output.wrapping_add(at), length);
                    }
                }
            }
        }
    }
}

/// Return one vector of two rows: in each 128-bit lane, eight bytes of the first row, then eight of the second.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sum_pairs(entries: &[Pair], input: [*const u8; 2]) -> __m256i {
    let zero = _mm256_setzero_si256();
    let mut high = [_mm256_set1_epi16(HALF_UPPER); 2];
    let mut low = [[zero; 2]; 2];
    for entry in entries {
        let pick = _mm256_load_si256(entry.pick.as_ptr().cast());
        let weights = _mm256_load_si256(entry.high.as_ptr().cast());
        let low_weights = [
            _mm256_load_si256(entry.low_first.as_ptr().cast()),
            _mm256_load_si256(entry.low_second.as_ptr().cast()),
        ];
        for row in 0..2 {
            let left = _mm_loadu_si128(input[row].add(entry.starts[0] as usize).cast());
            let right = _mm_loadu_si128(input[row].add(entry.starts[1] as usize).cast());
            let pixels = _mm256_shuffle_epi8(_mm256_set_m128i(right, left), pick);
            high[row] = _mm256_add_epi16(high[row], _mm256_maddubs_epi16(pixels, weights));
            let halves = [
                _mm256_unpacklo_epi8(pixels, zero),
                _mm256_unpackhi_epi8(pixels, zero),
            ];
            for half in 0..2 {
                let product = _mm256_madd_epi16(halves[half], low_weights[half]);
                low[row][half] = _mm256_add_epi32(low[row][half], product);
            }
        }
    }
    let first = join(high[0], low[0][0], low[0][1]);
    let second = join(high[1], low[1][0], low[1][1]);
    _mm256_packus_epi16(first, second)
}

/// Return the integer part of 16 sums from the sums of their digits.
#[inline]
#[target_feature(enable = "avx2")]
fn join(high: __m256i, low_first: __m256i, low_second: __m256i) -> __m256i {
    let carry = _mm256_packs_epi32(
        _mm256_srai_epi32::<16>(low_first),
        _mm256_srai_epi32::<16>(low_second),
    );
    _mm256_srai_epi16::<UPPER_BITS>(_mm256_add_epi16(high, carry))
}

/// Tables of the vertical pass: the digits of each pair of weights, in the order of the broadcast.
#[derive(Debug, Default)]
pub struct RowPairs {
    pairs: usize,
    digits: Vec<(i16, i32)>,
}

impl RowPairs {
    /// Build the table for all output rows; false if the weights could saturate.
    pub fn fill(&mut self, weights: &Weights) -> bool {
        self.pairs = weights.taps.div_ceil(2);
        self.digits.clear();
        for row in 0..weights.starts.len() {
            for tap in (0..weights.taps).step_by(2) {
                let Some((high, low)) = split_pair(weights.of(row), tap) else {
                    return false;
                };
                let high = i16::from_le_bytes(high.map(|digit| digit as u8));
                self.digits
                    .push((high, i32::from(low[0] as u16) | i32::from(low[1]) << 16));
            }
        }
        true
    }

    /// Compute output row `row` of the vertical pass, which reads `taps` rows of `source` from row `start` on. `output` holds at
    /// least 32 bytes.
    pub fn run(&self, row: usize, source: &Rows<'_>, start: usize, taps: usize, output: &mut [u8]) {
        let length = output.len();
        assert!(taps > 0 && length >= 32);
        assert!((start + taps - 1) * source.stride + length <= source.bytes.len());
        let digits = &self.digits[row * self.pairs..][..taps.div_ceil(2)];
        // SAFETY: the extension was checked when the resampler was made; the asserts bound what is read and written.
        unsafe {
            let input = source.bytes.as_ptr().add(start * source.stride);
            vertical_row(input, source.stride, taps, digits, output);
        }
    }
}

/// Compute one output row of at least 32 bytes; the last block ends with the row.
///
/// # Safety
/// `taps` rows as long as `output` are readable from `input` on, `stride` bytes apart; `digits` has an entry per two taps.
#[target_feature(enable = "avx2")]
unsafe fn vertical_row(
    input: *const u8,
    stride: usize,
    taps: usize,
    digits: &[(i16, i32)],
    output: &mut [u8],
) {
    let length = output.len();
    for at in (0..length).step_by(32) {
        let at = at.min(length - 32);
        let bytes = vertical_block(input.add(at), stride, taps, digits);
        _mm256_storeu_si256(output.as_mut_ptr().add(at).cast(), bytes);
    }
}

/// Return 32 bytes of one output row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn vertical_block(
    input: *const u8,
    stride: usize,
    taps: usize,
    digits: &[(i16, i32)],
) -> __m256i {
    let zero = _mm256_setzero_si256();
    let mut high = [_mm256_set1_epi16(HALF_UPPER); 2];
    let mut low = [[zero; 2]; 2];
    for (pair, &(high_digits, low_digits)) in digits.iter().enumerate() {
        let first = _mm256_loadu_si256(input.add(pair * 2 * stride).cast());
        // A row after the last has weight zero; the last row is read instead.
        let next = (pair * 2 + 1).min(taps - 1);
        let second = _mm256_loadu_si256(input.add(next * stride).cast());
        let high_weights = _mm256_set1_epi16(high_digits);
        let low_weights = _mm256_set1_epi32(low_digits);
        let pixels = [
            _mm256_unpacklo_epi8(first, second),
            _mm256_unpackhi_epi8(first, second),
        ];
        for half in 0..2 {
            let product = _mm256_maddubs_epi16(pixels[half], high_weights);
            high[half] = _mm256_add_epi16(high[half], product);
            let wide = [
                _mm256_unpacklo_epi8(pixels[half], zero),
                _mm256_unpackhi_epi8(pixels[half], zero),
            ];
            for part in 0..2 {
                let product = _mm256_madd_epi16(wide[part], low_weights);
                low[half][part] = _mm256_add_epi32(low[half][part], product);
            }
        }
    }
    _mm256_packus_epi16(
        join(high[0], low[0][0], low[0][1]),
        join(high[1], low[1][0], low[1][1]),
    )
}
