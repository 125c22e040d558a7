//! The plan of a batch for the CUDA decoder.
#![allow(unsafe_code)]

use headrace_core::cuda_plan::{chunk, record_bytes, Ask, Plan};
use headrace_core::geometry::Rect;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::ReadOnly;
use crate::detach::detached;
use crate::items::{rect, size, window, Corners};

/// First record, images, blocks, bytes between the passes, words of weights, CUDA blocks of the five kernels.
type GroupTuple = (u32, u32, u32, u32, u32, [u32; 5]);

/// What the CUDA decoder does for a batch: headers are read and restart segments are found, nothing is decoded.
#[pyclass(frozen, module = "headrace._native")]
pub struct CudaPlan {
    images: Vec<ReadOnly>,
    plan: Plan,
}

#[pymethods]
impl CudaPlan {
    /// Plan the decoding of `images`. `boxes`, `sizes` and `windows` as for `decode_into`. Groups of images that are decoded together
    /// need at most `scratch_bytes` of device memory.
    #[new]
    #[pyo3(signature = (images, height, width, boxes, flips, sizes, windows, scratch_bytes, threads))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        images: Vec<Bound<'_, PyAny>>,
        height: u32,
        width: u32,
        boxes: Option<Vec<Corners>>,
        flips: Option<Vec<bool>>,
        sizes: Option<Vec<(i64, i64)>>,
        windows: Option<Vec<Corners>>,
        scratch_bytes: u64,
        threads: usize,
    ) -> PyResult<Self> {
        let given = [
            boxes.as_ref().map(Vec::len),
            flips.as_ref().map(Vec::len),
            sizes.as_ref().map(Vec::len),
            windows.as_ref().map(Vec::len),
        ];
        if given.into_iter().flatten().any(|n| n != images.len()) {
            return Err(PyValueError::new_err(
                "one box, flip, size and window for each image",
            ));
        }
        let mut asks = Vec::with_capacity(images.len());
        for number in 0..images.len() {
            let part = match &windows {
                Some(windows) => window(windows[number], number)?,
                None => Rect::new(0, 0, width, height),
            };
            if (part.w, part.h) != (width, height) {
                return Err(PyValueError::new_err(format!(
                    "item {number}: {}×{} pixels, but the batch has {width}×{height}",
                    part.w, part.h
                )));
            }
            asks.push(Ask {
                box_: boxes.as_ref().map(|boxes| rect(boxes[number])),
                size: sizes
                    .as_ref()
                    .map_or((width, height), |sizes| size(sizes[number])),
                window: part,
                flip: flips.as_ref().is_some_and(|flips| flips[number]),
            });
        }
        let images = images
            .iter()
            .map(ReadOnly::new)
            .collect::<PyResult<Vec<_>>>()?;
        let plan = detached(py, || Plan::new(&images, &asks, scratch_bytes, threads))?;
        Ok(CudaPlan { images, plan })
    }

    /// The number of CUDA blocks' pieces (segments, blocks, weights, pixels) and the sizes of records that the source must have.
    #[staticmethod]
    fn layout() -> ([u32; 4], [usize; 3]) {
        let pieces = [
            chunk::SEGMENTS,
            chunk::BLOCKS,
            chunk::WEIGHTS,
            chunk::PIXELS,
        ];
        (pieces, record_bytes())
    }

    /// 0 for each image that the device decodes, otherwise the number of the reason.
    #[getter]
    fn refusals(&self) -> Vec<u8> {
        self.plan.refusals()
    }

    /// Size of the buffer in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.plan.size()
    }

    /// The groups of images that are decoded together.
    #[getter]
    fn groups(&self) -> Vec<GroupTuple> {
        let groups = self.plan.groups().iter();
        groups
            .map(|g| (g.first, g.images, g.blocks, g.middle, g.table, g.chunks))
            .collect()
    }

    /// Write the buffer. Nobody else may read or write `out` during the call.
    fn fill(&self, py: Python<'_>, out: PyBuffer<u8>, threads: usize) -> PyResult<()> {
        if out.readonly() || !out.is_c_contiguous() || out.len_bytes() != self.plan.size() {
            return Err(PyValueError::new_err(format!(
                "out must be {} writable bytes",
                self.plan.size()
            )));
        }
        if self.plan.size() == 0 {
            return Ok(());
        }
        // SAFETY: the buffer is writable, of this size, and held until the end of this call; the caller lends it.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(out.buf_ptr().cast::<u8>(), self.plan.size()) };
        if detached(py, || self.plan.fill(&self.images, bytes, threads))? {
            Ok(())
        } else {
            Err(PyValueError::new_err("the plan does not fit its images"))
        }
    }
}
