//! Huffman decoding of runs of MCUs (T.81 F.2.2) into coefficients.
//!
//! Decoding one stream is a dependency chain: each look-up needs the length that the look-up before it found. If an image has
//! several places to start from (restart markers, an index), two runs are decoded at once, in alternating steps, so that the
//! chains overlap. Each run has its own state, so either may end a block first.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::bits::BitReader;
use super::header::{Class, ZIGZAG};
use super::huffman::{resolve, DcTable, PairTable, END_OF_BLOCK, NOT_HELD, WINDOW};
use crate::cpu::Extension;
use crate::error::{Result, Status};

/// Blocks that are stored side by side: row r of block b is at `r * 32 + b * 8`, so that one row of all four is one vector.
pub const GROUP: usize = 4;

/// Coefficients of four blocks, not yet dequantised.
pub type Group = [i16; 64 * GROUP];

/// Look-ups per refill (56 bits).
const LOOK_UPS: u32 = 56 / WINDOW;

/// Position in a [`Group`] (of its first block) of the k-th coefficient in file order, for k below 64. Indexed by a `u8`, so
/// without a bounds check. From 128 on it repeats (see [`PairTable`]). A k that leaves the block gives the last place, where the
/// first symbol of a pair is stored after the second.
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
    pub ac: PairTable,
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

/// The data, tables and output that all runs of an MCU row share.
pub struct Row<'r> {
    data: &'r [u8],
    blocks: [Block<'r>; MAX_BLOCKS],
    count: usize,
    /// The groups, reached through one pointer: two lanes write to different blocks of one group in turn.
    groups: *mut Group,
    last_group: usize,
    borrowed: PhantomData<&'r mut [Group]>,
}

/// Blocks in an MCU, at most (T.81 B.2.3).
pub const MAX_BLOCKS: usize = 10;

/// A [`Slot`] with its tables at hand.
#[derive(Clone, Copy)]
struct Block<'r> {
    tables: &'r Tables,
    slot: Slot,
}

impl<'r> Row<'r> {
    /// Make a row of the file `data`, whose MCUs consist of `slots`, at most [`MAX_BLOCKS`]. Coefficients are stored in `groups`, at
    /// least one, which must be all zero; the last group receives skipped blocks.
    pub fn new(
        data: &'r [u8],
        slots: &[Slot],
        tables: &'r [Tables; 3],
        groups: &'r mut [Group],
    ) -> Self {
        assert!(slots.len() <= MAX_BLOCKS && !groups.is_empty());
        let mut blocks = [Block {
            tables: &tables[0],
            slot: Slot::default(),
        }; MAX_BLOCKS];
        for (block, slot) in blocks.iter_mut().zip(slots) {
            *block = Block {
                tables: &tables[slot.tables],
                slot: *slot,
            };
        }
        Row {
            data,
            blocks,
            count: slots.len(),
            last_group: groups.len() - 1,
            groups: groups.as_mut_ptr(),
            borrowed: PhantomData,
        }
    }
}

/// A run being decoded. The fields of `hot` are copied to registers while look-ups succeed one after the other.
struct Lane<'r> {
    bits: BitReader<'r>,
    hot: Hot,
    predictors: [i32; 3],
    slot: usize,
    /// Window column of the current MCU; negative while MCUs are skipped.
    column: i64,
    end: i64,
}

/// The state that every look-up reads or changes.
#[derive(Clone, Copy)]
struct Hot {
    /// The next bits, left-aligned, and how many of them are valid, borrowed from the lane's reader.
    window: u64,
    count: u32,
    /// Place in the block, in file order.
    k: u32,
    /// Entries of the current block's AC table.
    entries: *const u64,
    /// The current block's first coefficient.
    block: *mut i16,
}

#[inline(always)]
fn index(bits: &BitReader<'_>) -> usize {
    (bits.window() >> (64 - WINDOW)) as usize
}

/// Refill, and decode a DC difference. At least 25 bits are left.
#[inline(always)]
fn dc_difference(bits: &mut BitReader<'_>, table: &DcTable) -> Result<i32> {
    bits.refill();
    let (length, value) = table.difference(bits.window())?;
    bits.skip(length);
    Ok(value)
}

/// Return the advance over all symbols of an entry.
#[inline(always)]
fn advance_of(entry: u64) -> u32 {
    (entry >> 8) as u32 & 0xFF
}

/// Store the values of an entry at place `k`.
#[inline(always)]
fn store_pair(entry: u64, k: u32, mut store: impl FnMut(u32, i16)) {
    store(k + advance_of(entry), (entry >> 32) as i16);
    store(k + ((entry >> 48) as u32 & 0xFF), (entry >> 16) as i16);
}

/// Decode a symbol that does not fit in the window; return true if it ends the block. As many bits as after a refill are left.
#[inline(always)]
fn long_symbol(
    bits: &mut BitReader<'_>,
    entry: u64,
    table: &PairTable,
    k: &mut u32,
    mut store: impl FnMut(u32, i16),
) -> Result<bool> {
    bits.refill();
    let (length, advance, value) = resolve(
        &table.single,
        entry as u32 & 0xFFFF_00FF,
        bits.window(),
        Class::Ac,
    )?;
    bits.skip(length);
    bits.refill();
    *k += u32::from(advance);
    if *k <= 63 {
        store(*k, value as i16);
        return Ok(*k == 63);
    }
    if advance == END_OF_BLOCK {
        Ok(true)
    } else {
        Err(Status::CorruptData)
    }
}

/// Handle an entry that reaches the end of the block; return true, or an error, if the block has ended.
#[inline(always)]
fn finish_entry(
    bits: &mut BitReader<'_>,
    entry: u64,
    k: &mut u32,
    store: impl FnMut(u32, i16),
) -> Result<bool> {
    store_pair(entry, *k, store);
    if *k + ((entry >> 48) as u32 & 0xFF) == 63 {
        bits.skip((entry >> 56) as u32); // the block is full: the second symbol belongs to the next block
        return Ok(true);
    }
    bits.skip(entry as u32 & 0xFF);
    // In the block, or beyond it because of an end-of-block symbol inside.
    let last = *k + advance_of(entry);
    if last == 63 || (128..192).contains(&last) {
        Ok(true)
    } else {
        Err(Status::CorruptData)
    }
}

/// Performs the look-ups of lane `$lane`, whose hot state is in the local `$hot`. `$over` is evaluated at the end of its run, after
/// the lane has been updated.
macro_rules! look_up {
    ($lane:ident, $hot:ident, $row:ident, $over:expr) => {
        // SAFETY: an index of WINDOW bits fits the table, which `row` keeps alive.
        let entry = unsafe { *$hot.entries.add(($hot.window >> (64 - WINDOW)) as usize) };
        let advance = advance_of(entry);
        let last = $hot.k + advance;
        // A separate branch first, so that the branch predictor distinguishes the two exits of the loop.
        if advance == u32::from(NOT_HELD) {
            $lane.hot = $hot;
            if !$lane.turn::<BMI, false>(entry, $row)? {
                $over;
            }
            $hot = $lane.hot;
        } else if last < 63 {
            // SAFETY: `block` is the start of a block in a group that `row` holds (`begin_block`).
            store_pair(entry, $hot.k, |k, value| unsafe {
                *place($hot.block, k) = value
            });
            $hot.window <<= entry & 63;
            $hot.count -= entry as u32 & 63;
            $hot.k = last;
        } else {
            $lane.hot = $hot;
            if !$lane.turn::<BMI, true>(entry, $row)? {
                $over;
            }
            $hot = $lane.hot;
        }
    };
}

/// Makes at least 56 bits of lane `$lane` valid.
macro_rules! refill {
    ($lane:ident, $hot:ident) => {
        ($hot.window, $hot.count) = $lane.bits.refilled($hot.window, $hot.count);
    };
}

/// Return a pointer to the coefficient at place `k` in file order.
///
/// # Safety
/// `block` is a block of a [`Group`]: its first coefficient is at 0, 8, 16 or 24.
#[inline(always)]
unsafe fn place(block: *mut i16, k: u32) -> *mut i16 {
    // SAFETY: every place is inside the group from each of its blocks on (checked below at compile time).
    unsafe { block.add(usize::from(PLACE[usize::from(k as u8)])) }
}

const _: () = {
    let mut k = 0;
    while k < 256 {
        assert!(PLACES[k] as usize + 8 * (GROUP - 1) < 64 * GROUP);
        k += 1;
    }
};

impl<'r> Lane<'r> {
    #[inline(never)]
    fn open(run: &Run, row: &mut Row<'r>) -> Result<Self> {
        let column = i64::from(run.column);
        let mut lane = Lane {
            bits: BitReader::new(row.data, run.start.position, run.start.bit),
            hot: Hot {
                window: 0,
                count: 0,
                k: 0,
                entries: std::ptr::null(),
                block: std::ptr::null_mut(),
            },
            predictors: run.start.predictors,
            slot: 0,
            column: column - i64::from(run.skip),
            end: column + i64::from(run.count),
        };
        lane.begin_block(lane.bits, row)?;
        Ok(lane)
    }

    /// Start the block of the current slot: find its place and tables, and decode its DC coefficient.
    #[inline(always)]
    fn begin_block(&mut self, mut bits: BitReader<'r>, row: &mut Row<'r>) -> Result<()> {
        let Block { tables, slot } = &row.blocks[self.slot];
        let (group, lane) = if self.column < 0 {
            (row.last_group, 0)
        } else {
            let x = self.column as usize * slot.h + slot.x;
            let group = slot.first_group + x / GROUP;
            (group.min(row.last_group), x % GROUP)
        };
        // SAFETY: the group is among those that `row` borrows, and one of its four blocks begins there.
        let block = unsafe { row.groups.add(group).cast::<i16>().add(lane * 8) };
        let predictor = &mut self.predictors[slot.component];
        *predictor = predictor.wrapping_add(dc_difference(&mut bits, &tables.dc)?);
        // SAFETY: as above; no reference to the groups exists while `row` does.
        unsafe { *block = *predictor as i16 };
        bits.refill();
        let (window, count) = bits.lend();
        self.bits = bits;
        self.hot = Hot {
            window,
            count,
            k: 0,
            entries: tables.ac.entries.as_ptr(),
            block,
        };
        Ok(())
    }

    /// Handle an entry by [`finish_entry`], and start the next block if this one has ended; return false at the end of the run.
    /// As many bits as after a refill are left.
    #[inline(always)]
    fn turn<const BMI: bool, const HELD: bool>(
        &mut self,
        entry: u64,
        row: &mut Row<'r>,
    ) -> Result<bool> {
        #[cfg(target_arch = "x86_64")]
        if BMI {
            // SAFETY: `BMI` is only set where the caller was compiled for it.
            return unsafe { self.turn_bmi::<HELD>(entry, row) };
        }
        self.turn_plain::<HELD>(entry, row)
    }

    /// As `turn`, not inlined, so that the loops keep their registers.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "bmi1,bmi2,lzcnt")]
    fn turn_bmi<const HELD: bool>(&mut self, entry: u64, row: &mut Row<'r>) -> Result<bool> {
        self.turn_anywhere::<HELD>(entry, row)
    }

    #[inline(never)]
    fn turn_plain<const HELD: bool>(&mut self, entry: u64, row: &mut Row<'r>) -> Result<bool> {
        self.turn_anywhere::<HELD>(entry, row)
    }

    #[inline(always)]
    fn turn_anywhere<const HELD: bool>(&mut self, entry: u64, row: &mut Row<'r>) -> Result<bool> {
        let table = &row.blocks[self.slot].tables.ac;
        let Hot {
            window,
            count,
            block,
            mut k,
            ..
        } = self.hot;
        let mut bits = self.bits; // a copy stays in registers
        bits.take_back((window, count));
        // SAFETY: as in `look_up`.
        let store = |k, value| unsafe { *place(block, k) = value };
        let ended = if HELD {
            finish_entry(&mut bits, entry, &mut k, store)?
        } else {
            long_symbol(&mut bits, entry, table, &mut k, store)?
        };
        if !ended {
            self.bits = bits;
            (self.hot.window, self.hot.count) = bits.lend();
            self.hot.k = k;
            return Ok(true);
        }
        self.slot += 1;
        if self.slot == row.count {
            self.slot = 0;
            self.column += 1;
            if self.column == self.end {
                self.bits = bits;
                return Ok(false);
            }
        }
        self.begin_block(bits, row)?;
        Ok(true)
    }

    /// End the run: return the cursor after it if `wanted`, or an error if the data was too short.
    #[inline(always)]
    fn close(&self, run: &Run, wanted: bool) -> Result<Option<Cursor>> {
        if self.bits.overrun() > 0 {
            return Err(Status::CorruptData);
        }
        if !wanted {
            return Ok(None);
        }
        let (position, bit) = self.bits.tell();
        let mcu = run.start.mcu + run.skip + run.count;
        Ok(Some(Cursor {
            position,
            bit,
            predictors: self.predictors,
            mcu,
        }))
    }

    /// Decode the rest of the run.
    #[inline(always)]
    fn finish<const BMI: bool>(
        mut self,
        run: &Run,
        row: &mut Row<'r>,
        wanted: bool,
    ) -> Result<Option<Cursor>> {
        let mut hot = self.hot;
        loop {
            refill!(self, hot);
            for _ in 0..LOOK_UPS {
                look_up!(self, hot, row, return self.close(run, wanted));
            }
        }
    }
}

/// Decode all `runs`, none of which is empty, two at a time; return the cursor after the last one.
#[inline(always)]
fn decode_runs_anywhere<const BMI: bool>(
    row: &mut Row<'_>,
    runs: &[Run],
) -> Result<Option<Cursor>> {
    let Some(last) = runs.last() else {
        return Ok(None);
    };
    let is_last = |run: &Run| std::ptr::eq(run, last);
    let mut runs = runs.iter();
    let mut reached = None;
    let Some(mut run_a) = runs.next() else {
        return Ok(None);
    };
    let mut a = Lane::open(run_a, row)?;
    let Some(mut run_b) = runs.next() else {
        return a.finish::<BMI>(run_a, row, true);
    };
    let mut b = Lane::open(run_b, row)?;
    let (mut hot_a, mut hot_b) = (a.hot, b.hot);
    let (rest, run) = 'both: loop {
        refill!(a, hot_a);
        refill!(b, hot_b);
        for _ in 0..LOOK_UPS {
            look_up!(a, hot_a, row, {
                reached = a.close(run_a, is_last(run_a))?.or(reached);
                let Some(next) = runs.next() else {
                    b.hot = hot_b;
                    break 'both (b, run_b);
                };
                (a, run_a) = (Lane::open(next, row)?, next);
            });
            look_up!(b, hot_b, row, {
                reached = b.close(run_b, is_last(run_b))?.or(reached);
                let Some(next) = runs.next() else {
                    a.hot = hot_a;
                    break 'both (a, run_a);
                };
                (b, run_b) = (Lane::open(next, row)?, next);
            });
        }
    };
    Ok(rest.finish::<BMI>(run, row, is_last(run))?.or(reached))
}

/// Skip `count` MCUs, updating the DC predictors.
#[inline(always)]
fn skip_mcus_anywhere(cursor: &mut Cursor, row: &Row<'_>, count: u32) -> Result<()> {
    let mut bits = BitReader::new(row.data, cursor.position, cursor.bit);
    for _ in 0..count {
        for Block { tables, slot } in &row.blocks[..row.count] {
            let predictor = &mut cursor.predictors[slot.component];
            *predictor = predictor.wrapping_add(dc_difference(&mut bits, &tables.dc)?);
            let mut k = 0;
            'block: loop {
                bits.refill();
                for _ in 0..LOOK_UPS {
                    let entry = tables.ac.entries[index(&bits)];
                    let advance = advance_of(entry);
                    if advance == u32::from(NOT_HELD) {
                        if long_symbol(&mut bits, entry, &tables.ac, &mut k, |_, _| ())? {
                            break 'block;
                        }
                    } else if k + advance < 63 {
                        bits.skip(entry as u32 & 0xFF);
                        k += advance;
                    } else if finish_entry(&mut bits, entry, &mut k, |_, _| ())? {
                        break 'block;
                    }
                }
            }
        }
    }
    if bits.overrun() > 0 {
        return Err(Status::CorruptData);
    }
    (cursor.position, cursor.bit) = bits.tell();
    cursor.mcu += count;
    Ok(())
}

/// The same code compiled with the shift and count instructions of BMI, which replace three instructions each.
#[cfg(target_arch = "x86_64")]
mod bmi {
    use super::*;

    #[target_feature(enable = "bmi1,bmi2,lzcnt")]
    pub fn decode_runs(row: &mut Row<'_>, runs: &[Run]) -> Result<Option<Cursor>> {
        decode_runs_anywhere::<true>(row, runs)
    }

    #[target_feature(enable = "bmi1,bmi2,lzcnt")]
    pub fn skip_mcus(cursor: &mut Cursor, row: &Row<'_>, count: u32) -> Result<()> {
        skip_mcus_anywhere(cursor, row, count)
    }
}

/// Decode all `runs`, none of which is empty; return the cursor after the last one.
pub fn decode_runs(
    extension: Extension,
    row: &mut Row<'_>,
    runs: &[Run],
) -> Result<Option<Cursor>> {
    match extension {
        Extension::Scalar | Extension::Neon => decode_runs_anywhere::<false>(row, runs),
        // SAFETY: an extension is only named on a machine that has it (`Extension::available`), and both include BMI.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe { bmi::decode_runs(row, runs) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => decode_runs_anywhere::<false>(row, runs),
    }
}

/// Skip `count` MCUs, updating the DC predictors.
pub fn skip_mcus(
    extension: Extension,
    cursor: &mut Cursor,
    row: &Row<'_>,
    count: u32,
) -> Result<()> {
    match extension {
        Extension::Scalar | Extension::Neon => skip_mcus_anywhere(cursor, row, count),
        // SAFETY: as in `decode_runs`.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe { bmi::skip_mcus(cursor, row, count) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => skip_mcus_anywhere(cursor, row, count),
    }
}
