//! The first image of a TIFF file, decoded to the samples that Pillow reads.

mod jpeg;
mod strips;
mod tags;

use std::io::Cursor;

use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::{
    CompressionMethod, ExtraSamples, PhotometricInterpretation, PlanarConfiguration, Tag,
};
use tiff::{ColorType, TiffError};

use super::{ended_early, Samples};
use crate::error::{Result, Status};
use crate::exif::Directory;
use crate::geometry::Size;
use crate::limits;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

/// Return the stored size (before any orientation).
pub fn size(data: &[u8]) -> Result<Size> {
    let dimensions = open(data).and_then(|mut reader| {
        reader
            .dimensions()
            .map_err(|error| status_of(&error, Status::CorruptHeader))
    });
    match dimensions {
        Ok((0, _) | (_, 0)) => Err(Status::CorruptHeader),
        Ok((width, height)) => Ok(Size { width, height }),
        Err(Status::TooLarge) => Err(Status::Unsupported), // a number that a tag states, not the size
        Err(status) => Err(status),
    }
}

/// Decode the whole image, of the size that [`size`] found, into `out`.
pub fn samples(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<Samples> {
    tags::check(data)?;
    let most_bytes = u64::from(size.width) * u64::from(size.height) * 8;
    decoded(data, size, out).map_err(|status| match status {
        // Not the image is too large for the limits and the memory, but a number that a tag states, or a side for the library's fax
        // decoder. Others may read it.
        Status::TooLarge
            if most_bytes <= limits::max_bytes()
                && limits::check_memory(most_bytes as usize).is_ok() =>
        {
            Status::Unsupported
        }
        status => status,
    })
}

fn decoded(data: &[u8], size: Size, out: &mut Vec<u8>) -> Result<Samples> {
    if Directory::first(data).is_none() && is_turned(data)? {
        return Err(Status::Unsupported); // a BigTIFF, whose orientation `exif` does not read
    }
    if jpeg::rgb(data, &mut open(data)?, size, out)? {
        return Ok(Samples::Rgb8);
    }
    let palette = palette(data)?;
    let readable = readable_by_the_library(data, palette.is_some(), size)?;
    let mut reader = open(readable.as_deref().unwrap_or(data))?;
    if let (true, Some(directory)) = (readable.is_some(), Directory::first(data)) {
        strips::check_apart(&mut reader, &directory.place(), size)?;
    }
    let kind = reader
        .colortype()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    let facts = Facts::of(&mut reader)?;
    facts.check(kind)?;
    strips::check(data, &mut open(data)?, size)?;
    let bits = size.pixels() * u64::from(kind.num_samples()) * u64::from(kind.bit_depth());
    limits::check_memory(usize::try_from(bits / 8).unwrap_or(usize::MAX))?;
    let mut image = DecodingResult::U8(Vec::new());
    let layout = reader.read_image_to_buffer(&mut image).map_err(|error| {
        match status_of(&error, Status::CorruptData) {
            // The library takes a read of LZW data that gives no byte yet for their end, at the right edge of sound files too.
            Status::Truncated if facts.tiled && facts.lzw => Status::Unsupported,
            status => status,
        }
    })?;
    out.clear();
    let width = size.width as usize;
    let samples = match palette {
        Some(palette) => apply_palette(kind, image, width, &palette, out)?,
        None => store_values(kind, image, width, facts.white_is_zero, out)?,
    };
    if layout.planes > 1 {
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
    limits::reserve(out, 3 * packed.len() * 8 / usize::from(bits))?;
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
            limits::reserve(out, packed.len() * 8 / usize::from(bits))?;
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
            limits::reserve(out, 2 * values.len())?;
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
    let mut together = limits::filled(samples.len(), 0)?;
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
    let mut most = Limits::default();
    most.decoding_buffer_size = limits::max_bytes() as usize;
    most.intermediate_buffer_size = limits::max_bytes() as usize;
    Decoder::new(Cursor::new(data))
        .map(|reader| reader.with_limits(most))
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

/// Tags that decide whether the library's pixels are right.
struct Facts {
    samples: u16,
    tiled: bool,
    lzw: bool,
    planar: bool,
    predictor: bool,
    /// The kind of the first channel after the colours.
    alpha: Option<u16>,
    /// In gray images the largest value is black.
    white_is_zero: bool,
}

impl Facts {
    /// Read the tags; refuse images that the library would decode differently from Pillow.
    fn of(reader: &mut Reader<'_>) -> Result<Self> {
        let mut first = |tag: Tag| {
            let values = reader.find_tag_unsigned_vec::<u32>(tag).ok().flatten();
            let value = values.and_then(|values| values.first().copied());
            value.map(|value| u16::try_from(value).unwrap_or(u16::MAX))
        };
        let photometric = first(Tag::PhotometricInterpretation);
        let is = |kind: PhotometricInterpretation| photometric == Some(kind as u16);
        let luma_chroma = is(PhotometricInterpretation::YCbCr);
        let lowest_bit_first = first(Tag::FillOrder) == Some(2); // the library ignores it
        let compression = first(Tag::Compression);
        let predictor = first(Tag::Predictor).is_some_and(|predictor| predictor > 1);
        // The library undoes a predictor whatever the compression is; libtiff only in LZW and Deflate data.
        let disputed_predictor = predictor && !compression.is_some_and(may_have_a_predictor);
        if luma_chroma || lowest_bit_first || disputed_predictor {
            return Err(Status::Unsupported);
        }
        Ok(Facts {
            samples: first(Tag::SamplesPerPixel).unwrap_or(1),
            tiled: first(Tag::TileWidth).is_some(),
            lzw: compression == Some(CompressionMethod::LZW.to_u16()),
            planar: first(Tag::PlanarConfiguration) == Some(PlanarConfiguration::Planar.to_u16()),
            predictor,
            alpha: first(Tag::ExtraSamples),
            white_is_zero: is(PhotometricInterpretation::WhiteIsZero),
        })
    }

    /// Refuse the layouts that the library (tiff 0.11) decodes to wrong pixels, or in which it panics, and those that neither it nor
    /// Pillow defines. `tests/images/test_tiff_layouts.py` compares all of them with Pillow.
    fn check(&self, kind: ColorType) -> Result<()> {
        let drops_samples = self.samples > kind.num_samples();
        let refused = if self.planar {
            // Tiles in planes: a panic. Samples after the colours: Pillow reads 8-bit RGB with unassociated alpha, and of other kinds
            // not every plane.
            // One plane: Pillow takes the first letter of its mode, which is another mode for 16 bits and where 0 is white.
            let plain_alpha = kind == ColorType::RGBA(8)
                && self.alpha == Some(ExtraSamples::UnassociatedAlpha as u16);
            let other_mode = self.samples == 1 && (kind.bit_depth() != 8 || self.white_is_zero);
            self.tiled || drops_samples || other_mode || (self.alpha.is_some() && !plain_alpha)
        } else {
            // Where the library drops samples, it undoes a predictor with the wrong distance, and writes beyond the tile.
            drops_samples && (self.tiled || self.predictor)
        };
        let without_a_mode = self.samples > 4 && kind.bit_depth() != 8;
        if refused || without_a_mode {
            Err(Status::Unsupported)
        } else {
            Ok(())
        }
    }
}

/// Whether the file states another orientation than upright.
fn is_turned(data: &[u8]) -> Result<bool> {
    let orientation = open(data)?.find_tag_unsigned::<u32>(Tag::Orientation);
    Ok(!matches!(orientation, Ok(None | Some(1))))
}

/// Whether the format defines predictors for a compression (TIFF 6.0, section 14, and its supplement on Deflate).
fn may_have_a_predictor(compression: u16) -> bool {
    [
        CompressionMethod::LZW,
        CompressionMethod::Deflate,
        CompressionMethod::OldDeflate,
    ]
    .iter()
    .any(|method| method.to_u16() == compression)
}

const PHOTOMETRIC_TAG: u32 = 262;
const ROWS_PER_STRIP_TAG: u32 = 278;

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

/// Return a changed copy of a file that the library cannot read as it is: one with a palette is declared as gray, and a strip that
/// states more rows than the image has (2³² − 1 is TIFF's default) as one of all rows.
fn readable_by_the_library(data: &[u8], palette: bool, size: Size) -> Result<Option<Vec<u8>>> {
    let Some(directory) = Directory::first(data) else {
        // BigTIFF, or a damaged file.
        return if palette {
            Err(Status::Unsupported)
        } else {
            Ok(None)
        };
    };
    let last = |tag: u32| directory.entries(tag).last();
    let strip = last(ROWS_PER_STRIP_TAG).filter(|&entry| {
        let rows = directory.value(entry);
        rows.is_some_and(|rows| rows > size.height)
    });
    if !palette && strip.is_none() {
        return Ok(None);
    }
    let mut copy = data.to_vec();
    if palette {
        let entry = last(PHOTOMETRIC_TAG).ok_or(Status::Unsupported)?;
        let gray = PhotometricInterpretation::BlackIsZero.to_u16();
        directory.set_value(entry, u32::from(gray), &mut copy);
    }
    if let Some(entry) = strip {
        directory.set_value(entry, size.height, &mut copy);
    }
    Ok(Some(copy))
}

fn status_of(error: &TiffError, damaged: Status) -> Status {
    match error {
        TiffError::UnsupportedError(_) => Status::Unsupported,
        TiffError::LimitsExceeded | TiffError::IntSizeError => Status::TooLarge,
        error if ended_early(error) => Status::Truncated,
        _ => damaged,
    }
}
