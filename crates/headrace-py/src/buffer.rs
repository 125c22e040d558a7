//! Read the bytes of a Python buffer while the interpreter lock is released.
#![allow(unsafe_code)]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The bytes of a Python buffer, readable without the interpreter lock.
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
    /// The bytes of `buffer`, which the caller holds for as long as this value lives.
    pub fn new(buffer: &PyBuffer<u8>) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("an image's bytes must be contiguous"));
        }
        Ok(ReadOnly {
            start: buffer.buf_ptr().cast(),
            length: buffer.len_bytes(),
        })
    }

    /// The bytes as a slice.
    pub fn slice(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the buffer that gave the pointer is held by the caller for as long as this value is used; that nobody
        // writes to it meanwhile is the caller's promise, as with every reader of a Python buffer.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}
