//! Items: images that each have a source, a crop, a size, a window and flips of their own, and a place in the caller's memory.
//!
//! The pixels are those of Pillow's `open(source).convert("RGB").crop(box).resize(size, filter).crop(window)` with its flips, bit
//! for bit. Only the part that the window needs is decoded and resampled.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::file::read_file;
use super::indexes::IndexCache;
use super::job::{Job, Work};
use super::memory::BatchMemory;
use super::worker::Worker;
use super::Counters;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Scale, Size};
use crate::jpeg::index::Index;
use crate::resample::{Filter, ResizeSpec, MAX_GRID};
use crate::store::Store;

/// Encoded bytes in memory.
pub trait ItemBytes: Send + Sync {
    /// Return the bytes. If their owner could change them meanwhile, they are copied to `copy` first.
    fn get<'a>(&'a self, copy: &'a mut Vec<u8>) -> &'a [u8];
}

/// Where the encoded bytes of an image are.
pub enum Source {
    /// In memory.
    Memory(Box<dyn ItemBytes>),
    /// In a file, which is opened, read whole and closed.
    File(PathBuf),
}

impl Source {
    /// Return the bytes, which may be in `scratch`.
    pub(super) fn bytes<'a>(&'a self, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        match self {
            Source::Memory(bytes) => Ok(bytes.get(scratch)),
            Source::File(path) => {
                read_file(path, scratch)?;
                Ok(scratch)
            }
        }
    }
}

/// One image to make.
#[derive(Default)]
pub struct Item {
    /// The part of the image to resize, in pixels of the image; `None` for the whole image.
    pub box_: Option<Rect>,
    /// Width and height that the box is resized to; `None` for no resize.
    pub size: Option<(u32, u32)>,
    /// Filter of the resize.
    pub filter: Filter,
    /// The part of the resized image to keep, in its pixels; `None` for all of it.
    pub window: Option<Rect>,
    /// Mirror the window left to right.
    pub flip_x: bool,
    /// Mirror the window top to bottom.
    pub flip_y: bool,
    /// The JPEG index of the image, if the caller has one. An index of other bytes is [`Status::BadIndex`].
    pub index: Option<Arc<Index>>,
    /// Number of the target, and byte of its memory at which the result begins.
    pub place: (usize, usize),
}

impl Item {
    /// Return width and height of the result; `None` if only the image itself tells.
    pub fn shape(&self) -> Option<(u32, u32)> {
        let sides = |rect: Rect| (rect.w, rect.h);
        self.window
            .map(sides)
            .or(self.size)
            .or(self.box_.map(sides))
    }

    /// Return an error message if no image can be made so.
    fn check(&self) -> std::result::Result<(), String> {
        if self.shape().is_none() {
            return Err("a window, a size or a box must tell the size of the result".into());
        }
        let grid = self.size.or(self.box_.map(|box_| (box_.w, box_.h)));
        if let Some((width, height)) = self.size {
            if width == 0 || height == 0 || width > MAX_GRID || height > MAX_GRID {
                return Err(format!("a resize to {width}×{height} pixels"));
            }
        }
        if let Some(Rect { x, y, w, h }) = self.window {
            let (width, height) = grid.unwrap_or((u32::MAX, u32::MAX));
            if !Rect::new(x, y, w, h).fits(width, height) {
                return Err(match grid {
                    Some(_) => format!(
                        "the window (x {x}, y {y}, width {w}, height {h}) is empty or leaves the resized image of {width}×{height} pixels"
                    ),
                    None => format!("the window (x {x}, y {y}, width {w}, height {h}) is empty or too large"),
                });
            }
        }
        Ok(())
    }

    /// Return the resampling for an image of `size`, and the scale at which a JPEG can be decoded for it (`reduced`).
    pub(super) fn spec(&self, size: Size, reduced: bool) -> Result<(ResizeSpec, Scale)> {
        let box_ = self
            .box_
            .unwrap_or(Rect::new(0, 0, size.width, size.height));
        if !box_.fits(size.width, size.height) {
            return Err(Status::BadBox);
        }
        let (grid_w, grid_h) = self.size.unwrap_or((box_.w, box_.h));
        let window = self.window.unwrap_or(Rect::new(0, 0, grid_w, grid_h));
        if !window.fits(grid_w, grid_h) {
            return Err(Status::BadBox);
        }
        let scale = match reduced {
            true => Scale::for_target((box_.w, box_.h), (grid_w, grid_h)),
            false => Scale::Full,
        };
        let small = size.scaled(scale);
        let spec = ResizeSpec {
            box_: box_.reduced(scale.divisor(), small.width, small.height),
            grid_w,
            grid_h,
            window,
            filter: self.filter,
            flip_x: self.flip_x,
            flip_y: self.flip_y,
        };
        Ok((spec, scale))
    }
}

/// Neighbouring items of one source: it is read and opened once for all of them.
pub struct Group {
    /// Where the encoded bytes are.
    pub source: Source,
    /// Number of items.
    pub count: usize,
}

/// Memory to fill, with its layout and values.
pub struct Target {
    /// Layout and values.
    pub store: Arc<Store>,
    /// The memory; its slots are not used.
    pub memory: BatchMemory,
}

/// A batch of items.
pub struct Items {
    groups: Vec<(Source, Range<usize>)>,
    items: Vec<Item>,
    targets: Vec<Target>,
    /// Turn images upright by their EXIF orientation first.
    pub exif: bool,
    /// Decode JPEGs at half or quarter size if the resize shrinks them that much.
    pub dct_scale: bool,
    /// Scale gray of 16 bits to 8 bits, see [`crate::decode::Decoder::set_scale_depth`].
    pub scale_depth: bool,
    /// The JPEG indexes of images, by [`super::content_key`].
    pub indexes: Option<Arc<IndexCache>>,
}

impl Items {
    /// Make a batch. Fails with a message if an item contradicts itself, or if its place leaves its target or overlaps another.
    pub fn new(
        groups: Vec<Group>,
        items: Vec<Item>,
        targets: Vec<Target>,
    ) -> std::result::Result<Self, String> {
        let mut taken = Vec::with_capacity(items.len());
        for (number, item) in items.iter().enumerate() {
            let place = item
                .check()
                .and_then(|()| place_of(item, &targets))
                .map_err(|problem| format!("item {number}: {problem}"))?;
            taken.push((place, number));
        }
        taken.sort_unstable_by_key(|(place, _)| place.start);
        for pair in taken.windows(2) {
            if pair[0].0.end > pair[1].0.start {
                let (one, other) = (pair[0].1.min(pair[1].1), pair[0].1.max(pair[1].1));
                return Err(format!("items {one} and {other} have one place"));
            }
        }
        let mut end = 0;
        let groups: Vec<_> = groups
            .into_iter()
            .filter(|group| group.count > 0)
            .map(|group| {
                end += group.count;
                (group.source, end - group.count..end)
            })
            .collect();
        if end != items.len() {
            return Err(format!("groups of {end} items, but {} items", items.len()));
        }
        Ok(Items {
            groups,
            items,
            targets,
            exif: false,
            dct_scale: false,
            scale_depth: false,
            indexes: None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Return the number of groups.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Return the number of the first item of a group; of the group after the last, the number of items.
    pub(super) fn first_item(&self, group: usize) -> usize {
        self.groups
            .get(group)
            .map_or(self.items.len(), |(_, items)| items.start)
    }

    /// Return the source and the items of a group.
    pub(super) fn group(&self, number: usize) -> (&Source, &[Item]) {
        let (source, items) = &self.groups[number];
        (source, &self.items[items.clone()])
    }

    /// Return the layout and values of an item.
    pub(super) fn store(&self, item: &Item) -> &Store {
        &self.targets[item.place.0].store
    }

    /// Return the memory of an item.
    ///
    /// # Safety
    /// No other slice of it is alive.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(super) unsafe fn memory(&self, item: &Item) -> &mut [u8] {
        let target = &self.targets[item.place.0];
        let bytes = bytes_of(item, &target.store).unwrap_or(0);
        // SAFETY: in the target and apart from other items (`new`); the caller holds one slice of it.
        unsafe { target.memory.part(item.place.1, bytes) }
    }
}

/// Return the bytes that the result of an item takes; `None` if they cannot be counted.
fn bytes_of(item: &Item, store: &Store) -> Option<usize> {
    let (width, height) = item.shape()?;
    (width as usize)
        .checked_mul(height as usize)?
        .checked_mul(3 * store.value_bytes())
}

/// Return the addresses of an item's result, or an error message if it leaves its target.
fn place_of(item: &Item, targets: &[Target]) -> std::result::Result<Range<usize>, String> {
    let (number, start) = item.place;
    let target = targets
        .get(number)
        .ok_or_else(|| format!("target {number} of {}", targets.len()))?;
    let (address, room) = target.memory.extent();
    let bytes = bytes_of(item, &target.store);
    match bytes.and_then(|bytes| start.checked_add(bytes)) {
        Some(end) if end <= room => Ok(address + start..address + end),
        _ => Err(format!(
            "its result does not fit: byte {start} and {} more, in a target of {room} bytes",
            bytes.map_or("too many".into(), |bytes| bytes.to_string())
        )),
    }
}

thread_local! {
    /// Memory of the calling thread, so that repeated calls do not allocate. No image data outlives its call.
    static WORKER: RefCell<Worker> = RefCell::default();
}

/// Fill items on this thread and `threads - 1` others, and return the status number of each, 0 = ok.
pub fn fill_items(items: Items, threads: usize) -> Vec<i32> {
    let job = Job::new(Work::Items(items));
    let counters = Counters::default();
    let work = || {
        WORKER.with_borrow_mut(|worker| {
            while let Some(unit) = job.claim() {
                job.fill(unit, worker, &counters);
            }
        });
    };
    let helpers = threads.clamp(1, job.units().max(1)) - 1;
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(work);
        }
        work();
    });
    job.statuses()
}
