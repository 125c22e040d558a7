//! The JPEG index: entries into the Huffman stream of a JPEG without restart markers. An entry is the bit offset and the DC
//! predictors at the start of a column group of an MCU row. With an index, decoding a region costs what its tiles cost; without
//! one, everything above and beside the region must be decoded too. Decoding an image makes its index at almost no cost.
//!
//! The idea is that of Android's tile index (Skia, 2011) and OpenSlide's restart-marker offsets; the layout is our own.

use super::binding::{Binding, BINDING_BYTES};
use super::entropy::Cursor;
use super::header::Header;
use crate::crc::crc32c;
use crate::error::{Result, Status};

/// Approximate width of a column group in pixels. An entry takes about 7 bytes; on average half a group per row is decoded
/// without use.
const GROUP_WIDTH: u32 = 64;

const MAGIC: [u8; 4] = *b"HRIX";
/// 1, until 2026-11, was bound to its image by a CRC-32C, which can be forged.
const VERSION: u8 = 2;

/// A position in the stream. Predictors are stored modulo 2^16, like coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Entry {
    position: u32,
    bit: u8,
    predictors: [i16; 3],
}

/// The index of one image, for its first [`Index::rows`] MCU rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// The image's bytes.
    image: Binding,
    /// MCUs across, and MCUs per column group.
    across: u32,
    spacing: u32,
    components: u8,
    /// The entries row by row, then the start of the first row that is not covered.
    entries: Vec<Entry>,
}

impl Index {
    /// Make an empty index, whose memory can be reused for several images.
    pub fn new() -> Self {
        Self::default()
    }

    fn groups(&self) -> usize {
        self.across.div_ceil(self.spacing.max(1)).max(1) as usize
    }

    /// Return the number of MCU rows that the index covers.
    pub fn rows(&self) -> u32 {
        (self.entries.len().saturating_sub(1) / self.groups()) as u32
    }

    /// Return true if the index covers nothing: the image has restart markers, or is of another kind.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Return true if the index has its first entry, so that decoding can extend it.
    pub(super) fn can_grow(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Remove all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Return the memory that the index takes in bytes.
    pub fn size_bytes(&self) -> usize {
        std::mem::size_of::<Self>() + self.entries.len() * std::mem::size_of::<Entry>()
    }

    /// Start an index of the image `data`. It stays empty if the image has restart markers, has 4 GiB or
    /// more, or cannot be bound.
    pub(super) fn begin(&mut self, data: &[u8], header: &Header<'_>) {
        self.across = header.mcus().0;
        self.spacing = (GROUP_WIDTH / (8 * header.max_factors().0)).max(1);
        self.components = header.count as u8;
        self.entries.clear();
        if header.restart_interval > 0 || u32::try_from(data.len()).is_err() {
            return; // stays empty
        }
        let Some(image) = Binding::of(data) else {
            return;
        };
        self.image = image;
        self.push(&Cursor {
            position: header.scan,
            bit: 0,
            predictors: [0; 3],
            mcu: 0,
        });
    }

    /// Become a copy of `other`.
    pub fn copy_from(&mut self, other: &Index) {
        self.entries.clear();
        self.entries.extend_from_slice(&other.entries);
        self.image = other.image;
        (self.across, self.spacing, self.components) =
            (other.across, other.spacing, other.components);
    }

    /// Return the MCUs per column group.
    pub(super) fn spacing(&self) -> u32 {
        self.spacing
    }

    /// Append the next entry.
    pub(super) fn push(&mut self, cursor: &Cursor) {
        self.entries.push(Entry {
            position: cursor.position as u32,
            bit: cursor.bit as u8,
            predictors: cursor.predictors.map(|predictor| predictor as i16),
        });
    }

    /// Remove the entries behind the first `rows` MCU rows, of which there are at least as many.
    pub(super) fn keep_rows(&mut self, rows: u32) {
        self.entries.truncate(rows as usize * self.groups() + 1);
    }

    /// Refuse an index that belongs to other bytes.
    pub(super) fn check(&self, data: &[u8], header: &Header<'_>) -> Result<()> {
        let fits = self.across == header.mcus().0
            && self.rows() <= header.mcus().1
            && usize::from(self.components) == header.count
            && self.image.fits(data);
        if fits {
            Ok(())
        } else {
            Err(Status::BadIndex)
        }
    }

    /// Return the last entry at or before MCU `mcu`, and the MCU of the next entry.
    pub(super) fn nearest(&self, mcu: u32) -> Option<(Cursor, u32)> {
        let (row, column) = (mcu / self.across.max(1), mcu % self.across.max(1));
        let (rows, groups) = (self.rows(), self.groups());
        let (at, mcu, next) = if row < rows {
            let group = column / self.spacing;
            let start = row * self.across + group * self.spacing;
            (
                row as usize * groups + group as usize,
                start,
                (start + self.spacing).min((row + 1) * self.across),
            )
        } else {
            (rows as usize * groups, rows * self.across, u32::MAX)
        };
        let point = self.entries.get(at)?;
        let predictors = point.predictors.map(i32::from);
        Some((
            Cursor {
                position: point.position as usize,
                bit: u32::from(point.bit),
                predictors,
                mcu,
            },
            next,
        ))
    }

    /// Return the index as bytes: `HRIX`, version, components, u16 spacing, u32 MCUs across, the [`Binding`] of the image, u32
    /// number of entries; for each entry the bits since the last one and the change of each component's predictor as
    /// variable-length integers (7 bits per byte, low first; changes zigzag-coded); the CRC-32C of all these bytes, which finds
    /// damage. Little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20 + BINDING_BYTES + self.entries.len() * 8);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.components]);
        bytes.extend((self.spacing as u16).to_le_bytes());
        bytes.extend(self.across.to_le_bytes());
        bytes.extend(self.image.to_bytes());
        bytes.extend((self.entries.len() as u32).to_le_bytes());
        let mut last = (0, [0; 3]);
        for point in &self.entries {
            let bits = u64::from(point.position) * 8 + u64::from(point.bit);
            write_varint(&mut bytes, bits.wrapping_sub(last.0));
            for (now, before) in point
                .predictors
                .iter()
                .zip(last.1)
                .take(usize::from(self.components))
            {
                let change = now.wrapping_sub(before);
                write_varint(
                    &mut bytes,
                    u64::from(((change << 1) ^ (change >> 15)) as u16),
                );
            }
            last = (bits, point.predictors);
        }
        bytes.extend(crc32c(&bytes, 0).to_le_bytes());
        bytes
    }

    /// Read what [`Index::to_bytes`] wrote; anything else is [`Status::BadIndex`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Index> {
        let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(Status::BadIndex)?;
        if crc32c(body, 0) != u32::from_le_bytes(*checksum) {
            return Err(Status::BadIndex);
        }
        let mut reader = Reader(body);
        if reader.take()? != MAGIC || reader.take()? != [VERSION] {
            return Err(Status::BadIndex);
        }
        let [components] = reader.take()?;
        let mut index = Index {
            components,
            spacing: u32::from(u16::from_le_bytes(reader.take()?)),
            across: u32::from_le_bytes(reader.take()?),
            image: Binding::from_bytes(&reader.take()?),
            entries: Vec::new(),
        };
        let count = u32::from_le_bytes(reader.take()?) as usize;
        // Every entry takes at least one byte, so a wrong count cannot ask for much memory.
        let plausible =
            count <= reader.0.len() && usize::from(components) <= 3 && index.across <= 1 << 16;
        if !plausible || (count > 0 && (index.spacing == 0 || components == 0)) {
            return Err(Status::BadIndex);
        }
        let mut last = (0u64, [0i16; 3]);
        for _ in 0..count {
            last.0 = last.0.wrapping_add(reader.varint()?);
            for predictor in last.1.iter_mut().take(usize::from(components)) {
                let coded = reader.varint()? as u16;
                *predictor = predictor.wrapping_add(((coded >> 1) as i16) ^ -((coded & 1) as i16));
            }
            let position = u32::try_from(last.0 >> 3).map_err(|_| Status::BadIndex)?;
            index.entries.push(Entry {
                position,
                bit: (last.0 & 7) as u8,
                predictors: last.1,
            });
        }
        if reader.0.is_empty() {
            Ok(index)
        } else {
            Err(Status::BadIndex)
        }
    }
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A reader of fields from the front of bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Status::BadIndex)?;
        self.0 = rest;
        Ok(*field)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Status::BadIndex)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Index {
        let entries = (0..21u32)
            .map(|i| Entry {
                position: 600 + i * 900,
                bit: (i * 5 % 8) as u8,
                predictors: [
                    i as i16 * 700,
                    (i as i16).wrapping_mul(-2000),
                    if i % 2 == 0 { i16::MAX } else { i16::MIN },
                ],
            })
            .collect();
        Index {
            image: Binding::of(b"an image").expect("random numbers"),
            across: 39,
            spacing: 8,
            components: 3,
            entries,
        }
    }

    #[test]
    fn an_index_survives_writing_and_reading() {
        let index = sample();
        assert_eq!(index.rows(), 4);
        assert_eq!(Index::from_bytes(&index.to_bytes()), Ok(index));
        assert_eq!(
            Index::from_bytes(&Index::new().to_bytes()),
            Ok(Index::new())
        );
    }

    #[test]
    fn an_index_of_the_first_version_is_refused() {
        let mut old = b"HRIX\x01\x03".to_vec();
        old.extend([8, 0, 39, 0, 0, 0]);
        old.extend(123_456u64.to_le_bytes());
        old.extend(77u32.to_le_bytes());
        old.extend(0u32.to_le_bytes());
        old.extend(crc32c(&old, 0).to_le_bytes());
        assert_eq!(Index::from_bytes(&old), Err(Status::BadIndex));
    }

    #[test]
    fn any_damage_is_detected() {
        let bytes = sample().to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(Index::from_bytes(&bytes[..cut]), Err(Status::BadIndex));
        }
        for bit in 0..bytes.len() * 8 {
            let mut copy = bytes.clone();
            copy[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Index::from_bytes(&copy), Err(Status::BadIndex));
        }
    }

    #[test]
    fn the_nearest_entry_is_at_or_before() {
        let index = sample();
        let (cursor, next) = index.nearest(39 * 2 + 17).expect("covered");
        assert_eq!(
            (cursor.mcu, next, cursor.position),
            (39 * 2 + 16, 39 * 2 + 24, 600 + 12 * 900)
        );
        let (cursor, next) = index.nearest(39 * 3 + 38).expect("covered");
        assert_eq!((cursor.mcu, next), (39 * 3 + 32, 39 * 4));
        let (cursor, next) = index.nearest(39 * 9).expect("the end of what is covered");
        assert_eq!(
            (cursor.mcu, next, cursor.position),
            (39 * 4, u32::MAX, 600 + 20 * 900)
        );
    }
}
