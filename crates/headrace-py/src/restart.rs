//! Lossless restart markers, for the packer and for callers with their own containers.

use headrace_core::exif;
use headrace_core::jpeg::restart::{restart_markers as write, Metadata, RestartOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::detach::detached;
use crate::status::decode_error;

/// Return the JPEG `data` with restart markers about every `tile` pixels. Raise headrace.errors.DecodeError with the reason.
#[pyfunction]
#[pyo3(signature = (data, tile, keep_metadata = true))]
pub fn restart_markers<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    tile: u32,
    keep_metadata: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    if tile == 0 {
        return Err(PyValueError::new_err(
            "tile must be at least 1 pixel, got 0",
        ));
    }
    let mut out = Vec::new();
    let written = detached(py, || {
        let metadata = if keep_metadata {
            Metadata::Keep
        } else {
            Metadata::Orientation(exif::orientation(&data))
        };
        let options = RestartOptions {
            tile_px: tile,
            metadata,
        };
        write(&data, &options, &mut out)
    })?;
    match written {
        Ok(()) => Ok(PyBytes::new(py, &out)),
        Err(status) => Err(decode_error(py, status)),
    }
}
