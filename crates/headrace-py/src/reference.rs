//! libjpeg-turbo's decoder alone, as the reference of tests and benchmarks.

use std::cell::RefCell;

use headrace_core::error::Status;
use headrace_core::geometry::Rect;
use headrace_core::jpeg::turbo;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::ReadOnly;
use crate::detach::detached;

thread_local! {
    /// Scratch memory of the calling thread.
    static REFERENCE: RefCell<Vec<u8>> = RefCell::default();
}

/// Decode a region (x, y, w, h; None: everything) of a JPEG with libjpeg-turbo alone and return its RGB bytes; with
/// `keep=False` return no bytes, for timing. For tests and benchmarks. Raise ValueError with the reason.
#[pyfunction]
#[pyo3(signature = (data, region=None, keep=true))]
pub fn reference_decode<'py>(
    py: Python<'py>,
    data: Bound<'_, PyAny>,
    region: Option<(u32, u32, u32, u32)>,
    keep: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = ReadOnly::new(&data)?;
    let mut copy = Vec::new();
    let decode = |pixels: &mut Vec<u8>, bytes: &[u8]| {
        let size = turbo::size(bytes)?.checked()?;
        let (x, y, w, h) = region.unwrap_or((0, 0, size.width, size.height));
        let stride = turbo::region(bytes, Rect::new(x, y, w, h), pixels)?;
        Ok(stride * h as usize)
    };
    detached(py, || {
        REFERENCE.with_borrow_mut(|pixels| {
            let length = decode(pixels, bytes.bytes(&mut copy))?;
            Ok(if keep {
                pixels[..length].to_vec()
            } else {
                Vec::new()
            })
        })
    })?
    .map(|pixels| PyBytes::new(py, &pixels))
    .map_err(|status: Status| PyValueError::new_err(status.message()))
}
