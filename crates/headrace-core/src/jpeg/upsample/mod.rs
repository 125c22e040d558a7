//! libjpeg's "fancy" (triangle) upsampling of chroma, and the conversion to interleaved RGB. The scalar code here is the
//! reference of the vector kernels. Doubling works on whole pairs of pixels; the samples before the first and after the last pair
//! must be readable.
#![allow(unsafe_code)]

use crate::cpu::Extension;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The channels of a decoded pixel, in their order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Channels {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red, as OpenCV keeps them.
    Bgr,
    /// Luma alone. Chroma is neither transformed nor upsampled.
    Gray,
}

impl Channels {
    /// Return the number of bytes of a pixel.
    pub fn count(self) -> usize {
        match self {
            Channels::Rgb | Channels::Bgr => 3,
            Channels::Gray => 1,
        }
    }

    /// Return red, green and blue in the order in which they are stored.
    #[inline(always)]
    fn ordered<T>(self, [red, green, blue]: [T; 3]) -> [T; 3] {
        if self == Channels::Bgr {
            [blue, green, red]
        } else {
            [red, green, blue]
        }
    }
}

/// Number of samples that [`double_row`] and [`double_blended`] may read, and of pixels that they may write, beyond the requested
/// ones.
pub const SLACK: usize = 32;

/// Blend two chroma rows vertically: `(3 near + far + bias) >> 2`, with bias 1 for the upper of a pair of rows and 2 for the lower
/// (jdsample.c, h1v2_fancy_upsample).
pub(crate) fn blend_rows(extension: Extension, near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    #[inline(always)]
    fn blend(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
        for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
            *out = ((u16::from(near) * 3 + u16::from(far) + bias) >> 2) as u8;
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn blend_avx2(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
        blend(near, far, bias, out);
    }
    match extension {
        // SAFETY: extensions are only named on machines that have them (`Extension::available`).
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe { blend_avx2(near, far, bias, out) },
        _ => blend(near, far, bias, out),
    }
}

/// Double a row: pixels 2i and 2i + 1 of `out` are in sample i, which is `samples[i + 1]` (jdsample.c, h2v1_fancy_upsample).
/// `samples` holds `pairs + 2 + SLACK` values, `out` has room for `2 * pairs + SLACK`.
pub(crate) fn double_row(extension: Extension, samples: &[u8], pairs: usize, out: &mut [u8]) {
    match extension {
        // SAFETY: extensions are only named on machines that have them (`Extension::available`).
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe { x86::double_row(samples, pairs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::Neon => unsafe { neon::double_row(samples, pairs, out) },
        _ => {
            for (three, out) in samples.windows(3).zip(out.chunks_exact_mut(2)).take(pairs) {
                let [before, here, after] = [
                    u16::from(three[0]),
                    u16::from(three[1]) * 3,
                    u16::from(three[2]),
                ];
                out[0] = ((here + before + 1) >> 2) as u8;
                out[1] = ((here + after + 2) >> 2) as u8;
            }
        }
    }
}

/// Double a row in both directions, with one rounding after both sums (jdsample.c, h2v2_fancy_upsample). Sizes as for
/// [`double_row`].
pub(crate) fn double_blended(
    extension: Extension,
    near: &[u8],
    far: &[u8],
    pairs: usize,
    out: &mut [u8],
) {
    match extension {
        // SAFETY: extensions are only named on machines that have them (`Extension::available`).
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe {
            x86::double_blended(near, far, pairs, out)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::Neon => unsafe { neon::double_blended(near, far, pairs, out) },
        _ => {
            let sum = |at: usize| u16::from(near[at]) * 3 + u16::from(far[at]);
            for (i, out) in out.chunks_exact_mut(2).enumerate().take(pairs) {
                out[0] = ((sum(i + 1) * 3 + sum(i) + 8) >> 4) as u8;
                out[1] = ((sum(i + 1) * 3 + sum(i + 2) + 7) >> 4) as u8;
            }
        }
    }
}

/// Double a row without a filter, as libjpeg does if chroma is at most two samples wide. `samples` as in [`double_row`].
pub fn repeat_row(samples: &[u8], pairs: usize, out: &mut [u8]) {
    for (sample, out) in samples[1..].iter().zip(out.chunks_exact_mut(2)).take(pairs) {
        out.fill(*sample);
    }
}

/// Convert YCbCr to interleaved RGB, or BGR, with libjpeg's 16-bit fixed-point tables (jdcolor.c, build_ycc_rgb_table). All slices
/// fit `out`.
pub(crate) fn ycc_to_rgb(
    extension: Extension,
    y: &[u8],
    cb: &[u8],
    cr: &[u8],
    channels: Channels,
    out: &mut [u8],
) {
    match extension {
        // SAFETY: extensions are only named on machines that have them (`Extension::available`).
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512 => unsafe { x86::ycc_to_rgb_avx512(y, cb, cr, channels, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 => unsafe { x86::ycc_to_rgb_avx2(y, cb, cr, channels, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Extension::Neon => unsafe { neon::ycc_to_rgb(y, cb, cr, channels, out) },
        _ => ycc_to_rgb_plain(y, cb, cr, channels, out),
    }
}

fn ycc_to_rgb_plain(y: &[u8], cb: &[u8], cr: &[u8], channels: Channels, out: &mut [u8]) {
    const HALF: i32 = 1 << 15;
    let clamp = |value: i32| value.clamp(0, 255) as u8;
    for (((out, &y), &cb), &cr) in out.chunks_exact_mut(3).zip(y).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
        let red = clamp(y + ((91881 * cr + HALF) >> 16)); // 1.40200
        let green = clamp(y + ((-22554 * cb - 46802 * cr + HALF) >> 16)); // 0.34414, 0.71414
        let blue = clamp(y + ((116130 * cb + HALF) >> 16)); // 1.77200
        out.copy_from_slice(&channels.ordered([red, green, blue]));
    }
}

/// Interleave three planes (red, green, blue), unchanged.
pub fn interleave(planes: [&[u8]; 3], channels: Channels, out: &mut [u8]) {
    let [r, g, b] = channels.ordered(planes);
    for (((out, &r), &g), &b) in out.chunks_exact_mut(3).zip(r).zip(g).zip(b) {
        out.copy_from_slice(&[r, g, b]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, seed: u32) -> Vec<u8> {
        (0..length as u32)
            .map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 23) as u8)
            .collect()
    }

    #[test]
    fn every_extension_converts_all_colours_alike() {
        let all: Vec<u8> = (0..=255).collect();
        for extension in Extension::available() {
            let rgb = Channels::Rgb;
            for cb in 0..=255u8 {
                for cr in 0..=255u8 {
                    let mut expected = [0; 768];
                    let mut out = [0; 768];
                    ycc_to_rgb_plain(&all, &[cb; 256], &[cr; 256], rgb, &mut expected);
                    ycc_to_rgb(extension, &all, &[cb; 256], &[cr; 256], rgb, &mut out);
                    assert_eq!(out, expected, "{extension:?} cb {cb} cr {cr}");
                }
            }
            for width in 0..200 {
                let (y, cb, cr) = (noise(width, 1), noise(width, 2), noise(width, 3));
                let mut expected = vec![7; width * 3];
                let mut out = expected.clone();
                ycc_to_rgb_plain(&y, &cb, &cr, rgb, &mut expected);
                ycc_to_rgb(extension, &y, &cb, &cr, rgb, &mut out);
                assert_eq!(out, expected, "{extension:?} width {width}");
                expected.chunks_exact_mut(3).for_each(<[u8]>::reverse);
                ycc_to_rgb(extension, &y, &cb, &cr, Channels::Bgr, &mut out);
                assert_eq!(out, expected, "{extension:?} width {width}, BGR");
            }
        }
    }

    #[test]
    fn every_extension_upsamples_alike() {
        for pairs in 1..120 {
            let (near, far) = (noise(pairs + 2 + SLACK, 5), noise(pairs + 2 + SLACK, 77));
            let run = |extension: Extension| {
                let mut out = vec![vec![0; pairs * 2 + SLACK]; 3];
                double_row(extension, &near, pairs, &mut out[0]);
                double_blended(extension, &near, &far, pairs, &mut out[1]);
                blend_rows(extension, &near[..pairs], &far, 2, &mut out[2]);
                out[2].truncate(pairs);
                out.iter_mut().for_each(|row| row.truncate(pairs * 2));
                out
            };
            let expected = run(Extension::Scalar);
            for extension in Extension::available() {
                assert_eq!(run(extension), expected, "{extension:?} {pairs} pairs");
            }
        }
    }
}
