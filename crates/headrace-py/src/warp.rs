//! Pillow's affine transform of pixels that are there already, for lazy images.

use std::cell::RefCell;

use headrace_core::error::Status;
use headrace_core::geometry::{Rect, RgbView};
use headrace_core::limits::max_pixels;
use headrace_core::resample::Filter;
use headrace_core::warp::{Affine, Interpolation, WarpSpec, Warper};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::detached;

thread_local! {
    static WARPER: RefCell<Warper> = RefCell::default();
}

/// Return the result of Pillow's `transform(out, AFFINE, map, resample, fillcolor=fill)`, RGB bytes behind the bytes `head`.
///
/// `pixels`: bytes that end in the RGB pixels of the image, whose `size` is (width, height). `out`: (width, height) of the result.
/// `map`: Pillow's six numbers. `resample`: "nearest", "bilinear" or "bicubic". `fill`: colour of output pixels whose centre is
/// outside the image. Raise ValueError for sizes without pixels, images beyond the pixel limit, too few bytes and numbers that are
/// not finite.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the arguments of Pillow's method
pub fn pillow_affine<'py>(
    py: Python<'py>,
    pixels: &[u8],
    size: (u32, u32),
    out: (u32, u32),
    map: [f64; 6],
    resample: &str,
    fill: [u8; 3],
    head: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let interpolation = Interpolation::named(resample).ok_or_else(|| {
        PyValueError::new_err(format!("no filter {resample:?} of Pillow's transform"))
    })?;
    let spec = WarpSpec {
        box_: Rect::new(0, 0, size.0, size.1),
        grid_w: size.0,
        grid_h: size.1,
        filter: Filter::Bilinear,
        map: Affine::new(map),
        width: out.0,
        height: out.1,
        interpolation,
        fill,
        antialias: false,
        window: Rect::new(0, 0, out.0, out.1),
        flip_x: false,
        flip_y: false,
    };
    detached(py, || transformed(pixels, &spec, head))?
        .map(|bytes| PyBytes::new(py, &bytes))
        .map_err(|status| PyValueError::new_err(status.message()))
}

/// Return `head` and the pixels of a sampling of the image at the end of `pixels`.
fn transformed(pixels: &[u8], spec: &WarpSpec, head: &[u8]) -> Result<Vec<u8>, Status> {
    let bytes = |width: u32, height: u32| {
        let pixels = u64::from(width) * u64::from(height);
        let small = pixels <= max_pixels();
        small.then_some(3 * pixels as usize).ok_or(Status::TooLarge)
    };
    let whole = bytes(spec.box_.w, spec.box_.h)?;
    let start = pixels.len().checked_sub(whole).ok_or(Status::BadBox)?;
    let stride = spec.width as usize * 3;
    let size = head.len() + bytes(spec.width, spec.height)?;
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| Status::TooLarge)?;
    out.extend_from_slice(head);
    out.resize(size, 0);
    let view = RgbView {
        pixels: &pixels[start..],
        stride: spec.box_.w as usize * 3,
        region: spec.box_,
    };
    WARPER.with_borrow_mut(|warper| {
        warper.warp_into(view, spec, &[], &mut out[head.len()..], stride)
    })?;
    Ok(out)
}
