//! The CPU time of a thread, which other load on the machine affects less than wall time.

use std::sync::OnceLock;
use std::time::Instant;

/// Return the CPU time of this thread in seconds (Linux), or elsewhere the time since the first call.
pub fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    // The first number is the CPU time in nanoseconds.
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or_else(|| start.elapsed().as_secs_f64(), |time| time * 1e-9)
}
