//! Encoding of single JPEGs as the packer does it: from pixels, or from the coefficients of another JPEG.

use headrace_core::exif;
use headrace_core::geometry::Size;
use headrace_core::jpeg::requantise::{requantise, RequantiseOptions};
use headrace_core::pack::{encode_pixels, EncodeOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::detach::detached;

/// Encode uint8 RGB pixels [height, width, 3] as the packer does: baseline, 4:2:0 (`gray`: one component, of the first channel),
/// with restart markers about every `tile_px` pixels (0: none), and the orientation of the file `turned_as`.
#[pyfunction]
#[pyo3(signature = (pixels, width, height, quality, tile_px, gray = false, turned_as = None))]
#[allow(clippy::too_many_arguments)]
pub fn encode_jpeg<'py>(
    py: Python<'py>,
    pixels: PyBackedBytes,
    width: u32,
    height: u32,
    quality: u8,
    tile_px: u32,
    gray: bool,
    turned_as: Option<PyBackedBytes>,
) -> PyResult<Bound<'py, PyBytes>> {
    if pixels.len() as u64 != u64::from(width) * u64::from(height) * 3
        || !(1..=100).contains(&quality)
    {
        return Err(PyValueError::new_err(
            "pixels must be [height, width, 3] uint8, quality 1 to 100",
        ));
    }
    let mut out = Vec::new();
    detached(py, || {
        let how = EncodeOptions {
            gray,
            quality,
            tile_px: (tile_px > 0).then_some(tile_px),
            orientation: turned_as.map_or_else(Default::default, |file| exif::orientation(&file)),
        };
        encode_pixels(&pixels, Size { width, height }, &how, &mut out)
    })?
    .map_err(|status| PyValueError::new_err(status.message()))?;
    Ok(PyBytes::new(py, &out))
}

/// Return the JPEG `data` at a lower quality, computed from its coefficients, with restart markers about every `tile_px` pixels
/// (0: none) and its EXIF orientation. Return None if the file must be decoded to pixels for that.
#[pyfunction]
pub fn requantise_jpeg<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    quality: u8,
    tile_px: u32,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    if !(1..=100).contains(&quality) {
        return Err(PyValueError::new_err("quality must be 1 to 100"));
    }
    let mut out = Vec::new();
    let done = detached(py, || {
        let options = RequantiseOptions {
            quality,
            tile_px: (tile_px > 0).then_some(tile_px),
            orientation: exif::orientation(&data),
        };
        requantise(&data, &options, &mut out)
    })?;
    Ok(done.is_ok().then(|| PyBytes::new(py, &out)))
}
