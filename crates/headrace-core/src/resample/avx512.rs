//! The two passes of a resize with AVX-512 VBMI and VNNI, bit-identical to [`super::scalar`].
//!
//! A weight has 22 fraction bits and a sign, so it is the exact sum of three signed bytes, `high << 16 + middle << 8 + low`.
//! `vpdpbusd` multiplies four unsigned pixels by four signed bytes and adds the products to a 32-bit lane without rounding or
//! saturation, so three of them per four taps give the exact sum (modulo 2³², like the scalar `wrapping_add`). Nothing is
//! approximated.
#![allow(unsafe_code)]
// The kernels are unsafe throughout: each one states what its caller must guarantee.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::coefficients::{Weights, WEIGHT_BITS};
use super::Rows;

/// Values (bytes of the output row) that one block computes: four vectors of 16 lanes.
const BLOCK: usize = 64;
/// Rounding constant after division by 2¹⁶, because the accumulator starts with the high digit.
const HALF_HIGH: i32 = 1 << (WEIGHT_BITS - 1 - 16);

/// Split a weight into (high, middle, low) bytes with `weight = high << 16 + middle << 8 + low`, each in -128..=127.
#[inline(always)]
fn digits(weight: i32) -> (u8, u8, u8) {
    let low = weight as i8;
    let rest = (weight - i32::from(low)) >> 8;
    let middle = rest as i8;
    let high = (rest - i32::from(middle)) >> 8;
    (high as u8, middle as u8, low as u8)
}

/// Return one lane's four weights, as three vectors of bytes for `vpdpbusd`.
#[inline(always)]
fn quad_digits(weights: &[i32]) -> [u32; 3] {
    let mut quad = [[0_u8; 4]; 3];
    for (tap, &weight) in weights.iter().take(4).enumerate() {
        (quad[0][tap], quad[1][tap], quad[2][tap]) = digits(weight);
    }
    quad.map(u32::from_le_bytes)
}

/// Tables of the horizontal pass, one 32-bit entry per output value (byte) and four taps; padded to whole blocks.
#[derive(Debug, Default)]
pub struct Columns {
    /// Number of output values.
    values: usize,
    /// Groups of four taps.
    quads: usize,
    /// Offset of the 64 source bytes of each 16 values, per quad: `windows[quad * groups + group]`.
    windows: Vec<u32>,
    /// The four of the 64 bytes that each lane reads.
    pick: Vec<u32>,
    /// The weights' digits, highest first.
    digits: [Vec<u32>; 3],
}

impl Columns {
    /// Build the tables for source rows of `source_bytes` bytes. False if the pass does not fit this kernel: rows shorter than a
    /// vector, or so strong a reduction that 16 output values read more than 64 source bytes (about 2.6 times).
    pub fn fill(&mut self, weights: &Weights, source_bytes: usize) -> bool {
        let pixels = weights.starts.len();
        self.values = pixels * 3;
        self.quads = weights.taps.div_ceil(4);
        let padded = self.values.next_multiple_of(BLOCK);
        let groups = padded / 16;
        if source_bytes < 64 {
            return false;
        }
        self.windows.clear();
        self.windows.resize(self.quads * groups, 0);
        for table in self.digits.iter_mut().chain([&mut self.pick]) {
            table.clear();
            table.resize(self.quads * padded, 0);
        }
        (0..self.quads).all(|quad| self.fill_quad(weights, quad, padded, source_bytes))
    }

    fn fill_quad(
        &mut self,
        weights: &Weights,
        quad: usize,
        padded: usize,
        source_bytes: usize,
    ) -> bool {
        let first_tap = quad * 4;
        for group in 0..self.values.div_ceil(16) {
            let pixels = group * 16 / 3..(group * 16 + 16).min(self.values).div_ceil(3);
            let (mut begin, mut end) = (usize::MAX, 0);
            for pixel in pixels.clone() {
                let (start, count) = (
                    weights.starts[pixel] as usize,
                    weights.counts[pixel] as usize,
                );
                if count > first_tap {
                    begin = begin.min((start + first_tap) * 3);
                    end = end.max((start + count.min(first_tap + 4)) * 3);
                }
            }
            if begin == usize::MAX {
                continue; // only padding: the weights stay zero
            }
            if end - begin > 64 {
                return false;
            }
            let window = begin.min(source_bytes - 64);
            self.windows[quad * (padded / 16) + group] = window as u32;
            for pixel in pixels {
                let count = weights.counts[pixel] as usize;
                if count <= first_tap {
                    continue;
                }
                let split = quad_digits(&weights.of(pixel)[first_tap..count]);
                let offset = (weights.starts[pixel] as usize + first_tap) * 3 - window;
                // Taps are three bytes apart. A tap after the window has weight zero, and `vpermb` ignores the bits above the
                // sixth.
                let taps = (offset as u32) * 0x0101_0101 + 0x0906_0300;
                for channel in 0..3 {
                    let value = pixel * 3 + channel;
                    if value / 16 == group {
                        let at = quad * padded + value;
                        self.pick[at] = taps + channel as u32 * 0x0101_0101;
                        for (table, &digit) in self.digits.iter_mut().zip(&split) {
                            table[at] = digit;
                        }
                    }
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
        let reach = self.windows.iter().copied().max().unwrap_or(0) as usize + 64;
        assert!(count > 0 && (first + count - 1) * source.stride + reach <= source.bytes.len());
        assert!((count - 1) * output_stride + self.values <= output.len());
        // SAFETY: the extension was checked when the resampler was made; the asserts bound every load of 64 bytes at a window and
        // every (masked) store; the tables are padded to whole blocks by `fill`.
        unsafe {
            let input = source.bytes.as_ptr().add(first * source.stride);
            let output = output.as_mut_ptr();
            if self.quads == 1 {
                self.run_single(input, source.stride, count, output, output_stride);
            } else {
                self.run_many(input, source.stride, count, output, output_stride);
            }
        }
    }

    /// Compute rows with at most four taps: the tables of a block stay in registers for all rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn run_single(
        &self,
        source: *const u8,
        stride: usize,
        count: usize,
        output: *mut u8,
        output_stride: usize,
    ) {
        let half = _mm512_set1_epi32(HALF_HIGH);
        for start in (0..self.values).step_by(BLOCK) {
            let mask = store_mask(self.values - start);
            let windows: [usize; 4] =
                std::array::from_fn(|group| self.windows[start / 16 + group] as usize);
            let table = |from: &Vec<u32>, group: usize| load(from.as_ptr().add(start + group * 16));
            let pick: [__m512i; 4] = std::array::from_fn(|group| table(&self.pick, group));
            let high: [__m512i; 4] = std::array::from_fn(|group| table(&self.digits[0], group));
            let middle: [__m512i; 4] = std::array::from_fn(|group| table(&self.digits[1], group));
            let low: [__m512i; 4] = std::array::from_fn(|group| table(&self.digits[2], group));
            for row in 0..count {
                let input = source.add(row * stride);
                let mut sums = [half; 4];
                for group in 0..4 {
                    let pixels = load(input.add(windows[group]).cast());
                    let pixels = _mm512_permutexvar_epi8(pick[group], pixels);
                    let sum = _mm512_dpbusd_epi32(half, pixels, high[group]);
                    let sum =
                        _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(sum), pixels, middle[group]);
                    sums[group] =
                        _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(sum), pixels, low[group]);
                }
                let bytes = transpose_groups(to_pixels(sums));
                _mm512_mask_storeu_epi8(
                    output.add(row * output_stride + start).cast(),
                    mask,
                    bytes,
                );
            }
        }
    }

    /// Compute rows with any number of taps: one accumulator per digit, and the tables are read for each row.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn run_many(
        &self,
        source: *const u8,
        stride: usize,
        count: usize,
        output: *mut u8,
        output_stride: usize,
    ) {
        let padded = self.values.next_multiple_of(BLOCK);
        for start in (0..self.values).step_by(BLOCK) {
            let mask = store_mask(self.values - start);
            for row in 0..count {
                let input = source.add(row * stride);
                let mut sums = [_mm512_setzero_si512(); 4];
                for (group, total) in sums.iter_mut().enumerate() {
                    let mut sum = [
                        _mm512_set1_epi32(HALF_HIGH),
                        _mm512_setzero_si512(),
                        _mm512_setzero_si512(),
                    ];
                    for quad in 0..self.quads {
                        let window = *self
                            .windows
                            .get_unchecked((quad * padded + start) / 16 + group);
                        let at = quad * padded + start + group * 16;
                        let pixels = load(input.add(window as usize).cast());
                        let pixels =
                            _mm512_permutexvar_epi8(load(self.pick.as_ptr().add(at)), pixels);
                        for (sum, digits) in sum.iter_mut().zip(&self.digits) {
                            *sum = _mm512_dpbusd_epi32(*sum, pixels, load(digits.as_ptr().add(at)));
                        }
                    }
                    *total = join(sum);
                }
                let bytes = transpose_groups(to_pixels(sums));
                _mm512_mask_storeu_epi8(
                    output.add(row * output_stride + start).cast(),
                    mask,
                    bytes,
                );
            }
        }
    }
}

/// Tables of the vertical pass: the digits of four weights per entry.
#[derive(Debug, Default)]
pub struct RowQuads {
    quads: usize,
    digits: Vec<[u32; 3]>,
}

impl RowQuads {
    /// Build the table for all output rows.
    pub fn fill(&mut self, weights: &Weights) {
        self.quads = weights.taps.div_ceil(4);
        self.digits.clear();
        for row in 0..weights.starts.len() {
            self.digits
                .extend(weights.of(row).chunks(4).map(quad_digits));
        }
    }

    /// Compute output row `row` of the vertical pass, which reads `taps` rows of `source` from row `start` on.
    pub fn run(&self, row: usize, source: &Rows<'_>, start: usize, taps: usize, output: &mut [u8]) {
        let length = output.len();
        assert!(taps > 0 && (start + taps - 1) * source.stride + length <= source.bytes.len());
        let digits = &self.digits[row * self.quads..][..taps.div_ceil(4)];
        // SAFETY: the extension was checked when the resampler was made; the assert bounds the loads, which are masked like the
        // stores.
        unsafe {
            let input = source.bytes.as_ptr().add(start * source.stride);
            vertical_row(input, source.stride, taps, digits, output);
        }
    }
}

/// Compute one output row.
///
/// # Safety
/// `taps` rows as long as `output` are readable from `input` on, `stride` bytes apart; `digits` has an entry per four taps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn vertical_row(
    input: *const u8,
    stride: usize,
    taps: usize,
    digits: &[[u32; 3]],
    output: &mut [u8],
) {
    let length = output.len();
    let target = output.as_mut_ptr();
    let whole = length / BLOCK * BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        let bytes = vertical_block(input.add(at), stride, taps, digits, u64::MAX);
        _mm512_storeu_si512(target.add(at).cast(), bytes);
    }
    if whole < length {
        let mask = store_mask(length - whole);
        let bytes = vertical_block(input.add(whole), stride, taps, digits, mask);
        _mm512_mask_storeu_epi8(target.add(whole).cast(), mask, bytes);
    }
}

/// Return one block of one output row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn vertical_block(
    input: *const u8,
    stride: usize,
    taps: usize,
    digits: &[[u32; 3]],
    mask: __mmask64,
) -> __m512i {
    let zero = _mm512_setzero_si512();
    let mut high = [_mm512_set1_epi32(HALF_HIGH); 4];
    let (mut middle, mut low) = ([zero; 4], [zero; 4]);
    for (quad, split) in digits.iter().enumerate() {
        let row = |tap: usize| {
            // Rows after the last have weight zero; the last row is read instead.
            let tap = (quad * 4 + tap).min(taps - 1);
            _mm512_maskz_loadu_epi8(mask, input.add(tap * stride).cast())
        };
        let (first, second, third, fourth) = (row(0), row(1), row(2), row(3));
        let upper = [
            _mm512_unpacklo_epi8(first, second),
            _mm512_unpackhi_epi8(first, second),
        ];
        let lower = [
            _mm512_unpacklo_epi8(third, fourth),
            _mm512_unpackhi_epi8(third, fourth),
        ];
        let quads = [
            _mm512_unpacklo_epi16(upper[0], lower[0]),
            _mm512_unpackhi_epi16(upper[0], lower[0]),
            _mm512_unpacklo_epi16(upper[1], lower[1]),
            _mm512_unpackhi_epi16(upper[1], lower[1]),
        ];
        let weights = split.map(|digits| _mm512_set1_epi32(digits as i32));
        for part in 0..4 {
            high[part] = _mm512_dpbusd_epi32(high[part], quads[part], weights[0]);
            middle[part] = _mm512_dpbusd_epi32(middle[part], quads[part], weights[1]);
            low[part] = _mm512_dpbusd_epi32(low[part], quads[part], weights[2]);
        }
    }
    let sums = std::array::from_fn(|part| join([high[part], middle[part], low[part]]));
    to_pixels(sums)
}

/// # Safety
/// 64 bytes are readable at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u32) -> __m512i {
    _mm512_loadu_si512(from.cast())
}

/// Return the mask of the bytes to store when `left` remain.
#[inline(always)]
fn store_mask(left: usize) -> __mmask64 {
    if left >= BLOCK {
        u64::MAX
    } else {
        (1 << left) - 1
    }
}

/// Combine the sums of the three digits.
#[inline]
#[target_feature(enable = "avx512f")]
fn join(sums: [__m512i; 3]) -> __m512i {
    let upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), sums[1]);
    _mm512_add_epi32(_mm512_slli_epi32::<8>(upper), sums[2])
}

/// Drop the fraction bits and clip to bytes. Each 128-bit lane of the result holds four bytes of each vector in turn.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn to_pixels(sums: [__m512i; 4]) -> __m512i {
    let whole = sums.map(|sum| _mm512_srai_epi32::<WEIGHT_BITS>(sum));
    _mm512_packus_epi16(
        _mm512_packs_epi32(whole[0], whole[1]),
        _mm512_packs_epi32(whole[2], whole[3]),
    )
}

/// Reorder the bytes of [`to_pixels`] to group 0, 1, 2, 3: a transpose of 4 × 4 groups of four bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_groups(bytes: __m512i) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, bytes)
}
