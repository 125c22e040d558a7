//! TIFF with JPEG compression: each strip or tile is a JPEG, whose tables may be in a tag of the file. libjpeg-turbo decodes them
//! to the pixels of Pillow's libtiff.

use tiff::tags::{CompressionMethod, PhotometricInterpretation, PlanarConfiguration, Tag};

use super::{status_of, Reader};
use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Scale, Size};
use crate::jpeg::marker::{self, next_segment};
use crate::jpeg::structure;
use crate::jpeg::turbo::{self, Extent};
use crate::limits::{self, max_pixels};

/// The strips or tiles as the tags describe them.
struct Layout {
    /// Size of a strip or tile in pixels. At the right and lower edge it may extend beyond the image.
    width: u32,
    height: u32,
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    /// Quantisation and Huffman tables: the segments between SOI and EOI.
    tables: Vec<u8>,
    /// Colours are stored as luma and chroma.
    luma_chroma: bool,
    components: u8,
}

/// Decode the whole image as RGB into `out`; return false if the file has another compression.
pub fn rgb(data: &[u8], reader: &mut Reader<'_>, size: Size, out: &mut Vec<u8>) -> Result<bool> {
    if number(reader, Tag::Compression)? != Some(u32::from(CompressionMethod::ModernJPEG.to_u16()))
    {
        return Ok(false);
    }
    let layout = layout(reader, size)?;
    let across = size.width.div_ceil(layout.width);
    let down = size.height.div_ceil(layout.height);
    let row_bytes = size.width as usize * 3;
    let (mut file, mut pixels) = (Vec::new(), Vec::new());
    // The strips or tiles share what the file may ask for: many could be one and the same part of it.
    let most_scans = limits::most_scans(size.pixels(), data.len());
    out.clear();
    for number in 0..across as usize * down as usize {
        let x = number as u32 % across * layout.width;
        let y = number as u32 / across * layout.height;
        let part = Rect::new(
            0,
            0,
            layout.width.min(size.width - x),
            layout.height.min(size.height - y),
        );
        layout.assemble(data, number, part, &mut file)?;
        let extent = Extent::Region;
        let stride =
            turbo::region_of_scans(&file, Scale::Full, part, extent, most_scans, &mut pixels)?;
        if x == 0 {
            // Only as much as has been decoded, because the stated size may be wrong.
            limits::resize(out, out.len() + part.h as usize * row_bytes, 0)?;
        }
        let begin = y as usize * row_bytes + x as usize * 3;
        let bytes = part.w as usize * 3;
        let rows = out[begin..].chunks_mut(row_bytes);
        for (row, decoded) in rows.zip(pixels.chunks(stride)).take(part.h as usize) {
            row[..bytes].copy_from_slice(&decoded[..bytes]);
        }
    }
    Ok(true)
}

fn layout(reader: &mut Reader<'_>, size: Size) -> Result<Layout> {
    let photometric = number(reader, Tag::PhotometricInterpretation)?;
    let is = |kind: PhotometricInterpretation| photometric == Some(u32::from(kind.to_u16()));
    let luma_chroma = is(PhotometricInterpretation::YCbCr);
    let gray = is(PhotometricInterpretation::BlackIsZero);
    let components = if gray { 1 } else { 3 };
    let samples = number(reader, Tag::SamplesPerPixel)?.unwrap_or(1);
    let planes = number(reader, Tag::PlanarConfiguration)?;
    if !has_bits_of_a_mode(reader)
        || !(gray || luma_chroma || is(PhotometricInterpretation::RGB))
        || samples != u32::from(components)
        || (planes == Some(u32::from(PlanarConfiguration::Planar.to_u16())) && components > 1)
    {
        return Err(Status::Unsupported);
    }
    let (width, height, places) = match number(reader, Tag::TileWidth)? {
        Some(width) => {
            let height = number(reader, Tag::TileLength)?.unwrap_or(0);
            (width, height, [Tag::TileOffsets, Tag::TileByteCounts])
        }
        None => {
            let rows = number(reader, Tag::RowsPerStrip)?.unwrap_or(u32::MAX);
            let places = [Tag::StripOffsets, Tag::StripByteCounts];
            (size.width, rows.min(size.height), places)
        }
    };
    if width == 0 || height == 0 {
        return Err(Status::CorruptHeader);
    }
    if u64::from(width) * u64::from(height) > max_pixels() {
        return Err(Status::TooLarge);
    }
    let mut column = |tag: Tag| {
        reader
            .find_tag_unsigned_vec::<u64>(tag)
            .map_err(|error| status_of(&error, Status::CorruptHeader))?
            .ok_or(Status::CorruptHeader)
    };
    let (offsets, sizes) = (column(places[0])?, column(places[1])?);
    let tables: Option<Vec<u8>> = reader
        .find_tag_unsigned_vec(Tag::JPEGTables)
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    let tables = match tables.as_deref() {
        Some([0xFF, marker::SOI, tables @ .., 0xFF, marker::EOI]) => tables.to_vec(),
        Some(_) => return Err(Status::CorruptHeader),
        None => Vec::new(),
    };
    Ok(Layout {
        width,
        height,
        offsets,
        sizes,
        tables,
        luma_chroma,
        components,
    })
}

/// Whether the tags state 8 bits. The JPEG states them itself, but Pillow finds no mode without the tags.
fn has_bits_of_a_mode(reader: &mut Reader<'_>) -> bool {
    let mut all_are = |tag: Tag, wanted: u16, or_none: bool| {
        let values = reader.find_tag_unsigned_vec::<u16>(tag).ok().flatten();
        values.map_or(or_none, |values| {
            values.iter().all(|&value| value == wanted)
        })
    };
    all_are(Tag::BitsPerSample, 8, false) && all_are(Tag::SampleFormat, 1, true)
}

fn number(reader: &mut Reader<'_>, tag: Tag) -> Result<Option<u32>> {
    reader
        .find_tag_unsigned(tag)
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

impl Layout {
    /// Write the JPEG of a strip or tile, which holds at least `part`, with its tables to `file`.
    fn assemble(&self, data: &[u8], number: usize, part: Rect, file: &mut Vec<u8>) -> Result<()> {
        let place = |column: &[u64]| column.get(number).map(|&value| usize::try_from(value));
        let (Some(Ok(offset)), Some(Ok(size))) = (place(&self.offsets), place(&self.sizes)) else {
            return Err(Status::CorruptHeader);
        };
        let end = offset.checked_add(size).ok_or(Status::Truncated)?;
        let stored = data.get(offset..end).ok_or(Status::Truncated)?;
        let Some((&[0xFF, marker::SOI], body)) = stored.split_first_chunk() else {
            return Err(Status::CorruptData);
        };
        self.check(stored, part)?;
        file.clear();
        file.extend([0xFF, marker::SOI]);
        // Adobe's marker states the colour space, which the tags of the TIFF state.
        file.extend([0xFF, marker::APP14, 0, 14]);
        file.extend(b"Adobe\0\x64\0\0\0\0");
        file.push(u8::from(self.luma_chroma));
        file.extend(&self.tables);
        file.extend(body);
        structure::check_end(Extension::best(), file, 2)
    }

    /// Refuse strips and tiles of another size or kind than the tags state, and those that state a colour space themselves.
    fn check(&self, stored: &[u8], part: Rect) -> Result<()> {
        let mut at = 2;
        loop {
            let segment = next_segment(stored, at).ok_or(Status::Truncated)?;
            match (segment.code, segment.payload) {
                (marker::APP0, _) if !self.luma_chroma && self.components == 3 => {
                    return Err(Status::Unsupported)
                }
                (marker::APP14, _) => return Err(Status::Unsupported),
                (0xC0..=0xC2, &[bits, h1, h0, w1, w0, components, ..]) => {
                    if bits != 8 || components != self.components {
                        return Err(Status::Unsupported);
                    }
                    let height = u32::from(u16::from_be_bytes([h1, h0]));
                    let width = u32::from(u16::from_be_bytes([w1, w0]));
                    let fits = (part.h..=self.height).contains(&height) && width == self.width;
                    return if fits {
                        Ok(())
                    } else {
                        Err(Status::CorruptData)
                    };
                }
                (marker::SOS | marker::EOI, _) => return Err(Status::CorruptData),
                _ => at = segment.end,
            }
        }
    }
}
