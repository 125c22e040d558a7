//! Sound files: every decoder accepts them. So they may be decoded later, without an error left to be raised when their pixels are
//! needed, and natively in place of another library.

use super::header::{self, Header};
use super::marker::{self, next_segment};
use super::region::{self, RegionDecoder, Request};
use super::structure::next_marker;
use super::upsample::Channels;
use crate::cpu::Extension;
use crate::geometry::{Rect, Scale, Size};

/// The longest side that libjpeg-turbo decodes (jmorecfg.h, JPEG_MAX_DIMENSION).
const MAX_SIDE: u32 = 65_500;

/// The facts of a sound file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sound {
    /// The image's size.
    pub size: Size,
    /// Number of components: 1 or 3.
    pub components: usize,
    /// Offset behind the end marker.
    pub end: usize,
}

/// Return the facts of a file that our own decoder reads and that libjpeg-turbo reads without an error, whatever its entropy-coded
/// data holds: one sequential scan, tables that are codes, as many restart markers as stated, and the end marker right behind the
/// scan. Damage inside the scan is no error to libjpeg-turbo: it decodes such a file to other pixels, and so do we.
pub fn sound(decoder: &mut RegionDecoder, data: &[u8]) -> Option<Sound> {
    let (header, facts) = checked(decoder, data)?;
    let request = Request {
        scale: Scale::Full,
        region: Rect::new(0, 0, 1, 1),
        index: None,
        emit: None,
        channels: Channels::Rgb,
    };
    decoder
        .decode(data, &header, request, &mut [0; 3], 3)
        .ok()?;
    Some(facts)
}

/// Decode the whole image of a sound file of `size` to rows without gaps, and return true. Return false, and leave anything in `out`,
/// if the file is not sound, has another size, is damaged in the scan, or cannot be converted to `channels`.
pub fn sound_pixels(
    decoder: &mut RegionDecoder,
    data: &[u8],
    size: Size,
    channels: Channels,
    out: &mut [u8],
) -> bool {
    let Size { width, height } = size;
    let stride = width as usize * channels.count();
    if out.len() != stride * height as usize {
        return false;
    }
    let Some((header, _)) = checked(decoder, data).filter(|(_, facts)| facts.size == size) else {
        return false;
    };
    let request = Request {
        scale: Scale::Full,
        region: Rect::new(0, 0, width, height),
        index: None,
        emit: None,
        channels,
    };
    decoder.decode(data, &header, request, out, stride).is_ok()
}

/// Return the header and the facts of a file that is sound as far as its markers tell.
fn checked<'a>(decoder: &mut RegionDecoder, data: &'a [u8]) -> Option<(Header<'a>, Sound)> {
    let header = header::parse(data)
        .ok()
        .filter(|header| region::supports(header))?;
    if header.width.max(header.height) > MAX_SIDE || !known_segments(data, header.scan) {
        return None;
    }
    decoder.check(data, &header).ok()?;
    // The check has found all segments. A marker other than the end marker can hold anything, such as a second frame.
    let last = decoder.last_segment()?;
    let end = next_marker(Extension::best(), data, last)?;
    if data.get(end + 1) != Some(&marker::EOI) {
        return None;
    }
    let size = Size {
        width: header.width,
        height: header.height,
    }
    .checked()
    .ok()?;
    let facts = Sound {
        size,
        components: header.count,
        end: end + 2,
    };
    Some((header, facts))
}

/// Return whether the segments before `scan` are of kinds that libjpeg-turbo knows (jdmarker.c, read_markers), follow each other
/// without garbage, and hold nothing of which it prints a warning.
fn known_segments(data: &[u8], scan: usize) -> bool {
    let mut at = 2;
    while at < scan {
        let Some(segment) = next_segment(data, at) else {
            return false;
        };
        let known = matches!(
            segment.code,
            marker::SOF0
                | marker::SOF1
                | marker::DHT
                | marker::SOS
                | marker::DQT
                | marker::DRI
                | marker::APP0..=0xEF | marker::COM
        );
        if !known || is_remarked(segment.code, segment.payload) {
            return false;
        }
        at = segment.end;
    }
    true
}

/// Return whether libjpeg-turbo warns of a segment: JFIF of another version than 1, an unknown colour transform of Adobe's, and a
/// sequential scan with the parameters of a progressive one.
fn is_remarked(code: u8, payload: &[u8]) -> bool {
    match code {
        marker::APP0 => payload.starts_with(b"JFIF\0") && payload.get(5) != Some(&1),
        marker::APP14 => {
            payload.starts_with(b"Adobe") && payload.get(11).is_some_and(|transform| *transform > 2)
        }
        marker::SOS => !payload.ends_with(&[0, 63, 0]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_jpeg_is_not_sound() {
        let mut decoder = RegionDecoder::default();
        for data in [
            &b""[..],
            b"GIF89a",
            &[0xFF, 0xD8],
            &[0xFF, 0xD8, 0xFF, 0xD9],
        ] {
            assert_eq!(sound(&mut decoder, data), None);
        }
    }
}
