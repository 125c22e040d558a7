//! Huffman tables for decoding. One look-up gives the length of the code, the run, and the coefficient if its bits fit; for AC
//! coefficients also a second symbol if it fits (6 of 10 look-ups on photographs).
//!
//! The window is the next [`WINDOW`] bits of the stream. An entry of [`Table`] packs, from the low end: bits consumed (8),
//! advance in the block (8), value (16, signed). Codes whose magnitude bits do not fit in the window have advance 0 and hold code
//! length and symbol instead. Codes longer than the window have length 0 and are found by [`Codes::find`]. [`PairTable`]
//! describes its own entries.

use super::header::{Class, HuffmanSpec};
use crate::error::{Result, Status};

/// Bits of one look-up. With 2^11 entries of 8 bytes, luma and chroma tables together fill two thirds of a 48 KiB L1 cache. The
/// bits of a good code are almost random, so all entries are used.
pub const WINDOW: u32 = 11;

/// Advance of the end-of-block symbol: larger than any block, so that one comparison ends the loop.
pub const END_OF_BLOCK: u8 = 128;

/// Advance of a window without a whole symbol: larger than any block, so that the same comparison detects it.
pub const NOT_HELD: u8 = 255;

/// The codes of a table in order, to find codes of any length.
#[derive(Clone)]
pub struct Codes {
    /// For each length: the first code beyond it, left-aligned in 16 bits (T.81 F.2.2.3's MAXCODE, shifted and exclusive).
    limit: [u32; 17],
    /// For each length: index of the symbol of code 0 of that length.
    base: [i32; 17],
    symbols: [u8; 256],
}

impl Default for Codes {
    fn default() -> Self {
        Codes {
            limit: [0; 17],
            base: [0; 17],
            symbols: [0; 256],
        }
    }
}

impl Codes {
    /// Read the specification in the file and call `each(length, symbol)` for every code in order. Refuse codes that overflow their
    /// length, and DC sizes above 15.
    pub fn build(
        &mut self,
        spec: &HuffmanSpec<'_>,
        class: Class,
        mut each: impl FnMut(u32, u8),
    ) -> Result<()> {
        self.symbols[..spec.symbols.len()].copy_from_slice(spec.symbols);
        let (mut code, mut next) = (0u32, 0usize); // `code` is left-aligned in 16 bits
        for length in 1..=16u32 {
            let count = usize::from(spec.counts[length as usize - 1]);
            self.base[length as usize] = next as i32 - (code >> (16 - length)) as i32;
            for &symbol in &spec.symbols[next..next + count] {
                if class == Class::Dc && symbol > 15 {
                    return Err(Status::CorruptHeader);
                }
                each(length, symbol);
                code += 1 << (16 - length);
            }
            next += count;
            // No code is all ones (T.81 C.2), so the code after the last one of each length exists.
            if code >= 1 << 16 {
                return Err(Status::CorruptHeader);
            }
            self.limit[length as usize] = code;
        }
        Ok(())
    }

    /// Return, for each length, the first code beyond it, left-aligned in 16 bits.
    pub fn limits(&self) -> &[u32; 17] {
        &self.limit
    }

    /// Return, for each length, the index of the symbol of code 0 of that length.
    pub fn bases(&self) -> &[i32; 17] {
        &self.base
    }

    /// Return the symbols in the order of their codes.
    pub fn symbols(&self) -> &[u8; 256] {
        &self.symbols
    }

    /// Return length and symbol of the next code; `peek` is the next 16 bits of the stream.
    #[cold]
    #[inline(never)]
    pub fn find(&self, peek: u32) -> Result<(u32, u8)> {
        for length in 1..=16u32 {
            if peek < self.limit[length as usize] {
                let index = self.base[length as usize] + (peek >> (16 - length)) as i32;
                let symbol = self
                    .symbols
                    .get(index as usize)
                    .copied()
                    .ok_or(Status::CorruptData)?;
                return Ok((length, symbol));
            }
        }
        Err(Status::CorruptData)
    }
}

/// Bits of one look-up of a DC code.
pub const DC_WINDOW: u32 = 9;

/// A table of DC differences: code length (low byte) and size for each window, 0 if the code does not fit in the window. It is
/// small, so that the AC tables stay in the L1 cache; the difference itself takes a few shifts more.
#[derive(Clone)]
pub struct DcTable {
    entries: [u16; 1 << DC_WINDOW],
    codes: Codes,
}

impl Default for DcTable {
    fn default() -> Self {
        DcTable {
            entries: [0; 1 << DC_WINDOW],
            codes: Codes::default(),
        }
    }
}

impl DcTable {
    /// Fill the table from the file's specification for DC differences.
    pub fn build(&mut self, spec: &HuffmanSpec<'_>) -> Result<()> {
        let DcTable { entries, codes } = self;
        let mut at = 0;
        codes.build(spec, Class::Dc, |length, symbol| {
            if length <= DC_WINDOW {
                let end = (at + (1usize << (DC_WINDOW - length))).min(entries.len());
                entries[at..end].fill(length as u16 | u16::from(symbol) << 8);
                at = end;
            }
        })?;
        entries[at..].fill(0);
        Ok(())
    }

    /// Return bits and value of the next difference; `window` is the stream, left-aligned.
    #[inline(always)]
    pub fn difference(&self, window: u64) -> Result<(u32, i32)> {
        let entry = self.entries[(window >> (64 - DC_WINDOW)) as usize];
        let (length, size) = match entry {
            0 => self.codes.find((window >> 48) as u32)?,
            _ => (u32::from(entry & 0xFF), (entry >> 8) as u8),
        };
        let size = u32::from(size);
        let bits = ((window << length) >> 1 >> (63 - size)) as u32;
        Ok((length + size, extend(bits, size)))
    }
}

/// A table of single symbols, built in place so that its memory is reused.
#[derive(Clone)]
pub struct Table {
    /// One entry for each window.
    pub entries: Box<[u32; 1 << WINDOW]>,
    codes: Codes,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            entries: Box::new([0; 1 << WINDOW]),
            codes: Codes::default(),
        }
    }
}

/// Extend `bits` (of `size` bits) to a signed value (T.81 F.2.2.1, EXTEND).
#[inline(always)]
pub fn extend(bits: u32, size: u32) -> i32 {
    let sign_missing = (bits >> (size.max(1) - 1)) ^ 1;
    bits as i32 - (((1i32 << size) - 1) & -(sign_missing as i32 & i32::from(size > 0)))
}

/// Return the advance of an AC symbol: run + 1, 16 for a run of 16 zeros, [`END_OF_BLOCK`] for all others, as in libjpeg.
fn advance(class: Class, symbol: u8) -> u8 {
    match (class, symbol >> 4, symbol & 15) {
        (Class::Dc, ..) => 1,
        (_, 15, 0) => 16,
        (_, _, 0) => END_OF_BLOCK,
        (_, run, _) => run + 1,
    }
}

impl Table {
    /// Fill the table from the file's specification.
    pub fn build(&mut self, spec: &HuffmanSpec<'_>, class: Class) -> Result<()> {
        let Table { entries, codes } = self;
        let mut at = 0;
        codes.build(spec, class, |length, symbol| {
            if length <= WINDOW {
                at = fill(entries, at, length, symbol, class);
            }
        })?;
        entries[at..].fill(0);
        Ok(())
    }
}

/// Write the entries of one code and return the start of the next one. Codes come in the order of their windows.
fn fill(
    entries: &mut [u32; 1 << WINDOW],
    at: usize,
    length: u32,
    symbol: u8,
    class: Class,
) -> usize {
    let span = 1usize << (WINDOW - length);
    let size = u32::from(symbol & 15);
    let Some(entries) = entries.get_mut(at..at + span) else {
        return at; // more codes than the length allows: the table is refused
    };
    if length + size > WINDOW {
        entries.fill(length | u32::from(symbol) << 16);
        return at + span;
    }
    let low = (length + size) | u32::from(advance(class, symbol)) << 8;
    for (bits, same) in entries.chunks_exact_mut(span >> size).enumerate() {
        same.fill(low | (extend(bits as u32, size) as u32) << 16);
    }
    at + span
}

/// A table of AC symbols that decodes up to two at once. An entry packs, from the low end: bits consumed by both (8), advance
/// over both (8), value of the first (16), value of the second (16), advance over the first (8), bits of the first (8). A
/// single symbol is stored as its own second symbol: storing it twice in one place saves a branch. An advance of [`NOT_HELD`] means
/// that the first symbol does not fit in the window; the rest of the entry is then that of [`Table`].
///
/// End of block adds 128 to the current place. After another symbol it repeats that symbol's place (modulo 128) and value; alone,
/// with 129, it gives the place after the last coefficient, which is zero anyway.
#[derive(Clone)]
pub struct PairTable {
    /// One entry for each window.
    pub entries: Box<[u64; 1 << WINDOW]>,
    /// The symbols one by one.
    pub single: Table,
}

impl Default for PairTable {
    fn default() -> Self {
        PairTable {
            entries: Box::new([0; 1 << WINDOW]),
            single: Table::default(),
        }
    }
}

impl PairTable {
    /// Fill the table from the file's specification for AC coefficients.
    pub fn build(&mut self, spec: &HuffmanSpec<'_>) -> Result<()> {
        self.single.build(spec, Class::Ac)?;
        for (window, (pair, &first)) in self
            .entries
            .iter_mut()
            .zip(self.single.entries.iter())
            .enumerate()
        {
            let (bits, advance, value) = (first & 0xFF, first >> 8 & 0xFF, first >> 16);
            // The bits after the first symbol. Zeros fill in from the right, so a longer second symbol may seem to fit.
            let second = self.single.entries[window << (bits & 15) & ((1 << WINDOW) - 1)];
            let (bits2, advance2, value2) = (second & 0xFF, second >> 8 & 0xFF, second >> 16);
            let two = advance2 != 0 && bits + bits2 <= WINDOW;
            let end = u32::from(END_OF_BLOCK);
            let (all_bits, all_advance, last_value) = match (advance == end, two) {
                (true, _) => (bits, end + 1, 0),
                (_, false) => (bits, advance, value),
                (_, true) if advance2 == end => (bits + bits2, advance + end, value),
                (_, true) => (bits + bits2, advance + advance2, value2),
            };
            let first_advance = if advance == end { end + 1 } else { advance };
            *pair = u64::from(all_bits | all_advance << 8 | value << 16)
                | u64::from(last_value | first_advance << 16 | bits << 24) << 32;
            if advance == 0 {
                *pair = u64::from(first | u32::from(NOT_HELD) << 8);
            }
        }
        Ok(())
    }
}

/// Return bits, advance and value of a symbol whose entry has advance 0; `window` is the stream, left-aligned in 64 bits.
#[inline(always)]
pub fn resolve(table: &Table, entry: u32, window: u64, class: Class) -> Result<(u32, u8, i32)> {
    let (length, symbol) = match entry & 0xFF {
        0 => table.codes.find((window >> 48) as u32)?,
        length => (length, (entry >> 16) as u8),
    };
    let size = u32::from(symbol & 15);
    let bits = ((window << length) >> 1 >> (63 - size)) as u32;
    Ok((length + size, advance(class, symbol), extend(bits, size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T.81 table K.3 (luminance DC) and a table with a code of each length 1 to 16.
    const K3: ([u8; 16], [u8; 12]) = (
        [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    );

    fn decode(table: &Table, window: u64, class: Class) -> Result<(u32, u8, i32)> {
        let entry = table.entries[(window >> (64 - WINDOW)) as usize];
        match (entry >> 8) as u8 {
            0 => resolve(table, entry, window, class),
            step => Ok((entry & 0xFF, step, (entry as i32) >> 16)),
        }
    }

    #[test]
    fn extend_covers_every_size() {
        assert_eq!(extend(0, 0), 0);
        assert_eq!((extend(0, 1), extend(1, 1)), (-1, 1));
        assert_eq!(
            (extend(0, 4), extend(7, 4), extend(8, 4), extend(15, 4)),
            (-15, -8, 8, 15)
        );
        assert_eq!((extend(0, 15), extend(32767, 15)), (-32767, 32767));
    }

    #[test]
    fn every_window_decodes_like_the_canonical_search() {
        let mut table = Table::default();
        let mut dc = DcTable::default();
        dc.build(&HuffmanSpec {
            counts: &K3.0,
            symbols: &K3.1,
        })
        .expect("a valid table");
        let one_of_each: Vec<u8> = (0..16).map(|i| i * 16 + 1).collect();
        let specs = [
            (
                HuffmanSpec {
                    counts: &K3.0,
                    symbols: &K3.1,
                },
                Class::Dc,
            ),
            (
                HuffmanSpec {
                    counts: &[1; 16],
                    symbols: &one_of_each,
                },
                Class::Ac,
            ),
        ];
        for (spec, class) in specs {
            table.build(&spec, class).expect("a valid table");
            for peek in 0..1u64 << 16 {
                let window = peek << 48 | 0x1234_5678_9ABC;
                let by_search = table.codes.find(peek as u32).map(|(length, symbol)| {
                    resolve(&table, length | u32::from(symbol) << 16, window, class)
                        .expect("found above")
                });
                assert_eq!(decode(&table, window, class), by_search);
                if class == Class::Dc {
                    let (bits, value) = by_search.map_or((0, 0), |(bits, _, value)| (bits, value));
                    assert_eq!(dc.difference(window).unwrap_or((0, 0)), (bits, value));
                }
            }
        }
    }

    #[test]
    fn impossible_tables_are_refused() {
        let mut table = Table::default();
        let three_of_one_bit = HuffmanSpec {
            counts: &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            symbols: &[0, 1, 2],
        };
        assert_eq!(
            table.build(&three_of_one_bit, Class::Ac),
            Err(Status::CorruptHeader)
        );
        let dc_of_sixteen = HuffmanSpec {
            counts: &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            symbols: &[16],
        };
        assert_eq!(
            table.build(&dc_of_sixteen, Class::Dc),
            Err(Status::CorruptHeader)
        );
    }
}
