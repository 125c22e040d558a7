//! PNG by the library that the one for other formats uses too, but without colour profiles: nobody here needs one, and 1 MB of it
//! may grow to 1 GiB.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, DecodingError, Reader, Transformations};

use super::{ended_early, Samples};
use crate::error::{Result, Status};
use crate::geometry::Size;
use crate::limits;

/// The most bytes that deflate makes of one (zlib's technical details).
const MOST_FROM_ONE_BYTE: u64 = 1032;

/// Return the size that the header states.
pub fn size(data: &[u8]) -> Result<Size> {
    let (width, height) = open(data)?.info().size();
    Ok(Size { width, height })
}

/// Decode the whole image into `samples`.
pub fn samples(data: &[u8], samples: &mut Vec<u8>) -> Result<Samples> {
    if !is_complete(data) {
        return Err(Status::Truncated);
    }
    let mut reader = open(data)?;
    let info = reader.info();
    let rows = u64::from(info.height) * info.raw_row_length() as u64;
    if (data.len() as u64).saturating_mul(MOST_FROM_ONE_BYTE) < rows {
        return Err(Status::Truncated); // before memory is taken for pixels that cannot be there
    }
    let kind = layout(reader.output_color_type())?;
    let bytes = reader.output_buffer_size().ok_or(Status::TooLarge)?;
    if bytes as u64 > limits::max_bytes() {
        return Err(Status::TooLarge);
    }
    samples.clear(); // so that no pixels of an earlier image remain if the decoder skips some
    limits::resize(samples, bytes, 0)?;
    let read = reader.next_frame(samples);
    read.map_err(|error| status_of(&error, Status::CorruptData))?;
    if kind.is_wide() {
        for pair in samples.chunks_exact_mut(2) {
            let sample = u16::from_be_bytes([pair[0], pair[1]]);
            pair.copy_from_slice(&sample.to_ne_bytes());
        }
    }
    Ok(match kind {
        // The library makes an alpha channel of a transparent gray value (tRNS); Pillow keeps the file's own layout.
        Samples::GrayAlpha16 if has_no_alpha(data) => Samples::KeyedGray16,
        kind => kind,
    })
}

fn open(data: &[u8]) -> Result<Reader<Cursor<&[u8]>>> {
    let bytes = usize::try_from(limits::max_bytes()).unwrap_or(usize::MAX);
    let mut decoder = Decoder::new_with_limits(Cursor::new(data), png::Limits { bytes });
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND);
    let opened = decoder.read_info();
    opened.map_err(|error| status_of(&error, Status::CorruptHeader))
}

/// Return the layout of samples that the library gives.
fn layout((colours, bits): (ColorType, BitDepth)) -> Result<Samples> {
    Ok(match (colours, bits) {
        (ColorType::Grayscale, BitDepth::Eight) => Samples::Gray8,
        (ColorType::Grayscale, BitDepth::Sixteen) => Samples::Gray16,
        (ColorType::GrayscaleAlpha, BitDepth::Eight) => Samples::GrayAlpha8,
        (ColorType::GrayscaleAlpha, BitDepth::Sixteen) => Samples::GrayAlpha16,
        (ColorType::Rgb, BitDepth::Eight) => Samples::Rgb8,
        (ColorType::Rgb, BitDepth::Sixteen) => Samples::Rgb16,
        (ColorType::Rgba, BitDepth::Eight) => Samples::Rgba8,
        (ColorType::Rgba, BitDepth::Sixteen) => Samples::Rgba16,
        _ => return Err(Status::Unsupported),
    })
}

/// Return whether the chunks reach the end chunk. The library stops behind the pixels, wherever the file ends.
fn is_complete(data: &[u8]) -> bool {
    let mut rest = data.get(8..).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(next) = length.checked_add(4).and_then(|end| behind.get(end..)) else {
            return false;
        };
        if head[4..] == *b"IEND" {
            return true;
        }
        rest = next;
    }
    false
}

/// Return whether the colour type (byte 25, in the IHDR chunk that comes first) has no alpha channel.
fn has_no_alpha(data: &[u8]) -> bool {
    data.get(25).is_some_and(|colour_type| colour_type & 4 == 0)
}

fn status_of(error: &DecodingError, damaged: Status) -> Status {
    match error {
        DecodingError::LimitsExceeded => Status::TooLarge,
        error if ended_early(error) => Status::Truncated,
        _ => damaged,
    }
}
