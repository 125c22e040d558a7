//! The conversion of uint8 pixels to the layout and dtype of a batch.

use std::sync::Arc;

use headrace_core::store::{self, Layout, Values};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::detach::guarded;

/// Layout and values of the output.
#[pyclass(frozen, module = "headrace._native")]
pub struct Store {
    pub inner: Arc<store::Store>,
}

#[pymethods]
impl Store {
    /// Make the conversion to a `layout`, "hwc" or "chw", and dtype. `table` is None for unchanged uint8, otherwise 3 × 256
    /// float32, or uint16 bit patterns of 16-bit floats.
    #[new]
    #[pyo3(signature = (layout, table=None))]
    fn new(py: Python<'_>, layout: &str, table: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        guarded(py, || {
            let layout = match layout {
                "hwc" => Layout::Hwc,
                "chw" => Layout::Chw,
                _ => {
                    return Err(PyValueError::new_err(format!(
                        "layout {layout:?}; there are hwc and chw"
                    )))
                }
            };
            let values = match table {
                None => Values::U8,
                Some(table) => {
                    if let Ok(buffer) = PyBuffer::<f32>::get(&table) {
                        Values::F32(rows(&buffer.to_vec(py)?)?)
                    } else {
                        Values::Bits16(rows(&PyBuffer::<u16>::get(&table)?.to_vec(py)?)?)
                    }
                }
            };
            Ok(Store {
                inner: Arc::new(store::Store { layout, values }),
            })
        })
    }
}

/// Return the table of 256 values for each of three channels.
fn rows<T: Copy + Default>(values: &[T]) -> PyResult<Box<[[T; 256]; 3]>> {
    if values.len() != 3 * 256 {
        return Err(PyValueError::new_err(format!(
            "a table of {} values, not 3 × 256",
            values.len()
        )));
    }
    let mut table = Box::new([[T::default(); 256]; 3]);
    for (row, chunk) in table.iter_mut().zip(values.chunks_exact(256)) {
        row.copy_from_slice(chunk);
    }
    Ok(table)
}
