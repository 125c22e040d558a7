//! One image: bytes → pixels of the crop → resampled → the batch slot.

use std::time::Instant;

use super::{add, Batch, Counters};
use crate::decode::{DecodeOptions, Decoder, Scale, Size};
use crate::error::{Result, Status};
use crate::jpeg::index::Index;
use crate::mask::Masker;
use crate::program::route::Route;
use crate::program::step::Step;
use crate::render::Renderer;
use crate::rng::Key;

/// The reusable memory of one thread. Nothing in it carries over from one image to the next.
#[derive(Default)]
pub struct Worker {
    bytes: Vec<u8>,
    pixels: Vec<u8>,
    decoder: Decoder,
    renderer: Renderer,
    steps: Vec<Step>,
    route: Route,
    index: Index,
    masker: Masker,
    size: Size,
}

impl Worker {
    /// Fills slot `image` of the batch. On an error the slot is black, never stale.
    pub fn fill(&mut self, batch: &Batch, image: usize, counters: &Counters) -> Result<()> {
        // SAFETY: `image` was claimed by this thread alone (`Job::claim` hands out each number once).
        #[allow(unsafe_code)]
        let slot = unsafe { batch.memory.slot(image) };
        let mut result = self.try_fill(batch, image, slot, counters);
        if result == Err(Status::BadIndex) {
            // An index is checked by length and checksum of the bytes: the file has changed since it was made.
            batch.indexes.forget(batch.records[image]);
            result = self.try_fill(batch, image, slot, counters);
        }
        if result.is_ok() {
            result = self.fill_mask(batch, image);
        }
        if result.is_err() {
            slot.fill(0);
        }
        result
    }

    /// Fills the slot of the mask, by the steps that the image was just drawn by.
    fn fill_mask(&mut self, batch: &Batch, image: usize) -> Result<()> {
        let Some(masks) = &batch.masks else {
            return Ok(());
        };
        // SAFETY: as for the image's slot.
        #[allow(unsafe_code)]
        let slot = unsafe { masks.memory.slot(image) };
        let record = batch.records[image] as usize;
        let result = masks.table.read(record, &mut self.bytes).and_then(|()| {
            self.masker
                .draw(&self.bytes, self.size, &self.steps, masks.fill, slot)
        });
        if result.is_err() {
            slot.fill(masks.fill);
        }
        result
    }

    fn try_fill(
        &mut self,
        batch: &Batch,
        image: usize,
        slot: &mut [u8],
        counters: &Counters,
    ) -> Result<()> {
        let record = batch.records[image] as usize;
        let began = Instant::now();
        let bytes: &[u8] = match &batch.data {
            Some(data) => data[image].as_ref().as_ref(),
            None => {
                batch.table.read(record, &mut self.bytes)?;
                &self.bytes
            }
        };
        let read = Instant::now();
        add(&counters.read_ns, read - began);
        counters
            .bytes
            .fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);

        let size = self.decoder.size(bytes)?;
        self.size = size;
        let key = Key {
            seed: batch.seed,
            epoch: batch.epoch,
            draw: batch.draws[image],
        };
        batch.program.draw(size, key, &mut self.steps)?;
        self.route.plan(&self.steps, size, batch.program.fuse())?;
        let (height, width) = batch.program.out();
        let image_bytes = width as usize * height as usize * 3;

        // JPEGs only: nothing else has a frequency domain to be cut in.
        let scale = if batch.program.dct_scale() && self.bytes.starts_with(&[0xFF, 0xD8]) {
            self.route.reduce(size)
        } else {
            Scale::Full
        };
        let needed = self.route.source;
        let known = batch.indexes.get(batch.records[image]);
        let options = DecodeOptions {
            index: known.as_deref(),
            scale,
        };
        let emit = Some(&mut self.index);
        let view = self.decoder.region_with(bytes, needed, &options, emit)?;
        if !self.index.is_empty() {
            batch.indexes.offer(batch.records[image], &self.index);
        }
        let decoded = Instant::now();
        add(&counters.decode_ns, decoded - read);

        if batch.store.is_direct() {
            self.renderer.render(view, &self.route, slot)?;
            add(&counters.resample_ns, decoded.elapsed());
            return Ok(());
        }
        if self.pixels.len() < image_bytes {
            self.pixels.resize(image_bytes, 0);
        }
        let pixels = &mut self.pixels[..image_bytes];
        self.renderer.render(view, &self.route, pixels)?;
        let resampled = Instant::now();
        add(&counters.resample_ns, resampled - decoded);
        batch.store.write(pixels, slot)?;
        add(&counters.store_ns, resampled.elapsed());
        Ok(())
    }
}
