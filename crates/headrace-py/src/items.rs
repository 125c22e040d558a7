//! Items: images that each have a source, a crop, a size, a window and flips of their own, for `fill_items` and
//! `Engine.submit_items`.
#![allow(unsafe_code)]

use std::sync::Arc;

use headrace_core::engine::{self, BatchMemory, Group, Item, ItemBytes, Items, Source, Target};
use headrace_core::geometry::Rect;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::buffer::lent_bytes;
use crate::detach::{detached, guarded};
use crate::index_store::IndexStore;
use crate::store::Store;
use crate::values::filter;

/// An item: source, box, size, filter, window, flip left-right, flip top-bottom.
type ItemTuple<'py> = (
    Bound<'py, PyAny>,
    Option<Corners>,
    Option<(i64, i64)>,
    Bound<'py, PyAny>,
    Option<Corners>,
    bool,
    bool,
);

/// A rectangle as Python gives it: x, y, width, height.
pub type Corners = (i64, i64, i64, i64);

/// A target: layout and values, and the memory.
pub type TargetTuple<'py> = (PyRef<'py, Store>, Bound<'py, PyAny>);

/// Encoded bytes in the memory of a Python object, whose buffer is held by the caller as long as they are used.
struct Lent {
    start: *const u8,
    length: usize,
    unchanging: bool,
}

// SAFETY: plain memory, which is only read.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl ItemBytes for Lent {
    fn get<'a>(&'a self, copy: &'a mut Vec<u8>) -> &'a [u8] {
        // SAFETY: the memory is held while it is used (`to_items`), and `unchanging` is true for `bytes` alone.
        unsafe { lent_bytes(self.start, self.length, self.unchanging, copy) }
    }
}

/// Convert a rectangle. Values that are negative or exceed 32 bits give a rectangle that fits no image.
pub fn rect((x, y, w, h): Corners) -> Rect {
    let side = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    Rect::new(side(x), side(y), side(w), side(h))
}

/// Convert a window. Raise ValueError if a value is negative or exceeds 32 bits.
pub fn window((x, y, w, h): Corners, number: usize) -> PyResult<Rect> {
    let side = |value: i64| u32::try_from(value).ok();
    match (side(x), side(y), side(w), side(h)) {
        (Some(left), Some(top), Some(width), Some(height)) => {
            Ok(Rect::new(left, top, width, height))
        }
        _ => Err(PyValueError::new_err(format!(
            "item {number}: the window (x {x}, y {y}, width {w}, height {h}) leaves the resized image"
        ))),
    }
}

/// Convert a size. Values that are negative or exceed 32 bits give a size that is refused.
pub fn size((width, height): (i64, i64)) -> (u32, u32) {
    let side = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    (side(width), side(height))
}

/// The source of the last group: the object, and start and length of its memory; `None` for a path.
type LastSource = (Py<PyAny>, Option<(usize, usize)>);

/// Items in the making.
#[derive(Default)]
struct Reader {
    groups: Vec<Group>,
    items: Vec<Item>,
    last: Option<LastSource>,
}

impl Reader {
    /// Append an item of Python's form. Neighbours with one source become a group; buffers are appended to `keep`.
    fn add(&mut self, item: &Bound<'_, PyAny>, keep: &mut Vec<PyUntypedBuffer>) -> PyResult<()> {
        let number = self.items.len();
        let (source, box_, resized, name, part, flip_x, flip_y): ItemTuple<'_> =
            item.extract().map_err(|error| {
                PyTypeError::new_err(format!(
                    "item {number} is no (source, box, size, filter, window, flip_x, flip_y): {error}"
                ))
            })?;
        if !self.last_again(&source)? {
            self.open(&source, keep).map_err(|error| {
                PyTypeError::new_err(format!("item {number}: its source: {error}"))
            })?;
        }
        if let Some(group) = self.groups.last_mut() {
            group.count += 1;
        }
        self.items.push(Item {
            box_: box_.map(rect),
            size: resized.map(size),
            filter: filter(name.extract()?)?,
            window: part.map(|part| window(part, number)).transpose()?,
            flip_x,
            flip_y,
            ..Item::default()
        });
        Ok(())
    }

    /// Return whether a source is that of the last group: the same object, or an equal path.
    fn last_again(&self, source: &Bound<'_, PyAny>) -> PyResult<bool> {
        match &self.last {
            Some((last, _)) if last.is(source) => Ok(true),
            Some((last, None)) => last.bind(source.py()).eq(source),
            _ => Ok(false),
        }
    }

    /// Start the group of a source, unless it is the memory of the last one.
    fn open(&mut self, source: &Bound<'_, PyAny>, keep: &mut Vec<PyUntypedBuffer>) -> PyResult<()> {
        let buffer = match source.is_instance_of::<PyString>() {
            false => PyUntypedBuffer::get(source).ok(),
            true => None,
        };
        let (opened, memory) = match buffer {
            Some(buffer) if buffer.is_c_contiguous() => {
                let (start, length) = (
                    buffer.buf_ptr().cast::<u8>().cast_const(),
                    buffer.len_bytes(),
                );
                let memory = Some((start as usize, length));
                if self.last.as_ref().is_some_and(|(_, last)| *last == memory) {
                    return Ok(());
                }
                keep.push(buffer);
                let unchanging = source.is_instance_of::<PyBytes>();
                let lent = Lent {
                    start,
                    length,
                    unchanging,
                };
                (Source::Memory(Box::new(lent)), memory)
            }
            Some(_) => return Err(PyValueError::new_err("its bytes must be contiguous")),
            None => (Source::File(source.extract()?), None),
        };
        self.groups.push(Group {
            source: opened,
            count: 0,
        });
        self.last = Some((source.clone().unbind(), memory));
        Ok(())
    }
}

/// Take the memory of the targets; the buffers are appended to `keep`, which must live until no thread uses them.
fn to_targets(
    targets: &[TargetTuple<'_>],
    keep: &mut Vec<PyUntypedBuffer>,
) -> PyResult<Vec<Target>> {
    let target = |(number, (store, memory)): (usize, &TargetTuple<'_>)| {
        let buffer = PyUntypedBuffer::get(memory)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(format!(
                "target {number} must be writable and C-contiguous"
            )));
        }
        // SAFETY: the buffer has this many bytes, is writable, and is held in `keep`.
        let memory = unsafe { BatchMemory::new(buffer.buf_ptr().cast(), buffer.len_bytes(), 1) };
        keep.push(buffer);
        Ok(Target {
            store: Arc::clone(&store.inner),
            memory,
        })
    };
    targets.iter().enumerate().map(target).collect()
}

/// Make a batch of items of their form in Python; the buffers that it reads and writes are appended to
/// `keep`, which must live until no thread uses them.
pub fn to_items(
    items: &[Bound<'_, PyAny>],
    targets: &[TargetTuple<'_>],
    places: Option<Vec<(usize, usize)>>,
    indexes: Option<&IndexStore>,
    keep: &mut Vec<PyUntypedBuffer>,
) -> PyResult<Items> {
    let mut reader = Reader::default();
    for item in items {
        reader.add(item, keep)?;
    }
    let Reader {
        groups, mut items, ..
    } = reader;
    let targets = to_targets(targets, keep)?;
    match places {
        Some(places) if places.len() == items.len() => {
            for (item, place) in items.iter_mut().zip(places) {
                item.place = place;
            }
        }
        Some(places) => {
            return Err(PyValueError::new_err(format!(
                "{} places for {} items",
                places.len(),
                items.len()
            )))
        }
        None => one_after_the_other(&mut items, &targets),
    }
    let mut batch = Items::new(groups, items, targets).map_err(PyValueError::new_err)?;
    batch.indexes = indexes.map(IndexStore::cache);
    Ok(batch)
}

/// Place the items in the first target, without gaps. What cannot be placed is refused by [`Items::new`].
fn one_after_the_other(items: &mut [Item], targets: &[Target]) {
    let value_bytes = targets
        .first()
        .map_or(1, |target| target.store.value_bytes());
    let mut at = 0usize;
    for item in items {
        item.place = (0, at);
        let (width, height) = item.shape().unwrap_or((0, 0));
        let bytes = (width as usize * height as usize).saturating_mul(3 * value_bytes);
        at = at.saturating_add(bytes);
    }
}

/// Make images in the caller's memory: one call per batch, without the interpreter lock.
///
/// `items`: (source, box, size, filter, window, flip_x, flip_y) each: encoded bytes or a path; crop (x, y, w, h) in the image or None;
/// (width, height) of the resize or None; its filter; crop (x, y, w, h) in the resized image or None; mirror left to right; top
/// to bottom. `targets`: (layout and values, writable C-contiguous buffer). `places`: (number of the target, byte of it) of each
/// item; None: in the first target, one after the other. Neighbours with one source are read and opened once.
/// `indexes`: JPEG indexes, which are used and extended. Return a status per item, 0 = ok; the memory of a failed item is zero. Nobody else may use the memory during the call.
#[pyfunction]
#[pyo3(signature = (items, targets, places = None, threads = 1, indexes = None))]
pub fn fill_items(
    py: Python<'_>,
    items: Vec<Bound<'_, PyAny>>,
    targets: Vec<TargetTuple<'_>>,
    places: Option<Vec<(usize, usize)>>,
    threads: usize,
    indexes: Option<PyRef<'_, IndexStore>>,
) -> PyResult<Vec<i32>> {
    let mut keep = Vec::new();
    let batch = guarded(py, || {
        to_items(&items, &targets, places, indexes.as_deref(), &mut keep)
    })?;
    detached(py, || engine::fill_items(batch, threads))
}
