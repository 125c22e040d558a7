//! The border between Python and native code: the only place that releases the interpreter lock, the guard that keeps panics inside,
//! and the wait that reacts to Ctrl-C.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use headrace_core::error::Status;

/// Run `work`, which is native code that Python has called. A panic becomes a HeadraceError: PyO3's own exception for it is no
/// `Exception`, so it would end a program that handles errors.
pub fn guarded<T>(py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // What a panic leaves half done is dropped here, or belongs to the caller, who gets the error.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(internal_error(py)))
}

/// Run `work` with the interpreter lock released, guarded as by [`guarded`].
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    guarded(py, || Ok(py.detach(work)))
}

/// Return the package's exception for a fault of headrace. The panic's own message and place are on stderr.
fn internal_error(py: Python<'_>) -> PyErr {
    let error = || -> PyResult<PyErr> {
        let kind = py.import("headrace.errors")?.getattr("HeadraceError")?;
        Ok(PyErr::from_value(
            kind.call1((Status::Internal.message(),))?,
        ))
    };
    error().unwrap_or_else(|failure| failure)
}

/// Panic, for the tests of this border: in a `place` with the interpreter lock ("call") or without ("detached").
#[pyfunction]
pub fn provoke_panic(py: Python<'_>, place: &str) -> PyResult<()> {
    match place {
        "call" => guarded(py, || panic!("provoked by a test")),
        _ => detached(py, || panic!("provoked by a test")),
    }
}

/// Call `attempt(timeout)` with the lock released until it returns true or `limit` has passed. Signals are handled at least ten
/// times a second, so Ctrl-C raises KeyboardInterrupt from here.
///
/// The first attempt has no timeout and keeps the lock. A thread that gives it away may wait for 5 ms (`sys.getswitchinterval`)
/// before it has it again, which the training thread would do for each batch that is ready.
pub fn wait_for(
    py: Python<'_>,
    limit: Option<Duration>,
    attempt: impl Fn(Duration) -> bool + Sync,
) -> PyResult<bool> {
    if guarded(py, || Ok(attempt(Duration::ZERO)))? {
        return Ok(true);
    }
    if limit.is_some_and(|limit| limit.is_zero()) {
        return Ok(false);
    }
    // A limit beyond what the clock can count is none.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if detached(py, || attempt(left.min(Duration::from_millis(100))))? {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(false);
        }
    }
}
