//! Times the augmentation load: a RandomResizedCrop to 224 × 224 followed by n rotations, 2n flips, n / 4 blurs, n / 4 dilations and a
//! colour jitter, with the geometry composed into one sampling and op by op.
//!
//! Run: `cargo run --release -p headrace-core --example bench_augment`

mod clock;

use headrace_core::colour::{ColourOp, Colourist};
use headrace_core::cpu::Extension;
use headrace_core::error::Result;
use headrace_core::geometry::{Rect, RgbView};
use headrace_core::resample::{Filter, Resampler, ResizeSpec};
use headrace_core::warp::{Affine, Interpolation, WarpSpec, Warper};

const WIDTH: u32 = 500;
const HEIGHT: u32 = 375;
const SIDE: u32 = 224;
const ROW: usize = SIDE as usize * 3;
const CROP: Rect = Rect {
    x: 60,
    y: 40,
    w: 286,
    h: 269,
};

struct Bench {
    image: Vec<u8>,
    warper: Warper,
    resampler: Resampler,
    colourist: Colourist,
    out: Vec<u8>,
    other: Vec<u8>,
}

impl Bench {
    fn view(&self) -> RgbView<'_> {
        RgbView {
            pixels: &self.image,
            stride: WIDTH as usize * 3,
            region: Rect::new(0, 0, WIDTH, HEIGHT),
        }
    }

    /// The angle of the n-th rotation, in degrees.
    fn angle(step: u32) -> f64 {
        f64::from(step * 37 % 31) - 15.0
    }

    fn spec(map: Affine, box_: Rect) -> WarpSpec {
        WarpSpec {
            box_,
            grid_w: SIDE,
            grid_h: SIDE,
            filter: Filter::Bilinear,
            map,
            width: SIDE,
            height: SIDE,
            interpolation: Interpolation::Bilinear,
            fill: [0; 3],
            antialias: true,
        }
    }

    /// Resize and all geometry in one warp.
    fn fused(&mut self, load: u32) -> Result<()> {
        let mut map = Affine::IDENTITY;
        for step in 0..load {
            map = map.then(&Affine::rotation(Self::angle(step), SIDE, SIDE));
            map = map.then(&Affine::flip_x(SIDE)).then(&Affine::flip_y(SIDE));
        }
        let mut warper = std::mem::take(&mut self.warper);
        let mut out = std::mem::take(&mut self.out);
        let result = warper.warp_into(self.view(), &Self::spec(map, CROP), &mut out, ROW);
        (self.warper, self.out) = (warper, out);
        result
    }

    /// Resize, then each rotation and flip by itself.
    fn op_by_op(&mut self, load: u32) -> Result<()> {
        let mut out = std::mem::take(&mut self.out);
        let mut resampler = std::mem::take(&mut self.resampler);
        resampler.resize_into(
            self.view(),
            &ResizeSpec::new(CROP, SIDE, SIDE),
            &mut out,
            ROW,
        )?;
        (self.out, self.resampler) = (out, resampler);
        let whole = Rect::new(0, 0, SIDE, SIDE);
        for step in 0..load {
            let rotation = Affine::rotation(Self::angle(step), SIDE, SIDE);
            for map in [rotation, Affine::flip_x(SIDE), Affine::flip_y(SIDE)] {
                let view = RgbView {
                    pixels: &self.out,
                    stride: ROW,
                    region: whole,
                };
                self.warper
                    .warp_into(view, &Self::spec(map, whole), &mut self.other, ROW)?;
                std::mem::swap(&mut self.out, &mut self.other);
            }
        }
        Ok(())
    }

    fn colour(&mut self, load: u32) -> Result<()> {
        for _ in 0..load / 4 {
            let blur = ColourOp::GaussianBlur {
                kernel: (3, 3),
                sigma: (0.8, 0.8),
            };
            self.colourist.apply(blur, &mut self.out, SIDE)?;
            self.colourist
                .apply(ColourOp::Dilate, &mut self.out, SIDE)?;
        }
        for op in [
            ColourOp::Brightness(1.2),
            ColourOp::Contrast(0.8),
            ColourOp::Saturation(1.3),
        ] {
            self.colourist.apply(op, &mut self.out, SIDE)?;
        }
        Ok(())
    }
}

/// Milliseconds per call, over a tenth of a second or more: the clock moves in steps of a few milliseconds.
fn mean_ms(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let (start, mut calls) = (clock::seconds(), 0);
    loop {
        for _ in 0..20 {
            work()?;
        }
        calls += 20;
        let spent = clock::seconds() - start;
        if spent > 0.1 {
            return Ok(spent * 1e3 / f64::from(calls));
        }
    }
}

fn main() -> Result<()> {
    for extension in Extension::available() {
        let mut bench = Bench {
            image: (0..WIDTH * HEIGHT * 3)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect(),
            warper: Warper::with_extension(extension),
            resampler: Resampler::with_extension(extension),
            colourist: Colourist::with_extension(extension),
            out: vec![0; ROW * SIDE as usize],
            other: vec![0; ROW * SIDE as usize],
        };
        for load in [0, 1, 4, 8, 12] {
            let fused = mean_ms(|| bench.fused(load))?;
            let single = mean_ms(|| bench.op_by_op(load))?;
            let colour = mean_ms(|| bench.colour(load))?;
            println!(
                "{extension:?} load {load:2}: resize and geometry {fused:.3} ms fused, {single:.3} ms op by op; colour {colour:.3} ms"
            );
        }
    }
    Ok(())
}
