//! Huffman decoding of single blocks (T.81 F.2.2), storing coefficients or only keeping the place.

use super::bits::BitReader;
use super::header::ZIGZAG;
use super::huffman::{resolve, Class, Table, WINDOW};
use crate::error::{Result, Status};

/// Blocks that are stored side by side: row r of block b lies at `r * 32 + b * 8`, so that one row of all four is one vector.
pub const GROUP: usize = 4;

/// Coefficients of four blocks, not yet dequantised.
pub type Group = [i16; 64 * GROUP];

/// Position in a [`Group`] (of its first block) of the k-th coefficient in file order. Read with a `u8` index: no bounds check.
static PLACE: [u8; 256] = places();

const fn places() -> [u8; 256] {
    let mut places = [0; 256];
    let mut k = 0;
    while k < 64 {
        places[k] = (ZIGZAG[k] / 8) * 32 + ZIGZAG[k] % 8;
        k += 1;
    }
    places
}

/// The two tables of a component.
#[derive(Default, Clone)]
pub struct Tables {
    /// For DC differences.
    pub dc: Table,
    /// For AC runs and sizes.
    pub ac: Table,
}

#[inline(always)]
fn look_up(table: &Table, bits: &BitReader<'_>) -> u32 {
    table.entries[(bits.window() >> (64 - WINDOW)) as usize]
}

#[inline(always)]
fn dc_difference(bits: &mut BitReader<'_>, table: &Table) -> Result<i32> {
    bits.refill();
    let entry = look_up(table, bits);
    if entry as u16 >> 8 != 0 {
        bits.skip(entry);
        return Ok((entry as i32) >> 16);
    }
    let (length, _, value) = resolve(table, entry, bits.window(), Class::Dc)?;
    bits.skip(length);
    Ok(value)
}

/// Decodes the AC symbols of a block and calls `store(k, value)` for each; returns the last k that was stored.
#[inline(always)]
fn ac_symbols(
    bits: &mut BitReader<'_>,
    table: &Table,
    mut store: impl FnMut(u32, i16),
) -> Result<u32> {
    let (mut k, mut last) = (0u32, 0u32);
    bits.refill();
    let mut spare = 3; // look-ups until the next refill: DC left at least 56 - 0 bits, each look-up takes up to WINDOW
    loop {
        let entry = look_up(table, bits);
        let mut step = u32::from(entry as u16 >> 8);
        let value;
        if step != 0 {
            bits.skip(entry);
            value = (entry >> 16) as i16;
        } else {
            bits.refill();
            let (length, advance, wide) = resolve(table, entry, bits.window(), Class::Ac)?;
            bits.skip(length);
            bits.refill();
            spare = 4;
            step = u32::from(advance);
            value = wide as i16;
        }
        k += step;
        if k >= 63 {
            if k == 63 {
                store(63, value);
                return Ok(63);
            }
            // Only the end-of-block symbol may lead out of the block.
            return if k >= 128 {
                Ok(last)
            } else {
                Err(Status::CorruptData)
            };
        }
        store(k, value);
        last = k;
        if spare == 0 {
            bits.refill();
            spare = 5;
        }
        spare -= 1;
    }
}

/// Decodes block `lane` of `group`, which must be zero there. Returns the position in file order of its last coefficient.
#[inline(always)]
pub fn block(
    bits: &mut BitReader<'_>,
    tables: &Tables,
    dc: &mut i32,
    group: &mut Group,
    lane: u8,
) -> Result<u8> {
    *dc = dc.wrapping_add(dc_difference(bits, &tables.dc)?);
    let shift = (lane & 3) * 8;
    group[usize::from(shift)] = *dc as i16;
    let last = ac_symbols(bits, &tables.ac, |k, value| {
        group[usize::from(PLACE[usize::from(k as u8)].wrapping_add(shift))] = value;
    })?;
    Ok(last as u8)
}

/// Passes over a block, keeping the DC predictor.
#[inline(always)]
pub fn skip_block(bits: &mut BitReader<'_>, tables: &Tables, dc: &mut i32) -> Result<()> {
    *dc = dc.wrapping_add(dc_difference(bits, &tables.dc)?);
    ac_symbols(bits, &tables.ac, |_, _| ())?;
    Ok(())
}
