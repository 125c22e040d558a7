//! Portable bitmaps, graymaps and pixmaps (PBM, PGM, PPM; binary and plain) as Pillow reads them: samples are scaled to 255 with
//! halves rounded to even, and gray of more than 8 bits, which Pillow scales to 65,535, is clipped at 255, if the caller does
//! not ask for 8 bits.
//!
//! Of several images in a file the first is read. Numbers have at most 10 digits. A comment, from `#` to the end of its line, may
//! stand inside a number.

use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::limits;

const MAX_DIGITS: usize = 10;

/// The kind of samples in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One bit per pixel; 1 is black.
    Bits,
    Gray,
    Rgb,
}

struct Header {
    kind: Kind,
    /// Samples are decimal numbers.
    plain: bool,
    size: Size,
    /// The largest sample, which is white.
    maximum: u16,
    /// Scale gray of more than 8 bits to 8 bits.
    scale_depth: bool,
    /// Offset of the samples.
    samples_at: usize,
}

/// Return whether `data` begins as a PBM, PGM or PPM file.
pub fn is_pnm(data: &[u8]) -> bool {
    matches!(data, [b'P', b'1'..=b'6', space, ..] if is_space(*space))
}

/// Return the size in the header.
pub fn size(data: &[u8]) -> Result<Size> {
    Ok(header(data)?.size)
}

/// Write `region`, which lies in the image, as RGB into `pixels`; the image is no larger than the pixel limit. `samples` is reused
/// memory.
pub fn region(
    data: &[u8],
    region: Rect,
    scale_depth: bool,
    samples: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<()> {
    let header = Header {
        scale_depth,
        ..header(data)?
    };
    let stored = &data[header.samples_at..];
    let (rows, layout) = if header.plain {
        read_plain(stored, &header, samples)?;
        (samples.as_slice(), Layout::Bytes)
    } else if header.kind == Kind::Bits {
        (stored, Layout::Bits)
    } else if header.maximum < 256 {
        (stored, Layout::Bytes)
    } else {
        (stored, Layout::Pairs)
    };
    let row_samples = header.size.width as usize * header.kind.channels();
    let stride = match layout {
        Layout::Bits => row_samples.div_ceil(8),
        Layout::Bytes => row_samples,
        Layout::Pairs => 2 * row_samples,
    };
    if rows.len() / stride < header.size.height as usize {
        return Err(Status::Truncated);
    }
    // Plain samples were scaled when they were read.
    let eight_bits: [u8; 256] = std::array::from_fn(|value| {
        if header.plain {
            value as u8
        } else {
            header.scaled(value as u16)
        }
    });
    limits::resize(pixels, region.w as usize * region.h as usize * 3, 0)?;
    let lines = rows.chunks_exact(stride).skip(region.y as usize);
    for (row, out) in lines.zip(pixels.chunks_exact_mut(region.w as usize * 3)) {
        let sample = |number: usize| match layout {
            Layout::Bits => 255 * u8::from(row[number / 8] << (number % 8) & 0x80 == 0),
            Layout::Bytes => eight_bits[usize::from(row[number])],
            Layout::Pairs => {
                header.scaled(u16::from_be_bytes([row[2 * number], row[2 * number + 1]]))
            }
        };
        for (x, out) in (region.x as usize..).zip(out.chunks_exact_mut(3)) {
            match header.kind {
                Kind::Rgb => out.copy_from_slice(&[0, 1, 2].map(|channel| sample(3 * x + channel))),
                Kind::Bits | Kind::Gray => out.fill(sample(x)),
            }
        }
    }
    Ok(())
}

/// How the samples of a row are stored.
#[derive(Clone, Copy)]
enum Layout {
    Bits,
    Bytes,
    /// Two bytes, the upper one first.
    Pairs,
}

impl Kind {
    fn channels(self) -> usize {
        match self {
            Kind::Bits | Kind::Gray => 1,
            Kind::Rgb => 3,
        }
    }
}

impl Header {
    /// Return the value of a sample after Pillow's `convert("RGB")`, or on a scale of 8 bits.
    fn scaled(&self, sample: u16) -> u8 {
        let wide_gray = self.kind == Kind::Gray && self.maximum > 255 && !self.scale_depth;
        let white = if wide_gray { 65_535.0 } else { 255.0 };
        let share = f64::from(sample) / f64::from(self.maximum);
        (share * white).round_ties_even().min(255.0) as u8
    }
}

fn header(data: &[u8]) -> Result<Header> {
    let (kind, plain) = match data.get(1) {
        Some(b'1') => (Kind::Bits, true),
        Some(b'2') => (Kind::Gray, true),
        Some(b'3') => (Kind::Rgb, true),
        Some(b'4') => (Kind::Bits, false),
        Some(b'5') => (Kind::Gray, false),
        Some(b'6') => (Kind::Rgb, false),
        _ => return Err(Status::UnknownFormat),
    };
    let mut text = Text { data, at: 3 };
    let mut number = || text.number()?.ok_or(Status::Truncated);
    let (width, height) = (number()?, number()?);
    let maximum = if kind == Kind::Bits { 1 } else { number()? };
    if width == 0 || height == 0 {
        return Err(Status::CorruptHeader);
    }
    let sides = (u32::try_from(width), u32::try_from(height));
    let (Ok(width), Ok(height)) = sides else {
        return Err(Status::TooLarge);
    };
    match u16::try_from(maximum) {
        Ok(maximum) if maximum > 0 => Ok(Header {
            kind,
            plain,
            size: Size { width, height },
            maximum,
            scale_depth: false,
            samples_at: text.at,
        }),
        _ => Err(Status::CorruptHeader),
    }
}

/// Read decimal samples, scale them, and write them to `samples`.
fn read_plain(stored: &[u8], header: &Header, samples: &mut Vec<u8>) -> Result<()> {
    let Size { width, height } = header.size;
    let count = u64::from(width) * u64::from(height) * header.kind.channels() as u64;
    if count > limits::max_bytes() {
        return Err(Status::TooLarge);
    }
    let count = count as usize;
    // A bit takes at least one byte, a number at least two except the last. A file that is shorter is refused before memory is
    // taken.
    let least = if header.kind == Kind::Bits {
        count
    } else {
        2 * count - 1
    };
    if stored.len() < least {
        return Err(Status::Truncated);
    }
    samples.clear();
    limits::reserve(samples, count)?;
    let mut text = Text {
        data: stored,
        at: 0,
    };
    while samples.len() < count {
        samples.push(match header.kind {
            Kind::Bits => match text.next().ok_or(Status::Truncated)? {
                b'0' => 255,
                b'1' => 0,
                space if is_space(space) => continue,
                _ => return Err(Status::CorruptData),
            },
            Kind::Gray | Kind::Rgb => {
                let value = text.number().map_err(|_| Status::CorruptData)?;
                let value = value.ok_or(Status::Truncated)?;
                match u16::try_from(value) {
                    Ok(value) if value <= header.maximum => header.scaled(value),
                    _ => return Err(Status::CorruptData),
                }
            }
        });
    }
    Ok(())
}

/// The characters of a file without comments.
struct Text<'a> {
    data: &'a [u8],
    at: usize,
}

impl Text<'_> {
    /// Read the next number and the space after it; `None` at the end.
    fn number(&mut self) -> Result<Option<u64>> {
        let (mut digits, mut value) = (0, 0);
        while let Some(character) = self.next() {
            match character {
                b'0'..=b'9' if digits < MAX_DIGITS => {
                    value = 10 * value + u64::from(character - b'0');
                    digits += 1;
                }
                space if is_space(space) && digits == 0 => {}
                space if is_space(space) => break,
                _ => return Err(Status::CorruptHeader),
            }
        }
        Ok((digits > 0).then_some(value))
    }

    fn next(&mut self) -> Option<u8> {
        loop {
            let character = *self.data.get(self.at)?;
            self.at += 1;
            if character != b'#' {
                return Some(character);
            }
            while !matches!(self.data.get(self.at), None | Some(b'\n' | b'\r')) {
                self.at += 1;
            }
            self.at = self.data.len().min(self.at + 1); // the end of the line belongs to the comment
        }
    }
}

fn is_space(character: u8) -> bool {
    matches!(character, b' ' | 0x09..=0x0D)
}
