//! [`super::symbols`] for all coefficients of a block at once. Zeros are removed from the values and from their positions; the
//! differences of the positions are the runs.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{coded, dc_symbol, symbols, ROOM};
use crate::error::Result;
use crate::jpeg::header::ZIGZAG;

/// Return the positions in natural order of 32 coefficients in file order, from `first` on.
const fn order(first: usize) -> [i16; 32] {
    let mut order = [0; 32];
    let mut k = 0;
    while k < 32 {
        order[k] = ZIGZAG[first + k] as i16;
        k += 1;
    }
    order
}

static FIRST: [i16; 32] = order(0);
static SECOND: [i16; 32] = order(32);
/// The numbers 0 to 63.
static NUMBERS: [u8; 64] = {
    let mut numbers = [0; 64];
    let mut k = 0;
    while k < 64 {
        numbers[k] = k as u8;
        k += 1;
    }
    numbers
};

/// Return the symbols of sixteen `values` with their `runs`.
#[inline]
#[target_feature(enable = "avx512f,avx512cd")]
fn sixteen(values: __m256i, runs: __m128i, base: __m512i) -> __m512i {
    let value = _mm512_cvtepi16_epi32(values);
    let size = _mm512_sub_epi32(
        _mm512_set1_epi32(32),
        _mm512_lzcnt_epi32(_mm512_abs_epi32(value)),
    );
    // The lowest bits of the value; of negative values minus one.
    let less = _mm512_add_epi32(value, _mm512_srai_epi32::<31>(value));
    let above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), size);
    let extra = _mm512_slli_epi32::<16>(_mm512_andnot_si512(above, less));
    let run = _mm512_slli_epi32::<4>(_mm512_cvtepu8_epi32(runs));
    let symbol = _mm512_add_epi32(_mm512_add_epi32(base, run), size);
    _mm512_or_si512(symbol, extra)
}

/// Write the symbols of a block, see [`super::symbols`].
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt"
)]
pub fn symbols_avx512(
    coefficients: &[i16; 64],
    predictor: i16,
    base: u32,
    words: &mut [u32; ROOM],
) -> Result<usize> {
    // SAFETY: the loads read the 64 coefficients, 32 numbers each, and 64 bytes.
    let (low, high, first, second, numbers) = unsafe {
        (
            _mm512_loadu_si512(coefficients.as_ptr().cast()),
            _mm512_loadu_si512(coefficients.as_ptr().add(32).cast()),
            _mm512_loadu_si512(FIRST.as_ptr().cast()),
            _mm512_loadu_si512(SECOND.as_ptr().cast()),
            _mm512_loadu_si512(NUMBERS.as_ptr().cast()),
        )
    };
    let (first, second) = (
        _mm512_permutex2var_epi16(low, first, high),
        _mm512_permutex2var_epi16(low, second, high),
    );
    let in_first = _mm512_test_epi16_mask(first, first) & !1;
    let in_second = _mm512_test_epi16_mask(second, second);
    let places = u64::from(in_first) | u64::from(in_second) << 32;
    let count = places.count_ones();

    let one = _mm512_set1_epi8(1);
    let place = _mm512_maskz_compress_epi8(places, numbers);
    let before = _mm512_maskz_permutexvar_epi8(!1, _mm512_sub_epi8(numbers, one), place);
    let runs = _mm512_sub_epi8(_mm512_sub_epi8(place, before), one);
    let long = _mm512_cmpgt_epu8_mask(runs, _mm512_set1_epi8(15)) & !(u64::MAX << count);
    let least = _mm512_set1_epi16(i16::MIN);
    let none = _mm512_cmpeq_epi16_mask(first, least) | _mm512_cmpeq_epi16_mask(second, least);
    if long != 0 || none != 0 {
        return symbols(coefficients, predictor, base, words);
    }

    let (dc, size) = dc_symbol(coefficients, predictor, base);
    words[0] = dc;
    let from_first = in_first.count_ones() as usize;
    let runs_second = _mm512_permutexvar_epi8(
        _mm512_add_epi8(numbers, _mm512_set1_epi8(from_first as i8)),
        runs,
    );
    let ac = _mm512_set1_epi32(base as i32 + 256);
    let values = _mm512_maskz_compress_epi16(in_first, first);
    let values_second = _mm512_maskz_compress_epi16(in_second, second);
    let to = words.as_mut_ptr();
    // SAFETY: `from_first` is at most 31, so the stores end at 1 + 31 + 32 words or before, and `words` has 80.
    unsafe {
        let store = |at: usize, sixteen| _mm512_storeu_si512(to.add(at).cast(), sixteen);
        store(
            1,
            sixteen(
                _mm512_castsi512_si256(values),
                _mm512_castsi512_si128(runs),
                ac,
            ),
        );
        store(
            17,
            sixteen(
                _mm512_extracti64x4_epi64::<1>(values),
                _mm512_extracti32x4_epi32::<1>(runs),
                ac,
            ),
        );
        store(
            1 + from_first,
            sixteen(
                _mm512_castsi512_si256(values_second),
                _mm512_castsi512_si128(runs_second),
                ac,
            ),
        );
        if in_second.count_ones() > 16 {
            store(
                17 + from_first,
                sixteen(
                    _mm512_extracti64x4_epi64::<1>(values_second),
                    _mm512_extracti32x4_epi32::<1>(runs_second),
                    ac,
                ),
            );
        }
    }
    let mut count = 1 + count as usize;
    if places >> 63 == 0 {
        words[count] = base + 256;
        count += 1;
    }
    coded(size, count)
}
