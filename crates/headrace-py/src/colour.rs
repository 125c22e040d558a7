//! A colour operation on pixels, for comparisons with other libraries.

use headrace_core::colour::{ColourOp, Colourist};
use headrace_core::error::Status;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::detached;

/// Return RGB pixels, in rows of `width` pixels, blurred as Pillow's `GaussianBlur(radius)` does. Raise ValueError for bytes that
/// are not whole rows, and for a radius below 0 or above 1000.
#[pyfunction]
pub fn pillow_blur<'py>(
    py: Python<'py>,
    pixels: &[u8],
    width: u32,
    radius: f32,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut blurred = pixels.to_vec();
    detached(py, || {
        Colourist::default().apply(ColourOp::PillowBlur(radius), &mut blurred, width)
    })?
    .map_err(|status: Status| PyValueError::new_err(status.message()))?;
    Ok(PyBytes::new(py, &blurred))
}
