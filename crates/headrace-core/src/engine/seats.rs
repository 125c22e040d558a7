//! Seats for decoding: threads beyond the cores wait for a seat between reading an image and decoding it.
//!
//! Threads beyond the cores overlap reads that wait for a disk or a network. If they decoded as well, all of them would be runnable
//! at once, and the thread that trains would wait for its turn among them.

use std::sync::{Condvar, Mutex, PoisonError};

/// A number of seats, given to threads in the order in which they ask.
pub(super) struct Seats {
    line: Mutex<Line>,
    given: Condvar,
}

/// Asks are numbered. Those below `given` have had a seat.
struct Line {
    asked: u64,
    given: u64,
}

/// A seat, until it is dropped.
pub(super) struct Seat<'a>(&'a Seats);

impl Seats {
    /// Make `count` seats.
    pub(super) fn new(count: usize) -> Self {
        Seats {
            line: Mutex::new(Line {
                asked: 0,
                given: count as u64,
            }),
            given: Condvar::new(),
        }
    }

    /// Wait for a seat. A thread has one at most.
    pub(super) fn take(&self) -> Seat<'_> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let number = line.asked;
        line.asked += 1;
        while number >= line.given {
            line = self
                .given
                .wait(line)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Seat(self)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut line = self.0.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.given += 1;
        if line.given <= line.asked {
            self.0.given.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    #[test]
    fn no_more_threads_have_a_seat_than_there_are() {
        let seats = Arc::new(Seats::new(2));
        let (seated, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..7)
            .map(|_| {
                let (seats, seated, most) =
                    (Arc::clone(&seats), Arc::clone(&seated), Arc::clone(&most));
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let _seat = seats.take();
                        most.fetch_max(seated.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        seated.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_seat_is_free_again_after_a_panic() {
        let seats = Seats::new(1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _seat = seats.take();
            panic!("while decoding");
        }));
        assert!(caught.is_err());
        drop(seats.take());
    }
}
