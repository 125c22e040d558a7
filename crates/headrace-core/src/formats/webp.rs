//! What the library does otherwise than libwebp in WebP files: the container's stated size, the first frame of an animation, and
//! alpha that is stated but missing.

use std::borrow::Cow;

use crate::error::{Result, Status};

/// Refuse a file that ends before the container does.
pub fn check(data: &[u8]) -> Result<()> {
    let stated = data.get(4..8).map_or(0, |field| {
        field
            .iter()
            .rev()
            .fold(0usize, |value, &byte| value << 8 | usize::from(byte))
    });
    if stated + 8 > data.len() {
        return Err(Status::Truncated);
    }
    Ok(())
}

/// Return the file as the library reads it like libwebp: the first frame of an animation replaces the canvas, with which the library
/// would blend it, and a lossy image without a chunk of alpha values states none.
pub fn as_libwebp_reads(data: &[u8]) -> Cow<'_, [u8]> {
    const FRAME_FLAGS: usize = 8 + 15; // behind place, size and duration (RFC 9649, section 2.7.1.1)
    const NO_BLENDING: u8 = 2;
    const IMAGE_FLAGS: usize = 20; // of VP8X, the first chunk of an extended file
    const ALPHA: u8 = 0x10;
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
