//! A file of JPEG indexes, from which other processes and later runs start.
//!
//! The file is a log: entries are only appended, also by several processes at once. An entry is `HRXE`, u32 record, u32 length,
//! and the index as [`Index::to_bytes`] writes it, which holds its own checksum and the length and checksum of its image. A torn
//! entry is therefore ignored, and the decoder refuses the index of a file that has changed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::jpeg::index::Index;

const MAGIC: [u8; 4] = *b"HRXE";
const HEAD: usize = 12;
/// Longest valid entry in bytes; the index of a 100-megapixel image has about 300 KB.
const LONGEST: u32 = 1 << 24;
/// Bytes that are collected before they are written.
const GATHERED: usize = 1 << 16;

#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    length: u32,
}

struct State {
    path: PathBuf,
    /// The open file; `None` if nothing has been read or written yet, and after `flush`.
    file: Option<File>,
    places: HashMap<u32, Place>,
    /// MCU rows of each record's index in the file, as far as this process knows.
    rows: HashMap<u32, u32>,
    gathered: Vec<u8>,
    gathered_places: Vec<(u32, Place)>,
    written: u64,
}

/// A file of indexes, open for reading and appending.
pub struct IndexFile {
    limit_bytes: u64,
    found: usize,
    state: Mutex<State>,
}

impl IndexFile {
    /// Read the file if it exists. The first write creates it; it grows to about `limit_bytes`. A file that cannot be read counts
    /// as empty.
    pub fn open(path: &Path, limit_bytes: u64) -> Self {
        let mut places = HashMap::new();
        let mut written = 0;
        if let Ok(file) = append_to(path, false) {
            written = file.metadata().map_or(0, |facts| facts.len());
            // An error while reading ends the list of entries.
            drop(scan(&file, written, &mut places));
        }
        IndexFile {
            limit_bytes,
            found: places.len(),
            state: Mutex::new(State {
                path: path.to_path_buf(),
                file: None,
                places,
                rows: HashMap::new(),
                gathered: Vec::new(),
                gathered_places: Vec::new(),
                written,
            }),
        }
    }

    /// Return the number of records that had an index when the file was opened.
    pub fn found(&self) -> usize {
        self.found
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the index of `record` if the file holds a complete one.
    pub fn get(&self, record: u32) -> Option<Index> {
        let mut state = self.state();
        let place = *state.places.get(&record)?;
        let mut bytes = vec![0; place.length as usize];
        let read = state
            .open(false)
            .and_then(|file| file.read_exact_at(&mut bytes, place.offset));
        let index = read.ok().and_then(|()| Index::from_bytes(&bytes).ok());
        match &index {
            Some(index) => drop(state.rows.insert(record, index.rows())),
            None => drop(state.places.remove(&record)),
        }
        index
    }

    /// Append an index if it covers at least a quarter more MCU rows than the one in the file.
    pub fn put(&self, record: u32, index: &Index) {
        let mut state = self.state();
        let known = state.rows.get(&record).copied().unwrap_or(0);
        if index.rows() <= known + known / 4
            || state.written + state.gathered.len() as u64 > self.limit_bytes
        {
            return;
        }
        let bytes = index.to_bytes();
        let Ok(length) = u32::try_from(bytes.len()) else {
            return;
        };
        state.rows.insert(record, index.rows());
        let offset = (state.gathered.len() + HEAD) as u64; // from the start of the collected bytes
        state
            .gathered_places
            .push((record, Place { offset, length }));
        state.gathered.extend(MAGIC);
        state.gathered.extend(record.to_le_bytes());
        state.gathered.extend(length.to_le_bytes());
        state.gathered.extend(bytes);
        if state.gathered.len() >= GATHERED {
            state.write();
        }
    }

    /// Forget the index of a record whose file has changed. The next one is written whatever it covers.
    pub fn forget(&self, record: u32) {
        let mut state = self.state();
        state.places.remove(&record);
        state.rows.remove(&record);
    }

    /// Write the collected entries, and close the file until it is needed again.
    pub fn flush(&self) {
        let mut state = self.state();
        state.write();
        state.file = None;
    }
}

impl State {
    /// Append the collected entries in one write. After an error, as on a full disk, nothing more is written.
    fn write(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let length = self.gathered.len() as u64;
        if let Ok(end) = self.append() {
            let start = end.saturating_sub(length);
            for (record, place) in self.gathered_places.drain(..) {
                let offset = start + place.offset;
                self.places.insert(record, Place { offset, ..place });
            }
            self.written += length;
        } else {
            self.written = u64::MAX >> 1; // write nothing more
        }
        self.gathered.clear();
        self.gathered_places.clear();
    }

    /// Append the collected bytes and return the offset of their end.
    fn append(&mut self) -> io::Result<u64> {
        self.open(true)?;
        let State { file, gathered, .. } = self;
        let file = file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.write_all(gathered)?;
        file.stream_position()
    }

    fn open(&mut self, create: bool) -> io::Result<&mut File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(append_to(&self.path, create)?)),
        }
    }
}

fn append_to(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(create)
        .open(path)
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Find the entries, reading only their heads; the last entry of a record counts. After damage, search for the next entry.
fn scan(file: &File, length: u64, places: &mut HashMap<u32, Place>) -> io::Result<()> {
    let mut at = 0;
    let mut head = [0; HEAD];
    while at + HEAD as u64 <= length {
        file.read_exact_at(&mut head, at)?;
        let field = |from: usize| {
            u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]])
        };
        let (record, size) = (field(4), field(8));
        let offset = at + HEAD as u64;
        if head[..4] == MAGIC && size <= LONGEST && offset + u64::from(size) <= length {
            let length = size;
            places.insert(record, Place { offset, length });
            at = offset + u64::from(size);
        } else {
            at = next_magic(file, at + 1, length)?;
        }
    }
    Ok(())
}

/// Return the first offset from `at` on at which an entry may begin, or `length`.
fn next_magic(file: &File, mut at: u64, length: u64) -> io::Result<u64> {
    let mut block = [0; 1 << 12];
    while at + HEAD as u64 <= length {
        let size = block.len().min((length - at) as usize);
        file.read_exact_at(&mut block[..size], at)?;
        let found = block[..size].windows(4).position(|window| window == MAGIC);
        if let Some(distance) = found {
            return Ok(at + distance as u64);
        }
        at += size as u64 - 3; // the mark may cross the border of two blocks
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jpeg::index::tests::sample;

    #[test]
    fn indexes_are_shared_through_the_file_and_damage_is_skipped() {
        let path = std::env::temp_dir().join(format!("headrace-index-file-{}", std::process::id()));
        drop(std::fs::remove_file(&path));
        let index = sample();
        let file = IndexFile::open(&path, 1 << 20);
        for record in [3, 1, 4] {
            file.put(record, &index);
            file.put(record, &index); // covers no more: not written again
        }
        assert!(file.get(3).is_none(), "not written yet");
        file.flush();
        assert_eq!(file.get(3), Some(index.clone()));
        let entry = std::fs::metadata(&path).expect("there").len() / 3;
        assert_eq!(entry, (HEAD + index.to_bytes().len()) as u64);

        // A second process, and a torn write between the two.
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("opened")
            .write_all(b"HRXE\x01\0\0\0\xff\xff\0\0torn")
            .expect("written");
        let other = IndexFile::open(&path, 1 << 20);
        assert_eq!(other.found(), 3);
        other.put(9, &index);
        other.flush();
        file.put(5, &index);
        file.flush();
        assert_eq!(file.get(5), Some(index.clone()));
        let third = IndexFile::open(&path, 1 << 20);
        assert_eq!(third.found(), 5);
        assert!([1, 3, 4, 5, 9]
            .iter()
            .all(|&record| third.get(record).is_some()));
        third.forget(4);
        assert!(third.get(4).is_none());

        // An entry with flipped bits is ignored.
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[HEAD + 20] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let damaged = IndexFile::open(&path, 0);
        assert!(damaged.get(3).is_none() && damaged.get(1).is_some());
        damaged.put(77, &index); // beyond the limit
        damaged.flush();
        assert!(damaged.get(77).is_none());
        std::fs::remove_file(&path).expect("removed");
    }
}
