//! The JPEG indexes of a dataset's images, in memory up to a limit, so that the second epoch is faster than the first. With a
//! file, the first epoch of the next run is as fast.
//!
//! Entries are never evicted: records are drawn uniformly, so a cached index is worth as much as the one that would replace it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::index_file::IndexFile;
use crate::jpeg::index::Index;

/// Number of separately locked parts, so that threads rarely wait for each other.
const PARTS: usize = 64;

type Part = HashMap<u32, Arc<Index>>;

/// The indexes of a dataset's records.
pub struct IndexCache {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    parts: Vec<Mutex<Part>>,
    file: Option<IndexFile>,
}

impl IndexCache {
    /// Make a cache that grows to about `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        IndexCache {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            file: None,
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

    fn part(&self, record: u32) -> MutexGuard<'_, Part> {
        self.parts[record as usize % PARTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the memory in use in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Return the index of `record`, which may cover only a part of the image.
    pub fn get(&self, record: u32) -> Option<Arc<Index>> {
        let known = self.part(record).get(&record).cloned();
        if known.is_some() {
            return known;
        }
        let index = self.file.as_ref()?.get(record)?;
        self.keep(record, &index);
        Some(Arc::new(index))
    }

    /// Store a copy of `index` if it covers more than the stored one and there is room.
    pub fn offer(&self, record: u32, index: &Index) {
        self.keep(record, index);
        if let Some(file) = &self.file {
            file.put(record, index);
        }
    }

    fn keep(&self, record: u32, index: &Index) {
        let size = index.size_bytes();
        let mut part = self.part(record);
        let (rows, freed) = part
            .get(&record)
            .map_or((0, 0), |known| (known.rows(), known.size_bytes()));
        if index.rows() <= rows || self.used_bytes() + size > self.limit_bytes + freed {
            return;
        }
        part.insert(record, Arc::new(index.clone()));
        self.used_bytes.fetch_add(size, Ordering::Relaxed);
        self.used_bytes.fetch_sub(freed, Ordering::Relaxed);
    }

    /// Forget the index of a record whose file has changed.
    pub fn forget(&self, record: u32) {
        if let Some(file) = &self.file {
            file.forget(record);
        }
        if let Some(index) = self.part(record).remove(&record) {
            self.used_bytes
                .fetch_sub(index.size_bytes(), Ordering::Relaxed);
        }
    }
}
