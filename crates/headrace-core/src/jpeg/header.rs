//! The parser of a JPEG's header: the marker segments up to its first scan. The result borrows from the file.
//!
//! Source of the format: ITU-T T.81 (B.2), JFIF 1.02, Adobe TN 5116. The parser accepts the same deviations as libjpeg-turbo:
//! garbage between segments, fill bytes, 16-bit quantisation tables in SOF0.

use super::marker::{self, next_segment};
use crate::error::{Result, Status};

/// Position in the 8×8 block (row × 8 + column) of the k-th coefficient in file order (T.81 figure A.6).
pub const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// A Huffman table in the file (T.81 B.2.4.2).
#[derive(Debug, Clone, Copy)]
pub struct HuffmanSpec<'a> {
    /// Number of codes of each length, 1 to 16 bits.
    pub counts: &'a [u8; 16],
    /// The symbols in order of their codes; as many as `counts` says.
    pub symbols: &'a [u8],
}

/// A component of the frame, and the tables that its scan uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Component {
    /// Identifier in the file.
    pub id: u8,
    /// Horizontal sampling factor.
    pub h: u8,
    /// Vertical sampling factor.
    pub v: u8,
    /// Quantisation table, 0 to 3.
    pub quant: u8,
    /// DC Huffman table, 0 to 3.
    pub dc: u8,
    /// AC Huffman table, 0 to 3.
    pub ac: u8,
}

/// The colour conversion of the components to RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// One component.
    Gray,
    /// YCbCr as in JFIF.
    Ycc,
    /// Stored as RGB (Adobe transform 0, or components named R, G, B).
    Rgb,
}

/// The header data that decoding the first scan needs. [`parse`] returns it for baseline and extended sequential Huffman files of
/// 8 bits with one or three components in a single scan, and refuses all others with [`Status::Unsupported`].
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The components; the first `count` are used.
    pub components: [Component; 3],
    /// Number of components, 1 or 3.
    pub count: usize,
    /// Quantisation tables in block order (row × 8 + column).
    pub quant: [Option<[u16; 64]>; 4],
    /// DC Huffman tables.
    pub dc: [Option<HuffmanSpec<'a>>; 4],
    /// AC Huffman tables.
    pub ac: [Option<HuffmanSpec<'a>>; 4],
    /// MCUs between restart markers, 0 for none.
    pub restart_interval: u32,
    /// The colour conversion.
    pub colour: Colour,
    /// Offset of the first entropy-coded byte.
    pub scan: usize,
}

impl<'a> Header<'a> {
    /// Return the components of the image.
    pub fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// Return the largest sampling factors (horizontal, vertical).
    pub fn max_factors(&self) -> (u32, u32) {
        let largest =
            |of: fn(&Component) -> u8| self.components().iter().map(of).max().unwrap_or(1);
        (u32::from(largest(|c| c.h)), u32::from(largest(|c| c.v)))
    }

    /// Return the number of MCUs across and down. A single component has one block per MCU, whatever its factors are (T.81 A.2.2).
    pub fn mcus(&self) -> (u32, u32) {
        let (h, v) = self.max_factors();
        (self.width.div_ceil(8 * h), self.height.div_ceil(8 * v))
    }

    fn read_frame(&mut self, payload: &[u8]) -> Result<()> {
        let frame = Frame::read(payload)?;
        if frame.precision != 8 || !matches!(frame.count(), 1 | 3) {
            return Err(Status::Unsupported);
        }
        (self.width, self.height, self.count) = (frame.width, frame.height, frame.count());
        for (to, component) in self.components.iter_mut().zip(frame.components()) {
            *to = component;
            if self.count == 1 {
                (to.h, to.v) = (1, 1);
            }
        }
        Ok(())
    }

    fn read_quant(&mut self, payload: &[u8]) -> Result<()> {
        quantisation_tables(payload, |number, table| self.quant[number] = Some(table))
    }

    fn read_huffman(&mut self, payload: &'a [u8]) -> Result<()> {
        huffman_tables(payload, |class, number, table| match class {
            Class::Dc => self.dc[number] = Some(table),
            Class::Ac => self.ac[number] = Some(table),
        })
    }

    fn read_scan(&mut self, payload: &[u8]) -> Result<()> {
        let chosen = scan_components(payload)?;
        if chosen.len() != self.count {
            return Err(Status::Unsupported); // one scan per component
        }
        for (component, (id, dc, ac)) in self.components[..self.count].iter_mut().zip(chosen) {
            if component.id != id {
                return Err(Status::Unsupported);
            }
            (component.dc, component.ac) = (dc, ac);
            if dc > 3 || ac > 3 {
                return Err(Status::CorruptHeader);
            }
        }
        Ok(())
    }
}

/// A frame header (T.81 B.2.2). The caller decides which kinds it supports.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Bits per sample.
    pub precision: u8,
    /// Width in pixels, not 0.
    pub width: u32,
    /// Height in pixels, not 0.
    pub height: u32,
    /// Three bytes for each component.
    raw: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Read and check the payload of an SOF segment.
    pub fn read(payload: &'a [u8]) -> Result<Self> {
        let &[precision, y1, y0, x1, x0, count, ref raw @ ..] = payload else {
            return Err(Status::CorruptHeader);
        };
        let frame = Frame {
            precision,
            width: u32::from(u16::from_be_bytes([x1, x0])),
            height: u32::from(u16::from_be_bytes([y1, y0])),
            raw,
        };
        let sound = |c: Component| (1..=4).contains(&c.h) && (1..=4).contains(&c.v) && c.quant <= 3;
        if frame.width == 0
            || frame.height == 0
            || count == 0
            || raw.len() != 3 * usize::from(count)
            || !frame.components().all(sound)
        {
            return Err(Status::CorruptHeader);
        }
        Ok(frame)
    }

    /// Return the number of components.
    pub fn count(&self) -> usize {
        self.raw.len() / 3
    }

    /// Return the components in their order, without Huffman tables.
    pub fn components(&self) -> impl Iterator<Item = Component> + 'a {
        self.raw.chunks_exact(3).map(|raw| Component {
            id: raw[0],
            h: raw[1] >> 4,
            v: raw[1] & 15,
            quant: raw[2],
            dc: 0,
            ac: 0,
        })
    }
}

/// The class of a Huffman table: DC symbols are sizes, AC symbols are runs and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Differences of DC coefficients.
    Dc,
    /// AC coefficients.
    Ac,
}

/// Call `each` with class, number (0 to 3) and content of each table in a DHT segment (T.81 B.2.4.2).
pub fn huffman_tables<'a>(
    mut payload: &'a [u8],
    mut each: impl FnMut(Class, usize, HuffmanSpec<'a>),
) -> Result<()> {
    while let [kind, rest @ ..] = payload {
        let counts: &[u8; 16] = rest.first_chunk().ok_or(Status::CorruptHeader)?;
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let symbols = rest.get(16..16 + total).ok_or(Status::CorruptHeader)?;
        if total > 256 || kind & 15 > 3 || kind >> 4 > 1 {
            return Err(Status::CorruptHeader);
        }
        let class = match kind >> 4 {
            0 => Class::Dc,
            _ => Class::Ac,
        };
        each(
            class,
            usize::from(kind & 15),
            HuffmanSpec { counts, symbols },
        );
        payload = &rest[16 + total..];
    }
    Ok(())
}

/// Call `each` with number (0 to 3) and values, in block order, of each table in a DQT segment (T.81 B.2.4.1).
pub fn quantisation_tables(
    mut payload: &[u8],
    mut each: impl FnMut(usize, [u16; 64]),
) -> Result<()> {
    while let [kind, rest @ ..] = payload {
        let (wide, number) = (kind >> 4 != 0, usize::from(kind & 15));
        let bytes = if wide { 128 } else { 64 };
        if number > 3 || rest.len() < bytes {
            return Err(Status::CorruptHeader);
        }
        let mut table = [0u16; 64];
        for (k, &position) in ZIGZAG.iter().enumerate() {
            table[usize::from(position)] = if wide {
                u16::from_be_bytes([rest[2 * k], rest[2 * k + 1]])
            } else {
                u16::from(rest[k])
            };
        }
        each(number, table);
        payload = &rest[bytes..];
    }
    Ok(())
}

/// Return the components of an SOS segment (T.81 B.2.3): identifier, DC table and AC table of each.
pub fn scan_components(payload: &[u8]) -> Result<impl ExactSizeIterator<Item = (u8, u8, u8)> + '_> {
    let &[count, ref rest @ ..] = payload else {
        return Err(Status::CorruptHeader);
    };
    // Spectral selection and bit positions follow, three bytes.
    let (raw, _) = rest
        .split_last_chunk::<3>()
        .filter(|(raw, _)| raw.len() == 2 * usize::from(count))
        .ok_or(Status::CorruptHeader)?;
    Ok(raw
        .chunks_exact(2)
        .map(|raw| (raw[0], raw[1] >> 4, raw[1] & 15)))
}

/// The Adobe and JFIF markers, which determine the colour space of three components (libjpeg's rules).
#[derive(Default)]
struct ColourHints {
    jfif: bool,
    adobe: Option<u8>,
}

impl ColourHints {
    fn read(&mut self, code: u8, payload: &[u8]) {
        if code == marker::APP0 && payload.len() >= 14 && payload.starts_with(b"JFIF\0") {
            self.jfif = true;
        } else if code == marker::APP14 && payload.len() >= 12 && payload.starts_with(b"Adobe") {
            self.adobe = Some(payload[11]);
        }
    }

    fn colour(&self, components: &[Component]) -> Colour {
        match (components, self.adobe) {
            ([_], _) => Colour::Gray,
            (_, Some(0)) if !self.jfif => Colour::Rgb,
            ([r, g, b], None) if !self.jfif && [r.id, g.id, b.id] == *b"RGB" => Colour::Rgb,
            _ => Colour::Ycc,
        }
    }
}

/// Parse the segments up to the first scan. [`Status::Unsupported`] means a valid file that only libjpeg-turbo decodes.
pub fn parse(data: &[u8]) -> Result<Header<'_>> {
    if !marker::begins(data) {
        return Err(Status::UnknownFormat);
    }
    let mut header = Header {
        width: 0,
        height: 0,
        components: [Component::default(); 3],
        count: 0,
        quant: [None; 4],
        dc: [None; 4],
        ac: [None; 4],
        restart_interval: 0,
        colour: Colour::Gray,
        scan: 0,
    };
    let mut hints = ColourHints::default();
    let mut at = 2;
    loop {
        let segment = next_segment(data, at).ok_or(Status::Truncated)?;
        let payload = segment.payload;
        at = segment.end;
        match segment.code {
            marker::SOF0 | marker::SOF1 if header.count == 0 => header.read_frame(payload)?,
            marker::SOF0 | marker::SOF1 | marker::SOI => return Err(Status::CorruptHeader),
            marker::DHT => header.read_huffman(payload)?,
            marker::DQT => header.read_quant(payload)?,
            marker::DRI => {
                let &[high, low] = payload else {
                    return Err(Status::CorruptHeader);
                };
                header.restart_interval = u32::from(u16::from_be_bytes([high, low]));
            }
            marker::SOS if header.count == 0 => return Err(Status::CorruptHeader),
            marker::SOS => {
                header.read_scan(payload)?;
                header.colour = hints.colour(header.components());
                header.scan = segment.end;
                return Ok(header);
            }
            marker::EOI => return Err(Status::Truncated),
            0xC2..=0xCF => return Err(Status::Unsupported), // progressive, lossless, arithmetic, hierarchical
            code if marker::is_known(code) => hints.read(code, payload),
            _ => return Err(Status::CorruptHeader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_or_inconsistent_headers_are_refused() {
        assert_eq!(parse(b"GIF89a").err(), Some(Status::UnknownFormat));
        assert_eq!(parse(&[0xFF, 0xD8]).err(), Some(Status::Truncated));
        let no_marker_second = [0xFF, 0xD8, 0, 0xFF, 0xDA];
        assert_eq!(parse(&no_marker_second).err(), Some(Status::UnknownFormat));
        let reserved_marker = [0xFF, 0xD8, 0xFF, 0x02, 0, 2];
        assert_eq!(parse(&reserved_marker).err(), Some(Status::CorruptHeader));
        let wrong_length = [0xFF, 0xD8, 0xFF, 0xDB, 0xFF, 0xFF, 0x00];
        assert_eq!(parse(&wrong_length).err(), Some(Status::Truncated));
        let empty_frame = [0xFF, 0xD8, 0xFF, 0xC0, 0, 11, 8, 0, 0, 0, 9, 1, 1, 0x11, 0];
        assert_eq!(parse(&empty_frame).err(), Some(Status::CorruptHeader));
        let progressive = [0xFF, 0xD8, 0xFF, 0xC2, 0, 11, 8, 0, 9, 0, 9, 1, 1, 0x11, 0];
        assert_eq!(parse(&progressive).err(), Some(Status::Unsupported));
    }

    #[test]
    fn garbage_and_fill_bytes_before_a_marker_are_skipped() {
        let data = [0x12, 0xFF, 0x00, 0x34, 0xFF, 0xFF, 0xDD, 0, 4, 0, 7];
        let segment = next_segment(&data, 0).expect("a DRI segment");
        assert_eq!(
            (segment.code, segment.offset, segment.payload),
            (marker::DRI, 5, &[0u8, 7][..])
        );
        assert_eq!(segment.end, data.len());
    }

    #[test]
    fn zigzag_is_a_permutation() {
        let mut seen = [false; 64];
        ZIGZAG
            .iter()
            .for_each(|&position| seen[usize::from(position)] = true);
        assert!(seen.iter().all(|&s| s));
    }
}
