//! JPEG indexes for Python.

use std::sync::Arc;

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::error::Status;
use headrace_core::geometry::Rect;
use headrace_core::jpeg::index;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::{detached, guarded};

fn refused(status: Status) -> PyErr {
    PyValueError::new_err(status.message())
}

/// The index of a JPEG without restart markers. With it, decoding a crop costs what its part of the image costs.
#[pyclass(frozen, module = "headrace._native")]
pub struct Index {
    pub inner: Arc<index::Index>,
}

#[pymethods]
impl Index {
    /// Make the index of a whole image; it is empty (0 rows) if the image needs none or cannot have one. Raise ValueError with
    /// the reason.
    #[staticmethod]
    fn build(py: Python<'_>, jpeg: &[u8]) -> PyResult<Self> {
        detached(py, || {
            let mut decoder = Decoder::new();
            let opened = decoder.open(jpeg)?;
            let size = opened.size();
            let mut made = index::Index::new();
            let whole = Rect::new(0, 0, size.width, size.height);
            decoder.decode(&opened, whole, &DecodeOptions::default(), Some(&mut made))?;
            Ok(made)
        })?
        .map(|made| Index {
            inner: Arc::new(made),
        })
        .map_err(refused)
    }

    /// Read the bytes of `to_bytes`. Raise ValueError for any other bytes.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        detached(py, || index::Index::from_bytes(data))?
            .map(|made| Index {
                inner: Arc::new(made),
            })
            .map_err(refused)
    }

    /// Return the index as bytes, for a file beside the image.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(py, || Ok(PyBytes::new(py, &self.inner.to_bytes())))
    }

    /// Return the number of MCU rows that the index covers.
    #[getter]
    fn rows(&self) -> u32 {
        self.inner.rows()
    }

    /// Return the memory that the index takes in bytes.
    #[getter]
    fn size_bytes(&self) -> usize {
        self.inner.size_bytes()
    }
}
