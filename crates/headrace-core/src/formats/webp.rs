//! What the library does otherwise than libwebp in WebP files: the container's stated size, and the first frame of an animation.

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

/// Return the file with a first frame that replaces the canvas. The library rounds when it blends; libwebp does not blend the first
/// frame.
pub fn without_blending(data: &[u8]) -> Cow<'_, [u8]> {
    const FLAGS: usize = 8 + 15; // behind place, size and duration (RFC 9649, section 2.7.1.1)
    const NO_BLENDING: u8 = 2;
    let Some(flags) = first_frame(data).map(|frame| frame + FLAGS) else {
        return Cow::Borrowed(data);
    };
    if data.get(flags).is_none_or(|flags| flags & NO_BLENDING != 0) {
        return Cow::Borrowed(data);
    }
    let mut copy = data.to_vec();
    copy[flags] |= NO_BLENDING;
    Cow::Owned(copy)
}

/// Return the offset of the first ANMF chunk.
fn first_frame(data: &[u8]) -> Option<usize> {
    let mut at = 12;
    loop {
        let head: &[u8; 8] = data.get(at..)?.first_chunk()?;
        if &head[..4] == b"ANMF" {
            return Some(at);
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        at = at.checked_add(8 + length + length % 2)?;
    }
}
