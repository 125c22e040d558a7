//! The thread pool and its jobs.
#![allow(unsafe_code)]

use std::any::Any;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headrace_core::engine::{self, BatchMemory, Encoded};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::detach::{detached, guarded, wait_for};
use crate::index_store::IndexStore;
use crate::items::{to_items, TargetTuple};
use crate::program::Program;
use crate::store::Store;
use crate::stream::{to_bytes, DrawPlan, Stream};
use crate::table::Table;

/// A further view: program, store, seed, memory, and masks as in `submit`.
type Further<'py> = (
    PyRef<'py, Program>,
    PyRef<'py, Store>,
    u64,
    PyBuffer<u8>,
    Option<Beside<'py>>,
);

/// A file of a record: its bytes, or its path.
#[derive(FromPyObject)]
enum FileSource {
    Bytes(PyBackedBytes),
    Path(PathBuf),
}

impl From<FileSource> for engine::FileSource {
    fn from(source: FileSource) -> Self {
        match source {
            FileSource::Bytes(bytes) => engine::FileSource::Bytes(Box::new(bytes)),
            FileSource::Path(path) => engine::FileSource::Path(path),
        }
    }
}

/// The files of the records, what each must be (see `file_kind`), whether they are turned upright, and the JPEG indexes.
type FilesTuple<'py> = (Vec<FileSource>, PyBackedBytes, bool, PyRef<'py, IndexStore>);

/// Return what a file must be: 0 any image, 1 an RGB JPEG, 2 a gray JPEG.
fn file_kind(number: &u8) -> PyResult<engine::FileKind> {
    match number {
        0 => Ok(engine::FileKind::Any),
        1 => Ok(engine::FileKind::RgbJpeg),
        2 => Ok(engine::FileKind::GrayJpeg),
        other => Err(PyValueError::new_err(format!(
            "there is no kind {other} of files"
        ))),
    }
}

/// The table of masks, their memory, and the class of pixels from outside the image.
type Beside<'py> = (PyRef<'py, Table>, PyBuffer<u8>, u8);

/// The stream that random numbers come from, how those of each view are drawn, the order in which the views draw, and the most words
/// that an image takes from torch's stream.
type TurnTuple<'py> = (
    PyRef<'py, Stream>,
    Vec<PyRef<'py, DrawPlan>>,
    Vec<usize>,
    u64,
);

/// Let a batch of so many images and views join a stream.
fn turn(
    (stream, plans, order, words): TurnTuple<'_>,
    images: usize,
    views: usize,
) -> PyResult<engine::Turn> {
    if plans.len() != views || order.iter().any(|&view| view >= views) {
        return Err(PyValueError::new_err(
            "one plan a view, and no other views in the order",
        ));
    }
    let plans = plans.iter().map(|plan| Arc::clone(&plan.inner)).collect();
    Ok(engine::Turn::new(
        Arc::clone(&stream.inner),
        images,
        words,
        plans,
        order,
    ))
}

/// Make a view of `records`; the buffers that it writes to are appended to `keep`.
fn view(
    program: &Program,
    store: &Store,
    seed: u64,
    out: PyBuffer<u8>,
    masks: Option<Beside<'_>>,
    records: &[u32],
    keep: &mut Vec<PyBuffer<u8>>,
) -> PyResult<engine::View> {
    let count = records.len();
    let (height, width) = program.inner.out();
    let pixels = height as usize * width as usize;
    let mut memory = |out: PyBuffer<u8>, slot_bytes: usize| {
        // More bytes than can be counted fit into no buffer.
        check_out(&out, slot_bytes.saturating_mul(count))?;
        // SAFETY: the buffer is large enough (checked), and `Job` keeps it until no thread uses it.
        let memory = unsafe { BatchMemory::new(out.buf_ptr().cast(), slot_bytes, count) };
        keep.push(out);
        PyResult::Ok(memory)
    };
    let view = engine::View {
        program: Arc::clone(&program.inner),
        store: Arc::clone(&store.inner),
        seed,
        memory: memory(out, pixels.saturating_mul(3 * store.inner.value_bytes()))?,
        masks: None,
    };
    let Some((table, out, fill)) = masks else {
        return Ok(view);
    };
    let len = table.inner.len();
    if records.iter().any(|&record| record as usize >= len) {
        return Err(PyValueError::new_err("a record has no mask"));
    }
    let masks = engine::Masks {
        table: Arc::clone(&table.inner),
        fill,
        memory: memory(out, pixels)?,
    };
    Ok(engine::View {
        masks: Some(masks),
        ..view
    })
}

fn check_out(out: &PyBuffer<u8>, bytes: usize) -> PyResult<()> {
    if out.readonly() || !out.is_c_contiguous() || out.len_bytes() < bytes {
        return Err(PyValueError::new_err(format!(
            "the batch needs {bytes} writable contiguous bytes, {} given",
            out.len_bytes()
        )));
    }
    Ok(())
}

/// Check that each record is below `count`.
fn known_records(records: &[i64], count: usize) -> PyResult<Vec<u32>> {
    let known = |&record: &i64| {
        u32::try_from(record)
            .ok()
            .filter(|&record| (record as usize) < count)
            .ok_or_else(|| PyValueError::new_err(format!("record {record} of {count}")))
    };
    records.iter().map(known).collect()
}

/// A pool of native threads that fill batches.
#[pyclass(frozen, module = "headrace._native")]
pub struct Engine {
    inner: Mutex<Option<engine::Engine>>,
}

#[pymethods]
impl Engine {
    /// Start `threads` threads, of which at most `decoding` decode at a time (default: all). With `quiet`, images of batches of which
    /// Pillow would warn, or whose metadata it refuses, have the status "unsupported". Raise OSError if the system refuses.
    #[new]
    #[pyo3(signature = (threads, decoding=None, quiet=false))]
    fn new(py: Python<'_>, threads: usize, decoding: Option<usize>, quiet: bool) -> PyResult<Self> {
        let decoding = decoding.unwrap_or(threads);
        let inner = detached(py, || engine::Engine::new(threads, decoding, quiet))?
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Engine {
            inner: Mutex::new(Some(inner)),
        })
    }

    /// Queue a batch: `records` (int64) and `draws` (uint64) have one entry per slot of `out`, a writable C-contiguous buffer.
    /// `data`: the encoded bytes of the records; without it they are read through the table.
    /// `masks`: (table of the masks, with the same records as `table`; memory with one byte per pixel of each slot; class of
    /// pixels from outside the image).
    /// `files`: (the path or the bytes of each record, a byte for each that says what it must be (0 any image, 1 an RGB JPEG, 2 a
    /// gray JPEG), whether images are turned upright by their EXIF orientation, JPEG indexes), in place of the table, whose records
    /// then only number the images.
    /// `first`: make this batch before those that wait.
    /// `turn`: (stream, a plan of draws for each view, the numbers of the views in the order in which they draw, the most words that an
    /// image takes from torch's stream): the images draw from the stream, one after the other, in place of `seed`, `epoch` and `draws`.
    /// `further`: more views of the same records, each (program, store, seed, out, masks). Each image is decoded once for all
    /// views if that is less work, and has one status.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (table, program, store, seed, epoch, records, draws, out, data=None, masks=None, further=None, files=None, first=false, turn=None))]
    fn submit(
        &self,
        py: Python<'_>,
        table: &Table,
        program: &Program,
        store: &Store,
        seed: u64,
        epoch: u64,
        records: PyBuffer<i64>,
        draws: PyBuffer<u64>,
        out: PyBuffer<u8>,
        data: Option<Vec<PyBackedBytes>>,
        masks: Option<Beside<'_>>,
        further: Option<Vec<Further<'_>>>,
        files: Option<FilesTuple<'_>>,
        first: bool,
        turn: Option<TurnTuple<'_>>,
    ) -> PyResult<Job> {
        let count = match (&data, &files) {
            (None, None) => table.inner.len(),
            _ => u32::MAX as usize,
        };
        let records = known_records(&records.to_vec(py)?, count)?;
        let draws = draws.to_vec(py)?;
        if draws.len() != records.len() {
            return Err(PyValueError::new_err(format!(
                "{} draws for {} records",
                draws.len(),
                records.len()
            )));
        }
        if data
            .as_ref()
            .is_some_and(|data| data.len() != records.len())
        {
            return Err(PyValueError::new_err("data must have one entry per record"));
        }
        if files
            .as_ref()
            .is_some_and(|(paths, ..)| paths.len() != records.len() || data.is_some())
        {
            return Err(PyValueError::new_err(
                "files must have one entry per record, and no data beside them",
            ));
        }
        let mut keep = Vec::new();
        let mut views = vec![view(program, store, seed, out, masks, &records, &mut keep)?];
        for (program, store, seed, out, masks) in further.unwrap_or_default() {
            views.push(view(
                &program, &store, seed, out, masks, &records, &mut keep,
            )?);
        }
        let indexes = match &files {
            Some((_, _, _, store)) => store.cache(),
            None => Arc::clone(&table.indexes),
        };
        let files = files
            .map(|(sources, kinds, upright, _)| {
                Ok::<_, PyErr>(engine::Files {
                    sources: sources.into_iter().map(engine::FileSource::from).collect(),
                    kinds: kinds.iter().map(file_kind).collect::<PyResult<_>>()?,
                    upright,
                })
            })
            .transpose()?;
        let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = engine
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))?;
        let turn = turn
            .filter(|_| !records.is_empty())
            .map(|turn| self::turn(turn, records.len(), views.len()).map(Box::new))
            .transpose()?;
        let batch = engine::Batch {
            table: Arc::clone(&table.inner),
            indexes,
            epoch,
            records,
            draws,
            data: data.map(|data| {
                data.into_iter()
                    .map(|bytes| Box::new(bytes) as Encoded)
                    .collect()
            }),
            files,
            views,
            turn,
            first,
        };
        guarded(py, || {
            Ok(Job {
                inner: engine.submit(batch),
                _out: Box::new(keep),
            })
        })
    }

    /// Queue items, as `fill_items` fills them.
    #[pyo3(signature = (items, targets, places=None, indexes=None))]
    fn submit_items(
        &self,
        py: Python<'_>,
        items: Vec<Bound<'_, PyAny>>,
        targets: Vec<TargetTuple<'_>>,
        places: Option<Vec<(usize, usize)>>,
        indexes: Option<PyRef<'_, IndexStore>>,
    ) -> PyResult<Job> {
        let mut keep = Vec::new();
        let batch = guarded(py, || {
            to_items(&items, &targets, places, indexes.as_deref(), &mut keep)
        })?;
        let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = engine
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))?;
        guarded(py, || {
            Ok(Job {
                inner: engine.submit_items(batch),
                _out: Box::new(keep),
            })
        })
    }

    /// Stop and join the threads. Images that no thread has begun are skipped. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        detached(py, || drop(engine))
    }

    /// Return the totals over all threads: images, bytes, and nanoseconds per stage.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = PyDict::new(py);
        let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engine.as_ref() {
            let counters = engine.counters();
            for (name, value) in [
                ("images", &counters.images),
                ("bytes", &counters.bytes),
                ("read_ns", &counters.read_ns),
                ("decode_ns", &counters.decode_ns),
                ("resample_ns", &counters.resample_ns),
                ("store_ns", &counters.store_ns),
                ("idle_ns", &counters.idle_ns),
            ] {
                totals.set_item(name, value.load(Ordering::Relaxed))?;
            }
        }
        Ok(totals)
    }

    /// Drop the engine without joining its threads, in a forked child, where they do not exist.
    fn abandon(&self) {
        if let Some(engine) = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            std::mem::forget(engine);
        }
    }
}

/// A submitted batch. Dropping it waits until no thread uses its memory.
#[pyclass(frozen, module = "headrace._native")]
pub struct Job {
    inner: Arc<engine::Job>,
    _out: Box<dyn Any + Send + Sync>, // the buffers that are read and written, kept until no thread uses them
}

#[pymethods]
impl Job {
    /// Wait until the batch is complete, at most `timeout_s` seconds (None: no limit); return whether it is.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let limit = timeout_s
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|_| PyValueError::new_err("timeout_s must be 0 or more"))?;
        wait_for(py, limit, |timeout| self.inner.wait(timeout))
    }

    /// Return the status of each image, 0 = ok. The list is complete once `wait` has returned true.
    fn statuses(&self) -> Vec<i32> {
        self.inner.statuses()
    }

    /// Return the random streams (see `Stream`) as they were before an image drew; for the number of images, behind the last. None if
    /// the batch has no turn, or has not drawn so far.
    fn streams_before(&self, py: Python<'_>, image: usize) -> PyResult<Option<Cow<'static, [u8]>>> {
        let streams = detached(py, || self.inner.streams_before(image))?;
        Ok(streams.map(|streams| Cow::Owned(to_bytes(&streams))))
    }

    /// Skip the images that no thread has begun, and wait for those in progress.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.inner.cancel())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.inner.wait(Duration::ZERO) {
            // The interpreter lock may be held here, and an image in progress may wait for weights that a Python thread computes.
            if Python::try_attach(|py| py.detach(|| self.inner.cancel())).is_none() {
                self.inner.cancel();
            }
        }
    }
}
