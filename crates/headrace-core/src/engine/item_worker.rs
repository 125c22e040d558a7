//! The making of items by a worker thread: it opens each source once, decodes what its items need, and stores them.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use super::indexes::{content_key, IndexCache};
use super::items::{Item, Items};
use super::seats::Seats;
use super::worker::Worker;
use super::{add, Counters};
use crate::decode::{DecodeOptions, Decoder, Opened};
use crate::error::{or_internal, Result, Status};
use crate::geometry::{Rect, RgbView, Scale};
use crate::jpeg::index::Index;
use crate::resample::{Resampler, ResizeSpec};
use crate::store::Store;

impl Worker {
    /// Fill the items of a group and set their statuses. The memory of a failed item is zero; it never holds an earlier image.
    pub(super) fn fill_group(
        &mut self,
        batch: &Items,
        number: usize,
        statuses: &[AtomicI32],
        counters: &Counters,
    ) {
        let set = |number: usize, result: Result<()>| {
            let status = result.err().unwrap_or(Status::Ok);
            statuses[number].store(status as i32, Ordering::Release);
        };
        let result = or_internal(|| self.read_group(batch, number, &set, counters));
        if result == Err(Status::Internal) {
            self.renew();
        }
        for (number, item) in batch.group(number).1.iter().enumerate() {
            if result.is_err() {
                set(number, result);
            }
            if statuses[number].load(Ordering::Relaxed) != Status::Ok as i32 {
                // SAFETY: only this thread has claimed the group, and it holds one slice of the item's memory.
                #[allow(unsafe_code)]
                let memory = unsafe { batch.memory(item) };
                memory.fill(0);
            }
        }
    }

    /// Read and open the source of a group, and make its items. An error concerns all of them.
    fn read_group(
        &mut self,
        batch: &Items,
        number: usize,
        set: &impl Fn(usize, Result<()>),
        counters: &Counters,
    ) -> Result<()> {
        let (source, items) = batch.group(number);
        let began = Instant::now();
        // Taken out of `self`, so that the calls below can borrow the rest of the worker's memory.
        let mut own = std::mem::take(&mut self.bytes);
        let result = source.bytes(&mut own).and_then(|bytes| {
            add(&counters.read_ns, began.elapsed());
            counters
                .bytes
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let seats = self.seats.clone();
            let _seat = seats.as_deref().map(Seats::take);
            self.decoder.set_exif(batch.exif);
            self.decoder.set_scale_depth(batch.scale_depth);
            self.decoder.set_quiet(false); // Pillow has opened the image already
            let opened = self.decoder.open(bytes)?;
            let cache = batch
                .indexes
                .as_deref()
                .filter(|_| opened.takes_index())
                .map(|cache| (cache, content_key(bytes)));
            self.make_all(batch, items, &opened, cache, set, counters)
        });
        self.bytes = own;
        result
    }

    /// Return the region that contains what all items need, if decoding it is less work than decoding for each of them.
    fn shared_source(&self, batch: &Items, items: &[Item], opened: &Opened<'_>) -> Option<Rect> {
        if items.len() < 2 || batch.dct_scale {
            return None;
        }
        let mut apart = 0;
        let mut region: Option<Rect> = None;
        for item in items {
            let (spec, _) = item.spec(opened.size(), false).ok()?;
            let needed = spec.needed();
            if needed.area() == 0 || item.index.is_some() {
                return None;
            }
            apart += needed.area();
            region = Some(region.map_or(needed, |region| region.around(&needed)));
        }
        // Images of other formats are always decoded whole.
        region.filter(|region| region.area() <= apart || !opened.is_jpeg())
    }

    /// Make the items of an opened image, with its JPEG index from `cache`, which learns what decoding tells about the JPEG.
    fn make_all(
        &mut self,
        batch: &Items,
        items: &[Item],
        opened: &Opened<'_>,
        cache: Option<(&IndexCache, u64)>,
        set: &impl Fn(usize, Result<()>),
        counters: &Counters,
    ) -> Result<()> {
        self.known.clear();
        if let Some(index) = cache.and_then(|(cache, key)| cache.get(key)) {
            self.known.copy_from(&index);
        }
        let mut found = self.known.rows();
        let emits = cache.is_some();
        let mut result = Err(Status::BadIndex);
        let shared = self.shared_source(batch, items, opened);
        if let Some(region) = shared {
            result = self.make_from_one(batch, items, opened, region, emits, set, counters);
        }
        // An item has the status of its own region: damage that only others need is none of its.
        if result == Err(Status::BadIndex) || (result.is_err() && opened.is_jpeg()) {
            if shared.is_some() && result == Err(Status::BadIndex) {
                found = 0;
                self.forget(cache);
            }
            for (number, item) in items.iter().enumerate() {
                // What the decoding of one item tells serves the next.
                let emits = emits || (items.len() > 1 && opened.takes_index());
                let mut result = self.make(batch, item, opened, emits, counters);
                if result == Err(Status::BadIndex) && item.index.is_none() {
                    found = 0;
                    self.forget(cache);
                    result = self.make(batch, item, opened, false, counters);
                }
                set(number, result);
            }
            result = Ok(());
        }
        if let Some((cache, key)) = cache {
            cache.offer(key, &self.known, found);
        }
        result
    }

    /// Forget the JPEG index of the image: it does not fit the bytes, which are decoded as if they were new.
    fn forget(&mut self, cache: Option<(&IndexCache, u64)>) {
        self.known.clear();
        if let Some((cache, key)) = cache {
            cache.forget(key);
        }
    }

    /// Decode `region` and make all items from it.
    #[allow(clippy::too_many_arguments)]
    fn make_from_one(
        &mut self,
        batch: &Items,
        items: &[Item],
        opened: &Opened<'_>,
        region: Rect,
        emits: bool,
        set: &impl Fn(usize, Result<()>),
        counters: &Counters,
    ) -> Result<()> {
        let began = Instant::now();
        let Worker {
            decoder,
            renderer,
            pixels,
            index,
            known,
            ..
        } = self;
        let view = decode(decoder, opened, region, Scale::Full, (known, index), emits)?;
        let decoded = Instant::now();
        add(&counters.decode_ns, decoded - began);
        for (number, item) in items.iter().enumerate() {
            let (spec, _) = item.spec(opened.size(), false)?;
            // SAFETY: as in `fill_group`.
            #[allow(unsafe_code)]
            let memory = unsafe { batch.memory(item) };
            let resampler = renderer.resampler();
            let result = write(view, &spec, resampler, pixels, batch.store(item), memory);
            set(number, result);
        }
        add(&counters.resample_ns, decoded.elapsed());
        Ok(())
    }

    /// Decode and store one item.
    fn make(
        &mut self,
        batch: &Items,
        item: &Item,
        opened: &Opened<'_>,
        emits: bool,
        counters: &Counters,
    ) -> Result<()> {
        let began = Instant::now();
        // Only JPEGs can be decoded at a reduced scale.
        let reduced = batch.dct_scale && opened.is_jpeg();
        let (spec, scale) = item.spec(opened.size(), reduced)?;
        let Worker {
            decoder,
            renderer,
            pixels,
            index,
            known,
            ..
        } = self;
        let view = match item.index.as_deref() {
            Some(given) => {
                let index = Some(given);
                let options = DecodeOptions { index, scale };
                decoder.decode(opened, spec.needed(), &options, None)?
            }
            None => decode(decoder, opened, spec.needed(), scale, (known, index), emits)?,
        };
        let decoded = Instant::now();
        add(&counters.decode_ns, decoded - began);
        // SAFETY: as in `fill_group`.
        #[allow(unsafe_code)]
        let memory = unsafe { batch.memory(item) };
        let (resampler, store) = (renderer.resampler(), batch.store(item));
        let result = write(view, &spec, resampler, pixels, store, memory);
        add(&counters.resample_ns, decoded.elapsed());
        result
    }
}

/// Decode `region` with the index that is `known`. With `emits`, that index then covers what was decoded; `scratch` is memory for
/// it.
fn decode<'a>(
    decoder: &'a mut Decoder,
    opened: &Opened<'_>,
    region: Rect,
    scale: Scale,
    (known, scratch): (&mut Index, &mut Index),
    emits: bool,
) -> Result<RgbView<'a>> {
    let options = DecodeOptions {
        index: Some(&*known).filter(|known| !known.is_empty()),
        scale,
    };
    let emit = Some(&mut *scratch).filter(|_| emits);
    let view = decoder.decode(opened, region, &options, emit)?;
    if emits && scratch.rows() > known.rows() {
        std::mem::swap(known, scratch);
    }
    Ok(view)
}

/// Resample `view` and store the result in `memory`, which has its size; `pixels` is scratch memory.
fn write(
    view: RgbView<'_>,
    spec: &ResizeSpec,
    resampler: &mut Resampler,
    pixels: &mut Vec<u8>,
    store: &Store,
    memory: &mut [u8],
) -> Result<()> {
    let row = spec.window.w as usize * 3;
    if store.is_direct() {
        return resampler.resize_into(view, spec, memory, row);
    }
    let bytes = row * spec.window.h as usize;
    if pixels.len() < bytes {
        pixels.resize(bytes, 0);
    }
    let pixels = &mut pixels[..bytes];
    resampler.resize_into(view, spec, pixels, row)?;
    store.write(pixels, memory)
}
