//! `decode_into`: it decodes a batch in one call and keeps no state between calls.
#![allow(unsafe_code)]

use std::sync::Arc;

use headrace_core::engine::{fill_items, BatchMemory, Group, Item, Items, Source, Target};
use headrace_core::geometry::Rect;
use headrace_core::resample::PassOrder;
use headrace_core::store::{Layout, Store, Values};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::ReadOnly;
use crate::detach::detached;
use crate::index::Index;
use crate::items::{rect, size, window, Corners};
use crate::values::filter;

/// Reproduce the resize of this major version of Pillow from now on. Version 13 changed the order of the two passes. Threads that
/// have already resized keep their version.
#[pyfunction]
pub fn follow_pillow(major: u32) {
    let order = if major < 13 {
        PassOrder::HorizontalFirst
    } else {
        PassOrder::Pillow13
    };
    order.make_default();
}

/// Decode, crop, resize (antialiased, as Pillow) and flip each image into `out`, uint8 [N, H, W, 3]. `boxes` are (x, y, w, h) in
/// image pixels, None for the whole image. `sizes` are (width, height) of each resize, None for those of `out`; `windows` are the
/// part (x, y, w, h) of each resized image that is computed, None for all of it. With `exif`, images are turned upright first, and
/// boxes are in the upright image. Return a status per slot, 0 = ok; a failed slot is black. Nobody else may read or write `out`
/// during the call.
#[pyfunction]
#[pyo3(signature = (images, out, height, width, boxes, flips, threads, resample, exif = false, indexes = None, dct_scale = false, sizes = None, windows = None, scale_depth = false))]
#[allow(clippy::too_many_arguments)]
pub fn decode_into(
    py: Python<'_>,
    images: Vec<Bound<'_, PyAny>>,
    out: PyBuffer<u8>,
    height: u32,
    width: u32,
    boxes: Option<Vec<Corners>>,
    flips: Option<Vec<bool>>,
    threads: usize,
    resample: &str,
    exif: bool,
    indexes: Option<Vec<Option<PyRef<'_, Index>>>>,
    dct_scale: bool,
    sizes: Option<Vec<(i64, i64)>>,
    windows: Option<Vec<Corners>>,
    scale_depth: bool,
) -> PyResult<Vec<i32>> {
    let count = images.len();
    let slot_bytes = (height as usize * width as usize)
        .checked_mul(3)
        .unwrap_or(0);
    if slot_bytes == 0
        || out.readonly()
        || !out.is_c_contiguous()
        || Some(out.len_bytes()) != slot_bytes.checked_mul(count)
    {
        return Err(PyValueError::new_err(
            "out must be a writable C-contiguous uint8 array [N, H, W, 3]",
        ));
    }
    let given = [
        boxes.as_ref().map(Vec::len),
        flips.as_ref().map(Vec::len),
        indexes.as_ref().map(Vec::len),
        sizes.as_ref().map(Vec::len),
        windows.as_ref().map(Vec::len),
    ];
    if given.into_iter().flatten().any(|given| given != count) {
        return Err(PyValueError::new_err(
            "one box, flip, index, size and window for each image",
        ));
    }
    let filter = filter(resample)?;
    let whole = Rect::new(0, 0, width, height);
    let mut groups = Vec::with_capacity(count);
    let mut items = Vec::with_capacity(count);
    for (number, image) in images.iter().enumerate() {
        groups.push(Group {
            source: Source::Memory(Box::new(ReadOnly::new(image)?)),
            count: 1,
        });
        let window = match &windows {
            Some(windows) => window(windows[number], number)?,
            None => whole,
        };
        let size = sizes
            .as_ref()
            .map_or((width, height), |sizes| size(sizes[number]));
        // Without windows, a size other than that of `out` is refused below, because its window is the whole of `out`.
        if (window.w, window.h) != (width, height) || (windows.is_none() && size != (width, height))
        {
            return Err(PyValueError::new_err(format!(
                "item {number}: {}×{} pixels, but out has {width}×{height}",
                if windows.is_none() { size.0 } else { window.w },
                if windows.is_none() { size.1 } else { window.h },
            )));
        }
        items.push(Item {
            box_: boxes.as_ref().map(|boxes| rect(boxes[number])),
            size: Some(size),
            filter,
            window: Some(window),
            flip_x: flips.as_ref().is_some_and(|flips| flips[number]),
            flip_y: false,
            index: indexes
                .as_ref()
                .and_then(|known| known[number].as_ref())
                .map(|known| Arc::clone(&known.inner)),
            place: (0, number * slot_bytes),
        });
    }
    let store = Arc::new(Store {
        layout: Layout::Hwc,
        values: Values::U8,
    });
    // SAFETY: `out` has the right size, is writable and held until the end of this call.
    let memory = unsafe { BatchMemory::new(out.buf_ptr().cast(), slot_bytes, count) };
    let mut batch =
        Items::new(groups, items, vec![Target { store, memory }]).map_err(PyValueError::new_err)?;
    (batch.exif, batch.dct_scale) = (exif, dct_scale);
    batch.scale_depth = scale_depth;
    detached(py, || fill_items(batch, threads))
}
