//! The chunks of a PNG that Pillow reads (PngImagePlugin.py).

use flate2::Crc;

use crate::exif::png::{bytes_of_raw_profile, is_below_limit, split, Text, RAW_PROFILE, XMP};

/// Names under which Pillow's reader keeps what it needs itself. A text of such a name takes its place.
const TAKEN: [&[u8]; 9] = [
    b"bbox",
    b"blend",
    b"default_image",
    b"disposal",
    b"duration",
    b"exif",
    b"interlace",
    b"transparency",
    b"xmp",
];

/// Bytes of all texts that Pillow reads (MAX_TEXT_MEMORY), and of one.
const MOST_TEXTS: usize = 1 << 26;
const MOST_TEXT: usize = 1 << 20;

/// What the chunks so far have said.
#[derive(Default)]
struct State {
    /// The pixels have begun: Pillow no longer compares checksums.
    pixels: bool,
    palette: bool,
    packets: usize,
    texts: usize,
}

/// Return whether Pillow reads all chunks up to the end quietly, whatever EXIF says. Animations are not quiet.
pub fn is_quiet(data: &[u8]) -> bool {
    let mut state = State {
        palette: data.get(25) == Some(&3), // the colour type, in the first chunk
        ..State::default()
    };
    let mut rest = data.get(8..).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (Some(content), Some(sum)) = (behind.get(..length), behind.get(length..length + 4))
        else {
            return false;
        };
        let name = [head[4], head[5], head[6], head[7]];
        match &name {
            b"IEND" => return state.pixels,
            b"IDAT" => state.pixels = true,
            _ if !state.pixels && checksum(&name, content) != sum => return false,
            _ if !state.takes(&name, content) => return false,
            _ => {}
        }
        rest = &behind[length + 4..];
    }
    false
}

fn checksum(name: &[u8], content: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(name);
    crc.update(content);
    crc.sum().to_be_bytes()
}

impl State {
    /// Return whether Pillow reads a chunk quietly.
    fn takes(&mut self, name: &[u8; 4], content: &[u8]) -> bool {
        match name {
            b"IHDR" => content.len() == 13 && content[11] == 0,
            b"tRNS" if self.palette => is_one_transparent_colour(content),
            b"tRNS" => content.len() >= 2,
            b"gAMA" => content.len() >= 4,
            b"cHRM" => content.len() >= 32,
            b"sRGB" => !content.is_empty(),
            b"pHYs" => content.len() >= 9,
            b"iCCP" => split(content)
                .is_some_and(|(_, rest)| rest.first() == Some(&0) && is_below_limit(&rest[1..])),
            b"acTL" | b"fcTL" | b"fdAT" => false,
            b"tEXt" | b"zTXt" | b"iTXt" => {
                let Some(text) = Text::of(name, content) else {
                    return false;
                };
                self.texts += if text.compressed {
                    MOST_TEXT
                } else {
                    text.value.len()
                };
                self.packets += usize::from(text.key == XMP);
                self.packets <= 1 && self.texts <= MOST_TEXTS && text_is_quiet(&text)
            }
            _ => name
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_'),
        }
    }
}

fn text_is_quiet(text: &Text<'_>) -> bool {
    if TAKEN.contains(&text.key) || (text.compressed && !is_below_limit(text.value)) {
        return false;
    }
    let hexadecimal = || {
        let text = text.content()?;
        bytes_of_raw_profile(&text)
    };
    text.key != RAW_PROFILE || hexadecimal().is_some()
}

/// Return whether exactly one colour of a palette is transparent, and the others are opaque. Pillow warns of all else.
fn is_one_transparent_colour(alphas: &[u8]) -> bool {
    let transparent = alphas.iter().filter(|&&alpha| alpha == 0).count();
    let opaque = alphas.iter().filter(|&&alpha| alpha == 255).count();
    alphas.len() <= 256 && transparent == 1 && opaque + 1 == alphas.len()
}
