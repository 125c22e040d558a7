//! Upsampling and colour conversion with NEON, 16 samples at a time.

use super::{ycc_to_rgb_plain, Channels, SLACK};
use std::arch::aarch64::*;

/// 16-bit values of the first eight samples, and of the other eight.
type Wide = [uint16x8_t; 2];

/// Return the sixteen bytes at `at`.
#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let sixteen = &bytes[at..at + 16];
    // SAFETY: the slice holds 16 bytes.
    unsafe { vld1q_u8(sixteen.as_ptr()) }
}

/// Return `3 * a + b`.
#[inline]
#[target_feature(enable = "neon")]
fn thrice_and(a: uint8x16_t, b: uint8x16_t) -> Wide {
    let three = vdupq_n_u8(3);
    [
        vaddw_u8(vmull_u8(vget_low_u8(a), vget_low_u8(three)), vget_low_u8(b)),
        vaddw_high_u8(vmull_high_u8(a, three), b),
    ]
}

/// Store sixteen pairs.
#[inline]
#[target_feature(enable = "neon")]
fn store_pairs(even: uint8x16_t, odd: uint8x16_t, out: &mut [u8], at: usize) {
    let room = &mut out[at..at + 32];
    // SAFETY: the slice holds 32 bytes.
    unsafe { vst2q_u8(room.as_mut_ptr(), uint8x16x2_t(even, odd)) };
}

/// Double a row, see [`super::double_row`].
#[target_feature(enable = "neon")]
pub fn double_row(samples: &[u8], pairs: usize, out: &mut [u8]) {
    assert!(samples.len() >= pairs + 2 + SLACK / 2 && out.len() >= 2 * pairs + SLACK);
    let one = vdupq_n_u16(1);
    for at in (0..pairs).step_by(16) {
        let here = load(samples, at + 1);
        let before = thrice_and(here, load(samples, at)).map(|sum| vaddq_u16(sum, one));
        let after = thrice_and(here, load(samples, at + 2));
        store_pairs(
            vshrn_high_n_u16::<2>(vshrn_n_u16::<2>(before[0]), before[1]),
            vrshrn_high_n_u16::<2>(vrshrn_n_u16::<2>(after[0]), after[1]),
            out,
            2 * at,
        );
    }
}

/// Double a row in both directions, see [`super::double_blended`].
#[target_feature(enable = "neon")]
pub fn double_blended(near: &[u8], far: &[u8], pairs: usize, out: &mut [u8]) {
    assert!(near.len().min(far.len()) >= pairs + 2 + SLACK / 2 && out.len() >= 2 * pairs + SLACK);
    let sum = |at: usize| thrice_and(load(near, at), load(far, at));
    let (three, seven) = (vdupq_n_u16(3), vdupq_n_u16(7));
    for at in (0..pairs).step_by(16) {
        let (before, here, after) = (sum(at), sum(at + 1), sum(at + 2));
        let even = [0, 1].map(|half| vmlaq_u16(before[half], here[half], three));
        let odd = [0, 1].map(|half| vaddq_u16(vmlaq_u16(after[half], here[half], three), seven));
        store_pairs(
            vrshrn_high_n_u16::<4>(vrshrn_n_u16::<4>(even[0]), even[1]),
            vshrn_high_n_u16::<4>(vshrn_n_u16::<4>(odd[0]), odd[1]),
            out,
            2 * at,
        );
    }
}

/// Convert eight pixels from `(y, cb - 128, cr - 128)` to clamped `[r, g, b]`.
///
/// The factors of jdcolor.c, scaled to 16 bits: 1.402 = 1 + 26345/65536, 1.772 = 2 - 14942/65536, and for green
/// -0.71414 = -1 + 18734/65536. `sqdmulh` is `(2x * f) >> 16`; plus 1, halved, that is `(x * f + 32768) >> 16` exactly.
#[inline]
#[target_feature(enable = "neon")]
fn convert(y: int16x8_t, cb: int16x8_t, cr: int16x8_t) -> [uint8x8_t; 3] {
    let scaled = |x, factor| vrshrq_n_s16::<1>(vqdmulhq_n_s16(x, factor));
    let red = vaddq_s16(vaddq_s16(y, cr), scaled(cr, 26345));
    let blue = vaddq_s16(vaddq_s16(y, vaddq_s16(cb, cb)), scaled(cb, -14942));
    let low = vmull_n_s16(vget_low_s16(cb), -22554);
    let low = vmlal_n_s16(low, vget_low_s16(cr), 18734);
    let high = vmlal_high_n_s16(vmull_high_n_s16(cb, -22554), cr, 18734);
    let green = vrshrn_high_n_s32::<16>(vrshrn_n_s32::<16>(low), high);
    let green = vaddq_s16(y, vsubq_s16(green, cr));
    [red, green, blue].map(|channel| vqmovun_s16(channel))
}

/// Convert YCbCr to RGB, see [`super::ycc_to_rgb`]. If the width is not a multiple of 16, the last 16 pixels are converted again.
#[target_feature(enable = "neon")]
pub fn ycc_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], channels: Channels, out: &mut [u8]) {
    let width = out.len() / 3;
    if width < 16 {
        return ycc_to_rgb_plain(y, cb, cr, channels, out);
    }
    for at in (0..width).step_by(16) {
        let at = at.min(width - 16);
        let y = load(y, at);
        let centred = |plane| vreinterpretq_s8_u8(veorq_u8(load(plane, at), vdupq_n_u8(128)));
        let (cb, cr) = (centred(cb), centred(cr));
        let low = convert(
            vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(y))),
            vmovl_s8(vget_low_s8(cb)),
            vmovl_s8(vget_low_s8(cr)),
        );
        let high = convert(
            vreinterpretq_s16_u16(vmovl_high_u8(y)),
            vmovl_high_s8(cb),
            vmovl_high_s8(cr),
        );
        let [r, g, b] = channels.ordered([0, 1, 2].map(|c| vcombine_u8(low[c], high[c])));
        let room = &mut out[at * 3..at * 3 + 48];
        // SAFETY: the slice holds 48 bytes.
        unsafe { vst3q_u8(room.as_mut_ptr(), uint8x16x3_t(r, g, b)) };
    }
}
