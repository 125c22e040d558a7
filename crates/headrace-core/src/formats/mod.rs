//! Formats other than JPEG, decoded by maintained libraries to the pixels of Pillow's `open().convert("RGB")`: alpha is
//! dropped, palettes are applied, 16-bit colour keeps its upper byte, and 16-bit gray is clipped at 255, as Pillow does,
//! or keeps its upper byte too where the caller asks for it.
//!
//! The whole image is decoded, because these formats allow no random access, then the region is converted. Of an animation the
//! first frame is decoded. Images that the libraries read differently from Pillow, or not at all, are [`Status::Unsupported`]:
//! TIFF with other colours than gray, RGB, CMYK and palettes, with 12 or 32 bits, signed numbers, floating point, or bits in
//! reverse order, and with JPEG compression of anything but gray, RGB and YCbCr.

pub(crate) mod bmp;
pub(crate) mod gif;
mod libwebp;
mod png;
mod pnm;
mod tiff;
mod webp;

use std::io::{Cursor, ErrorKind};

use image::codecs::bmp::BmpDecoder;
use image::error::ImageError;
use image::{ColorType, ImageDecoder, Limits};

use crate::error::{or_internal, Result, Status};
use crate::geometry::{Rect, Size};
use crate::limits;

/// A format, detected from the first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Portable Network Graphics; of an animation the default image.
    Png,
    /// WebP, lossy or lossless.
    WebP,
    /// Graphics Interchange Format.
    Gif,
    /// Tagged Image File Format.
    Tiff,
    /// Windows bitmap.
    Bmp,
    /// Portable bitmap, graymap or pixmap (PBM, PGM, PPM).
    Pnm,
}

impl Format {
    /// Return the format of `data` by its signature.
    pub fn of(data: &[u8]) -> Option<Self> {
        match data {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Format::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Format::Gif),
            [b'I', b'I', b'*' | b'+', 0, ..] | [b'M', b'M', 0, b'*' | b'+', ..] => {
                Some(Format::Tiff)
            }
            [b'B', b'M', ..] => Some(Format::Bmp),
            _ if pnm::is_pnm(data) => Some(Format::Pnm),
            _ => None,
        }
    }
}

/// Return the stored size that the header of `data` states, not yet checked against the pixel limit. Nothing is decoded. A panic of a
/// library is [`Status::Internal`].
pub fn size(data: &[u8], format: Format) -> Result<Size> {
    or_internal(|| stated_size(data, format))
}

fn stated_size(data: &[u8], format: Format) -> Result<Size> {
    if format == Format::Bmp {
        bmp::check(data)?;
    }
    let (width, height) = match format {
        Format::Gif => return gif::size(data),
        Format::Tiff => return tiff::size(data),
        Format::Pnm => return pnm::size(data),
        Format::Png => return png::size(data),
        Format::WebP => return webp::size(data),
        Format::Bmp => match bmp::size_beyond_the_library(data) {
            Some(size) => return Ok(size),
            None => BmpDecoder::new(Cursor::new(data)).map(|d| d.dimensions()),
        },
    }
    .map_err(|error| status_of(&error, Status::CorruptHeader))?;
    if width == 0 || height == 0 {
        return Err(Status::CorruptHeader);
    }
    Ok(Size { width, height })
}

/// Decode `data`, an image of the `size` that [`size`] returned, and write `region`, which must lie in it, as RGB rows without
/// gaps into `pixels`. With `scale_depth`, 16-bit gray is scaled to 8 bits, else clipped. `samples` is reused memory. A panic of a library is [`Status::Internal`].
pub fn region(
    data: &[u8],
    format: Format,
    size: Size,
    region: Rect,
    scale_depth: bool,
    samples: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<()> {
    // Both buffers are only overwritten, so they serve the next image whatever a panic left in them.
    or_internal(|| decode_region(data, format, size, region, scale_depth, samples, pixels))
}

fn decode_region(
    data: &[u8],
    format: Format,
    size: Size,
    region: Rect,
    scale_depth: bool,
    samples: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<()> {
    if !region.fits(size.width, size.height) {
        return Err(Status::BadBox);
    }
    if !matches!(format, Format::Png | Format::Pnm) {
        limits::check_work(size.pixels(), data.len())?; // those two compare pixels and bytes themselves
    }
    let kind = match format {
        Format::Gif => return gif::region(data, region, samples, pixels),
        Format::Pnm => return pnm::region(data, region, scale_depth, samples, pixels),
        Format::Tiff => tiff::samples(data, size, samples)?,
        Format::Png => png::samples(data, samples)?,
        Format::WebP => webp::samples(data, samples)?,
        Format::Bmp if bmp::rle(data, size, samples)? => Samples::Rgb8,
        Format::Bmp if bmp::beyond_the_library(data, size, samples)? => Samples::Rgb8,
        Format::Bmp => {
            let kind = read(BmpDecoder::new(Cursor::new(data)), samples)?;
            if matches!(kind, Samples::Rgb8 | Samples::Rgba8) {
                bmp::truncate_like_pillow(data, kind.bytes(), samples)?;
            }
            kind
        }
    };
    let stride = size.width as usize * kind.bytes();
    let rows = samples.chunks_exact(stride).skip(region.y as usize);
    let columns = region.x as usize * kind.bytes()..(region.x + region.w) as usize * kind.bytes();
    limits::resize(pixels, region.w as usize * region.h as usize * 3, 0)?;
    for (row, out) in rows.zip(pixels.chunks_exact_mut(region.w as usize * 3)) {
        kind.convert(&row[columns.clone()], scale_depth, out);
    }
    Ok(())
}

/// Decode a whole image into `samples`.
fn read(decoder: image::ImageResult<impl ImageDecoder>, samples: &mut Vec<u8>) -> Result<Samples> {
    let damaged = |error: ImageError| status_of(&error, Status::CorruptData);
    let mut decoder = decoder.map_err(damaged)?;
    let kind = Samples::of(decoder.color_type())?;
    let bytes = decoder.total_bytes();
    if bytes > limits::max_bytes() {
        return Err(Status::TooLarge);
    }
    let mut most = Limits::default();
    most.max_alloc = Some(limits::max_bytes());
    decoder.set_limits(most).map_err(damaged)?;
    samples.clear(); // so that no pixels of an earlier image remain if the decoder skips some
    limits::resize(samples, bytes as usize, 0)?;
    decoder.read_image(samples).map_err(damaged)?;
    Ok(kind)
}

/// Return the status for an error of the image library. The library reports damage and truncation alike as decoding errors, so the
/// cause decides.
fn status_of(error: &ImageError, damaged: Status) -> Status {
    match error {
        ImageError::Unsupported(_) => Status::Unsupported,
        ImageError::Limits(_) => Status::TooLarge,
        ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Status::Truncated,
        error if ended_early(error) => Status::Truncated,
        _ => damaged,
    }
}

/// Return whether the end of the input is among the causes of `error`.
fn ended_early(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == ErrorKind::UnexpectedEof)
}

/// The layout of decoded samples. 16-bit samples are in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Samples {
    Gray8,
    GrayAlpha8,
    Rgb8,
    Rgba8,
    Cmyk8,
    Gray16,
    /// Gray with an alpha channel that the library made of one transparent value.
    KeyedGray16,
    GrayAlpha16,
    Rgb16,
    Rgba16,
    Cmyk16,
}

impl Samples {
    fn of(kind: ColorType) -> Result<Self> {
        Ok(match kind {
            ColorType::L8 => Samples::Gray8,
            ColorType::La8 => Samples::GrayAlpha8,
            ColorType::Rgb8 => Samples::Rgb8,
            ColorType::Rgba8 => Samples::Rgba8,
            ColorType::L16 => Samples::Gray16,
            ColorType::La16 => Samples::GrayAlpha16,
            ColorType::Rgb16 => Samples::Rgb16,
            ColorType::Rgba16 => Samples::Rgba16,
            _ => return Err(Status::Unsupported),
        })
    }

    /// Return the size of one pixel in bytes.
    fn bytes(self) -> usize {
        match self {
            Samples::Gray8 => 1,
            Samples::GrayAlpha8 | Samples::Gray16 => 2,
            Samples::Rgb8 => 3,
            Samples::Rgba8 | Samples::Cmyk8 | Samples::GrayAlpha16 | Samples::KeyedGray16 => 4,
            Samples::Rgb16 => 6,
            Samples::Rgba16 | Samples::Cmyk16 => 8,
        }
    }

    /// Return whether a sample has 16 bits.
    fn is_wide(self) -> bool {
        use Samples::{Cmyk16, Gray16, GrayAlpha16, KeyedGray16, Rgb16, Rgba16};
        matches!(
            self,
            Gray16 | KeyedGray16 | GrayAlpha16 | Rgb16 | Rgba16 | Cmyk16
        )
    }

    /// Convert a row of pixels to RGB.
    fn convert(self, row: &[u8], scale_depth: bool, out: &mut [u8]) {
        let wide = |pair: &[u8]| u16::from_ne_bytes([pair[0], pair[1]]);
        let upper = |pair: &[u8]| (wide(pair) >> 8) as u8;
        match self {
            Samples::Gray8 | Samples::GrayAlpha8 => each(row, self.bytes(), out, |p| [p[0]; 3]),
            Samples::Rgb8 | Samples::Rgba8 => each(row, self.bytes(), out, |p| [p[0], p[1], p[2]]),
            Samples::Cmyk8 => each(row, self.bytes(), out, |p| {
                rgb_of_cmyk([p[0], p[1], p[2], p[3]])
            }),
            Samples::Gray16 | Samples::KeyedGray16 if scale_depth => {
                each(row, self.bytes(), out, |p| [upper(p); 3])
            }
            Samples::Gray16 | Samples::KeyedGray16 => {
                each(row, self.bytes(), out, |p| [wide(p).min(255) as u8; 3])
            }
            Samples::GrayAlpha16 => each(row, self.bytes(), out, |p| [upper(p); 3]),
            Samples::Rgb16 | Samples::Rgba16 => each(row, self.bytes(), out, |p| {
                [upper(p), upper(&p[2..]), upper(&p[4..])]
            }),
            Samples::Cmyk16 => each(row, self.bytes(), out, |p| {
                rgb_of_cmyk([upper(p), upper(&p[2..]), upper(&p[4..]), upper(&p[6..])])
            }),
        }
    }
}

fn each(row: &[u8], bytes: usize, out: &mut [u8], rgb: impl Fn(&[u8]) -> [u8; 3]) {
    for (pixel, out) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(3)) {
        out.copy_from_slice(&rgb(pixel));
    }
}

/// Convert one pixel as Pillow does: (255 - ink) × (255 - key) / 255, rounded.
fn rgb_of_cmyk([cyan, magenta, yellow, key]: [u8; 4]) -> [u8; 3] {
    let white = 255 - i32::from(key);
    [cyan, magenta, yellow].map(|ink| {
        let product = i32::from(ink) * white + 128;
        (white - ((product >> 8) + product) / 256).clamp(0, 255) as u8
    })
}
