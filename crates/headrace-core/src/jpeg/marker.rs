//! Marker codes of a JPEG (the byte after `FF`, ITU-T T.81 table B.1) and the segments that they begin.
#![allow(missing_docs)]

pub const SOF0: u8 = 0xC0;
pub const SOF1: u8 = 0xC1;
pub const SOF2: u8 = 0xC2;
pub const DHT: u8 = 0xC4;
pub const RST0: u8 = 0xD0;
pub const RST7: u8 = 0xD7;
pub const SOI: u8 = 0xD8;
pub const EOI: u8 = 0xD9;
pub const SOS: u8 = 0xDA;
pub const DQT: u8 = 0xDB;
pub const DRI: u8 = 0xDD;
pub const APP0: u8 = 0xE0;
pub const APP1: u8 = 0xE1;
pub const APP14: u8 = 0xEE;
pub const APP15: u8 = 0xEF;
pub const COM: u8 = 0xFE;
pub const TEM: u8 = 0x01;

/// One marker segment: its code, the offset of its `FF`, and its payload (without the two length bytes).
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Marker code.
    pub code: u8,
    /// Offset of the marker's `FF` in the file.
    pub offset: usize,
    /// The bytes after the length field; empty for markers without one.
    pub payload: &'a [u8],
    /// Offset of the first byte after the segment.
    pub end: usize,
}

/// Return whether a file begins as a JPEG: with a start marker, and behind it the beginning of another marker, as Pillow demands, or
/// nothing.
pub fn begins(data: &[u8]) -> bool {
    matches!(data, [0xFF, SOI] | [0xFF, SOI, 0xFF, ..])
}

/// Return code and offset of the marker at or after `from`: garbage before it is skipped, as libjpeg does. `None` when the data ends
/// first.
pub fn find(data: &[u8], from: usize) -> Option<(u8, usize)> {
    let mut at = from;
    loop {
        at += data.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
        match *data.get(at + 1)? {
            0x00 => at += 2, // a stuffed byte: no marker
            0xFF => at += 1, // a fill byte
            code => return Some((code, at)),
        }
    }
}

/// Return the segment of the marker at or after `from` ([`find`]). `None` when the data ends first.
pub fn next_segment(data: &[u8], from: usize) -> Option<Segment<'_>> {
    let (code, offset) = find(data, from)?;
    let (begin, end) = match code {
        TEM | RST0..=EOI => (offset + 2, offset + 2),
        _ => {
            let length = data.get(offset + 2..)?.first_chunk().copied()?;
            let length = usize::from(u16::from_be_bytes(length));
            (offset + 4, offset + 2 + length.max(2))
        }
    };
    Some(Segment {
        code,
        offset,
        payload: data.get(begin..end)?,
        end,
    })
}

/// Return whether libjpeg passes over a segment with this code, or reads it, before the first scan (jdmarker.c, read_markers). It
/// refuses files with others, reserved or of hierarchical files, and so does Pillow.
pub fn is_known(code: u8) -> bool {
    matches!(code, TEM | SOF0..=DRI | APP0..=APP15 | COM)
}
