//! The table of a dataset's records: where the bytes of each are, in files on local disks.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{fadvise, Advice};

use super::byte_cache::ByteCache;
use super::file::{make_room, read_file, within_limit};
use super::held_files;
use crate::crc::crc32c;
use crate::error::{Result, Status};
use crate::regular_file;

/// How a file is read.
enum Handle {
    /// An image file: it is opened, read whole and closed each time, so that a million files need no million descriptors.
    Whole,
    /// A shard: it is opened at the first read and stays open, if this process may hold one more ([`held_files`]).
    Shard(OnceLock<File>),
}

/// The files of a table. What it holds open counts in [`held_files`] until its end.
struct Handles(Vec<Handle>);

impl Drop for Handles {
    fn drop(&mut self) {
        let held = |handle: &&Handle| matches!(handle, Handle::Shard(file) if file.get().is_some());
        held_files::give_back(self.0.iter().filter(held).count());
    }
}

/// Paths of files, one after the other: a million take a third of the memory of a million `PathBuf`.
#[derive(Default)]
pub struct Paths {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Paths {
    /// Append a path.
    pub fn push(&mut self, path: &Path) {
        self.bytes.extend_from_slice(path.as_os_str().as_bytes());
        self.ends.push(self.bytes.len());
    }

    /// Return the number of paths.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Return true if there is no path.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn get(&self, number: usize) -> &Path {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        Path::new(OsStr::from_bytes(&self.bytes[begin..self.ends[number]]))
    }
}

impl FromIterator<PathBuf> for Paths {
    fn from_iter<I: IntoIterator<Item = PathBuf>>(paths: I) -> Self {
        let mut all = Paths::default();
        for path in paths {
            all.push(&path);
        }
        all
    }
}

/// The records of a dataset: columns with one entry per record, and the files that hold them.
pub struct Table {
    paths: Paths,
    handles: Handles,
    file: Vec<u32>,
    offset: Vec<u64>,
    size: Vec<i64>,
    checksums: Option<Vec<u32>>,
    cache: Option<ByteCache>,
}

impl Table {
    /// Make a table from columns; `size` -1 means the whole file. Fails with a message if the columns do not fit each other.
    pub fn new(
        paths: Paths,
        file: Vec<u32>,
        offset: Vec<u64>,
        size: Vec<i64>,
    ) -> std::result::Result<Self, String> {
        if file.len() != offset.len() || file.len() != size.len() {
            return Err(format!(
                "columns of {}, {} and {} records",
                file.len(),
                offset.len(),
                size.len()
            ));
        }
        let mut shard = vec![false; paths.len()];
        for (&file, &size) in file.iter().zip(&size) {
            match shard.get_mut(file as usize) {
                Some(shard) => *shard |= size >= 0,
                None => return Err(format!("file number {file} of {}", paths.len())),
            }
        }
        let handle = |shard: &bool| {
            if *shard {
                Handle::Shard(OnceLock::new())
            } else {
                Handle::Whole
            }
        };
        let handles = Handles(shard.iter().map(handle).collect());
        Ok(Table {
            paths,
            handles,
            file,
            offset,
            size,
            checksums: None,
            cache: None,
        })
    }

    /// Compare each record that is read from a file with its CRC-32C in `checksums`. Fails with a message unless there is one per
    /// record.
    pub fn with_checksums(self, checksums: Vec<u32>) -> std::result::Result<Self, String> {
        if checksums.len() != self.len() {
            return Err(format!(
                "{} checksums of {} records",
                checksums.len(),
                self.len()
            ));
        }
        Ok(Table {
            checksums: Some(checksums),
            ..self
        })
    }

    /// Read records from `cache` first, and store them in it.
    pub fn with_cache(self, cache: ByteCache) -> Self {
        Table {
            cache: Some(cache),
            ..self
        }
    }

    /// Return the cache, if there is one.
    pub fn cache(&self) -> Option<&ByteCache> {
        self.cache.as_ref()
    }

    /// Return the number of records.
    pub fn len(&self) -> usize {
        self.file.len()
    }

    /// Return true if the table has no records.
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Read the bytes of `record` into `bytes`, replacing its contents.
    pub fn read(&self, record: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(cache) = &self.cache else {
            return self.read_file(record, bytes);
        };
        if !cache.get(record, bytes) {
            self.read_file(record, bytes)?;
            cache.offer(record, bytes);
        }
        Ok(())
    }

    fn read_file(&self, record: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let file = self.file[record] as usize;
        match &self.handles.0[file] {
            Handle::Whole => read_file(self.paths.get(file), bytes)?,
            Handle::Shard(handle) => {
                let size = usize::try_from(self.size[record]).map_err(|_| Status::Io)?;
                let read = |shard: &File| part(shard, self.offset[record], size, bytes);
                self.with_shard(file, handle, read)
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => Status::Truncated,
                        _ => Status::of_read(&error),
                    })?;
            }
        }
        match &self.checksums {
            Some(checksums) if crc32c(bytes, 0) != checksums[record] => Err(Status::Checksum),
            _ => Ok(()),
        }
    }

    /// Ask the kernel to read records of shards into the page cache, and return at once. Reading a record reports what is wrong
    /// with its file.
    pub fn announce(&self, records: &[usize]) {
        for &record in records {
            let file = self.file[record] as usize;
            let Some(size) = u64::try_from(self.size[record])
                .ok()
                .and_then(NonZeroU64::new)
            else {
                continue;
            };
            if let Handle::Shard(handle) = &self.handles.0[file] {
                drop(self.with_shard(file, handle, |shard| {
                    Ok(fadvise(
                        shard,
                        self.offset[record],
                        Some(size),
                        Advice::WillNeed,
                    )?)
                }));
            }
        }
    }

    /// Call `work` with an open shard, which is closed again where this process holds as many files as it may.
    fn with_shard<T>(
        &self,
        file: usize,
        handle: &OnceLock<File>,
        work: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        if let Some(open) = handle.get() {
            return work(open);
        }
        let (shard, _) = regular_file::open(self.paths.get(file))?;
        if !held_files::take() {
            return work(&shard);
        }
        if handle.set(shard).is_err() {
            held_files::give_back(1); // another thread was faster
        }
        work(handle.get().ok_or_else(|| io::Error::other("not opened"))?)
    }
}

/// Read a part of a shard at a given offset. Not through a memory map: a shard that shrinks meanwhile would crash the process.
fn part(shard: &File, offset: u64, size: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    within_limit(size)?;
    make_room(bytes, size)?;
    shard.read_exact_at(bytes, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_and_parts_of_shards_are_read() {
        let folder = std::env::temp_dir().join(format!("headrace-table-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("shard");
        std::fs::write(&path, b"0123456789").expect("written");
        let paths = Paths::from_iter([path.clone(), path]);
        let table =
            Table::new(paths, vec![0, 1, 1, 1], vec![0, 2, 8, 0], vec![-1, 3, 5, 0]).expect("fits");
        let mut bytes = Vec::new();
        table.read(0, &mut bytes).expect("whole");
        assert_eq!(bytes, b"0123456789");
        table.read(1, &mut bytes).expect("part");
        assert_eq!(bytes, b"234");
        assert_eq!(table.read(2, &mut bytes), Err(Status::Truncated));
        table.read(3, &mut bytes).expect("empty");
        assert_eq!(bytes, b"");
        let right = [crc32c(b"0123456789", 0), crc32c(b"234", 0) ^ 1, 0, 0];
        let checked = table.with_checksums(right.to_vec()).expect("fits");
        checked.read(0, &mut bytes).expect("whole");
        assert_eq!(checked.read(1, &mut bytes), Err(Status::Checksum));
        assert_eq!(checked.read(2, &mut bytes), Err(Status::Truncated));
        checked.read(3, &mut bytes).expect("empty");
        assert!(checked.with_checksums(vec![0]).is_err());
        std::fs::remove_dir_all(&folder).expect("removed");
        let gone = Paths::from_iter([folder.join("x")]);
        let gone = Table::new(gone, vec![0], vec![0], vec![-1]).expect("fits");
        assert_eq!(gone.read(0, &mut bytes), Err(Status::Io));
        assert!(Table::new(Paths::default(), vec![0], vec![0], vec![0]).is_err());
    }

    #[test]
    fn shards_beyond_the_limit_are_read_and_closed() {
        let path = std::env::temp_dir().join(format!("headrace-shards-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").expect("written");
        let paths = || Paths::from_iter([path.clone(), path.clone()]);
        let table = Table::new(paths(), vec![0, 1], vec![2, 4], vec![3, 3]).expect("fits");
        let mut bytes = Vec::new();
        let open = |table: &Table, file: usize| matches!(&table.handles.0[file], Handle::Shard(shard) if shard.get().is_some());
        table.announce(&[0, 1]);
        table.read(0, &mut bytes).expect("held");
        assert_eq!(bytes, b"234");
        assert!(open(&table, 0) && open(&table, 1));
        drop(table);
        let table = Table::new(paths(), vec![0, 1], vec![2, 4], vec![3, 3]).expect("fits");
        held_files::within(0, || {
            table.announce(&[1]);
            table.read(1, &mut bytes).expect("opened for this read");
        });
        assert_eq!(bytes, b"456");
        assert!(!open(&table, 0) && !open(&table, 1));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    #[cfg_attr(miri, ignore)] // Miri makes no pipes
    fn a_pipe_in_place_of_a_file_or_shard_is_an_error_at_once() {
        use crate::regular_file::tests::{at_once, folder, pipe};

        let folder = folder("table-pipe");
        pipe(&folder.join("pipe"));
        let paths = Paths::from_iter([folder.join("pipe"), folder.join("pipe")]);
        let table = Table::new(paths, vec![0, 1], vec![0, 0], vec![-1, 3]).expect("fits");
        let read = at_once(move || [0, 1].map(|record| table.read(record, &mut Vec::new())));
        assert_eq!(read, [Err(Status::Io); 2]);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
