//! The engine: threads that fill batches in the caller's memory. Each thread reads, decodes, transforms and stores one image at a
//! time.
//!
//! A job is one batch: records of a table under a pipeline, or items with their own crops. Threads take images from the oldest
//! job, so batches finish in the order of submission; a batch that is wanted `first` goes before those that wait. An image costs
//! no allocation, and no lock but those of the queue and, where there are more threads than cores, of the seats.

mod byte_cache;
mod file;
mod held_files;
mod index_file;
mod indexes;
mod item_worker;
mod items;
mod job;
mod memory;
mod pages;
mod policy;
mod seats;
mod table;
mod turns;
mod worker;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use byte_cache::ByteCache;
pub use index_file::IndexFile;
pub use indexes::{content_key, IndexCache};
pub use items::{fill_items, Group, Item, ItemBytes, Items, Source, Target};
pub use job::Job;
pub use memory::BatchMemory;
pub use pages::Pages;
pub use table::{Paths, Table};
pub use turns::{Stream, Turn};
pub use worker::Worker;

use crate::decode::Opened;
use crate::program::Program;
use crate::store::Store;
use job::Work;
use seats::Seats;

/// The encoded bytes of one record, kept alive by their owner.
pub type Encoded = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A batch to fill: records, random draws, transforms and memory.
pub struct Batch {
    /// Where the records' bytes are.
    pub table: Arc<Table>,
    /// JPEG indexes of the table's images.
    pub indexes: Arc<IndexCache>,
    /// Epoch of the random draws.
    pub epoch: u64,
    /// The records in the order of the slots.
    pub records: Vec<u32>,
    /// The draw key of each record (see [`crate::rng::Key::draw`]).
    pub draws: Vec<u64>,
    /// The encoded bytes of each record, if they come with the batch (streams); otherwise the table is read.
    pub data: Option<Vec<Encoded>>,
    /// The files of the records, if they come with the batch. They take the place of the table.
    pub files: Option<Files>,
    /// The views of each record: one, or several.
    pub views: Vec<View>,
    /// Where the random draws come from, in place of the seeds and keys: streams that batches share.
    pub turn: Option<Box<Turn>>,
    /// Make this batch before those that wait.
    pub first: bool,
}

/// The image files of a batch that has no table. JPEG indexes are found by the bytes of the images.
pub struct Files {
    /// One file per record.
    pub sources: Vec<FileSource>,
    /// What each file must be; otherwise its status is [`Status::Unsupported`].
    pub kinds: Vec<FileKind>,
    /// Turn images upright by their EXIF orientation, as Pillow's `ImageOps.exif_transpose` does.
    pub upright: bool,
}

/// What a file must be, by the mode in which Pillow opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Any image.
    Any,
    /// A JPEG in mode RGB.
    RgbJpeg,
    /// A JPEG in mode L.
    GrayJpeg,
}

impl FileKind {
    /// Return true if an image is of this kind.
    fn is(self, opened: &Opened<'_>) -> bool {
        match self {
            FileKind::Any => true,
            FileKind::RgbJpeg => opened.is_rgb_jpeg(),
            FileKind::GrayJpeg => opened.is_gray_jpeg(),
        }
    }
}

/// Where the bytes of a file are.
pub enum FileSource {
    /// On a disk.
    Path(PathBuf),
    /// In memory.
    Bytes(Encoded),
}

/// One output image of each record of a batch.
pub struct View {
    /// The pipeline.
    pub program: Arc<Program>,
    /// Layout and values of the output.
    pub store: Arc<Store>,
    /// Seed of the random draws.
    pub seed: u64,
    /// One slot per record.
    pub memory: BatchMemory,
    /// The masks of the images, if masks are wanted.
    pub masks: Option<Masks>,
}

impl View {
    /// Return whether the memory has a slot for each of `count` records.
    fn has_room(&self, count: usize) -> bool {
        let masks = self.masks.as_ref();
        count <= self.memory.slots() && masks.is_none_or(|masks| count <= masks.memory.slots())
    }
}

/// The source and destination of a batch's masks.
pub struct Masks {
    /// Where their bytes are; it has the same records as the table of the images.
    pub table: Arc<Table>,
    /// The class of pixels from outside the image.
    pub fill: u8,
    /// One slot per record, one byte per pixel.
    pub memory: BatchMemory,
}

/// Totals over all threads: images, bytes, and nanoseconds per stage.
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
    /// Conversion to the layout and dtype of the slot.
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
    seats: Option<Arc<Seats>>,
    quiet: bool,
}

/// The thread pool. Dropping it stops and joins the threads.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Lock `mutex`, also if it is poisoned: the data are plain counters and queues, which a panicked thread leaves intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Start `threads` threads (at least one), of which at most `decoding` (at least one) decode at a time; the others read
    /// ahead. With `quiet`, images of batches that Pillow does not read quietly are [`Status::Unsupported`] (see
    /// [`crate::quiet`]). Fails if the system refuses a thread.
    ///
    /// [`Status::Unsupported`]: crate::error::Status::Unsupported
    pub fn new(threads: usize, decoding: usize, quiet: bool) -> std::io::Result<Self> {
        let decoding = decoding.max(1);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                closed: false,
            }),
            arrived: Condvar::new(),
            counters: Counters::default(),
            seats: (decoding < threads).then(|| Arc::new(Seats::new(decoding))),
            quiet,
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

    /// Return the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Return the totals so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Queue a batch. `batch.records` and `batch.draws` have one entry per slot.
    pub fn submit(&self, batch: Batch) -> Arc<Job> {
        let count = batch.records.len();
        assert!(
            count == batch.draws.len()
                && batch.views.iter().all(|view| view.has_room(count))
                && batch.data.as_ref().is_none_or(|data| data.len() == count)
                && batch
                    .files
                    .as_ref()
                    .is_none_or(|files| files.sources.len() == count && files.kinds.len() == count),
            "one draw, one slot and one piece of data or file a record"
        );
        self.queue(Work::Batch(batch))
    }

    /// Queue items.
    pub fn submit_items(&self, items: Items) -> Arc<Job> {
        self.queue(Work::Items(items))
    }

    fn queue(&self, work: Work) -> Arc<Job> {
        let job = Arc::new(Job::new(work));
        if !job.is_empty() {
            let mut queue = lock(&self.shared.queue);
            match &job.work {
                Work::Batch(Batch { first: true, .. }) => queue.jobs.push_front(Arc::clone(&job)),
                _ => queue.jobs.push_back(Arc::clone(&job)),
            }
            drop(queue);
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
            // A worker catches panics per image, so an error of join carries no information.
            drop(thread.join());
        }
    }
}

/// Return the first job with unclaimed images and the number of a unit of it. Block until there is one; return `None` when the
/// engine closes.
fn take(shared: &Shared) -> Option<(Arc<Job>, usize)> {
    let mut queue = lock(&shared.queue);
    loop {
        while let Some(job) = queue.jobs.front() {
            if let Some(unit) = job.claim() {
                return Some((Arc::clone(job), unit));
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
    policy::yield_to_running_threads();
    let mut worker = Worker::new(shared.seats.clone(), shared.quiet);
    while let Some((job, unit)) = take(shared) {
        job.fill(unit, &mut worker, &shared.counters);
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}
