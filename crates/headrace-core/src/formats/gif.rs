//! The first frame of a GIF, as Pillow converts it: colours from the palette, transparency ignored. Pixels outside the frame get
//! the transparent colour, or colour 0 if there is none. The canvas grows if the frame leaves it.

use std::io::Cursor;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};

use super::ended_early;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::limits;

const EXTENSION: u8 = 0x21;
const FRAME: u8 = 0x2C;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

/// Return the size of the canvas.
pub fn size(data: &[u8]) -> Result<Size> {
    let mut reader = open(data)?;
    let (screen_width, screen_height) = (reader.width(), reader.height());
    let frame = first_frame(&mut reader)?;
    let width = u32::from(screen_width).max(u32::from(frame.left) + u32::from(frame.width));
    let height = u32::from(screen_height).max(u32::from(frame.top) + u32::from(frame.height));
    Ok(Size { width, height })
}

/// Write `region` of the canvas as RGB into `pixels`.
pub fn region(
    data: &[u8],
    region: Rect,
    indices: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<()> {
    let mut reader = open(data)?;
    let frame = first_frame(&mut reader)?.clone();
    let palette = frame
        .palette
        .clone()
        .or_else(|| reader.global_palette().map(<[u8]>::to_vec));
    let colour = |index: u8| match &palette {
        Some(palette) => {
            let start = 3 * usize::from(index);
            palette
                .get(start..start + 3)
                .map_or([0; 3], |rgb| [rgb[0], rgb[1], rgb[2]])
        }
        None => [index; 3], // without a palette: gray
    };
    indices.clear();
    let length = usize::from(frame.width) * usize::from(frame.height);
    limits::resize(indices, length, 0)?;
    // All rows at once, in the order of the file: the library's own reader of interlaced rows, which asks for one row at a time,
    // loses rows whose last code it has read already.
    let complete = reader
        .fill_buffer(indices)
        .map_err(|error| status_of(&error, Status::CorruptData))?;
    if !complete {
        return Err(Status::CorruptData);
    }
    if !has_first_frame(data) {
        return Err(Status::Truncated);
    }

    let around = colour(frame.transparent.unwrap_or(0));
    limits::resize(pixels, region.w as usize * region.h as usize * 3, 0)?;
    for (y, row) in (region.y..).zip(pixels.chunks_exact_mut(region.w as usize * 3)) {
        for (x, out) in (region.x..).zip(row.chunks_exact_mut(3)) {
            let inside = (
                x.checked_sub(frame.left.into()),
                y.checked_sub(frame.top.into()),
            );
            out.copy_from_slice(&match inside {
                (Some(x), Some(y)) if x < frame.width.into() && y < frame.height.into() => {
                    let row = if frame.interlaced {
                        interlaced_row(y, frame.height.into())
                    } else {
                        y
                    };
                    colour(indices[row as usize * usize::from(frame.width) + x as usize])
                }
                _ => around,
            });
        }
    }
    Ok(())
}

/// Return the place of row `y` of `height` in an interlaced file: every eighth row from 0 on, every eighth from 4 on, every fourth
/// from 2 on, every second from 1 on (GIF89a, appendix E).
fn interlaced_row(y: u32, height: u32) -> u32 {
    let rows = |first: u32, step: u32| (height + step - 1 - first.min(height)) / step;
    match y % 8 {
        0 => y / 8,
        4 => rows(0, 8) + y / 8,
        2 | 6 => rows(0, 8) + rows(4, 8) + y / 4,
        _ => rows(0, 8) + rows(4, 8) + rows(2, 4) + y / 2,
    }
}

fn open(data: &[u8]) -> Result<Reader<'_>> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    if let Some(limit) = NonZeroU64::new(limits::max_bytes()) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    options
        .read_info(Cursor::new(data))
        .map_err(|error| status_of(&error, Status::CorruptHeader))
}

fn first_frame<'r>(reader: &'r mut Reader<'_>) -> Result<&'r gif::Frame<'static>> {
    let frame = reader
        .next_frame_info()
        .map_err(|error| status_of(&error, Status::CorruptHeader))?
        .ok_or(Status::Truncated)?;
    if frame.width == 0 || frame.height == 0 {
        return Err(Status::CorruptHeader);
    }
    Ok(frame)
}

fn status_of(error: &DecodingError, damaged: Status) -> Status {
    if ended_early(error) {
        Status::Truncated
    } else {
        damaged
    }
}

/// Return whether the blocks up to the end of the first frame lie in the file. Pillow takes no part of a block.
pub fn has_first_frame(data: &[u8]) -> bool {
    let table = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3usize << (1 + (flags & 7))
        }
    };
    let Some(&flags) = data.get(10) else {
        return false;
    };
    let mut at = 13 + table(flags);
    loop {
        at = match data.get(at) {
            Some(&EXTENSION) => match behind_blocks(data, at + 2) {
                Some(end) => end,
                None => return false,
            },
            Some(&FRAME) => {
                let flags = data.get(at + 9).copied();
                return flags
                    .is_some_and(|flags| behind_blocks(data, at + 11 + table(flags)).is_some());
            }
            _ => return false,
        }
    }
}

/// Return the offset behind blocks of data and the empty one that ends them.
fn behind_blocks(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let length = usize::from(*data.get(at)?);
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interlaced_rows_are_found_at_every_height() {
        for height in 1..70u32 {
            let passes = [(0, 8), (4, 8), (2, 4), (1, 2)];
            let order = passes.map(|(first, step)| (first..height).step_by(step));
            for (place, y) in order.into_iter().flatten().enumerate() {
                assert_eq!(
                    interlaced_row(y, height),
                    place as u32,
                    "row {y} of {height}"
                );
            }
        }
    }
}
