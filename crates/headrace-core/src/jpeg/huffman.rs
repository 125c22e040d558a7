//! Huffman tables for decoding (T.81 annex C and F.2.2).
//!
//! An AC table has one entry of 64 bits for each window, the next [`WINDOW`] bits of the stream. It describes up to two symbols with
//! their magnitude bits (6 of 10 look-ups on photographs hold two). From the low end:
//!
//! - bits of all its symbols (8);
//! - advance over all its symbols (8): [`END_OF_BLOCK`] is added for that symbol;
//! - bits of the first symbol (8) and advance over it (8);
//! - coefficient of the first symbol (16, signed);
//! - coefficient of the second symbol (16, signed), 0 if there is none. A single symbol has the place of the second as well:
//!   storing twice saves a branch.
//!
//! If the first symbol does not fit in the window, the advance is [`NOT_HELD`], and the entry has instead: bits of the code (8, 0 if
//! the code itself is longer than the window), [`NOT_HELD`] (8), 63 less the number of magnitude bits (8), advance over the
//! symbol (8), and what EXTEND (T.81 F.2.2.1) adds to magnitude bits that begin with 0 (16, signed).
//!
//! An entry of a DC table holds the length of the code (low byte, 0 if it is longer than the window) and the size of the magnitude.

use super::header::{Class, HuffmanSpec};
use crate::error::{Result, Status};

/// Bits of the window of an AC table. With 2^11 entries of 8 bytes, luma and chroma tables together fill two thirds of a 48 KiB L1
/// cache. The bits of a good code are almost random, so all entries are used.
pub const WINDOW: u32 = 11;

/// Bits of the window of a DC table.
pub const DC_WINDOW: u32 = 9;

/// Advance of the end-of-block symbol. Added to a place in a block (0 to 62) it gives 129 to 191, whatever place that is. A block that
/// is full already (63) gives 192, which has the bit [`OUTSIDE`].
pub const END_OF_BLOCK: u32 = 129;

/// The bit of the sum of place and advance that is set if a step leaves the block without ending it, or begins the next one.
pub const OUTSIDE: u32 = 64;

/// Advance of a window without a whole symbol: larger than any other.
pub const NOT_HELD: u32 = 255;

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
    #[inline]
    pub fn find(&self, peek: u32) -> Result<(u32, u8)> {
        // Without branches, which would be mispredicted: the limits grow with the length.
        let shorter: u32 = self.limit[1..]
            .iter()
            .map(|&limit| u32::from(peek >= limit))
            .sum();
        let length = 1 + shorter;
        if length > 16 {
            return Err(Status::CorruptData);
        }
        let index = self.base[length as usize] + (peek >> (16 - length)) as i32;
        let symbol = self.symbols.get(index as usize).copied();
        Ok((length, symbol.ok_or(Status::CorruptData)?))
    }
}

/// Return the advance of an AC symbol: run + 1, 16 for a run of 16 zeros, [`END_OF_BLOCK`] for all others without magnitude, as in
/// libjpeg.
#[inline(always)]
pub fn advance(symbol: u8) -> u32 {
    match (symbol >> 4, symbol & 15) {
        (15, 0) => 16,
        (_, 0) => END_OF_BLOCK,
        (run, _) => u32::from(run) + 1,
    }
}

/// Extend `bits` (of `size` bits) to a signed value (T.81 F.2.2.1, EXTEND).
#[inline(always)]
pub fn extend(bits: u32, size: u32) -> i32 {
    let sign_missing = (bits >> (size.max(1) - 1)) ^ 1;
    bits as i32 - (((1i32 << size) - 1) & -(sign_missing as i32 & i32::from(size > 0)))
}

/// Return the value of the magnitude of `size` bits behind a code of `length` bits; `window` is the stream, left-aligned.
#[inline(always)]
pub fn magnitude(window: u64, length: u32, size: u32) -> i32 {
    let bits = window << (length & 63);
    let begins_with_0 = !((bits as i64 >> 63) as i32);
    (bits >> 1 >> ((63 - size) & 63)) as i32 - (begins_with_0 & ((1 << (size & 31)) - 1))
}

/// Return the coefficient of a [`NOT_HELD`] entry whose code is in `window`.
#[inline(always)]
pub fn held_back(entry: u64, window: u64) -> i16 {
    let magnitude = window << (entry & 63);
    let missing = (entry >> 32) as i16 & !((magnitude as i64 >> 63) as i16);
    ((magnitude >> 1 >> (entry >> 16 & 63)) as i16).wrapping_add(missing)
}

/// Return the entry of a single symbol with code and magnitude in the window. The coefficient is to be added.
fn single(length: u32, size: u32, advance: u32) -> u64 {
    let bits = length + size;
    u64::from(bits | advance << 8 | bits << 16 | advance << 24)
}

/// Return the entry of a symbol whose magnitude is not in the window.
fn not_held(length: u32, size: u32, advance: u32) -> u64 {
    let missing = (1i32 << size) - 1;
    u64::from(length | NOT_HELD << 8 | (63 - size) << 16 | advance << 24)
        | u64::from(-missing as u16) << 32
}

/// Return what an entry grows by if a second symbol follows, whose code and magnitude end `unused` bits before the end of `window`.
fn second(window: usize, length: u32, symbol: u8, unused: u32) -> u64 {
    let size = u32::from(symbol & 15);
    let bits = (window >> unused) as u32 & ((1 << size) - 1);
    let value = extend(bits, size) as u16;
    u64::from((length + size) | advance(symbol) << 8) | u64::from(value) << 48
}

/// A table of DC differences. It is small, so that the AC tables stay in the L1 cache; the difference takes a few shifts more.
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
        Ok((length + size, magnitude(window, length, size)))
    }
}

/// A table of AC symbols.
#[derive(Clone)]
pub struct AcTable {
    /// One entry for each window.
    pub entries: Box<[u64; 1 << WINDOW]>,
    /// Finds the codes that are longer than the window.
    pub codes: Codes,
}

impl Default for AcTable {
    fn default() -> Self {
        AcTable {
            entries: Box::new([0; 1 << WINDOW]),
            codes: Codes::default(),
        }
    }
}

/// Memory for [`AcTable::build`].
pub struct Builder {
    /// Length and symbol of the code in each window, 0 if there is none.
    short: Box<[(u8, u8); 1 << WINDOW]>,
    /// See [`fill_seconds`].
    seconds: Box<[u64; 1 << WINDOW]>,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            short: Box::new([(0, 0); 1 << WINDOW]),
            seconds: Box::new([0; 1 << WINDOW]),
        }
    }
}

impl AcTable {
    /// Fill the table from the file's specification for AC coefficients.
    pub fn build(&mut self, spec: &HuffmanSpec<'_>, builder: &mut Builder) -> Result<()> {
        let AcTable { entries, codes } = self;
        let Builder { short, seconds } = builder;
        let mut filled = 0;
        codes.build(spec, Class::Ac, |length, symbol| {
            if length <= WINDOW {
                let end = (filled + (1usize << (WINDOW - length))).min(short.len());
                short[filled..end].fill((length as u8, symbol));
                filled = end;
            }
        })?;
        short[filled..].fill((0, 0));
        fill_seconds(short, seconds);
        entries[filled..].fill(not_held(0, 0, 0));
        let mut at = 0;
        while at < filled {
            let (length, symbol) = short[at];
            let (length, size) = (u32::from(length), u32::from(symbol & 15));
            let span = 1usize << (WINDOW - length);
            let code = &mut entries[at..at + span];
            at += span;
            if advance(symbol) == END_OF_BLOCK {
                code.fill(single(length, 0, END_OF_BLOCK));
                continue;
            }
            let Some(rest) = (WINDOW - length).checked_sub(size) else {
                code.fill(not_held(length, size, advance(symbol)));
                continue;
            };
            let seconds = &seconds[1 << rest..2 << rest];
            for (bits, same) in code.chunks_exact_mut(1 << rest).enumerate() {
                let value = extend(bits as u32, size) as u16;
                let first = single(length, size, advance(symbol)) | u64::from(value) << 32;
                for (entry, second) in same.iter_mut().zip(seconds) {
                    *entry = first + second;
                }
            }
        }
        Ok(())
    }
}

/// For each number of bits up to [`WINDOW`] less 1, from place `1 << bits` on: what an entry grows by if such bits follow the first
/// symbol.
fn fill_seconds(short: &[(u8, u8); 1 << WINDOW], seconds: &mut [u64; 1 << WINDOW]) {
    for bits in 0..WINDOW {
        let unseen = WINDOW - bits;
        for (window, grown) in seconds[1 << bits..2 << bits].iter_mut().enumerate() {
            let (length, symbol) = short[window << unseen];
            let used = u32::from(length) + u32::from(symbol & 15);
            *grown = match bits.checked_sub(used) {
                Some(unused) if length > 0 => second(window, u32::from(length), symbol, unused),
                _ => 0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T.81 table K.3 (luminance DC) and a table with a code of each length 1 to 16.
    const K3: ([u8; 16], [u8; 12]) = (
        [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    );

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
    fn a_magnitude_is_extended_bits() {
        for size in 0..16 {
            for bits in 0..1u64 << size {
                let window = (0b101 << 61) | (bits << (61 - size)) | (1 << 20);
                assert_eq!(
                    magnitude(window, 3, size as u32),
                    extend(bits as u32, size as u32)
                );
            }
        }
    }

    /// Check every entry against the codes, found one by one; return how many hold two symbols.
    fn check_ac(table: &AcTable) -> usize {
        let one = |window: u64| {
            table
                .codes
                .find((window >> 48) as u32)
                .map(|(length, symbol)| {
                    let size = u32::from(symbol & 15);
                    (
                        length,
                        size,
                        advance(symbol),
                        magnitude(window, length, size),
                    )
                })
        };
        let mut pairs = 0;
        for peek in 0..1u64 << 16 {
            let window = peek << 48 | 0x1234_5678_9ABC;
            let entry = table.entries[(window >> (64 - WINDOW)) as usize];
            let field = |at: u32| (entry >> at) as u32 & 0xFF;
            let (bits, sum) = (field(0), field(8));
            let found = one(window);
            if sum == NOT_HELD {
                match found {
                    Ok((length, size, first, value)) if length <= WINDOW => {
                        assert!(length + size > WINDOW);
                        assert_eq!((bits, field(16), field(24)), (length, 63 - size, first));
                        assert_eq!(held_back(entry, window), value as i16);
                    }
                    _ => assert_eq!(bits, 0),
                }
                continue;
            }
            let (length, size, first, value) = found.expect("a code");
            let value2 = (entry >> 48) as i16;
            assert_eq!(
                (field(16), field(24)),
                (length + size, first),
                "{peek:016b}"
            );
            assert_eq!((entry >> 32) as i16, value as i16, "{peek:016b}");
            if bits == length + size {
                assert_eq!((sum, value2), (first, 0));
                continue;
            }
            let (length2, size2, next, expected) =
                one(window << (length + size)).expect("a second");
            assert_eq!((bits, sum), (length + size + length2 + size2, first + next));
            assert_eq!(i32::from(value2), expected);
            assert!(bits <= WINDOW && first != END_OF_BLOCK);
            pairs += 1;
        }
        pairs
    }

    #[test]
    fn every_ac_entry_agrees_with_the_search_for_codes() {
        let mut table = AcTable::default();
        let one_of_each: Vec<u8> = (0..16).map(|i| i * 16 + 1).collect();
        let short: Vec<u8> = vec![0x00, 0x01, 0x11, 0x02, 0xF0, 0x0A, 0x0F, 0x37];
        let after_two = [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0];
        let from_one = [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let far_apart = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for (counts, symbols, has_pairs) in [
            ([1; 16], &one_of_each[..], true),
            (after_two, &short[..], true),
            (from_one, &short[..], false), // the shortest code ends the block
            (far_apart, &[0xF0, 0x0F][..], true),
            ([0; 16], &[][..], false),
        ] {
            let spec = HuffmanSpec {
                counts: &counts,
                symbols,
            };
            table
                .build(&spec, &mut Builder::default())
                .expect("a valid table");
            let pairs = check_ac(&table);
            assert!(pairs > 0 || !has_pairs);
        }
    }

    #[test]
    fn every_dc_entry_agrees_with_the_search_for_codes() {
        let mut table = DcTable::default();
        let spec = HuffmanSpec {
            counts: &K3.0,
            symbols: &K3.1,
        };
        table.build(&spec).expect("a valid table");
        for peek in 0..1u64 << 16 {
            let window = peek << 48 | 0x1234_5678_9ABC;
            let found = table.codes.find(peek as u32).map(|(length, symbol)| {
                let size = u32::from(symbol);
                (length + size, magnitude(window, length, size))
            });
            assert_eq!(table.difference(window), found);
        }
    }

    #[test]
    fn impossible_tables_are_refused() {
        let mut table = AcTable::default();
        let three_of_one_bit = HuffmanSpec {
            counts: &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            symbols: &[0, 1, 2],
        };
        assert_eq!(
            table.build(&three_of_one_bit, &mut Builder::default()),
            Err(Status::CorruptHeader)
        );
        let dc_of_sixteen = HuffmanSpec {
            counts: &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            symbols: &[16],
        };
        assert_eq!(
            DcTable::default().build(&dc_of_sixteen),
            Err(Status::CorruptHeader)
        );
    }
}
