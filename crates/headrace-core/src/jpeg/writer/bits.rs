//! The writer of recorded symbols as entropy-coded segments with restart markers between them.
#![allow(unsafe_code)]

use super::optimal::HuffmanCode;
#[cfg(target_arch = "x86_64")]
use super::symbols::has_bmi;
use super::symbols::{SymbolStream, TABLES};

/// Per symbol: bits 0–31 the code, shifted left by the number of its extra bits; bits 32–37 the length of code and extra bits.
pub struct WriteTable([u64; 256 * TABLES]);

impl WriteTable {
    /// Make the table for codes of DC 0, AC 0, DC 1, AC 1.
    pub fn new(codes: &[HuffmanCode; TABLES]) -> Self {
        let mut table = [0; 256 * TABLES];
        for (entries, code) in table.chunks_exact_mut(256).zip(codes) {
            for &symbol in &code.symbols {
                let size = u32::from(symbol & 15);
                let bits = u64::from(code.codes[usize::from(symbol)]) << size;
                let length = u32::from(code.lengths[usize::from(symbol)]) + size;
                entries[usize::from(symbol)] = bits | u64::from(length) << 32;
            }
        }
        WriteTable(table)
    }

    #[inline(always)]
    fn bits_and_length(&self, word: u32) -> (u64, u32) {
        let entry = self.0[word as usize & 1023];
        (
            entry & 0xFFFF_FFFF | u64::from(word >> 16),
            (entry >> 32) as u32,
        )
    }
}

/// Append all segments to `out`, each padded with ones, RST0 to RST7 in turn between them. `scratch` is reused memory.
pub fn write_segments(
    stream: &SymbolStream,
    table: &WriteTable,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    for (number, words) in stream.segments().enumerate() {
        if number > 0 {
            out.extend_from_slice(&[0xFF, 0xD0 + ((number - 1) % 8) as u8]);
        }
        let length = write_unstuffed(words, table, scratch);
        append_stuffed(&scratch[..length], out);
    }
}

/// Write the bits of `words` into `scratch`, padded with ones to whole bytes; return the number of bytes.
fn write_unstuffed(words: &[u32], table: &WriteTable, scratch: &mut Vec<u8>) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_bmi() {
        // SAFETY: the processor has these instructions.
        return unsafe { write_unstuffed_bmi(words, table, scratch) };
    }
    write_unstuffed_any(words, table, scratch)
}

/// As `write_unstuffed_any`, compiled for processors with BMI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
unsafe fn write_unstuffed_bmi(words: &[u32], table: &WriteTable, scratch: &mut Vec<u8>) -> usize {
    write_unstuffed_any(words, table, scratch)
}

#[inline(always)]
fn write_unstuffed_any(words: &[u32], table: &WriteTable, scratch: &mut Vec<u8>) -> usize {
    let needed = words.len() * 4 + 16; // a symbol has at most 31 bits, and every store writes 8 bytes
    if scratch.len() < needed {
        scratch.resize(needed.next_power_of_two(), 0);
    }
    let mut sink = BitSink {
        bytes: scratch,
        position: 0,
        pending: 0,
        pending_bits: 0,
    };
    let mut pairs = words.chunks_exact(2);
    for pair in &mut pairs {
        let (first, first_length) = table.bits_and_length(pair[0]);
        let (second, second_length) = table.bits_and_length(pair[1]);
        let length = first_length + second_length;
        if length <= 56 {
            sink.put(first << second_length | second, length);
        } else {
            sink.put(first, first_length);
            sink.put(second, second_length);
        }
    }
    if let [word] = pairs.remainder() {
        let (bits, length) = table.bits_and_length(*word);
        sink.put(bits, length);
    }
    let padding = (8 - sink.pending_bits) & 7;
    sink.put((1 << padding) - 1, padding);
    sink.position
}

struct BitSink<'a> {
    bytes: &'a mut [u8],
    position: usize,
    /// The last bits; the lowest `pending_bits` of them (0 to 7 between calls) are not yet final in `bytes`.
    pending: u64,
    pending_bits: u32,
}

impl BitSink<'_> {
    /// Append the lowest `length` (at most 56) bits. Each call stores eight bytes and advances by the full ones, without a branch
    /// on the number of pending bits.
    #[inline(always)]
    fn put(&mut self, bits: u64, length: u32) {
        self.pending = self.pending << length | bits;
        self.pending_bits += length;
        let aligned = self.pending << ((64 - self.pending_bits) & 63);
        if let Some(place) = self.bytes.get_mut(self.position..self.position + 8) {
            place.copy_from_slice(&aligned.to_be_bytes());
        }
        self.position += (self.pending_bits >> 3) as usize;
        self.pending_bits &= 7;
    }
}

/// Append `bytes` with a zero byte after each 0xFF.
fn append_stuffed(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    while let Some(position) = memchr::memchr(0xFF, rest) {
        out.extend_from_slice(&rest[..=position]);
        out.push(0);
        rest = &rest[position + 1..];
    }
    out.extend_from_slice(rest);
}
