//! Affine sampling equals Pillow's recorded results, and its SIMD kernels equal the scalar one.
#![allow(clippy::unwrap_used)]

mod common;

use headrace_core::cpu::Extension;
use headrace_core::error::Status;
use headrace_core::geometry::{Rect, RgbView};
use headrace_core::resample::Filter;
use headrace_core::warp::{Affine, Interpolation, WarpSpec, Warper};

/// By their number in `golden/warp.txt`.
const INTERPOLATIONS: [Interpolation; 3] = [
    Interpolation::Bilinear,
    Interpolation::Nearest,
    Interpolation::Bicubic,
];

/// Return a bilinear sampling with black fill, without antialiasing or a resize.
fn spec(width: u32, height: u32, map: Affine, out: (u32, u32)) -> WarpSpec {
    WarpSpec {
        box_: Rect::new(0, 0, width, height),
        grid_w: width,
        grid_h: height,
        filter: Filter::Bilinear,
        map,
        width: out.0,
        height: out.1,
        interpolation: Interpolation::Bilinear,
        fill: [0; 3],
        antialias: false,
        window: Rect::new(0, 0, out.0, out.1),
        flip_x: false,
        flip_y: false,
    }
}

/// Warp from a buffer that holds exactly the needed region.
fn warp(extension: Extension, image: &[u8], width: u32, spec: &WarpSpec) -> Vec<u8> {
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
    Warper::with_extension(extension)
        .warp_into(view, spec, &[], &mut out, row)
        .unwrap();
    out
}

#[test]
fn equals_pillow_on_every_extension() {
    for case in common::cases(include_str!("golden/warp.txt")) {
        let number = |i: usize| case[i].parse::<u32>().unwrap();
        let grid = (number(3), number(4));
        let map = match case[8] {
            "-" => Affine::new(std::array::from_fn(|i| case[9 + i].parse().unwrap())),
            degrees => Affine::rotation(degrees.parse().unwrap(), grid.0, grid.1),
        };
        let spec = WarpSpec {
            grid_w: grid.0,
            grid_h: grid.1,
            interpolation: INTERPOLATIONS[number(7) as usize],
            fill: [10, 200, 77],
            ..spec(number(0), number(1), map, (number(5), number(6)))
        };
        let image = common::pattern(number(0), number(1), number(2));
        for extension in Extension::available() {
            let out = warp(extension, &image, number(0), &spec);
            let hash = format!("{:016x}", common::fnv1a(&out));
            assert_eq!(hash, case[15], "{extension:?} {case:?}");
        }
    }
}

#[test]
fn every_extension_equals_scalar() {
    let mut state = 3_u32;
    let mut random = |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % limit
    };
    for round in 0..80 {
        let (width, height) = (1 + random(120), 1 + random(90));
        let mut number = |scale: f64| (f64::from(random(2001)) - 1000.0) * scale;
        // Halves and quarters give blends that are exact in binary, the hardest case for truncation.
        let unit = if round % 4 == 0 { 0.25 } else { 0.001_7 };
        let map = Affine::new([
            number(unit),
            number(unit),
            number(0.05),
            number(unit),
            number(unit),
            number(0.05),
        ]);
        let mut spec = spec(width, height, map, (50, 20));
        spec.antialias = round % 2 == 0;
        if round % 3 == 2 {
            spec.interpolation = Interpolation::Bicubic;
        }
        let image = common::pattern(width, height, round % 3);
        let expected = warp(Extension::Scalar, &image, width, &spec);
        for extension in Extension::available() {
            let out = warp(extension, &image, width, &spec);
            assert!(out == expected, "{extension:?} {spec:?}");
        }
    }
}

#[test]
fn twelve_rotations_and_their_inverses_are_the_identity() {
    let mut map = Affine::IDENTITY;
    for step in 0..12 {
        map = map.then(&Affine::rotation(f64::from(step) * 7.0, 64, 48));
    }
    for step in (0..12).rev() {
        map = map.then(&Affine::rotation(f64::from(step) * -7.0, 64, 48));
    }
    let point = map.apply(13.0, 40.0);
    assert!(
        (point.0 - 13.0).abs() < 1e-9 && (point.1 - 40.0).abs() < 1e-9,
        "{point:?}"
    );
}

#[test]
fn flips_are_exact_mirrors() {
    let image = common::pattern(31, 17, 0);
    let map = Affine::flip_x(31).then(&Affine::flip_y(17));
    let out = warp(Extension::best(), &image, 31, &spec(31, 17, map, (31, 17)));
    let mirrored: Vec<u8> = image.chunks(3).rev().flatten().copied().collect();
    assert_eq!(out, mirrored);
}

#[test]
fn antialiasing_averages_the_pixels_that_a_shrinking_map_skips() {
    // Columns alternate between black and white: sampling gives both extremes, antialiasing gives grey.
    let image: Vec<u8> = (0..64 * 64 * 3).map(|i| (i / 3 % 2 * 255) as u8).collect();
    let map = Affine::new([4.0, 0.0, 0.5, 0.0, 4.0, 0.0]);
    let mut spec = spec(64, 64, map, (16, 16));
    let sampled = warp(Extension::best(), &image, 64, &spec);
    assert!(sampled.iter().any(|&value| !(110..146).contains(&value)));
    spec.antialias = true;
    let out = warp(Extension::best(), &image, 64, &spec);
    assert!(
        out.iter().all(|value| (110..146).contains(value)),
        "{:?}",
        &out[..12]
    );
}

#[test]
fn invalid_requests_are_refused() {
    let image = common::pattern(10, 10, 0);
    let view = RgbView {
        pixels: &image,
        stride: 30,
        region: Rect::new(0, 0, 10, 10),
    };
    let good = spec(10, 10, Affine::rotation(10.0, 10, 10), (10, 10));
    let mut warper = Warper::default();
    let mut attempt =
        |spec: &WarpSpec, bytes: usize| warper.warp_into(view, spec, &[], &mut vec![0; bytes], 30);
    assert_eq!(attempt(&good, 300), Ok(()));
    assert_eq!(attempt(&good, 299), Err(Status::Internal));
    let broken = Affine {
        c: f64::NAN,
        ..good.map
    };
    assert_eq!(
        attempt(
            &WarpSpec {
                map: broken,
                ..good
            },
            300
        ),
        Err(Status::BadBox)
    );
    assert_eq!(
        attempt(
            &WarpSpec {
                window: Rect::default(),
                ..good
            },
            300
        ),
        Err(Status::BadBox)
    );
    assert_eq!(
        attempt(&WarpSpec { grid_w: 0, ..good }, 300),
        Err(Status::BadBox)
    );
    let outside = Rect::new(5, 0, 10, 10);
    assert_eq!(
        attempt(
            &WarpSpec {
                box_: outside,
                ..good
            },
            300
        ),
        Err(Status::BadBox)
    );
    // Far outside everything is fill, and almost nothing of the image is needed.
    let far = WarpSpec {
        map: Affine::crop(1e9, -1e9),
        fill: [1, 2, 3],
        ..good
    };
    assert!(far.needed().w <= 10);
    let mut out = vec![0; 300];
    warper.warp_into(view, &far, &[], &mut out, 30).unwrap();
    assert!(out.chunks(3).all(|pixel| pixel == [1, 2, 3]));
}

#[test]
fn windows_and_flips_are_parts_of_the_whole_result() {
    let (width, height) = (2300, 40);
    let image = common::pattern(width, height, 1);
    for interpolation in INTERPOLATIONS {
        for map in [
            Affine::rotation(0.7, width, height),
            Affine::new([1.1, 0.0, -3.0, 0.0, 0.9, 2.0]),
            Affine::rotation(180.0, width, height),
        ] {
            let whole = WarpSpec {
                interpolation,
                fill: [7, 77, 177],
                ..spec(width, height, map, (width, height))
            };
            let expected = warp(Extension::Scalar, &image, width, &whole);
            for extension in Extension::available() {
                assert!(warp(extension, &image, width, &whole) == expected);
                let part = WarpSpec {
                    window: Rect::new(1000, 5, 1234, 20),
                    flip_x: true,
                    flip_y: true,
                    ..whole
                };
                let out = warp(extension, &image, width, &part);
                for (row, line) in out.chunks(1234 * 3).enumerate() {
                    for (column, pixel) in line.chunks(3).enumerate() {
                        let (x, y) = (width as usize - 1 - 1000 - column, 40 - 1 - 5 - row);
                        let at = (y * width as usize + x) * 3;
                        assert_eq!(
                            pixel,
                            &expected[at..at + 3],
                            "{extension:?} {map:?} {row} {column}"
                        );
                    }
                }
            }
        }
    }
}
