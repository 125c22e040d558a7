//! Headers of encoded images: size and encoding. No pixel is decoded.

use headrace_core::decode::Decoder;
use headrace_core::jpeg::facts;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::buffer::ReadOnly;
use crate::detach::{detached, guarded};

/// Return width and height of an encoded image, as stored. Raise ValueError with the reason.
#[pyfunction]
pub fn image_size(py: Python<'_>, data: Bound<'_, PyAny>) -> PyResult<(u32, u32)> {
    let bytes = ReadOnly::new(&data)?;
    detached(py, || Decoder::new().size(bytes.bytes(&mut Vec::new())))?
        .map(|size| (size.width, size.height))
        .map_err(|status| PyValueError::new_err(status.message()))
}

/// Return the EXIF orientation of an image, 1 to 8, where Pillow opens, converts and turns it quietly: without a warning, and without an
/// error over its metadata. Return None for every other file, and for those that are not decoded natively. `upright`: Pillow turns it,
/// which takes more of EXIF. The interpreter lock is held: the call is shorter than waiting for it.
#[pyfunction]
#[pyo3(signature = (data, upright = true))]
pub fn quiet_orientation(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    upright: bool,
) -> PyResult<Option<u32>> {
    guarded(py, || {
        let mut decoder = Decoder::new();
        decoder.set_exif(upright);
        decoder.set_quiet(true);
        let opened = decoder.open(data.as_bytes()).ok();
        Ok(opened.map(|opened| opened.orientation() as u32))
    })
}

/// Width, height, components, bits per sample, subsampling, process, restart interval, IJG quality.
type JpegFacts = (u32, u32, u8, u8, String, &'static str, u16, Option<u8>);

/// Return what the header of a JPEG states: width, height, components, bits per sample, subsampling, process, restart interval and
/// IJG quality (None without a luminance table of 8 bits). Raise ValueError with the reason if the file is damaged or truncated.
#[pyfunction]
pub fn jpeg_facts(py: Python<'_>, data: PyBackedBytes) -> PyResult<JpegFacts> {
    let facts = detached(py, || facts::jpeg_facts(&data))?
        .map_err(|fault| PyValueError::new_err(fault.to_string()))?;
    Ok((
        facts.width,
        facts.height,
        facts.components,
        facts.bits,
        facts.subsampling(&data),
        facts.process.name(),
        facts.restart_interval,
        facts.quality,
    ))
}
