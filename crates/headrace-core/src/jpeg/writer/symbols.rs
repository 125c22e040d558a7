//! The entropy-coded data of a scan as a stream of Huffman symbols with their extra bits. Inserting restart markers only reorders
//! these bits: coefficients are not decoded, and only the DC difference at the start of a segment changes.
//!
//! A symbol is a `u32`: bits 0–9 are the symbol with its output table (see [`table_base`]), bits 16–31 the extra bits.
#![allow(unsafe_code)]

use super::block::{self, size_and_extra, SYMBOLS_IN_BLOCK};
use crate::error::{Result, Status};
use crate::jpeg::header::HuffmanSpec;

/// Largest number of blocks in an interleaved MCU (T.81 B.2.3).
pub const MAX_BLOCKS_IN_MCU: usize = 10;
/// Output tables: DC and AC of two destinations, the number baseline allows.
pub const TABLES: usize = 4;
/// Files with more symbols are refused (1 GiB of memory). No real image has that many.
const MAX_SYMBOLS: usize = 1 << 28;

/// Return the first of the 1024 symbols that belongs to output table `table` (0 or 1): DC first, AC 256 later.
pub fn table_base(table: usize) -> u32 {
    512 * table as u32
}

/// The recorded symbols of a whole scan, divided into output segments. The memory is reusable.
pub struct SymbolStream {
    /// Symbols in scan order; only the first `used` are valid.
    words: Vec<u32>,
    used: usize,
    /// Index after the last symbol of each segment.
    segment_ends: Vec<usize>,
    /// Number of occurrences of each of the 1024 symbols, in four parts. Equal symbols often follow each other, and incrementing
    /// one counter twice would wait for the first store.
    counts: Box<[[u32; 256 * TABLES]; 4]>,
}

impl Default for SymbolStream {
    fn default() -> Self {
        SymbolStream {
            words: Vec::new(),
            used: 0,
            segment_ends: Vec::new(),
            counts: Box::new([[0; 256 * TABLES]; 4]),
        }
    }
}

impl SymbolStream {
    /// Remove all symbols but keep the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.segment_ends.clear();
        self.counts.fill([0; 256 * TABLES]);
    }

    /// Free the memory if it holds more than `words` symbols.
    pub fn shrink(&mut self, words: usize) {
        if self.words.len() > words {
            self.words = Vec::new();
        }
    }

    /// Return the symbols of each segment in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u32]> {
        let mut start = 0;
        self.segment_ends.iter().map(move |&end| {
            let words = &self.words[start..end];
            start = end;
            words
        })
    }

    /// Return the number of occurrences of each symbol of output table `index` (DC 0, AC 0, DC 1, AC 1) occurs.
    pub fn frequencies(&self, index: usize) -> [u32; 256] {
        std::array::from_fn(|symbol| self.counts.iter().map(|c| c[256 * index + symbol]).sum())
    }

    /// End a segment that was recorded by [`SymbolStream::record_block`], and count its symbols.
    pub fn end_segment(&mut self) {
        let start = self.segment_ends.last().copied().unwrap_or(0);
        let (fours, rest) = self.words[start..self.used].as_chunks::<4>();
        for words in fours {
            for (counts, &word) in self.counts.iter_mut().zip(words) {
                counts[word as usize & 1023] += 1;
            }
        }
        for (counts, &word) in self.counts.iter_mut().zip(rest) {
            counts[word as usize & 1023] += 1;
        }
        self.end_counted_segment();
    }

    /// End a segment whose symbols were counted while they were recorded, which is free where the next look-up must be waited for.
    fn end_counted_segment(&mut self) {
        self.segment_ends.push(self.used);
    }

    /// Reserve memory for one more MCU.
    pub fn reserve_mcu(&mut self) -> Result<()> {
        let needed = self.used + MAX_BLOCKS_IN_MCU * SYMBOLS_IN_BLOCK + block::ROOM;
        if self.words.len() < needed {
            if needed > MAX_SYMBOLS {
                return Err(Status::TooLarge);
            }
            self.words
                .resize(needed.next_power_of_two().max(1 << 16), 0);
        }
        Ok(())
    }

    /// Record one block of coefficients in natural order (see [`ZIGZAG`](crate::jpeg::header::ZIGZAG)) after the DC value
    /// `predictor`. `symbols` is one of the functions in [`block`]. Call [`SymbolStream::reserve_mcu`] first.
    #[inline(always)]
    pub fn record_block(
        &mut self,
        coefficients: &[i16; 64],
        predictor: i16,
        base: u32,
        symbols: impl Fn(&[i16; 64], i16, u32, &mut [u32; block::ROOM]) -> Result<usize>,
    ) -> Result<()> {
        let words = self.words[self.used..].first_chunk_mut();
        let words = words.ok_or(Status::Internal)?; // reserve_mcu reserved the memory
        self.used += symbols(coefficients, predictor, base, words)?;
        Ok(())
    }
}

/// Bits of one table look-up; longer codes are searched.
const LOOK: u32 = 10;

/// A Huffman table for transcoding. An entry describes one symbol: bits 0–5 the length of code and extra bits (where a shift
/// takes its count from without a mask), 8–11 the number of extra bits, 12–19 the advance in the block ([`END_OF_BLOCK`] for
/// EOB), 22–31 the symbol to record. 0 means no such code, or one longer than [`LOOK`] bits.
pub struct TranscodeTable {
    look: [u32; 1 << LOOK],
    /// The first value after the last code of each length, left-aligned to 16 bits.
    limit: [u32; 17],
    /// For each length: what to add to the number of a code among those of its length to get its index in `symbols`.
    offset: [i32; 17],
    symbols: [u8; 256],
    /// What to add to a symbol to record it; `None` for a DC table, whose symbols are not recorded unchanged.
    base: Option<u32>,
}

/// Advance of EOB: larger than every position in a block, and different from a run that leaves the block.
const END_OF_BLOCK: u32 = 128;

impl TranscodeTable {
    /// Make a DC table.
    pub fn for_dc(spec: &HuffmanSpec<'_>) -> Result<Self> {
        if spec.symbols.iter().any(|&symbol| symbol > 15) {
            return Err(Status::CorruptHeader);
        }
        Self::new(spec, None)
    }

    /// Make an AC table whose symbols are recorded with `base` added.
    pub fn for_ac(spec: &HuffmanSpec<'_>, base: u32) -> Result<Self> {
        Self::new(spec, Some(base))
    }

    fn new(spec: &HuffmanSpec<'_>, base: Option<u32>) -> Result<Self> {
        let HuffmanSpec { counts, symbols } = *spec;
        if symbols.len() > 256 {
            return Err(Status::CorruptHeader);
        }
        let mut table = TranscodeTable {
            look: [0; 1 << LOOK],
            limit: [0; 17],
            offset: [0; 17],
            symbols: [0; 256],
            base,
        };
        table.symbols[..symbols.len()].copy_from_slice(symbols);
        let (mut code, mut index) = (0u32, 0u32);
        for length in 1..=16u32 {
            let count = u32::from(counts[length as usize - 1]);
            table.offset[length as usize] = index as i32 - code as i32;
            if code + count > 1 << length {
                return Err(Status::CorruptHeader);
            }
            if length <= LOOK {
                let copies = 1usize << (LOOK - length);
                for number in 0..count {
                    let entry = table.entry(symbols[(index + number) as usize], length);
                    let first = ((code + number) as usize) << (LOOK - length);
                    table.look[first..first + copies].fill(entry);
                }
            }
            code += count;
            index += count;
            table.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Ok(table)
    }

    fn entry(&self, symbol: u8, length: u32) -> u32 {
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        // As in libjpeg, a run below 15 without a value ends the block, whatever the run.
        let (symbol, advance) = match (self.base, size, run) {
            (None, _, _) => (0, 0),
            (Some(base), 0, 0..=14) => (base, END_OF_BLOCK),
            (Some(base), _, _) => (base + u32::from(symbol), run + 1),
        };
        (length + size) | size << 8 | advance << 12 | symbol << 22
    }

    /// Return the entry for a code of more than [`LOOK`] bits at the top of `window`.
    #[cold]
    #[inline(never)]
    fn long_entry(&self, window: u64) -> Result<u32> {
        let bits = (window >> 48) as u32;
        for length in LOOK + 1..=16 {
            if bits < self.limit[length as usize] {
                let index = (bits >> (16 - length)) as i32 + self.offset[length as usize];
                let symbol = *self
                    .symbols
                    .get(index as usize)
                    .ok_or(Status::CorruptData)?;
                return Ok(self.entry(symbol, length));
            }
        }
        Err(Status::CorruptData)
    }
}

/// A block of an MCU: the tables of the input, the output table, and the component whose DC predictor it uses.
#[derive(Clone, Copy)]
pub struct BlockPlan<'t> {
    /// The DC table of the input.
    pub dc: &'t TranscodeTable,
    /// The AC table of the input.
    pub ac: &'t TranscodeTable,
    /// [`table_base`] of the output table.
    pub base: u32,
    /// Component in the scan.
    pub component: usize,
}

/// Geometry of the scan in MCUs.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// MCUs in the scan.
    pub mcus: usize,
    /// MCUs between restart markers of the input; `mcus` or more for no markers.
    pub input: usize,
    /// MCUs between restart markers of the output.
    pub output: usize,
}

/// A reader of de-stuffed entropy-coded data, most significant bit first.
struct BitReader<'a> {
    data: &'a [u8],
    /// Offset of the next byte that is not in the window.
    position: usize,
    /// The next bits, left-aligned; bits below the `available` ones are zero or already correct.
    window: u64,
    available: u32,
}

impl<'a> BitReader<'a> {
    /// Start at byte `start`. [`PADDING`] bytes must follow the data.
    fn new(data: &'a [u8], start: usize) -> Self {
        BitReader {
            data,
            position: start,
            window: 0,
            available: 0,
        }
    }

    /// Refill the window to at least 56 bits, without branches, because this runs once per symbol.
    ///
    /// # Safety
    /// `position` is at most 8 bytes before the end of `data`.
    #[inline(always)]
    unsafe fn refill(&mut self) {
        debug_assert!(self.position + 8 <= self.data.len());
        // SAFETY: guaranteed by the caller.
        let bytes: [u8; 8] =
            unsafe { std::ptr::read_unaligned(self.data.as_ptr().add(self.position).cast()) };
        self.window |= u64::from_be_bytes(bytes) >> self.available;
        self.position += ((63 ^ self.available) >> 3) as usize;
        self.available |= 56;
    }

    /// Take `entry`'s code and extra bits; return the extra bits.
    #[inline(always)]
    fn take(&mut self, entry: u32) -> u32 {
        // Processors shift by the count modulo 64; an entry takes at least one bit.
        let taken = self.window >> (0u32.wrapping_sub(entry) & 63);
        let extra = taken & ((1u64 << (entry >> 8 & 15)) - 1);
        self.window <<= entry & 63;
        self.available -= entry & 63;
        extra as u32
    }

    fn consumed_bits(&self) -> usize {
        self.position * 8 - self.available as usize
    }
}

/// Number of zero bytes that must follow de-stuffed data: more than one MCU can take (640 symbols of at most 31 bits).
pub const PADDING: usize = MAX_BLOCKS_IN_MCU * SYMBOLS_IN_BLOCK * 4 + 16;

/// Record all symbols of a scan. `segments` are the byte ranges of the input's restart segments in `data`, which is
/// de-stuffed and ends in [`PADDING`] zero bytes.
pub fn record_scan(
    data: &[u8],
    segments: &[std::ops::Range<usize>],
    blocks: &[BlockPlan<'_>],
    intervals: Intervals,
    out: &mut SymbolStream,
) -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    if has_bmi() {
        // SAFETY: the processor has these instructions.
        return unsafe { record_scan_bmi(data, segments, blocks, intervals, out) };
    }
    record_scan_any(data, segments, blocks, intervals, out)
}

/// Return whether the processor has BMI and LZCNT, which save a third of the time.
#[cfg(target_arch = "x86_64")]
pub fn has_bmi() -> bool {
    is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// As `record_scan_any`, compiled for processors with BMI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
unsafe fn record_scan_bmi(
    data: &[u8],
    segments: &[std::ops::Range<usize>],
    blocks: &[BlockPlan<'_>],
    intervals: Intervals,
    out: &mut SymbolStream,
) -> Result<()> {
    record_scan_any(data, segments, blocks, intervals, out)
}

#[inline(always)]
fn record_scan_any(
    data: &[u8],
    segments: &[std::ops::Range<usize>],
    blocks: &[BlockPlan<'_>],
    intervals: Intervals,
    out: &mut SymbolStream,
) -> Result<()> {
    // The unchecked stores of `record_block` rely on this: `reserve_mcu` makes room for so many blocks.
    if blocks.len() > MAX_BLOCKS_IN_MCU {
        return Err(Status::Internal);
    }
    // The unchecked loads of the reader rely on this.
    if segments
        .iter()
        .any(|segment| segment.end + PADDING > data.len())
    {
        return Err(Status::Internal);
    }
    // Some encoders write a restart marker after the last MCU too; nothing may follow it.
    let segments = match segments {
        [segments @ .., last] if last.is_empty() => segments,
        segments => segments,
    };
    if segments.len() != intervals.mcus.div_ceil(intervals.input) {
        return Err(Status::BadRestart);
    }
    let mut input_predictors = [0i32; 4];
    let mut output_predictors = [0i32; 4];
    let mut segments = segments.iter();
    let mut segment_end_bits = 0;
    let mut reader = BitReader::new(data, 0);
    let (mut until_input_restart, mut until_output_restart) = (0, intervals.output);
    for _ in 0..intervals.mcus {
        if until_input_restart == 0 {
            if reader.consumed_bits() > segment_end_bits {
                return Err(Status::CorruptData);
            }
            let segment = segments.next().ok_or(Status::BadRestart)?;
            reader = BitReader::new(data, segment.start);
            segment_end_bits = segment.end * 8;
            input_predictors = [0; 4];
            until_input_restart = intervals.input;
        }
        if until_output_restart == 0 {
            out.end_counted_segment();
            output_predictors = [0; 4];
            until_output_restart = intervals.output;
        }
        until_input_restart -= 1;
        until_output_restart -= 1;
        if reader.consumed_bits() > segment_end_bits {
            return Err(Status::CorruptData);
        }
        out.reserve_mcu()?;
        for block in blocks {
            record_block(
                &mut reader,
                block,
                &mut input_predictors[block.component & 3],
                &mut output_predictors[block.component & 3],
                out,
            )?;
        }
    }
    out.end_counted_segment();
    if reader.consumed_bits() > segment_end_bits {
        return Err(Status::CorruptData);
    }
    Ok(())
}

#[inline(always)]
fn record_block(
    reader: &mut BitReader<'_>,
    plan: &BlockPlan<'_>,
    input_predictor: &mut i32,
    output_predictor: &mut i32,
    out: &mut SymbolStream,
) -> Result<()> {
    let SymbolStream {
        words,
        used,
        counts,
        ..
    } = out;
    let counts = &mut counts[0];
    let words: &mut [u32; SYMBOLS_IN_BLOCK] = match words[*used..].first_chunk_mut() {
        Some(words) => words,
        None => return Err(Status::Internal), // reserve_mcu reserved the memory
    };

    // SAFETY: the caller checked that the MCU begins inside the data; PADDING bytes follow, more than one MCU takes.
    unsafe { reader.refill() };
    let mut entry = plan.dc.look[(reader.window >> (64 - LOOK)) as usize];
    if entry == 0 {
        entry = plan.dc.long_entry(reader.window)?;
    }
    let extra = reader.take(entry) as i32;
    let size = entry >> 8 & 15;
    // T.81 F.12 EXTEND: values whose top bit is 0 are negative.
    let difference = if size > 0 && extra >> (size - 1) == 0 {
        extra - (1 << size) + 1
    } else {
        extra
    };
    *input_predictor = input_predictor.wrapping_add(difference);
    // Decoders store DC in 16 bits. The difference to another predictor must fit too, or it cannot be written.
    let value = i32::from(*input_predictor as i16);
    let (size, extra) = size_and_extra(value - *output_predictor);
    if size > 15 {
        return Err(Status::CorruptData);
    }
    *output_predictor = value;
    let symbol = size + plan.base;
    words[0] = symbol | extra << 16;
    counts[symbol as usize & 1023] += 1;

    let (mut count, mut position) = (1usize, 1u32);
    while position < 64 {
        // SAFETY: as above.
        unsafe { reader.refill() };
        let mut entry = plan.ac.look[(reader.window >> (64 - LOOK)) as usize];
        if entry == 0 {
            entry = plan.ac.long_entry(reader.window)?;
        }
        let extra = reader.take(entry);
        let symbol = entry >> 22;
        words[count & (SYMBOLS_IN_BLOCK - 1)] = symbol | extra << 16;
        counts[symbol as usize] += 1;
        count += 1;
        position += entry >> 12 & 255;
    }
    // Position 64 is a full block, END_OF_BLOCK or more an EOB; between them, a run has left the block.
    if position > 64 && position < END_OF_BLOCK {
        return Err(Status::CorruptData);
    }
    *used += count;
    Ok(())
}
