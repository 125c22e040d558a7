//! The inverse DCT "islow" of libjpeg-turbo, bit for bit as its SIMD code computes it: 16-bit coefficients and sums, 32-bit
//! products, saturation after each pass. (Its C code differs only for dequantised coefficients that no real image has.) Source of
//! the algorithm: Loeffler, Ligtenberg, Moschytz 1989, with 13-bit constants.

#![allow(unsafe_code)]

use super::entropy::{Group, GROUP};
use crate::cpu::Extension;

#[cfg(target_arch = "aarch64")]
mod neon;
pub mod reduced;
#[cfg(target_arch = "x86_64")]
mod x86;

const BITS: u32 = 13;
const PASS1_BITS: u32 = 2;
/// Shift after the first pass.
pub const SHIFT1: u32 = BITS - PASS1_BITS;
/// Shift after the second pass.
pub const SHIFT2: u32 = BITS + PASS1_BITS + 3;

/// The rotation constants, `round(x * 2^13)`.
pub mod constant {
    #![allow(missing_docs)]
    pub const F0_298: i32 = 2446;
    pub const F0_390: i32 = 3196;
    pub const F0_541: i32 = 4433;
    pub const F0_765: i32 = 6270;
    pub const F0_899: i32 = 7373;
    pub const F1_175: i32 = 9633;
    pub const F1_501: i32 = 12299;
    pub const F1_847: i32 = 15137;
    pub const F1_961: i32 = 16069;
    pub const F2_053: i32 = 16819;
    pub const F2_562: i32 = 20995;
    pub const F3_072: i32 = 25172;
}

/// Return the one-dimensional transform of eight values.
fn transform(input: [i16; 8], shift: u32) -> [i16; 8] {
    use constant::*;
    let wide = |x: i16| i32::from(x);
    let rotate = |a: i16, fa: i32, b: i16, fb: i32| (wide(a) * fa).wrapping_add(wide(b) * fb);
    let [in0, in1, in2, in3, in4, in5, in6, in7] = input;

    let tmp2 = rotate(in2, F0_541, in6, F0_541 - F1_847);
    let tmp3 = rotate(in2, F0_541 + F0_765, in6, F0_541);
    let tmp0 = wide(in0.wrapping_add(in4)) << BITS;
    let tmp1 = wide(in0.wrapping_sub(in4)) << BITS;
    let even = [
        tmp0.wrapping_add(tmp3),
        tmp1.wrapping_add(tmp2),
        tmp1.wrapping_sub(tmp2),
        tmp0.wrapping_sub(tmp3),
    ];

    let (z3, z4) = (in7.wrapping_add(in3), in5.wrapping_add(in1));
    let z3_rotated = rotate(z3, F1_175 - F1_961, z4, F1_175);
    let z4_rotated = rotate(z3, F1_175, z4, F1_175 - F0_390);
    let odd = [
        rotate(in7, -F0_899, in1, F1_501 - F0_899).wrapping_add(z4_rotated),
        rotate(in5, -F2_562, in3, F3_072 - F2_562).wrapping_add(z3_rotated),
        rotate(in5, F2_053 - F2_562, in3, -F2_562).wrapping_add(z4_rotated),
        rotate(in7, F0_298 - F0_899, in1, -F0_899).wrapping_add(z3_rotated),
    ];

    let descale = |x: i32| {
        let rounded = x.wrapping_add(1 << (shift - 1)) >> shift;
        rounded.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
    };
    let mut output = [0; 8];
    for i in 0..4 {
        output[i] = descale(even[i].wrapping_add(odd[i]));
        output[7 - i] = descale(even[i].wrapping_sub(odd[i]));
    }
    output
}

/// Transform block `lane` of `group` with its quantisation table and write 8 rows of 8 samples at `out[at]`.
pub fn block(
    group: &Group,
    lane: usize,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
) {
    let coefficient = |row: usize, column: usize| group[row * 8 * GROUP + lane * 8 + column];
    // Of a block with a single row, libjpeg-turbo's SIMD code for x86-64 multiplies that row by 4 in 16 bits. The product of the
    // transform is the same, but saturates: this matters in damaged files.
    let single_row = cfg!(target_arch = "x86_64")
        && (1..8).all(|row| (0..8).all(|column| coefficient(row, column) == 0));
    let mut half = [[0i16; 8]; 8]; // [column][row]
    for (column, half) in half.iter_mut().enumerate() {
        let mut input: [i16; 8] = std::array::from_fn(|row| {
            coefficient(row, column).wrapping_mul(quant[row * 8 + column] as i16)
        });
        if single_row {
            input[0] = (input[0] << PASS1_BITS) >> PASS1_BITS;
        }
        *half = transform(input, SHIFT1);
    }
    for row in 0..8 {
        let samples = transform(std::array::from_fn(|column| half[column][row]), SHIFT2);
        let to = &mut out[at + row * stride..][..8];
        for (to, sample) in to.iter_mut().zip(samples) {
            *to = (i32::from(sample).clamp(-128, 127) + 128) as u8;
        }
    }
}

/// Return the 8 rows of 32 samples at `at`, `stride` apart. Panic if `out` does not hold them: the vector kernels write them through
/// pointers and rely on this slice.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
fn rows(out: &mut [u8], at: usize, stride: usize) -> &mut [u8] {
    // Saturated: a stride whose sevenfold wraps must not pass for a short one.
    &mut out[at..][..stride.saturating_mul(7).saturating_add(8 * GROUP)]
}

/// Transform the four blocks of `group`, write 8 rows of 32 samples at `out[at]`, and clear the group. The processor has `extension`.
pub fn group(
    extension: Extension,
    group: &mut Group,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
) {
    match extension {
        // SAFETY: the processor has the extension: whoever holds one has checked it (`Extension::assert_available`).
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512 => unsafe { x86::group_avx512(group, quant, out, at, stride) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 => unsafe { x86::group_avx2(group, quant, out, at, stride) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::Neon => unsafe { neon::group(group, quant, out, at, stride) },
        _ => {
            for lane in 0..GROUP {
                block(group, lane, quant, out, at + lane * 8, stride);
            }
            *group = [0; 64 * GROUP];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return coefficients as in real images (few, small) or, if `wild`, any 16-bit values.
    fn coefficients(random: &mut u64, wild: bool) -> Group {
        std::array::from_fn(|_| {
            *random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let value = (*random >> 40) as i16;
            let sparse = *random >> 60 < 4;
            match (wild, sparse) {
                (true, _) => value,
                (false, true) => value / 64,
                (false, false) => 0,
            }
        })
    }

    #[test]
    fn every_extension_agrees_with_the_scalar_code() {
        let mut random = 1;
        for round in 0..2000 {
            let mut original = coefficients(&mut random, round % 4 == 0);
            if round % 8 == 0 {
                original[8 * GROUP..][..32].fill(0); // two blocks in the first vector of AVX2 without a second row
                for row in 1..8 {
                    original[row * 8 * GROUP..][..8 * (round / 8 % 5) as usize].fill(0);
                }
            }
            let quant =
                std::array::from_fn(|i| 1 + ((i as u64 * 7 + random) % (1 + round % 255)) as u16);
            let mut expected = vec![0; 8 * 40];
            let mut copy = original;
            group(Extension::Scalar, &mut copy, &quant, &mut expected, 3, 40);
            for extension in Extension::available() {
                let (mut copy, mut out) = (original, vec![0; 8 * 40]);
                group(extension, &mut copy, &quant, &mut out, 3, 40);
                assert_eq!(out, expected, "{extension:?} in round {round}");
                assert_eq!(
                    copy,
                    [0; 64 * GROUP],
                    "{extension:?} leaves coefficients behind"
                );
            }
        }
    }

    #[test]
    fn rows_outside_the_output_are_refused() {
        let quant = [1; 64];
        // The last stride is such that 7 * stride + 32 wraps to 40 (6DB6…B7 is the inverse of 7).
        let wraps = 8usize.wrapping_mul(0x6DB6_DB6D_B6DB_6DB7_u64 as usize);
        for (at, stride) in [
            (9, 40),
            (313, 0),
            (usize::MAX, 40),
            (0, usize::MAX),
            (0, wraps),
        ] {
            for extension in Extension::available() {
                let refused = std::panic::catch_unwind(|| {
                    let (mut blocks, mut out) = ([1; 64 * GROUP], [0; 7 * 40 + 32]);
                    group(extension, &mut blocks, &quant, &mut out, at, stride);
                });
                assert!(refused.is_err(), "{extension:?} at {at}, stride {stride}");
            }
        }
    }
}
