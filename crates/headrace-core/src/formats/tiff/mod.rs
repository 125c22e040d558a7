//! The first image of a TIFF file, decoded to the samples that Pillow reads.

mod jpeg;

use std::io::Cursor;

use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::{ExtraSamples, PhotometricInterpretation, Tag};
use tiff::{ColorType, TiffError};

use super::{ended_early, Samples, MAX_BYTES};
use crate::error::{Result, Status};
use crate::exif::Directory;
use crate::geometry::Size;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

/// Return the stored size (before any orientation).
pub fn size(data: &[u8]) -> Result<Size> {
    let (width, height) = open(data)?
        .dimensions()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    if width == 0 || height == 0 {
        return Err(Status::CorruptHeader);
    }
    Ok(Size { width, height })
}

/// Decode the whole image, of the size that [`size`] found, into `out`.
pub fn samples(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<Samples> {
    if jpeg::rgb(data, &mut open(data)?, size, out)? {
        return Ok(Samples::Rgb8);
    }
    let palette = palette(data)?;
    let indexed = palette
        .as_ref()
        .map(|_| with_palette_read_as_gray(data))
        .transpose()?;
    let mut reader = open(indexed.as_deref().unwrap_or(data))?;
    let kind = reader
        .colortype()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    let facts = Facts::of(&mut reader)?;
    let mut image = DecodingResult::U8(Vec::new());
    let layout = reader
        .read_image_to_buffer(&mut image)
        .map_err(|error| status_of(&error, Status::CorruptData))?;
    out.clear();
    let width = size.width as usize;
    let samples = match palette {
        Some(palette) => apply_palette(kind, image, width, &palette, out)?,
        None => store_values(kind, image, width, facts.white_is_zero, out)?,
    };
    if layout.planes > 1 {
        if samples == Samples::Rgba8 && facts.alpha.is_none() {
            return Err(Status::Unsupported); // Pillow does not always read the fourth plane
        }
        interleave(out, layout.planes, samples.bytes())?;
    }
    if out.len() < width * size.height as usize * samples.bytes() {
        return Err(Status::Truncated);
    }
    if facts.alpha == Some(ExtraSamples::AssociatedAlpha as u16) {
        return undo_premultiplication(samples, out);
    }
    Ok(samples)
}

/// Write the colours of palette indices to `out`, in rows of `width` pixels.
fn apply_palette(
    kind: ColorType,
    image: DecodingResult,
    width: usize,
    palette: &[[u8; 3]],
    out: &mut Vec<u8>,
) -> Result<Samples> {
    let (ColorType::Gray(bits @ (1 | 2 | 4 | 8)), DecodingResult::U8(packed)) = (kind, image)
    else {
        return Err(Status::Unsupported);
    };
    if palette.len() != 1 << bits {
        return Err(Status::Unsupported);
    }
    out.extend(unpacked(&packed, width, bits).flat_map(|index| palette[index]));
    Ok(Samples::Rgb8)
}

/// Write the samples of an image without a palette to `out`, in rows of `width` pixels.
fn store_values(
    kind: ColorType,
    image: DecodingResult,
    width: usize,
    white_is_zero: bool,
    out: &mut Vec<u8>,
) -> Result<Samples> {
    Ok(match (kind, image) {
        (ColorType::Gray(bits @ (1 | 2 | 4)), DecodingResult::U8(packed)) => {
            let step = 255 / ((1u8 << bits) - 1);
            out.extend(unpacked(&packed, width, bits).map(|value| value as u8 * step));
            Samples::Gray8
        }
        (kind, DecodingResult::U8(values)) => {
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
        (kind, DecodingResult::U16(values)) => {
            // The library inverts images in which 0 is white; Pillow leaves 16-bit gray as stored.
            let as_stored = if white_is_zero { u16::MAX } else { 0 };
            out.extend(
                values
                    .iter()
                    .flat_map(|value| (value ^ as_stored).to_ne_bytes()),
            );
            match kind {
                ColorType::Gray(16) => Samples::Gray16,
                ColorType::RGB(16) => Samples::Rgb16,
                ColorType::RGBA(16) => Samples::Rgba16,
                ColorType::CMYK(16) => Samples::Cmyk16,
                _ => return Err(Status::Unsupported),
            }
        }
        _ => return Err(Status::Unsupported),
    })
}

/// Divide premultiplied samples by alpha, as Pillow does; return their new layout.
fn undo_premultiplication(samples: Samples, out: &mut Vec<u8>) -> Result<Samples> {
    match samples {
        Samples::Rgba8 => {}
        Samples::Rgba16 => {
            // Pillow keeps the upper bytes before it divides.
            *out = out
                .chunks_exact(2)
                .map(|pair| (u16::from_ne_bytes([pair[0], pair[1]]) >> 8) as u8)
                .collect();
        }
        _ => return Err(Status::Unsupported),
    }
    divide_by_alpha(out);
    Ok(Samples::Rgba8)
}

/// Return the samples of `bits` bits each, at most 8. Each row begins with a new byte.
fn unpacked(packed: &[u8], width: usize, bits: u8) -> impl Iterator<Item = usize> + '_ {
    let bits = usize::from(bits);
    let in_a_byte = 8 / bits;
    packed
        .chunks_exact((width * bits).div_ceil(8))
        .flat_map(move |row| {
            (0..width).map(move |x| {
                let behind = 8 - bits * (x % in_a_byte + 1);
                usize::from(row[x / in_a_byte] >> behind) & ((1 << bits) - 1)
            })
        })
}

/// Interleave the samples of an image whose channels are stored one after the other.
fn interleave(samples: &mut Vec<u8>, channels: usize, pixel_bytes: usize) -> Result<()> {
    if pixel_bytes != channels {
        return Err(Status::Unsupported); // Pillow reads 16-bit samples in separate planes as 8-bit samples
    }
    let mut together = vec![0; samples.len()];
    let plane = samples.len() / channels;
    for (pixel, out) in together.chunks_exact_mut(channels).enumerate() {
        for (channel, sample) in out.iter_mut().enumerate() {
            *sample = samples[plane * channel + pixel];
        }
    }
    *samples = together;
    Ok(())
}

/// Divide premultiplied RGBA pixels by alpha as Pillow does: clipped at 255, and black where alpha is 0.
fn divide_by_alpha(rgba: &mut [u8]) {
    for pixel in rgba.chunks_exact_mut(4) {
        let alpha = u32::from(pixel[3]);
        for colour in &mut pixel[..3] {
            *colour = (u32::from(*colour) * 255)
                .checked_div(alpha)
                .map_or(0, |value| value.min(255) as u8);
        }
    }
}

fn open(data: &[u8]) -> Result<Reader<'_>> {
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_BYTES as usize;
    limits.intermediate_buffer_size = MAX_BYTES as usize;
    Decoder::new(Cursor::new(data))
        .map(|reader| reader.with_limits(limits))
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

/// Tags that the library does not interpret.
struct Facts {
    /// The kind of the first channel after the colours.
    alpha: Option<u16>,
    /// In gray images the largest value is black.
    white_is_zero: bool,
}

impl Facts {
    /// Read the tags; refuse images that the library would decode differently from Pillow.
    fn of(reader: &mut Reader<'_>) -> Result<Self> {
        let mut first = |tag: Tag| {
            let values = reader.find_tag_unsigned_vec::<u16>(tag).ok().flatten();
            values.and_then(|values| values.first().copied())
        };
        let photometric = first(Tag::PhotometricInterpretation);
        let luma_chroma = photometric == Some(PhotometricInterpretation::YCbCr as u16);
        let lowest_bit_first = first(Tag::FillOrder) == Some(2); // the library ignores it
        if luma_chroma || lowest_bit_first {
            return Err(Status::Unsupported);
        }
        Ok(Facts {
            alpha: first(Tag::ExtraSamples),
            white_is_zero: photometric == Some(PhotometricInterpretation::WhiteIsZero as u16),
        })
    }
}

const PHOTOMETRIC_TAG: u32 = 262;

/// Return the palette of an image, or `None`. The file stores all reds, all greens, all blues as 16 bits, of which the upper byte
/// counts.
fn palette(data: &[u8]) -> Result<Option<Vec<[u8; 3]>>> {
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
    let colours = values.len() / 3;
    let colour =
        |index: usize| [0, 1, 2].map(|channel| (values[colours * channel + index] >> 8) as u8);
    Ok(Some((0..colours).map(colour).collect()))
}

/// Return a copy of the file that is declared as gray, because the library does not read palettes.
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
