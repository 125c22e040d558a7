//! Bilinear sampling, 16 pixels at a time, bit-identical to [`super::scalar`].
//!
//! Pixels well inside the image are computed with coordinates in 32.32 fixed point and a blend in single precision, both with
//! errors far below [`DOUBT`](super::span::DOUBT). The scalar code recomputes a pixel if a blended value is so near a whole
//! number that truncation could differ, or a point so near the border of two cells that it could be in the other one; four equal
//! pixels are always exact. The scalar code also computes all pixels at the edge of the image.
#![allow(unsafe_code)]
// The kernel is unsafe throughout; `bilinear` guarantees what it needs.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::span::{Cells, DOUBT, LONGEST_PART};
use super::{scalar, Affine, Line, Picture};

/// Sample a part of an output row bilinearly, at most [`LONGEST_PART`] pixels.
pub fn bilinear(picture: &Picture<'_>, map: &Affine, line: Line, output: &mut [u8]) {
    let pixels = output.len() / 3;
    assert!(pixels <= LONGEST_PART);
    let cells = Cells::of_row(picture, map, line, pixels);
    cells.assert_readable(picture, pixels);
    cells.fill_outside(line.fill, output);
    scalar::bilinear_part(picture, map, line, output, cells.visible..cells.first);
    // SAFETY: the extension was checked when the warper was made; `assert_readable` has checked that the pixels from
    // `first` to `end` are in the output and read eight bytes within the picture's buffer.
    unsafe { inner(picture, map, line, &cells, output) };
    scalar::bilinear_part(picture, map, line, output, cells.end..cells.hidden);
}

/// Sample the pixels inside the image.
///
/// # Safety
/// The processor has the features; `cells` belongs to this row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
unsafe fn inner(picture: &Picture<'_>, map: &Affine, line: Line, cells: &Cells, output: &mut [u8]) {
    let lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    let ramp = |line: super::span::Course| {
        let step = _mm512_mullo_epi64(lanes, _mm512_set1_epi64(line.step));
        let start = _mm512_add_epi64(_mm512_set1_epi64(line.start), step);
        [
            start,
            _mm512_add_epi64(start, _mm512_set1_epi64(line.step.wrapping_mul(8))),
        ]
    };
    let (mut x, mut y_at) = (ramp(cells.x), ramp(cells.y));
    let step_x = _mm512_set1_epi64(cells.x.step.wrapping_mul(16));
    let step_y = _mm512_set1_epi64(cells.y.step.wrapping_mul(16));
    let [doubt_x, doubt_y] = [cells.x, cells.y].map(|course| match course.exact {
        true => 0,
        false => u16::MAX,
    });
    let compress = _mm512_loadu_si512(COMPRESS.as_ptr().cast());
    for start in (cells.first..cells.end).step_by(16) {
        let count = (cells.end - start).min(16);
        let lanes = if count == 16 {
            u16::MAX
        } else {
            (1 << count) - 1
        };
        let columns = Place::of(x);
        let rows = Place::of(y_at);
        let corners = cells.blended(corners(picture, columns.whole, rows.whole, lanes));
        let blended = blend(corners, columns.share, rows.share);
        let doubt = (columns.doubtful & doubt_x) | (rows.doubtful & doubt_y);
        let mut doubtful = (blended.doubtful | doubt) & lanes;
        let bytes = _mm512_permutexvar_epi8(compress, blended.words);
        let mask = (1_u64 << (count * 3)) - 1;
        _mm512_mask_storeu_epi8(output.as_mut_ptr().add(start * 3).cast(), mask, bytes);
        while doubtful != 0 {
            let at = start + doubtful.trailing_zeros() as usize;
            doubtful &= doubtful - 1;
            if let Some(pixel) =
                scalar::bilinear_pixel(picture, map, line.first + at as u32, line.y)
            {
                output[at * 3..at * 3 + 3].copy_from_slice(&pixel);
            }
        }
        x = x.map(|half| _mm512_add_epi64(half, step_x));
        y_at = y_at.map(|half| _mm512_add_epi64(half, step_y));
    }
}

/// Sample the nearest neighbours of a part of a row: pixel i comes from the window's `at + i * step`, 16.16 fixed point.
///
/// # Safety The processor has the features; every pixel of `output` comes from inside the picture's window, where four bytes are
/// readable; the picture has fewer than 2³¹ bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
pub unsafe fn nearest(picture: &Picture<'_>, at: (i64, i64), step: (i64, i64), output: &mut [u8]) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Inside the window all values fit 32 bits; lanes beyond `output` may wrap, and are masked.
    let ramp = |start: i64, step: i64| {
        let ramp = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step as i32));
        _mm512_add_epi32(_mm512_set1_epi32(start as i32), ramp)
    };
    let (mut x, mut y) = (ramp(at.0, step.0), ramp(at.1, step.1));
    let step_x = _mm512_set1_epi32((step.0 as i32).wrapping_mul(16));
    let step_y = _mm512_set1_epi32((step.1 as i32).wrapping_mul(16));
    let stride = _mm512_set1_epi32(picture.stride as i32);
    let compress = _mm512_loadu_si512(COMPRESS.as_ptr().cast());
    for part in output.chunks_mut(48) {
        let count = part.len() / 3;
        let mask = ((1_u32 << count) - 1) as u16;
        let (column, row) = (_mm512_srai_epi32::<16>(x), _mm512_srai_epi32::<16>(y));
        let three = _mm512_add_epi32(column, _mm512_slli_epi32::<1>(column));
        let offset = _mm512_add_epi32(_mm512_mullo_epi32(row, stride), three);
        let words = _mm512_mask_i32gather_epi32::<1>(
            _mm512_setzero_si512(),
            mask,
            offset,
            picture.bytes.as_ptr().cast(),
        );
        let bytes = _mm512_permutexvar_epi8(compress, words);
        let mask = (1_u64 << part.len()) - 1;
        _mm512_mask_storeu_epi8(part.as_mut_ptr().cast(), mask, bytes);
        x = _mm512_add_epi32(x, step_x);
        y = _mm512_add_epi32(y, step_y);
    }
}

/// Indices of bytes 0, 1, 2 of each 32-bit lane.
const COMPRESS: [u8; 64] = {
    let mut order = [0; 64];
    let mut at = 0;
    while at < 48 {
        order[at] = (at / 3 * 4 + at % 3) as u8;
        at += 1;
    }
    order
};

/// 16 coordinates, split into whole part and fraction.
struct Place {
    whole: __m512i,
    share: __m512,
    /// Set if the whole part may be wrong by one.
    doubtful: __mmask16,
}

impl Place {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn of(halves: [__m512i; 2]) -> Self {
        let upper = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        let lower = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let fraction = _mm512_permutex2var_epi32(halves[0], lower, halves[1]);
        let near = _mm512_add_epi32(fraction, _mm512_set1_epi32(super::span::NEAR as i32));
        let limit = _mm512_set1_epi32(2 * super::span::NEAR as i32);
        Place {
            whole: _mm512_permutex2var_epi32(halves[0], upper, halves[1]),
            share: _mm512_mul_ps(
                _mm512_cvtepu32_ps(fraction),
                _mm512_set1_ps(1.0 / 4_294_967_296.0),
            ),
            doubtful: _mm512_cmplt_epu32_mask(near, limit),
        }
    }
}

/// Return the four pixels around each point, as 32-bit words with red in the lowest byte (the highest is arbitrary).
///
/// # Safety
/// For every lane of `lanes`, eight bytes are readable at the column and row of the picture's buffer, and in the next row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn corners(
    picture: &Picture<'_>,
    columns: __m512i,
    rows: __m512i,
    lanes: __mmask16,
) -> [__m512i; 4] {
    let stride = _mm512_set1_epi32(picture.stride as i32);
    let at = _mm512_add_epi32(_mm512_mullo_epi32(rows, stride), columns);
    let at = _mm512_add_epi32(at, _mm512_slli_epi32::<1>(columns));
    // Lanes after the inside of the row may point anywhere, so they read the first pixels of the buffer.
    let at = _mm512_maskz_mov_epi32(lanes, at);
    let halves = [
        _mm512_castsi512_si256(at),
        _mm512_extracti64x4_epi64::<1>(at),
    ];
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let pair = |base: *const u8| {
        // Eight bytes hold a pixel, the next one, and two unused bytes.
        let words = halves.map(|half| _mm512_i32gather_epi64::<1>(half, base.cast()));
        let next = words.map(|words| _mm512_srli_epi64::<24>(words));
        [
            _mm512_permutex2var_epi32(words[0], even, words[1]),
            _mm512_permutex2var_epi32(next[0], even, next[1]),
        ]
    };
    let upper = pair(picture.bytes.as_ptr());
    let lower = pair(picture.bytes.as_ptr().add(picture.stride));
    [upper[0], upper[1], lower[0], lower[1]]
}

/// 16 blended pixels.
struct Blended {
    words: __m512i,
    doubtful: __mmask16,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn blend(corners: [__m512i; 4], across: __m512, down: __m512) -> Blended {
    let byte = _mm512_set1_epi32(0xFF);
    let [first, second, third, fourth] = corners;
    let red = |word| _mm512_cvtepi32_ps(_mm512_and_si512(word, byte));
    let green = |word| _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(word), byte));
    let blue = |word| _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<16>(word), byte));
    let mix = |from, to, share| _mm512_fmadd_ps(_mm512_sub_ps(to, from), share, from);
    let mixed = |values: [__m512; 4]| {
        mix(
            mix(values[0], values[1], across),
            mix(values[2], values[3], across),
            down,
        )
    };
    let values = [
        mixed(corners.map(red)),
        mixed(corners.map(green)),
        mixed(corners.map(blue)),
    ];
    let bytes = values.map(|value| _mm512_cvttps_epi32(value));
    let words = _mm512_or_si512(
        _mm512_or_si512(bytes[0], _mm512_slli_epi32::<8>(bytes[1])),
        _mm512_slli_epi32::<16>(bytes[2]),
    );
    // The distance to the nearest whole number, the smallest of the three channels.
    let away = values.map(|value| _mm512_reduce_ps::<0>(value));
    let least = _mm512_range_ps::<0b1010>(_mm512_range_ps::<0b1010>(away[0], away[1]), away[2]);
    let doubt = _mm512_set1_ps(DOUBT);
    let mut doubtful = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(least, doubt);
    if doubtful != 0 {
        // Rare except in flat areas, which are exact.
        let unequal = _mm512_or_si512(
            _mm512_or_si512(
                _mm512_xor_si512(first, second),
                _mm512_xor_si512(first, third),
            ),
            _mm512_xor_si512(first, fourth),
        );
        doubtful = 0;
        for (channel, away) in away.into_iter().enumerate() {
            let near = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(away), doubt);
            let bits = _mm512_set1_epi32(0xFF << (8 * channel));
            doubtful |= near & _mm512_test_epi32_mask(unequal, bits);
        }
    }
    Blended { words, doubtful }
}
