//! What a JPEG's header says, read strictly: the twin of `headrace/images/header.py`, for the files that need no second look.

use crate::jpeg::marker;
use crate::jpeg::quality;

/// Size and encoding of a JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JpegFacts {
    /// Pixels, as stored.
    pub width: u32,
    /// Pixels, as stored.
    pub height: u32,
    /// 1 grey, 3 colour, 4 CMYK.
    pub components: u8,
    /// Bits a sample.
    pub bits: u8,
    /// IJG quality by the sum of the first luminance table; `None` where there is none of 8 bits.
    pub quality: Option<u8>,
}

/// Reads the segments up to the first scan and looks for the end marker. `None` for a file that is no JPEG, is cut off, or
/// bends the rules: somebody with more words has to look at it.
pub fn jpeg_facts(data: &[u8]) -> Option<JpegFacts> {
    if !data.starts_with(&[0xFF, marker::SOI, 0xFF]) {
        return None;
    }
    let (mut at, mut frame, mut quality) = (2, None, None);
    loop {
        let &[first, code, high, low] = data.get(at..at + 4)? else {
            return None;
        };
        match (first, code) {
            (0xFF, 0xFF) => at += 1, // a fill byte
            (0xFF, marker::TEM | marker::RST0..=marker::RST7) => at += 2,
            (0xFF, marker::EOI) => return None,
            (0xFF, _) => {
                let end = at + 2 + (usize::from(high) << 8 | usize::from(low));
                let payload = data.get(at + 4..end)?;
                match code {
                    0xC4 | 0xC8 | 0xCC => {}
                    0xC0..=0xCF => frame = Some(frame_of(payload)?),
                    marker::DQT if quality.is_none() => quality = quality_of(payload),
                    marker::SOS => break,
                    _ => {}
                }
                at = end;
            }
            _ => return None,
        }
    }
    memchr::memmem::rfind(&data[at..], &[0xFF, marker::EOI])?;
    frame.map(|frame: JpegFacts| JpegFacts { quality, ..frame })
}

fn frame_of(payload: &[u8]) -> Option<JpegFacts> {
    let &[bits, y1, y0, x1, x0, components, ref rest @ ..] = payload else {
        return None;
    };
    let (width, height) = (
        u32::from(x1) << 8 | u32::from(x0),
        u32::from(y1) << 8 | u32::from(y0),
    );
    let whole = rest.len() >= 3 * usize::from(components);
    (whole && width > 0 && height > 0 && components > 0).then_some(JpegFacts {
        width,
        height,
        components,
        bits,
        quality: None,
    })
}

/// Sums of the luminance table at IJG qualities 100 down to 1, ascending.
const SUMS: [u32; 100] = {
    let mut sums = [0; 100];
    let mut at = 0;
    while at < 100 {
        let table = quality::table(&quality::LUMINANCE, 100 - at as u8);
        let mut k = 0;
        while k < 64 {
            sums[at] += table[k] as u32;
            k += 1;
        }
        at += 1;
    }
    sums
};

/// The quality whose table has the sum nearest to this one's.
fn quality_of(payload: &[u8]) -> Option<u8> {
    let (head, table) = payload.split_first()?;
    let total: u32 = table.get(..64)?.iter().map(|&value| u32::from(value)).sum();
    if head >> 4 != 0 {
        return None;
    }
    let mut at = SUMS.partition_point(|&sum| sum < total);
    if at == 100 || (at > 0 && total - SUMS[at - 1] < SUMS[at] - total) {
        at -= 1;
    }
    u8::try_from(100 - at).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::geometry::Size;
    use crate::jpeg::turbo::{encode, Encoding};

    #[test]
    fn facts_of_what_libjpeg_turbo_writes() {
        let size = Size {
            width: 40,
            height: 30,
        };
        for quality in [1, 30, 75, 90, 100] {
            let how = Encoding {
                quality,
                ..Encoding::default()
            };
            let file = encode(&[100; 40 * 30 * 3], size, &how).unwrap();
            let facts = jpeg_facts(&file).unwrap();
            assert_eq!((facts.width, facts.height), (40, 30));
            assert_eq!((facts.components, facts.bits), (3, 8));
            assert_eq!(facts.quality, Some(quality));
            assert_eq!(jpeg_facts(&file[..file.len() - 2]), None);
            for length in 0..file.len().min(700) {
                assert_eq!(jpeg_facts(&file[..length]), None);
            }
        }
    }
}
