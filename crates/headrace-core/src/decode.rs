//! One image, any format, to RGB pixels of a region: chooses the decoder.

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView};
use crate::jpeg::region::RegionDecoder;
use crate::jpeg::{header, region, structure, turbo};

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

impl Size {
    fn checked(self) -> Result<Self> {
        let pixels = u64::from(self.width) * u64::from(self.height);
        if pixels > MAX_PIXELS {
            Err(Status::TooLarge)
        } else {
            Ok(self)
        }
    }
}

/// Reusable memory of one decoding thread; nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Decoder {
    own: RegionDecoder,
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
        match header::parse(data) {
            Ok(header) => Size {
                width: header.width,
                height: header.height,
            },
            Err(_) => turbo::size(data)?,
        }
        .checked()
    }

    /// Decodes `region` (image pixels) of `data`. The view holds at least that region.
    pub fn region(&mut self, data: &[u8], region: Rect) -> Result<RgbView<'_>> {
        let size = self.size(data)?;
        if !region.fits(size.width, size.height) {
            return Err(Status::BadBox);
        }
        let stride = match header::parse(data) {
            Ok(header) if region::supports(&header) => self.region_by_us(data, &header, region)?,
            _ => self.region_by_turbo(data, region)?,
        };
        Ok(RgbView {
            pixels: &self.pixels,
            stride,
            region,
        })
    }

    /// Time per stage of all images so far.
    #[cfg(feature = "profile")]
    pub fn profile(&self) -> &crate::jpeg::profile::Profile {
        &self.own.profile
    }

    fn region_by_us(
        &mut self,
        data: &[u8],
        header: &header::Header<'_>,
        region: Rect,
    ) -> Result<usize> {
        self.own.check(data, header)?;
        let stride = region.w as usize * 3;
        let bytes = stride * region.h as usize;
        if self.pixels.len() < bytes {
            self.pixels.resize(bytes, 0);
        }
        match self
            .own
            .decode(data, header, region, &mut self.pixels, stride)
        {
            Ok(()) => Ok(stride),
            // Damaged, or odd in a way that libjpeg-turbo forgives: it has the last word.
            Err(_) => self.region_by_turbo(data, region),
        }
    }

    fn region_by_turbo(&mut self, data: &[u8], region: Rect) -> Result<usize> {
        structure::ends(Extension::best(), data, 2)?;
        turbo::region(data, region, &mut self.pixels)
    }
}
