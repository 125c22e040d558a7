//! Packing of records.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use headrace_core::error::or_internal;
use headrace_core::pack::{Bound, Keep, PackOptions, Packer, Place, Row, Smaller};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::detach::{detached, guarded};

thread_local! {
    static PACKER: RefCell<Packer> = RefCell::default();
}

/// The options of packing a JPEG. `keep` is "bytes", "decodable" or "marked" (restart markers about every `tile_px` pixels).
/// `bound` is None, "max_side", "short_side" or "resize" with its `length` in pixels. With a `quality`, images are re-encoded.
#[pyclass(frozen, module = "headrace._native")]
pub struct PackRecipe {
    inner: PackOptions,
}

#[pymethods]
impl PackRecipe {
    #[new]
    #[pyo3(signature = (keep, tile_px, *, quality=None, above_quality=None, bound=None, length=0))]
    fn new(
        py: Python<'_>,
        keep: &str,
        tile_px: u32,
        quality: Option<u8>,
        above_quality: Option<u8>,
        bound: Option<&str>,
        length: u32,
    ) -> PyResult<Self> {
        guarded(py, || {
            let keep = match keep {
                "bytes" => Keep::Bytes,
                "decodable" => Keep::Decodable,
                "marked" => Keep::Marked(tile_px.max(1)),
                other => return Err(PyValueError::new_err(format!("keep is {other:?}"))),
            };
            let bound = match bound {
                None => Bound::None,
                Some("max_side") => Bound::MaxSide(length),
                Some("short_side") => Bound::ShortSide(length),
                Some("resize") => Bound::Resize(length),
                Some(other) => return Err(PyValueError::new_err(format!("bound is {other:?}"))),
            };
            let smaller = quality.map(|quality| Smaller {
                bound,
                above_quality,
                quality,
            });
            Ok(PackRecipe {
                inner: PackOptions { keep, smaller },
            })
        })
    }
}

/// A record to pack: path, offset, size (-1: the rest of the file), offset and size of its JSON (0: none), key, label.
type Record = (PathBuf, u64, i64, u64, u64, String, i64);

/// Memory of earlier tar members, for reuse: fresh pages cost more than filling them.
static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// Number of blocks that are kept, and their largest size.
const KEPT: usize = 16;
const LARGEST_KEPT: usize = 8 << 20;
/// Bytes that the members of one call usually take: the caller sends about 1 MiB of images at once.
const ROOM: usize = 5 << 18;

/// The tar members of packed records, as a read-only buffer.
#[pyclass(frozen, module = "headrace._native")]
pub struct Members {
    bytes: Vec<u8>,
}

impl Members {
    fn new() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Members {
            bytes: free.unwrap_or_else(|| Vec::with_capacity(ROOM)),
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT && self.bytes.capacity() <= LARGEST_KEPT {
            self.bytes.clear();
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[pymethods]
impl Members {
    unsafe fn __getbuffer__(
        slf: pyo3::Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let (start, size) = (
            bytes.as_ptr().cast_mut().cast(),
            bytes.len() as ffi::Py_ssize_t,
        );
        // SAFETY: `view` comes from the interpreter; the buffer is read only, never changes, and lives as long as this object, to
        // which the view holds a reference.
        let result = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 1, flags) };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// Consecutive packed records: the number of the first, all their tar members, and for each record the offset of the image in
/// these, its size, width, height, CRC-32C, and offset and size of the JSON.
type Run<'py> = (
    usize,
    pyo3::Bound<'py, PyMemoryView>,
    Vec<(u64, u64, u32, u32, u32, u64, u64)>,
);

struct Piece {
    first: usize,
    members: Members,
    rows: Vec<Row>,
}

/// Pack records. Records that are in no run of the result were declined; the caller handles them one by one.
#[pyfunction]
pub fn pack_records<'py>(
    py: Python<'py>,
    recipe: &PackRecipe,
    records: Vec<Record>,
) -> PyResult<Vec<Run<'py>>> {
    let pieces = detached(py, || {
        PACKER.with_borrow_mut(|packer| packed(packer, &recipe.inner, &records))
    })?;
    let row = |row: Row| {
        let Row {
            offset,
            size,
            width,
            height,
            crc32c,
            json_offset,
            json_size,
        } = row;
        (offset, size, width, height, crc32c, json_offset, json_size)
    };
    pieces
        .into_iter()
        .map(|piece| {
            let rows = piece.rows.into_iter().map(row).collect();
            let members = pyo3::Bound::new(py, piece.members)?;
            Ok((piece.first, PyMemoryView::from(&members)?, rows))
        })
        .collect()
}

fn packed(packer: &mut Packer, recipe: &PackOptions, records: &[Record]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (number, (path, offset, size, json_offset, json_size, key, label)) in
        records.iter().enumerate()
    {
        let continues = pieces
            .last()
            .is_some_and(|piece| piece.first + piece.rows.len() == number);
        if !continues {
            pieces.push(Piece {
                first: number,
                members: Members::new(),
                rows: Vec::new(),
            });
        }
        let Some(piece) = pieces.last_mut() else {
            continue;
        };
        let place = Place {
            path,
            offset: *offset,
            size: u64::try_from(*size).ok(),
            json: (*json_size > 0).then_some((*json_offset, *json_size)),
        };
        let members = &mut piece.members.bytes;
        let before = members.len();
        let row = or_internal(|| Ok(packer.append(recipe, &place, key, *label, members)));
        let row = row.unwrap_or_else(|_| {
            *packer = Packer::default(); // a panic may have left any state
            members.truncate(before);
            None
        });
        match row {
            Some(row) => piece.rows.push(row),
            None if piece.rows.is_empty() => {
                pieces.pop();
            }
            None => {}
        }
    }
    pieces
}
