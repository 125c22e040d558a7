//! Bicubic sampling, bit-identical to Pillow's `Geometry.c`: cubics over 4 × 4 pixels in double precision, with the parameter
//! a = −1, truncated. Rows and columns beyond the edges repeat the edge.
//!
//! The vector kernel computes the three channels of a pixel together, in the scalar code's order of operations, so that no result
//! differs. Most maps of augmentations shear or shift along one axis: a fraction of 0 leaves one cubic of five.
#![allow(unsafe_code)]

use super::{scalar, Affine, Line, Picture};
use crate::cpu::Extension;

/// Sample a part of an output row.
pub fn row(
    extension: Extension,
    picture: &Picture<'_>,
    map: &Affine,
    line: Line,
    output: &mut [u8],
) {
    match extension {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the extension was checked when the warper was made.
        Extension::Avx2 | Extension::Avx512 => unsafe {
            vector::row(picture, map, line, output);
        },
        _ => {
            for (x, pixel) in output.chunks_exact_mut(3).enumerate() {
                let place = Place::of(picture, map, line.first + x as u32, line.y);
                let value = place.map(|place| sampled(picture, &place));
                pixel.copy_from_slice(&value.unwrap_or(line.fill));
            }
        }
    }
}

/// A sampled point: the pixel to the upper left of it, and the distances from that pixel's centre.
struct Place {
    column: i64,
    row: i64,
    across: f64,
    down: f64,
}

impl Place {
    /// Return the place of an output pixel, or `None` outside the image.
    #[inline(always)]
    fn of(picture: &Picture<'_>, map: &Affine, x: u32, y: u32) -> Option<Self> {
        let (x, y) = map.apply(f64::from(x) + 0.5, f64::from(y) + 0.5);
        let (width, height) = (f64::from(picture.width), f64::from(picture.height));
        if !(x >= 0.0 && x < width && y >= 0.0 && y < height) {
            return None;
        }
        let (x, y) = (x - 0.5, y - 0.5);
        let (column, row) = (scalar::floor(x), scalar::floor(y));
        Some(Place {
            column,
            row,
            across: x - column as f64,
            down: y - row as f64,
        })
    }
}

/// Return the pixel at a place.
fn sampled(picture: &Picture<'_>, place: &Place) -> [u8; 3] {
    let pixels: [[[u8; 3]; 4]; 4] = std::array::from_fn(|y| {
        std::array::from_fn(|x| {
            picture.pixel(place.column + x as i64 - 1, place.row + y as i64 - 1)
        })
    });
    std::array::from_fn(|channel| {
        let rows =
            pixels.map(|row| cubic(row.map(|pixel| f64::from(pixel[channel])), place.across));
        cubic(rows, place.down) as u8 // saturates, and truncates as Pillow does
    })
}

/// Return the cubic through four values, at a share of the way from the second to the third.
#[inline(always)]
fn cubic(values: [f64; 4], share: f64) -> f64 {
    let [v1, v2, v3, v4] = values;
    let p2 = -v1 + v3;
    let p3 = 2.0 * (v1 - v2) + v3 - v4;
    let p4 = -v1 + v2 - v3 + v4;
    v2 + share * (p2 + share * (p3 + share * p4))
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;

    use super::{sampled, Affine, Line, Picture, Place};

    /// Sample a part of an output row.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn row(picture: &Picture<'_>, map: &Affine, line: Line, output: &mut [u8]) {
        for (number, pixel) in output.chunks_exact_mut(3).enumerate() {
            let x = line.first + number as u32;
            let Some(place) = Place::of(picture, map, x, line.y) else {
                pixel.copy_from_slice(&line.fill);
                continue;
            };
            let value = match neighbours(picture, &place) {
                // SAFETY: `neighbours` has checked that four bytes can be read at each of the 4 × 4 pixels.
                Some(start) => unsafe { inner(picture, start, &place) },
                None => sampled(picture, &place),
            };
            pixel.copy_from_slice(&value);
        }
    }

    /// Return the byte of the first of a place's 4 × 4 pixels, or `None` unless four bytes of the buffer can be read at each.
    #[inline(always)]
    fn neighbours(picture: &Picture<'_>, place: &Place) -> Option<usize> {
        let window = picture.window;
        let column = place.column - 1 - i64::from(window.x);
        let row = place.row - 1 - i64::from(window.y);
        let inside = column >= 0
            && row >= 0
            && column + 4 <= i64::from(window.w)
            && row + 4 <= i64::from(window.h);
        let start = (row * picture.stride as i64 + column * 3) as usize;
        (inside && start + 3 * picture.stride + 13 <= picture.bytes.len()).then_some(start)
    }

    /// Return the pixel at a place whose first neighbour is at the byte `start`.
    ///
    /// # Safety
    /// Four bytes can be read at each of the 4 × 4 pixels from there. The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn inner(picture: &Picture<'_>, start: usize, place: &Place) -> [u8; 3] {
        // SAFETY: guaranteed by the caller, as are all reads below.
        let first = unsafe { picture.bytes.as_ptr().add(start) };
        let across = _mm256_set1_pd(place.across);
        // A fraction of 0 gives the second value: its cubic is v2 + 0 · (…).
        let along = |number: usize| {
            // SAFETY: see above.
            let row = unsafe { first.add(number * picture.stride) };
            if place.across == 0.0 {
                // SAFETY: see above.
                return _mm256_cvtepi32_pd(unsafe { pixel(row.add(3)) });
            }
            // SAFETY: see above.
            let values = unsafe { [0, 3, 6, 9].map(|at| pixel(row.add(at))) };
            of_integers(values, across)
        };
        if place.down == 0.0 {
            return bytes(along(1));
        }
        let rows = [along(0), along(1), along(2), along(3)];
        bytes(of_doubles(rows, _mm256_set1_pd(place.down)))
    }

    /// Return the first three values, clamped to bytes and truncated.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes(value: __m256d) -> [u8; 3] {
        let low = _mm256_max_pd(value, _mm256_setzero_pd());
        let words = _mm256_cvttpd_epi32(_mm256_min_pd(low, _mm256_set1_pd(255.0)));
        let order = _mm_setr_epi8(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        let [red, green, blue, _] = _mm_cvtsi128_si32(_mm_shuffle_epi8(words, order)).to_le_bytes();
        [red, green, blue]
    }

    /// Return the channels of a pixel as 32-bit integers; the fourth is arbitrary.
    ///
    /// # Safety
    /// Four bytes can be read.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pixel(at: *const u8) -> __m128i {
        // SAFETY: guaranteed by the caller.
        _mm_cvtepu8_epi32(_mm_cvtsi32_si128(unsafe {
            at.cast::<i32>().read_unaligned()
        }))
    }

    /// The cubic of integers: its coefficients are exact in integers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of_integers(values: [__m128i; 4], share: __m256d) -> __m256d {
        let [v1, v2, v3, v4] = values;
        let (fall, rise) = (_mm_sub_epi32(v1, v2), _mm_sub_epi32(v3, v4));
        let p2 = _mm_sub_epi32(v3, v1);
        let p3 = _mm_add_epi32(_mm_add_epi32(fall, fall), rise);
        let p4 = _mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(fall, rise));
        let [p1, p2, p3, p4] = [v2, p2, p3, p4].map(|p| _mm256_cvtepi32_pd(p));
        polynomial(p1, p2, p3, p4, share)
    }

    /// The cubic of doubles, in the order of the scalar code.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of_doubles(values: [__m256d; 4], share: __m256d) -> __m256d {
        let [v1, v2, v3, v4] = values;
        let fall = _mm256_sub_pd(v1, v2);
        let p2 = _mm256_sub_pd(v3, v1);
        let p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(fall, fall), v3), v4);
        let p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v2, v1), v3), v4);
        polynomial(v2, p2, p3, p4, share)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn polynomial(p1: __m256d, p2: __m256d, p3: __m256d, p4: __m256d, d: __m256d) -> __m256d {
        let inner = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
        let middle = _mm256_add_pd(p2, _mm256_mul_pd(d, inner));
        _mm256_add_pd(p1, _mm256_mul_pd(d, middle))
    }
}
