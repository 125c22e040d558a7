//! The table of a dataset's records, with the caches of their bytes and JPEG indexes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use headrace_core::engine;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::detach::{detached, guarded};

/// Largest size of the JPEG index file of one dataset in bytes: about 500,000 photographs of 470×400.
const INDEX_FILE_BYTES: u64 = 1 << 30;

/// The table of a dataset's records: where the bytes of each are.
#[pyclass(frozen, module = "headrace._native")]
pub struct Table {
    pub inner: Arc<engine::Table>,
    pub indexes: Arc<engine::IndexCache>,
}

#[pymethods]
impl Table {
    /// Make a table: `file` (int32), `offset` (int64) and `size` (int64, -1 for the whole file) have one entry per record.
    /// Indexes of JPEGs without restart markers are cached in memory up to `index_bytes`, so that these JPEGs decode faster the
    /// next time, and in `index_file` (up to 1 GiB) for the next process. Encoded bytes are cached up to `cache_bytes` in memory,
    /// or in `cache_folder`, which needs the size of every record as `cache_sizes` (int64). With `checksums`, the CRC-32C of every
    /// record (uint32), bytes from a file are compared. Raise OSError if a file fails.
    #[new]
    #[pyo3(signature = (files, file, offset, size, index_bytes=0, index_file=None, cache_bytes=0, cache_folder=None, cache_sizes=None, checksums=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        files: &Bound<'_, PyAny>,
        file: PyBuffer<i32>,
        offset: PyBuffer<i64>,
        size: PyBuffer<i64>,
        index_bytes: usize,
        index_file: Option<PathBuf>,
        cache_bytes: u64,
        cache_folder: Option<PathBuf>,
        cache_sizes: Option<PyBuffer<i64>>,
        checksums: Option<PyBuffer<u32>>,
    ) -> PyResult<Self> {
        guarded(py, || {
            let mut paths = engine::Paths::default();
            for path in files.try_iter()? {
                paths.push(&path?.extract::<PathBuf>()?);
            }
            let negative = |_| PyValueError::new_err("a negative file number or offset");
            let file = file
                .to_vec(py)?
                .into_iter()
                .map(u32::try_from)
                .collect::<Result<_, _>>()
                .map_err(negative)?;
            let offset = offset
                .to_vec(py)?
                .into_iter()
                .map(u64::try_from)
                .collect::<Result<_, _>>()
                .map_err(negative)?;
            let inner = engine::Table::new(paths, file, offset, size.to_vec(py)?)
                .map_err(PyValueError::new_err)?;
            let inner = match checksums {
                Some(checksums) => inner
                    .with_checksums(checksums.to_vec(py)?)
                    .map_err(PyValueError::new_err)?,
                None => inner,
            };
            let inner = match (cache_folder, cache_sizes) {
                (Some(folder), Some(sizes)) => {
                    let sizes = sizes.to_vec(py)?;
                    inner.with_cache(engine::ByteCache::on_disk(&folder, &sizes, cache_bytes)?)
                }
                _ if cache_bytes > 0 => inner.with_cache(engine::ByteCache::in_memory(cache_bytes)),
                _ => inner,
            };
            let mut indexes = engine::IndexCache::new(index_bytes);
            if let Some(path) = index_file {
                let file = engine::IndexFile::open(&path, inner.len(), INDEX_FILE_BYTES);
                indexes = indexes.with_file(file.counted());
            }
            Ok(Table {
                inner: Arc::new(inner),
                indexes: Arc::new(indexes),
            })
        })
    }

    /// Ask the kernel to read `records` (int64) of shards into the page cache, and return at once.
    fn announce(&self, py: Python<'_>, records: PyBuffer<i64>) -> PyResult<()> {
        let within = |&record: &i64| {
            usize::try_from(record)
                .ok()
                .filter(|&at| at < self.inner.len())
        };
        let records: Option<Vec<usize>> = records.to_vec(py)?.iter().map(within).collect();
        let records = records.ok_or_else(|| PyValueError::new_err("a record outside the table"))?;
        detached(py, || self.inner.announce(&records))
    }

    /// Return the number of records that had an index in the index file when it was opened.
    fn indexes_found(&self) -> usize {
        self.indexes.file().map_or(0, engine::IndexFile::found)
    }

    /// Close the index file until it is needed again.
    fn flush_indexes(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            if let Some(file) = self.indexes.file() {
                file.flush();
            }
        })
    }

    /// Leave the table alone in a forked child: never access or free memory that threads of the parent may have locked.
    fn abandon(&self) {
        std::mem::forget(Arc::clone(&self.indexes));
        std::mem::forget(Arc::clone(&self.inner));
    }

    /// Return (records read from the cache, records that were not in it, bytes that this process stored); None without a cache.
    fn cache_counts(&self) -> Option<(u64, u64, u64)> {
        let counts = self.inner.cache()?.counts();
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some((
            value(&counts.hits),
            value(&counts.misses),
            value(&counts.bytes),
        ))
    }

    /// Return the memory that the JPEG indexes use, in bytes.
    fn index_bytes(&self) -> usize {
        self.indexes.used_bytes()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}
