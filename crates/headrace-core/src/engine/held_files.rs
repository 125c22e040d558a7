//! How many shards this process holds open, over all tables: two loaders may not use up the descriptors of a script.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{getrlimit, Resource};

/// Descriptors that are left to the rest of the process, if the limit allows that: sockets, files of libraries and of the script.
const OTHERS: u64 = 512;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Take the right to hold one more file open. Return false if this process holds as many as it may.
pub fn take() -> bool {
    let bound = bound();
    HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        (held < bound).then_some(held + 1)
    })
    .is_ok()
}

/// Give back the right to hold `count` files.
pub fn give_back(count: usize) {
    HELD.fetch_sub(count, Ordering::Relaxed);
}

/// Return how many shards may be open: half of the limit on open files (`RLIMIT_NOFILE`), or all but [`OTHERS`].
fn bound() -> usize {
    #[cfg(test)]
    if let Some(bound) = tests::BOUND.get() {
        return bound;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((limit / 2).max(limit.saturating_sub(OTHERS))).unwrap_or(usize::MAX)
}

#[cfg(test)]
pub use tests::within;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static BOUND: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Run `work` with another bound in this thread.
    pub fn within<T>(bound: usize, work: impl FnOnce() -> T) -> T {
        BOUND.set(Some(bound));
        let found = work();
        BOUND.set(None);
        found
    }
}
