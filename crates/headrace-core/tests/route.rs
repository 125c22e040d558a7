//! Routes: which operations are combined into one pass, and which region is decoded. `allocations.rs` checks that planning
//! allocates nothing.
#![allow(clippy::unwrap_used)]

mod common;

use headrace_core::colour::draw::ColourStep;
use headrace_core::colour::ColourOp;
use headrace_core::geometry::{Rect, RgbView, Size};
use headrace_core::program::op::Op;
use headrace_core::program::route::{Fuse, Pass, Route};
use headrace_core::program::step::Sampling;
use headrace_core::program::Program;
use headrace_core::render::Renderer;
use headrace_core::resample::Filter;
use headrace_core::rng::Key;
use headrace_core::warp::Interpolation;

const IMAGE: Size = Size {
    width: 200,
    height: 150,
};

fn rotation(degrees: (f64, f64), fill: [u8; 3]) -> Op {
    Op::RandomRotation {
        degrees,
        expand: false,
        center: None,
        sampling: Sampling {
            interpolation: Interpolation::Bilinear,
            fill,
        },
    }
}

fn crop(scale: f64) -> Op {
    Op::RandomResizedCrop {
        size: (40, 50),
        scale: (scale, scale),
        ratio: (0.75, 4.0 / 3.0),
        filters: Filter::Bilinear.into(),
    }
}

fn colour(op: ColourOp) -> Op {
    Op::Colour(ColourStep::Sometimes { p: 1.0, op })
}

fn route(ops: &[Op], fuse: Fuse, draw: u64) -> Route {
    let program = Program::new(ops.to_vec(), fuse).unwrap();
    let (mut steps, mut route) = (Vec::new(), Route::default());
    let key = Key {
        seed: 5,
        epoch: 0,
        draw,
    };
    program.draw(IMAGE, key, &mut steps).unwrap();
    route.plan(&steps, IMAGE, fuse).unwrap();
    route
}

/// Return the passes as one letter each.
fn passes(ops: &[Op], fuse: Fuse) -> String {
    let letter = |pass: &Pass| match pass {
        Pass::Cut(_) => 'c',
        Pass::Warp { .. } => 'w',
        Pass::Colour(_) => 'o',
    };
    let legs = route(ops, fuse, 1).legs;
    legs.iter().map(|leg| letter(&leg.pass)).collect()
}

#[test]
fn geometric_operations_become_one_pass_or_stay_exact() {
    let (turn, flip) = (rotation((5.0, 9.0), [0; 3]), Op::FlipX { p: 1.0 });
    let other = rotation((5.0, 9.0), [1; 3]);
    let resize = Op::ResizeExact {
        size: (60, 60),
        filter: Filter::Bicubic,
    };
    let (bright, equal) = (
        colour(ColourOp::Brightness(1.5)),
        colour(ColourOp::Equalize),
    );
    for (ops, fused, off) in [
        (vec![flip, crop(0.5), flip], "c", "c"),
        (vec![resize, crop(0.5)], "cc", "cc"),
        (vec![crop(0.5), turn], "w", "w"),
        (vec![turn, flip, turn, crop(0.5)], "w", "wwc"),
        (vec![flip, turn, crop(0.5)], "w", "cwc"),
        (vec![turn, other, crop(0.5)], "ww", "wwc"),
        (vec![turn, bright, turn, crop(0.5)], "wow", "wowc"),
        (vec![crop(0.5), bright, equal, flip], "coo", "coo"),
        (vec![bright, crop(0.5)], "coc", "coc"),
        (vec![crop(0.5), turn, bright, flip], "wo", "wo"),
    ] {
        assert_eq!(passes(&ops, Fuse::Geometry), fused, "{ops:?}");
        assert_eq!(passes(&ops, Fuse::Off), off, "{ops:?}");
    }
}

#[test]
fn only_the_region_that_the_last_pass_needs_is_decoded() {
    let turn = rotation((-5.0, 5.0), [0; 3]);
    let area = |rect: Rect| f64::from(rect.w * rect.h) / f64::from(IMAGE.width * IMAGE.height);
    let mean = |ops: &[Op], fuse| {
        let total: f64 = (0..50)
            .map(|draw| area(route(ops, fuse, draw).source))
            .sum();
        total / 50.0
    };
    let few = [turn, colour(ColourOp::Hue(0.2)), turn, crop(0.1)];
    for fuse in [Fuse::Geometry, Fuse::Off] {
        let decoded = mean(&few, fuse);
        assert!((0.1..0.25).contains(&decoded), "{decoded}");
    }
    // A histogram needs every pixel.
    let all = [colour(ColourOp::Equalize), crop(0.1)];
    assert_eq!(mean(&all, Fuse::Geometry), 1.0);
}

#[test]
fn extreme_numbers_give_an_error_and_no_panic() {
    let mut renderer = Renderer::default();
    let image = common::pattern(IMAGE.width, IMAGE.height, 0);
    let huge = Op::Pad {
        padding: [u32::MAX; 4],
        fill: [3; 3],
    };
    let affine = |scale: (f64, f64), shear: f64| Op::RandomAffine {
        degrees: (-1e8, 1e8),
        translate: Some((1.0, 1.0)),
        scale: Some(scale),
        shear: [(-shear, shear), (-shear, shear)],
        center: Some((-1e8, 1e8)),
        sampling: Sampling {
            interpolation: Interpolation::Bilinear,
            fill: [9; 3],
        },
    };
    for ops in [
        vec![huge, crop(0.5)],
        vec![affine((1e-300, 1e300), 1e8), crop(0.5)],
        vec![
            affine((1e-300, 1e-300), 90.0),
            affine((1e300, 1e300), 0.0),
            crop(0.5),
        ],
        vec![
            crop(0.5),
            affine((1.0, 1.0), 90.0),
            affine((1e-5, 1e5), 89.999_999),
        ],
    ] {
        for fuse in [Fuse::Geometry, Fuse::Off] {
            let program = Program::new(ops.clone(), fuse).unwrap();
            for draw in 0..50 {
                let key = Key {
                    seed: 1,
                    epoch: 2,
                    draw,
                };
                let (mut steps, mut route) = (Vec::new(), Route::default());
                if program.draw(IMAGE, key, &mut steps).is_err() {
                    continue;
                }
                if route.plan(&steps, IMAGE, fuse).is_err() || !route.source.fits(200, 150) {
                    continue;
                }
                let view = RgbView {
                    pixels: &image,
                    stride: 600,
                    region: Rect::new(0, 0, 200, 150),
                };
                let _ = renderer.render(view, &route, &mut vec![0; 40 * 50 * 3]);
            }
        }
    }
}
