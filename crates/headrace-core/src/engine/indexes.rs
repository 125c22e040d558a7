//! The JPEG indexes of a dataset's images, in memory up to a limit, so that the second epoch is faster than the first. With a
//! file, the first epoch of the next run is as fast.
//!
//! Entries are never evicted: records are drawn uniformly, so a cached index is worth as much as the one that would replace it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::index_file::IndexFile;
use crate::crc::crc64;
use crate::jpeg::index::Index;

/// Return the key of an image by its bytes: equal bytes have one key, wherever they are. Others can be made to share it: then one
/// displaces the other's index, which is bound to its own bytes and refused for others.
pub fn content_key(bytes: &[u8]) -> u64 {
    crc64(bytes) ^ (bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Number of separately locked parts, so that threads rarely wait for each other.
const PARTS: usize = 64;

type Part = HashMap<u64, Arc<Index>>;

/// The indexes of images. A key is the number of a record of a dataset, or [`content_key`].
pub struct IndexCache {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    parts: Vec<Mutex<Part>>,
    file: Option<IndexFile>,
    found: AtomicU64,
    made: AtomicU64,
}

impl IndexCache {
    /// Make a cache that grows to about `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        IndexCache {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            file: None,
            found: AtomicU64::new(0),
            made: AtomicU64::new(0),
        }
    }

    /// Read indexes of earlier runs from `file`, and write those of this run to it.
    pub fn with_file(self, file: IndexFile) -> Self {
        IndexCache {
            file: Some(file),
            ..self
        }
    }

    /// Return the file, if there is one.
    pub fn file(&self) -> Option<&IndexFile> {
        self.file.as_ref()
    }

    fn part(&self, key: u64) -> MutexGuard<'_, Part> {
        self.parts[key as usize % PARTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the memory in use in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Return how many indexes were found, and how many were offered.
    pub fn counts(&self) -> (u64, u64) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (value(&self.found), value(&self.made))
    }

    /// Return the index of `key`, which may cover only a part of the image.
    pub fn get(&self, key: u64) -> Option<Arc<Index>> {
        let known = self.part(key).get(&key).cloned();
        let index = match known {
            Some(index) => index,
            None => {
                let index = Arc::new(self.file.as_ref()?.get(key)?);
                self.keep(key, &index, || Arc::clone(&index));
                index
            }
        };
        self.found.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Store a copy of `index` if it covers more than the `known` MCU rows of the stored one and there is room.
    pub fn offer(&self, key: u64, index: &Index, known: u32) {
        if index.rows() <= known {
            return;
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        self.keep(key, index, || Arc::new(index.clone()));
        if let Some(file) = &self.file {
            file.put(key, index);
        }
    }

    fn keep(&self, key: u64, index: &Index, copy: impl FnOnce() -> Arc<Index>) {
        let size = index.size_bytes();
        let mut part = self.part(key);
        let (rows, freed) = part
            .get(&key)
            .map_or((0, 0), |known| (known.rows(), known.size_bytes()));
        if index.rows() <= rows || self.used_bytes() + size > self.limit_bytes + freed {
            return;
        }
        part.insert(key, copy());
        self.used_bytes.fetch_add(size, Ordering::Relaxed);
        self.used_bytes.fetch_sub(freed, Ordering::Relaxed);
    }

    /// Forget the index of an image whose file has changed.
    pub fn forget(&self, key: u64) {
        if let Some(file) = &self.file {
            file.forget(key);
        }
        if let Some(index) = self.part(key).remove(&key) {
            self.used_bytes
                .fetch_sub(index.size_bytes(), Ordering::Relaxed);
        }
    }
}
