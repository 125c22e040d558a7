//! Packing the usual record in one go: read the file, keep or rewrite the JPEG, and append its tar members.
//!
//! Only JPEGs that need no second look are taken. Everything else (other formats, damage, missing files, odd headers) is
//! declined without an error, and the caller, who has words for it, looks at that record alone. Whether a record is taken
//! depends on its bytes and the recipe, so the result is the same bytes every time.

mod reencode;
pub mod tar;

pub use reencode::{encode_pixels, Bound, EncodeOptions};

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::crc::crc32c;
use crate::geometry::Size;
use crate::jpeg::facts::{jpeg_facts, JpegFacts};
use crate::jpeg::restart::{Metadata, RestartOptions, RestartWriter};
use reencode::Reencoder;

/// What is done to each JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// What happens to files that are not encoded anew.
    pub keep: Keep,
    /// Images are brought to this size and quality; `None`: every coefficient stays.
    pub smaller: Option<Smaller>,
}

/// How a file keeps every pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Its bytes stay.
    Bytes,
    /// Its bytes stay, and it must decode.
    Decodable,
    /// Restart markers at about so many pixels of width are put in.
    Marked(u32),
}

/// When an image is encoded anew, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smaller {
    /// The size.
    pub bound: Bound,
    /// Files of a higher quality than this are encoded anew even if their size stays, where that takes fewer bytes.
    pub above_quality: Option<u8>,
    /// Of what is encoded, 1 to 100.
    pub quality: u8,
}

/// Where a record's bytes are.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes; `None`: up to the end of the file.
    pub size: Option<u64>,
    /// Offset and bytes of the record's JSON in the same file.
    pub json: Option<(u64, u64)>,
}

/// A packed record's row of the index; offsets are into the memory that [`Packer::append`] was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Where the image begins.
    pub offset: u64,
    /// Bytes of the image.
    pub size: u64,
    /// Pixels, as stored.
    pub width: u32,
    /// Pixels, as stored.
    pub height: u32,
    /// CRC-32C of the image.
    pub crc32c: u32,
    /// Where the JSON begins.
    pub json_offset: u64,
    /// Bytes of the JSON; 0: there is none.
    pub json_size: u64,
}

/// Packs records one after another; reuses its memory.
#[derive(Default)]
pub struct Packer {
    source: Vec<u8>,
    marked: Vec<u8>,
    restart: RestartWriter,
    reencoder: Reencoder,
}

impl Packer {
    /// Appends the members of a record to `out`: image, label, JSON where it has some. `None`, and `out` as it was, when the
    /// record is not one of the usual ones.
    pub fn append(
        &mut self,
        recipe: &Recipe,
        place: &Place<'_>,
        key: &str,
        label: i64,
        out: &mut Vec<u8>,
    ) -> Option<Row> {
        let before = out.len();
        let row = self.try_append(recipe, place, key, label, out);
        if row.is_none() {
            out.truncate(before);
        }
        row
    }

    fn try_append(
        &mut self,
        recipe: &Recipe,
        place: &Place<'_>,
        key: &str,
        label: i64,
        out: &mut Vec<u8>,
    ) -> Option<Row> {
        let mut file = File::open(place.path).ok()?;
        let (offset, size) = if recipe.keep == Keep::Bytes && recipe.smaller.is_none() {
            self.append_as_it_is(&mut file, place, key, out)?
        } else {
            self.append_image(&mut file, recipe, place, key, out)?
        };
        let image = &out[offset..];
        let mut row = Row {
            offset: offset as u64,
            size: image.len() as u64,
            width: size.width,
            height: size.height,
            crc32c: crc32c(image, 0),
            json_offset: 0,
            json_size: 0,
        };
        tar::append_padding(image.len(), out);
        tar::append_member(&format!("{key}.cls"), label.to_string().as_bytes(), out);
        if let Some((offset, size)) = place
            .json
            .filter(|(_, size)| (1..=tar::MAX_SIZE).contains(size))
        {
            tar::append_header(&format!("{key}.json"), size, out);
            (row.json_offset, row.json_size) = (out.len() as u64, size);
            read(&mut file, offset, Some(size), out)?;
            tar::append_padding(usize::try_from(size).ok()?, out);
        }
        Some(row)
    }

    /// Header and bytes of the image, read to where they stay; returns where they begin and the size in pixels.
    fn append_as_it_is(
        &mut self,
        file: &mut File,
        place: &Place<'_>,
        key: &str,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Size)> {
        let header = out.len();
        let name = format!("{key}.jpg");
        tar::append_header(&name, 0, out); // as long as the right one
        let start = out.len();
        read(file, place.offset, place.size, out)?;
        let facts = jpeg_facts(&out[start..]).ok()?;
        let length = (out.len() - start) as u64;
        self.marked.clear();
        tar::append_header(
            &name,
            Some(length).filter(|&length| length <= tar::MAX_SIZE)?,
            &mut self.marked,
        );
        out[header..start].copy_from_slice(&self.marked);
        let size = Size {
            width: facts.width,
            height: facts.height,
        };
        Some((start, size))
    }

    /// Header and bytes of the image as the recipe asks for it; returns where they begin and the size in pixels.
    fn append_image(
        &mut self,
        file: &mut File,
        recipe: &Recipe,
        place: &Place<'_>,
        key: &str,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Size)> {
        self.source.clear();
        read(file, place.offset, place.size, &mut self.source)?;
        let facts = jpeg_facts(&self.source).ok()?;
        let (image, size) = self.image(recipe, &facts)?;
        if image.len() as u64 > tar::MAX_SIZE {
            return None;
        }
        tar::append_header(&format!("{key}.jpg"), image.len() as u64, out);
        out.extend_from_slice(image);
        Some((out.len() - image.len(), size))
    }

    /// The bytes to store of the image in `source`, and its size in pixels.
    fn image(&mut self, recipe: &Recipe, facts: &JpegFacts) -> Option<(&[u8], Size)> {
        let stored = Size {
            width: facts.width,
            height: facts.height,
        };
        if let Some(smaller) = &recipe.smaller {
            let target = smaller.bound.target(stored);
            let limit = smaller.above_quality.unwrap_or(u8::MAX);
            if target.is_some() || facts.quality.unwrap_or(u8::MAX - 1) > limit {
                let size = target.unwrap_or(stored);
                let tile_px = match recipe.keep {
                    Keep::Marked(tile_px) => Some(tile_px),
                    _ => None,
                };
                self.reencoder
                    .encode(&self.source, facts, size, smaller.quality, tile_px)?;
                // Worse and not even smaller is nothing that anybody asks for.
                if target.is_some() || self.reencoder.encoded().len() < self.source.len() {
                    return Some((self.reencoder.encoded(), size));
                }
            }
        }
        let image = match recipe.keep {
            Keep::Bytes => &self.source,
            Keep::Decodable => {
                self.reencoder.check(&self.source, facts)?;
                &self.source
            }
            Keep::Marked(tile_px) => {
                let metadata = Metadata::Keep;
                let options = RestartOptions { tile_px, metadata };
                self.restart
                    .write(&self.source, &options, &mut self.marked)
                    .ok()?;
                &self.marked
            }
        };
        Some((image, stored))
    }
}

/// Appends `size` bytes of the file from `offset` on, or all to its end; `None` when it cannot be read or is shorter.
fn read(file: &mut File, offset: u64, size: Option<u64>, out: &mut Vec<u8>) -> Option<()> {
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).ok()?;
    }
    match size {
        None => file.read_to_end(out).ok().map(|_| ()),
        Some(size) => {
            // Not reserved in advance: the size may lie.
            let count = file.take(size).read_to_end(out).ok()?;
            (count as u64 == size).then_some(())
        }
    }
}
