//! The fast path of packing a record: read the file, keep or rewrite the JPEG, and append its tar members.
//!
//! It handles sound JPEGs only. All other records (other formats, damage, missing files, unusual headers) are declined without an
//! error; the Python packer handles them one by one, with a message where needed. Whether a record is handled here depends on its
//! bytes and the options alone, so packing writes the same bytes every time.

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
use crate::regular_file;
use reencode::Reencoder;

/// The treatment of each JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackOptions {
    /// The treatment of files that are not re-encoded.
    pub keep: Keep,
    /// Target size and quality; `None` if every coefficient stays.
    pub smaller: Option<Smaller>,
}

/// The treatment of a file that keeps all its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Keep the bytes.
    Bytes,
    /// Keep the bytes, and check that they decode.
    Decodable,
    /// Insert restart markers about every so many pixels of width.
    Marked(u32),
}

/// When an image is re-encoded, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smaller {
    /// The target size.
    pub bound: Bound,
    /// Re-encode files of a higher quality than this even if their size stays, provided that the result is smaller.
    pub above_quality: Option<u8>,
    /// IJG quality of re-encoded images, 1 to 100.
    pub quality: u8,
}

/// The location of a record's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Size in bytes; `None`: up to the end of the file.
    pub size: Option<u64>,
    /// Offset and size in bytes of the record's JSON in the same file.
    pub json: Option<(u64, u64)>,
}

/// A packed record's row of the shard index. Offsets are relative to the start of the output of [`Packer::append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Offset of the image.
    pub offset: u64,
    /// Size of the image in bytes.
    pub size: u64,
    /// Width in pixels, as stored.
    pub width: u32,
    /// Height in pixels, as stored.
    pub height: u32,
    /// CRC-32C of the image.
    pub crc32c: u32,
    /// Offset of the JSON.
    pub json_offset: u64,
    /// Size of the JSON in bytes; 0 if there is none.
    pub json_size: u64,
}

/// The packer of one thread, with its reusable memory.
#[derive(Default)]
pub struct Packer {
    source: Vec<u8>,
    marked: Vec<u8>,
    restart: RestartWriter,
    reencoder: Reencoder,
}

impl Packer {
    /// Append the members of a record to `out`: image, label, and JSON if there is one. Return `None` and leave `out` unchanged
    /// if the record is declined.
    pub fn append(
        &mut self,
        options: &PackOptions,
        place: &Place<'_>,
        key: &str,
        label: i64,
        out: &mut Vec<u8>,
    ) -> Option<Row> {
        let before = out.len();
        let row = self.try_append(options, place, key, label, out);
        if row.is_none() {
            out.truncate(before);
        }
        row
    }

    fn try_append(
        &mut self,
        options: &PackOptions,
        place: &Place<'_>,
        key: &str,
        label: i64,
        out: &mut Vec<u8>,
    ) -> Option<Row> {
        let (mut file, _) = regular_file::open(place.path).ok()?;
        let (offset, size) = if options.keep == Keep::Bytes && options.smaller.is_none() {
            self.append_as_it_is(&mut file, place, key, out)?
        } else {
            self.append_image(&mut file, options, place, key, out)?
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

    /// Append header and bytes of an image that is kept; the bytes are read in place. Return their offset and the size in pixels.
    fn append_as_it_is(
        &mut self,
        file: &mut File,
        place: &Place<'_>,
        key: &str,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Size)> {
        let header = out.len();
        let name = format!("{key}.jpg");
        tar::append_header(&name, 0, out); // as long as the final header, which replaces it below
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

    /// Append header and bytes of an image that the options may change. Return the offset of the bytes and the size in pixels.
    fn append_image(
        &mut self,
        file: &mut File,
        options: &PackOptions,
        place: &Place<'_>,
        key: &str,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Size)> {
        self.source.clear();
        read(file, place.offset, place.size, &mut self.source)?;
        let facts = jpeg_facts(&self.source).ok()?;
        let (image, size) = self.image(options, &facts)?;
        if image.len() as u64 > tar::MAX_SIZE {
            return None;
        }
        tar::append_header(&format!("{key}.jpg"), image.len() as u64, out);
        out.extend_from_slice(image);
        Some((out.len() - image.len(), size))
    }

    /// Return the bytes to store for the image in `source`, and its size in pixels.
    fn image(&mut self, options: &PackOptions, facts: &JpegFacts) -> Option<(&[u8], Size)> {
        let stored = Size {
            width: facts.width,
            height: facts.height,
        };
        if let Some(smaller) = &options.smaller {
            let target = smaller.bound.target(stored);
            let limit = smaller.above_quality.unwrap_or(u8::MAX);
            if target.is_some() || facts.quality.unwrap_or(u8::MAX - 1) > limit {
                let size = target.unwrap_or(stored);
                let tile_px = match options.keep {
                    Keep::Marked(tile_px) => Some(tile_px),
                    _ => None,
                };
                self.reencoder
                    .encode(&self.source, facts, size, smaller.quality, tile_px)?;
                // A file of lower quality must at least be smaller.
                if target.is_some() || self.reencoder.encoded().len() < self.source.len() {
                    return Some((self.reencoder.encoded(), size));
                }
            }
        }
        let image = match options.keep {
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

/// Append `size` bytes of the file from `offset` on, or all up to its end. Return `None` if the file cannot be read or is shorter.
fn read(file: &mut File, offset: u64, size: Option<u64>, out: &mut Vec<u8>) -> Option<()> {
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).ok()?;
    }
    match size {
        None => file.read_to_end(out).ok().map(|_| ()),
        Some(size) => {
            // Not reserved in advance: the stated size may be wrong.
            let count = file.take(size).read_to_end(out).ok()?;
            (count as u64 == size).then_some(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regular_file::tests::{at_once, folder, pipe};

    #[test]
    fn a_pipe_in_place_of_an_image_is_declined_at_once() {
        let folder = folder("pack-pipe");
        let path = folder.join("pipe");
        pipe(&path);
        let row = at_once(move || {
            let place = Place {
                path: &path,
                offset: 0,
                size: None,
                json: None,
            };
            let options = PackOptions {
                keep: Keep::Bytes,
                smaller: None,
            };
            Packer::default().append(&options, &place, "key", 0, &mut Vec::new())
        });
        assert_eq!(row, None);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
