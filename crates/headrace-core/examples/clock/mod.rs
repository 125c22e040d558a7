//! Time on the processor, so that a busy machine disturbs a measurement less.

use std::sync::OnceLock;
use std::time::Instant;

/// Seconds that this thread has run (Linux), or the time since the first call where that is not known.
pub fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    // The first number is the time on the processor in nanoseconds.
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or_else(|| start.elapsed().as_secs_f64(), |time| time * 1e-9)
}
