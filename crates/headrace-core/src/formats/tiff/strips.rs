//! The compressed strips or tiles of a TIFF file: whether each holds all of its samples. The library fills up what is missing, and
//! reads on behind the bytes that a strip is stated to have; libtiff refuses such files.

use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status as Flate};
use tiff::tags::{CompressionMethod, PlanarConfiguration, Tag};

use super::{status_of, Reader};
use crate::error::{Result, Status};
use crate::geometry::Size;

/// Refuse a file whose strips or tiles leave it, or hold less than their samples, as [`Status::Unsupported`]: libtiff reads some of
/// them. Only PackBits, LZW and Deflate are looked into.
pub fn check(data: &[u8], reader: &mut Reader<'_>, size: Size) -> Result<()> {
    let Some(holds) = compression(reader)?.and_then(held_by) else {
        return Ok(());
    };
    for strip in strips(reader, size)? {
        let part = usize::try_from(strip.offset)
            .ok()
            .zip(usize::try_from(strip.bytes).ok())
            .and_then(|(offset, bytes)| data.get(offset..offset.checked_add(bytes)?));
        if !part.is_some_and(|part| holds(part, strip.needed)) {
            return Err(Status::Unsupported);
        }
    }
    Ok(())
}

/// Refuse a file whose strips or tiles reach into `place`, which the library does not get as it is stored. Of samples that are not
/// compressed it reads as many as there have to be, whatever number of bytes is stated.
pub fn check_apart(reader: &mut Reader<'_>, place: &Range<usize>, size: Size) -> Result<()> {
    let is_raw = compression(reader)?.is_none_or(|value| value == CompressionMethod::None.to_u16());
    let (start, end) = (place.start as u64, place.end as u64);
    let reaches = |strip: &Strip| {
        let bytes = if is_raw {
            strip.bytes.max(strip.needed)
        } else {
            strip.bytes
        };
        strip.offset < end && strip.offset.saturating_add(bytes) > start
    };
    if strips(reader, size)?.iter().any(reaches) {
        return Err(Status::Unsupported);
    }
    Ok(())
}

/// A strip or tile: where it lies, the bytes that it is stated to have, and those of its samples.
struct Strip {
    offset: u64,
    bytes: u64,
    needed: u64,
}

fn strips(reader: &mut Reader<'_>, size: Size) -> Result<Vec<Strip>> {
    let planar = Some(u32::from(PlanarConfiguration::Planar.to_u16()));
    let in_planes = number(reader, Tag::PlanarConfiguration)? == planar;
    let samples = u64::from(number(reader, Tag::SamplesPerPixel)?.unwrap_or(1));
    let bits = first(reader, Tag::BitsPerSample)?.unwrap_or(1);
    let bits = bits.saturating_mul(if in_planes { 1 } else { samples });
    let tile = number(reader, Tag::TileWidth)?;
    let (width, rows, places) = match tile {
        Some(width) => {
            let rows = number(reader, Tag::TileLength)?.unwrap_or(0);
            (width, rows, [Tag::TileOffsets, Tag::TileByteCounts])
        }
        None => {
            let rows = number(reader, Tag::RowsPerStrip)?.unwrap_or(u32::MAX);
            let places = [Tag::StripOffsets, Tag::StripByteCounts];
            (size.width, rows.min(size.height), places)
        }
    };
    if rows == 0 {
        return Err(Status::CorruptHeader);
    }
    let (offsets, sizes) = (column(reader, places[0])?, column(reader, places[1])?);
    let in_column = u64::from(size.height.div_ceil(rows));
    let row_bytes = u64::from(width).saturating_mul(bits).div_ceil(8);
    let strip = |(number, (&offset, &bytes)): (u64, (&u64, &u64))| {
        let missing_rows = match tile {
            None if number % in_column == in_column - 1 => {
                in_column * u64::from(rows) - u64::from(size.height)
            }
            _ => 0,
        };
        let needed = row_bytes.saturating_mul(u64::from(rows) - missing_rows);
        Strip {
            offset,
            bytes,
            needed,
        }
    };
    Ok((0..).zip(offsets.iter().zip(&sizes)).map(strip).collect())
}

fn compression(reader: &mut Reader<'_>) -> Result<Option<u16>> {
    Ok(number(reader, Tag::Compression)?.and_then(|value| u16::try_from(value).ok()))
}

/// Whether compressed data hold so many bytes.
type Holds = fn(&[u8], u64) -> bool;

fn held_by(compression: u16) -> Option<Holds> {
    let is = |method: CompressionMethod| method.to_u16() == compression;
    if is(CompressionMethod::PackBits) {
        Some(runs_hold)
    } else if is(CompressionMethod::LZW) {
        Some(codes_hold)
    } else if is(CompressionMethod::Deflate) || is(CompressionMethod::OldDeflate) {
        Some(stream_holds)
    } else {
        None
    }
}

fn number(reader: &mut Reader<'_>, tag: Tag) -> Result<Option<u32>> {
    reader
        .find_tag_unsigned(tag)
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

fn first(reader: &mut Reader<'_>, tag: Tag) -> Result<Option<u64>> {
    Ok(column(reader, tag)?.first().copied())
}

fn column(reader: &mut Reader<'_>, tag: Tag) -> Result<Vec<u64>> {
    reader
        .find_tag_unsigned_vec(tag)
        .map(Option::unwrap_or_default)
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

/// PackBits (TIFF 6.0, section 9).
fn runs_hold(data: &[u8], needed: u64) -> bool {
    let (mut at, mut bytes) = (0, 0);
    while bytes < needed {
        let Some(&head) = data.get(at) else {
            return false;
        };
        let (stored, made) = match head {
            0..=127 => (usize::from(head) + 1, u64::from(head) + 1),
            128 => (0, 0),
            _ => (1, 257 - u64::from(head)),
        };
        at += 1 + stored;
        if at > data.len() {
            return false;
        }
        bytes += made;
    }
    true
}

/// Return whether LZW data (TIFF 6.0, section 13) hold as many bytes as needed. They must begin with the code that clears the table.
/// Only the lengths of the strings are computed.
fn codes_hold(data: &[u8], needed: u64) -> bool {
    const CLEAR: usize = 256;
    const END: usize = 257;
    let mut lengths = [1u32; 4096];
    let (mut next, mut width, mut before) = (END + 1, 9, None);
    let (mut bits, mut held, mut bytes) = (0u32, 0, 0);
    let mut rest = data.iter();
    if !matches!(data, [0x80, 0..=0x7F, ..]) {
        return false;
    }
    while bytes < needed {
        while held < width {
            let Some(&byte) = rest.next() else {
                return false;
            };
            bits = bits << 8 | u32::from(byte);
            held += 8;
        }
        held -= width;
        let code = (bits >> held) as usize & ((1 << width) - 1);
        if code == END {
            return false;
        }
        if code == CLEAR {
            (next, width, before) = (END + 1, 9, None);
            continue;
        }
        if let Some(before) = before.filter(|_| next < lengths.len()) {
            lengths[next] = lengths[before] + 1;
            next += 1;
        }
        if code >= next {
            return false;
        }
        bytes += u64::from(lengths[code]);
        before = Some(code);
        if next >= (1 << width) - 1 && width < 12 {
            width += 1; // one code early
        }
    }
    true
}

/// Deflate with the header of zlib. What follows the last byte that is needed does not count, as for libtiff.
fn stream_holds(data: &[u8], needed: u64) -> bool {
    let mut stream = Decompress::new(true);
    let mut unread = [0; 1 << 15];
    loop {
        let read = stream.total_in() as usize;
        let before = (stream.total_in(), stream.total_out());
        let end = stream.decompress(&data[read..], &mut unread, FlushDecompress::None);
        match end {
            Ok(_) if stream.total_out() >= needed => return true,
            Ok(Flate::Ok | Flate::BufError)
                if (stream.total_in(), stream.total_out()) != before => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{write::ZlibEncoder, Compression};
    use std::io::Write;

    #[test]
    fn runs_are_counted_to_the_last_byte() {
        let data = [2, 7, 8, 9, 128, 254, 5]; // three bytes, nothing, three times 5
        assert!(runs_hold(&data, 6));
        assert!(!runs_hold(&data, 7));
        assert!(!runs_hold(&data[..6], 6));
        assert!(runs_hold(&data[..4], 3));
    }

    #[test]
    fn codes_are_counted_to_the_last_byte() {
        // Clear, 7, 258 (7 7), end: nine bits each.
        let bits = [256u64, 7, 258, 257]
            .iter()
            .fold(0, |all, code| all << 9 | code);
        let data = (bits << 4).to_be_bytes();
        assert!(codes_hold(&data[3..], 3));
        assert!(!codes_hold(&data[3..], 4));
        assert!(!codes_hold(&data[3..6], 3));
    }

    #[test]
    fn a_stream_is_read_to_the_last_byte() {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&[3; 100_000]).expect("in memory");
        let mut data = encoder.finish().expect("in memory");
        assert!(stream_holds(&data, 100_000));
        assert!(!stream_holds(&data, 100_001));
        assert!(stream_holds(&data[..data.len() - 4], 100_000)); // without the checksum
        assert!(!stream_holds(&data[..data.len() / 2], 100_000));
        data[2] ^= 0xFF;
        assert!(!stream_holds(&data, 100_000));
    }
}
