//! The inverse DCT at half and quarter size (4×4 or 2×2 samples per block), as libjpeg computes it (jidctred.c): pass 1 over
//! columns, pass 2 over rows, with the odd coefficients that the small output can represent.
#![allow(unsafe_code)]

use crate::cpu::Extension;
use crate::jpeg::entropy::{Group, GROUP};

const BITS: u32 = 13;
const PASS1_BITS: u32 = 2;

/// `round(x * 2^13)` of the constants in jidctred.c, named by their first digits.
mod constant {
    pub const F0_211: i32 = 1730;
    pub const F0_509: i32 = 4176;
    pub const F0_601: i32 = 4926;
    pub const F0_720: i32 = 5906;
    pub const F0_765: i32 = 6270;
    pub const F0_850: i32 = 6967;
    pub const F0_899: i32 = 7373;
    pub const F1_061: i32 = 8697;
    pub const F1_272: i32 = 10426;
    pub const F1_451: i32 = 11893;
    pub const F1_847: i32 = 15137;
    pub const F2_172: i32 = 17799;
    pub const F2_562: i32 = 20995;
    pub const F3_624: i32 = 29692;
}

/// Return four values of eight coefficients, scaled down by `shift`; the fifth coefficient is not used.
#[inline(always)]
fn four(x: [i32; 8], shift: u32) -> [i32; 4] {
    use constant::*;
    let sum = |terms: [(i32, i32); 4]| {
        terms
            .iter()
            .fold(0i32, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)))
    };
    let tmp0 = x[0] << (BITS + 1);
    let tmp2 = sum([(x[2], F1_847), (x[6], -F0_765), (0, 0), (0, 0)]);
    let (tmp10, tmp12) = (tmp0.wrapping_add(tmp2), tmp0.wrapping_sub(tmp2));
    let odd0 = sum([
        (x[7], -F0_211),
        (x[5], F1_451),
        (x[3], -F2_172),
        (x[1], F1_061),
    ]);
    let odd2 = sum([
        (x[7], -F0_509),
        (x[5], -F0_601),
        (x[3], F0_899),
        (x[1], F2_562),
    ]);
    let descale = |value: i32| value.wrapping_add(1 << (shift - 1)) >> shift;
    [
        descale(tmp10.wrapping_add(odd2)),
        descale(tmp12.wrapping_add(odd0)),
        descale(tmp12.wrapping_sub(odd0)),
        descale(tmp10.wrapping_sub(odd2)),
    ]
}

/// Return two values of eight coefficients, scaled down by `shift`; of the even coefficients only the first is used.
#[inline(always)]
fn two(x: [i32; 8], shift: u32) -> [i32; 2] {
    use constant::*;
    let even = x[0] << (BITS + 2);
    let odd = [
        (x[7], -F0_720),
        (x[5], F0_850),
        (x[3], -F1_272),
        (x[1], F3_624),
    ]
    .iter()
    .fold(0i32, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)));
    let descale = |value: i32| value.wrapping_add(1 << (shift - 1)) >> shift;
    [
        descale(even.wrapping_add(odd)),
        descale(even.wrapping_sub(odd)),
    ]
}

/// Run both passes for blocks of `N` × `N` samples; `transform` computes `N` values of eight.
#[inline(always)]
fn reduce<const N: usize>(
    group: &mut Group,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
    transform: impl Fn([i32; 8], u32) -> [i32; N],
) {
    let extra = (8 / N).ilog2(); // each halving scales up by one bit
    let mut half = [[0i32; 8 * GROUP]; N];
    for column in 0..8 * GROUP {
        let input = std::array::from_fn(|row| {
            i32::from(
                group[row * 8 * GROUP + column].wrapping_mul(quant[row * 8 + column % 8] as i16),
            )
        });
        for (half, value) in half
            .iter_mut()
            .zip(transform(input, BITS - PASS1_BITS + extra))
        {
            half[column] = value;
        }
    }
    for (row, half) in half.iter().enumerate() {
        let to = &mut out[at + row * stride..][..N * GROUP];
        for (block, to) in half.chunks_exact(8).zip(to.chunks_exact_mut(N)) {
            let values = transform(
                std::array::from_fn(|i| block[i]),
                BITS + PASS1_BITS + 3 + extra,
            );
            for (to, value) in to.iter_mut().zip(values) {
                *to = (value.clamp(-128, 127) + 128) as u8;
            }
        }
    }
    *group = [0; 64 * GROUP];
}

/// As the function it calls, compiled for wider vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn group_avx2(
    size: u32,
    group: &mut Group,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
) {
    match size {
        4 => reduce::<4>(group, quant, out, at, stride, four),
        _ => reduce::<2>(group, quant, out, at, stride, two),
    }
}

/// Transform the four blocks of `group` to `size` (4 or 2) rows of `size` samples each at `out[at]`, and clear the group.
pub fn group(
    extension: Extension,
    size: u32,
    group: &mut Group,
    quant: &[u16; 64],
    out: &mut [u8],
    at: usize,
    stride: usize,
) {
    match (extension, size) {
        // SAFETY: the processor has the extension: whoever holds one has checked it (`Extension::assert_available`).
        #[cfg(target_arch = "x86_64")]
        (Extension::Avx2 | Extension::Avx512, _) => unsafe {
            group_avx2(size, group, quant, out, at, stride)
        },
        (_, 4) => reduce::<4>(group, quant, out, at, stride, four),
        _ => reduce::<2>(group, quant, out, at, stride, two),
    }
}
