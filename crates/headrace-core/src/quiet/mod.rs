//! Quiet files: those that Pillow opens, converts to RGB and turns upright without a warning, and without an error over anything but
//! their pixels.
//!
//! `headrace run` leaves all other files to the script's own code: Pillow then warns, or raises, as ever. What is quiet is decided
//! with care, not in full: files as programs and cameras write them are quiet, oddities are not, about which Pillow's versions differ.

mod jpeg;
mod png;

use crate::exif::{self, Blocks, Directory};
use crate::formats::{bmp, gif, Format};
use crate::geometry::Size;

/// Pillow warns of images with more pixels (Image.py, MAX_IMAGE_PIXELS).
const MOST_PIXELS: u64 = (1 << 30) / 4 / 3;

/// Return whether a TIFF file is none of those that Pillow may refuse though they are decoded here: fax data, of whose damage libtiff
/// finds other parts, and gray of 16 bits in which 0 is white.
fn is_refused_alike(data: &[u8]) -> bool {
    const BITS_TAG: u32 = 258;
    const COMPRESSION_TAG: u32 = 259;
    const PHOTOMETRIC_TAG: u32 = 262;
    let Some(directory) = Directory::first(data) else {
        return false;
    };
    let value = |tag: u32| {
        let entry = directory.entries(tag).last();
        entry.and_then(|entry| directory.value(entry))
    };
    let fax = matches!(value(COMPRESSION_TAG), Some(2..=4));
    let white_is_zero = value(PHOTOMETRIC_TAG) == Some(0) && value(BITS_TAG) == Some(16);
    !fax && !white_is_zero
}

/// Return whether an extended WebP file has no flags but those that libwebp knows (RFC 9649, section 2.7), and is no animation, of which
/// Pillow reads all frames before it shows the first.
fn has_known_flags(data: &[u8]) -> bool {
    const KNOWN: u8 = 0x3C;
    data.get(12..16) != Some(b"VP8X") || data.get(20).is_some_and(|flags| flags & !KNOWN == 0)
}

/// Return whether an image is quiet. `format`: None for a JPEG. `upright`: it is turned by its EXIF orientation.
pub fn is_quiet(data: &[u8], format: Option<Format>, size: Size, upright: bool) -> bool {
    let metadata = |known: bool| known && exif::block_is_quiet(&Blocks::of(data), upright);
    u64::from(size.width) * u64::from(size.height) <= MOST_PIXELS
        && match format {
            None => metadata(jpeg::is_quiet(data)),
            Some(Format::Png) => metadata(png::is_quiet(data)),
            Some(Format::WebP) => metadata(has_known_flags(data)),
            Some(Format::Tiff) => exif::file_is_quiet(data) && is_refused_alike(data),
            Some(Format::Bmp) => bmp::is_usual(data),
            Some(Format::Pnm) => matches!(data.get(1), Some(b'4'..=b'6')), // binary
            Some(Format::Gif) => gif::has_first_frame(data),
        }
}
