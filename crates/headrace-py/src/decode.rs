//! `decode_into`: it decodes a batch in one call and keeps no state between calls.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::engine::BatchMemory;
use headrace_core::error::{or_internal, Result, Status};
use headrace_core::geometry::{Rect, Scale};
use headrace_core::jpeg::index;
use headrace_core::resample::{Filter, PassOrder, Resampler, ResizeSpec};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::ReadOnly;
use crate::detach::detached;
use crate::index::Index;
use crate::program::filter;

thread_local! {
    /// Scratch memory of the calling thread, so that repeated calls do not allocate. No image data outlives its call.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    decoder: Decoder,
    resampler: Resampler,
    /// The image, if its memory could change.
    copy: Vec<u8>,
}

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

struct Request {
    data: ReadOnly,
    box_: Option<Rect>,
    flip: bool,
    index: Option<Arc<index::Index>>,
}

/// The options that all images of a call share.
#[derive(Clone, Copy)]
struct Output {
    /// Width and height.
    size: (u32, u32),
    filter: Filter,
    exif: bool,
    dct_scale: bool,
}

/// Decode, crop, resize (antialiased, as Pillow) and flip each image into `out`, uint8 [N, H, W, 3]. `boxes` are (x, y, w, h) in
/// image pixels, None for the whole image. With `exif`, images are turned upright first, and boxes are in the upright image.
/// Return a status per slot, 0 = ok; a failed slot is black. Nobody else may read or write `out` during the call.
#[pyfunction]
#[pyo3(signature = (images, out, height, width, boxes, flips, threads, resample, exif = false, indexes = None, dct_scale = false))]
#[allow(clippy::too_many_arguments)]
pub fn decode_into(
    py: Python<'_>,
    images: Vec<Bound<'_, PyAny>>,
    out: PyBuffer<u8>,
    height: u32,
    width: u32,
    boxes: Option<Vec<(i64, i64, i64, i64)>>,
    flips: Option<Vec<bool>>,
    threads: usize,
    resample: &str,
    exif: bool,
    indexes: Option<Vec<Option<PyRef<'_, Index>>>>,
    dct_scale: bool,
) -> PyResult<Vec<i32>> {
    let count = images.len();
    let slot_bytes = height as usize * width as usize * 3;
    if slot_bytes == 0
        || out.readonly()
        || !out.is_c_contiguous()
        || out.len_bytes() != count * slot_bytes
    {
        return Err(PyValueError::new_err(
            "out must be a writable C-contiguous uint8 array [N, H, W, 3]",
        ));
    }
    if boxes.as_ref().is_some_and(|boxes| boxes.len() != count)
        || flips.as_ref().is_some_and(|f| f.len() != count)
        || indexes.as_ref().is_some_and(|known| known.len() != count)
    {
        return Err(PyValueError::new_err(
            "one box, one flip and one index for each image",
        ));
    }
    let filter = filter(resample)?;
    let requests = images
        .iter()
        .enumerate()
        .map(|(number, image)| {
            Ok(Request {
                data: ReadOnly::new(image)?,
                box_: boxes.as_ref().map(|boxes| rect(boxes[number])),
                flip: flips.as_ref().is_some_and(|flips| flips[number]),
                index: indexes
                    .as_ref()
                    .and_then(|known| known[number].as_ref())
                    .map(|known| Arc::clone(&known.inner)),
            })
        })
        .collect::<PyResult<Vec<_>>>()?;
    // SAFETY: `out` has the right size, is writable and held until the end of this call.
    let memory = unsafe { BatchMemory::new(out.buf_ptr().cast(), slot_bytes, count) };
    detached(py, || {
        let output = Output {
            size: (width, height),
            filter,
            exif,
            dct_scale,
        };
        fill(&requests, memory, output, threads)
    })
}

/// Convert a box. Values that are negative or exceed 32 bits give a box that fits no image.
fn rect((x, y, w, h): (i64, i64, i64, i64)) -> Rect {
    let side = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    Rect::new(side(x), side(y), side(w), side(h))
}

fn fill(requests: &[Request], memory: BatchMemory, output: Output, threads: usize) -> Vec<i32> {
    let next = AtomicUsize::new(0);
    let statuses = Mutex::new(vec![Status::Internal as i32; requests.len()]);
    let work = || {
        let mut own = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = requests.get(number) else {
                break;
            };
            // SAFETY: each number is claimed once, so this is the only slice of its slot.
            let slot = unsafe { memory.slot(number) };
            // A panic may leave any state in the scratch memory.
            let status = SCRATCH.with_borrow_mut(|scratch| {
                or_internal(|| one(scratch, request, slot, output)).inspect_err(|status| {
                    if *status == Status::Internal {
                        *scratch = Scratch::default();
                    }
                })
            });
            if status.is_err() {
                slot.fill(0);
            }
            own.push((number, status.err().unwrap_or(Status::Ok) as i32));
        }
        let mut statuses = statuses
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (number, status) in own {
            statuses[number] = status;
        }
    };
    let helpers = threads.clamp(1, requests.len().max(1)) - 1;
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(work);
        }
        work();
    });
    statuses
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn one(scratch: &mut Scratch, request: &Request, slot: &mut [u8], output: Output) -> Result<()> {
    let Output {
        size: (width, height),
        filter,
        exif,
        dct_scale,
    } = output;
    let Scratch {
        decoder,
        resampler,
        copy,
    } = scratch;
    decoder.set_exif(exif);
    let opened = decoder.open(request.data.bytes(copy))?;
    let size = opened.size();
    let box_ = request
        .box_
        .unwrap_or(Rect::new(0, 0, size.width, size.height));
    if !box_.fits(size.width, size.height) {
        return Err(Status::BadBox);
    }
    // Only JPEGs can be decoded at a reduced scale.
    let scale = if dct_scale && opened.is_jpeg() {
        Scale::for_target((box_.w, box_.h), (width, height))
    } else {
        Scale::Full
    };
    let small = size.scaled(scale);
    let box_ = box_.reduced(scale.divisor(), small.width, small.height);
    let spec = ResizeSpec {
        box_,
        grid_w: width,
        grid_h: height,
        window: Rect::new(0, 0, width, height),
        filter,
        flip_x: request.flip,
        flip_y: false,
    };
    let options = DecodeOptions {
        index: request.index.as_deref(),
        scale,
    };
    let view = decoder.decode(&opened, spec.needed(), &options, None)?;
    resampler.resize_into(view, &spec, slot, width as usize * 3)
}
