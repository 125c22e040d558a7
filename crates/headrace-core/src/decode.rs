//! One image, any format, to RGB pixels of a region: chooses the decoder.

use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView};
use crate::jpeg::turbo;

/// Images with more pixels than this are refused as decompression bombs (Pillow's limit for an error: twice 1024³/4/3).
pub const MAX_PIXELS: u64 = 178_956_970;

/// Width and height of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// Reusable memory of one decoding thread; nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Decoder {
    pixels: Vec<u8>,
}

impl Decoder {
    /// A decoder with empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The size stated by the image's header, checked against [`MAX_PIXELS`].
    pub fn size(&mut self, data: &[u8]) -> Result<Size> {
        if data.is_empty() {
            return Err(Status::Empty);
        }
        if !data.starts_with(&[0xFF, 0xD8]) {
            return Err(Status::UnknownFormat);
        }
        let size = turbo::size(data)?;
        if u64::from(size.width) * u64::from(size.height) > MAX_PIXELS {
            return Err(Status::TooLarge);
        }
        Ok(size)
    }

    /// Decodes `region` (image pixels) of `data`. The view holds at least that region.
    pub fn region(&mut self, data: &[u8], region: Rect) -> Result<RgbView<'_>> {
        let size = self.size(data)?;
        if !region.fits(size.width, size.height) {
            return Err(Status::BadBox);
        }
        let stride = turbo::region(data, region, &mut self.pixels)?;
        Ok(RgbView {
            pixels: &self.pixels,
            stride,
            region,
        })
    }
}
