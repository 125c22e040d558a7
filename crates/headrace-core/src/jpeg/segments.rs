//! The marker segments of a JPEG file, one after the other, without their meaning: what the restart writer copies from and
//! what the EXIF reader searches in.

use crate::error::{Result, Status};

/// Start of image, end of image, start of scan.
pub const SOI: u8 = 0xD8;
/// End of image.
pub const EOI: u8 = 0xD9;
/// Start of scan.
pub const SOS: u8 = 0xDA;
/// Define quantisation tables.
pub const DQT: u8 = 0xDB;
/// Define Huffman tables.
pub const DHT: u8 = 0xC4;
/// Define restart interval.
pub const DRI: u8 = 0xDD;
/// Comment.
pub const COM: u8 = 0xFE;
/// The first application segment; APPn is `APP0 + n`.
pub const APP0: u8 = 0xE0;
/// EXIF, XMP.
pub const APP1: u8 = 0xE1;

/// One marker segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The byte after 0xFF.
    pub marker: u8,
    /// The bytes after the two-byte length; empty for EOI.
    pub payload: &'a [u8],
    /// Where the byte behind the segment lies in the file.
    pub end: usize,
}

/// Walks over the segments of `data` from `position`. Bytes that belong to no segment are skipped, as libjpeg does.
pub struct Segments<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Segments<'a> {
    /// The segments behind the start-of-image marker, which must be the first two bytes.
    pub fn of_file(data: &'a [u8]) -> Result<Self> {
        match data {
            [] => Err(Status::Empty),
            [0xFF, SOI, ..] => Ok(Segments { data, position: 2 }),
            _ => Err(Status::UnknownFormat),
        }
    }

    /// The segments from `position` on, for instance behind a scan.
    pub fn from(data: &'a [u8], position: usize) -> Self {
        Segments { data, position }
    }

    /// The next segment. A file that ends before its EOI marker is truncated.
    pub fn next_segment(&mut self) -> Result<Segment<'a>> {
        let marker = loop {
            // FF 00 is a stuffed byte and FF FF a fill byte, so neither starts a segment; RSTn and TEM have no content.
            let start = self.find_ff()?;
            let marker = *self.data.get(start + 1).ok_or(Status::Truncated)?;
            self.position = start + if marker == 0xFF { 1 } else { 2 };
            if !matches!(marker, 0x00 | 0x01 | 0xD0..=0xD7 | 0xFF) {
                break marker;
            }
        };
        if marker == SOI {
            return Err(Status::CorruptHeader);
        }
        if marker == EOI {
            return Ok(Segment {
                marker,
                payload: &[],
                end: self.position,
            });
        }
        let length = match self.data.get(self.position..self.position + 2) {
            Some(bytes) => usize::from(bytes[0]) << 8 | usize::from(bytes[1]),
            None => return Err(Status::Truncated),
        };
        if length < 2 {
            return Err(Status::CorruptHeader);
        }
        let end = self.position + length;
        let payload = self
            .data
            .get(self.position + 2..end)
            .ok_or(Status::Truncated)?;
        self.position = end;
        Ok(Segment {
            marker,
            payload,
            end,
        })
    }

    fn find_ff(&self) -> Result<usize> {
        let rest = self.data.get(self.position..).ok_or(Status::Truncated)?;
        match memchr::memchr(0xFF, rest) {
            Some(offset) => Ok(self.position + offset),
            None => Err(Status::Truncated),
        }
    }
}
