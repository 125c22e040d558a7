//! The inverse DCT with NEON: one block in eight vectors of 16-bit values, two blocks at a time for the last transposition.

use super::constant::*;
use super::{BITS, SHIFT1, SHIFT2};
use crate::jpeg::entropy::Group;
use std::arch::aarch64::*;

/// Eight 32-bit values.
type Wide = [int32x4_t; 2];

#[inline]
#[target_feature(enable = "neon")]
fn add(a: Wide, b: Wide) -> Wide {
    [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn sub(a: Wide, b: Wide) -> Wide {
    [vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])]
}

/// Return `a * fa + b * fb` in 32 bits; the factors fit 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn rotate(a: int16x8_t, fa: i32, b: int16x8_t, fb: i32) -> Wide {
    let (fa, fb) = (fa as i16, fb as i16);
    [
        vmlal_n_s16(vmull_n_s16(vget_low_s16(a), fa), vget_low_s16(b), fb),
        vmlal_high_n_s16(vmull_high_n_s16(a, fa), b, fb),
    ]
}

/// Return the even and the odd part of one pass over eight vectors, with the rounding of the following shift; see the scalar code
/// for the names. Output i is `even[i] + odd[i]`, output 7 - i is `even[i] - odd[i]`, both shifted right by `SHIFT`.
#[inline]
#[target_feature(enable = "neon")]
fn parts<const SHIFT: u32>(x: [int16x8_t; 8]) -> ([Wide; 4], [Wide; 4]) {
    let round = vdupq_n_s32(1 << (SHIFT - 1));
    let scaled = |a: int16x8_t| {
        [
            vaddq_s32(vshll_n_s16::<{ BITS as i32 }>(vget_low_s16(a)), round),
            vaddq_s32(vshll_high_n_s16::<{ BITS as i32 }>(a), round),
        ]
    };
    let tmp2 = rotate(x[2], F0_541, x[6], F0_541 - F1_847);
    let tmp3 = rotate(x[2], F0_541 + F0_765, x[6], F0_541);
    let tmp0 = scaled(vaddq_s16(x[0], x[4]));
    let tmp1 = scaled(vsubq_s16(x[0], x[4]));
    let even = [
        add(tmp0, tmp3),
        add(tmp1, tmp2),
        sub(tmp1, tmp2),
        sub(tmp0, tmp3),
    ];

    let (z3, z4) = (vaddq_s16(x[7], x[3]), vaddq_s16(x[5], x[1]));
    let z3_rotated = rotate(z3, F1_175 - F1_961, z4, F1_175);
    let z4_rotated = rotate(z3, F1_175, z4, F1_175 - F0_390);
    let odd = [
        add(rotate(x[7], -F0_899, x[1], F1_501 - F0_899), z4_rotated),
        add(rotate(x[5], -F2_562, x[3], F3_072 - F2_562), z3_rotated),
        add(rotate(x[5], F2_053 - F2_562, x[3], -F2_562), z4_rotated),
        add(rotate(x[7], F0_298 - F0_899, x[1], -F0_899), z3_rotated),
    ];
    (even, odd)
}

/// Run the first pass: eight rows to eight rows of 16 bits, saturated.
#[inline]
#[target_feature(enable = "neon")]
fn first_pass(rows: [int16x8_t; 8]) -> [int16x8_t; 8] {
    const SHIFT: i32 = SHIFT1 as i32;
    let (even, odd) = parts::<SHIFT1>(rows);
    let descale = |x: Wide| vqshrn_high_n_s32::<SHIFT>(vqshrn_n_s32::<SHIFT>(x[0]), x[1]);
    let (plus, minus) = (
        |i: usize| descale(add(even[i], odd[i])),
        |i: usize| descale(sub(even[i], odd[i])),
    );
    [
        plus(0),
        plus(1),
        plus(2),
        plus(3),
        minus(3),
        minus(2),
        minus(1),
        minus(0),
    ]
}

/// Run the second pass: eight columns to eight columns of signed samples. Taking the upper half of a sum shifts it by 16; the
/// rest of the shift and the saturation are one instruction.
#[inline]
#[target_feature(enable = "neon")]
fn second_pass(columns: [int16x8_t; 8]) -> [int8x8_t; 8] {
    let (even, odd) = parts::<SHIFT2>(columns);
    let sample = |upper: int16x8_t| vqshrn_n_s16::<{ SHIFT2 as i32 - 16 }>(upper);
    let plus = |i: usize| {
        let low = vaddhn_s32(even[i][0], odd[i][0]);
        sample(vaddhn_high_s32(low, even[i][1], odd[i][1]))
    };
    let minus = |i: usize| {
        let low = vsubhn_s32(even[i][0], odd[i][0]);
        sample(vsubhn_high_s32(low, even[i][1], odd[i][1]))
    };
    [
        plus(0),
        plus(1),
        plus(2),
        plus(3),
        minus(3),
        minus(2),
        minus(1),
        minus(0),
    ]
}

/// Transpose an 8×8 matrix of 16-bit values.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(x: [int16x8_t; 8]) -> [int16x8_t; 8] {
    let by_16 = |a, b| {
        [
            vreinterpretq_s32_s16(vtrn1q_s16(a, b)),
            vreinterpretq_s32_s16(vtrn2q_s16(a, b)),
        ]
    };
    let by_32 = |a, b| {
        [
            vreinterpretq_s64_s32(vtrn1q_s32(a, b)),
            vreinterpretq_s64_s32(vtrn2q_s32(a, b)),
        ]
    };
    let [a, b, c, d] = [0, 2, 4, 6].map(|i| by_16(x[i], x[i + 1]));
    // Columns (0, 4 | 2, 6) and (1, 5 | 3, 7), of rows 0-3 and of rows 4-7.
    let (upper, lower) = (
        [by_32(a[0], b[0]), by_32(a[1], b[1])],
        [by_32(c[0], d[0]), by_32(c[1], d[1])],
    );
    std::array::from_fn(|column| {
        let (upper, lower) = (
            upper[column % 2][column / 2 % 2],
            lower[column % 2][column / 2 % 2],
        );
        vreinterpretq_s16_s64(if column < 4 {
            vtrn1q_s64(upper, lower)
        } else {
            vtrn2q_s64(upper, lower)
        })
    })
}

/// Convert columns of signed samples of two neighbouring blocks to rows of samples.
#[inline]
#[target_feature(enable = "neon")]
fn bytes(x: [int8x16_t; 8]) -> [uint8x16_t; 8] {
    let by_8 = |a, b| {
        [
            vreinterpretq_s16_s8(vtrn1q_s8(a, b)),
            vreinterpretq_s16_s8(vtrn2q_s8(a, b)),
        ]
    };
    let by_16 = |a, b| {
        [
            vreinterpretq_s32_s16(vtrn1q_s16(a, b)),
            vreinterpretq_s32_s16(vtrn2q_s16(a, b)),
        ]
    };
    let [a, b, c, d] = [0, 2, 4, 6].map(|i| by_8(x[i], x[i + 1]));
    // Rows (0, 4 | 2, 6) and (1, 5 | 3, 7), of columns 0-3 and of columns 4-7.
    let (left, right) = (
        [by_16(a[0], b[0]), by_16(a[1], b[1])],
        [by_16(c[0], d[0]), by_16(c[1], d[1])],
    );
    let centre = vdupq_n_u8(128);
    std::array::from_fn(|row| {
        let (left, right) = (left[row % 2][row / 2 % 2], right[row % 2][row / 2 % 2]);
        let signed = if row < 4 {
            vtrn1q_s32(left, right)
        } else {
            vtrn2q_s32(left, right)
        };
        veorq_u8(vreinterpretq_u8_s32(signed), centre)
    })
}

/// Transform the four blocks of `group` to 8 rows of 32 samples at `out[at]`, and clear the group.
#[target_feature(enable = "neon")]
pub fn group(group: &mut Group, quant: &[u16; 64], out: &mut [u8], at: usize, stride: usize) {
    let out = super::rows(out, at, stride);
    for half in 0..2 {
        let [left, right] = [2 * half, 2 * half + 1].map(|block| {
            let rows = std::array::from_fn(|row| {
                let place = group[row * 32 + block * 8..][..8].as_mut_ptr();
                // SAFETY: `place` is a slice of 8 values of 16 bits; `quant` holds 8 from row * 8 on (row < 8); unaligned access
                // is allowed.
                unsafe {
                    let factors = vreinterpretq_s16_u16(vld1q_u16(quant.as_ptr().add(row * 8)));
                    let coefficients = vld1q_s16(place);
                    vst1q_s16(place, vdupq_n_s16(0));
                    vmulq_s16(coefficients, factors)
                }
            });
            second_pass(transpose(first_pass(rows)))
        });
        let columns = std::array::from_fn(|column| vcombine_s8(left[column], right[column]));
        for (row, samples) in bytes(columns).into_iter().enumerate() {
            // SAFETY: rows up to 7, 16 bytes at column 0 or 16, all inside the slice of `rows`: 7 * stride + 32 bytes.
            unsafe { vst1q_u8(out.as_mut_ptr().add(row * stride + half * 16), samples) };
        }
    }
}
