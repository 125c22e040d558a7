//! EXIF and XMP blocks in PNG files: in the chunk eXIf, and in texts, where ImageMagick and older programs put them.
//!
//! All chunks up to IEND count, also those behind the pixels, and of several with one name the last, as in Pillow.

use std::borrow::Cow;

use flate2::{Decompress, FlushDecompress};

use super::Blocks;

/// ImageMagick's name of a text that holds EXIF as hexadecimal digits.
pub(crate) const RAW_PROFILE: &[u8] = b"Raw profile type exif";
pub(crate) const XMP: &[u8] = b"XML:com.adobe.xmp";
/// Largest text in bytes after decompression, as in Pillow; a larger one is ignored.
pub(crate) const MAX_TEXT: usize = 1 << 20;

/// Texts of XMP that are read, each of up to [`MAX_TEXT`]: as many as Pillow's limit of 64 MiB for all texts allows.
const MOST_PACKETS: usize = 64;

/// Find the metadata in the chunks of a PNG file: length, name, content, checksum (PNG 5.3). The EXIF chunk may follow the pixels.
pub fn blocks(data: &[u8]) -> Blocks<'_> {
    let mut blocks = Blocks::default();
    let mut raw_profile = None;
    let mut packets = MOST_PACKETS;
    let mut rest = data.get(8..).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(content) = behind.get(..length) else {
            break;
        };
        match &head[4..] {
            b"eXIf" => {
                blocks.exif = Some(Cow::Borrowed(content));
                blocks.found += 1;
            }
            b"IEND" => break,
            name => match Text::of(name, content) {
                Some(text) if text.key == RAW_PROFILE => {
                    raw_profile = Some(text);
                    blocks.found += 1;
                }
                Some(text) if text.key == XMP && packets > 0 => {
                    packets -= 1;
                    blocks.xmp = text.content().or(blocks.xmp);
                }
                _ => {}
            },
        }
        rest = behind.get(length + 4..).unwrap_or_default();
    }
    // An eXIf chunk goes before a raw profile, even if it has no orientation.
    if blocks.exif.is_none() {
        blocks.exif = raw_profile
            .and_then(|text| text.content())
            .and_then(|text| bytes_of_raw_profile(&text))
            .map(Cow::Owned);
    }
    blocks
}

/// A text chunk of the file.
pub(crate) struct Text<'a> {
    /// What the text is.
    pub(crate) key: &'a [u8],
    /// The text, perhaps compressed.
    pub(crate) value: &'a [u8],
    /// Whether `value` is a zlib stream.
    pub(crate) compressed: bool,
}

impl<'a> Text<'a> {
    /// Read a chunk of the kinds tEXt, zTXt and iTXt (PNG 11.3.3); `None` for other chunks and texts of unknown compression.
    pub(crate) fn of(name: &[u8], content: &'a [u8]) -> Option<Self> {
        let (key, behind) = split(content)?;
        let (value, compressed) = match name {
            b"tEXt" => (behind, false),
            b"zTXt" => match behind {
                [0, value @ ..] => (value, true),
                _ => return None,
            },
            b"iTXt" => match behind {
                [flag, method, rest @ ..] if *flag == 0 || *method == 0 => {
                    let (_language, rest) = split(rest)?;
                    let (_translated_key, value) = split(rest)?;
                    (value, *flag != 0)
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(Text {
            key,
            value,
            compressed,
        })
    }

    /// Return the text; `None` if its compressed data are damaged or give more than [`MAX_TEXT`].
    pub(crate) fn content(&self) -> Option<Cow<'a, [u8]>> {
        if self.compressed {
            decompressed(self.value).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.value))
        }
    }
}

/// Split at the first zero byte.
pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(0, bytes)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// Return whether a zlib stream gives fewer bytes than Pillow's limit, or is damaged, which Pillow does not mind.
pub(crate) fn is_below_limit(stream: &[u8]) -> bool {
    const MOST_FROM_ONE_BYTE: usize = 1032; // the ratio of deflate at its best (zlib's technical details)
    if stream.len() < MAX_TEXT / MOST_FROM_ONE_BYTE {
        return true;
    }
    let mut text = vec![0; MAX_TEXT];
    let mut inflate = Decompress::new(true);
    let result = inflate.decompress(stream, &mut text, FlushDecompress::Sync);
    result.is_err() || (inflate.total_out() as usize) < MAX_TEXT
}

/// Decompress a zlib stream. One that ends early gives what is there.
fn decompressed(stream: &[u8]) -> Option<Vec<u8>> {
    let mut text = vec![0; MAX_TEXT + 1];
    let mut inflate = Decompress::new(true);
    inflate
        .decompress(stream, &mut text, FlushDecompress::Sync)
        .ok()?;
    text.truncate(inflate.total_out() as usize);
    (text.len() <= MAX_TEXT).then_some(text)
}

/// Return the bytes of a raw profile: an empty line, the name, the length, then lines of hexadecimal digits. White space may stand
/// between two bytes. `None` for other characters.
pub(crate) fn bytes_of_raw_profile(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.splitn(4, |&byte| byte == b'\n').nth(3)?;
    let mut bytes = Vec::with_capacity(lines.len() / 2);
    let mut upper = None;
    for &character in lines.iter().filter(|&&byte| byte != b'\n') {
        let digit = char::from(character).to_digit(16).map(|digit| digit as u8);
        match (upper, digit) {
            (None, Some(digit)) => upper = Some(digit),
            (Some(first), Some(digit)) => {
                bytes.push(first << 4 | digit);
                upper = None;
            }
            (None, None) if character.is_ascii_whitespace() || character == 0x0B => {}
            _ => return None,
        }
    }
    if upper.is_some() {
        return None;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_profiles_are_hexadecimal_digits_after_three_lines() {
        let read = |text: &str| bytes_of_raw_profile(text.as_bytes());
        assert_eq!(read("\nexif\n  3\n4d4D\n00\n"), Some(vec![0x4D, 0x4D, 0]));
        assert_eq!(
            read("\nexif\n 8\n457869660000\n4\n9\n 49"),
            Some(b"Exif\0\0II".to_vec())
        );
        assert_eq!(read("\nexif\n 1\n4 d"), None);
        assert_eq!(read("\nexif\n 1\n4"), None);
        assert_eq!(read("\nexif\n 1\nxy"), None);
        assert_eq!(read("\nexif"), None);
    }

    #[test]
    fn a_text_that_grows_beyond_the_limit_is_ignored() {
        use flate2::{write::ZlibEncoder, Compression};
        use std::io::Write;

        for (length, kept) in [(MAX_TEXT, true), (MAX_TEXT + 1, false)] {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&vec![b'0'; length]).expect("written");
            let stream = encoder.finish().expect("written");
            assert_eq!(
                decompressed(&stream).map(|text| text.len()),
                kept.then_some(length)
            );
        }
    }
}
