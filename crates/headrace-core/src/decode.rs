//! One image, any format, to RGB pixels of a region: chooses the decoder.

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::exif;
use crate::formats::{self, Format};
use crate::geometry::{Orientation, Rect, RgbView, Scale, Size};
use crate::jpeg::index::Index;
use crate::jpeg::region::{RegionDecoder, Request};
use crate::jpeg::{header, region, structure, turbo};

/// How to decode an image, beside the region.
#[derive(Debug, Clone, Copy, Default)]
pub struct DecodeOptions<'a> {
    /// Checkpoints of this very image ([`Index::from_bytes`], or what an earlier decode wrote); one that belongs to other bytes is
    /// [`Status::BadIndex`]. Images that need none ignore it.
    pub index: Option<&'a Index>,
    /// Reduces a JPEG while decoding it; regions are then those of the reduced image, [`Size::scaled`]. Other formats are
    /// [`Status::Unsupported`] at any scale but full.
    pub scale: Scale,
}

/// Reusable memory of one decoding thread; nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Decoder {
    own: RegionDecoder,
    pixels: Vec<u8>,
    /// Decoded samples of formats other than JPEG; a region before it is turned.
    scratch: Vec<u8>,
    exif: bool,
}

impl Decoder {
    /// A decoder with empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder whose own JPEG kernels use `extension`, which the machine must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        Decoder {
            own: RegionDecoder::with_extension(extension),
            ..Self::default()
        }
    }

    /// Whether images are turned as their EXIF orientation says (Pillow's `ImageOps.exif_transpose`); off at first. Sizes and
    /// regions are then those of the upright image. TIFF files are always turned, as Pillow does when it opens them.
    pub fn set_exif(&mut self, exif: bool) {
        self.exif = exif;
    }

    /// The size stated by the image's header, checked against [`MAX_PIXELS`](crate::geometry::MAX_PIXELS).
    pub fn size(&mut self, data: &[u8]) -> Result<Size> {
        let stored = self.stored_size(data)?;
        Ok(self.orientation(data).upright(stored))
    }

    /// Decodes `region` (image pixels) of `data`. The view holds at least that region.
    pub fn region(&mut self, data: &[u8], region: Rect) -> Result<RgbView<'_>> {
        self.region_with(data, region, &DecodeOptions::default(), None)
    }

    /// Decodes `region` with `options`. The checkpoints known afterwards, those of `options.index` and those passed on the way, are
    /// written to `emit`, which stays empty for images that cannot have any (restart markers, other formats) and after an error.
    pub fn region_with(
        &mut self,
        data: &[u8],
        region: Rect,
        options: &DecodeOptions<'_>,
        mut emit: Option<&mut Index>,
    ) -> Result<RgbView<'_>> {
        if let Some(emit) = emit.as_deref_mut() {
            emit.clear();
        }
        let stored = self.stored_size(data)?;
        let orientation = self.orientation(data);
        let stored = stored.scaled(options.scale);
        let upright = orientation.upright(stored);
        if !region.fits(upright.width, upright.height) {
            return Err(Status::BadBox);
        }
        let part = orientation.stored_region(region, stored);
        let mut stride = match Format::of(data) {
            Some(_) if options.scale != Scale::Full => return Err(Status::Unsupported),
            Some(format) => {
                formats::region(data, format, part, &mut self.scratch, &mut self.pixels)?;
                3 * part.w as usize
            }
            None => {
                let DecodeOptions { scale, index } = *options;
                self.jpeg_region(
                    data,
                    Request {
                        scale,
                        region: part,
                        index,
                        emit,
                    },
                )?
            }
        };
        if orientation != Orientation::Upright {
            orientation.turn(&self.pixels, stride, part, &mut self.scratch);
            std::mem::swap(&mut self.pixels, &mut self.scratch);
            stride = 3 * region.w as usize;
        }
        Ok(RgbView {
            pixels: &self.pixels,
            stride,
            region,
        })
    }

    fn stored_size(&self, data: &[u8]) -> Result<Size> {
        if data.is_empty() {
            return Err(Status::Empty);
        }
        if let Some(format) = Format::of(data) {
            return formats::size(data, format)?.checked();
        }
        match header::parse(data) {
            Ok(header) => Size {
                width: header.width,
                height: header.height,
            },
            Err(Status::UnknownFormat) => return Err(Status::UnknownFormat),
            Err(_) => turbo::size(data)?,
        }
        .checked()
    }

    fn orientation(&self, data: &[u8]) -> Orientation {
        if self.exif || Format::of(data) == Some(Format::Tiff) {
            exif::orientation(data)
        } else {
            Orientation::Upright
        }
    }

    fn jpeg_region(&mut self, data: &[u8], request: Request<'_>) -> Result<usize> {
        match header::parse(data) {
            Ok(header) if region::supports(&header) => self.region_by_us(data, &header, request),
            _ => self.region_by_turbo(data, request.scale, request.region),
        }
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
        mut request: Request<'_>,
    ) -> Result<usize> {
        self.own.check(data, header)?;
        let (scale, region) = (request.scale, request.region);
        let stride = region.w as usize * 3;
        let bytes = stride * region.h as usize;
        if self.pixels.len() < bytes {
            self.pixels.resize(bytes, 0);
        }
        let again = Request {
            scale,
            region,
            index: request.index,
            emit: request.emit.as_deref_mut(),
        };
        let status = match self
            .own
            .decode(data, header, again, &mut self.pixels, stride)
        {
            Ok(()) => return Ok(stride),
            Err(status) => status,
        };
        if let Some(emit) = request.emit {
            emit.clear();
        }
        if status == Status::BadIndex {
            return Err(status);
        }
        // Damaged, or odd in a way that libjpeg-turbo forgives: it has the last word. Sound data do not fail, so an index that
        // led here is wrong.
        let stride = self.region_by_turbo(data, scale, region)?;
        if request.index.is_some_and(|index| !index.is_empty()) {
            Err(Status::BadIndex)
        } else {
            Ok(stride)
        }
    }

    fn region_by_turbo(&mut self, data: &[u8], scale: Scale, region: Rect) -> Result<usize> {
        structure::ends(Extension::best(), data, 2)?;
        turbo::region_scaled(data, scale, region, &mut self.pixels)
    }
}
