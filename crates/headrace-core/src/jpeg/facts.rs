//! The facts that a JPEG's header states: size, encoding and quality. Nothing is decoded.
//!
//! The decoders refuse every file that this reader refuses; this reader also says why. Like them, it skips garbage between
//! segments ([`marker::find`]). Unlike them, it accepts the header of every JPEG coding process.

use std::fmt;
use std::ops::Range;

use super::marker::{self, next_segment};
use super::quality;

/// Size and encoding of a JPEG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JpegFacts {
    /// Width in pixels, as stored (EXIF orientation not applied).
    pub width: u32,
    /// Height in pixels, as stored.
    pub height: u32,
    /// Number of components: 1 for grey, 3 for colour, 4 for CMYK.
    pub components: u8,
    /// Bits per sample.
    pub bits: u8,
    /// The coding process of the frame.
    pub process: Process,
    /// MCUs between restart markers, 0 for none.
    pub restart_interval: u16,
    /// The IJG quality that the sum of the first luminance table corresponds to; `None` without such a table of 8 bits.
    pub quality: Option<u8>,
    /// Byte range of the component specifications in the file, three bytes each.
    specifications: Range<usize>,
}

/// The coding process that a frame's marker states (T.81 table B.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// SOF0.
    Baseline,
    /// SOF1: extended sequential, Huffman-coded.
    Extended,
    /// SOF2: progressive, Huffman-coded.
    Progressive,
    /// Lossless, hierarchical or arithmetic-coded.
    Other,
}

impl Process {
    /// Return the process in one word.
    pub fn name(self) -> &'static str {
        match self {
            Process::Baseline => "baseline",
            Process::Extended => "extended",
            Process::Progressive => "progressive",
            Process::Other => "other",
        }
    }
}

/// Why a file's header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFault {
    /// The file does not begin as a JPEG.
    NotJpeg,
    /// The file ends before its first scan.
    EndsInHeader {
        /// Bytes of the file.
        size: usize,
    },
    /// A marker that has no place before the first scan: a second start, or a code without a meaning.
    Misplaced {
        /// Marker code.
        code: u8,
        /// Offset of the marker.
        at: usize,
    },
    /// The end marker stands before the first scan.
    NoImageData,
    /// A segment leaves the file.
    SegmentTooLong {
        /// Marker code of the segment.
        code: u8,
        /// Offset of its marker.
        at: usize,
    },
    /// The frame header ends before its last component.
    FrameTooShort,
    /// The frame has no pixels or no components.
    EmptyFrame {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Number of components.
        components: u8,
    },
    /// A scan begins before any frame header.
    ScanBeforeFrame,
    /// No end marker follows the first scan.
    NoEndMarker {
        /// Bytes of the file.
        size: usize,
    },
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HeaderFault::NotJpeg => write!(f, "not a JPEG"),
            HeaderFault::EndsInHeader { size } => {
                write!(f, "JPEG ends in its header, at byte {size}")
            }
            HeaderFault::Misplaced { code, at } => {
                write!(
                    f,
                    "JPEG marker {code:#04x} at byte {at} has no place in a header"
                )
            }
            HeaderFault::NoImageData => write!(f, "JPEG holds no image data"),
            HeaderFault::SegmentTooLong { code, at } => write!(
                f,
                "JPEG segment {code:#04x} at byte {at} runs past the end of the file"
            ),
            HeaderFault::FrameTooShort => write!(f, "JPEG frame header is too short"),
            HeaderFault::EmptyFrame {
                width,
                height,
                components,
            } => write!(
                f,
                "JPEG of {width} x {height} pixels with {components} components"
            ),
            HeaderFault::ScanBeforeFrame => write!(f, "JPEG scan before the frame header"),
            HeaderFault::NoEndMarker { size } => {
                write!(f, "JPEG is truncated: no end marker in {size} bytes")
            }
        }
    }
}

impl std::error::Error for HeaderFault {}

/// Read the segments of `data` up to its first scan, and find the end marker.
pub fn jpeg_facts(data: &[u8]) -> Result<JpegFacts, HeaderFault> {
    if !data.starts_with(&[0xFF, marker::SOI, 0xFF]) {
        return Err(HeaderFault::NotJpeg);
    }
    let size = data.len();
    let (mut at, mut frame, mut quality, mut restart_interval) = (2, None, None, 0);
    loop {
        let (code, offset) = marker::find(data, at).ok_or(HeaderFault::EndsInHeader { size })?;
        let Some(segment) = next_segment(data, offset) else {
            return Err(HeaderFault::SegmentTooLong { code, at: offset });
        };
        match (code, segment.payload) {
            (marker::EOI, _) => return Err(HeaderFault::NoImageData),
            (marker::SOS, _) => break,
            (0xC4 | 0xC8 | 0xCC, _) => {}
            (0xC0..=0xCF, payload) => frame = Some(read_frame(code, payload, offset + 4)?),
            (marker::DRI, &[high, low, ..]) => {
                restart_interval = u16::from_be_bytes([high, low]);
            }
            (marker::DQT, payload) if quality.is_none() => quality = estimate_quality(payload),
            _ if code == marker::SOI || !marker::is_known(code) => {
                return Err(HeaderFault::Misplaced { code, at: offset });
            }
            _ => {}
        }
        at = segment.end;
    }
    let frame: JpegFacts = frame.ok_or(HeaderFault::ScanBeforeFrame)?;
    memchr::memmem::rfind(&data[at..], &[0xFF, marker::EOI])
        .ok_or(HeaderFault::NoEndMarker { size })?;
    Ok(JpegFacts {
        quality,
        restart_interval,
        ..frame
    })
}

/// Return the facts in the payload of an SOF segment, which begins at `start` in the file.
fn read_frame(code: u8, payload: &[u8], start: usize) -> Result<JpegFacts, HeaderFault> {
    let &[bits, y1, y0, x1, x0, components, ref rest @ ..] = payload else {
        return Err(HeaderFault::FrameTooShort);
    };
    let length = 3 * usize::from(components);
    if rest.len() < length {
        return Err(HeaderFault::FrameTooShort);
    }
    let width = u32::from(u16::from_be_bytes([x1, x0]));
    let height = u32::from(u16::from_be_bytes([y1, y0]));
    if width == 0 || height == 0 || components == 0 {
        return Err(HeaderFault::EmptyFrame {
            width,
            height,
            components,
        });
    }
    Ok(JpegFacts {
        width,
        height,
        components,
        bits,
        process: match code {
            marker::SOF0 => Process::Baseline,
            marker::SOF1 => Process::Extended,
            marker::SOF2 => Process::Progressive,
            _ => Process::Other,
        },
        restart_interval: 0,
        quality: None,
        specifications: start + 6..start + 6 + length,
    })
}

impl JpegFacts {
    /// Return the chroma subsampling of `data`, the file that these facts were read from: `4:2:0` and the like, `grey` for one
    /// component, otherwise the sampling factors of each component, as in `2x1,1x2,1x1`.
    pub fn subsampling(&self, data: &[u8]) -> String {
        let specifications = data.get(self.specifications.clone()).unwrap_or_default();
        let factors: Vec<(u8, u8)> = specifications
            .chunks_exact(3)
            .map(|component| (component[1] >> 4, component[1] & 15))
            .collect();
        let ratio = match factors[..] {
            [_] => return "grey".into(),
            [luma, chroma] => ratio(luma, chroma),
            [luma, blue, red, ..] if blue == red => ratio(luma, blue),
            _ => None,
        };
        match ratio {
            Some((1, 1)) => "4:4:4".into(),
            Some((2, 1)) => "4:2:2".into(),
            Some((2, 2)) => "4:2:0".into(),
            Some((1, 2)) => "4:4:0".into(),
            Some((4, 1)) => "4:1:1".into(),
            Some((4, 2)) => "4:1:0".into(),
            _ => {
                let each: Vec<String> = factors.iter().map(|(h, v)| format!("{h}x{v}")).collect();
                each.join(",")
            }
        }
    }
}

/// Return the ratio of luma to chroma sampling, across and down; `None` if it is not a whole number.
fn ratio(luma: (u8, u8), chroma: (u8, u8)) -> Option<(u8, u8)> {
    let whole = |fine: u8, coarse: u8| {
        let ratio = fine.checked_div(coarse)?;
        (ratio * coarse == fine).then_some(ratio)
    };
    Some((whole(luma.0, chroma.0)?, whole(luma.1, chroma.1)?))
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

/// Return the quality whose luminance table has the sum nearest to that of the first table in a DQT payload; encoders with tables
/// of their own get a similar one.
fn estimate_quality(payload: &[u8]) -> Option<u8> {
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
    fn facts_of_files_from_libjpeg_turbo() {
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
            assert_eq!(facts.process, Process::Baseline);
            assert_eq!(facts.subsampling(&file), "4:4:4");
            let size = file.len() - 2;
            let fault = HeaderFault::NoEndMarker { size };
            assert_eq!(jpeg_facts(&file[..size]), Err(fault));
            for length in 0..file.len().min(700) {
                assert!(jpeg_facts(&file[..length]).is_err());
            }
        }
    }

    #[test]
    fn subsampling_names_the_ratio_or_lists_the_factors() {
        for (factors, name) in [
            (&[0x11][..], "grey"),
            (&[0x22, 0x11, 0x11], "4:2:0"),
            (&[0x42, 0x21, 0x21], "4:2:0"),
            (&[0x41, 0x11, 0x11], "4:1:1"),
            (&[0x12, 0x11], "4:4:0"),
            (&[0x22, 0x22, 0x22, 0x11], "4:4:4"),
            (&[0x21, 0x12, 0x11], "2x1,1x2,1x1"),
            (&[0x31, 0x21, 0x21], "3x1,2x1,2x1"),
            (&[0x11, 0x01, 0x01], "1x1,0x1,0x1"),
        ] {
            let mut payload = vec![8, 0, 9, 0, 9, factors.len() as u8];
            payload.extend(factors.iter().flat_map(|&factor| [1, factor, 0]));
            let facts = read_frame(marker::SOF0, &payload, 0).unwrap();
            assert_eq!(facts.subsampling(&payload), name);
        }
    }

    #[test]
    fn a_refusal_states_the_offset() {
        let fault = |data: &[u8]| jpeg_facts(data).unwrap_err().to_string();
        assert_eq!(
            fault(&[0xFF, 0xD8, 0xFF]),
            "JPEG ends in its header, at byte 3"
        );
        assert_eq!(
            fault(&[0xFF, 0xD8, 0xFF, 0xFE, 0, 3, 1, 7, 0, 0xFF, 0xD8]),
            "JPEG marker 0xd8 at byte 9 has no place in a header"
        );
        assert_eq!(
            fault(&[0xFF, 0xD8, 0xFF, 0x02, 0, 2]),
            "JPEG marker 0x02 at byte 2 has no place in a header"
        );
        assert_eq!(
            fault(&[0xFF, 0xD8, 0xFF, 0xFE, 0, 9, 1]),
            "JPEG segment 0xfe at byte 2 runs past the end of the file"
        );
        assert_eq!(
            fault(&[0xFF, 0xD8, 0xFF, 0xDA, 0, 2]),
            "JPEG scan before the frame header"
        );
    }
}
