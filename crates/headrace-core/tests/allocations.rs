//! Decoding baseline JPEGs, and every operation on their pixels, takes no memory from the allocator once every buffer has its size.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headrace_core::colour::draw::ColourStep;
use headrace_core::decode::{Decoder, Size};
use headrace_core::geometry::Rect;
use headrace_core::jpeg::restart::{restart_markers, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use headrace_core::program::augment::{Augment, Policy, IMAGENET};
use headrace_core::program::route::{Fuse, Route};
use headrace_core::program::step::Sampling;
use headrace_core::program::{Op, Program};
use headrace_core::render::Renderer;
use headrace_core::resample::{Filter, Resampler, ResizeSpec};
use headrace_core::rng::Key;
use headrace_core::warp::Interpolation;

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

#[test]
fn no_allocation_per_augmented_image_in_steady_state() {
    let sampling = Sampling {
        interpolation: Interpolation::Bilinear,
        fill: [1, 2, 3],
    };
    let augment = |policy| Op::Augment(Augment { policy, sampling });
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
        filter: Filter::Bilinear,
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
