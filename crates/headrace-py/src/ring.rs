//! The ring of batch buffers: a buffer returns to the ring when the last array over it is freed.
#![allow(unsafe_code)]

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::detach::guarded;

/// One page-aligned block of memory, freed when dropped.
struct Block {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access never writes through the block itself; Python synchronises access to the exported buffer.
unsafe impl Sync for Block {}

impl Block {
    /// Return a block of zeros; `None` if the system has no memory for it.
    fn new(layout: Layout) -> Option<Self> {
        // SAFETY: the layout's size is not zero (checked by `Ring::new`).
        let start = unsafe { alloc_zeroed(layout) };
        (!start.is_null()).then_some(Block { start, layout })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start, self.layout) }
    }
}

#[derive(Default)]
struct Free {
    blocks: Vec<Block>,
    made: usize,
    out: usize,
}

struct Shared {
    free: Mutex<Free>,
    keep: usize,
}

fn lock(shared: &Shared) -> MutexGuard<'_, Free> {
    shared.free.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set of memory blocks of one size. `take` reuses a free block, or adds another to the ring.
#[pyclass(frozen, module = "headrace._native")]
pub struct Ring {
    layout: Layout,
    shared: Arc<Shared>,
}

#[pymethods]
impl Ring {
    /// Make a ring of blocks of `block_bytes` bytes, which keeps at most `keep` free blocks.
    #[new]
    fn new(py: Python<'_>, block_bytes: usize, keep: usize) -> PyResult<Self> {
        guarded(py, || {
            let layout = Layout::from_size_align(block_bytes.max(1), 4096).map_err(|_| {
                PyValueError::new_err(format!("a batch of {block_bytes} bytes is too large"))
            })?;
            Ok(Ring {
                layout,
                shared: Arc::new(Shared {
                    free: Mutex::default(),
                    keep,
                }),
            })
        })
    }

    /// Return a block as a writable memoryview of bytes. The block returns to the ring when all views over it are freed.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        guarded(py, || {
            let lease = {
                let mut free = lock(&self.shared);
                let block = match free.blocks.pop() {
                    Some(block) => block,
                    None => {
                        let made = Block::new(self.layout).ok_or_else(|| {
                            let bytes = self.layout.size();
                            PyMemoryError::new_err(format!(
                                "no memory for a batch of {bytes} bytes"
                            ))
                        })?;
                        free.made += 1;
                        made
                    }
                };
                free.out += 1;
                Lease {
                    block: Some(block),
                    shared: Arc::clone(&self.shared),
                }
            };
            PyMemoryView::from(Bound::new(py, lease)?.as_any())
        })
    }

    /// Return (blocks made so far, blocks in use now).
    fn counts(&self) -> (usize, usize) {
        let free = lock(&self.shared);
        (free.made, free.out)
    }
}

/// A block in use: a writable buffer of bytes. Python sees only memoryviews of it.
#[pyclass(frozen)]
struct Lease {
    block: Option<Block>,
    shared: Arc<Shared>,
}

#[pymethods]
impl Lease {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let Some(block) = &this.block else {
            return Err(PyValueError::new_err("the block has been returned"));
        };
        let (start, size) = (
            block.start.cast::<c_void>(),
            block.layout.size() as ffi::Py_ssize_t,
        );
        // SAFETY: `view` comes from the interpreter; the memory lives as long as the lease, to which the view holds a
        // reference (`obj`), so it cannot return to the ring while a buffer is out.
        let result = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 0, flags) };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = lock(&self.shared);
        free.out -= 1;
        if let Some(block) = self.block.take() {
            if free.blocks.len() < self.shared.keep {
                free.blocks.push(block);
            } else {
                free.made -= 1;
            }
        }
    }
}
