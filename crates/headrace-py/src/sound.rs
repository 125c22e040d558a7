//! `sound_jpeg`: whether a JPEG may be decoded later, without an error that Pillow would have raised earlier. `jpeg_shape` and
//! `decode_sound_jpeg`: the whole image of a sound JPEG, in place of another library's.

use std::cell::RefCell;

use headrace_core::cpu::Extension;
use headrace_core::exif;
use headrace_core::geometry::Size;
use headrace_core::jpeg::header;
use headrace_core::jpeg::region::RegionDecoder;
use headrace_core::jpeg::sound::{sound, sound_pixels};
use headrace_core::jpeg::upsample::Channels;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::ReadOnly;
use crate::detach::{detached, guarded};

thread_local! {
    /// Scratch memory of the calling thread. No image data outlives its call.
    static DECODER: RefCell<RegionDecoder> = RefCell::default();
    static COPY: RefCell<Vec<u8>> = RefCell::default();
    /// The decoder of the calls that named an extension, which is the same in most of them.
    static NAMED: RefCell<Option<(Extension, RegionDecoder)>> = const { RefCell::new(None) };
}

/// Return the vector instructions of this name: "scalar", "avx2", "avx512" or "neon".
fn extension_named(name: &str) -> PyResult<Extension> {
    Extension::available()
        .into_iter()
        .find(|extension| format!("{extension:?}").eq_ignore_ascii_case(name))
        .ok_or_else(|| PyValueError::new_err(format!("this processor does not run {name:?}")))
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

/// Return what the header of a JPEG states: width, height, number of components (1 or 3), and the EXIF orientation, 1 to 8, or 0 if
/// readers of EXIF may differ about it. Return None for a file that is not decoded natively.
#[pyfunction]
pub fn jpeg_shape(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
) -> PyResult<Option<(u32, u32, usize, u32)>> {
    let data = ReadOnly::new(data)?;
    guarded(py, || {
        let mut copy = COPY.take();
        let bytes = data.bytes(&mut copy);
        let shape = header::parse(bytes).ok().and_then(|header| {
            let orientation = exif::undisputed_orientation(bytes);
            let (width, height) = (header.width, header.height);
            Size { width, height }.checked().ok()?;
            Some((
                width,
                height,
                header.count,
                orientation.map_or(0, |o| o as u32),
            ))
        });
        COPY.set(copy);
        Ok(shape)
    })
}

/// Decode a whole JPEG of `width` × `height` pixels into `out`, whose size is `height` × `width` × channels bytes. `channels`: "rgb",
/// "bgr" or "gray". `extension`: the vector instructions to use, for benchmarks (default: the best ones). Return false, with anything in
/// `out`, if the file is not sound or not decoded natively. Nobody else may read or write `out` during the call.
#[pyfunction]
#[pyo3(signature = (data, width, height, channels, out, extension = None))]
#[allow(unsafe_code)]
pub fn decode_sound_jpeg(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    width: u32,
    height: u32,
    channels: &str,
    out: PyBuffer<u8>,
    extension: Option<&str>,
) -> PyResult<bool> {
    let extension = extension.map(extension_named).transpose()?;
    let channels = match channels {
        "rgb" => Channels::Rgb,
        "bgr" => Channels::Bgr,
        "gray" => Channels::Gray,
        other => return Err(PyValueError::new_err(format!("channels {other:?}"))),
    };
    if out.readonly() || !out.is_c_contiguous() || out.len_bytes() == 0 {
        return Err(PyValueError::new_err(
            "out must be writable, contiguous and not empty",
        ));
    }
    let data = ReadOnly::new(data)?;
    // SAFETY: the buffer is writable and contiguous (checked), held during the call, and the caller's alone.
    let out =
        unsafe { std::slice::from_raw_parts_mut(out.buf_ptr().cast::<u8>(), out.len_bytes()) };
    detached(py, || {
        let mut copy = COPY.take();
        let bytes = data.bytes(&mut copy);
        let mut decoder = match extension {
            None => DECODER.take(),
            Some(extension) => match NAMED.take() {
                Some((other, decoder)) if other == extension => decoder,
                _ => RegionDecoder::with_extension(extension),
            },
        };
        let decoded = sound_pixels(&mut decoder, bytes, Size { width, height }, channels, out);
        match extension {
            None => DECODER.set(decoder),
            Some(extension) => NAMED.set(Some((extension, decoder))),
        }
        COPY.set(copy);
        decoded
    })
}
