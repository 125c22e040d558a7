//! The colour operations against Pillow's recorded results, on every CPU extension.
#![allow(clippy::unwrap_used)]

mod common;

use headrace_core::colour::{ColourOp, Colourist};
use headrace_core::cpu::Extension;
use headrace_core::error::Status;

fn operation(name: &str, value: f64) -> ColourOp {
    match name {
        "brightness" => ColourOp::Brightness(value as f32),
        "contrast" => ColourOp::Contrast(value as f32),
        "saturation" => ColourOp::Saturation(value as f32),
        "sharpness" => ColourOp::Sharpness(value as f32),
        "hue" => ColourOp::Hue(value),
        "grayscale" => ColourOp::Grayscale,
        "invert" => ColourOp::Invert,
        "posterize" => ColourOp::Posterize(value as u8),
        "solarize" => ColourOp::Solarize(value as u16),
        "autocontrast" => ColourOp::Autocontrast,
        "equalize" => ColourOp::Equalize,
        "blur" => ColourOp::PillowBlur(value as f32),
        "dilate" => ColourOp::Dilate,
        "erode" => ColourOp::Erode,
        other => panic!("{other}"),
    }
}

#[test]
fn equals_pillow_on_every_extension() {
    for case in common::cases(include_str!("golden/colour.txt")) {
        let number = |i: usize| case[i].parse::<u32>().unwrap();
        let image = common::pattern(number(0), number(1), number(2));
        for extension in Extension::available() {
            let mut out = image.clone();
            let op = operation(case[3], case[4].parse().unwrap());
            Colourist::with_extension(extension)
                .apply(op, &mut out, number(0))
                .unwrap();
            let hash = format!("{:016x}", common::fnv1a(&out));
            assert_eq!(hash, case[5], "{extension:?} {case:?}");
        }
    }
}

/// Return the two-dimensional convolution of torchvision's `gaussian_blur`, in double precision, before rounding.
fn blurred(
    image: &[u8],
    width: usize,
    kernel: (usize, usize),
    sigma: (f32, f32),
    at: usize,
) -> f64 {
    let height = image.len() / 3 / width;
    let weights = |size: usize, sigma: f32| -> Vec<f64> {
        let limit = (size - 1) as f64 / 8.0_f64.sqrt();
        let step = 2.0 * limit / (size - 1).max(1) as f64;
        let raw: Vec<f64> = (0..size)
            .map(|i| (-((-limit + step * i as f64) / f64::from(sigma)).powi(2)).exp())
            .collect();
        let sum: f64 = raw.iter().sum();
        raw.iter().map(|weight| weight / sum).collect()
    };
    let reflect = |at: i64, length: usize| {
        let last = length as i64 - 1;
        (if at < 0 {
            -at
        } else if at > last {
            2 * last - at
        } else {
            at
        }) as usize
    };
    let (x, y, channel) = (at / 3 % width, at / 3 / width, at % 3);
    let mut sum = 0.0;
    for (j, down) in weights(kernel.1, sigma.1).iter().enumerate() {
        for (i, across) in weights(kernel.0, sigma.0).iter().enumerate() {
            let row = reflect((y + j) as i64 - (kernel.1 / 2) as i64, height);
            let column = reflect((x + i) as i64 - (kernel.0 / 2) as i64, width);
            sum += down * across * f64::from(image[(row * width + column) * 3 + channel]);
        }
    }
    sum
}

#[test]
fn blur_is_the_rounded_convolution() {
    for (kernel, sigma) in [
        ((1, 1), (1.0, 1.0)),
        ((3, 5), (0.4, 2.0)),
        ((23, 7), (1.5, 0.1)),
        ((9, 9), (2.0, 2.0)),
    ] {
        let (width, height) = (41, 30);
        let image = common::pattern(width, height, 0);
        for extension in Extension::available() {
            let mut out = image.clone();
            let op = ColourOp::GaussianBlur {
                kernel: (kernel.0 as u16, kernel.1 as u16),
                sigma,
            };
            Colourist::with_extension(extension)
                .apply(op, &mut out, width)
                .unwrap();
            for (at, &value) in out.iter().enumerate() {
                let exact = blurred(&image, width as usize, kernel, sigma, at);
                assert!(
                    (f64::from(value) - exact).abs() < 0.502,
                    "{extension:?} {kernel:?} {at}: {value} {exact}"
                );
            }
        }
    }
}

#[test]
fn every_extension_blurs_alike_and_mirrored() {
    for (width, height) in [(1, 1), (2, 3), (5, 1), (37, 29), (130, 6)] {
        let image = common::pattern(width, height, 0);
        for radius in [0.0, 0.1, 0.7, 1.0, 2.0, 5.3, 40.0] {
            let run = |extension, image: &[u8]| {
                let mut out = image.to_vec();
                Colourist::with_extension(extension)
                    .apply(ColourOp::PillowBlur(radius), &mut out, width)
                    .unwrap();
                out
            };
            let expected = run(Extension::Scalar, &image);
            if radius == 0.0 || radius > 0.5 {
                assert_eq!(expected == image, radius == 0.0 || width * height == 1);
            }
            for extension in Extension::available() {
                assert!(run(extension, &image) == expected, "{extension:?} {radius}");
            }
            let mirrored = |image: &[u8]| -> Vec<u8> {
                let rows = image.chunks_exact(width as usize * 3).rev();
                rows.flat_map(|row| row.chunks_exact(3).rev().flatten().copied())
                    .collect()
            };
            assert!(mirrored(&run(Extension::Scalar, &mirrored(&image))) == expected);
        }
    }
}

#[test]
fn every_extension_shifts_every_hue_alike() {
    let mut shades: Vec<u8> = (0..64 * 64 * 64_u32)
        .flat_map(|i| {
            [
                (i % 64 * 4) as u8,
                (i / 64 % 64 * 4 + 1) as u8,
                (i / 4096 * 4 + 2) as u8,
            ]
        })
        .collect();
    shades.truncate(shades.len() - 3 * 5); // a last block that is not full
    let width = (shades.len() / 3) as u32;
    let run = |extension| {
        let mut out = shades.clone();
        Colourist::with_extension(extension)
            .apply(ColourOp::Hue(0.23), &mut out, width)
            .unwrap();
        out
    };
    let expected = run(Extension::Scalar);
    assert!(expected != shades);
    for extension in Extension::available() {
        assert!(run(extension) == expected, "{extension:?}");
    }
}

#[test]
fn invalid_operations_are_refused_and_change_nothing() {
    let image = common::pattern(6, 4, 0);
    let mut out = image.clone();
    let mut colourist = Colourist::default();
    let blur = |kernel, sigma| ColourOp::GaussianBlur { kernel, sigma };
    for op in [
        ColourOp::Brightness(f32::NAN),
        ColourOp::Hue(0.6),
        ColourOp::PillowBlur(-0.1),
        ColourOp::PillowBlur(f32::NAN),
        ColourOp::PillowBlur(1001.0),
        ColourOp::Posterize(0),
        ColourOp::Posterize(9),
        blur((4, 3), (1.0, 1.0)),
        blur((3, 3), (0.0, 1.0)),
        blur((3, 9), (1.0, 1.0)),
        blur((3, 3), (f32::NAN, 1.0)),
    ] {
        assert_eq!(
            colourist.apply(op, &mut out, 6),
            Err(Status::Internal),
            "{op:?}"
        );
    }
    assert_eq!(
        colourist.apply(ColourOp::Invert, &mut out, 5),
        Err(Status::Internal)
    );
    assert_eq!(
        colourist.apply(ColourOp::Invert, &mut out, 0),
        Err(Status::Internal)
    );
    assert_eq!(out, image);
}
