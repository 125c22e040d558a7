//! `sound_jpeg`: whether a JPEG may be decoded later, without an error that Pillow would have raised earlier.

use std::cell::RefCell;

use headrace_core::jpeg::region::RegionDecoder;
use headrace_core::jpeg::sound::sound;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::guarded;

thread_local! {
    /// Scratch memory of the calling thread. No image data outlives its call.
    static DECODER: RefCell<RegionDecoder> = RefCell::default();
}

/// Return width, height, number of components and offset behind the end marker of a JPEG that decodes without an error, natively and
/// by libjpeg-turbo: one sequential scan, and the end marker right behind it. Return None for every other file. The interpreter
/// lock is held: the call is shorter than waiting for it.
#[pyfunction]
pub fn sound_jpeg(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
) -> PyResult<Option<(u32, u32, usize, usize)>> {
    guarded(py, || {
        let facts = DECODER.with(|decoder| {
            // A panic may leave any state in the scratch memory, which is then not put back.
            let mut own = decoder.take();
            let facts = sound(&mut own, data.as_bytes());
            decoder.replace(own);
            facts
        });
        Ok(facts.map(|facts| {
            let size = facts.size;
            (size.width, size.height, facts.components, facts.end)
        }))
    })
}
