//! A file of JPEG indexes that processes share while they run, and from which later runs start. Whoever decodes an image first
//! writes its index; all others read it a moment later.
//!
//! The file begins with a table of slots, which is as large as it ever gets; entries follow in the order of their writing:
//!
//! - the head: `HRXT`, u32 version, u32 binary logarithm of the number of buckets, 116 zero bytes;
//! - the buckets of 8 slots of 16 bytes: u64 key, u64 place (offset in the low 40 bits, length in the high 24); zero: empty;
//! - the entries: `HRXE`, u64 key, u32 length, and the index as [`Index::to_bytes`] writes it.
//!
//! All numbers are little-endian. Threads of a process write one after the other; no lock keeps other processes out: entries
//! are appended (O_APPEND), and a slot is set only when its entry is complete. So a writer that is killed leaves at most bytes
//! that no slot names. Of two processes that write one slot the last wins, and the other index is made again some day. Nothing
//! that is read is trusted: an entry counts only with its mark, its key and the checksum of its index, which in turn is bound
//! to the image's bytes ([`crate::jpeg::binding`]). Files are private (0600), because an index holds the key by which it is
//! bound. They are read by `pread`, not through a map, because a file that shrinks, or a full disk, would crash a process that
//! maps it. A file of another version counts as none and is made anew.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jpeg::index::Index;
use crate::limits;
use crate::regular_file;

const MARK: [u8; 4] = *b"HRXT";
/// 2 since 2026-11: indexes are bound by a keyed digest.
const VERSION: u32 = 2;
const HEAD: usize = 128;
const SLOT: usize = 16;
const BUCKET: usize = 8 * SLOT;
/// Buckets that are searched for a key: with half of the slots in use, hardly any key finds none.
const PROBES: u64 = 4;
const FEWEST_BUCKETS: u32 = 3;
const MOST_BUCKETS: u32 = 19; // 64 MiB of slots, of which the file system stores those in use

const ENTRY_MARK: [u8; 4] = *b"HRXE";
const ENTRY_HEAD: usize = 16;
/// Longest valid entry in bytes; the index of a 100-megapixel image has about 300 KB.
const LONGEST: usize = (1 << 24) - 1;
const OFFSET_BITS: u32 = 40;
/// The mode of the file: only its owner reads it.
const PRIVATE: u32 = 0o600;

/// Where an entry is in the file.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    length: usize,
}

/// The open file.
struct Files {
    /// For reading, and for writing slots.
    table: File,
    /// For appending entries; the lock is held from the search for a slot until the slot is set: no other thread takes it.
    entries: Mutex<File>,
    buckets: u64,
    limit_bytes: u64,
}

/// A file of indexes.
pub struct IndexFile {
    path: PathBuf,
    /// Binary logarithm of the number of buckets in a new file.
    bucket_bits: u32,
    limit_bytes: u64,
    found: usize,
    /// The open file; `None` before it is needed, and after `flush`.
    files: Mutex<Option<Arc<Files>>>,
    /// True after an error of writing, as on a full disk.
    failed: AtomicBool,
}

impl IndexFile {
    /// Use the file at `path`, which the first write creates, for about `images` images. It grows to about `limit_bytes`. A file
    /// that cannot be read counts as empty.
    pub fn open(path: &Path, images: usize, limit_bytes: u64) -> Self {
        let buckets = (images as u64).saturating_mul(2).div_ceil(8).max(1);
        IndexFile {
            path: path.to_path_buf(),
            bucket_bits: (u64::BITS - (buckets - 1).leading_zeros())
                .clamp(FEWEST_BUCKETS, MOST_BUCKETS),
            limit_bytes,
            found: 0,
            files: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    /// Count the images that have an index now.
    pub fn counted(mut self) -> Self {
        // An error while reading ends the count.
        let found = self.files(false).and_then(|files| files.count());
        self.found = found.unwrap_or(0);
        self.flush();
        self
    }

    /// Return the number that [`IndexFile::counted`] counted.
    pub fn found(&self) -> usize {
        self.found
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Files>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the open file; with `create`, make it if there is none, or if it is none of ours.
    fn files(&self, create: bool) -> io::Result<Arc<Files>> {
        let mut slot = self.slot();
        if let Some(files) = &*slot {
            return Ok(Arc::clone(files));
        }
        let files = match Files::open(&self.path, self.limit_bytes) {
            Err(_) if create => {
                make(&self.path, self.bucket_bits)?;
                Files::open(&self.path, self.limit_bytes)?
            }
            opened => opened?,
        };
        Ok(Arc::clone(slot.insert(Arc::new(files))))
    }

    /// Return the index of `key` if the file holds a complete one.
    pub fn get(&self, key: u64) -> Option<Index> {
        let files = self.files(false).ok()?;
        let place = files.find(key).ok()?.0?;
        files.read(key, place)
    }

    /// Write an index if it says at least a quarter more than the one in the file.
    pub fn put(&self, key: u64, index: &Index) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let written = self.files(true).and_then(|files| {
            let bytes = index.to_bytes();
            if bytes.len() > LONGEST {
                return Ok(());
            }
            let mut entries = files.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let (known, slot) = files.find(key)?;
            let Some(slot) = slot else {
                return Ok(()); // the table is full
            };
            let known = known.filter(|&place| files.read(key, place).is_some());
            if known.is_some_and(|place| bytes.len() <= place.length + place.length / 4) {
                return Ok(());
            }
            match files.append(&mut entries, key, &bytes)? {
                Some(place) => files.set(slot, key, place),
                None => Ok(()),
            }
        });
        if written.is_err() {
            self.failed.store(true, Ordering::Relaxed); // as on a full disk: write nothing more
        }
    }

    /// Forget the index of an image whose file has changed. The next one is written whatever it covers.
    pub fn forget(&self, key: u64) {
        let Ok(files) = self.files(false) else {
            return;
        };
        if let Ok((Some(_), Some(slot))) = files.find(key) {
            let length = 0;
            let nothing = Place { offset: 0, length };
            // An error leaves an index that the decoder refuses again.
            drop(files.set(slot, key, nothing));
        }
    }

    /// Close the file until it is needed again.
    pub fn flush(&self) {
        *self.slot() = None;
    }
}

impl Files {
    /// Open a file with a sound head; anything else is an error.
    fn open(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let table = regular_file::open_own(OpenOptions::new().read(true).write(true), path)?;
        let bits = bucket_bits(&table)?;
        let entries = regular_file::open_own(OpenOptions::new().append(true), path)?;
        Ok(Files {
            table,
            entries: Mutex::new(entries),
            buckets: 1 << bits,
            limit_bytes,
        })
    }

    /// Return the number of slots in use.
    fn count(&self) -> io::Result<usize> {
        let mut found = 0;
        let mut block = vec![0; BUCKET << 9];
        let mut at = 0;
        while at < self.buckets {
            let buckets = (self.buckets - at).min(1 << 9);
            let block = &mut block[..buckets as usize * BUCKET];
            self.table
                .read_exact_at(block, HEAD as u64 + at * BUCKET as u64)?;
            found += block
                .chunks_exact(SLOT)
                .filter(|slot| slot[8..] != [0; 8])
                .count();
            at += buckets;
        }
        Ok(found)
    }

    /// Return the entry of `key`, and the offset of the slot that it has or can have.
    fn find(&self, key: u64) -> io::Result<(Option<Place>, Option<u64>)> {
        let mut free = None;
        let mut bucket = [0; BUCKET];
        let first = mixed(key);
        for probe in 0..PROBES.min(self.buckets) {
            let number = first.wrapping_add(probe) & (self.buckets - 1);
            let start = HEAD as u64 + number * BUCKET as u64;
            self.table.read_exact_at(&mut bucket, start)?;
            for (slot, fields) in (0..).zip(bucket.chunks_exact(SLOT)) {
                let offset = start + slot * SLOT as u64;
                let (known, place) = (word(&fields[..8]), word(&fields[8..]));
                if known == mark_of(key) {
                    let place = Place {
                        offset: place & ((1 << OFFSET_BITS) - 1),
                        length: (place >> OFFSET_BITS) as usize,
                    };
                    return Ok((Some(place).filter(|place| place.length > 0), Some(offset)));
                }
                if known == 0 {
                    free = free.or(Some(offset));
                }
            }
            if free.is_some() {
                break; // a key is stored in the first bucket with room
            }
        }
        Ok((None, free))
    }

    /// Return the index at a place, if there is a sound one of this key.
    fn read(&self, key: u64, place: Place) -> Option<Index> {
        let mut bytes = limits::filled(ENTRY_HEAD + place.length, 0).ok()?;
        self.table.read_exact_at(&mut bytes, place.offset).ok()?;
        let (head, index) = bytes.split_at(ENTRY_HEAD);
        let sound = head[..4] == ENTRY_MARK
            && word(&head[4..12]) == key
            && head[12..] == (place.length as u32).to_le_bytes();
        sound.then(|| Index::from_bytes(index).ok()).flatten()
    }

    /// Append an entry and return its place; `None` if the file has reached its limit.
    fn append(&self, file: &mut File, key: u64, index: &[u8]) -> io::Result<Option<Place>> {
        let bytes = (index.len() as u32).to_le_bytes();
        let entry = [&ENTRY_MARK[..], &key.to_le_bytes(), &bytes, index].concat();
        let length = file.metadata()?.len();
        let table = HEAD as u64 + self.buckets * BUCKET as u64;
        if length.saturating_sub(table) + entry.len() as u64 > self.limit_bytes || length < table {
            return Ok(None);
        }
        file.write_all(&entry)?;
        let end = file.stream_position()?;
        Ok(Some(Place {
            offset: end.saturating_sub(entry.len() as u64),
            length: index.len(),
        })
        .filter(|place| place.offset >> OFFSET_BITS == 0))
    }

    fn set(&self, slot: u64, key: u64, place: Place) -> io::Result<()> {
        let mut fields = [0; SLOT];
        fields[..8].copy_from_slice(&mark_of(key).to_le_bytes());
        let packed = place.offset | (place.length as u64) << OFFSET_BITS;
        fields[8..].copy_from_slice(&packed.to_le_bytes());
        self.table.write_all_at(&fields, slot)
    }
}

/// Return the key as a slot holds it; zero is an empty slot.
fn mark_of(key: u64) -> u64 {
    key.wrapping_add(1).max(1)
}

/// Spread keys, which may be small numbers, over the buckets (Steele, Lea and Flood 2014: the finaliser of SplitMix64).
fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    key ^ (key >> 31)
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Return the binary logarithm of the number of buckets, which the head states. A file with another head, or without room for
/// the table, is an error.
fn bucket_bits(file: &File) -> io::Result<u32> {
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let bits = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let room = || HEAD as u64 + ((BUCKET as u64) << bits);
    let sound = head[..4] == MARK
        && head[4..8] == VERSION.to_le_bytes()
        && bits <= MOST_BUCKETS
        && head[12..].iter().all(|&byte| byte == 0)
        && file.metadata()?.len() >= room();
    if sound {
        Ok(bits)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Make a file with an empty table, unless another process has made it meanwhile. A process that dies here leaves a file without
/// a sound head, which the next one makes anew.
fn make(path: &Path, bits: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(PRIVATE);
    let file = regular_file::open_own(&mut options, path)?;
    // The lock ends with the process that holds it. A stopped one must not stop others.
    for _ in 0..100 {
        match file.try_lock() {
            Ok(()) => {
                if bucket_bits(&file).is_err() {
                    let mut head = [0; HEAD];
                    head[..4].copy_from_slice(&MARK);
                    head[4..8].copy_from_slice(&VERSION.to_le_bytes());
                    head[8..12].copy_from_slice(&bits.to_le_bytes());
                    file.set_len(0)?;
                    file.set_permissions(Permissions::from_mode(PRIVATE))?; // that of another version was readable
                    file.set_len(HEAD as u64 + ((BUCKET as u64) << bits))?;
                    file.write_all_at(&head, 0)?;
                }
                return Ok(());
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jpeg::index::tests::sample;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrace-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    /// The offsets of the entries of `count` equal indexes, in the order of writing.
    fn entries(path: &Path, count: u64) -> Vec<u64> {
        let length = std::fs::metadata(path).expect("there").len();
        let entry = (ENTRY_HEAD + sample().to_bytes().len()) as u64;
        (0..count).map(|at| length - (count - at) * entry).collect()
    }

    #[test]
    fn indexes_are_shared_at_once_and_torn_entries_do_not_count() {
        let folder = folder("index-file");
        let path = folder.join("indexes");
        let index = sample();
        let file = IndexFile::open(&path, 100, 1 << 20);
        let other = IndexFile::open(&path, 100, 1 << 20); // another process
        assert!(
            file.get(3).is_none() && !path.exists(),
            "made by the first write"
        );
        for key in [3, 1, u64::MAX] {
            file.put(key, &index);
            file.put(key, &index); // says no more: not written again
        }
        let table = (HEAD + (BUCKET << 5)) as u64;
        let entry = (ENTRY_HEAD + index.to_bytes().len()) as u64;
        let length = || std::fs::metadata(&path).expect("there").len();
        assert_eq!(length(), table + 3 * entry);
        assert_eq!(other.get(3), Some(index.clone()));
        assert!(other.get(4).is_none());

        // A killed writer: its entry is torn, and no slot names it.
        let mut torn = OpenOptions::new().append(true).open(&path).expect("opened");
        torn.write_all(b"HRXE\x04\0\0\0\0\0\0\0\xff\0\0\0torn")
            .expect("written");
        other.put(9, &index);
        file.put(5, &index);
        for reader in [&file, &other, &IndexFile::open(&path, 7, 1 << 20)] {
            assert!([1, 3, 5, 9, u64::MAX]
                .iter()
                .all(|&key| reader.get(key).as_ref() == Some(&index)));
            assert!(reader.get(4).is_none());
        }
        let third = IndexFile::open(&path, 100, 1 << 20).counted();
        assert_eq!(third.found(), 5);
        third.forget(5);
        assert!(file.get(5).is_none() && IndexFile::open(&path, 100, 0).counted().found() == 4);
        third.put(5, &index); // in the slot that it had
        assert_eq!(file.get(5), Some(index.clone()));

        let full = IndexFile::open(&path, 100, 0);
        let before = length();
        full.put(77, &index); // beyond the limit
        assert!(full.get(77).is_none() && length() == before);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_file_of_the_first_version_is_made_anew_and_private() {
        let folder = folder("index-version");
        let path = folder.join("indexes");
        let index = sample();
        let file = IndexFile::open(&path, 8, 1 << 20);
        file.put(1, &index);
        let mode = || {
            std::fs::metadata(&path)
                .expect("there")
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode(), PRIVATE);
        let mut old = std::fs::read(&path).expect("read");
        old[4] = 1;
        std::fs::write(&path, old).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        let file = IndexFile::open(&path, 8, 1 << 20);
        assert!(file.get(1).is_none(), "not found");
        file.put(2, &index);
        assert!(file.get(1).is_none() && file.get(2) == Some(index));
        assert_eq!(mode(), PRIVATE);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn damage_of_any_byte_never_gives_another_index() {
        let folder = folder("index-damage");
        let path = folder.join("indexes");
        let index = sample();
        let keys = [1, 2, 3];
        let file = IndexFile::open(&path, 8, 1 << 20);
        for key in keys {
            file.put(key, &index);
        }
        file.flush();
        let good = std::fs::read(&path).expect("read");
        let mut losses = 0;
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, bytes).expect("written");
            let damaged = IndexFile::open(&path, 8, 1 << 20);
            for key in keys {
                let found = damaged.get(key);
                losses += usize::from(found.is_none());
                assert!(
                    found.is_none() || found.as_ref() == Some(&index),
                    "byte {at}"
                );
                damaged.put(key, &index);
                assert!(
                    damaged.get(key).is_none_or(|found| found == index),
                    "byte {at}"
                );
            }
        }
        assert!(losses > good.len() / 4, "{losses}");
        for cut in (0..good.len()).step_by(7) {
            std::fs::write(&path, &good[..cut]).expect("written");
            let damaged = IndexFile::open(&path, 8, 1 << 20);
            for key in keys {
                assert!(
                    damaged.get(key).is_none_or(|found| found == index),
                    "cut at {cut}"
                );
            }
            damaged.put(9, &index);
            assert_eq!(damaged.get(9).as_ref(), Some(&index), "cut at {cut}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn slots_that_name_other_entries_are_refused() {
        let folder = folder("index-slots");
        let path = folder.join("indexes");
        let index = sample();
        let file = IndexFile::open(&path, 8, 1 << 20);
        file.put(1, &index);
        file.put(2, &index);
        let places = entries(&path, 2);
        let files = file.files(false).expect("open");
        let (Some(one), Some(slot)) = files.find(1).expect("read") else {
            panic!("stored");
        };
        assert_eq!(one.offset, places[0]);
        let length = one.length;
        for offset in [places[1], 0, places[0] + 1, 1 << 39] {
            files.set(slot, 1, Place { offset, length }).expect("set");
            assert!(file.get(1).is_none(), "{offset}");
        }
        let offset = places[0];
        for length in [length - 1, length + 1, LONGEST] {
            files.set(slot, 1, Place { offset, length }).expect("set");
            assert!(file.get(1).is_none(), "{length}");
        }
        file.put(1, &index); // whatever the slot says, a sound index takes its place
        assert_eq!(file.get(1), Some(index));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_full_table_keeps_what_it_has_and_takes_no_more() {
        let folder = folder("index-full");
        let path = folder.join("indexes");
        let index = sample();
        let file = IndexFile::open(&path, 1, 1 << 20); // 8 buckets, 64 slots
        for key in 0..200 {
            file.put(key, &index);
        }
        let kept = (0..200).filter(|&key| file.get(key).is_some()).count();
        assert!((55..=64).contains(&kept), "{kept}");
        assert_eq!(IndexFile::open(&path, 1, 0).counted().found(), kept);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn threads_of_several_openings_build_one_file() {
        let folder = folder("index-threads");
        let path = folder.join("indexes");
        let index = sample();
        std::thread::scope(|scope| {
            for first in 0..4u64 {
                let (path, index) = (&path, &index);
                scope.spawn(move || {
                    let file = IndexFile::open(path, 1000, 1 << 24); // all make the file at once
                    for key in (0..400).filter(|key| key % 3 != first % 3) {
                        file.put(key, index);
                        assert!(file.get(key).is_none_or(|found| found == *index));
                    }
                });
            }
        });
        let file = IndexFile::open(&path, 1000, 1 << 24);
        let kept = (0..400).filter(|&key| file.get(key).is_some()).count();
        assert!(kept >= 390, "{kept}"); // two writers of one slot at once lose one
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn threads_of_one_opening_lose_no_index() {
        let folder = folder("index-one-opening");
        let index = &sample();
        for round in 0..100 {
            let file = &IndexFile::open(&folder.join(round.to_string()), 24, 1 << 20); // 64 slots
            std::thread::scope(|scope| {
                for first in 0..4 {
                    let keys = (first..24).step_by(4);
                    scope.spawn(|| keys.for_each(|key| file.put(key, index)));
                }
            });
            assert!((0..24).all(|key| file.get(key).is_some()), "{round}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_link_or_pipe_in_place_of_the_file_counts_as_empty_and_is_left() {
        use crate::regular_file::tests::{at_once, pipe};

        let folder = folder("index-file-link");
        std::fs::write(folder.join("document"), b"mine").expect("written");
        std::os::unix::fs::symlink("document", folder.join("link")).expect("linked");
        pipe(&folder.join("pipe"));
        for name in ["link", "pipe"] {
            let path = folder.join(name);
            at_once(move || {
                let file = IndexFile::open(&path, 8, 1 << 20);
                let key = sample();
                file.put(1, &key);
                file.flush();
                assert!(file.get(1).is_none());
            });
        }
        let document = std::fs::read(folder.join("document")).expect("read");
        assert_eq!(document, b"mine");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
