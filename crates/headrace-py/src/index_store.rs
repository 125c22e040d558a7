//! JPEG indexes of any images, in memory and in a file that processes share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::engine::{IndexCache, IndexFile};
use pyo3::prelude::*;

use crate::detach::{detached, guarded};

/// Size of an index in bytes, about: 470×400 pixels.
const INDEX_BYTES: u64 = 2000;

/// JPEG indexes, found by the images' bytes. A forked child starts with an empty memory and its own opening of the file.
#[pyclass(frozen, module = "headrace._native")]
pub struct IndexStore {
    memory_bytes: usize,
    file: Option<PathBuf>,
    file_bytes: u64,
    /// The process that made the cache, and the cache. Only held with the interpreter lock, so no fork finds it locked.
    own: Mutex<(u32, Arc<IndexCache>)>,
}

#[pymethods]
impl IndexStore {
    /// Keep up to `memory_bytes` of indexes in memory, and about `file_bytes` in `file`, which other processes use at the same
    /// time and later.
    #[new]
    #[pyo3(signature = (memory_bytes=0, file=None, file_bytes=1 << 30))]
    fn new(
        py: Python<'_>,
        memory_bytes: usize,
        file: Option<PathBuf>,
        file_bytes: u64,
    ) -> PyResult<Self> {
        let made = detached(py, || make(memory_bytes, file.as_ref(), file_bytes))?;
        Ok(IndexStore {
            memory_bytes,
            file,
            file_bytes,
            own: Mutex::new((std::process::id(), made)),
        })
    }

    /// Return how many indexes this process found, how many it made, and the memory that it uses for them in bytes.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, usize)> {
        guarded(py, || {
            let cache = self.cache();
            let (found, made) = cache.counts();
            Ok((found, made, cache.used_bytes()))
        })
    }

    /// Close the file until it is needed again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache();
        detached(py, || {
            if let Some(file) = cache.file() {
                file.flush();
            }
        })
    }
}

impl IndexStore {
    /// Return the indexes of this process.
    pub fn cache(&self) -> Arc<IndexCache> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own.0 != std::process::id() {
            let made = make(self.memory_bytes, self.file.as_ref(), self.file_bytes);
            let inherited = std::mem::replace(&mut *own, (std::process::id(), made));
            // Threads of the parent may have locked it at the fork: it is never touched again.
            std::mem::forget(inherited);
        }
        Arc::clone(&own.1)
    }
}

fn make(memory_bytes: usize, file: Option<&PathBuf>, file_bytes: u64) -> Arc<IndexCache> {
    let cache = IndexCache::new(memory_bytes);
    let images = usize::try_from(file_bytes / INDEX_BYTES).unwrap_or(usize::MAX);
    Arc::new(match file {
        Some(path) => cache.with_file(IndexFile::open(path, images, file_bytes)),
        None => cache,
    })
}
