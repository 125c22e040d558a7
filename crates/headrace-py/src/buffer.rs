//! The bytes of a Python buffer, readable while the interpreter lock is released.
#![allow(unsafe_code)]

use headrace_core::engine::ItemBytes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// The encoded bytes of an image, from any Python object with a buffer.
///
/// Parsers read some bytes twice, and rely on finding the same. A `bytes` object, and a memoryview of one, cannot change, so they
/// are read in place. The memory of any other object can be changed by other Python threads: it is copied before it is parsed.
pub struct ReadOnly {
    buffer: PyBuffer<u8>,
    unchanging: bool,
}

impl ReadOnly {
    /// Take the buffer of `object`. Raise TypeError if it has none, ValueError if its bytes are not contiguous.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("an image's bytes must be contiguous"));
        }
        let view_of_bytes = || {
            object.is_instance_of::<PyMemoryView>()
                && object
                    .getattr("obj")
                    .is_ok_and(|owner| owner.is_instance_of::<PyBytes>())
        };
        Ok(ReadOnly {
            unchanging: object.is_instance_of::<PyBytes>() || view_of_bytes(),
            buffer,
        })
    }
    /// Return the bytes; if they could change, a copy of them in `copy`.
    pub fn bytes<'a>(&'a self, copy: &'a mut Vec<u8>) -> &'a [u8] {
        let start = self.buffer.buf_ptr().cast::<u8>().cast_const();
        // SAFETY: the buffer is held as long as `self`, and `unchanging` is true for `bytes` alone.
        unsafe { lent_bytes(start, self.buffer.len_bytes(), self.unchanging, copy) }
    }
}

/// Return `length` bytes from `start` on: in place if they are `unchanging`, otherwise a copy of them in `copy`.
///
/// # Safety
/// The bytes are valid as long as the result, and never change if they are `unchanging`.
pub unsafe fn lent_bytes(
    start: *const u8,
    length: usize,
    unchanging: bool,
    copy: &mut Vec<u8>,
) -> &[u8] {
    if length == 0 {
        return &[];
    }
    if unchanging {
        // SAFETY: guaranteed by the caller.
        return unsafe { std::slice::from_raw_parts(start, length) };
    }
    copy.clear();
    copy.reserve(length);
    // SAFETY: the bytes are valid, `copy` has room for them, and both do not overlap. No reference to the caller's memory is made,
    // and each byte is read once, so it does not matter if another thread writes to it meanwhile.
    unsafe {
        std::ptr::copy_nonoverlapping(start, copy.as_mut_ptr(), length);
        copy.set_len(length);
    }
    copy
}

impl ItemBytes for ReadOnly {
    fn get<'a>(&'a self, copy: &'a mut Vec<u8>) -> &'a [u8] {
        self.bytes(copy)
    }
}
