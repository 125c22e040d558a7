//! A worker thread of the engine: it reads one image, decodes the crop, applies the transforms, and stores the result in the
//! batch slot of each view.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::file::read_file;
use super::indexes::content_key;
use super::seats::Seats;
use super::{add, Batch, Counters, FileSource, Turn, View};
use crate::colour::{torch_blur, ColourOp};
use crate::decode::{DecodeOptions, Decoder, Opened};
use crate::error::{or_internal, Result, Status};
use crate::geometry::{Rect, Scale, Size};
use crate::jpeg::index::Index;
use crate::mask::Masker;
use crate::program::route::Route;
use crate::program::step::Step;
use crate::render::Renderer;
use crate::rng::Key;

/// The reusable memory of one thread. Nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Worker {
    pub(super) bytes: Vec<u8>,
    pub(super) pixels: Vec<u8>,
    pub(super) decoder: Decoder,
    pub(super) renderer: Renderer,
    drawings: Vec<Drawing>,
    pub(super) index: Index,
    /// The index of the items' image, as far as it is known.
    pub(super) known: Index,
    masker: Masker,
    size: Size,
    /// Whether the image has drawn its random numbers from the batch's streams.
    is_drawn: bool,
    /// The key of the image's index.
    key: u64,
    /// Where to wait before decoding, if other threads decode as well.
    pub(super) seats: Option<Arc<Seats>>,
    /// Leave images of batches that are not quiet (see [`crate::quiet`]).
    quiet: bool,
}

/// The steps of one view of the image, and the passes that they take.
#[derive(Default)]
struct Drawing {
    steps: Vec<Step>,
    route: Route,
    /// The rectangles that are erased in the finished image, and the bytes of each channel there.
    erased: Vec<(Rect, usize)>,
}

impl Worker {
    /// Make the memory of a thread that waits for one of `seats` before it decodes, and leaves images that are not quiet with `quiet`.
    pub(super) fn new(seats: Option<Arc<Seats>>, quiet: bool) -> Self {
        Worker {
            seats,
            quiet,
            ..Worker::default()
        }
    }

    /// Begin anew: a panic may have left any state.
    pub(super) fn renew(&mut self) {
        *self = Worker::new(self.seats.take(), self.quiet);
    }

    /// Fill slot `image` of each view of the batch. After an error the slots are black; they never hold an earlier image.
    pub fn fill(&mut self, batch: &Batch, image: usize, counters: &Counters) -> Result<()> {
        let result = or_internal(|| {
            self.is_drawn = false;
            let mut result = self.try_fill(batch, image, counters);
            if result == Err(Status::BadIndex) {
                // The index is bound to other bytes: the file has changed since the index was made, or shares its key with another.
                batch.indexes.forget(self.key);
                result = self.try_fill(batch, image, counters);
            }
            result?;
            self.fill_masks(batch, image)
        });
        if let (Some(turn), true) = (&batch.turn, result.is_err()) {
            turn.break_at(image); // the script makes it, and may draw other numbers
        }
        if result == Err(Status::Internal) {
            self.renew();
        }
        if result.is_err() {
            for view in &batch.views {
                // SAFETY: only this thread has claimed `image` (`Job::claim` returns each number once), and it holds one slice of
                // the slot.
                #[allow(unsafe_code)]
                let slot = unsafe { view.memory.slot(image) };
                slot.fill(0);
            }
        }
        result
    }

    /// Fill the slots of the masks with the steps that were just drawn for the image.
    fn fill_masks(&mut self, batch: &Batch, image: usize) -> Result<()> {
        let record = batch.records[image] as usize;
        for (view, drawing) in batch.views.iter().zip(&self.drawings) {
            let Some(masks) = &view.masks else {
                continue;
            };
            // SAFETY: as in `fill`.
            #[allow(unsafe_code)]
            let slot = unsafe { masks.memory.slot(image) };
            masks.table.read(record, &mut self.bytes)?;
            let _seat = self.seats.as_deref().map(Seats::take);
            self.masker
                .draw(&self.bytes, self.size, &drawing.steps, masks.fill, slot)?;
        }
        Ok(())
    }

    fn try_fill(&mut self, batch: &Batch, image: usize, counters: &Counters) -> Result<()> {
        let record = batch.records[image] as usize;
        let began = Instant::now();
        let given = match (&batch.files, &batch.data) {
            (Some(files), _) => match &files.sources[image] {
                FileSource::Path(path) => {
                    read_file(path, &mut self.bytes)?;
                    None
                }
                FileSource::Bytes(bytes) => Some(bytes),
            },
            (None, Some(data)) => Some(&data[image]),
            (None, None) => {
                batch.table.read(record, &mut self.bytes)?;
                None
            }
        };
        // Taken out of `self`, so that the calls below can borrow the rest of the worker's memory.
        let own = std::mem::take(&mut self.bytes);
        let bytes = given.map_or(&own[..], |given| given.as_ref().as_ref());
        add(&counters.read_ns, began.elapsed());
        counters
            .bytes
            .fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        let upright = batch.files.as_ref().is_some_and(|files| files.upright);
        self.decoder.set_exif(upright);
        self.decoder.set_quiet(self.quiet);
        let scales = batch.views.iter().any(|view| view.program.scale_depth());
        self.decoder.set_scale_depth(scales);
        let result = self.decoder.open(bytes).and_then(|opened| {
            let files = batch.files.as_ref();
            if files.is_some_and(|files| !files.kinds[image].is(&opened)) {
                return Err(Status::Unsupported);
            }
            self.key = match batch.files {
                Some(_) if opened.takes_index() => content_key(bytes),
                _ => u64::from(batch.records[image]),
            };
            self.plan(batch, image, &opened)?;
            // Not before: the image whose turn it is to draw would wait for a seat that a waiting one has.
            let seats = self.seats.clone();
            let _seat = seats.as_deref().map(Seats::take);
            self.render(batch, image, &opened, counters)
        });
        self.bytes = own;
        result
    }

    /// Draw the steps of each view and plan the passes.
    fn plan(&mut self, batch: &Batch, image: usize, opened: &Opened<'_>) -> Result<()> {
        self.size = opened.size();
        self.drawings
            .resize_with(batch.views.len(), Drawing::default);
        if let Some(turn) = &batch.turn {
            self.replay(batch, turn, image)?;
        }
        for (view, drawing) in batch.views.iter().zip(&mut self.drawings) {
            let key = Key {
                seed: view.seed,
                epoch: batch.epoch,
                draw: batch.draws[image],
            };
            if batch.turn.is_none() {
                view.program.draw(self.size, key, &mut drawing.steps)?;
            }
            drawing
                .route
                .plan(&drawing.steps, self.size, view.program.fuse())?;
        }
        Ok(())
    }

    /// Draw the steps of each view from the batch's streams, once for each image.
    fn replay(&mut self, batch: &Batch, turn: &Turn, image: usize) -> Result<()> {
        if self.is_drawn {
            return Ok(());
        }
        let (size, drawings) = (self.size, &mut self.drawings);
        turn.draw(image, |source| {
            for &number in &turn.order {
                let (view, plan) = (&batch.views[number], &turn.plans[number]);
                let drawing = &mut drawings[number];
                view.program
                    .replay(size, plan, source, &mut drawing.steps)?;
                for step in &drawing.steps {
                    if let Step::Colour(ColourOp::TorchBlur(key)) = step {
                        torch_blur::want(*key); // they are there when the image is decoded
                    }
                }
                let (height, width) = view.program.out();
                drawing.erased.clear();
                for (at, erasing) in plan.erasings.iter().enumerate() {
                    let rect = erasing.draw(Size { width, height }, source)?;
                    drawing.erased.extend(rect.map(|rect| (rect, at)));
                }
            }
            Ok(())
        })?;
        self.is_drawn = true;
        Ok(())
    }

    /// Decode once for all views if that is less work, otherwise once for each view.
    fn render(
        &mut self,
        batch: &Batch,
        image: usize,
        opened: &Opened<'_>,
        counters: &Counters,
    ) -> Result<()> {
        let count = batch.views.len();
        if let Some(region) = self.shared_region(&batch.views, opened) {
            return self.decode_views(
                batch,
                image,
                opened,
                0..count,
                region,
                Scale::Full,
                counters,
            );
        }
        for number in 0..count {
            let route = &mut self.drawings[number].route;
            // Only JPEGs can be decoded at a reduced scale.
            let scale = if batch.views[number].program.dct_scale() && opened.is_jpeg() {
                route.reduce(self.size)
            } else {
                Scale::Full
            };
            let region = route.source;
            self.decode_views(
                batch,
                image,
                opened,
                number..number + 1,
                region,
                scale,
                counters,
            )?;
        }
        Ok(())
    }

    /// Return the region that contains the regions of all views, if decoding it is less work than decoding each of them.
    fn shared_region(&self, views: &[View], opened: &Opened<'_>) -> Option<Rect> {
        if views.len() < 2 || views.iter().any(|view| view.program.dct_scale()) {
            return None;
        }
        let sources = self.drawings.iter().map(|drawing| drawing.route.source);
        let apart: u64 = sources.clone().map(|source| source.area()).sum();
        let region = sources.reduce(|all, source| all.around(&source))?;
        // Images of other formats are always decoded whole.
        (region.area() <= apart || !opened.is_jpeg()).then_some(region)
    }

    #[allow(clippy::too_many_arguments)]
    /// Decode `region` and render the `views` of it into their slots.
    fn decode_views(
        &mut self,
        batch: &Batch,
        image: usize,
        opened: &Opened<'_>,
        views: Range<usize>,
        region: Rect,
        scale: Scale,
        counters: &Counters,
    ) -> Result<()> {
        let began = Instant::now();
        let known = batch.indexes.get(self.key);
        let options = DecodeOptions {
            index: known.as_deref(),
            scale,
        };
        let emit = Some(&mut self.index);
        let decoded = self.decoder.decode(opened, region, &options, emit)?;
        let rows = known.as_deref().map_or(0, Index::rows);
        batch.indexes.offer(self.key, &self.index, rows);
        let mut last = Instant::now();
        add(&counters.decode_ns, last - began);
        for number in views {
            let (view, drawing) = (&batch.views[number], &self.drawings[number]);
            // SAFETY: as in `fill`.
            #[allow(unsafe_code)]
            let slot = unsafe { view.memory.slot(image) };
            if view.store.is_direct() {
                self.renderer.render(decoded, &drawing.route, slot)?;
                add(&counters.resample_ns, last.elapsed());
                last = Instant::now();
                continue;
            }
            let (height, width) = view.program.out();
            let image_bytes = width as usize * height as usize * 3;
            if self.pixels.len() < image_bytes {
                self.pixels.resize(image_bytes, 0);
            }
            let pixels = &mut self.pixels[..image_bytes];
            self.renderer.render(decoded, &drawing.route, pixels)?;
            let resampled = Instant::now();
            add(&counters.resample_ns, resampled - last);
            view.store.write(pixels, slot)?;
            let plan = batch.turn.as_ref().map(|turn| &turn.plans[number]);
            for &(rect, at) in plan.map_or(&[][..], |_| &drawing.erased) {
                if let Some(erasing) = plan.and_then(|plan| plan.erasings.get(at)) {
                    view.store
                        .erase(slot, width as usize, rect, &erasing.value)?;
                }
            }
            last = Instant::now();
            add(&counters.store_ns, last - resampled);
        }
        Ok(())
    }
}
