//! What the library does otherwise than libwebp in WebP files: stated sizes and the frame header, the first frame of an animation,
//! alpha that is stated but missing, and the memory for alpha that is not stated.

use std::borrow::Cow;

use super::webp_filter;
use crate::error::{Result, Status};
use crate::geometry::Size;

/// Refuse a file that ends before its container or one of its chunks does, and a lossy frame whose header libwebp refuses.
pub fn check(data: &[u8]) -> Result<()> {
    let stated = data.get(4..8).map_or(0, little_endian);
    let end = stated + 8;
    if end > data.len() {
        return Err(Status::Truncated);
    }
    if end < 20 {
        return Err(Status::Truncated); // before the first chunk
    }
    check_chunks(&data[..end], 12)
}

/// Check the chunks from `at` on to the end of `data`, and those inside the frames of an animation.
fn check_chunks(data: &[u8], mut at: usize) -> Result<()> {
    const PLACE: usize = 16; // bytes before the chunks of a frame (RFC 9649, section 2.7.1.1)
    while let Some(head) = data.get(at..at + 8) {
        let start = at + 8;
        let length = little_endian(&head[4..]);
        let content = data.get(start..start + length).ok_or(Status::Truncated)?;
        match &head[..4] {
            b"VP8 " => check_frame(content)?,
            b"ANMF" => check_chunks(content, PLACE)?,
            _ => {}
        }
        at = start + length + length % 2;
    }
    Ok(())
}

/// Check the frame tag of a key frame: shown, of a known version, with a first partition that is there (RFC 6386, section 9.1),
/// and with a filter that the library takes as libwebp does.
fn check_frame(frame: &[u8]) -> Result<()> {
    let tag = frame.get(..3).map(little_endian).ok_or(Status::Truncated)?;
    let (inter_frame, version, shown, partition) = (tag & 1, tag >> 1 & 7, tag >> 4 & 1, tag >> 5);
    if inter_frame == 1 || version > 3 || shown == 0 {
        return Err(Status::CorruptHeader);
    }
    if partition > frame.len().saturating_sub(10) {
        return Err(Status::Truncated);
    }
    let first = frame.get(10..10 + partition).unwrap_or_default();
    if webp_filter::is_filtered_alike(first) {
        Ok(())
    } else {
        Err(Status::Unsupported)
    }
}

fn little_endian(bytes: &[u8]) -> usize {
    let fold = |value: usize, &byte: &u8| value << 8 | usize::from(byte);
    bytes.iter().rev().fold(0, fold)
}

/// Return about how many bytes the library takes beside the samples: frame and canvas of an animation, the planes of a lossy image.
pub fn working_bytes(data: &[u8], size: Size) -> usize {
    let bytes_per_pixel = if chunk(data, b"ANMF").is_some() {
        8
    } else if chunk(data, b"VP8 ").is_some() {
        3
    } else {
        0
    };
    usize::try_from(bytes_per_pixel * size.pixels()).unwrap_or(usize::MAX)
}

/// Return the file as the library reads it like libwebp: the first frame of an animation replaces the canvas, with which the library
/// would blend it, and a lossy image without a chunk of alpha values states none. A lossless image states alpha: the library then
/// decodes it in place, and otherwise takes memory for a second image.
pub fn as_libwebp_reads(data: &[u8]) -> Cow<'_, [u8]> {
    const FRAME_FLAGS: usize = 8 + 15; // behind place, size and duration (RFC 9649, section 2.7.1.1)
    const NO_BLENDING: u8 = 2;
    const IMAGE_FLAGS: usize = 20; // of VP8X, the first chunk of an extended file
    const ALPHA: u8 = 0x10;
    const LOSSLESS_ALPHA: usize = 24; // the last byte of the first header of VP8L (RFC 9649, section 3.4), in a file without VP8X
    let with = |at: usize, change: fn(u8) -> u8| match data.get(at) {
        Some(&flags) if change(flags) != flags => {
            let mut copy = data.to_vec();
            copy[at] = change(flags);
            Cow::Owned(copy)
        }
        _ => Cow::Borrowed(data),
    };
    if let Some(frame) = chunk(data, b"ANMF") {
        with(frame + FRAME_FLAGS, |flags| flags | NO_BLENDING)
    } else if chunk(data, b"VP8X") == Some(12)
        && chunk(data, b"VP8 ").is_some()
        && chunk(data, b"ALPH").is_none()
    {
        with(IMAGE_FLAGS, |flags| flags & !ALPHA)
    } else if chunk(data, b"VP8L") == Some(12) {
        with(LOSSLESS_ALPHA, |last| last | ALPHA)
    } else if chunk(data, b"VP8X") == Some(12) && chunk(data, b"VP8L").is_some() {
        with(IMAGE_FLAGS, |flags| flags | ALPHA)
    } else {
        Cow::Borrowed(data)
    }
}

/// Return the offset of the first chunk of this name.
fn chunk(data: &[u8], name: &[u8; 4]) -> Option<usize> {
    let mut at = 12;
    loop {
        let head: &[u8; 8] = data.get(at..)?.first_chunk()?;
        if &head[..4] == name {
            return Some(at);
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        at = at.checked_add(8 + length + length % 2)?;
    }
}
