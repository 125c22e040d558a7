//! The reader of the EXIF orientation: one number in a TIFF structure that JPEG, PNG, WebP and TIFF files carry.

mod png;

use std::borrow::Cow;

use crate::geometry::Orientation;
use crate::jpeg::marker::{self, next_segment};

/// Return the orientation of an image file of any format that the decoder reads. As in Pillow, the EXIF tag counts; without one,
/// the tag in the XMP packet.
pub fn orientation(data: &[u8]) -> Orientation {
    let blocks = match data {
        [0xFF, 0xD8, ..] => jpeg_blocks(data),
        [0x89, b'P', b'N', b'G', ..] => png::blocks(data),
        [b'R', b'I', b'F', b'F', ..] => webp_blocks(data),
        _ => Blocks {
            tiff: Some(Cow::Borrowed(data)),
            xmp: None,
        },
    };
    let stated = blocks.tiff.as_deref().and_then(orientation_in_tiff);
    stated
        .or_else(|| blocks.xmp.as_deref().and_then(orientation_in_xmp))
        .and_then(Orientation::from_number)
        .unwrap_or_default()
}

/// Return the EXIF orientation of a JPEG that every reader of EXIF agrees on, or `None`: readers differ in what they make of several
/// EXIF segments, of damaged ones, and of a tag that is no single SHORT from 1 to 8. XMP packets are not asked.
pub fn undisputed_orientation(jpeg: &[u8]) -> Option<Orientation> {
    let mut found = None;
    let (mut segments, mut at) = (0, 2);
    while let Some(segment) = next_segment(jpeg, at) {
        if matches!(segment.code, marker::SOS | marker::EOI) {
            break;
        }
        if segment.code == marker::APP1 {
            segments += 1;
            if let Some(tiff) = segment.payload.strip_prefix(EXIF_PREFIX) {
                if found.is_some() {
                    return None;
                }
                found = Some(plain_orientation(tiff)?);
            }
        }
        at = segment.end;
    }
    match found {
        // Some readers look at the first of several APP1 segments only.
        Some(orientation) if segments > 1 && orientation != Orientation::Upright => None,
        found => Some(found.unwrap_or_default()),
    }
}

/// Return the orientation in a TIFF structure whose first directory is whole and has at most one such tag, a single SHORT.
fn plain_orientation(tiff: &[u8]) -> Option<Orientation> {
    const ONE_SHORT: (Option<u32>, Option<u32>) = (Some(3), Some(1));
    let directory = Directory::first(tiff)?;
    let end = directory.position.checked_add(2 + 12 * directory.count)?;
    tiff.get(..end)?;
    let mut entries = directory.entries(ORIENTATION_TAG);
    let Some(entry) = entries.next() else {
        return Some(Orientation::Upright);
    };
    let kind = (
        directory.number(entry + 2, 2),
        directory.number(entry + 4, 4),
    );
    if entries.next().is_some() || kind != ONE_SHORT {
        return None;
    }
    Orientation::from_number(directory.number(entry + 8, 2)?)
}

/// The metadata blocks of a file.
#[derive(Default)]
struct Blocks<'a> {
    tiff: Option<Cow<'a, [u8]>>,
    xmp: Option<Cow<'a, [u8]>>,
}

/// The bytes before the TIFF structure in JPEG, and sometimes in WebP.
const EXIF_PREFIX: &[u8] = b"Exif\0\0";

fn jpeg_blocks(data: &[u8]) -> Blocks<'_> {
    let mut blocks = Blocks::default();
    let mut at = 2;
    while let Some(segment) = next_segment(data, at) {
        if matches!(segment.code, marker::SOS | marker::EOI) {
            break;
        }
        if segment.code == marker::APP1 {
            let behind = |prefix: &[u8]| segment.payload.strip_prefix(prefix).map(Cow::Borrowed);
            blocks.tiff = blocks.tiff.or(behind(EXIF_PREFIX));
            blocks.xmp = behind(b"http://ns.adobe.com/xap/1.0/\0").or(blocks.xmp);
        }
        at = segment.end;
    }
    blocks
}

/// Find the metadata in the chunks of a RIFF container: name, length, content, padded to an even length.
fn webp_blocks(data: &[u8]) -> Blocks<'_> {
    let mut blocks = Blocks::default();
    let mut rest = data.get(12..).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let Some(content) = behind.get(..length) else {
            break;
        };
        match &head[..4] {
            b"EXIF" => {
                let tiff = content.strip_prefix(EXIF_PREFIX).unwrap_or(content);
                blocks.tiff = Some(Cow::Borrowed(tiff));
            }
            b"XMP " => blocks.xmp = Some(Cow::Borrowed(content)),
            _ => {}
        }
        rest = behind.get(length + (length & 1)..).unwrap_or_default();
    }
    blocks
}

/// Return the number after the first `tiff:Orientation="` or `tiff:Orientation>`.
fn orientation_in_xmp(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    memchr::memmem::find_iter(xmp, NAME).find_map(|start| match &xmp[start + NAME.len()..] {
        [b'=', b'"', digit @ b'0'..=b'9', ..] | [b'>', digit @ b'0'..=b'9', ..] => {
            Some(u32::from(digit - b'0'))
        }
        _ => None,
    })
}

/// The tag's number in the first image directory (EXIF 2.32, table 4).
const ORIENTATION_TAG: u32 = 0x0112;

/// Return the orientation number in a TIFF structure (an EXIF block after its prefix, or a whole TIFF file), or `None` if the
/// structure is damaged. As in Pillow, the last entry counts, the first value of several, and a value of type BYTE, which the
/// standard does not allow here, is ignored.
fn orientation_in_tiff(tiff: &[u8]) -> Option<u32> {
    let directory = Directory::first(tiff)?;
    directory
        .entries(ORIENTATION_TAG)
        .filter_map(|entry| directory.value(entry))
        .last()
}

/// The first image directory of a TIFF structure.
pub(crate) struct Directory<'a> {
    tiff: &'a [u8],
    big_endian: bool,
    position: usize,
    count: usize,
}

impl<'a> Directory<'a> {
    /// Find the first directory; `None` if the structure does not begin as TIFF.
    pub(crate) fn first(tiff: &'a [u8]) -> Option<Self> {
        let big_endian = match tiff.get(..4)? {
            b"MM\0*" => true,
            b"II*\0" => false,
            _ => return None,
        };
        let mut directory = Directory {
            tiff,
            big_endian,
            position: 0,
            count: 0,
        };
        directory.position = directory.number(4, 4)? as usize;
        directory.count = directory.number(directory.position, 2)? as usize;
        Some(directory)
    }

    /// Return the offsets of the entries with this tag, up to the first entry that leaves the data.
    pub(crate) fn entries(&self, tag: u32) -> impl Iterator<Item = usize> + use<'_, 'a> {
        (0..self.count)
            .map_while(|entry| {
                let offset = self.position.checked_add(2 + 12 * entry)?;
                self.tiff.get(offset..offset.checked_add(12)?)?;
                Some(offset)
            })
            .filter(move |&offset| self.number(offset, 2) == Some(tag))
    }

    /// Return the first value of an entry of an integer type: 3 SHORT, 8 SSHORT, 4 LONG, 9 SLONG, 6 SBYTE (TIFF 6.0, section 2).
    pub(crate) fn value(&self, entry: usize) -> Option<u32> {
        let bytes = match self.number(entry + 2, 2)? {
            3 | 8 => 2,
            4 | 9 => 4,
            6 => 1,
            _ => return None,
        };
        let total = (self.number(entry + 4, 4)? as usize).checked_mul(bytes)?;
        match total {
            0 => None,
            1..=4 => self.number(entry + 8, bytes),
            _ => {
                let values = self.number(entry + 8, 4)? as usize;
                self.tiff.get(values..values.checked_add(total)?)?;
                self.number(values, bytes)
            }
        }
    }

    /// Write `value` to an entry with one value of type SHORT or LONG, in `copy`, a copy of the structure.
    pub(crate) fn set_value(&self, entry: usize, value: u32, copy: &mut [u8]) {
        let bytes = match (self.number(entry + 2, 2), self.number(entry + 4, 4)) {
            (Some(3), Some(1)) => 2,
            (Some(4), Some(1)) => 4,
            _ => return,
        };
        let Some(field) = copy.get_mut(entry + 8..entry + 8 + bytes) else {
            return;
        };
        if self.big_endian {
            field.copy_from_slice(&value.to_be_bytes()[4 - bytes..]);
        } else {
            field.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }

    fn number(&self, offset: usize, bytes: usize) -> Option<u32> {
        let field = self.tiff.get(offset..offset.checked_add(bytes)?)?;
        let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
        Some(if self.big_endian {
            field.iter().fold(0, fold)
        } else {
            field.iter().rev().fold(0, fold)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::jpeg::exif_segment::orientation_payload;

    fn in_tiff(tiff: &[u8]) -> Option<Orientation> {
        orientation_in_tiff(tiff).and_then(Orientation::from_number)
    }

    #[test]
    fn the_minimal_block_reads_back() {
        for number in 1..=8 {
            let orientation = Orientation::from_number(number).unwrap();
            let block = orientation_payload(orientation);
            assert_eq!(in_tiff(&block[6..]), Some(orientation));
            for length in 6..block.len() - 6 {
                assert_eq!(in_tiff(&block[6..length]), None, "cut at {length}");
            }
        }
    }

    #[test]
    fn the_tag_is_found_in_little_endian_after_other_tags() {
        let tiff = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x04\0\0\0abc\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(in_tiff(tiff), Some(Orientation::Rotate90));
    }

    /// Return a JPEG's head with these APP1 payloads.
    fn jpeg_with(payloads: &[&[u8]]) -> Vec<u8> {
        let mut jpeg = vec![0xFF, 0xD8];
        for payload in payloads {
            jpeg.extend_from_slice(&[0xFF, 0xE1]);
            jpeg.extend_from_slice(&(payload.len() as u16 + 2).to_be_bytes());
            jpeg.extend_from_slice(payload);
        }
        jpeg.extend_from_slice(&[0xFF, 0xDA, 0, 2]);
        jpeg
    }

    #[test]
    fn only_a_plain_orientation_is_undisputed() {
        let turned = orientation_payload(Orientation::Rotate90);
        let upright = orientation_payload(Orientation::Upright);
        let xmp = b"http://ns.adobe.com/xap/1.0/\0tiff:Orientation=\"6\"";
        let agreed = |payloads: &[&[u8]]| undisputed_orientation(&jpeg_with(payloads));
        assert_eq!(agreed(&[]), Some(Orientation::Upright));
        assert_eq!(agreed(&[&turned]), Some(Orientation::Rotate90));
        assert_eq!(agreed(&[xmp]), Some(Orientation::Upright));
        assert_eq!(agreed(&[xmp, &upright]), Some(Orientation::Upright));
        assert_eq!(agreed(&[xmp, &turned]), None);
        assert_eq!(agreed(&[&turned, &turned]), None);
        assert_eq!(agreed(&[&turned[..turned.len() - 6]]), None);
        for (at, value) in [(19, 4), (23, 2), (25, 0), (25, 9), (15, 2)] {
            let mut odd = turned.clone();
            odd[at] = value;
            assert_eq!(agreed(&[&odd]), None, "byte {at} is {value}");
        }
    }

    #[test]
    fn damaged_blocks_have_no_orientation() {
        assert_eq!(in_tiff(b""), None);
        assert_eq!(in_tiff(b"MM\0*\xff\xff\xff\xff"), None);
        let mut block = orientation_payload(Orientation::FlipX);
        block[25] = 9;
        assert_eq!(in_tiff(&block[6..]), None);
    }
}
