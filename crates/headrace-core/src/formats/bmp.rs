//! What the library does otherwise than Pillow in bitmaps: widening of 5 and 6 bits, wrong data offsets, odd depths and masks.
//! Run-length compression is decoded here, and so are bitmaps with a longer side than the library reads.

use crate::error::{Result, Status};
use crate::geometry::Size;
use crate::limits;

/// Bits of red, green and blue.
type Depths = [u32; 3];

/// The fields of the file header and of a BITMAPINFOHEADER or one of its successors.
struct Header {
    data_at: usize,
    header_bytes: usize,
    width: i32,
    /// Negative if the file begins with the top row of the image.
    height: i32,
    bits: u32,
    compression: u32,
    /// Entries of the palette; 0 means all that the depth allows.
    colours: usize,
    masks: [u32; 3],
}

const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BITFIELDS: u32 = 3;

/// Read the fields; `None` for a header of the first kind, which has none of these.
fn header(data: &[u8]) -> Option<Header> {
    let number = |offset: usize, bytes: usize| -> u32 {
        let field = data.get(offset..offset + bytes).unwrap_or_default();
        field
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u32::from(byte))
    };
    // The information header follows the file header of 14 bytes: width and height at 4 and 8, bits per pixel at 14, compression at 16, colours at 32, masks at 40.
    let header_bytes = number(14, 4) as usize;
    (header_bytes >= 40).then(|| Header {
        data_at: number(10, 4) as usize,
        header_bytes,
        width: number(14 + 4, 4) as i32,
        height: number(14 + 8, 4) as i32,
        bits: number(14 + 14, 2),
        compression: number(14 + 16, 4),
        colours: number(14 + 32, 4) as usize,
        masks: [40, 44, 48].map(|offset| number(14 + offset, 4)),
    })
}

impl Header {
    /// Return the number of palette entries.
    fn palette(&self) -> usize {
        match (self.bits, self.colours) {
            (bits @ (1 | 4 | 8), 0) => 1 << bits,
            (1 | 4 | 8, colours) => colours,
            _ => 0,
        }
    }

    /// Return the depths of a bitmap of 16 bits per pixel, `None` for other bitmaps.
    fn depths(&self) -> Result<Option<Depths>> {
        if self.bits != 16 {
            return Ok(None);
        }
        match (self.compression, self.masks) {
            (0, _) | (BITFIELDS, [0x7C00, 0x3E0, 0x1F]) => Ok(Some([5, 5, 5])),
            (BITFIELDS, [0xF800, 0x7E0, 0x1F]) => Ok(Some([5, 6, 5])),
            _ => Err(Status::Unsupported),
        }
    }
}

/// Refuse kinds that Pillow does not read, and files whose pixels would begin inside the header or the palette.
pub fn check(data: &[u8]) -> Result<()> {
    let Some(header) = header(data) else {
        return Ok(());
    };
    if !matches!(header.bits, 1 | 4 | 8 | 16 | 24 | 32) {
        return Err(Status::Unsupported);
    }
    header.depths()?;
    let whole_bytes = |mask: &u32| [0xFF, 0xFF00, 0xFF_0000, 0xFF00_0000].contains(mask);
    if header.bits == 32 && header.compression == BITFIELDS && !header.masks.iter().all(whole_bytes)
    {
        return Err(Status::Unsupported);
    }
    if header.palette() > 256 || header.data_at < 14 + header.header_bytes + 4 * header.palette() {
        return Err(Status::CorruptHeader);
    }
    Ok(())
}

/// Return whether Pillow reads a bitmap as it is read here, if at all: without run lengths, of which it refuses some; with a header
/// and a mask of alpha that it knows; and, if its colours are fewer than its depth allows, with other ones than the first gray levels,
/// which Pillow takes for a gray image of all levels.
pub fn is_usual(data: &[u8]) -> bool {
    let Some(header) = header(data) else {
        return true;
    };
    let known = matches!(header.header_bytes, 40 | 52 | 56 | 108 | 124);
    let alpha = data.get(14 + 52..14 + 56).unwrap_or(&[0; 4]);
    let masks = match header.compression {
        0 => true,
        BITFIELDS => header.bits == 16 || matches!(alpha, [0, 0, 0, 0 | 0xFF]),
        _ => false,
    };
    let colours = header.palette();
    let at = 14 + header.header_bytes;
    let ramp = (header.bits <= 8 && colours < 1 << header.bits)
        .then(|| data.get(at..at + 4 * colours))
        .flatten()
        .is_some_and(|palette| {
            let entries = palette.chunks_exact(4);
            (0..).zip(entries).all(|(level, bgr)| {
                let black_or_white = if level == 0 { 0 } else { 255 };
                bgr[..3] == [level; 3] || (colours == 2 && bgr[..3] == [black_or_white; 3])
            })
        });
    known && masks && !ramp
}

/// The longest side that the library reads.
const LONGEST_SIDE: u32 = 65_535;

/// Return the size of a bitmap with a longer side than the library reads; `None` for other bitmaps.
pub fn size_beyond_the_library(data: &[u8]) -> Option<Size> {
    let header = header(data).filter(|header| header.width > 0 && header.height != 0)?;
    let size = Size {
        width: header.width as u32,
        height: header.height.unsigned_abs(),
    };
    (size.width.max(size.height) > LONGEST_SIDE).then_some(size)
}

/// Decode a bitmap without compression and with a longer side than the library reads as RGB into `out`; return false for others.
pub fn beyond_the_library(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<bool> {
    let Some(header) = header(data).filter(|_| size.width.max(size.height) > LONGEST_SIDE) else {
        return Ok(false);
    };
    if header.compression != 0 || header.bits == 16 {
        return Err(Status::Unsupported);
    }
    let (width, height) = (size.width as usize, size.height as usize);
    let bits = header.bits as usize;
    let stride = (width * bits).div_ceil(32) * 4;
    let end = header.data_at + stride * height; // the caller has checked the number of pixels
    let pixels = data.get(header.data_at..end).ok_or(Status::Truncated)?;
    let at = 14 + header.header_bytes;
    let palette = data.get(at..at + 4 * header.palette());
    let palette = palette.ok_or(Status::Truncated)?;
    let colour = |index: u8| {
        let entry = palette.chunks_exact(4).nth(usize::from(index));
        entry.map_or([0; 3], |bgr| [bgr[2], bgr[1], bgr[0]])
    };
    out.clear();
    limits::reserve(out, 3 * width * height)?;
    for number in 0..height {
        let stored = if header.height < 0 {
            number
        } else {
            height - 1 - number
        };
        let row = &pixels[stored * stride..][..stride];
        match bits {
            24 | 32 => {
                let samples = row.chunks_exact(bits / 8).take(width);
                out.extend(samples.flat_map(|bgr| [bgr[2], bgr[1], bgr[0]]));
            }
            _ => out.extend((0..width).flat_map(|x| {
                let behind = 8 - bits - x * bits % 8;
                colour(row[x * bits / 8] >> behind & ((1u16 << bits) - 1) as u8)
            })),
        }
    }
    Ok(true)
}

/// Convert RGB or RGBA samples (`channels`) that were widened by rounding to Pillow's, which truncates value × 255 / maximum.
pub fn truncate_like_pillow(data: &[u8], channels: usize, samples: &mut [u8]) -> Result<()> {
    let Some(depths) = header(data).map_or(Ok(None), |header| header.depths())? else {
        return Ok(());
    };
    let tables = depths.map(|bits| {
        let maximum = (1u32 << bits) - 1;
        std::array::from_fn::<u8, 256, _>(|widened| {
            let value = (widened as u32 * maximum + 127) / 255;
            (value * 255 / maximum) as u8
        })
    });
    for pixel in samples.chunks_exact_mut(channels) {
        for (sample, table) in pixel.iter_mut().zip(&tables) {
            *sample = table[usize::from(*sample)];
        }
    }
    Ok(())
}

/// Decode a run-length compressed bitmap as RGB into `out`; return false for other bitmaps. Pixels that the data skip have colour 0.
pub fn rle(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<bool> {
    let Some(header) = header(data).filter(|h| matches!(h.compression, RLE8 | RLE4)) else {
        return Ok(false);
    };
    let nibbles = header.compression == RLE4;
    if header.bits != if nibbles { 4 } else { 8 } {
        return Err(Status::CorruptHeader);
    }
    if header.data_at % 2 == 1 || header.height < 0 {
        return Err(Status::Unsupported);
    }
    let width = size.width as usize;
    let mut indices = limits::filled(width * size.height as usize, 0)?; // rows from the bottom up
    let coded = data.get(header.data_at..).ok_or(Status::Truncated)?;
    fill_indices(coded, nibbles, width, &mut indices)?;
    let at = 14 + header.header_bytes;
    let palette = data.get(at..at + 4 * header.palette());
    let palette = palette.ok_or(Status::Truncated)?;
    out.clear();
    limits::reserve(out, 3 * indices.len())?;
    for row in indices.chunks_exact(width).rev() {
        for &index in row {
            // As in Pillow, an index beyond the palette is black.
            let entry = palette.chunks_exact(4).nth(usize::from(index));
            out.extend(entry.map_or([0; 3], |bgr| [bgr[2], bgr[1], bgr[0]]));
        }
    }
    Ok(true)
}

/// Write the colour numbers of the runs to `indices`, which are 0. Pixels that a jump, an empty row, or the end of a row skips stay
/// 0, as in Pillow. Data that end before the last row, or leave a row, are damaged; but runs may fill a row up to whole words, as
/// in a bitmap without compression (ImageMagick writes them so), and what lies behind its end is dropped.
///
/// Pillow pads stored pixels to even places in the file, so `coded` must begin at one.
fn fill_indices(coded: &[u8], nibbles: bool, width: usize, indices: &mut [u8]) -> Result<()> {
    let mut at = 0; // in `coded`
    let mut to = 0; // in `indices`
    let mut full = false; // `to` is the end of a row, not the start of the next one
    let mut empty_rows = false;
    let padding = width.next_multiple_of(if nibbles { 8 } else { 4 }) - width;
    let mut spare = padding; // pixels of padding that the row may still have
    while to < indices.len() {
        let [count, value] = code(coded, &mut at).ok_or(Status::Truncated)?;
        let room = if full { 0 } else { width - to % width };
        match (count, value) {
            (0, 0) => {
                empty_rows |= room == width;
                to += room;
                full = false;
                spare = padding;
            }
            (0, 1) => return Err(Status::Truncated),
            (0, 2) => {
                let [right, up] = code(coded, &mut at)
                    .ok_or(Status::Truncated)?
                    .map(usize::from);
                if right > room || to + right + up * width > indices.len() {
                    return Err(Status::CorruptData);
                }
                to += right + up * width;
                full |= right > 0 && right == room;
            }
            (length, _) => {
                let mut pixels = usize::from(if length == 0 { value } else { length });
                if length > 0 && pixels > room && pixels - room <= spare {
                    spare -= pixels - room;
                    pixels = room;
                }
                if pixels > room {
                    return Err(Status::CorruptData);
                }
                let target = &mut indices[to..to + pixels];
                if length == 0 {
                    let bytes = if nibbles { pixels.div_ceil(2) } else { pixels };
                    let stored = coded.get(at..at + bytes).ok_or(Status::Truncated)?;
                    copy_pixels(stored, nibbles, target);
                    at += bytes + bytes % 2; // padded to words
                } else {
                    repeat_pixels(value, nibbles, target);
                }
                to += pixels;
                full = pixels == room;
            }
        }
    }
    // Pillow has no empty rows. It refuses such a file for its missing pixels unless more pixels follow.
    let mut ends = std::iter::from_fn(|| code(coded, &mut at)).skip_while(|&end| end == [0, 0]);
    if empty_rows && ends.next().is_some_and(|end| end != [0, 1]) {
        return Err(Status::Unsupported);
    }
    Ok(())
}

/// Read the next two bytes.
fn code(coded: &[u8], at: &mut usize) -> Option<[u8; 2]> {
    let code = *coded.get(*at..)?.first_chunk()?;
    *at += 2;
    Some(code)
}

/// Write pixels that are stored one by one: a byte each, or half a byte, the upper half first.
fn copy_pixels(stored: &[u8], nibbles: bool, target: &mut [u8]) {
    for (number, index) in target.iter_mut().enumerate() {
        *index = match (nibbles, number % 2) {
            (false, _) => stored[number],
            (true, 0) => stored[number / 2] >> 4,
            (true, _) => stored[number / 2] & 15,
        };
    }
}

/// Write a run: one colour, or the two halves of a byte in turn.
fn repeat_pixels(value: u8, nibbles: bool, target: &mut [u8]) {
    for (number, index) in target.iter_mut().enumerate() {
        *index = match (nibbles, number % 2) {
            (false, _) => value,
            (true, 0) => value >> 4,
            (true, _) => value & 15,
        };
    }
}
