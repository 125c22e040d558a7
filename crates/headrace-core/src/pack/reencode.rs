//! Re-encoding for the packer. An image that changes its size is decoded, resized as Pillow does, and encoded by libjpeg-turbo;
//! an image that keeps its size is requantised.

use crate::decode::{DecodeOptions, Decoder};
use crate::error::Result;
use crate::exif;
use crate::geometry::{Orientation, Rect, Size};
use crate::jpeg::facts::JpegFacts;
use crate::jpeg::requantise::{RequantiseOptions, Requantiser};
use crate::jpeg::turbo::{self, Encoding};
use crate::jpeg::{exif_segment, marker};
use crate::limits::{self, max_pixels};
use crate::resample::{Filter, PassOrder, Resampler, ResizeSpec};

/// The rule for the size of packed images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Keep the size.
    None,
    /// Shrink larger images so that the longer side is this many pixels.
    MaxSide(u32),
    /// Shrink larger images so that the shorter side is this many pixels.
    ShortSide(u32),
    /// Resize all images so that the shorter side is this many pixels.
    Resize(u32),
}

impl Bound {
    /// Return the new size of an image, or `None` if it keeps its own.
    pub fn target(self, stored: Size) -> Option<Size> {
        let (longer, shorter) = (
            stored.width.max(stored.height),
            stored.width.min(stored.height),
        );
        let ratio = |length: u32, of: u32| f64::from(length) / f64::from(of);
        let scale = match self {
            Bound::None => return None,
            Bound::MaxSide(length) => ratio(length, longer).min(1.0),
            Bound::ShortSide(length) => ratio(length, shorter).min(1.0),
            Bound::Resize(length) => ratio(length, shorter),
        };
        // Halves are rounded to even, as by Python's round().
        let side = |length: u32| ((f64::from(length) * scale).round_ties_even() as u32).max(1);
        let size = Size {
            width: side(stored.width),
            height: side(stored.height),
        };
        (size != stored).then_some(size)
    }
}

/// Longest side of a JPEG in pixels (libjpeg's `JPEG_MAX_DIMENSION`). A narrow image that is enlarged may exceed it.
const MAX_SIDE: u32 = 65_500;

/// The re-encoder of one thread, with its reusable memory.
pub struct Reencoder {
    requantiser: Requantiser,
    decoder: Decoder,
    resampler: Resampler,
    pixels: Vec<u8>,
    encoded: Vec<u8>,
}

impl Default for Reencoder {
    fn default() -> Self {
        let mut resampler = Resampler::default();
        // The order of a fixed version, whatever the process has chosen: the bytes depend on source and options alone.
        resampler.set_pass_order(PassOrder::Pillow13);
        Reencoder {
            requantiser: Requantiser::default(),
            decoder: Decoder::new(),
            resampler,
            pixels: Vec::new(),
            encoded: Vec::new(),
        }
    }
}

impl Reencoder {
    /// Check that all of `jpeg` decodes; `None` if it does not.
    pub fn check(&mut self, jpeg: &[u8], facts: &JpegFacts) -> Option<()> {
        let whole = Rect::new(0, 0, facts.width, facts.height);
        self.decoder.region(jpeg, whole).ok().map(|_| ())
    }

    /// Encode `jpeg` at `size`, resized with Pillow's bicubic filter; [`Reencoder::encoded`] returns the result. `None` if the
    /// record is declined.
    pub fn encode(
        &mut self,
        jpeg: &[u8],
        facts: &JpegFacts,
        size: Size,
        quality: u8,
        tile_px: Option<u32>,
    ) -> Option<()> {
        let stored = Size {
            width: facts.width,
            height: facts.height,
        };
        if facts.bits != 8
            || !matches!(facts.components, 1 | 3)
            || size.width.max(size.height) > MAX_SIDE
            || size.pixels() > max_pixels()
        {
            return None;
        }
        let opened = self.decoder.open(jpeg).ok()?;
        if opened.size() != stored {
            return None;
        }
        let orientation = exif::orientation(jpeg);
        if size == stored {
            let options = RequantiseOptions {
                quality,
                tile_px,
                orientation,
            };
            let requantised = self.requantiser.write(jpeg, &options, &mut self.encoded);
            if requantised.is_ok() {
                return Some(());
            }
        }
        let whole = Rect::new(0, 0, stored.width, stored.height);
        let spec = ResizeSpec {
            filter: Filter::Bicubic,
            ..ResizeSpec::new(whole, size.width, size.height)
        };
        let options = DecodeOptions::default();
        let view = self.decoder.decode(&opened, whole, &options, None).ok()?;
        let stride = 3 * size.width as usize;
        let pixels = if size == stored && view.stride == stride {
            view.pixels
        } else {
            limits::resize(&mut self.pixels, stride * size.height as usize, 0).ok()?;
            self.resampler
                .resize_into(view, &spec, &mut self.pixels, stride)
                .ok()?;
            &mut self.pixels
        };
        let how = EncodeOptions {
            gray: facts.components == 1,
            quality,
            tile_px,
            orientation,
        };
        encode_pixels(pixels, size, &how, &mut self.encoded).ok()
    }

    /// Return the last result of [`Reencoder::encode`].
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }
}

/// Options of [`encode_pixels`].
#[derive(Debug, Clone, Copy)]
pub struct EncodeOptions {
    /// Write one component, from the first of each three samples.
    pub gray: bool,
    /// IJG quality, 1 to 100.
    pub quality: u8,
    /// Pixels of width between restart markers; `None` for no markers.
    pub tile_px: Option<u32>,
    /// Orientation to state in an EXIF segment unless it is upright. The pixels are not turned.
    pub orientation: Orientation,
}

/// Encode RGB pixels as a baseline JPEG into `out`: 4:2:0 as Pillow, OpenCV and FFCV write it, the slow integer DCT, and the
/// standard Huffman tables. Optimal tables would save 5 % of the bytes and take a third more time (measured on 400 ImageNet files
/// at quality 90).
pub fn encode_pixels(
    pixels: &[u8],
    size: Size,
    how: &EncodeOptions,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (factor, block) = if how.gray { (1, 8) } else { (2, 16) };
    let encoding = Encoding {
        factors: [(factor, factor), (1, 1), (1, 1)],
        gray: how.gray,
        quality: how.quality,
        restart_interval: how.tile_px.map_or(0, |px| (px / block).max(1)),
        ..Encoding::default()
    };
    if how.gray {
        let gray: Vec<u8> = pixels.iter().step_by(3).copied().collect();
        turbo::encode_into(&gray, size, &encoding, out)?;
    } else {
        turbo::encode_into(pixels, size, &encoding, out)?;
    }
    if how.orientation != Orientation::Upright {
        insert_orientation(how.orientation, out);
    }
    Ok(())
}

/// Insert an EXIF segment after the JFIF segment, which libjpeg writes first.
fn insert_orientation(orientation: Orientation, jpeg: &mut Vec<u8>) {
    let block = exif_segment::orientation_payload(orientation);
    let length = block.len() as u16 + 2;
    let segment = [&[0xFF, marker::APP1][..], &length.to_be_bytes(), &block].concat();
    let behind_jfif = 4 + jpeg.get(5).map_or(0, |&length| usize::from(length));
    jpeg.splice(behind_jfif..behind_jfif, segment);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::jpeg::facts::jpeg_facts;

    #[test]
    fn the_orientation_is_written_and_read_back() {
        let size = Size {
            width: 33,
            height: 17,
        };
        for (gray, components) in [(true, 1), (false, 3)] {
            let how = EncodeOptions {
                gray,
                quality: 80,
                tile_px: Some(32),
                orientation: Orientation::Rotate90,
            };
            let mut out = Vec::new();
            encode_pixels(&[90; 33 * 17 * 3], size, &how, &mut out).unwrap();
            assert_eq!(exif::orientation(&out), Orientation::Rotate90);
            let facts = jpeg_facts(&out).unwrap();
            assert_eq!(
                (facts.width, facts.height, facts.components),
                (33, 17, components)
            );
            let upright = EncodeOptions {
                orientation: Orientation::Upright,
                ..how
            };
            let mut plain = Vec::new();
            encode_pixels(&[90; 33 * 17 * 3], size, &upright, &mut plain).unwrap();
            assert_eq!(
                out.len() - plain.len(),
                4 + exif_segment::orientation_payload(Orientation::Rotate90).len()
            );
        }
    }

    #[test]
    fn a_size_above_the_jpeg_limit_is_declined_before_memory_is_taken() {
        let stored = Size {
            width: 4,
            height: 400,
        };
        let (gray, quality, tile_px) = (false, 80, None);
        let orientation = Orientation::Upright;
        let how = EncodeOptions {
            gray,
            quality,
            tile_px,
            orientation,
        };
        let mut jpeg = Vec::new();
        encode_pixels(&[90; 4 * 400 * 3], stored, &how, &mut jpeg).unwrap();
        let facts = jpeg_facts(&jpeg).unwrap();
        let encode = |width, height| {
            let size = Size { width, height };
            let mut reencoder = Reencoder::default();
            let done = reencoder.encode(&jpeg, &facts, size, 80, None).is_some();
            (done, reencoder.pixels.capacity() > 0)
        };
        assert_eq!(encode(8, 800), (true, true));
        assert_eq!(encode(700, 70_000), (false, false));
        assert_eq!(encode(14_000, 14_000), (false, false)); // more pixels than a loader decodes
    }

    #[test]
    fn sizes_are_rounded_as_in_python() {
        let size = |(width, height)| Size { width, height };
        for (bound, stored, target) in [
            (Bound::MaxSide(500), (1000, 333), Some((500, 166))), // 166.5 to even
            (Bound::MaxSide(500), (500, 333), None),
            (Bound::ShortSide(256), (512, 300), Some((437, 256))),
            (Bound::Resize(300), (200, 150), Some((400, 300))),
            (Bound::MaxSide(10), (65535, 1), Some((10, 1))),
            (Bound::None, (9, 9), None),
        ] {
            assert_eq!(bound.target(size(stored)), target.map(size));
        }
    }
}
