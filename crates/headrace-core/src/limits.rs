//! Limits on what one image may ask for: pixels, memory and work (docs/reference/limits.md).
//!
//! A header of a few bytes can state any size, and a scan of a few bytes can cover the whole image. So the pixels are limited, and
//! beyond a size that costs little the work must stand in a proportion to the bytes of the file.

use std::sync::OnceLock;

use crate::error::{Result, Status};

/// Images with more pixels are refused as decompression bombs, unless [`VARIABLE`] states another number (Pillow's limit for an
/// error: twice 1024³/4/3).
pub const MAX_PIXELS: u64 = 178_956_970;

/// The environment variable that states another limit of pixels.
pub const VARIABLE: &str = "HEADRACE_MAX_PIXELS";

/// The largest limit of pixels that can be stated: sides, strides and counts of blocks are computed in 32 bits.
pub const LARGEST: u64 = 1 << 31;

/// Pixels times scans that a file of any length may ask for. A blank page of A4 at 600 dots per inch has half as many pixels.
const FREE_WORK: u64 = 1 << 26;

/// Pixels times scans that each byte of a larger image allows. Deflate gives 8,256 pixels of one bit for a byte, a blank progressive
/// JPEG 3,400 pixels times scans.
const WORK_PER_BYTE: u64 = 1 << 14;

/// Scans that an image as large as the limit may have. Encoders write 6 to 18.
const SCANS_OF_THE_LARGEST: u64 = 20;

/// Scans that an image of any size may have.
const MAX_SCANS: u64 = 100;

/// The environment variable that states another limit of what is read whole, such as `4GiB`.
pub const RECORD_VARIABLE: &str = "HEADRACE_RECORD_LIMIT";

/// Bytes of a record or a file that is read whole, unless [`RECORD_VARIABLE`] states another number. A sparse file of any size takes
/// no disk.
const RECORD_BYTES: u64 = 1 << 30;

/// Memory in bytes that a thread's buffer keeps from one image to the next.
const KEPT_BYTES: usize = 256 << 20;

/// Return the largest number of pixels that an image may have: that of [`VARIABLE`] when this is called first, else [`MAX_PIXELS`].
pub fn max_pixels() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| limit_of(std::env::var(VARIABLE).ok().as_deref()))
}

/// Return the limit of pixels that a text states; Python refuses other texts in words.
fn limit_of(text: Option<&str>) -> u64 {
    text.and_then(|text| text.trim().parse().ok())
        .filter(|pixels| (1..=LARGEST).contains(pixels))
        .unwrap_or(MAX_PIXELS)
}

/// Return the most bytes of a record or a file that is read whole, as [`RECORD_VARIABLE`] states it when this is called first.
pub fn record_bytes() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let text = std::env::var(RECORD_VARIABLE).ok();
        text.and_then(|text| size_of(&text)).unwrap_or(RECORD_BYTES)
    })
}

/// Return the number of bytes that a text such as `4GiB` or `1.5 GB` states; Python refuses other texts in words.
fn size_of(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let unit = text.trim_start_matches(|one: char| one.is_ascii_digit() || one == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().ok()?;
    let unit = unit.trim_start();
    let (base, letter) = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => return Some(number as u64),
        unit => unit
            .strip_suffix('I')
            .map_or((1000.0, unit), |letter| (1024.0, letter)),
    };
    let power = ["K", "M", "G", "T"].iter().position(|one| *one == letter)?;
    Some((number * f64::powi(base, power as i32 + 1)) as u64)
}

/// Return the limit of an image's decoded samples, and of a library's working memory, in bytes: enough for the largest image at
/// six bytes per pixel.
pub fn max_bytes() -> u64 {
    (6 * max_pixels()).max(1 << 30)
}

/// Return the number of scans that a file of `bytes` bytes may have over an image of `pixels` pixels. For 0 the file is too short
/// for its pixels.
pub fn most_scans(pixels: u64, bytes: usize) -> u32 {
    scans_within(max_pixels(), pixels, bytes)
}

fn scans_within(limit: u64, pixels: u64, bytes: usize) -> u32 {
    let work = (bytes as u64).saturating_mul(WORK_PER_BYTE).max(FREE_WORK);
    let work = work.min(SCANS_OF_THE_LARGEST * limit);
    (work / pixels.max(1)).min(MAX_SCANS) as u32
}

/// Refuse an image of so many pixels from a file of so few bytes as [`Status::TooLarge`].
pub fn check_work(pixels: u64, bytes: usize) -> Result<()> {
    match most_scans(pixels, bytes) {
        0 => Err(Status::TooLarge),
        _ => Ok(()),
    }
}

/// Make room for `length` elements in all. Memory that cannot be had is [`Status::TooLarge`], not the end of the process.
pub fn reserve<T>(buffer: &mut Vec<T>, length: usize) -> Result<()> {
    buffer
        .try_reserve(length.saturating_sub(buffer.len()))
        .map_err(|_| Status::TooLarge)
}

/// Give `buffer` this length; what is new is `value`. Memory that cannot be had is [`Status::TooLarge`].
pub fn resize<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) -> Result<()> {
    reserve(buffer, length)?;
    buffer.resize(length, value);
    Ok(())
}

/// Make `buffer` at least `length` long, as [`resize`] does.
pub fn grow<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) -> Result<()> {
    if buffer.len() < length {
        resize(buffer, length, value)?;
    }
    Ok(())
}

/// Return a buffer of `length` elements, as [`resize`] does.
pub fn filled<T: Clone>(length: usize, value: T) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    resize(&mut buffer, length, value)?;
    Ok(buffer)
}

/// Refuse a call of a library that will ask for `bytes` bytes at once, and would end the process without them.
pub fn check_memory(bytes: usize) -> Result<()> {
    reserve(&mut Vec::<u8>::new(), bytes)
}

/// Free the memory of a thread's buffer that an unusually large image has left.
pub fn shrink(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_python_reads_them() {
        let sizes = [
            ("4096", 4096),
            (" 4GiB ", 4 << 30),
            ("1.5 GB", 1_500_000_000),
            ("2k", 2000),
            ("3 MiB", 3 << 20),
            ("1TB", 1_000_000_000_000),
            ("7b", 7),
        ];
        for (text, bytes) in sizes {
            assert_eq!(size_of(text), Some(bytes), "{text}");
        }
        for text in ["", "GiB", "1 XB", "1 GiBs", "-1", "1e9"] {
            assert_eq!(size_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_states_the_limit_of_pixels() {
        for (text, limit) in [
            (None, MAX_PIXELS),
            (Some("400000000"), 400_000_000),
            (Some(" 1000 "), 1000),
            (Some("0"), MAX_PIXELS),
            (Some("-1"), MAX_PIXELS),
            (Some("1e9"), MAX_PIXELS),
            (Some("4294967296"), MAX_PIXELS),
        ] {
            assert_eq!(limit_of(text), limit, "{text:?}");
        }
    }

    #[test]
    fn work_follows_the_bytes_of_a_file() {
        let scans = |pixels, bytes| scans_within(MAX_PIXELS, pixels, bytes);
        assert_eq!(scans(161_000_000, 1_500), 0); // 1.5 KB that state 161 megapixels
        assert_eq!(scans(60_000_000, 1_500), 1);
        assert_eq!(scans(MAX_PIXELS, 34), 0); // a blank WebP
        assert_eq!(scans(34_799_360, 34), 1); // a blank page of A4 at 600 dots per inch
        assert_eq!(scans(1_000_000, 2_000), 67);
        assert_eq!(scans(200_000, 20_000), 100);
        assert_eq!(scans(100_000_000, 5_000_000), 35); // a photograph of 100 megapixels
        assert!(scans(100_000_000, 293_000) >= 18); // a blank one, progressive
        assert_eq!(scans(MAX_PIXELS, usize::MAX), 20);
        assert_eq!(scans(0, 0), 100);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let mut buffer = vec![1u8];
        assert_eq!(
            resize(&mut buffer, usize::MAX / 2, 0),
            Err(Status::TooLarge)
        );
        assert_eq!(buffer, [1]);
        assert_eq!(check_memory(usize::MAX / 2), Err(Status::TooLarge));
        assert_eq!(filled(3, 7u8), Ok(vec![7; 3]));
        assert_eq!(grow(&mut buffer, 3, 2), Ok(()));
        assert_eq!(buffer, [1, 2, 2]);
    }

    #[test]
    fn a_buffer_does_not_keep_the_memory_of_a_large_image() {
        let mut buffer = Vec::with_capacity(KEPT_BYTES + 1); // not touched, so it takes no memory
        shrink(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        let mut buffer = Vec::with_capacity(1000);
        shrink(&mut buffer);
        assert!(buffer.capacity() >= 1000);
    }
}
