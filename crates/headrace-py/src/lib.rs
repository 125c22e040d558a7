//! The Python module `headrace._native`: registration only; one file per concept beside this one.
#![deny(unsafe_code)]

use pyo3::prelude::*;

/// Decode, resample and pack images. Internal: the public face is the package `headrace`.
#[pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
