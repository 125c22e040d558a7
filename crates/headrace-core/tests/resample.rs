//! The resampler equals Pillow's recorded results, and its SIMD kernels equal the scalar one.

#![allow(clippy::unwrap_used)]

mod common;

use headrace_core::cpu::Extension;
use headrace_core::error::Status;
use headrace_core::geometry::{Rect, RgbView};
use headrace_core::resample::{Filter, PassOrder, Resampler, ResizeSpec};

const FILTERS: [Filter; 8] = [
    Filter::Nearest,
    Filter::Box,
    Filter::Bilinear,
    Filter::Hamming,
    Filter::Bicubic,
    Filter::Lanczos,
    Filter::BilinearInt16,
    Filter::BicubicInt16,
];

/// Resize from a buffer that holds exactly the needed region, so that a read outside is detected.
fn resize(resampler: &mut Resampler, image: &[u8], width: u32, spec: &ResizeSpec) -> Vec<u8> {
    let needed = spec.needed();
    let mut region = Vec::new();
    for y in needed.y..needed.y + needed.h {
        let start = ((y * width + needed.x) * 3) as usize;
        region.extend_from_slice(&image[start..][..needed.w as usize * 3]);
    }
    let view = RgbView {
        pixels: &region,
        stride: needed.w as usize * 3,
        region: needed,
    };
    let row = spec.window.w as usize * 3;
    let mut out = vec![0xA5; row * spec.window.h as usize];
    resampler.resize_into(view, spec, &mut out, row).unwrap();
    out
}

#[test]
fn equals_pillow_on_every_extension() {
    for extension in Extension::available() {
        let mut resampler = Resampler::with_extension(extension);
        for case in common::cases(include_str!("golden/resize.txt")) {
            let number = |i: usize| case[i].parse::<u32>().unwrap();
            let rect = |i: usize| Rect::new(number(i), number(i + 1), number(i + 2), number(i + 3));
            let names = [
                "nearest", "box", "bilinear", "hamming", "bicubic", "lanczos",
            ];
            let filter = names.iter().position(|&name| name == case[13]).unwrap();
            let spec = ResizeSpec {
                box_: rect(3),
                grid_w: number(7),
                grid_h: number(8),
                window: rect(9),
                filter: FILTERS[filter],
                flip_x: number(14) == 1,
                flip_y: number(15) == 1,
            };
            let image = common::pattern(number(0), number(1), number(2));
            let out = resize(&mut resampler, &image, number(0), &spec);
            assert_eq!(
                format!("{:016x}", common::fnv1a(&out)),
                case[16],
                "{extension:?} {case:?}"
            );
        }
    }
}

#[test]
fn every_extension_equals_scalar() {
    let sides = [1, 2, 3, 4, 5, 7, 9, 16, 21, 33, 64, 130, 224, 500];
    let mut state = 7_u32;
    let mut random = |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % limit
    };
    for round in 0..200 {
        let (width, height) = (sides[random(14) as usize], sides[random(12) as usize]);
        let (grid_w, grid_h) = (1 + random(260), 1 + random(120));
        let (left, top) = (random(grid_w), random(grid_h));
        let window = Rect::new(
            left,
            top,
            1 + random(grid_w - left),
            1 + random(grid_h - top),
        );
        let image = common::pattern(width, height, round % 3);
        let spec = ResizeSpec {
            box_: Rect::new(0, 0, width, height),
            grid_w,
            grid_h,
            window,
            filter: FILTERS[random(8) as usize],
            flip_x: random(2) == 1,
            flip_y: random(2) == 1,
        };
        for order in [PassOrder::Pillow13, PassOrder::HorizontalFirst] {
            let mut scalar = Resampler::with_extension(Extension::Scalar);
            scalar.set_pass_order(order);
            let expected = resize(&mut scalar, &image, width, &spec);
            for extension in Extension::available() {
                let mut resampler = Resampler::with_extension(extension);
                resampler.set_pass_order(order);
                let out = resize(&mut resampler, &image, width, &spec);
                assert!(out == expected, "{extension:?} {order:?} {spec:?}");
            }
        }
    }
}

#[test]
fn a_window_is_a_part_of_the_whole_result() {
    let image = common::pattern(97, 61, 0);
    let mut resampler = Resampler::default();
    for filter in FILTERS {
        let mut spec = ResizeSpec::new(Rect::new(0, 0, 97, 61), 50, 40);
        spec.filter = filter;
        let whole = resize(&mut resampler, &image, 97, &spec);
        spec.window = Rect::new(13, 9, 20, 25);
        let part = resize(&mut resampler, &image, 97, &spec);
        for y in 0..25 {
            let start = ((9 + y) * 50 + 13) * 3;
            assert_eq!(
                part[y * 60..][..60],
                whole[start..][..60],
                "{filter:?} row {y}"
            );
        }
        assert!(
            spec.needed().w < 97 && spec.needed().h < 61,
            "{filter:?} reads too much"
        );
    }
}

#[test]
fn bytes_between_output_rows_are_untouched() {
    let image = common::pattern(40, 40, 0);
    for extension in Extension::available() {
        let spec = ResizeSpec::new(Rect::new(0, 0, 40, 40), 11, 9);
        let mut out = vec![0xEE; 50 * 9];
        let view = RgbView {
            pixels: &image,
            stride: 120,
            region: Rect::new(0, 0, 40, 40),
        };
        Resampler::with_extension(extension)
            .resize_into(view, &spec, &mut out, 50)
            .unwrap();
        for row in out.chunks(50) {
            assert!(row[33..].iter().all(|&byte| byte == 0xEE), "{extension:?}");
        }
    }
}

#[test]
fn invalid_requests_are_refused() {
    let image = common::pattern(10, 10, 0);
    let view = RgbView {
        pixels: &image,
        stride: 30,
        region: Rect::new(0, 0, 10, 10),
    };
    let good = ResizeSpec::new(Rect::new(0, 0, 10, 10), 4, 4);
    let mut resampler = Resampler::default();
    let mut attempt = |spec: &ResizeSpec, bytes: usize| {
        let mut out = vec![0; bytes];
        resampler.resize_into(view, spec, &mut out, 12)
    };
    assert_eq!(attempt(&good, 48), Ok(()));
    assert_eq!(attempt(&good, 47), Err(Status::Internal));
    for broken in [
        ResizeSpec {
            box_: Rect::new(1, 0, 10, 10),
            ..good
        },
        ResizeSpec {
            box_: Rect::new(0, 0, 0, 10),
            ..good
        },
        ResizeSpec {
            box_: Rect::new(u32::MAX, 0, 10, 10),
            ..good
        },
        ResizeSpec { grid_w: 0, ..good },
        ResizeSpec {
            grid_w: u32::MAX,
            ..good
        },
        ResizeSpec {
            window: Rect::new(1, 0, 4, 4),
            ..good
        },
        ResizeSpec {
            window: Rect::new(0, 0, 4, 0),
            ..good
        },
    ] {
        assert_eq!(attempt(&broken, 48), Err(Status::BadBox), "{broken:?}");
    }
}
