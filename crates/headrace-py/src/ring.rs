//! The ring of batch buffers: a buffer returns to the ring when the last array over it is freed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_core::engine::Pages;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::detach::guarded;

#[derive(Default)]
struct Free {
    blocks: Vec<Pages>,
    made: usize,
    out: usize,
    keep: usize,
    offered: bool,
    forks: usize,
}

fn lock(free: &Mutex<Free>) -> MutexGuard<'_, Free> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set of memory blocks of one size. `take` reuses a free block, or adds another to the ring.
///
/// Free blocks are left out of forks: the parent's page tables of them are neither copied nor made copy-on-write.
#[pyclass(frozen, module = "headrace._native")]
pub struct Ring {
    block_bytes: usize,
    free: Arc<Mutex<Free>>,
}

#[pymethods]
impl Ring {
    /// Make a ring of blocks of `block_bytes` bytes, which keeps at most `keep` free blocks.
    #[new]
    fn new(py: Python<'_>, block_bytes: usize, keep: usize) -> PyResult<Self> {
        guarded(py, || {
            if block_bytes > isize::MAX as usize - 4096 {
                return Err(PyValueError::new_err(format!(
                    "a batch of {block_bytes} bytes is too large"
                )));
            }
            let free = Free {
                keep,
                ..Free::default()
            };
            Ok(Ring {
                block_bytes: block_bytes.max(1),
                free: Arc::new(Mutex::new(free)),
            })
        })
    }

    /// Return a block as a writable memoryview of bytes. The block returns to the ring when all views over it are freed.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        guarded(py, || {
            let lease = {
                let mut free = lock(&self.free);
                free.offered = false;
                let block = match woken(&mut free) {
                    Some(block) => block,
                    None => {
                        let made = Pages::new(self.block_bytes).map_err(|_| {
                            PyMemoryError::new_err(format!(
                                "no memory for a batch of {} bytes",
                                self.block_bytes
                            ))
                        })?;
                        free.made += 1;
                        made
                    }
                };
                free.out += 1;
                Lease {
                    block: Some(block),
                    forks: free.forks,
                    free: Arc::clone(&self.free),
                }
            };
            PyMemoryView::from(Bound::new(py, lease)?.as_any())
        })
    }

    /// Keep up to `blocks` free blocks from now on, and never fewer than before.
    fn keep(&self, py: Python<'_>, blocks: usize) -> PyResult<()> {
        guarded(py, || {
            let mut free = lock(&self.free);
            free.keep = free.keep.max(blocks);
            Ok(())
        })
    }

    /// Let the system take the memory of free blocks when it runs short, until the next `take`.
    fn offer(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || {
            let mut free = lock(&self.free);
            free.offered = true;
            free.blocks.iter().for_each(Pages::offer);
            Ok(())
        })
    }

    /// Say that this process has forked. The child shares the blocks in use: each page of them would be copied when it is next
    /// written. When they are free they begin with new pages instead.
    fn forked(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || {
            lock(&self.free).forks += 1;
            Ok(())
        })
    }

    /// Give the free blocks back, and keep none from now on: those in use are freed by their last user.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || {
            let mut free = lock(&self.free);
            free.keep = 0;
            free.made -= free.blocks.len();
            free.blocks.clear();
            Ok(())
        })
    }

    /// Return (blocks made so far, blocks in use now).
    fn counts(&self) -> (usize, usize) {
        let free = lock(&self.free);
        (free.made, free.out)
    }
}

/// Return a free block that forked children inherit again; `None` if there is none.
fn woken(free: &mut Free) -> Option<Pages> {
    while let Some(block) = free.blocks.pop() {
        if block.wake() {
            return Some(block);
        }
        free.made -= 1;
    }
    None
}

/// A block in use: a writable buffer of bytes. Python sees only memoryviews of it.
#[pyclass(frozen)]
struct Lease {
    block: Option<Pages>,
    /// The number of forks when the block was taken.
    forks: usize,
    free: Arc<Mutex<Free>>,
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
            block.start().cast::<c_void>(),
            block.bytes() as ffi::Py_ssize_t,
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
        let mut free = lock(&self.free);
        free.out -= 1;
        if let Some(block) = self.block.take() {
            if free.blocks.len() < free.keep {
                if free.forks != self.forks {
                    block.renew();
                }
                block.rest();
                if free.offered {
                    block.offer();
                }
                free.blocks.push(block);
            } else {
                free.made -= 1;
            }
        }
    }
}
