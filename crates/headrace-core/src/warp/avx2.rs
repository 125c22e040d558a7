//! Bilinear sampling, 8 pixels at a time, bit-identical to [`super::scalar`]; the method is that of [`super::avx512`].
//!
//! Pixels are loaded one by one, because gathers are slow on processors without AVX-512.
#![allow(unsafe_code)]
// The kernel is unsafe throughout; `bilinear` guarantees what it needs.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::span::{Cells, Course, DOUBT, LONGEST_PART, NEAR};
use super::{scalar, Affine, Line, Picture};

/// Sample a part of an output row bilinearly, at most [`LONGEST_PART`] pixels.
pub fn bilinear(picture: &Picture<'_>, map: &Affine, line: Line, output: &mut [u8]) {
    let pixels = output.len() / 3;
    assert!(pixels <= LONGEST_PART);
    let cells = Cells::of_row(picture, map, line, pixels);
    cells.assert_readable(picture, pixels);
    cells.fill_outside(line.fill, output);
    scalar::bilinear_part(picture, map, line, output, cells.visible..cells.first);
    // SAFETY: the extension was checked when the warper was made; `assert_readable` has checked that the pixels from
    // `first` to `end` are in the output and read eight bytes within the picture's buffer.
    unsafe { inner(picture, map, line, &cells, output) };
    scalar::bilinear_part(picture, map, line, output, cells.end..cells.hidden);
}

/// Sample the pixels inside the image.
///
/// # Safety
/// The processor has the features; `cells` belongs to this row.
#[target_feature(enable = "avx2,fma")]
unsafe fn inner(picture: &Picture<'_>, map: &Affine, line: Line, cells: &Cells, output: &mut [u8]) {
    let mut at = [ramp(cells.x), ramp(cells.y)];
    let steps = [cells.x, cells.y].map(|course| _mm256_set1_epi64x(course.step.wrapping_mul(8)));
    let [doubt_x, doubt_y] =
        [cells.x, cells.y].map(|course| _mm256_set1_epi32(-i32::from(!course.exact)));
    for start in (cells.first..cells.end).step_by(8) {
        let count = (cells.end - start).min(8);
        let [columns, rows] = at.map(|halves| Place::of(halves));
        let corners = cells.blended(corners(picture, columns.whole, rows.whole, count));
        let blended = blend(corners, columns.share, rows.share);
        let doubt = _mm256_or_si256(
            _mm256_and_si256(columns.doubtful, doubt_x),
            _mm256_and_si256(rows.doubtful, doubt_y),
        );
        let lanes = (1_u32 << count) - 1;
        let mut doubtful = (blended.doubtful | mask(doubt)) & lanes;
        store(blended.words, &mut output[start * 3..cells.end * 3]);
        while doubtful != 0 {
            let at = start + doubtful.trailing_zeros() as usize;
            doubtful &= doubtful - 1;
            if let Some(pixel) =
                scalar::bilinear_pixel(picture, map, line.first + at as u32, line.y)
            {
                output[at * 3..at * 3 + 3].copy_from_slice(&pixel);
            }
        }
        for (halves, step) in at.iter_mut().zip(steps) {
            *halves = halves.map(|half| _mm256_add_epi64(half, step));
        }
    }
}

/// Sample the nearest neighbours of a part of a row: pixel i comes from the window's `at + i * step`, 16.16 fixed point. One
/// pixel is loaded at a time, as four bytes, because gathers are slow on processors without AVX-512.
///
/// # Safety
/// Every pixel of `output` comes from inside the picture's window, where four bytes are readable.
pub unsafe fn nearest(picture: &Picture<'_>, at: (i64, i64), step: (i64, i64), output: &mut [u8]) {
    let (mut x, mut y) = at;
    let base = picture.bytes.as_ptr();
    let pixels = output.len() / 3;
    let target = output.as_mut_ptr();
    for i in 0..pixels {
        let from = base.add((y >> 16) as usize * picture.stride + (x >> 16) as usize * 3);
        let word = from.cast::<u32>().read_unaligned();
        if i + 1 < pixels {
            // The fourth byte is overwritten by the next pixel.
            target.add(i * 3).cast::<u32>().write_unaligned(word);
        } else {
            target
                .add(i * 3)
                .copy_from_nonoverlapping(word.to_le_bytes().as_ptr(), 3);
        }
        (x, y) = (x + step.0, y + step.1);
    }
}

/// Return the coordinates of pixels 0, 1, 4, 5 and of 2, 3, 6, 7, the order that [`even`] restores.
#[inline]
#[target_feature(enable = "avx2")]
fn ramp(line: Course) -> [__m256i; 2] {
    let at = |pixel: i64| line.start.wrapping_add(line.step.wrapping_mul(pixel));
    [
        _mm256_setr_epi64x(at(0), at(1), at(4), at(5)),
        _mm256_setr_epi64x(at(2), at(3), at(6), at(7)),
    ]
}

/// Return the lower 32 bits of each 64, in the order of the pixels.
#[inline]
#[target_feature(enable = "avx2")]
fn even(halves: [__m256i; 2]) -> __m256i {
    let [first, second] = halves.map(|half| _mm256_castsi256_ps(half));
    _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second))
}

/// Return one bit per lane from its sign.
#[inline]
#[target_feature(enable = "avx2")]
fn mask(lanes: __m256i) -> u32 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32
}

/// 8 coordinates, split into whole part and fraction.
struct Place {
    whole: __m256i,
    share: __m256,
    /// All ones if the whole part may be wrong by one.
    doubtful: __m256i,
}

impl Place {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of(halves: [__m256i; 2]) -> Self {
        const NEAR_BITS: i32 = (2 * NEAR).trailing_zeros() as i32;
        let fraction = even(halves);
        let near = _mm256_add_epi32(fraction, _mm256_set1_epi32(NEAR as i32));
        let share = _mm256_cvtepi32_ps(_mm256_srli_epi32::<8>(fraction));
        Place {
            whole: even(halves.map(|half| _mm256_srli_epi64::<32>(half))),
            share: _mm256_mul_ps(share, _mm256_set1_ps(1.0 / 16_777_216.0)),
            doubtful: _mm256_cmpeq_epi32(
                _mm256_srli_epi32::<NEAR_BITS>(near),
                _mm256_setzero_si256(),
            ),
        }
    }
}

/// Return the four pixels around each point, as 32-bit words with red in the lowest byte (the highest is arbitrary).
///
/// # Safety For each of the first `count` lanes, eight bytes are readable at the column and row of the picture's buffer, and in
/// the next row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn corners(
    picture: &Picture<'_>,
    columns: __m256i,
    rows: __m256i,
    count: usize,
) -> [__m256i; 4] {
    let stride = _mm256_set1_epi32(picture.stride as i32);
    let at = _mm256_add_epi32(_mm256_mullo_epi32(rows, stride), columns);
    let at = _mm256_add_epi32(at, _mm256_slli_epi32::<1>(columns));
    let mut offsets = [0_i32; 8];
    _mm256_storeu_si256(offsets.as_mut_ptr().cast(), at);
    // Lanes after the inside of the row may point anywhere, so they read the first pixels of the buffer.
    if count < 8 {
        offsets[count..].fill(0);
    }
    let two = |base: *const u8, first: usize| {
        let low = _mm_loadl_epi64(base.add(offsets[first] as usize).cast());
        let high = _mm_loadl_epi64(base.add(offsets[first + 1] as usize).cast());
        _mm_unpacklo_epi64(low, high)
    };
    let pair = |base: *const u8| {
        // Eight bytes hold a pixel, the next one, and two unused bytes.
        let words = [
            _mm256_set_m128i(two(base, 4), two(base, 0)),
            _mm256_set_m128i(two(base, 6), two(base, 2)),
        ];
        [
            even(words),
            even(words.map(|words| _mm256_srli_epi64::<24>(words))),
        ]
    };
    let upper = pair(picture.bytes.as_ptr());
    let lower = pair(picture.bytes.as_ptr().add(picture.stride));
    [upper[0], upper[1], lower[0], lower[1]]
}

/// 8 blended pixels.
struct Blended {
    words: __m256i,
    doubtful: u32,
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn blend(corners: [__m256i; 4], across: __m256, down: __m256) -> Blended {
    let byte = _mm256_set1_epi32(0xFF);
    let red = |word| _mm256_cvtepi32_ps(_mm256_and_si256(word, byte));
    let green = |word| _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<8>(word), byte));
    let blue = |word| _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<16>(word), byte));
    let mix = |from, to, share| _mm256_fmadd_ps(_mm256_sub_ps(to, from), share, from);
    let mixed = |values: [__m256; 4]| {
        mix(
            mix(values[0], values[1], across),
            mix(values[2], values[3], across),
            down,
        )
    };
    let values = [
        mixed(corners.map(red)),
        mixed(corners.map(green)),
        mixed(corners.map(blue)),
    ];
    let bytes = values.map(|value| _mm256_cvttps_epi32(value));
    let words = _mm256_or_si256(
        _mm256_or_si256(bytes[0], _mm256_slli_epi32::<8>(bytes[1])),
        _mm256_slli_epi32::<16>(bytes[2]),
    );
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let magnitude = _mm256_set1_ps(f32::from_bits(0x7FFF_FFFF));
    let away = values.map(|value| {
        _mm256_and_ps(
            _mm256_sub_ps(value, _mm256_round_ps::<NEAREST>(value)),
            magnitude,
        )
    });
    let doubt = _mm256_set1_ps(DOUBT);
    let near = |away| _mm256_cmp_ps::<_CMP_LT_OQ>(away, doubt);
    let least = _mm256_min_ps(_mm256_min_ps(away[0], away[1]), away[2]);
    let mut doubtful = _mm256_movemask_ps(near(least)) as u32;
    if doubtful != 0 {
        // Rare except in flat areas, which are exact.
        let [first, second, third, fourth] = corners;
        let unequal = _mm256_or_si256(
            _mm256_or_si256(
                _mm256_xor_si256(first, second),
                _mm256_xor_si256(first, third),
            ),
            _mm256_xor_si256(first, fourth),
        );
        doubtful = 0;
        for (channel, away) in away.into_iter().enumerate() {
            let bits = _mm256_set1_epi32(0xFF << (8 * channel));
            let flat = _mm256_cmpeq_epi32(_mm256_and_si256(unequal, bits), _mm256_setzero_si256());
            doubtful |= _mm256_movemask_ps(near(away)) as u32 & !mask(flat);
        }
    }
    Blended { words, doubtful }
}

/// Store bytes 0, 1, 2 of each word, as many as `output` holds.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(words: __m256i, output: &mut [u8]) {
    let order = _mm256_setr_epi8(
        0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, //
        0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,
    );
    let bytes = _mm256_shuffle_epi8(words, order);
    let halves = [
        _mm256_castsi256_si128(bytes),
        _mm256_extracti128_si256::<1>(bytes),
    ];
    if output.len() >= 28 {
        // 16 bytes are stored of which 12 are valid. The next store overwrites the rest.
        _mm_storeu_si128(output.as_mut_ptr().cast(), halves[0]);
        _mm_storeu_si128(output.as_mut_ptr().add(12).cast(), halves[1]);
        return;
    }
    let mut buffer = [0_u8; 28];
    _mm_storeu_si128(buffer.as_mut_ptr().cast(), halves[0]);
    _mm_storeu_si128(buffer.as_mut_ptr().add(12).cast(), halves[1]);
    let count = output.len().min(24);
    output[..count].copy_from_slice(&buffer[..count]);
}
