//! Decoding JPEGs, and every operation on their pixels, allocates nothing once every buffer has its size.
//!
//! Exceptions: libjpeg-turbo, which decodes files that are not baseline, allocates in C, which is not counted here (our code
//! around it allocates nothing); the libraries for PNG, WebP, GIF, TIFF and BMP allocate for every image.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use headrace_core::colour::draw::ColourStep;
use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::engine::{
    fill_items, BatchMemory, Group, IndexCache, Item, ItemBytes, Items, Source, Target,
};
use headrace_core::geometry::{Rect, Scale, Size};
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::restart::{restart_markers, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use headrace_core::program::augment::{Augment, Generation, Policy, IMAGENET};
use headrace_core::program::op::Op;
use headrace_core::program::route::{Fuse, Route};
use headrace_core::program::step::Sampling;
use headrace_core::program::Program;
use headrace_core::render::Renderer;
use headrace_core::resample::{Filter, Resampler, ResizeSpec};
use headrace_core::rng::Key;
use headrace_core::store::{self, Store, Values};
use headrace_core::warp::Interpolation;

/// The allocator of the system, which counts the allocations of the current thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // The counter is gone while the thread ends; nothing is counted then.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes unchanged to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls_during(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// Return files of different sizes and samplings, with and without restart markers.
fn images() -> Vec<(Size, Vec<u8>)> {
    let mut images = Vec::new();
    for (number, factors) in [(1, 1), (2, 1), (2, 2), (1, 2)].into_iter().enumerate() {
        for gray in [false, true] {
            let size = Size {
                width: 200 + 60 * number as u32,
                height: 300 - 50 * number as u32,
            };
            let samples = size.width * size.height * if gray { 1 } else { 3 };
            let pixels: Vec<u8> = (0..samples)
                .map(|i| (i.wrapping_mul(i) / 997 + i / 3) as u8)
                .collect();
            let how = Encoding {
                factors: [factors, (1, 1), (1, 1)],
                gray,
                ..Encoding::default()
            };
            let plain = turbo::encode(&pixels, size, &how).unwrap();
            let mut marked = Vec::new();
            restart_markers(&plain, &RestartOptions::default(), &mut marked).unwrap();
            images.extend([(size, plain), (size, marked)]);
        }
    }
    images
}

#[test]
fn allocations_are_counted() {
    assert_eq!(calls_during(|| ()), 0);
    assert!(calls_during(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0);
}

/// Return a random crop of a training image.
fn training(size: Size, quarter: u32, flip_x: bool) -> ResizeSpec {
    let (w, h) = (size.width * quarter / 4, size.height * quarter / 4);
    ResizeSpec {
        box_: Rect::new((size.width - w) / 2, (size.height - h) / 2, w, h),
        grid_w: 224,
        grid_h: 224,
        window: Rect::new(0, 0, 224, 224),
        filter: Filter::Bilinear,
        flip_x,
        flip_y: false,
    }
}

/// Return the resampling of `Resize(256)` and `CenterCrop(224)`.
fn evaluation(size: Size, filter: Filter) -> ResizeSpec {
    let short = size.width.min(size.height);
    let (grid_w, grid_h) = (256 * size.width / short, 256 * size.height / short);
    ResizeSpec {
        box_: Rect::new(0, 0, size.width, size.height),
        grid_w,
        grid_h,
        window: Rect::new((grid_w - 224) / 2, (grid_h - 224) / 2, 224, 224),
        filter,
        flip_x: false,
        flip_y: false,
    }
}

/// The memory of one decoding thread, and a slot.
#[derive(Default)]
struct Thread {
    decoder: Decoder,
    resampler: Resampler,
    emitted: Index,
    slot: Vec<u8>,
}

impl Thread {
    /// Decode and resize as the engine does, with an `index` if there is one, and write the index entries that are known
    /// afterwards.
    fn image(&mut self, data: &[u8], spec: &ResizeSpec, index: Option<&Index>) {
        self.slot.resize(224 * 224 * 3, 0);
        let options = DecodeOptions {
            index,
            ..DecodeOptions::default()
        };
        let view = self
            .decoder
            .region_with(data, spec.needed(), &options, Some(&mut self.emitted))
            .unwrap();
        self.resampler
            .resize_into(view, spec, &mut self.slot, 224 * 3)
            .unwrap();
    }
}

/// Run the same work twice: the first pass allocates the buffers, the second pass must allocate nothing.
fn assert_steady(what: &str, mut pass: impl FnMut(&mut Thread)) {
    let mut thread = Thread::default();
    assert!(
        calls_during(|| pass(&mut thread)) > 0,
        "{what}: the first pass allocates the buffers"
    );
    assert_eq!(calls_during(|| pass(&mut thread)), 0, "{what}");
}

#[test]
fn random_crops_allocate_nothing() {
    let images = images();
    assert_steady("random crops", |thread| {
        for (number, (size, data)) in images.iter().enumerate() {
            for quarter in 1..=4 {
                assert_eq!(thread.decoder.size(data), Ok(*size));
                thread.image(data, &training(*size, quarter, number % 2 == 0), None);
            }
        }
    });
}

#[test]
fn crops_with_an_index_allocate_nothing() {
    let images = images();
    let indexes: Vec<Index> = images
        .iter()
        .map(|(size, data)| {
            let (mut decoder, mut index) = (Decoder::new(), Index::new());
            let whole = Rect::new(0, 0, size.width, size.height);
            decoder
                .region_with(data, whole, &DecodeOptions::default(), Some(&mut index))
                .unwrap();
            index
        })
        .collect();
    assert!(indexes.iter().any(|index| !index.is_empty()));
    assert_steady("with an index", |thread| {
        for ((size, data), index) in images.iter().zip(&indexes) {
            for quarter in 1..=4 {
                thread.image(data, &training(*size, quarter, false), Some(index));
            }
        }
    });
}

/// Encoded bytes of the test.
struct Bytes(Vec<u8>);

impl ItemBytes for Bytes {
    fn get<'a>(&'a self, _: &'a mut Vec<u8>) -> &'a [u8] {
        &self.0
    }
}

#[test]
fn items_allocate_nothing_each() {
    let images = images();
    let indexes = Arc::new(IndexCache::new(1 << 20));
    let table = Box::new([[0.5f32; 256]; 3]);
    let stores = [
        (store::Layout::Hwc, Values::U8),
        (store::Layout::Chw, Values::U8),
        (store::Layout::Chw, Values::F32(table)),
    ];
    for (layout, values) in stores {
        let store = Arc::new(Store { layout, values });
        let mut memory = vec![0; images.len() * 4 * 40 * 30 * 3 * 4];
        let mut made_by = |count: usize| {
            let group = |(_, data): &(Size, Vec<u8>)| Group {
                source: Source::Memory(Box::new(Bytes(data.clone()))),
                count: 4,
            };
            let bytes = 40 * 30 * 3 * store.value_bytes();
            let items = (0..count * 4).map(|number| Item {
                box_: Some(Rect::new(number as u32 % 4 * 30, 20, 90, 70)),
                size: Some((60, 50)),
                window: Some(Rect::new(5, 6, 40, 30)),
                place: (0, number * bytes),
                ..Item::default()
            });
            let items = items.collect();
            // SAFETY: the memory outlives the batch, and nobody else uses it.
            let memory = unsafe { BatchMemory::new(memory.as_mut_ptr(), memory.len(), 1) };
            let store = Arc::clone(&store);
            let targets = vec![Target { store, memory }];
            let groups = images[..count].iter().map(group).collect();
            let mut batch = Items::new(groups, items, targets).unwrap();
            batch.indexes = Some(Arc::clone(&indexes));
            let mut statuses = Vec::new();
            let calls = calls_during(|| statuses = fill_items(batch, 1));
            assert!(statuses.iter().all(|&status| status == 0), "{statuses:?}");
            calls
        };
        made_by(images.len()); // buffers and indexes
        let (few, many) = (made_by(1), made_by(images.len()));
        assert_eq!(few, many, "for the batch, whatever its size");
    }
}

#[test]
fn evaluation_with_every_filter_allocates_nothing() {
    let images = images();
    assert_steady("evaluation", |thread| {
        for (size, data) in &images {
            for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
                thread.image(data, &evaluation(*size, filter), None);
            }
        }
    });
}

#[test]
fn reduced_scales_allocate_nothing() {
    let images = images();
    assert_steady("reduced scales", |thread| {
        for (size, data) in &images {
            for scale in [Scale::Half, Scale::Quarter] {
                let small = size.scaled(scale);
                let options = DecodeOptions {
                    scale,
                    ..DecodeOptions::default()
                };
                let whole = Rect::new(0, 0, small.width, small.height);
                thread
                    .decoder
                    .region_with(data, whole, &options, None)
                    .unwrap();
            }
        }
    });
}

#[test]
fn our_code_around_libjpeg_turbo_allocates_nothing() {
    let size = Size {
        width: 150,
        height: 110,
    };
    let pixels: Vec<u8> = (0..size.width * size.height * 3)
        .map(|i| (i.wrapping_mul(i) / 997 + i / 3) as u8)
        .collect();
    let kinds = [
        Encoding {
            progressive: true,
            ..Encoding::default()
        },
        Encoding {
            separate_scans: true,
            ..Encoding::default()
        },
        Encoding {
            arithmetic: true,
            ..Encoding::default()
        },
        Encoding {
            twelve_bits: true,
            ..Encoding::default()
        },
    ];
    let files = kinds.map(|how| turbo::encode(&pixels, size, &how).unwrap());
    assert_steady("fallback", |thread| {
        for data in &files {
            for quarter in 1..=4 {
                thread.image(data, &training(size, quarter, false), None);
            }
        }
    });
}

#[test]
fn augmentation_allocates_nothing() {
    let sampling = Sampling {
        interpolation: Interpolation::Bilinear,
        fill: [1, 2, 3],
    };
    let augment = |policy| {
        Op::Augment(Augment {
            policy,
            sampling,
            generation: Generation::V2,
        })
    };
    let rand = Policy::Rand {
        ops: 3,
        magnitude: 9,
        bins: 31,
    };
    let rotation = Op::RandomRotation {
        degrees: (-20.0, 20.0),
        expand: false,
        center: None,
        sampling,
    };
    let load = [Op::FlipX { p: 0.5 }, Op::FlipY { p: 0.5 }, rotation];
    let mut ops = load.repeat(6);
    ops.push(Op::RandomResizedCrop {
        size: (96, 96),
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
        filters: Filter::Bilinear.into(),
    });
    ops.extend([augment(rand), augment(Policy::Auto(IMAGENET))]);
    ops.push(Op::Colour(ColourStep::Blur {
        kernel: (5, 5),
        sigma: (0.1, 2.0),
    }));
    let images = images();
    let mut slot = vec![0u8; 96 * 96 * 3];
    for fuse in [Fuse::Geometry, Fuse::Off] {
        let program = Program::new(ops.clone(), fuse).unwrap();
        let (mut decoder, mut renderer) = (Decoder::new(), Renderer::default());
        let (mut steps, mut route) = (Vec::new(), Route::default());
        let mut pass = || {
            for (size, data) in &images {
                for draw in 0..20 {
                    let key = Key {
                        seed: 0,
                        epoch: 0,
                        draw,
                    };
                    program.draw(*size, key, &mut steps).unwrap();
                    route.plan(&steps, *size, fuse).unwrap();
                    let view = decoder.region(data, route.source).unwrap();
                    renderer.render(view, &route, &mut slot).unwrap();
                }
            }
        };
        assert!(calls_during(&mut pass) > 0);
        assert_eq!(calls_during(&mut pass), 0, "{fuse:?}");
    }
}
