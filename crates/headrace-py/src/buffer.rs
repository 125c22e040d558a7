//! The bytes of a Python buffer, readable while the interpreter lock is released.
#![allow(unsafe_code)]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The address and length of a Python buffer.
#[derive(Clone, Copy)]
pub struct ReadOnly {
    start: *const u8,
    length: usize,
}

// SAFETY: plain memory, read only; see `slice`.
unsafe impl Send for ReadOnly {}
// SAFETY: as above.
unsafe impl Sync for ReadOnly {}

impl ReadOnly {
    /// Take the bytes of `buffer`, which the caller must keep while this value is used.
    pub fn new(buffer: &PyBuffer<u8>) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("an image's bytes must be contiguous"));
        }
        Ok(ReadOnly {
            start: buffer.buf_ptr().cast(),
            length: buffer.len_bytes(),
        })
    }

    /// Return the bytes as a slice.
    pub fn slice(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the caller keeps the buffer while this value is used, and guarantees that nobody writes to it meanwhile, as
        // every reader of a Python buffer must.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}
