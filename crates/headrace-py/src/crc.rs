//! Checksums of records.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::detach::{detached, guarded};

/// Return the CRC-32C (Castagnoli) of `data`. `crc` is the checksum of the bytes before `data` (default 0).
#[pyfunction]
#[pyo3(signature = (data, crc = 0))]
pub fn crc32c(py: Python<'_>, data: PyBackedBytes, crc: u32) -> PyResult<u32> {
    // For small data, releasing the interpreter lock costs more than the checksum itself (about 20 GB/s).
    if data.len() < 1 << 16 {
        return guarded(py, || Ok(headrace_core::crc::crc32c(&data, crc)));
    }
    detached(py, || headrace_core::crc::crc32c(&data, crc))
}
