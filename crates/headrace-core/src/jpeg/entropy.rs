//! Huffman decoding of runs of MCUs (T.81 F.2.2) into coefficients.
//!
//! Decoding is a chain: each look-up needs the length that the look-up before it found. One loop decodes all blocks of a run with
//! its state in registers; where the blocks are is listed before. Rows with several places to start from are decoded by
//! [`super::lanes`], two runs at once.
#![allow(unsafe_code)]

use super::bits::BitReader;
use super::header::ZIGZAG;
use super::huffman::{
    advance, held_back, magnitude, AcTable, DcTable, END_OF_BLOCK, NOT_HELD, OUTSIDE, WINDOW,
};
use crate::cpu::Extension;
use crate::error::{Result, Status};

/// Blocks that are stored side by side: row r of block b is at `r * 32 + b * 8`, so that one row of all four is one vector.
pub const GROUP: usize = 4;

/// Coefficients in a group.
const GROUP_LENGTH: usize = 64 * GROUP;

/// Coefficients of four blocks, not yet dequantised.
pub type Group = [i16; GROUP_LENGTH];

/// Look-ups per refill (56 bits).
pub(super) const LOOK_UPS: u32 = 56 / WINDOW;

/// Look-ups after a DC difference.
const FIRST_LOOK_UPS: u32 = 3;

/// Bits that a DC difference may take without another refill.
const DC_BITS: u32 = 56 - FIRST_LOOK_UPS * WINDOW;

/// Position in a [`Group`] (of its first block) of the k-th coefficient in file order, for k below 64. With [`END_OF_BLOCK`] added, a
/// k stands for the place behind it, where a zero is stored again. A k that leaves the block gives the last place, where the first
/// symbol of an entry is stored after the second.
static PLACE: [u8; 256] = PLACES;
const PLACES: [u8; 256] = places();

const fn places() -> [u8; 256] {
    let mut places = [0; 256];
    let mut k = 0;
    while k < 256 {
        let within = if k % 128 < 64 { k % 128 } else { 63 };
        places[k] = (ZIGZAG[within] / 8) * 32 + ZIGZAG[within] % 8;
        k += 1;
    }
    places
}

/// The two tables of a component.
#[derive(Default, Clone)]
pub struct Tables {
    /// For DC differences.
    pub dc: DcTable,
    /// For AC runs and sizes.
    pub ac: AcTable,
}

/// A block of the MCU: where to store it and how it is coded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    /// Index of its tables.
    pub tables: usize,
    /// Its component, for the DC predictor.
    pub component: usize,
    /// Group of the first block in its row of blocks.
    pub first_group: usize,
    /// Blocks per MCU horizontally.
    pub h: usize,
    /// Its column in the MCU.
    pub x: usize,
}

/// A position from which decoding can start: a bit of the file and the DC predictors there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Offset in the file of the byte with the next bit.
    pub position: usize,
    /// Number of that bit, 0 for the most significant.
    pub bit: u32,
    /// DC predictors of the components.
    pub predictors: [i32; 3],
    /// Number of the next MCU, counted from the start of the image.
    pub mcu: u32,
}

/// MCUs to decode: from `start` on, skip the first `skip`, and store the next `count` from window column `column` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where to start.
    pub start: Cursor,
    /// MCUs to skip first.
    pub skip: u32,
    /// Column of the window (in MCUs) of the first stored one.
    pub column: u32,
    /// MCUs to store.
    pub count: u32,
}

/// A block in the order of the file.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block {
    /// Place of its first coefficient, counted in coefficients from the first group.
    pub(super) first: u32,
    /// Index of its tables.
    pub(super) tables: u16,
    /// Its component, for the DC predictor.
    pub(super) component: u16,
}

/// The blocks of an MCU row.
#[derive(Default)]
pub struct Plan {
    wanted: Vec<Block>,
    /// The blocks of one MCU, all at one place that nobody reads.
    pub(super) skipped: Vec<Block>,
}

impl Plan {
    /// Plan rows of `columns` MCUs that consist of `slots`. Skipped blocks may be stored in group `unread`, which is behind all others.
    pub fn lay_out(&mut self, slots: &[Slot], columns: usize, unread: usize) {
        let block = |slot: &Slot, first: usize| Block {
            first: first as u32,
            tables: slot.tables as u16,
            component: slot.component as u16,
        };
        self.wanted.clear();
        for column in 0..columns {
            self.wanted.extend(slots.iter().map(|slot| {
                let x = column * slot.h + slot.x;
                let group = slot.first_group + x / GROUP;
                block(slot, group * GROUP_LENGTH + x % GROUP * 8)
            }));
        }
        let skipped = slots.iter().map(|slot| block(slot, unread * GROUP_LENGTH));
        self.skipped.clear();
        self.skipped.extend(skipped);
    }

    /// Return the blocks that `run` stores.
    pub(super) fn wanted(&self, run: &Run) -> &[Block] {
        let count = self.skipped.len();
        &self.wanted[run.column as usize * count..][..run.count as usize * count]
    }
}

/// Decode `run` to `groups`, which must be all zero where its blocks are, and return the position behind it.
pub fn decode_run(
    extension: Extension,
    data: &[u8],
    tables: &[Tables; 3],
    plan: &Plan,
    groups: &mut [Group],
    run: &Run,
) -> Result<Cursor> {
    let mut state = State {
        bits: BitReader::new(data, run.start.position, run.start.bit),
        predictors: run.start.predictors,
    };
    if run.skip > 0 {
        let mcus = (&plan.skipped[..], run.skip);
        state = decode_blocks::<false>(extension, state, tables, mcus, groups)?;
    }
    let blocks = (plan.wanted(run), 1);
    let state = decode_blocks::<true>(extension, state, tables, blocks, groups)?;
    end_of_run(run, &state.bits, state.predictors)
}

/// Return the position behind `run`, or an error if the data was too short.
pub(super) fn end_of_run(run: &Run, bits: &BitReader<'_>, predictors: [i32; 3]) -> Result<Cursor> {
    if bits.overrun() > 0 {
        return Err(Status::CorruptData);
    }
    let (position, bit) = bits.tell();
    Ok(Cursor {
        position,
        bit,
        predictors,
        mcu: run.start.mcu + run.skip + run.count,
    })
}

/// What decoding a block takes over from the blocks before.
#[derive(Clone, Copy)]
struct State<'d> {
    bits: BitReader<'d>,
    predictors: [i32; 3],
}

/// Decode `blocks` several times, to `groups` if `STORE`, and return the state behind them.
fn decode_blocks<'d, const STORE: bool>(
    extension: Extension,
    state: State<'d>,
    tables: &[Tables; 3],
    blocks: (&[Block], u32),
    groups: &mut [Group],
) -> Result<State<'d>> {
    match extension {
        Extension::Scalar | Extension::Neon => {
            decode_anywhere::<STORE>(state, tables, blocks, groups)
        }
        // SAFETY: an extension is only named on a machine that has it (`Extension::available`), and both include BMI.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe {
            decode_bmi::<STORE>(state, tables, blocks, groups)
        },
        #[cfg(not(target_arch = "x86_64"))]
        _ => decode_anywhere::<STORE>(state, tables, blocks, groups),
    }
}

/// The same code compiled with the shift and count instructions of BMI, which replace three instructions each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
fn decode_bmi<'d, const STORE: bool>(
    state: State<'d>,
    tables: &[Tables; 3],
    blocks: (&[Block], u32),
    groups: &mut [Group],
) -> Result<State<'d>> {
    decode_anywhere::<STORE>(state, tables, blocks, groups)
}

#[inline(always)]
fn decode_anywhere<'d, const STORE: bool>(
    state: State<'d>,
    tables: &[Tables; 3],
    (blocks, times): (&[Block], u32),
    groups: &mut [Group],
) -> Result<State<'d>> {
    let coefficients = groups.as_flattened_mut();
    let State {
        mut bits,
        mut predictors,
    } = state;
    let mut lent = bits.lend();
    for _ in 0..times {
        for block in blocks {
            // As many coefficients as a `u8` counts, so that storing needs no bounds checks. Behind the last group that is read is another.
            let places = coefficients
                .get_mut(block.first as usize..)
                .and_then(|rest| rest.first_chunk_mut())
                .ok_or(Status::Internal)?;
            let tables = &tables[usize::from(block.tables)];
            let predictor = &mut predictors[usize::from(block.component)];
            lent = decode_block::<STORE>(&mut bits, lent, tables, predictor, places)?;
        }
    }
    bits.take_back(lent);
    Ok(State { bits, predictors })
}

/// Decode a block to `places` if `STORE`. `window` and `count` are lent by `bits`, and returned as they are behind the block.
#[inline(always)]
fn decode_block<const STORE: bool>(
    bits: &mut BitReader<'_>,
    (mut window, mut count): (u64, u32),
    Tables { dc, ac }: &Tables,
    predictor: &mut i32,
    places: &mut [i16; 256],
) -> Result<(u64, u32)> {
    let mut store = |k, value| {
        if STORE {
            places[place(k)] = value;
        }
    };
    (window, count) = bits.refilled(window, count);
    let (length, difference) = dc.difference(window)?;
    (window, count) = (window << (length & 63), count - length);
    *predictor = predictor.wrapping_add(difference);
    store(0, *predictor as i16);
    if length > DC_BITS {
        (window, count) = bits.refilled(window, count);
    }
    let entries: &[u64; 1 << WINDOW] = &ac.entries;
    let mut k = 0;
    let mut look_ups = FIRST_LOOK_UPS;
    loop {
        macro_rules! look_up {
            () => {
                let entry = entries[(window >> (64 - WINDOW)) as usize];
                let advance = advance_of(entry);
                let end = k + advance;
                // A separate branch first, so that the branch predictor distinguishes the two exits.
                if advance == NOT_HELD {
                    (window, count) = bits.refilled(window, count);
                    let value;
                    (window, count, k, value) = long_symbol(ac, entry, window, count, k)?;
                    store(k, value);
                    if k >= 63 {
                        return Ok((window, count));
                    }
                    break;
                }
                store_pair(entry, k, &mut store);
                if end >= 63 {
                    let used = last_bits(entry, k)?;
                    return Ok((window << used, count - used));
                }
                (window, count) = (window << (entry & 63), count - (entry as u32 & 63));
                k = end;
            };
        }
        if look_ups == FIRST_LOOK_UPS {
            look_ups = LOOK_UPS;
            for _ in 0..FIRST_LOOK_UPS {
                look_up!();
            }
        } else {
            for _ in 0..LOOK_UPS {
                look_up!();
            }
        }
        (window, count) = bits.refilled(window, count);
    }
}

/// Return the place of the k-th coefficient of a block in file order. The `u8` makes bounds checks unnecessary.
#[inline(always)]
pub(super) fn place(k: u32) -> usize {
    usize::from(PLACE[usize::from(k as u8)])
}

/// The largest place.
pub(super) const FARTHEST: usize = 7 * 8 * GROUP + 7;
const _: () = {
    let mut k = 0;
    while k < 256 {
        assert!(PLACES[k] as usize <= FARTHEST);
        k += 1;
    }
};

/// Return the advance over all symbols of an entry.
#[inline(always)]
pub(super) fn advance_of(entry: u64) -> u32 {
    (entry >> 8) as u32 & 0xFF
}

/// Return the advance over the first symbol of an entry.
#[inline(always)]
fn first_advance(entry: u64) -> u32 {
    (entry >> 24) as u32 & 0xFF
}

/// Return the bits that an entry takes that reaches the end of its block, found at place `k`.
#[inline(always)]
pub(super) fn last_bits(entry: u64, k: u32) -> Result<u32> {
    if (k + advance_of(entry)) & OUTSIDE == 0 {
        Ok(entry as u32 & 63)
    } else if k + first_advance(entry) == 63 {
        // The block is full: the second symbol is a part of the next block.
        Ok((entry >> 16) as u32 & 63)
    } else {
        Err(Status::CorruptData)
    }
}

/// Store the coefficients of an entry found at place `k`, the first one last.
#[inline(always)]
pub(super) fn store_pair(entry: u64, k: u32, mut store: impl FnMut(u32, i16)) {
    store(k + advance_of(entry), (entry >> 48) as i16);
    store(k + first_advance(entry), (entry >> 32) as i16);
}

/// Take a symbol that does not fit in the window of `entry`, behind place `k`, from a stream that was just refilled: the symbol takes up
/// to 31 bits. Return the rest of the stream, the place (or one from [`END_OF_BLOCK`] on) and the coefficient.
#[inline(always)]
pub(super) fn long_symbol(
    table: &AcTable,
    entry: u64,
    window: u64,
    count: u32,
    k: u32,
) -> Result<(u64, u32, u32, i16)> {
    let length = entry as u32 & 63;
    if length == 0 {
        return longer_code(table, window, count, k);
    }
    let size = 63 - ((entry >> 16) as u32 & 63);
    let place = k + first_advance(entry);
    if place > 63 {
        return Err(Status::CorruptData);
    }
    let used = length + size;
    Ok((
        window << used,
        count - used,
        place,
        held_back(entry, window),
    ))
}

/// As [`long_symbol`], for a code that is longer than the window.
#[inline(never)]
fn longer_code(table: &AcTable, window: u64, count: u32, k: u32) -> Result<(u64, u32, u32, i16)> {
    let (length, symbol) = table.codes.find((window >> 48) as u32)?;
    let size = u32::from(symbol & 15);
    let used = length + size;
    let place = match advance(symbol) {
        END_OF_BLOCK => END_OF_BLOCK + k,
        advance if k + advance <= 63 => k + advance,
        _ => return Err(Status::CorruptData),
    };
    let value = magnitude(window, length, size) as i16;
    Ok((window << used, count - used, place, value))
}
