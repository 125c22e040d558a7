//! The order of records in an epoch.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use headrace_core::order::{self, Permutation};

use crate::detach::guarded;

/// Return a 64-bit hash of integers, the same on every machine.
#[pyfunction]
#[pyo3(signature = (*parts))]
pub fn hashed(py: Python<'_>, parts: Vec<u64>) -> PyResult<u64> {
    guarded(py, || Ok(order::hashed(&parts)))
}

/// Write the image of each of `positions` under the pseudo-random permutation of range(size) with `key` to `out`.
#[pyfunction]
pub fn permute(
    py: Python<'_>,
    positions: PyBuffer<i64>,
    size: u64,
    key: u64,
    out: PyBuffer<i64>,
) -> PyResult<()> {
    guarded(py, || {
        let permutation = Permutation::new(size, key);
        let sent = positions
            .to_vec(py)?
            .into_iter()
            .map(|position| permutation.get(u64::try_from(position).ok()?))
            .map(|sent| sent.and_then(|sent| i64::try_from(sent).ok()))
            .collect::<Option<Vec<i64>>>()
            .ok_or_else(|| PyValueError::new_err("a position is not in range(size)"))?;
        out.copy_from_slice(py, &sent)
    })
}
