//! The only place that releases the interpreter lock, and the wait that reacts to Ctrl-C.

use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Run `work` with the interpreter lock released.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(work)
}

/// Call `attempt(timeout)` with the lock released until it returns true or `limit` has passed. Signals are handled at least ten
/// times a second, so Ctrl-C raises KeyboardInterrupt from here.
pub fn wait_for(
    py: Python<'_>,
    limit: Option<Duration>,
    attempt: impl Fn(Duration) -> bool + Sync,
) -> PyResult<bool> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if detached(py, || attempt(left.min(Duration::from_millis(100)))) {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(false);
        }
    }
}
