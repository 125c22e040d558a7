//! The decoder of one image of any format: it reads the header, chooses the library or kernel, and turns the image upright if
//! asked.

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::exif;
use crate::formats::{self, Format};
use crate::geometry::{Orientation, Rect, RgbView, Scale, Size};
use crate::jpeg::facts::jpeg_facts;
use crate::jpeg::header::{self, Header};
use crate::jpeg::index::Index;
use crate::jpeg::region::{self, RegionDecoder, Request};
use crate::jpeg::turbo::{self, Extent};
use crate::jpeg::upsample::Channels;
use crate::jpeg::{profile::Stage, structure};
use crate::limits;
use crate::quiet;

/// Options of [`Decoder::decode`].
#[derive(Debug, Clone, Copy, Default)]
pub struct DecodeOptions<'a> {
    /// The index of this image, from [`Index::from_bytes`] or an earlier decode. An index of other bytes is [`Status::BadIndex`].
    /// Images that need no index ignore it.
    pub index: Option<&'a Index>,
    /// The scale at which a JPEG is decoded. Regions are then regions of the reduced image, see [`Size::scaled`]. Other formats are
    /// [`Status::Unsupported`] at any scale but full.
    pub scale: Scale,
}

/// An image whose header has been read, ready to be decoded as often as needed.
pub struct Opened<'a> {
    data: &'a [u8],
    stored: Size,
    orientation: Orientation,
    decoder: Choice<'a>,
}

/// Which decoder reads an image.
#[allow(clippy::large_enum_variant)] // on the stack, one at a time
enum Choice<'a> {
    /// Our own JPEG decoder.
    Own(Header<'a>),
    /// libjpeg-turbo: JPEGs of other kinds, and those whose header is damaged.
    Turbo,
    /// The library of another format.
    Format(Format),
}

impl Opened<'_> {
    /// Return width and height in pixels, of the upright image if the decoder turns images.
    pub fn size(&self) -> Size {
        self.orientation.upright(self.stored)
    }

    /// Return how the stored pixels must be turned to stand upright, if the decoder turns images.
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// Return true for a JPEG of any kind.
    pub fn is_jpeg(&self) -> bool {
        !matches!(self.decoder, Choice::Format(_))
    }

    /// Return true for a JPEG of three components, which Pillow opens in mode RGB.
    pub fn is_rgb_jpeg(&self) -> bool {
        match &self.decoder {
            Choice::Own(header) => header.count == 3,
            Choice::Turbo => jpeg_facts(self.data).is_ok_and(|facts| facts.components == 3),
            Choice::Format(_) => false,
        }
    }

    /// Return true for a JPEG of one component, which Pillow opens in mode L.
    pub fn is_gray_jpeg(&self) -> bool {
        match &self.decoder {
            Choice::Own(header) => header.count == 1,
            Choice::Turbo => jpeg_facts(self.data).is_ok_and(|facts| facts.components == 1),
            Choice::Format(_) => false,
        }
    }

    /// Return true if a JPEG index makes decoding a part of this image faster: a baseline JPEG without restart markers.
    pub fn takes_index(&self) -> bool {
        matches!(&self.decoder, Choice::Own(header) if header.restart_interval == 0)
    }
}

/// Reusable memory of one decoding thread; nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Decoder {
    own: RegionDecoder,
    pixels: Vec<u8>,
    /// Decoded samples of formats other than JPEG, and the copy that turning an image upright needs.
    scratch: Vec<u8>,
    exif: bool,
    quiet: bool,
    scale_depth: bool,
}

impl Decoder {
    /// Make a decoder with empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Make a decoder whose own JPEG kernels use `extension`, which the machine must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        Decoder {
            own: RegionDecoder::with_extension(extension),
            ..Self::default()
        }
    }

    /// Turn images upright by their EXIF orientation, as Pillow's `ImageOps.exif_transpose` does (default: off). Sizes and regions
    /// are then those of the upright image. TIFF files are always turned, as Pillow does when it opens them.
    pub fn set_exif(&mut self, exif: bool) {
        self.exif = exif;
    }

    /// Refuse images that are not quiet (see [`quiet`]) as [`Status::Unsupported`] (default: off).
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
    }

    /// Scale gray of 16 bits to 8 bits. By default (off) it is clipped at 255, as Pillow does, which makes most of it white.
    pub fn set_scale_depth(&mut self, scale_depth: bool) {
        self.scale_depth = scale_depth;
    }

    /// Read the header of an image: its size, checked against [`limits::max_pixels`], its orientation, and which decoder
    /// reads it. Nothing is decoded.
    pub fn open<'a>(&mut self, data: &'a [u8]) -> Result<Opened<'a>> {
        self.own.profile.start();
        self.shrink();
        if data.is_empty() {
            return Err(Status::Empty);
        }
        let format = Format::of(data);
        let (decoder, stored) = match format {
            Some(format) => (Choice::Format(format), formats::size(data, format)?),
            None => open_jpeg(data)?,
        };
        if self.quiet && !quiet::is_quiet(data, format, stored, self.exif) {
            return Err(Status::Unsupported);
        }
        let turned = self.exif || matches!(decoder, Choice::Format(Format::Tiff));
        let opened = Opened {
            data,
            stored: stored.checked()?,
            orientation: if turned {
                exif::orientation(data)
            } else {
                Orientation::Upright
            },
            decoder,
        };
        self.own.profile.lap(Stage::SetUp);
        Ok(opened)
    }

    /// Return the size that the header of an image states, as [`Decoder::open`] does.
    pub fn size(&mut self, data: &[u8]) -> Result<Size> {
        Ok(self.open(data)?.size())
    }

    /// Open an image and decode `region` (image pixels) of it. The view holds at least that region.
    pub fn region(&mut self, data: &[u8], region: Rect) -> Result<RgbView<'_>> {
        self.region_with(data, region, &DecodeOptions::default(), None)
    }

    /// Open an image and decode `region` of it with `options`, see [`Decoder::decode`].
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
        let opened = self.open(data)?;
        self.decode(&opened, region, options, emit)
    }

    /// Decode `region` (image pixels) of an opened image. The view holds at least that region.
    ///
    /// `emit` receives the entries of `options.index` and those found while decoding. It stays empty after an error, and for images
    /// that have no index (restart markers, other formats).
    pub fn decode(
        &mut self,
        image: &Opened<'_>,
        region: Rect,
        options: &DecodeOptions<'_>,
        mut emit: Option<&mut Index>,
    ) -> Result<RgbView<'_>> {
        if let Some(emit) = emit.as_deref_mut() {
            emit.clear();
        }
        let DecodeOptions { scale, index } = *options;
        let orientation = image.orientation;
        let stored = image.stored.scaled(scale);
        let upright = orientation.upright(stored);
        if !region.fits(upright.width, upright.height) {
            return Err(Status::BadBox);
        }
        let part = orientation.stored_region(region, stored);
        let mut stride = match &image.decoder {
            Choice::Format(_) if scale != Scale::Full => return Err(Status::Unsupported),
            Choice::Format(format) => {
                let (samples, pixels) = (&mut self.scratch, &mut self.pixels);
                let scale_depth = self.scale_depth;
                formats::region(
                    image.data,
                    *format,
                    stored,
                    part,
                    scale_depth,
                    samples,
                    pixels,
                )?;
                3 * part.w as usize
            }
            Choice::Turbo => self.region_by_turbo(image.data, scale, part)?,
            Choice::Own(header) => {
                let request = Request {
                    scale,
                    region: part,
                    index,
                    emit,
                    channels: Channels::Rgb,
                };
                self.region_by_us(image.data, header, request)?
            }
        };
        if orientation != Orientation::Upright {
            limits::reserve(&mut self.scratch, 3 * region.w as usize * region.h as usize)?;
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

    /// Return the time per stage, summed over all images so far.
    #[cfg(feature = "profile")]
    pub fn profile(&self) -> &crate::jpeg::profile::Profile {
        &self.own.profile
    }

    /// Free the memory that an unusually large image has left.
    fn shrink(&mut self) {
        limits::shrink(&mut self.pixels);
        limits::shrink(&mut self.scratch);
        self.own.shrink();
    }

    fn region_by_us(
        &mut self,
        data: &[u8],
        header: &Header<'_>,
        mut request: Request<'_>,
    ) -> Result<usize> {
        self.own.check(data, header)?;
        let pixels = u64::from(header.width) * u64::from(header.height);
        limits::check_work(pixels, data.len())?;
        let (scale, region) = (request.scale, request.region);
        let stride = region.w as usize * 3;
        let bytes = stride * region.h as usize;
        limits::grow(&mut self.pixels, bytes, 0)?;
        let again = Request {
            scale,
            region,
            index: request.index,
            emit: request.emit.as_deref_mut(),
            channels: request.channels,
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
        // The file is damaged, or bends the standard in a way that libjpeg-turbo accepts: libjpeg-turbo decides. Decoding sound
        // data does not fail, so an index that led here is wrong.
        let stride = self.region_by_turbo(data, scale, region)?;
        if request.index.is_some_and(|index| !index.is_empty()) {
            Err(Status::BadIndex)
        } else {
            Ok(stride)
        }
    }

    fn region_by_turbo(&mut self, data: &[u8], scale: Scale, region: Rect) -> Result<usize> {
        structure::check_end(Extension::best(), data, 2)?;
        turbo::region_scaled(data, scale, region, Extent::File, &mut self.pixels)
    }
}

/// Read a JPEG's header with our own parser, or with libjpeg-turbo's if ours refuses the file.
fn open_jpeg(data: &[u8]) -> Result<(Choice<'_>, Size)> {
    match header::parse(data) {
        Ok(header) => {
            let size = Size {
                width: header.width,
                height: header.height,
            };
            let own = region::supports(&header);
            if own {
                Ok((Choice::Own(header), size))
            } else {
                Ok((Choice::Turbo, turbo::size(data)?)) // which refuses kinds that it does not decode
            }
        }
        Err(Status::UnknownFormat) => Err(Status::UnknownFormat),
        Err(_) => Ok((Choice::Turbo, turbo::size(data)?)),
    }
}
