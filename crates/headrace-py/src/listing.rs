//! Listing of image folders, and the keys of their records.

use std::path::PathBuf;

use headrace_core::image_folder::{self, Endings};
use headrace_core::record_keys::{self, Texts};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::{detached, guarded};

/// Names, the bytes of each (int64), those of each file (int64), a number that changes with each file (int64), ignored files, and
/// the number of files with other endings.
type Listed<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<String>,
    usize,
);

/// List the images below `folder`, by folder and name; their names begin with `class_name`. Return None where the caller must look
/// at each file itself: names that are not UTF-8, links to folders, files that cannot be read.
#[pyfunction]
pub fn list_images<'py>(
    py: Python<'py>,
    folder: PathBuf,
    class_name: String,
    endings: Vec<String>,
    ignored: Vec<String>,
) -> PyResult<Option<Listed<'py>>> {
    let found = detached(py, || {
        let endings = Endings {
            images: &endings,
            ignored: &ignored,
        };
        image_folder::list_images(&folder, &class_name, endings)
    })?;
    Ok(found.map(|found| {
        (
            PyBytes::new(py, &found.names),
            column(py, &found.lengths),
            column(py, &found.sizes),
            column(py, &found.changed),
            found.ignored,
            found.others,
        )
    }))
}

/// Return the size (int64) of each file in `folder` that a list names, and a number that changes with it (int64): 0 and 0 for a missing
/// file, -1 and 0 for what is no regular file. `is_copy`: the files are copies, whose change of status says nothing.
#[pyfunction]
pub fn file_facts<'py>(
    py: Python<'py>,
    folder: PathBuf,
    names: PyBuffer<u8>,
    start: PyBuffer<i64>,
    is_copy: bool,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (names, start) = (names.to_vec(py)?, start.to_vec(py)?);
    let facts = detached(py, || {
        Some(image_folder::file_facts(
            &folder,
            Texts::new(&names, &start)?,
            is_copy,
        ))
    })?;
    let (sizes, changed) = facts.ok_or_else(not_cut)?;
    Ok((column(py, &sizes), column(py, &changed)))
}

/// Return a number that changes when a file's time of modification or of status changes, both in nanoseconds.
#[pyfunction]
pub fn change_number(py: Python<'_>, modified_ns: i64, status_ns: i64) -> PyResult<i64> {
    guarded(py, || {
        Ok(image_folder::change_number(modified_ns, status_ns))
    })
}

/// Return a hash (uint64) of each text, or of its stem as a file name: equal texts have equal hashes in this process.
#[pyfunction]
pub fn text_hashes<'py>(
    py: Python<'py>,
    texts: PyBuffer<u8>,
    start: PyBuffer<i64>,
    stems: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let (texts, start) = (texts.to_vec(py)?, start.to_vec(py)?);
    let hashes = detached(py, || {
        Some(record_keys::hashes(Texts::new(&texts, &start)?, stems))
    })?;
    let bytes: Vec<u8> = hashes
        .ok_or_else(not_cut)?
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    Ok(PyBytes::new(py, &bytes))
}

/// Return a number (uint64) for each text that depends on the text and `salt` alone: `hashlib.blake2b(digest_size=8, salt=salt)`.
#[pyfunction]
pub fn order_numbers<'py>(
    py: Python<'py>,
    texts: PyBuffer<u8>,
    start: PyBuffer<i64>,
    salt: [u8; 16],
) -> PyResult<Bound<'py, PyBytes>> {
    let (texts, start) = (texts.to_vec(py)?, start.to_vec(py)?);
    let numbers = detached(py, || {
        Some(record_keys::order_numbers(
            Texts::new(&texts, &start)?,
            salt,
        ))
    })?;
    let bytes: Vec<u8> = numbers
        .ok_or_else(not_cut)?
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    Ok(PyBytes::new(py, &bytes))
}

/// Return the keys of file names, and the bytes of each (int64). `shared` is not 0 where another name has the same stem.
#[pyfunction]
pub fn keys_of_names<'py>(
    py: Python<'py>,
    names: PyBuffer<u8>,
    start: PyBuffer<i64>,
    shared: PyBuffer<u8>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (names, start, shared) = (names.to_vec(py)?, start.to_vec(py)?, shared.to_vec(py)?);
    let keys = detached(py, || {
        let names = Texts::new(&names, &start)?;
        (shared.len() + 1 == start.len()).then(|| record_keys::keys_of(names, &shared))
    })?;
    let (keys, lengths) = keys.ok_or_else(not_cut)?;
    Ok((PyBytes::new(py, &keys), column(py, &lengths)))
}

fn column<'py>(py: Python<'py>, values: &[i64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = values.iter().copied().flat_map(i64::to_ne_bytes).collect();
    PyBytes::new(py, &bytes)
}

fn not_cut() -> PyErr {
    PyValueError::new_err("the starts do not cut the texts into one piece for each record")
}
