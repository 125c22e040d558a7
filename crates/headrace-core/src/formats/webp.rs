//! WebP by libwebp. What is checked here before says what is wrong with a file that libwebp only refuses.

use super::{libwebp, Samples};
use crate::error::{Result, Status};
use crate::geometry::Size;

/// Return the size of the canvas.
pub fn size(data: &[u8]) -> Result<Size> {
    check(data)?;
    Ok(libwebp::first_frame(data)?.canvas)
}

/// Decode the first frame on an empty canvas into `out`.
pub fn samples(data: &[u8], out: &mut Vec<u8>) -> Result<Samples> {
    libwebp::first_frame(data)?.decode(out)?;
    Ok(Samples::Rgb8)
}

/// Refuse a file that ends before its container or one of its chunks does, and a lossy frame whose header libwebp refuses.
fn check(data: &[u8]) -> Result<()> {
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

/// Check the frame tag of a key frame: shown, of a known version, with a first partition that is there (RFC 6386, section 9.1).
fn check_frame(frame: &[u8]) -> Result<()> {
    let tag = frame.get(..3).map(little_endian).ok_or(Status::Truncated)?;
    let (inter_frame, version, shown, partition) = (tag & 1, tag >> 1 & 7, tag >> 4 & 1, tag >> 5);
    if inter_frame == 1 || version > 3 || shown == 0 {
        return Err(Status::CorruptHeader);
    }
    if partition > frame.len().saturating_sub(10) {
        return Err(Status::Truncated);
    }
    Ok(())
}

fn little_endian(bytes: &[u8]) -> usize {
    let fold = |value: usize, &byte: &u8| value << 8 | usize::from(byte);
    bytes.iter().rev().fold(0, fold)
}
