//! The status numbers of images, and the exception for them.

use headrace_core::error::Status;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Return name and message of each status number, in order.
#[pyfunction]
pub fn status_names() -> Vec<(String, &'static str)> {
    Status::ALL
        .iter()
        .map(|status| (format!("{status:?}"), status.message()))
        .collect()
}

/// Return the package's exception for a status. Its class is defined in Python, because it pickles and has fields.
pub fn decode_error(py: Python<'_>, status: Status) -> PyErr {
    let error = || -> PyResult<PyErr> {
        let kind = py.import("headrace.errors")?.getattr("DecodeError")?;
        let fields = PyDict::new(py);
        fields.set_item("status", status as i32)?;
        Ok(PyErr::from_value(
            kind.call((status.message(),), Some(&fields))?,
        ))
    };
    error().unwrap_or_else(|failure| failure)
}
