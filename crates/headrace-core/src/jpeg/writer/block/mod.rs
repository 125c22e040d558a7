//! The symbols of one block of coefficients (T.81 F.1.2): a DC difference, then each nonzero coefficient with the run of zeros
//! before it, runs of sixteen zeros, and the end of the block. [`super::symbols`] describes the layout of a symbol.
#![allow(unsafe_code)]

use crate::error::{Result, Status};
use crate::jpeg::header::ZIGZAG;

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub use avx512::symbols_avx512;

/// Largest number of symbols of one block: one for DC, 63 for AC.
pub const SYMBOLS_IN_BLOCK: usize = 64;

/// Size of the output for the symbols of a block. It is larger than a block needs, because whole vectors are stored.
pub const ROOM: usize = SYMBOLS_IN_BLOCK + 16;

/// The symbol of a run of sixteen zeros.
const ZEROS: u32 = 0xF0;

/// Write the symbols of a block in natural order to `words`; return how many. `predictor` is the DC value before it, `base` is
/// where its table's DC symbols begin ([`super::symbols::table_base`]). [`Status::Unsupported`] for a value without a code.
#[inline(always)]
pub fn symbols(
    coefficients: &[i16; 64],
    predictor: i16,
    base: u32,
    words: &mut [u32; ROOM],
) -> Result<usize> {
    let mut count = 0;
    let words = words.as_mut_ptr();
    let mut push = |word: u32| {
        // SAFETY: each symbol covers at least one place of the block, so there are no more symbols than places.
        unsafe { *words.add(count) = word };
        count += 1;
    };
    let (dc, mut widest) = dc_symbol(coefficients, predictor, base);
    push(dc);
    let base = base + 256;
    let mut left = in_file_order(nonzero(coefficients)) & !1;
    let mut next = 1;
    while left != 0 {
        let k = left.trailing_zeros();
        left &= left - 1;
        let mut run = k - next;
        next = k + 1;
        while run > 15 {
            push(base + ZEROS);
            run -= 16;
        }
        // SAFETY: k and all that ZIGZAG holds are below 64.
        let value = i32::from(unsafe {
            *coefficients.get_unchecked(usize::from(*ZIGZAG.get_unchecked(k as usize)))
        });
        let coded = match SMALL.get((value + 1024) as usize) {
            Some(&coded) => coded,
            None => {
                let (size, extra) = size_and_extra(value);
                widest |= size;
                size | extra << 16
            }
        };
        push(base + (run << 4) + coded);
    }
    if next < 64 {
        push(base);
    }
    coded(widest, count)
}

/// Return the symbol of the DC difference, and its size.
#[inline(always)]
fn dc_symbol(coefficients: &[i16; 64], predictor: i16, base: u32) -> (u32, u32) {
    let (size, extra) = size_and_extra(i32::from(coefficients[0]) - i32::from(predictor));
    ((base + size) | extra << 16, size)
}

/// Return `count` if codes exist for sizes up to `widest`, which may be the bitwise or of several sizes.
#[inline(always)]
fn coded(widest: u32, count: usize) -> Result<usize> {
    // There is no baseline code for more than 15 bits; libjpeg refuses to write them too.
    if widest > 15 {
        return Err(Status::Unsupported);
    }
    Ok(count)
}

/// [`size_and_extra`] of -1024 to 1023 in the layout of a symbol. These are all values of 8-bit images, and a look-up is faster.
static SMALL: [u32; 2048] = {
    let mut table = [0; 2048];
    let mut at = 0;
    while at < 2048 {
        let (size, extra) = size_and_extra(at as i32 - 1024);
        table[at] = size | extra << 16;
        at += 1;
    }
    table
};

/// For each row of a block and each set of its columns, the set of the same places in file order.
static IN_FILE_ORDER: [[u64; 256]; 8] = {
    let mut table = [[0; 256]; 8];
    let mut k = 0;
    while k < 64 {
        let (row, column) = (ZIGZAG[k] as usize / 8, ZIGZAG[k] as usize % 8);
        let mut columns = 0;
        while columns < 256 {
            if columns >> column & 1 == 1 {
                table[row][columns] |= 1 << k;
            }
            columns += 1;
        }
        k += 1;
    }
    table
};

/// Convert a set of places from natural order to file order, which is cheaper than reordering the values.
#[inline(always)]
fn in_file_order(natural: u64) -> u64 {
    let rows = natural.to_le_bytes();
    (0..8).fold(0, |places, row| {
        places | IN_FILE_ORDER[row][usize::from(rows[row])]
    })
}

/// Return a mask in which bit k is set if value k is not 0.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn nonzero(values: &[i16; 64]) -> u64 {
    use std::arch::x86_64::*;
    let (vectors, _) = values.as_chunks::<16>();
    vectors.iter().rev().fold(0, |mask, sixteen| {
        // SAFETY: SSE2 is part of x86-64, and both loads read eight of the sixteen values.
        let zero = unsafe {
            let zeros = _mm_setzero_si128();
            let low = _mm_loadu_si128(sixteen.as_ptr().cast());
            let high = _mm_loadu_si128(sixteen.as_ptr().add(8).cast());
            let bytes = _mm_packs_epi16(_mm_cmpeq_epi16(low, zeros), _mm_cmpeq_epi16(high, zeros));
            _mm_movemask_epi8(bytes)
        };
        mask << 16 | u64::from(!zero as u16)
    })
}

/// Return a mask in which bit k is set if value k is not 0.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn nonzero(values: &[i16; 64]) -> u64 {
    nonzero_scalar(values)
}

/// As [`nonzero`], in scalar code.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn nonzero_scalar(values: &[i16; 64]) -> u64 {
    (0..64).fold(0, |mask, k| mask | u64::from(values[k] != 0) << k)
}

/// Return the number of bits of a difference or coefficient, and the bits (T.81 F.1.2.1: of a negative value minus one).
#[inline(always)]
pub const fn size_and_extra(value: i32) -> (u32, u32) {
    let size = 32 - value.unsigned_abs().leading_zeros();
    let extra = (value + (value >> 31)) as u32 & ((1 << size) - 1);
    (size, extra)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Return the symbols of a block, computed one value at a time after T.81 F.1.2.
    fn symbols_by_the_standard(
        coefficients: &[i16; 64],
        predictor: i16,
        base: u32,
    ) -> Result<Vec<u32>> {
        let mut words = Vec::new();
        let mut push = |symbol: u32, value: i32| {
            let size = 32 - value.unsigned_abs().leading_zeros();
            let extra = if value < 0 { value - 1 } else { value } as u32 & ((1 << size) - 1);
            words.push((symbol + size) | extra << 16);
            if size > 15 {
                return Err(Status::Unsupported);
            }
            Ok(())
        };
        push(base, i32::from(coefficients[0]) - i32::from(predictor))?;
        let mut run = 0;
        for &place in &ZIGZAG[1..] {
            let value = coefficients[usize::from(place)];
            if value == 0 {
                run += 1;
                continue;
            }
            while run > 15 {
                push(base + 256 + 0xF0, 0)?;
                run -= 16;
            }
            push(base + 256 + (run << 4), i32::from(value))?;
            run = 0;
        }
        if run > 0 {
            push(base + 256, 0)?;
        }
        Ok(words)
    }

    #[test]
    fn every_kernel_agrees_with_the_standard() {
        let mut state = 9u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut refused = 0;
        for round in 0..20_000u32 {
            // Blocks from no zeros to only zeros, with small values and with any value.
            let (sparse, bits) = (
                random() % 65,
                1 + random() % if round % 50 == 0 { 16 } else { 10 },
            );
            let block: [i16; 64] = std::array::from_fn(|_| {
                let value = (random() & ((1 << bits) - 1)) as i32 - (1 << (bits - 1));
                if random() % 64 < sparse {
                    0
                } else {
                    value as i16
                }
            });
            let predictor = random() as i16 >> 4;
            let expected = symbols_by_the_standard(&block, predictor, 512);
            refused += usize::from(expected.is_err());
            let check = |name: &str, how: &dyn Fn(&mut [u32; ROOM]) -> Result<usize>| {
                let mut words = [7; ROOM];
                let found = how(&mut words).map(|count| words[..count].to_vec());
                assert_eq!(found, expected, "{name} in round {round}");
            };
            check("plain", &|words| symbols(&block, predictor, 512, words));
            #[cfg(target_arch = "x86_64")]
            if crate::cpu::Extension::available().contains(&crate::cpu::Extension::Avx512) {
                // SAFETY: the processor has these instructions.
                check("AVX-512", &|words| unsafe {
                    symbols_avx512(&block, predictor, 512, words)
                });
            }
            assert_eq!(nonzero(&block), nonzero_scalar(&block));
        }
        assert!(refused > 0, "no value was too large");
    }
}
