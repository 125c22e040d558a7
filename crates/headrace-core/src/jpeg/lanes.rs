//! Decoding of several runs of MCUs, two at a time.
//!
//! If an image has several places to start from in a row (restart markers, an index), two runs are decoded at once, in alternating
//! steps, so that their chains of look-ups overlap. Each run has its own state, so either may end a block first. A single run is
//! faster in [`super::entropy::decode_run`].
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::bits::BitReader;
use super::entropy::{
    advance_of, end_of_run, last_bits, long_symbol, place, store_pair, Block, Cursor, Group, Plan,
    Run, Tables, FARTHEST, LOOK_UPS,
};
use super::huffman::{AcTable, NOT_HELD, WINDOW};
use crate::cpu::Extension;
use crate::error::{Result, Status};

/// The data, tables and output that all runs of an MCU row share.
struct Row<'r> {
    data: &'r [u8],
    tables: &'r [Tables; 3],
    plan: &'r Plan,
    /// The coefficients, reached through one pointer: two lanes write to different blocks of one group in turn.
    coefficients: *mut i16,
    count: usize,
    borrowed: PhantomData<&'r mut [Group]>,
}

/// A run being decoded. The fields of `hot` are copied to registers while look-ups succeed one after the other.
struct Lane<'r> {
    bits: BitReader<'r>,
    hot: Hot<'r>,
    predictors: [i32; 3],
    table: &'r AcTable,
    /// The blocks behind the current one, up to the end of the MCU (if it is skipped) or of the run.
    ahead: std::slice::Iter<'r, Block>,
    /// MCUs to skip after those.
    skip: u32,
    /// The blocks to store after those.
    wanted: &'r [Block],
}

/// The state that every look-up reads or changes.
#[derive(Clone, Copy)]
struct Hot<'r> {
    /// The next bits, left-aligned, and how many of them are valid, borrowed from the lane's reader.
    window: u64,
    count: u32,
    /// Place in the block, in file order.
    k: u32,
    /// Entries of the current block's AC table.
    entries: &'r [u64; 1 << WINDOW],
    /// The current block's first coefficient.
    block: *mut i16,
}

/// Performs a look-up of lane `$lane`, whose hot state is in the local `$hot`. `$over` is evaluated at the end of its run, after the
/// lane has been updated.
macro_rules! look_up {
    ($lane:ident, $hot:ident, $row:ident, $over:expr) => {
        let entry = $hot.entries[($hot.window >> (64 - WINDOW)) as usize];
        let advance = advance_of(entry);
        let last = $hot.k + advance;
        // A separate branch first, so that the branch predictor distinguishes the two exits of the loop.
        if advance == NOT_HELD {
            $lane.hot = $hot;
            if !$lane.turn::<BMI, false>(entry, $row)? {
                $over;
            }
            $hot = $lane.hot;
        } else if last < 63 {
            // SAFETY: all places of `block` may be written (`begin_block`).
            store_pair(entry, $hot.k, |k, value| unsafe {
                *$hot.block.add(place(k)) = value
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

impl<'r> Lane<'r> {
    #[inline(never)]
    fn open(run: &Run, row: &mut Row<'r>) -> Result<Self> {
        let plan = row.plan;
        let mut lane = Lane {
            bits: BitReader::new(row.data, run.start.position, run.start.bit),
            hot: Hot {
                window: 0,
                count: 0,
                k: 0,
                entries: &row.tables[0].ac.entries,
                block: std::ptr::null_mut(),
            },
            predictors: run.start.predictors,
            table: &row.tables[0].ac,
            ahead: [].iter(),
            skip: run.skip,
            wanted: plan.wanted(run),
        };
        if !lane.begin_block(lane.bits, row)? {
            return Err(Status::Internal); // no run is empty
        }
        Ok(lane)
    }

    /// Return the next block of the run.
    #[inline(always)]
    fn next_block(&mut self, row: &Row<'r>) -> Option<&'r Block> {
        if let Some(block) = self.ahead.next() {
            return Some(block);
        }
        self.ahead = if self.skip > 0 {
            self.skip -= 1;
            row.plan.skipped.iter()
        } else {
            std::mem::take(&mut self.wanted).iter()
        };
        self.ahead.next()
    }

    /// Start the next block: find its place and tables, and decode its DC coefficient. Return false at the end of the run.
    #[inline(always)]
    fn begin_block(&mut self, mut bits: BitReader<'r>, row: &mut Row<'r>) -> Result<bool> {
        let Some(next) = self.next_block(row) else {
            self.bits = bits;
            return Ok(false);
        };
        let Tables { dc, ac } = &row.tables[usize::from(next.tables)];
        let first = next.first as usize;
        if first + FARTHEST >= row.count {
            return Err(Status::Internal);
        }
        // SAFETY: all places of the block are among the coefficients that `row` borrows.
        let block = unsafe { row.coefficients.add(first) };
        bits.refill();
        let (length, difference) = dc.difference(bits.window())?;
        bits.skip(length);
        let predictor = &mut self.predictors[usize::from(next.component)];
        *predictor = predictor.wrapping_add(difference);
        // SAFETY: as above; no reference to the groups exists while `row` does.
        unsafe { *block = *predictor as i16 };
        bits.refill();
        let (window, count) = bits.lend();
        self.bits = bits;
        self.table = ac;
        self.hot = Hot {
            window,
            count,
            k: 0,
            entries: &ac.entries,
            block,
        };
        Ok(true)
    }

    /// Handle an entry that ends its block (`HELD`) or whose symbol does not fit in the window, and start the next block if this one
    /// has ended; return false at the end of the run. As many bits as after a refill are left.
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
        let Hot {
            window,
            count,
            block,
            k,
            ..
        } = self.hot;
        // SAFETY: as in `look_up`.
        let store = |k, value| unsafe { *block.add(place(k)) = value };
        let mut bits = self.bits; // a copy stays in registers
        if HELD {
            store_pair(entry, k, store);
            bits.take_back((window, count));
            bits.skip(last_bits(entry, k)?);
            return self.begin_block(bits, row);
        }
        let (window, count) = bits.refilled(window, count);
        let (window, count, k, value) = long_symbol(self.table, entry, window, count, k)?;
        store(k, value);
        bits.take_back((window, count));
        if k >= 63 {
            return self.begin_block(bits, row);
        }
        bits.refill();
        self.bits = bits;
        (self.hot.window, self.hot.count) = bits.lend();
        self.hot.k = k;
        Ok(true)
    }

    /// End the run: return the cursor behind it.
    #[inline(always)]
    fn close(&self, run: &Run) -> Result<Cursor> {
        end_of_run(run, &self.bits, self.predictors)
    }

    /// Decode the rest of the run.
    #[inline(always)]
    fn finish<const BMI: bool>(mut self, run: &Run, row: &mut Row<'r>) -> Result<Cursor> {
        let mut hot = self.hot;
        loop {
            refill!(self, hot);
            for _ in 0..LOOK_UPS {
                look_up!(self, hot, row, return self.close(run));
            }
        }
    }
}

/// Decode all `runs`, none of which is empty, two at a time; return the cursor behind the last one.
#[inline(always)]
fn decode_runs_anywhere<const BMI: bool>(
    row: &mut Row<'_>,
    runs: &[Run],
) -> Result<Option<Cursor>> {
    let mut reached = None;
    let mut runs = runs.iter();
    let Some(mut run_a) = runs.next() else {
        return Ok(None);
    };
    let mut a = Lane::open(run_a, row)?;
    let Some(mut run_b) = runs.next() else {
        return a.finish::<BMI>(run_a, row).map(Some);
    };
    let mut b = Lane::open(run_b, row)?;
    let (mut hot_a, mut hot_b) = (a.hot, b.hot);
    let (rest, run) = 'both: loop {
        refill!(a, hot_a);
        refill!(b, hot_b);
        for _ in 0..LOOK_UPS {
            look_up!(a, hot_a, row, {
                reached = farther(reached, a.close(run_a)?);
                let Some(next) = runs.next() else {
                    b.hot = hot_b;
                    break 'both (b, run_b);
                };
                (a, run_a) = (Lane::open(next, row)?, next);
            });
            look_up!(b, hot_b, row, {
                reached = farther(reached, b.close(run_b)?);
                let Some(next) = runs.next() else {
                    a.hot = hot_a;
                    break 'both (a, run_a);
                };
                (b, run_b) = (Lane::open(next, row)?, next);
            });
        }
    };
    Ok(farther(reached, rest.finish::<BMI>(run, row)?))
}

/// Return the cursor that is farther in the image.
fn farther(reached: Option<Cursor>, cursor: Cursor) -> Option<Cursor> {
    reached
        .filter(|reached| reached.mcu > cursor.mcu)
        .or(Some(cursor))
}

/// The same code compiled with the shift and count instructions of BMI, which replace three instructions each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
fn decode_runs_bmi(row: &mut Row<'_>, runs: &[Run]) -> Result<Option<Cursor>> {
    decode_runs_anywhere::<true>(row, runs)
}

/// Decode all `runs`, none of which is empty, to `groups`, which must be all zero where their blocks are; return the cursor behind
/// the last one.
pub fn decode_runs(
    extension: Extension,
    data: &[u8],
    tables: &[Tables; 3],
    plan: &Plan,
    groups: &mut [Group],
    runs: &[Run],
) -> Result<Option<Cursor>> {
    let coefficients = groups.as_flattened_mut();
    let mut row = Row {
        data,
        tables,
        plan,
        count: coefficients.len(),
        coefficients: coefficients.as_mut_ptr(),
        borrowed: PhantomData,
    };
    match extension {
        Extension::Scalar | Extension::Neon => decode_runs_anywhere::<false>(&mut row, runs),
        // SAFETY: an extension is only named on a machine that has it (`Extension::available`), and both include BMI.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 | Extension::Avx512 => unsafe { decode_runs_bmi(&mut row, runs) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => decode_runs_anywhere::<false>(&mut row, runs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jpeg::entropy::{decode_run, Slot, GROUP};
    use crate::jpeg::header::{HuffmanSpec, ZIGZAG};
    use crate::jpeg::huffman::{advance, magnitude, Builder, END_OF_BLOCK};

    const COLUMNS: usize = 5;
    /// Two blocks of one component and one of another.
    const SLOTS: [Slot; 3] = [slot(0, 0, 2, 0), slot(0, 0, 2, 1), slot(1, 3, 1, 0)];
    const GROUPS: usize = 5 + 1;

    const fn slot(component: usize, first_group: usize, h: usize, x: usize) -> Slot {
        Slot {
            tables: component,
            component,
            first_group,
            h,
            x,
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        /// Return counts of codes, which leave nothing but the code of all ones (unless they are 256), and as many symbols.
        fn table(&mut self, symbol: impl Fn(&mut Self, usize) -> u8) -> ([u8; 16], Vec<u8>) {
            let (mut counts, mut free, mut total) = ([0; 16], 1u64, 0);
            for (i, count) in counts.iter_mut().enumerate() {
                free *= 2;
                let most = (free - 1).min(256 - total);
                let taken = if i == 15 { most } else { self.below(most + 1) };
                *count = taken.min(255) as u8;
                free -= u64::from(*count);
                total += u64::from(*count);
            }
            let symbols = (0..total as usize).map(|i| symbol(self, i)).collect();
            (counts, symbols)
        }

        fn tables(&mut self) -> Tables {
            let mut tables = Tables::default();
            let (counts, symbols) = self.table(|random, _| random.below(16) as u8);
            let dc = HuffmanSpec {
                counts: &counts,
                symbols: &symbols,
            };
            tables.dc.build(&dc).expect("a valid table");
            let (end_at, longest_run) = (self.below(4) as usize, 1 + self.below(6));
            let (counts, symbols) = self.table(|random, i| match random.below(40) {
                _ if i == end_at => 0,
                0 => 0xF0,
                1 => 0x30,
                2 => random.below(256) as u8,
                _ => (random.below(longest_run) << 4 | (1 + random.below(10))) as u8,
            });
            let ac = HuffmanSpec {
                counts: &counts,
                symbols: &symbols,
            };
            let built = tables.ac.build(&ac, &mut Builder::default());
            built.expect("a valid table");
            tables
        }

        /// Return entropy-coded data with stuffed bytes, and a marker behind them.
        fn data(&mut self) -> Vec<u8> {
            let mut data = Vec::new();
            for _ in 0..200 + self.below(1500) {
                match self.below(30) {
                    0 => data.extend([0xFF, 0]),
                    _ => data.push(self.below(255) as u8),
                }
            }
            data.extend([0xFF, 0xD9]);
            data
        }
    }

    /// Decode a block symbol by symbol (T.81 F.2.2), in the order of rows.
    fn block(bits: &mut BitReader<'_>, tables: &Tables, predictor: &mut i32) -> Result<[i16; 64]> {
        let mut block = [0; 64];
        bits.refill();
        let (length, difference) = tables.dc.difference(bits.window())?;
        bits.skip(length);
        *predictor += difference;
        block[0] = *predictor as i16;
        let mut k = 0;
        while k < 63 {
            bits.refill();
            let (length, symbol) = tables.ac.codes.find((bits.window() >> 48) as u32)?;
            let size = u32::from(symbol & 15);
            let value = magnitude(bits.window(), length, size) as i16;
            bits.skip(length + size);
            match advance(symbol) {
                END_OF_BLOCK => break,
                advance if k + advance > 63 => return Err(Status::CorruptData),
                advance => k += advance,
            }
            block[usize::from(ZIGZAG[k as usize])] = value;
        }
        Ok(block)
    }

    /// Decode a run block by block to `groups`.
    fn by_blocks(
        data: &[u8],
        tables: &[Tables; 3],
        groups: &mut [Group],
        run: &Run,
    ) -> Result<Cursor> {
        let mut bits = BitReader::new(data, run.start.position, run.start.bit);
        let mut predictors = run.start.predictors;
        for mcu in 0..run.skip + run.count {
            for slot in &SLOTS {
                let predictor = &mut predictors[slot.component];
                let found = block(&mut bits, &tables[slot.tables], predictor)?;
                let Some(column) = mcu.checked_sub(run.skip) else {
                    continue;
                };
                let x = (run.column + column) as usize * slot.h + slot.x;
                let group = &mut groups[slot.first_group + x / GROUP];
                for (i, value) in found.into_iter().enumerate() {
                    group[i / 8 * 8 * GROUP + x % GROUP * 8 + i % 8] = value;
                }
            }
        }
        end_of_run(run, &bits, predictors)
    }

    #[test]
    fn runs_decode_as_symbol_by_symbol() {
        let mut plan = Plan::default();
        plan.lay_out(&SLOTS, COLUMNS, GROUPS - 1);
        let (mut whole, mut damaged) = (0, 0);
        for seed in 0..4000 {
            let mut random = Random(seed);
            let tables = [random.tables(), random.tables(), Tables::default()];
            let data = random.data();
            let mut runs = Vec::new();
            let mut expected = [[0; 64 * GROUP]; GROUPS];
            let (mut start, mut column) = (Cursor::default(), 0);
            let mut reached = Ok(start);
            while column < COLUMNS as u32 && reached.is_ok() {
                let count = 1 + random.below(COLUMNS as u64 - u64::from(column)) as u32;
                let skip = random.below(3) as u32;
                let run = Run {
                    start,
                    skip,
                    column,
                    count,
                };
                reached = by_blocks(&data, &tables, &mut expected, &run);
                runs.push(run);
                (start, column) = (reached.unwrap_or(start), column + count);
            }
            for extension in Extension::available() {
                let mut groups = [[0; 64 * GROUP]; GROUPS];
                let mut one_by_one = Ok(start);
                for run in &runs {
                    let tables = &tables;
                    one_by_one = decode_run(extension, &data, tables, &plan, &mut groups, run);
                }
                assert_eq!(one_by_one, reached, "seed {seed}");
                let mut by_two = [[0; 64 * GROUP]; GROUPS];
                let two = decode_runs(extension, &data, &tables, &plan, &mut by_two, &runs);
                assert_eq!(two, reached.map(Some), "seed {seed}");
                if reached.is_ok() {
                    assert_eq!(groups, expected, "seed {seed}");
                    assert_eq!(by_two[..GROUPS - 1], expected[..GROUPS - 1], "seed {seed}");
                }
            }
            *(if reached.is_ok() {
                &mut whole
            } else {
                &mut damaged
            }) += 1;
        }
        assert!(whole > 400 && damaged > 400, "{whole} {damaged}");
    }
}
