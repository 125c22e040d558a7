//! The reader of the EXIF orientation: one number in a TIFF structure that JPEG, PNG, WebP and TIFF files carry.

mod directory;
pub(crate) mod png;
mod quiet;
mod tags;

use std::borrow::Cow;

use crate::geometry::Orientation;
use crate::jpeg::marker::{self, next_segment};

pub(crate) use directory::{kind, Directory, Field};
pub(crate) use quiet::{block_is_quiet, file_is_quiet, has_usual_counts};

/// Return the orientation of an image file of any format that the decoder reads. As in Pillow, the EXIF tag counts; without one,
/// the tag in the XMP packet.
pub fn orientation(data: &[u8]) -> Orientation {
    Blocks::of(data).orientation()
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
    let usual_head = tiff.starts_with(b"MM\0*") || tiff.starts_with(b"II*\0");
    let directory = Directory::first(tiff).filter(|_| usual_head)?;
    if !directory.is_whole() {
        return None;
    }
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
pub(crate) struct Blocks<'a> {
    /// The EXIF block, with the prefixes that Pillow takes off.
    pub(crate) exif: Option<Cow<'a, [u8]>>,
    /// The XMP packet.
    pub(crate) xmp: Option<Cow<'a, [u8]>>,
    /// The number of EXIF blocks that `exif` was chosen from or put together of.
    pub(crate) found: usize,
}

/// The bytes before the TIFF structure in JPEG, and sometimes in other files.
pub(crate) const EXIF_PREFIX: &[u8] = b"Exif\0\0";

impl<'a> Blocks<'a> {
    /// Find the blocks of a file.
    pub(crate) fn of(data: &'a [u8]) -> Self {
        match data {
            [0xFF, 0xD8, ..] => jpeg_blocks(data),
            [0x89, b'P', b'N', b'G', ..] => png::blocks(data),
            [b'R', b'I', b'F', b'F', ..] => webp_blocks(data),
            _ => Blocks {
                xmp: xmp_of_tiff(data).map(Cow::Borrowed),
                exif: Some(Cow::Borrowed(data)),
                found: 1,
            },
        }
    }

    /// Return the TIFF structure.
    pub(crate) fn tiff(&self) -> Option<&[u8]> {
        self.exif.as_deref().map(without_prefix)
    }

    /// Return the orientation: that of EXIF, or without one that of XMP.
    pub(crate) fn orientation(&self) -> Orientation {
        self.tiff()
            .and_then(orientation_in_tiff)
            .or_else(|| self.xmp.as_deref().and_then(orientation_in_xmp))
            .and_then(Orientation::from_number)
            .unwrap_or_default()
    }
}

/// Take off the prefix, which some files have twice.
fn without_prefix(block: &[u8]) -> &[u8] {
    let once = block.strip_prefix(EXIF_PREFIX).unwrap_or(block);
    once.strip_prefix(EXIF_PREFIX).unwrap_or(once)
}

/// Find the segments of a JPEG. Those of EXIF after the first continue it, as in Pillow.
fn jpeg_blocks(data: &[u8]) -> Blocks<'_> {
    let mut blocks = Blocks::default();
    let mut at = 2;
    while let Some(segment) = next_segment(data, at) {
        if matches!(segment.code, marker::SOS | marker::EOI) {
            break;
        }
        if segment.code == marker::APP1 {
            if let Some(part) = segment.payload.strip_prefix(EXIF_PREFIX) {
                blocks.found += 1;
                match &mut blocks.exif {
                    Some(exif) => exif.to_mut().extend_from_slice(part),
                    none => *none = Some(Cow::Borrowed(segment.payload)),
                }
            } else if let Some(packet) = segment.payload.strip_prefix(XMP_PREFIX) {
                blocks.xmp = Some(Cow::Borrowed(packet));
            }
        }
        at = segment.end;
    }
    blocks
}

const XMP_PREFIX: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// Find the metadata in the chunks of a RIFF container: name, length, content, padded to an even length. As in libwebp, only an
/// extended file has them, its flags say which, the first of each name counts, and nothing behind the end of the container.
fn webp_blocks(data: &[u8]) -> Blocks<'_> {
    const FLAGS: usize = 20; // of VP8X, the first chunk of an extended file (RFC 9649, section 2.7)
    const EXIF: u8 = 0x08;
    const XMP: u8 = 0x04;
    let mut blocks = Blocks::default();
    let flags = match (data.get(12..16), data.get(FLAGS)) {
        (Some(b"VP8X"), Some(&flags)) => flags,
        _ => return blocks,
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let end = data.len().min(8 + number(&data[4..8]));
    let mut rest = data.get(12..end).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = number(&head[4..]);
        let Some(content) = behind.get(..length) else {
            break;
        };
        let block = match &head[..4] {
            b"EXIF" if flags & EXIF != 0 => {
                blocks.found += 1;
                &mut blocks.exif
            }
            b"XMP " if flags & XMP != 0 => &mut blocks.xmp,
            _ => &mut None,
        };
        block.get_or_insert(Cow::Borrowed(content));
        rest = behind.get(length + (length & 1)..).unwrap_or_default();
    }
    // Pillow takes no note of empty ones.
    blocks.exif = blocks.exif.filter(|block| !block.is_empty());
    blocks.xmp = blocks.xmp.filter(|block| !block.is_empty());
    blocks
}

/// Return the XMP packet of a TIFF file.
fn xmp_of_tiff(tiff: &[u8]) -> Option<&[u8]> {
    const XMP_TAG: u32 = 700;
    let mut packet = None;
    Directory::first(tiff)?.walk(|field| {
        if field.tag == XMP_TAG && field.is_bytes() {
            packet = Some(field.data);
        }
    });
    packet
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
pub(crate) const ORIENTATION_TAG: u32 = 0x0112;

/// Return the orientation number in a TIFF structure (an EXIF block after its prefix, or a whole TIFF file). `None` if Pillow finds
/// no such tag, 0 if its value is no number from 1 to 8.
fn orientation_in_tiff(tiff: &[u8]) -> Option<u32> {
    let mut found = None;
    Directory::first(tiff)?.walk(|field| {
        if field.tag == ORIENTATION_TAG {
            let number = field.number().filter(|number| (1..=8).contains(number));
            found = Some(number.unwrap_or(0));
        }
    });
    found
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
