//! The segments of a JPEG that Pillow reads (JpegImagePlugin.py).

use crate::exif::{self, kind, Directory};
use crate::jpeg::marker;

/// Return whether Pillow reads all segments up to the first scan quietly, whatever EXIF says.
pub fn is_quiet(data: &[u8]) -> bool {
    let mut at = 2;
    let mut pictures = 0; // segments that say that the file has several images
    while let Some(&[0xFF, code, high, low]) = data.get(at..at + 4) {
        let begin = at + 4;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(payload) = data.get(begin..at + 2 + length) else {
            return false;
        };
        let quiet = match code {
            marker::SOS => return true,
            marker::SOF0..=marker::SOF2 => frame_is_quiet(payload),
            marker::DQT => tables_are_quiet(payload),
            marker::APP0 => !payload.starts_with(b"JFIF") || payload.len() >= 7,
            APP2 if payload.starts_with(b"ICC_PROFILE\0") => payload.len() >= 14,
            APP2 if payload.starts_with(b"MPF\0") => {
                pictures += 1;
                pictures == 1 && pictures_are_quiet(&payload[4..])
            }
            APP13 if payload.starts_with(b"Photoshop 3.0\0") => resources_are_quiet(payload),
            marker::APP14 => !payload.starts_with(b"Adobe") || payload.len() >= 7,
            marker::DHT | marker::DRI | marker::APP0..=marker::APP15 | marker::COM => true,
            _ => false,
        };
        if !quiet {
            return false;
        }
        at += 2 + length;
    }
    false
}

const APP2: u8 = 0xE2;
const APP13: u8 = 0xED;

/// Check a frame header: 8 bits, and three bytes for each component.
fn frame_is_quiet(payload: &[u8]) -> bool {
    matches!(payload, [8, _, _, _, _, 1 | 3 | 4, components @ ..] if components.len() % 3 == 0)
}

/// Check that the segment is made of whole quantisation tables.
fn tables_are_quiet(mut payload: &[u8]) -> bool {
    while let Some(&first) = payload.first() {
        let length = if first < 16 { 65 } else { 129 };
        let Some(rest) = payload.get(length..) else {
            return false;
        };
        payload = rest;
    }
    true
}

/// Check the index of a file with several images (CIPA DC-007): their number, and 16 bytes for each.
fn pictures_are_quiet(index: &[u8]) -> bool {
    const NUMBER_TAG: u32 = 0xB001;
    const ENTRIES_TAG: u32 = 0xB002;
    let usual_head = index.starts_with(b"MM\0*") || index.starts_with(b"II*\0");
    let Some(directory) = Directory::first(index).filter(|_| usual_head) else {
        return false;
    };
    let (mut number, mut entries) = (None, None);
    let quiet = directory.walk_all(|field| {
        match field.tag {
            NUMBER_TAG if field.kind == kind::LONG => number = field.number(),
            ENTRIES_TAG if field.kind == kind::UNDEFINED => {
                // The number of bytes, and of the entries of JPEGs at the beginning: the format is in three bits of the first number.
                let is_jpeg = |&entry: &usize| {
                    let attributes = field.part(16 * entry, 4);
                    attributes.is_some_and(|attributes| attributes >> 24 & 7 == 0)
                };
                let jpegs = (0..field.data.len() / 16).take_while(is_jpeg).count();
                entries = Some(jpegs);
            }
            _ => {}
        }
        exif::has_usual_counts(field)
    });
    let complete =
        matches!((number, entries), (Some(number), Some(entries)) if number as usize <= entries);
    quiet
        && complete
        && !directory.contradicts_itself(NUMBER_TAG)
        && !directory.contradicts_itself(ENTRIES_TAG)
}

/// Walk through Photoshop's resources as Pillow does. It fails where the data ends behind the number of a resource.
fn resources_are_quiet(payload: &[u8]) -> bool {
    let mut at = 14;
    while payload.get(at..at + 4) == Some(b"8BIM") {
        if payload.len() < at + 6 {
            return true;
        }
        let Some(&name) = payload.get(at + 6) else {
            return false;
        };
        at += 7 + usize::from(name);
        at += at & 1;
        let Some(&size) = payload.get(at..).and_then(<[u8]>::first_chunk) else {
            return true;
        };
        at += 4 + u32::from_be_bytes(size) as usize;
        at += at & 1;
    }
    true
}
