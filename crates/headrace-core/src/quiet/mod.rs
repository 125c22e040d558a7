//! Quiet files: those that Pillow opens, converts to RGB and turns upright without a warning, and without an error over anything but
//! their pixels.
//!
//! `headrace run` leaves all other files to the script's own code: Pillow then warns, or raises, as ever. What is quiet is decided
//! with care, not in full: files as programs and cameras write them are quiet, oddities are not, about which Pillow's versions differ.

mod jpeg;
mod png;

use crate::exif::{self, Blocks};
use crate::formats::Format;
use crate::geometry::Size;

/// Pillow warns of images with more pixels (Image.py, MAX_IMAGE_PIXELS).
const MOST_PIXELS: u64 = (1 << 30) / 4 / 3;

/// Return whether libwebp knows all flags of an extended WebP file (RFC 9649, section 2.7).
fn has_known_flags(data: &[u8]) -> bool {
    const KNOWN: u8 = 0x3E;
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
            Some(Format::Tiff) => exif::file_is_quiet(data),
            Some(Format::Gif | Format::Bmp | Format::Pnm) => true,
        }
}
