//! Times the augmentation load on decoded pixels: n times (two flips, a rotation by up to 5°), then a RandomResizedCrop to 224 ×
//! 224.
//!
//! Run: `cargo run --release -p headrace-core --example bench_augment`

mod clock;

use headrace_core::error::Result;
use headrace_core::geometry::{RgbView, Size};
use headrace_core::program::op::Op;
use headrace_core::program::route::{Fuse, Route};
use headrace_core::program::step::Sampling;
use headrace_core::program::Program;
use headrace_core::render::Renderer;
use headrace_core::resample::Filter;
use headrace_core::rng::Key;
use headrace_core::warp::Interpolation;

const IMAGE: Size = Size {
    width: 468,
    height: 401,
};
const SIDE: u32 = 224;
const DRAWS: u64 = 20;

fn program(load: usize, interpolation: Interpolation, fuse: Fuse) -> Program {
    let sampling = Sampling {
        interpolation,
        fill: [0; 3],
    };
    let rotation = Op::RandomRotation {
        degrees: (-5.0, 5.0),
        expand: false,
        center: None,
        sampling,
    };
    let mut ops = [Op::FlipX { p: 0.5 }, Op::FlipY { p: 0.5 }, rotation].repeat(load);
    ops.push(Op::RandomResizedCrop {
        size: (SIDE, SIDE),
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
        filters: Filter::Bilinear.into(),
    });
    Program::new(ops, fuse).expect("a valid pipeline")
}

/// Return the mean time of an image in milliseconds over `DRAWS` draws, measured for at least a tenth of a second.
fn mean_ms(program: &Program, pixels: &[u8]) -> Result<f64> {
    let (mut renderer, mut route, mut steps) = (Renderer::default(), Route::default(), Vec::new());
    let mut out = vec![0; (SIDE * SIDE * 3) as usize];
    let stride = IMAGE.width as usize * 3;
    let mut pass = || -> Result<()> {
        for draw in 0..DRAWS {
            let key = Key {
                seed: 1,
                epoch: 0,
                draw,
            };
            program.draw(IMAGE, key, &mut steps)?;
            route.plan(&steps, IMAGE, program.fuse())?;
            let region = route.source;
            let first = region.y as usize * stride + region.x as usize * 3;
            let view = RgbView {
                pixels: &pixels[first..],
                stride,
                region,
            };
            renderer.render(view, &route, &mut out)?;
        }
        Ok(())
    };
    pass()?;
    let (start, mut passes) = (clock::seconds(), 0);
    loop {
        pass()?;
        passes += 1;
        let spent = clock::seconds() - start;
        if spent > 0.1 {
            return Ok(spent * 1e3 / f64::from(passes) / DRAWS as f64);
        }
    }
}

fn main() -> Result<()> {
    let pixels: Vec<u8> = (0..IMAGE.width * IMAGE.height * 3)
        .map(|i| (i.wrapping_mul(i) / 997 + i / 3) as u8)
        .collect();
    println!(
        "{:12} {:9} {:>5} {:>10}",
        "rotation", "fuse", "load", "ms/image"
    );
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear] {
        for fuse in [Fuse::Geometry, Fuse::Off] {
            for load in [1, 4, 8, 12] {
                let spent = mean_ms(&program(load, interpolation, fuse), &pixels)?;
                let (how, rotation) = (format!("{fuse:?}"), format!("{interpolation:?}"));
                println!("{rotation:12} {how:9} {load:5} {spent:10.3}");
            }
        }
    }
    Ok(())
}
