//! A job: the filling of one batch, which threads share. They claim its units one after the other.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::items::Items;
use super::worker::Worker;
use super::{lock, Batch, Counters};
use crate::error::Status;
use crate::program::streams::Streams;

/// What a job fills.
pub(super) enum Work {
    /// Records of a table. A unit is a record.
    Batch(Batch),
    /// Items. A unit is a group of items of one source.
    Items(Items),
}

/// A submitted batch.
pub struct Job {
    pub(super) work: Work,
    next: AtomicUsize,
    statuses: Vec<AtomicI32>,
    done: Mutex<usize>,
    changed: Condvar,
}

impl Job {
    pub(super) fn new(work: Work) -> Self {
        let count = match &work {
            Work::Batch(batch) => batch.records.len(),
            Work::Items(items) => items.len(),
        };
        Job {
            work,
            next: AtomicUsize::new(0),
            statuses: (0..count)
                .map(|_| AtomicI32::new(Status::Ok as i32))
                .collect(),
            done: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    /// Return whether there is nothing to fill.
    pub(super) fn is_empty(&self) -> bool {
        self.statuses.is_empty()
    }

    /// Wait until every image is finished or cancelled, at most `timeout`; return whether that is so.
    pub fn wait(&self, timeout: Duration) -> bool {
        let done = lock(&self.done);
        let count = self.statuses.len();
        let (done, _) = self
            .changed
            .wait_timeout_while(done, timeout, |done| *done < count)
            .unwrap_or_else(PoisonError::into_inner);
        *done >= count
    }

    /// Return the status number of each image, 0 = ok. The list is complete once `wait` has returned true.
    pub fn statuses(&self) -> Vec<i32> {
        self.statuses
            .iter()
            .map(|status| status.load(Ordering::Acquire))
            .collect()
    }

    /// Return the random streams as they were before an image drew, see [`super::Turn::streams_before`].
    pub fn streams_before(&self, image: usize) -> Option<Streams> {
        match &self.work {
            Work::Batch(batch) => batch.turn.as_ref()?.streams_before(image),
            Work::Items(_) => None,
        }
    }

    /// Skip the images that no thread has begun, and wait for those in progress. Afterwards no thread accesses the memory.
    pub fn cancel(&self) {
        self.cancel_rest();
        while !self.wait(Duration::from_secs(1)) {}
    }

    /// Claim the remaining units, so that the count of finished images is complete.
    pub(super) fn cancel_rest(&self) {
        let from = self.next.swap(self.units(), Ordering::AcqRel);
        if let (
            Work::Batch(Batch {
                turn: Some(turn), ..
            }),
            true,
        ) = (&self.work, from < self.units())
        {
            turn.break_at(from); // its turn would never end
        }
        self.finish(self.statuses.len() - self.first_image(from));
    }

    fn finish(&self, images: usize) {
        let mut done = lock(&self.done);
        *done += images;
        // Only after the last image: otherwise the waiting thread would wake up hundreds of times per batch.
        if *done >= self.statuses.len() {
            self.changed.notify_all();
        }
    }

    /// Return the number of units.
    pub(super) fn units(&self) -> usize {
        match &self.work {
            Work::Batch(_) => self.statuses.len(),
            Work::Items(items) => items.groups(),
        }
    }

    /// Return the number of the first image of a unit; of the unit after the last, the number of images.
    fn first_image(&self, unit: usize) -> usize {
        match &self.work {
            Work::Batch(_) => unit.min(self.statuses.len()),
            Work::Items(items) => items.first_item(unit),
        }
    }

    /// Return the number of the next unit for a thread, or `None` when all are claimed.
    pub(super) fn claim(&self) -> Option<usize> {
        let count = self.units();
        self.next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| {
                (next < count).then_some(next + 1)
            })
            .ok()
    }

    /// Fill the images of a claimed unit.
    pub(super) fn fill(&self, unit: usize, worker: &mut Worker, counters: &Counters) {
        let images = self.first_image(unit)..self.first_image(unit + 1);
        let statuses = &self.statuses[images.clone()];
        match &self.work {
            Work::Batch(batch) => {
                let result = worker.fill(batch, unit, counters);
                let status = result.err().unwrap_or(Status::Ok);
                statuses[0].store(status as i32, Ordering::Release);
            }
            Work::Items(items) => worker.fill_group(items, unit, statuses, counters),
        }
        let total: &AtomicU64 = &counters.images;
        total.fetch_add(images.len() as u64, Ordering::Relaxed);
        self.finish(images.len());
    }
}
