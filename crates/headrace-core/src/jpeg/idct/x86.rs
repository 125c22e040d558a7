//! The inverse DCT with vectors. A row of a [`Group`] holds row r of four neighbouring blocks, 16 bytes each, so every 128-bit
//! lane works on its own block: two blocks at once with AVX2, four with AVX-512. All shuffles stay inside lanes.
#![allow(unsafe_code)]

use super::constant::*;
use super::{BITS, SHIFT1, SHIFT2};
use crate::jpeg::entropy::Group;
use std::arch::x86_64::*;

/// Return two 16-bit factors for `pmaddwd`; `low` multiplies the first operand of the interleaving.
const fn pair(low: i32, high: i32) -> i32 {
    (low & 0xFFFF) | high << 16
}

/// Defines `transform` (one pass over eight row vectors), `transpose` and `bytes` for one vector width.
macro_rules! kernel {
    ($name:ident, $features:literal, $vector:ty, $zero:ident, $set32:ident, $add16:ident, $sub16:ident, $madd:ident, $add32:ident,
     $sub32:ident, $sra32:ident, $low16:ident, $high16:ident, $low32:ident, $high32:ident, $low64:ident, $high64:ident,
     $pack32:ident, $pack16:ident, $low8:ident, $high8:ident, $xor:ident, $set8:ident) => {
        mod $name {
            use super::*;

            /// Run one pass of the transform in every lane; see the scalar code for the names.
            #[inline]
            #[target_feature(enable = $features)]
            pub fn transform<const SHIFT: i32>(x: [$vector; 8]) -> [$vector; 8] {
                /// `a * low + b * high` in 32 bits, for both halves of each lane.
                macro_rules! rotate {
                    ($ab:expr, $low:expr, $high:expr) => {{
                        let factors = $set32(pair($low, $high));
                        [$madd($ab[0], factors), $madd($ab[1], factors)]
                    }};
                }
                let both = |a, b| [$low16(a, b), $high16(a, b)];
                let add =
                    |a: [$vector; 2], b: [$vector; 2]| [$add32(a[0], b[0]), $add32(a[1], b[1])];
                let sub =
                    |a: [$vector; 2], b: [$vector; 2]| [$sub32(a[0], b[0]), $sub32(a[1], b[1])];
                let round = $set32(1 << (SHIFT - 1));
                // Widened to 32 bits, times 2^13. The rounding of the last step is added here, once for two outputs.
                let scaled = |a| {
                    both($zero(), a).map(|half| $add32($sra32::<{ 16 - BITS as i32 }>(half), round))
                };

                let z23 = both(x[2], x[6]);
                let tmp2 = rotate!(z23, F0_541, F0_541 - F1_847);
                let tmp3 = rotate!(z23, F0_541 + F0_765, F0_541);
                let tmp0 = scaled($add16(x[0], x[4]));
                let tmp1 = scaled($sub16(x[0], x[4]));
                let even = [
                    add(tmp0, tmp3),
                    add(tmp1, tmp2),
                    sub(tmp1, tmp2),
                    sub(tmp0, tmp3),
                ];

                let z34 = both($add16(x[7], x[3]), $add16(x[5], x[1]));
                let z3 = rotate!(z34, F1_175 - F1_961, F1_175);
                let z4 = rotate!(z34, F1_175, F1_175 - F0_390);
                let in71 = both(x[7], x[1]);
                let in53 = both(x[5], x[3]);
                let odd = [
                    add(rotate!(in71, -F0_899, F1_501 - F0_899), z4),
                    add(rotate!(in53, -F2_562, F3_072 - F2_562), z3),
                    add(rotate!(in53, F2_053 - F2_562, -F2_562), z4),
                    add(rotate!(in71, F0_298 - F0_899, -F0_899), z3),
                ];
                let descale =
                    |a: [$vector; 2]| $pack32($sra32::<SHIFT>(a[0]), $sra32::<SHIFT>(a[1]));
                [
                    descale(add(even[0], odd[0])),
                    descale(add(even[1], odd[1])),
                    descale(add(even[2], odd[2])),
                    descale(add(even[3], odd[3])),
                    descale(sub(even[3], odd[3])),
                    descale(sub(even[2], odd[2])),
                    descale(sub(even[1], odd[1])),
                    descale(sub(even[0], odd[0])),
                ]
            }

            /// Transpose the 8×8 matrix of 16-bit values in every lane.
            #[inline]
            #[target_feature(enable = $features)]
            pub fn transpose(x: [$vector; 8]) -> [$vector; 8] {
                let a = [
                    $low16(x[0], x[1]),
                    $high16(x[0], x[1]),
                    $low16(x[2], x[3]),
                    $high16(x[2], x[3]),
                    $low16(x[4], x[5]),
                    $high16(x[4], x[5]),
                    $low16(x[6], x[7]),
                    $high16(x[6], x[7]),
                ];
                let b = [
                    $low32(a[0], a[2]),
                    $high32(a[0], a[2]),
                    $low32(a[1], a[3]),
                    $high32(a[1], a[3]),
                    $low32(a[4], a[6]),
                    $high32(a[4], a[6]),
                    $low32(a[5], a[7]),
                    $high32(a[5], a[7]),
                ];
                [
                    $low64(b[0], b[4]),
                    $high64(b[0], b[4]),
                    $low64(b[1], b[5]),
                    $high64(b[1], b[5]),
                    $low64(b[2], b[6]),
                    $high64(b[2], b[6]),
                    $low64(b[3], b[7]),
                    $high64(b[3], b[7]),
                ]
            }

            /// Convert columns of samples (16 bits) to rows of bytes: result r holds rows 2r and 2r + 1, eight bytes each, per
            /// lane.
            #[inline]
            #[target_feature(enable = $features)]
            pub fn bytes(columns: [$vector; 8]) -> [$vector; 4] {
                let centre = $set8(-128);
                let pack = |a, b| $xor($pack16(columns[a], columns[b]), centre);
                // Columns 0|4, 1|5, ...: three byte-wise interleavings then transpose.
                let (p0, p1, p2, p3) = (pack(0, 4), pack(1, 5), pack(2, 6), pack(3, 7));
                let (c02, c46) = ($low8(p0, p2), $high8(p0, p2));
                let (c13, c57) = ($low8(p1, p3), $high8(p1, p3));
                let (low03, low47) = ($low8(c02, c13), $low8(c46, c57));
                let (high03, high47) = ($high8(c02, c13), $high8(c46, c57));
                [
                    $low32(low03, low47),
                    $high32(low03, low47),
                    $low32(high03, high47),
                    $high32(high03, high47),
                ]
            }
        }
    };
}

kernel!(
    avx2,
    "avx2",
    __m256i,
    _mm256_setzero_si256,
    _mm256_set1_epi32,
    _mm256_add_epi16,
    _mm256_sub_epi16,
    _mm256_madd_epi16,
    _mm256_add_epi32,
    _mm256_sub_epi32,
    _mm256_srai_epi32,
    _mm256_unpacklo_epi16,
    _mm256_unpackhi_epi16,
    _mm256_unpacklo_epi32,
    _mm256_unpackhi_epi32,
    _mm256_unpacklo_epi64,
    _mm256_unpackhi_epi64,
    _mm256_packs_epi32,
    _mm256_packs_epi16,
    _mm256_unpacklo_epi8,
    _mm256_unpackhi_epi8,
    _mm256_xor_si256,
    _mm256_set1_epi8
);

kernel!(
    avx512,
    "avx512f,avx512bw",
    __m512i,
    _mm512_setzero_si512,
    _mm512_set1_epi32,
    _mm512_add_epi16,
    _mm512_sub_epi16,
    _mm512_madd_epi16,
    _mm512_add_epi32,
    _mm512_sub_epi32,
    srai512,
    _mm512_unpacklo_epi16,
    _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi32,
    _mm512_unpackhi_epi32,
    _mm512_unpacklo_epi64,
    _mm512_unpackhi_epi64,
    _mm512_packs_epi32,
    _mm512_packs_epi16,
    _mm512_unpacklo_epi8,
    _mm512_unpackhi_epi8,
    _mm512_xor_si512,
    _mm512_set1_epi8
);

/// Shift as `_mm512_srai_epi32`, with the signed shift constant of the AVX2 intrinsic.
#[inline]
#[target_feature(enable = "avx512f")]
fn srai512<const SHIFT: i32>(x: __m512i) -> __m512i {
    _mm512_sra_epi32(x, _mm_cvtsi32_si128(SHIFT))
}

/// Return the first rows of two blocks, `wrapped` for those without values in the rows `below` (see [`super::block`]).
#[cold]
#[target_feature(enable = "avx2")]
fn wrap_single_rows(row: __m256i, wrapped: __m256i, below: __m256i) -> __m256i {
    let zero = _mm256_cmpeq_epi64(below, _mm256_setzero_si256());
    let both_halves = _mm256_and_si256(zero, _mm256_shuffle_epi32::<0b01_00_11_10>(zero));
    _mm256_blendv_epi8(row, wrapped, both_halves)
}

/// Transform the four blocks of `group` to 8 rows of 32 samples at `out[at]`, and clear the group.
#[target_feature(enable = "avx2")]
pub fn group_avx2(group: &mut Group, quant: &[u16; 64], out: &mut [u8], at: usize, stride: usize) {
    let out = super::rows(out, at, stride);
    for half in 0..2 {
        let mut below = _mm256_setzero_si256(); // what the rows under the first hold
        let mut rows: [__m256i; 8] = std::array::from_fn(|row| {
            let place = group[row * 32 + half * 16..][..16]
                .as_mut_ptr()
                .cast::<__m256i>();
            // SAFETY: `place` is a slice of 16 values of 16 bits; `quant` holds 8 from row * 8 on (row < 8); unaligned access is
            // allowed.
            unsafe {
                let factors = _mm256_broadcastsi128_si256(_mm_loadu_si128(
                    quant.as_ptr().add(row * 8).cast(),
                ));
                let coefficients = _mm256_loadu_si256(place);
                _mm256_storeu_si256(place, _mm256_setzero_si256());
                if row > 0 {
                    below = _mm256_or_si256(below, coefficients);
                }
                _mm256_mullo_epi16(coefficients, factors)
            }
        });
        let wrapped = _mm256_srai_epi16::<2>(_mm256_slli_epi16::<2>(rows[0]));
        let differs = _mm256_xor_si256(wrapped, rows[0]);
        if _mm256_testz_si256(differs, differs) == 0 {
            rows[0] = wrap_single_rows(rows[0], wrapped, below);
        }
        let columns = avx2::transpose(avx2::transform::<{ SHIFT1 as i32 }>(rows));
        let pairs = avx2::bytes(avx2::transform::<{ SHIFT2 as i32 }>(columns));
        for (r, pair) in pairs.into_iter().enumerate() {
            // Row 2r of both blocks, then row 2r + 1.
            let pair = _mm256_permute4x64_epi64::<0b11_01_10_00>(pair);
            // SAFETY: rows up to 7, 16 bytes at column 0 or 16, all inside the slice of `rows`: 7 * stride + 32 bytes.
            unsafe {
                let to = out.as_mut_ptr().add(2 * r * stride + half * 16);
                _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(pair));
                _mm_storeu_si128(to.add(stride).cast(), _mm256_extracti128_si256::<1>(pair));
            }
        }
    }
}

/// Transform as [`group_avx2`] does, all four blocks at once.
#[target_feature(enable = "avx512f,avx512bw")]
pub fn group_avx512(
    group: &mut Group,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
) {
    let out = super::rows(out, at, stride);
    let mut below = _mm512_setzero_si512(); // what the rows under the first hold
    let mut rows: [__m512i; 8] = std::array::from_fn(|row| {
        let place = group[row * 32..][..32].as_mut_ptr().cast::<__m512i>();
        // SAFETY: `place` is a slice of 32 values of 16 bits; `quant` holds 8 from row * 8 on (row < 8); unaligned access is
        // allowed.
        unsafe {
            let factors =
                _mm512_broadcast_i32x4(_mm_loadu_si128(quant.as_ptr().add(row * 8).cast()));
            let coefficients = _mm512_loadu_si512(place);
            _mm512_storeu_si512(place, _mm512_setzero_si512());
            if row > 0 {
                below = _mm512_or_si512(below, coefficients);
            }
            _mm512_mullo_epi16(coefficients, factors)
        }
    });
    let wrapped = _mm512_srai_epi16::<2>(_mm512_slli_epi16::<2>(rows[0]));
    if _mm512_cmpneq_epi16_mask(wrapped, rows[0]) != 0 {
        let (half, other) = (
            wrap_single_rows(
                _mm512_castsi512_si256(rows[0]),
                _mm512_castsi512_si256(wrapped),
                _mm512_castsi512_si256(below),
            ),
            wrap_single_rows(
                _mm512_extracti64x4_epi64::<1>(rows[0]),
                _mm512_extracti64x4_epi64::<1>(wrapped),
                _mm512_extracti64x4_epi64::<1>(below),
            ),
        );
        rows[0] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half), other);
    }
    let columns = avx512::transpose(avx512::transform::<{ SHIFT1 as i32 }>(rows));
    let pairs = avx512::bytes(avx512::transform::<{ SHIFT2 as i32 }>(columns));
    let even_then_odd = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    for (r, pair) in pairs.into_iter().enumerate() {
        let pair = _mm512_permutexvar_epi64(even_then_odd, pair);
        // SAFETY: rows up to 7, 32 bytes each, all inside the slice of `rows`: 7 * stride + 32 bytes.
        unsafe {
            let to = out.as_mut_ptr().add(2 * r * stride);
            _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(pair));
            _mm256_storeu_si256(to.add(stride).cast(), _mm512_extracti64x4_epi64::<1>(pair));
        }
    }
}
