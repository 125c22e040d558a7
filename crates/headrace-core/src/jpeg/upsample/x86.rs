//! Upsampling and colour conversion with AVX2 and AVX-512.

use super::{ycc_to_rgb_plain, Channels, SLACK};
use std::arch::x86_64::*;

/// Return the sixteen bytes at `at`, widened to 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(bytes: &[u8], at: usize) -> __m256i {
    let sixteen = &bytes[at..at + 16];
    // SAFETY: the slice holds 16 bytes; unaligned access is allowed.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) })
}

/// Store sixteen pairs, even pixels in the low bytes of `even` and odd ones in those of `odd`.
#[inline]
#[target_feature(enable = "avx2")]
fn store_pairs(even: __m256i, odd: __m256i, out: &mut [u8], at: usize) {
    let pairs = _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd));
    let room = &mut out[at..at + 32];
    // SAFETY: the slice holds 32 bytes; unaligned access is allowed.
    unsafe { _mm256_storeu_si256(room.as_mut_ptr().cast(), pairs) };
}

/// Double a row, see [`super::double_row`].
#[target_feature(enable = "avx2")]
pub fn double_row(samples: &[u8], pairs: usize, out: &mut [u8]) {
    assert!(samples.len() >= pairs + 2 + SLACK / 2 && out.len() >= 2 * pairs + SLACK);
    for at in (0..pairs).step_by(16) {
        let here = widen(samples, at + 1);
        let here = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        let blend = |other, bias| {
            _mm256_srli_epi16::<2>(_mm256_add_epi16(
                _mm256_add_epi16(here, other),
                _mm256_set1_epi16(bias),
            ))
        };
        store_pairs(
            blend(widen(samples, at), 1),
            blend(widen(samples, at + 2), 2),
            out,
            2 * at,
        );
    }
}

/// Double a row in both directions, see [`super::double_blended`].
#[target_feature(enable = "avx2")]
pub fn double_blended(near: &[u8], far: &[u8], pairs: usize, out: &mut [u8]) {
    assert!(near.len().min(far.len()) >= pairs + 2 + SLACK / 2 && out.len() >= 2 * pairs + SLACK);
    let sum = |at: usize| {
        let near = widen(near, at);
        _mm256_add_epi16(
            _mm256_add_epi16(near, _mm256_add_epi16(near, near)),
            widen(far, at),
        )
    };
    for at in (0..pairs).step_by(16) {
        let here = sum(at + 1);
        let here = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        let blend = |other, bias| {
            _mm256_srli_epi16::<4>(_mm256_add_epi16(
                _mm256_add_epi16(here, other),
                _mm256_set1_epi16(bias),
            ))
        };
        store_pairs(blend(sum(at), 8), blend(sum(at + 2), 7), out, 2 * at);
    }
}

/// Defines the conversion of 16-bit lanes: `(y, cb - 128, cr - 128)` to unclamped `(r, g, b)`.
///
/// The factors of jdcolor.c, scaled to 16 bits: 1.402 = 1 + 26345/65536, 1.772 = 2 - 14942/65536, and for green
/// -0.71414 = -1 + 18734/65536. `(2x * f) >> 16`, plus 1, halved is `(x * f + 32768) >> 16` exactly.
macro_rules! convert {
    ($name:ident, $features:literal, $vector:ty, $set16:ident, $set32:ident, $add16:ident, $sub16:ident, $high:ident, $sra16:ident,
     $madd:ident, $add32:ident, $sra32:ident, $low:ident, $hi:ident, $pack:ident) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn $name(y: $vector, cb: $vector, cr: $vector) -> [$vector; 3] {
            let one = $set16(1);
            let scaled = |x, factor| $sra16::<1>($add16($high($add16(x, x), $set16(factor)), one));
            let red = $add16($add16(y, cr), scaled(cr, 26345));
            let blue = $add16($add16(y, $add16(cb, cb)), scaled(cb, -14942));
            let factors = $set32((-22554 & 0xFFFF) | 18734 << 16);
            let half = $set32(1 << 15);
            let wide = |pairs| $sra32::<16>($add32($madd(pairs, factors), half));
            let green = $pack(wide($low(cb, cr)), wide($hi(cb, cr)));
            [red, $add16(y, $sub16(green, cr)), blue]
        }
    };
}

convert!(
    convert_avx2,
    "avx2",
    __m256i,
    _mm256_set1_epi16,
    _mm256_set1_epi32,
    _mm256_add_epi16,
    _mm256_sub_epi16,
    _mm256_mulhi_epi16,
    _mm256_srai_epi16,
    _mm256_madd_epi16,
    _mm256_add_epi32,
    _mm256_srai_epi32,
    _mm256_unpacklo_epi16,
    _mm256_unpackhi_epi16,
    _mm256_packs_epi32
);

convert!(
    convert_avx512,
    "avx512f,avx512bw",
    __m512i,
    _mm512_set1_epi16,
    _mm512_set1_epi32,
    _mm512_add_epi16,
    _mm512_sub_epi16,
    _mm512_mulhi_epi16,
    srai16,
    _mm512_madd_epi16,
    _mm512_add_epi32,
    srai32,
    _mm512_unpacklo_epi16,
    _mm512_unpackhi_epi16,
    _mm512_packs_epi32
);

/// Shift as `_mm512_srai_epi16`, with the signed shift constant of the AVX2 intrinsic.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn srai16<const SHIFT: i32>(x: __m512i) -> __m512i {
    _mm512_sra_epi16(x, _mm_cvtsi32_si128(SHIFT))
}

/// Shift as `_mm512_srai_epi32`, with the signed shift constant of the AVX2 intrinsic.
#[inline]
#[target_feature(enable = "avx512f")]
fn srai32<const SHIFT: i32>(x: __m512i) -> __m512i {
    _mm512_sra_epi32(x, _mm_cvtsi32_si128(SHIFT))
}

/// Convert YCbCr to RGB, 32 pixels at a time, see [`super::ycc_to_rgb`]. If the width is not a multiple of 32, the last 32 pixels
/// are converted again.
#[target_feature(enable = "avx2")]
pub fn ycc_to_rgb_avx2(y: &[u8], cb: &[u8], cr: &[u8], channels: Channels, out: &mut [u8]) {
    let width = out.len() / 3;
    if width < 32 {
        return ycc_to_rgb_plain(y, cb, cr, channels, out);
    }
    for at in (0..width).step_by(32) {
        let at = at.min(width - 32);
        let half = |plane: &[u8], offset: usize| widen(plane, at + offset);
        let centre = _mm256_set1_epi16(128);
        let [low, high] = [0, 16].map(|offset| {
            let (cb, cr) = (
                _mm256_sub_epi16(half(cb, offset), centre),
                _mm256_sub_epi16(half(cr, offset), centre),
            );
            convert_avx2(half(y, offset), cb, cr)
        });
        // Packing works within lanes and gives pixels 0-7, 16-23 | 8-15, 24-31; the permutation restores the order.
        let bytes = |c: usize| {
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(low[c], high[c]))
        };
        let [r, g, b] = channels.ordered([bytes(0), bytes(1), bytes(2)]);
        store_rgb(r, g, b, &mut out[at * 3..at * 3 + 96]);
    }
}

/// Interleave 32 pixels. Byte j of the result is channel j mod 3 of pixel j div 3.
#[inline]
#[target_feature(enable = "avx2")]
fn store_rgb(r: __m256i, g: __m256i, b: __m256i, out: &mut [u8]) {
    /// For each third of the 48 bytes of 16 pixels: the index of each channel's byte at each place (-1: none).
    static PICK: [[[i8; 16]; 3]; 3] = {
        let mut pick = [[[-1; 16]; 3]; 3];
        let mut j = 0;
        while j < 48 {
            pick[j / 16][j % 3][j % 16] = (j / 3) as i8;
            j += 1;
        }
        pick
    };
    let piece = |part: usize| {
        let picked = |channel: usize, bytes: __m256i| {
            // SAFETY: the static holds 16 bytes there; unaligned access is allowed.
            let order = unsafe { _mm_loadu_si128(PICK[part][channel].as_ptr().cast()) };
            _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order))
        };
        _mm256_or_si256(_mm256_or_si256(picked(0, r), picked(1, g)), picked(2, b))
    };
    let [p0, p1, p2] = [piece(0), piece(1), piece(2)]; // lane 0: pixels 0-15, lane 1: pixels 16-31
    let first = _mm256_permute2x128_si256::<0x20>(p0, p1);
    let second = _mm256_permute2x128_si256::<0x30>(p2, p0);
    let third = _mm256_permute2x128_si256::<0x31>(p1, p2);
    let out = &mut out[..96];
    // SAFETY: the slice holds 96 bytes; unaligned access is allowed.
    unsafe {
        _mm256_storeu_si256(out.as_mut_ptr().cast(), first);
        _mm256_storeu_si256(out.as_mut_ptr().add(32).cast(), second);
        _mm256_storeu_si256(out.as_mut_ptr().add(64).cast(), third);
    }
}

/// Convert YCbCr to RGB, 64 pixels at a time, the last ones under a mask, see [`super::ycc_to_rgb`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub fn ycc_to_rgb_avx512(y: &[u8], cb: &[u8], cr: &[u8], channels: Channels, out: &mut [u8]) {
    /// For each third of the output: the index in (channel 0, channel 1) or in channel 2 of byte j.
    static PICK: [[u8; 64]; 3] = {
        let mut pick = [[0; 64]; 3];
        let mut j = 0;
        while j < 192 {
            let offset = if j % 3 == 1 { 64 } else { 0 };
            pick[j / 64][j % 64] = (j / 3 + offset) as u8;
            j += 1;
        }
        pick
    };
    /// Bytes of channel 2 in each third.
    const LAST: [u64; 3] = {
        let mut masks = [0; 3];
        let mut j = 2;
        while j < 192 {
            masks[j / 64] |= 1 << (j % 64);
            j += 3;
        }
        masks
    };
    let width = out.len() / 3;
    assert!(y.len() >= width && cb.len() >= width && cr.len() >= width);
    // No reordering is needed: the lane-wise unpacking and packing cancel out.
    let zero = _mm512_setzero_si512();
    let centre = _mm512_set1_epi16(128);
    for at in (0..width).step_by(64) {
        let count = (width - at).min(64);
        let mask = u64::MAX >> (64 - count);
        // SAFETY: the mask admits only bytes below `width`, which every slice holds (asserted).
        let load =
            |plane: &[u8]| unsafe { _mm512_maskz_loadu_epi8(mask, plane.as_ptr().add(at).cast()) };
        let (y, cb, cr) = (load(y), load(cb), load(cr));
        let low = |x| _mm512_unpacklo_epi8(x, zero);
        let high = |x| _mm512_unpackhi_epi8(x, zero);
        let centred = |x| _mm512_sub_epi16(x, centre);
        let a = convert_avx512(low(y), centred(low(cb)), centred(low(cr)));
        let b = convert_avx512(high(y), centred(high(cb)), centred(high(cr)));
        let [first, second, last] =
            channels.ordered([0, 1, 2].map(|c| _mm512_packus_epi16(a[c], b[c])));
        let room = &mut out[at * 3..(at + count) * 3];
        for third in 0..3 {
            // SAFETY: the static holds 64 bytes; unaligned access is allowed.
            let pick = unsafe { _mm512_loadu_si512(PICK[third].as_ptr().cast()) };
            let two = _mm512_permutex2var_epi8(first, pick, second);
            let bytes = _mm512_mask_permutexvar_epi8(two, LAST[third], pick, last);
            let left = room.len().saturating_sub(third * 64).min(64);
            if left == 64 {
                // SAFETY: 64 bytes from third * 64 on are in `room`.
                unsafe { _mm512_storeu_si512(room.as_mut_ptr().add(third * 64).cast(), bytes) };
            } else if left > 0 {
                // SAFETY: the mask admits only the `left` bytes that are in `room`.
                unsafe {
                    _mm512_mask_storeu_epi8(
                        room.as_mut_ptr().add(third * 64).cast(),
                        u64::MAX >> (64 - left),
                        bytes,
                    )
                };
            }
        }
    }
}
