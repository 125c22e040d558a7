//! A cache of the encoded bytes of records, in memory or on a local disk, for datasets on slow storage.
//!
//! Entries are never evicted. An epoch reads each record once, in a new random order, so a cached record is worth as much as the
//! one that would replace it. (LRU would evict the record that is needed soonest.)

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::file::make_room;
use crate::crc::crc32c;
use crate::regular_file;

/// Number of separately locked parts, so that threads rarely wait for each other.
const PARTS: usize = 64;

/// Counts of hits, misses and stored bytes.
#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Records read from the cache.
    pub hits: AtomicU64,
    /// Records that were not in the cache.
    pub misses: AtomicU64,
    /// Bytes that this process stored.
    pub bytes: AtomicU64,
}

/// A cache of records' encoded bytes.
pub struct ByteCache {
    place: Place,
    counts: CacheCounts,
}

enum Place {
    Memory(Memory),
    Disk(Disk),
}

impl ByteCache {
    /// Make a cache in the memory of this process, of at most `limit_bytes`.
    pub fn in_memory(limit_bytes: u64) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        ByteCache {
            place: Place::Memory(Memory { limit_bytes, parts }),
            counts: CacheCounts::default(),
        }
    }

    /// Make or open a cache of two files in `folder`, which any number of processes may share, at once or one after the other.
    /// `sizes` are the sizes of all records in bytes; the first records that fit into `limit_bytes` together are cached.
    pub fn on_disk(folder: &Path, sizes: &[i64], limit_bytes: u64) -> io::Result<Self> {
        Ok(ByteCache {
            place: Place::Disk(Disk::new(folder, sizes, limit_bytes)?),
            counts: CacheCounts::default(),
        })
    }

    /// Return the counts so far.
    pub fn counts(&self) -> &CacheCounts {
        &self.counts
    }

    /// Fill `bytes` with the bytes of `record`; return false if they are not in the cache.
    pub fn get(&self, record: usize, bytes: &mut Vec<u8>) -> bool {
        let found = match &self.place {
            Place::Memory(memory) => memory.get(record, bytes),
            Place::Disk(disk) => disk.get(record, bytes),
        };
        let counter = if found {
            &self.counts.hits
        } else {
            &self.counts.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Store a copy of the bytes of `record` if there is room.
    pub fn offer(&self, record: usize, bytes: &[u8]) {
        let size = bytes.len() as u64;
        let used = &self.counts.bytes;
        let kept = match &self.place {
            Place::Memory(memory) => memory.offer(record, bytes, used),
            Place::Disk(disk) => {
                let kept = disk.offer(record, bytes);
                used.fetch_add(if kept { size } else { 0 }, Ordering::Relaxed);
                kept
            }
        };
        debug_assert!(!kept || size <= used.load(Ordering::Relaxed));
    }
}

struct Memory {
    limit_bytes: u64,
    parts: Vec<Mutex<HashMap<usize, Arc<[u8]>>>>,
}

impl Memory {
    fn get(&self, record: usize, bytes: &mut Vec<u8>) -> bool {
        let found = self.parts[record % PARTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&record)
            .cloned();
        let Some(kept) = found else {
            return false;
        };
        bytes.clear();
        bytes.extend_from_slice(&kept);
        true
    }

    fn offer(&self, record: usize, bytes: &[u8], used: &AtomicU64) -> bool {
        let size = bytes.len() as u64;
        let room =
            |used: u64| (used.saturating_add(size) <= self.limit_bytes).then_some(used + size);
        if used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_err()
        {
            return false;
        }
        let mut part = self.parts[record % PARTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = part.insert(record, Arc::from(bytes)).is_some();
        if known {
            used.fetch_sub(size, Ordering::Relaxed); // another thread stored the record meanwhile
        }
        !known
    }
}

/// The cache on disk. Each record has its own place in the sparse file `bytes`, and 8 bytes in the file `entries`: the CRC-32C of
/// its bytes and a mark, both little-endian. The entry is written after the bytes, and each read checks the bytes against it: a
/// machine that fails in between costs one more read, never a wrong image.
struct Disk {
    bytes: File,
    entries: File,
    /// Offset of each record's bytes. Records from `starts.len() - 1` on are not cached.
    starts: Vec<u64>,
    broken: AtomicBool,
}

const MARK: u32 = 0x4843_5231;

impl Disk {
    fn new(folder: &Path, sizes: &[i64], limit_bytes: u64) -> io::Result<Self> {
        let mut starts = vec![0u64];
        let mut end = 0u64;
        for &size in sizes {
            end = match u64::try_from(size)
                .ok()
                .and_then(|size| end.checked_add(size))
            {
                Some(next) if next <= limit_bytes => next,
                _ => break,
            };
            starts.push(end);
        }
        let open = |name: &str, length: u64| -> io::Result<File> {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = regular_file::open_own(&mut options, &folder.join(name))?;
            if file.metadata()?.len() != length {
                file.set_len(length)?;
            }
            Ok(file)
        };
        Ok(Disk {
            bytes: open("bytes", end)?,
            entries: open("entries", (starts.len() as u64 - 1) * 8)?,
            starts,
            broken: AtomicBool::new(false),
        })
    }

    fn place(&self, record: usize) -> Option<(u64, usize)> {
        let start = *self.starts.get(record)?;
        let end = *self.starts.get(record + 1)?;
        Some((start, usize::try_from(end - start).ok()?))
    }

    fn get(&self, record: usize, bytes: &mut Vec<u8>) -> bool {
        let Some((start, size)) = self.place(record) else {
            return false;
        };
        let mut entry = [0; 8];
        if self
            .entries
            .read_exact_at(&mut entry, record as u64 * 8)
            .is_err()
            || entry[4..] != MARK.to_le_bytes()
        {
            return false;
        }
        if make_room(bytes, size).is_err() {
            return false;
        }
        self.bytes.read_exact_at(bytes, start).is_ok()
            && crc32c(bytes, 0).to_le_bytes() == entry[..4]
    }

    fn offer(&self, record: usize, bytes: &[u8]) -> bool {
        let Some((start, size)) = self.place(record) else {
            return false;
        };
        if size != bytes.len() || self.broken.load(Ordering::Relaxed) {
            return false; // the file has changed its size, or the disk is full
        }
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&crc32c(bytes, 0).to_le_bytes());
        entry[4..].copy_from_slice(&MARK.to_le_bytes());
        let written = self
            .bytes
            .write_all_at(bytes, start)
            .and_then(|()| self.entries.write_all_at(&entry, record as u64 * 8));
        self.broken.fetch_or(written.is_err(), Ordering::Relaxed);
        written.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cache: &ByteCache, record: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![7; 3];
        cache.get(record, &mut bytes).then_some(bytes)
    }

    #[test]
    fn the_memory_cache_keeps_to_its_limit() {
        let cache = ByteCache::in_memory(10);
        for (record, bytes) in [
            (0, &b"abcd"[..]),
            (1, b"efgh"),
            (2, b"ijkl"),
            (3, b"mn"),
            (3, b"mn"),
        ] {
            cache.offer(record, bytes);
        }
        assert_eq!(found(&cache, 0), Some(b"abcd".to_vec()));
        assert_eq!(found(&cache, 2), None);
        assert_eq!(found(&cache, 3), Some(b"mn".to_vec()));
        assert_eq!(cache.counts().bytes.load(Ordering::Relaxed), 10);
        assert_eq!(cache.counts().hits.load(Ordering::Relaxed), 2);
        assert_eq!(cache.counts().misses.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_disk_cache_is_shared_limited_and_checked() {
        let folder =
            std::env::temp_dir().join(format!("headrace-byte-cache-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let sizes = [4, 0, 6, 5];
        let cache = ByteCache::on_disk(&folder, &sizes, 12).expect("opened");
        let other = ByteCache::on_disk(&folder, &sizes, 12).expect("opened twice");
        cache.offer(0, b"abcd");
        cache.offer(1, b"");
        cache.offer(2, b"other size");
        cache.offer(3, b"12345"); // beyond the limit
        assert_eq!(found(&other, 0), Some(b"abcd".to_vec()));
        assert_eq!(found(&other, 1), Some(Vec::new()));
        assert_eq!(found(&other, 2), None);
        assert_eq!(found(&other, 3), None);
        assert_eq!(found(&other, 4), None);
        other.offer(2, b"efghij");
        assert_eq!(found(&cache, 2), Some(b"efghij".to_vec()));
        let length = std::fs::metadata(folder.join("bytes"))
            .expect("there")
            .len();
        assert_eq!(length, 10);
        // A page that never reached the disk.
        let file = OpenOptions::new()
            .write(true)
            .open(folder.join("bytes"))
            .expect("opened");
        file.write_all_at(b"\0", 5).expect("written");
        assert_eq!(found(&cache, 2), None);
        assert_eq!(found(&cache, 0), Some(b"abcd".to_vec()));
        cache.offer(2, b"efghij");
        assert_eq!(found(&cache, 2), Some(b"efghij".to_vec()));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_link_in_place_of_the_files_is_refused_and_left() {
        let folder = regular_file::tests::folder("byte-cache-link");
        std::fs::write(folder.join("document"), b"mine").expect("written");
        std::os::unix::fs::symlink("document", folder.join("bytes")).expect("linked");
        assert!(ByteCache::on_disk(&folder, &[4], 12).is_err());
        assert_eq!(
            std::fs::read(folder.join("document")).expect("read"),
            b"mine"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
