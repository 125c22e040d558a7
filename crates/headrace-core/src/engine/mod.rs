//! Threads that fill whole batches: read, decode, resample, store, one image at a time, into the caller's memory.
//!
//! A job is one batch. Threads take images from the oldest job first, so batches finish in the order they were submitted,
//! and an image costs no allocation and no lock but the queue's.

mod byte_cache;
mod index_file;
mod indexes;
mod item;
mod memory;
mod table;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use byte_cache::ByteCache;
pub use index_file::IndexFile;
pub use indexes::IndexCache;
pub use item::Worker;
pub use memory::BatchMemory;
pub use table::Table;

use crate::error::Status;
use crate::program::Program;
use crate::store::Store;

/// The bytes of one record, owned by whoever brought them.
pub type Encoded = Box<dyn AsRef<[u8]> + Send + Sync>;

/// What a batch is made of and where it goes.
pub struct Batch {
    /// Where the records' bytes are.
    pub table: Arc<Table>,
    /// Checkpoint indexes of the table's images.
    pub indexes: Arc<IndexCache>,
    /// Epoch of the random draws.
    pub epoch: u64,
    /// Which records, in the order of the slots.
    pub records: Vec<u32>,
    /// The draw key of each record (see [`crate::rng::Key::draw`]).
    pub draws: Vec<u64>,
    /// The encoded bytes of each record, where they come with the batch (streams); else the table is read.
    pub data: Option<Vec<Encoded>>,
    /// The pictures that are made of each record: one, or several.
    pub views: Vec<View>,
}

/// One picture of each record of a batch.
pub struct View {
    /// The pipeline.
    pub program: Arc<Program>,
    /// Layout and values of the output.
    pub store: Arc<Store>,
    /// Seed of the random draws.
    pub seed: u64,
    /// One slot a record.
    pub memory: BatchMemory,
    /// The masks beside the images, where they are wanted.
    pub masks: Option<Masks>,
}

impl View {
    /// Whether there is a slot for each of `count` records.
    fn has_room(&self, count: usize) -> bool {
        let masks = self.masks.as_ref();
        count <= self.memory.slots() && masks.is_none_or(|masks| count <= masks.memory.slots())
    }
}

/// Where the masks of a batch come from and go to.
pub struct Masks {
    /// Where their bytes are: the same records as the images'.
    pub table: Arc<Table>,
    /// The class of what comes from outside the picture.
    pub fill: u8,
    /// One slot a record, one byte a pixel.
    pub memory: BatchMemory,
}

/// A submitted batch.
pub struct Job {
    batch: Batch,
    next: AtomicUsize,
    cancelled: AtomicBool,
    statuses: Vec<AtomicI32>,
    done: Mutex<usize>,
    changed: Condvar,
}

/// Time spent by all threads together, in nanoseconds, and what they did.
#[derive(Debug, Default)]
pub struct Counters {
    /// Images finished, good or bad.
    pub images: AtomicU64,
    /// Encoded bytes read.
    pub bytes: AtomicU64,
    /// Reading files.
    pub read_ns: AtomicU64,
    /// Entropy decoding, IDCT and colour.
    pub decode_ns: AtomicU64,
    /// Resampling.
    pub resample_ns: AtomicU64,
    /// Converting into the slot.
    pub store_ns: AtomicU64,
    /// Waiting for work.
    pub idle_ns: AtomicU64,
}

struct Queue {
    jobs: VecDeque<Arc<Job>>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    counters: Counters,
}

/// The thread pool. Dropping it stops and joins the threads.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A poisoned lock only means that a thread panicked while holding it; the data are plain counters and queues.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts `threads` threads (at least one). Fails when the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                closed: false,
            }),
            arrived: Condvar::new(),
            counters: Counters::default(),
        });
        let mut engine = Engine {
            shared,
            threads: Vec::new(),
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&engine.shared);
            let name = format!("headrace-{number}");
            engine.threads.push(
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || work(&shared))?,
            );
        }
        Ok(engine)
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// What the threads did so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Queues a batch. `batch.records` and `batch.draws` have one entry a slot.
    pub fn submit(&self, batch: Batch) -> Arc<Job> {
        let count = batch.records.len();
        assert!(
            count == batch.draws.len()
                && batch.views.iter().all(|view| view.has_room(count))
                && batch.data.as_ref().is_none_or(|data| data.len() == count),
            "one draw, one slot and one piece of data a record"
        );
        let job = Arc::new(Job {
            next: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            statuses: (0..count)
                .map(|_| AtomicI32::new(Status::Ok as i32))
                .collect(),
            done: Mutex::new(0),
            changed: Condvar::new(),
            batch,
        });
        if count > 0 {
            lock(&self.shared.queue).jobs.push_back(Arc::clone(&job));
            self.shared.arrived.notify_all();
        }
        job
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.closed = true;
            for job in queue.jobs.drain(..) {
                job.cancel_rest();
            }
        }
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches panics per image, so an error here has nothing left to tell.
            drop(thread.join());
        }
    }
}

impl Job {
    /// Waits until every image is finished or cancelled, at most `timeout`; true if so.
    pub fn wait(&self, timeout: Duration) -> bool {
        let done = lock(&self.done);
        let count = self.statuses.len();
        let (done, _) = self
            .changed
            .wait_timeout_while(done, timeout, |done| *done < count)
            .unwrap_or_else(PoisonError::into_inner);
        *done >= count
    }

    /// The status number of each image, 0 = ok. Complete once `wait` has returned true.
    pub fn statuses(&self) -> Vec<i32> {
        self.statuses
            .iter()
            .map(|status| status.load(Ordering::Acquire))
            .collect()
    }

    /// Gives up the images that no thread has begun, and waits for those in work: afterwards nobody touches the memory.
    pub fn cancel(&self) {
        self.cancel_rest();
        while !self.wait(Duration::from_secs(1)) {}
    }

    fn cancel_rest(&self) {
        self.cancelled.store(true, Ordering::Release);
        // Claim what is left, so that the count of finished images comes out even.
        let from = self
            .next
            .swap(self.statuses.len(), Ordering::AcqRel)
            .min(self.statuses.len());
        self.finish(self.statuses.len() - from);
    }

    fn finish(&self, images: usize) {
        let mut done = lock(&self.done);
        *done += images;
        // Not at every image: the waiting thread would be woken hundreds of times a batch, for nothing.
        if *done >= self.statuses.len() {
            self.changed.notify_all();
        }
    }

    /// The next image for a thread, or None when all are taken.
    fn claim(&self) -> Option<usize> {
        let count = self.statuses.len();
        self.next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| {
                (next < count).then_some(next + 1)
            })
            .ok()
    }
}

/// The oldest job with images left, and one of them; blocks until there is one. None: the engine is closing.
fn take(shared: &Shared) -> Option<(Arc<Job>, usize)> {
    let mut queue = lock(&shared.queue);
    loop {
        while let Some(job) = queue.jobs.front() {
            if let Some(image) = job.claim() {
                return Some((Arc::clone(job), image));
            }
            queue.jobs.pop_front();
        }
        if queue.closed {
            return None;
        }
        let began = Instant::now();
        queue = shared
            .arrived
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
        add(&shared.counters.idle_ns, began.elapsed());
    }
}

fn work(shared: &Shared) {
    let mut worker = Worker::default();
    while let Some((job, image)) = take(shared) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.fill(&job.batch, image, &shared.counters)
        }));
        let status = match result {
            Ok(Ok(())) => Status::Ok,
            Ok(Err(status)) => status,
            Err(_) => {
                worker = Worker::default(); // whatever state the panic left
                Status::Internal
            }
        };
        job.statuses[image].store(status as i32, Ordering::Release);
        shared.counters.images.fetch_add(1, Ordering::Relaxed);
        job.finish(1);
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}
