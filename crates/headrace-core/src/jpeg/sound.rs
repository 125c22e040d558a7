//! Files that may be decoded later: every decoder accepts them, so that no error is left to be raised when their pixels are needed.

use super::header;
use super::marker::{self, next_segment};
use super::region::{self, RegionDecoder, Request};
use super::structure::next_marker;
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
    let request = Request {
        scale: Scale::Full,
        region: Rect::new(0, 0, 1, 1),
        index: None,
        emit: None,
    };
    decoder
        .decode(data, &header, request, &mut [0; 3], 3)
        .ok()?;
    Some(Sound {
        size,
        components: header.count,
        end: end + 2,
    })
}

/// Return whether the segments before `scan` are of kinds that libjpeg-turbo knows (jdmarker.c, read_markers) and follow each other
/// without garbage.
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
        if !known {
            return false;
        }
        at = segment.end;
    }
    true
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
