//! Colour operations on pixels for comparisons with other libraries, and the weights of torch's blurs.

use std::time::Duration;

use headrace_core::colour::torch_blur::{self, BlurKey};
use headrace_core::colour::{ColourOp, Colourist};
use headrace_core::cpu::Extension;
use headrace_core::error::Status;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::detach::{detached, guarded};

/// Return RGB pixels, in rows of `width` pixels, blurred as Pillow's `GaussianBlur(radius)` does. Raise ValueError for bytes that
/// are not whole rows, and for a radius below 0 or above 1000.
#[pyfunction]
pub fn pillow_blur<'py>(
    py: Python<'py>,
    pixels: &[u8],
    width: u32,
    radius: f32,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut blurred = pixels.to_vec();
    detached(py, || {
        Colourist::default().apply(ColourOp::PillowBlur(radius), &mut blurred, width)
    })?
    .map_err(|_: Status| {
        PyValueError::new_err("pixels must be whole rows, and radius from 0 to 1000")
    })?;
    Ok(PyBytes::new(py, &blurred))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
        .collect()
}

/// Keep torch's weights of a blur, float32 row by row, for `torch_blur` operations. `kernel`: width and height in pixels, odd.
/// `version`: 1 for `torchvision.transforms`, 2 for its `v2`. Raise ValueError if the number of weights does not fit.
#[pyfunction]
pub fn give_blur_weights(
    py: Python<'_>,
    kernel: (u16, u16),
    sigma: f32,
    version: u8,
    weights: &[u8],
) -> PyResult<()> {
    let key = BlurKey {
        kernel,
        sigma: sigma.to_bits(),
        version,
    };
    if detached(py, || torch_blur::give(key, &floats(weights)))? {
        Ok(())
    } else {
        Err(PyValueError::new_err("another number of weights"))
    }
}

/// Begin or end the service of weights: native threads wait for those that they want while it lasts.
#[pyfunction]
pub fn serve_blur_weights(py: Python<'_>, on: bool) -> PyResult<()> {
    detached(py, || torch_blur::serve(on))
}

/// Kernel width, kernel height, sigma, version of torchvision.
type Blur = (u16, u16, f32, u8);

/// Wait until native threads want the weights of blurs, at most a second. Return (kernel width, kernel height, sigma, version of
/// torchvision) of each, None if the service has ended.
#[pyfunction]
pub fn wanted_blur_weights(py: Python<'_>) -> PyResult<Option<Vec<Blur>>> {
    detached(py, || {
        let keys = torch_blur::wanted(Duration::from_secs(1))?;
        let described = |key: BlurKey| {
            (
                key.kernel.0,
                key.kernel.1,
                f32::from_bits(key.sigma),
                key.version,
            )
        };
        Some(keys.into_iter().map(described).collect())
    })
}

/// Take the lock of the weights before this thread forks. `release_blur_weights` must follow, in the parent and in the child.
#[pyfunction]
pub fn hold_blur_weights(py: Python<'_>) -> PyResult<()> {
    guarded(py, || {
        torch_blur::hold();
        Ok(())
    })
}

/// Release the lock that `hold_blur_weights` took.
#[pyfunction]
pub fn release_blur_weights(py: Python<'_>) -> PyResult<()> {
    guarded(py, || {
        torch_blur::release();
        Ok(())
    })
}

/// Return the sums of a `torch_blur` of RGB pixels, in rows of `width` pixels, before they are rounded: float32, one for each
/// value. Raise ValueError for bytes that are not whole rows, and for a kernel that does not fit the image or the weights.
#[pyfunction]
pub fn torch_blur_sums<'py>(
    py: Python<'py>,
    pixels: &[u8],
    width: usize,
    kernel: (usize, usize),
    weights: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let weights = floats(weights);
    let odd = kernel.0 % 2 == 1 && kernel.1 % 2 == 1;
    let row = width
        .checked_mul(3)
        .filter(|&row| row > 0 && pixels.len() % row == 0);
    let fits = |row: usize| kernel.0 / 2 < width && kernel.1 / 2 < pixels.len() / row;
    if !row.is_some_and(fits) || !odd || kernel.0.checked_mul(kernel.1) != Some(weights.len()) {
        return Err(PyValueError::new_err(
            "pixels, kernel and weights do not fit",
        ));
    }
    let sums = detached(py, || {
        let mut sums = Vec::new();
        let extension = Extension::best();
        torch_blur::Scratch::default().sums(extension, pixels, width, kernel, &weights, &mut sums);
        sums
    })?;
    let bytes: Vec<u8> = sums.into_iter().flat_map(f32::to_ne_bytes).collect();
    Ok(PyBytes::new(py, &bytes))
}
