//! Times the resampler: RandomResizedCrop boxes of a 500 × 375 image to 224 × 224, per CPU extension, rounds interleaved.
//!
//! Run: `cargo run --release -p headrace-core --example bench_resample [rounds]`

mod clock;

use headrace_core::cpu::Extension;
use headrace_core::geometry::{Rect, RgbView};
use headrace_core::resample::{Filter, Resampler, ResizeSpec};

const WIDTH: u32 = 500;
const HEIGHT: u32 = 375;
const SIDE: u32 = 224;

/// Return boxes as torchvision draws them: area 8 to 100 %, aspect 3/4 to 4/3.
fn boxes(count: usize) -> Vec<Rect> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    let mut found = Vec::new();
    while found.len() < count {
        let area = (0.08 + 0.92 * uniform()) * f64::from(WIDTH * HEIGHT);
        let aspect = ((0.75_f64).ln() * (1.0 - 2.0 * uniform())).exp();
        let (w, h) = (
            (area * aspect).sqrt().round() as u32,
            (area / aspect).sqrt().round() as u32,
        );
        if (1..=WIDTH).contains(&w) && (1..=HEIGHT).contains(&h) {
            let x = (uniform() * f64::from(WIDTH - w + 1)) as u32;
            let y = (uniform() * f64::from(HEIGHT - h + 1)) as u32;
            found.push(Rect::new(x, y, w, h));
        }
    }
    found
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(15);
    let pixels: Vec<u8> = (0..WIDTH * HEIGHT * 3)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let boxes = boxes(200);
    let mean = |side: fn(&Rect) -> u32| {
        boxes.iter().map(|b| f64::from(side(b))).sum::<f64>() / boxes.len() as f64
    };
    println!(
        "mean box {:.0} x {:.0} to {SIDE} x {SIDE}, {} boxes, {rounds} rounds",
        mean(|b| b.w),
        mean(|b| b.h),
        boxes.len()
    );
    let view = RgbView {
        pixels: &pixels,
        stride: WIDTH as usize * 3,
        region: Rect::new(0, 0, WIDTH, HEIGHT),
    };
    let mut out = vec![0; (SIDE * SIDE * 3) as usize];
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        let mut times: Vec<(Extension, Vec<f64>)> = Extension::available()
            .into_iter()
            .map(|extension| (extension, Vec::new()))
            .collect();
        for _ in 0..rounds {
            for (extension, times) in &mut times {
                let mut resampler = Resampler::with_extension(*extension);
                let start = clock::seconds();
                for box_ in &boxes {
                    let spec = ResizeSpec {
                        filter,
                        ..ResizeSpec::new(*box_, SIDE, SIDE)
                    };
                    if resampler
                        .resize_into(view, &spec, &mut out, SIDE as usize * 3)
                        .is_err()
                    {
                        std::process::exit(1);
                    }
                }
                times.push((clock::seconds() - start) * 1e3 / boxes.len() as f64);
            }
        }
        for (extension, times) in &mut times {
            times.sort_by(f64::total_cmp);
            let (median, best) = (times[times.len() / 2], times[0]);
            let per_pixel = best * 1e6 / f64::from(SIDE * SIDE);
            println!("{filter:?} {extension:?}: median {median:.4} ms, best {best:.4} ms per image, {per_pixel:.2} ns per output pixel");
        }
    }
}
