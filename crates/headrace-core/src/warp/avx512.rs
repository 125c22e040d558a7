//! Bilinear sampling, 16 pixels at a time, bit-identical to [`super::scalar`].
//!
//! Coordinates are computed in double precision, in Pillow's order of operations. The blend is in single precision, whose error stays
//! below [`DOUBT`]; where a blended value lies so near a whole number that truncation could differ, the pixel is recomputed by the scalar
//! code. Values that are exact in single precision (four equal pixels, or a point on a pixel's centre) are not in doubt.
#![allow(unsafe_code)]
// The kernel is unsafe from end to end; `bilinear` vouches for it.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::{scalar, Affine, Picture};

/// Bound of the single-precision error of a blended value, with margin: two rounded shares (2⁻²⁵ each, times 255) and three fused
/// multiply-adds (2⁻¹⁷ each at values below 256) sum to less than 5·10⁻⁵.
const DOUBT: f32 = 1.0 / 8192.0;

/// One output row.
pub fn bilinear(picture: &Picture<'_>, map: &Affine, y: u32, fill: [u8; 3], output: &mut [u8]) {
    let window = picture.window;
    let length = (window.h as usize - 1) * picture.stride + window.w as usize * 3;
    assert!(length <= picture.bytes.len());
    if picture.bytes.len() > i32::MAX as usize || picture.bytes.len() < 4 {
        return scalar::bilinear(picture, map, y, fill, output); // offsets would not fit a lane
    }
    // SAFETY: the extension was checked when the warper was made; coordinates are clamped to the window, and the last four bytes of the
    // buffer are the last address read.
    unsafe { row(picture, map, y, fill, output) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn row(picture: &Picture<'_>, map: &Affine, y: u32, fill: [u8; 3], output: &mut [u8]) {
    let down = f64::from(y) + 0.5;
    let line = Line {
        x: [map.a, map.b * down, map.c].map(|value| _mm512_set1_pd(value)),
        y: [map.d, map.e * down, map.f].map(|value| _mm512_set1_pd(value)),
        size: [picture.width, picture.height].map(|side| _mm512_set1_pd(f64::from(side))),
    };
    let pixels = output.len() / 3;
    let fill_word = u32::from_le_bytes([fill[0], fill[1], fill[2], 0]);
    let compress = _mm512_loadu_si512(COMPRESS.as_ptr().cast());
    for start in (0..pixels).step_by(16) {
        let places = line.places(start);
        let lanes: u16 = if pixels - start >= 16 {
            u16::MAX
        } else {
            (1 << (pixels - start)) - 1
        };
        let inside = places.inside & lanes;
        let mut words = _mm512_set1_epi32(fill_word as i32);
        let mut doubtful = 0;
        if inside != 0 {
            let corners = corners(picture, &places);
            let blended = blend(corners, &places);
            doubtful = blended.doubtful & inside;
            words = _mm512_mask_mov_epi32(words, inside, blended.words);
        }
        let bytes = _mm512_permutexvar_epi8(compress, words);
        let count = (pixels - start).min(16) * 3;
        _mm512_mask_storeu_epi8(
            output.as_mut_ptr().add(start * 3).cast(),
            (1 << count) - 1,
            bytes,
        );
        while doubtful != 0 {
            let at = start + doubtful.trailing_zeros() as usize;
            doubtful &= doubtful - 1;
            let pixel = scalar::bilinear_pixel(picture, map, at as u32, y).unwrap_or(fill);
            output[at * 3..at * 3 + 3].copy_from_slice(&pixel);
        }
    }
}

/// Picks bytes 0, 1, 2 of each 32-bit lane.
const COMPRESS: [u8; 64] = {
    let mut order = [0; 64];
    let mut at = 0;
    while at < 48 {
        order[at] = (at / 3 * 4 + at % 3) as u8;
        at += 1;
    }
    order
};

/// The constants of one output row.
struct Line {
    x: [__m512d; 3],
    y: [__m512d; 3],
    size: [__m512d; 2],
}

/// Where 16 output pixels come from.
struct Places {
    /// Pixels whose point lies in the picture.
    inside: __mmask16,
    /// Pixels whose point is exactly a pixel's centre.
    exact: __mmask16,
    column: __m512i,
    row: __m512i,
    across: __m512,
    down: __m512,
}

impl Line {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn places(&self, start: usize) -> Places {
        let lanes = _mm512_setr_pd(0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5);
        let first = self.half(_mm512_add_pd(lanes, _mm512_set1_pd(start as f64)));
        let second = self.half(_mm512_add_pd(lanes, _mm512_set1_pd(start as f64 + 8.0)));
        let mask = |low: __mmask8, high: __mmask8| u16::from(low) | u16::from(high) << 8;
        Places {
            inside: mask(first.inside, second.inside),
            exact: mask(first.exact, second.exact),
            column: join_integers(first.column, second.column),
            row: join_integers(first.row, second.row),
            across: join_floats(first.across, second.across),
            down: join_floats(first.down, second.down),
        }
    }

    /// Eight of the sixteen. Multiplications and additions are separate on purpose: a fused one would round differently from Pillow.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn half(&self, at: __m512d) -> HalfPlaces {
        let zero = _mm512_setzero_pd();
        let point = |line: [__m512d; 3]| {
            _mm512_add_pd(_mm512_add_pd(_mm512_mul_pd(line[0], at), line[1]), line[2])
        };
        let (x, y) = (point(self.x), point(self.y));
        let inside = _mm512_cmp_pd_mask::<_CMP_GE_OQ>(x, zero)
            & _mm512_cmp_pd_mask::<_CMP_LT_OQ>(x, self.size[0])
            & _mm512_cmp_pd_mask::<_CMP_GE_OQ>(y, zero)
            & _mm512_cmp_pd_mask::<_CMP_LT_OQ>(y, self.size[1]);
        let half = _mm512_set1_pd(0.5);
        let (x, y) = (_mm512_sub_pd(x, half), _mm512_sub_pd(y, half));
        let (column, row) = (floor(x), floor(y));
        let (across, down) = (_mm512_sub_pd(x, column), _mm512_sub_pd(y, row));
        HalfPlaces {
            inside,
            exact: _mm512_cmp_pd_mask::<_CMP_EQ_OQ>(_mm512_add_pd(across, down), zero),
            column: _mm512_cvttpd_epi32(column),
            row: _mm512_cvttpd_epi32(row),
            across: _mm512_cvtpd_ps(across),
            down: _mm512_cvtpd_ps(down),
        }
    }
}

struct HalfPlaces {
    inside: __mmask8,
    exact: __mmask8,
    column: __m256i,
    row: __m256i,
    across: __m256,
    down: __m256,
}

/// The four pixels around each point, as 32-bit words with red in the lowest byte.
///
/// # Safety
/// The picture holds its window and at least four bytes, fewer than 2³¹.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn corners(picture: &Picture<'_>, places: &Places) -> [__m512i; 4] {
    let window = picture.window;
    let place = |at: __m512i, first: u32, count: u32| {
        let at = _mm512_sub_epi32(at, _mm512_set1_epi32(first as i32));
        let at = _mm512_max_epi32(at, _mm512_setzero_si512());
        _mm512_min_epi32(at, _mm512_set1_epi32(count as i32 - 1))
    };
    let one = _mm512_set1_epi32(1);
    let columns = [places.column, _mm512_add_epi32(places.column, one)].map(|column| {
        let column = place(column, window.x, window.w);
        _mm512_add_epi32(column, _mm512_slli_epi32::<1>(column))
    });
    let stride = _mm512_set1_epi32(picture.stride as i32);
    let rows = [places.row, _mm512_add_epi32(places.row, one)]
        .map(|row| _mm512_mullo_epi32(place(row, window.y, window.h), stride));
    // The last pixel of the buffer has no fourth byte: read from a byte or more earlier, then shift.
    let last = _mm512_set1_epi32(picture.bytes.len() as i32 - 4);
    let gather = |row: __m512i, column: __m512i| {
        let at = _mm512_add_epi32(row, column);
        let safe = _mm512_min_epi32(at, last);
        let words = _mm512_i32gather_epi32::<1>(safe, picture.bytes.as_ptr().cast());
        _mm512_srlv_epi32(words, _mm512_slli_epi32::<3>(_mm512_sub_epi32(at, safe)))
    };
    [
        gather(rows[0], columns[0]),
        gather(rows[0], columns[1]),
        gather(rows[1], columns[0]),
        gather(rows[1], columns[1]),
    ]
}

/// 16 blended pixels.
struct Blended {
    words: __m512i,
    doubtful: __mmask16,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn blend(corners: [__m512i; 4], places: &Places) -> Blended {
    let byte = _mm512_set1_epi32(0xFF);
    let [first, second, third, fourth] = corners;
    let unequal = _mm512_or_si512(
        _mm512_or_si512(
            _mm512_xor_si512(first, second),
            _mm512_xor_si512(first, third),
        ),
        _mm512_xor_si512(first, fourth),
    );
    let doubt = _mm512_set1_ps(DOUBT);
    let mut words = _mm512_setzero_si512();
    let mut doubtful = 0;
    for channel in 0..3 {
        let shift = _mm_cvtsi32_si128(channel * 8);
        let value =
            |word| _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srl_epi32(word, shift), byte));
        let mix = |from, to, share| _mm512_fmadd_ps(_mm512_sub_ps(to, from), share, from);
        let top = mix(value(first), value(second), places.across);
        let bottom = mix(value(third), value(fourth), places.across);
        let blended = mix(top, bottom, places.down);
        let away = _mm512_sub_ps(blended, _mm512_roundscale_ps::<0>(blended));
        let near = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(away), doubt);
        let differ = _mm512_test_epi32_mask(unequal, _mm512_sll_epi32(byte, shift));
        doubtful |= near & differ;
        words = _mm512_or_si512(words, _mm512_sll_epi32(_mm512_cvttps_epi32(blended), shift));
    }
    Blended {
        words,
        doubtful: doubtful & !places.exact,
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn floor(value: __m512d) -> __m512d {
    _mm512_roundscale_pd::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(value)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn join_integers(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn join_floats(low: __m256, high: __m256) -> __m512 {
    let (low, high) = (_mm256_castps_si256(low), _mm256_castps_si256(high));
    _mm512_castsi512_ps(join_integers(low, high))
}
