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

/// Return the segment at or after `from`: garbage before the marker is skipped, as libjpeg does. `None` when the data ends first.
pub fn next_segment(data: &[u8], from: usize) -> Option<Segment<'_>> {
    let mut at = from;
    loop {
        at += data.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
        let code = *data.get(at + 1)?;
        match code {
            0x00 => at += 2, // a stuffed byte: no marker
            0xFF => at += 1, // a fill byte
            TEM | RST0..=EOI => {
                let payload = &data[at + 2..at + 2];
                return Some(Segment {
                    code,
                    offset: at,
                    payload,
                    end: at + 2,
                });
            }
            _ => {
                let length =
                    usize::from(u16::from_be_bytes([*data.get(at + 2)?, *data.get(at + 3)?]));
                let end = at + 2 + length.max(2);
                let payload = data.get(at + 4..end)?;
                return Some(Segment {
                    code,
                    offset: at,
                    payload,
                    end,
                });
            }
        }
    }
}
