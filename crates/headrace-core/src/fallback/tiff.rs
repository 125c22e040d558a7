//! The first image of a TIFF file as samples that Pillow would see.

use std::io::Cursor;

use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::{ExtraSamples, PhotometricInterpretation, PlanarConfiguration, Tag};
use tiff::{ColorType, TiffError};

use super::{ended_early, Samples, MAX_BYTES};
use crate::decode::Size;
use crate::error::{Result, Status};
use crate::exif::Directory;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

/// The stored size (before any orientation).
pub fn size(data: &[u8]) -> Result<Size> {
    let (width, height) = open(data)?
        .dimensions()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    if width == 0 || height == 0 {
        return Err(Status::CorruptHeader);
    }
    Ok(Size { width, height })
}

/// Decodes the whole image, of the size that [`size`] found, into `out`.
pub fn samples(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<Samples> {
    let palette = palette(data)?;
    let indexed = palette
        .as_ref()
        .map(|_| with_palette_read_as_gray(data))
        .transpose()?;
    let mut reader = open(indexed.as_deref().unwrap_or(data))?;
    let kind = reader
        .colortype()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    refuse_what_pillow_reads_otherwise(&mut reader)?;
    let image = reader
        .read_image()
        .map_err(|error| status_of(&error, Status::CorruptData))?;
    out.clear();
    let samples = match (kind, image, palette) {
        (ColorType::Gray(8), DecodingResult::U8(indices), Some(palette)) => {
            out.extend(
                indices
                    .iter()
                    .flat_map(|&index| palette[usize::from(index)]),
            );
            Samples::Rgb8
        }
        (_, _, Some(_)) => return Err(Status::Unsupported),
        (ColorType::Gray(1), DecodingResult::U8(bits), None) => {
            let width = size.width as usize;
            for row in bits.chunks_exact(width.div_ceil(8)) {
                out.extend((0..width).map(|x| {
                    if row[x / 8] << (x % 8) & 0x80 != 0 {
                        255
                    } else {
                        0
                    }
                }));
            }
            Samples::Gray8
        }
        (kind, DecodingResult::U8(values), None) => {
            *out = values;
            match kind {
                ColorType::Gray(8) => Samples::Gray8,
                ColorType::Multiband {
                    bit_depth: 8,
                    num_samples: 2,
                } => Samples::GrayAlpha8,
                ColorType::RGB(8) => Samples::Rgb8,
                ColorType::RGBA(8) => Samples::Rgba8,
                ColorType::CMYK(8) => Samples::Cmyk8,
                _ => return Err(Status::Unsupported),
            }
        }
        (kind, DecodingResult::U16(values), None) => {
            out.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
            match kind {
                ColorType::Gray(16) => Samples::Gray16,
                ColorType::RGB(16) => Samples::Rgb16,
                ColorType::RGBA(16) => Samples::Rgba16,
                ColorType::CMYK(16) => Samples::Cmyk16,
                _ => return Err(Status::Unsupported),
            }
        }
        _ => return Err(Status::Unsupported),
    };
    if out.len() < size.width as usize * size.height as usize * samples.bytes() {
        return Err(Status::Truncated);
    }
    Ok(samples)
}

fn open(data: &[u8]) -> Result<Reader<'_>> {
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_BYTES as usize;
    limits.intermediate_buffer_size = MAX_BYTES as usize;
    Decoder::new(Cursor::new(data))
        .map(|reader| reader.with_limits(limits))
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

/// Kinds that decode, but not to Pillow's pixels.
fn refuse_what_pillow_reads_otherwise(reader: &mut Reader<'_>) -> Result<()> {
    let mut tag = |tag: Tag| {
        reader
            .find_tag_unsigned_vec::<u16>(tag)
            .ok()
            .flatten()
            .unwrap_or_default()
    };
    let planes =
        tag(Tag::PlanarConfiguration).first() == Some(&(PlanarConfiguration::Planar as u16));
    let premultiplied =
        tag(Tag::ExtraSamples).first() == Some(&(ExtraSamples::AssociatedAlpha as u16));
    let several = tag(Tag::SamplesPerPixel)
        .first()
        .is_some_and(|&samples| samples > 1);
    let luma_chroma = tag(Tag::PhotometricInterpretation).first()
        == Some(&(PhotometricInterpretation::YCbCr as u16));
    if (planes && several) || premultiplied || luma_chroma {
        return Err(Status::Unsupported);
    }
    Ok(())
}

const PHOTOMETRIC_TAG: u32 = 262;

/// The colours of an image with a palette: all reds, all greens, all blues, of 16 bits, whose upper bytes count.
fn palette(data: &[u8]) -> Result<Option<[[u8; 3]; 256]>> {
    let mut reader = open(data)?;
    let header = |error: TiffError| status_of(&error, Status::CorruptHeader);
    let photometric: Option<u16> = reader
        .find_tag_unsigned(Tag::PhotometricInterpretation)
        .map_err(header)?;
    if photometric != Some(PhotometricInterpretation::RGBPalette as u16) {
        return Ok(None);
    }
    let values: Option<Vec<u16>> = reader
        .find_tag_unsigned_vec(Tag::ColorMap)
        .map_err(header)?;
    let values = values.ok_or(Status::MissingTable)?;
    if values.len() != 3 * 256 {
        return Err(Status::Unsupported); // fewer than 8 bits a pixel
    }
    Ok(Some(std::array::from_fn(|index| {
        [0, 1, 2].map(|channel| (values[256 * channel + index] >> 8) as u8)
    })))
}

/// The file with its palette declared as gray, because the library reads no palettes.
fn with_palette_read_as_gray(data: &[u8]) -> Result<Vec<u8>> {
    let entry = Directory::first(data)
        .and_then(|directory| directory.entries(PHOTOMETRIC_TAG).last())
        .ok_or(Status::Unsupported)?;
    let mut copy = data.to_vec();
    let black_is_zero: u16 = 1;
    copy[entry + 8..entry + 10].copy_from_slice(&match data {
        [b'M', ..] => black_is_zero.to_be_bytes(),
        _ => black_is_zero.to_le_bytes(),
    });
    Ok(copy)
}

fn status_of(error: &TiffError, damaged: Status) -> Status {
    match error {
        TiffError::UnsupportedError(_) => Status::Unsupported,
        TiffError::LimitsExceeded | TiffError::IntSizeError => Status::TooLarge,
        error if ended_early(error) => Status::Truncated,
        _ => damaged,
    }
}
