//! Decoding, resampling and flipping baseline JPEGs takes no memory from the allocator once every buffer has its size.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headrace_core::decode::{Decoder, Size};
use headrace_core::geometry::Rect;
use headrace_core::jpeg::restart::{restart_markers, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use headrace_core::resample::{Filter, Resampler, ResizeSpec};

/// The system's allocator, counting what the current thread asks of it.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // Unreachable while the thread ends; nothing is counted then.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
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

/// Files of different sizes and samplings, with and without restart markers.
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
fn the_counter_counts() {
    assert_eq!(calls_during(|| ()), 0);
    assert!(calls_during(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0);
}

#[test]
fn no_allocation_per_image_in_steady_state() {
    let images = images();
    let (mut decoder, mut resampler) = (Decoder::new(), Resampler::default());
    let mut slot = vec![0u8; 224 * 224 * 3];
    let mut pass = || {
        for (number, (size, data)) in images.iter().enumerate() {
            for quarter in 1..=4 {
                let found = decoder.size(data).unwrap();
                assert_eq!(found, *size);
                let (w, h) = (size.width * quarter / 4, size.height * quarter / 4);
                let spec = ResizeSpec {
                    box_: Rect::new((size.width - w) / 2, (size.height - h) / 2, w, h),
                    grid_w: 224,
                    grid_h: 224,
                    window: Rect::new(0, 0, 224, 224),
                    filter: Filter::Bilinear,
                    flip_x: number % 2 == 0,
                    flip_y: false,
                };
                let view = decoder.region(data, spec.needed()).unwrap();
                resampler
                    .resize_into(view, &spec, &mut slot, 224 * 3)
                    .unwrap();
            }
        }
    };
    assert!(
        calls_during(&mut pass) > 0,
        "the first pass makes the buffers"
    );
    assert_eq!(calls_during(&mut pass), 0);
}
