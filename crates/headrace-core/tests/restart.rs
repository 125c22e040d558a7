//! The restart writer keeps coefficients and pixels, as libjpeg-turbo reads them, whatever the coding of the input.

#![allow(clippy::unwrap_used)]

use headrace_core::error::Status;
use headrace_core::geometry::{Rect, Size};
use headrace_core::jpeg::restart::{restart_markers, Metadata, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

const SAMPLINGS: [SamplingFactor; 8] = [
    SamplingFactor::F_1_1,
    SamplingFactor::F_2_1,
    SamplingFactor::F_1_2,
    SamplingFactor::F_2_2,
    SamplingFactor::F_4_1, // from here on the encoder writes one scan per component
    SamplingFactor::F_1_4,
    SamplingFactor::F_4_2,
    SamplingFactor::R_4_2_1,
];

struct Case {
    width: u16,
    height: u16,
    colour: ColorType,
    sampling: SamplingFactor,
    progressive: bool,
    restart_interval: u16,
    optimized: bool,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            width: 99,
            height: 70,
            colour: ColorType::Rgb,
            sampling: SamplingFactor::F_2_2,
            progressive: false,
            restart_interval: 0,
            optimized: false,
        }
    }
}

impl Case {
    fn encode(&self) -> Vec<u8> {
        let channels = match self.colour {
            ColorType::Luma => 1,
            ColorType::Cmyk | ColorType::CmykAsYcck => 4,
            _ => 3,
        };
        let mut state = 7u32;
        let pixels: Vec<u8> = (0..usize::from(self.width) * usize::from(self.height) * channels)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (x, y) = (
                    i / channels % usize::from(self.width),
                    i / channels / usize::from(self.width),
                );
                ((x * 3 + y * 2 + 40 * (i % channels)) as u8).wrapping_add((state >> 28) as u8)
            })
            .collect();
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, 85);
        encoder.set_sampling_factor(self.sampling);
        encoder.set_progressive(self.progressive);
        encoder.set_restart_interval(self.restart_interval);
        encoder.set_optimized_huffman_tables(self.optimized);
        encoder
            .encode(&pixels, self.width, self.height, self.colour)
            .unwrap();
        file
    }
}

fn pixels(jpeg: &[u8]) -> Vec<u8> {
    let size = turbo::size(jpeg).unwrap();
    let mut out = Vec::new();
    let all = Rect::new(0, 0, size.width, size.height);
    turbo::region(jpeg, all, &mut out).unwrap();
    out.truncate(size.width as usize * size.height as usize * 3);
    out
}

/// Return all coefficients that belong to the image, in MCU rows.
fn coefficients(jpeg: &[u8]) -> Vec<[i16; 64]> {
    let mut blocks = Vec::new();
    turbo::coefficients(jpeg, &mut |rows| {
        for (component, line) in
            (0..4).flat_map(|component| (0..4).map(move |line| (component, line)))
        {
            blocks.extend((0..).map_while(|column| rows.block(component, line, column)));
        }
        Ok(())
    })
    .unwrap();
    blocks
}

fn written(jpeg: &[u8], tile_px: u32) -> Vec<u8> {
    let mut out = vec![1, 2, 3]; // must be cleared
    let options = RestartOptions {
        tile_px,
        metadata: Metadata::Keep,
    };
    restart_markers(jpeg, &options, &mut out).unwrap();
    out
}

fn assert_lossless(jpeg: &[u8], what: &str) {
    let (wanted_pixels, wanted_coefficients) = (pixels(jpeg), coefficients(jpeg));
    for tile_px in [1, 32, 50, 100_000] {
        let marked = written(jpeg, tile_px);
        assert!(
            coefficients(&marked) == wanted_coefficients,
            "{what}, tile {tile_px}: coefficients differ"
        );
        assert!(
            pixels(&marked) == wanted_pixels,
            "{what}, tile {tile_px}: pixels differ"
        );
        assert!(
            written(&marked, tile_px) == marked,
            "{what}, tile {tile_px}: not idempotent"
        );
    }
}

#[test]
fn components_with_one_name_are_refused() {
    let size = Size {
        width: 40,
        height: 40,
    };
    let mut data = turbo::encode(&[120; 40 * 40 * 3], size, &Encoding::default()).unwrap();
    let names = |data: &mut [u8], marker: u8, first: usize, step: usize| {
        let at = data
            .windows(2)
            .position(|pair| pair == [0xFF, marker])
            .unwrap();
        data[at + first + 2 * step] = 2; // the third component is named as the second
    };
    names(&mut data, 0xC0, 10, 3);
    names(&mut data, 0xDA, 5, 2);
    let mut out = Vec::new();
    let options = RestartOptions::default();
    assert_eq!(
        restart_markers(&data, &options, &mut out),
        Err(Status::Unsupported)
    );
    assert!(out.is_empty());
}

#[test]
fn a_scan_in_another_order_than_the_frame_is_refused() {
    let size = Size {
        width: 40,
        height: 40,
    };
    let sound = turbo::encode(&[120; 40 * 40 * 3], size, &Encoding::default()).unwrap();
    let scan = sound
        .windows(2)
        .position(|pair| pair == [0xFF, 0xDA])
        .unwrap();
    let (mut out, options) = (Vec::new(), RestartOptions::default());
    for order in [[0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut data = sound.clone();
        for (place, &from) in order.iter().enumerate() {
            let (to, from) = (scan + 5 + 2 * place, scan + 5 + 2 * from);
            data[to..to + 2].copy_from_slice(&sound[from..from + 2]);
        }
        assert!(turbo::coefficients(&data, &mut |_| Ok(())).is_err());
        let written = restart_markers(&data, &options, &mut out);
        assert_eq!(written, Err(Status::CorruptHeader), "{order:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn all_samplings_and_scan_layouts_keep_their_pixels() {
    for sampling in SAMPLINGS {
        for (progressive, optimized) in [(false, false), (false, true), (true, false)] {
            for (width, height) in [(1, 1), (7, 65), (99, 70), (160, 33)] {
                let case = Case {
                    sampling,
                    progressive,
                    optimized,
                    width,
                    height,
                    ..Case::default()
                };
                assert_lossless(
                    &case.encode(),
                    &format!("{sampling:?} progressive {progressive} {width}×{height}"),
                );
            }
        }
    }
}

#[test]
fn all_colour_types_keep_their_pixels() {
    for colour in [
        ColorType::Luma,
        ColorType::Rgb,
        ColorType::Ycbcr,
        ColorType::Cmyk,
        ColorType::CmykAsYcck,
    ] {
        for progressive in [false, true] {
            let case = Case {
                colour,
                progressive,
                ..Case::default()
            };
            assert_lossless(
                &case.encode(),
                &format!("{colour:?} progressive {progressive}"),
            );
        }
    }
}

#[test]
fn more_than_256_segments_are_written() {
    let case = Case {
        width: 200,
        height: 190,
        colour: ColorType::Luma,
        ..Case::default()
    };
    assert_lossless(&case.encode(), "600 segments");
}

#[test]
fn any_restart_interval_of_the_input_is_read() {
    for restart_interval in [1, 2, 7, 34, 35, 36, 65535] {
        for sampling in [SamplingFactor::F_2_2, SamplingFactor::F_4_1] {
            let case = Case {
                restart_interval,
                sampling,
                ..Case::default()
            };
            assert_lossless(
                &case.encode(),
                &format!("{sampling:?} interval {restart_interval}"),
            );
        }
    }
}

#[test]
fn the_output_does_not_depend_on_the_coding_of_the_input() {
    // Whole MCUs only: the encoder chooses the blocks outside the image, and scans of one component do not contain them.
    let case = || Case {
        width: 96,
        height: 64,
        ..Case::default()
    };
    let plain = written(&case().encode(), 32);
    let optimized = Case {
        optimized: true,
        ..case()
    };
    let restarted = Case {
        restart_interval: 5,
        ..case()
    };
    assert!(written(&optimized.encode(), 32) == plain);
    assert!(written(&restarted.encode(), 32) == plain);
}

#[test]
fn large_coefficients_are_kept() {
    // Quality 100 noise: the longest extra bits that occur.
    let mut file = Vec::new();
    let mut state = 1u32;
    let noise: Vec<u8> = (0..64 * 64)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 31 == 0 {
                0
            } else {
                255
            }
        })
        .collect();
    Encoder::new(&mut file, 100)
        .encode(&noise, 64, 64, ColorType::Luma)
        .unwrap();
    assert_lossless(&file, "noise");
}

#[test]
fn bytes_after_the_image_are_dropped() {
    let jpeg = Case::default().encode();
    let mut longer = jpeg.clone();
    longer.extend_from_slice(b"\xFF\xD8 a second picture \xFF\xD9");
    assert_eq!(written(&longer, 32), written(&jpeg, 32));
}

/// T.81 allows fill bytes before markers only; libjpeg-turbo decodes such an MCU twice, so its coefficients tell the pixels.
#[test]
fn fill_bytes_inside_entropy_coded_data_keep_the_pixels_that_libjpeg_turbo_shows() {
    let mut state = 1u32;
    let noise: Vec<u8> = (0..64 * 64 * 3)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    let mut jpeg = Vec::new();
    let mut encoder = Encoder::new(&mut jpeg, 95);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&noise, 64, 64, ColorType::Rgb).unwrap();
    let scan = jpeg
        .windows(2)
        .position(|pair| pair == [0xFF, 0xDA])
        .unwrap();
    let stuffed: Vec<usize> = (scan + 14..jpeg.len() - 1)
        .filter(|&at| jpeg[at..at + 2] == [0xFF, 0])
        .collect();
    assert!(!stuffed.is_empty());
    let mut changed = 0;
    for (fill, &at) in (1..=3).flat_map(|fill| stuffed.iter().map(move |at| (fill, at))) {
        let odd = [&jpeg[..at], &vec![0xFF; fill], &jpeg[at..]].concat();
        assert_lossless(&odd, &format!("{fill} fill bytes at {at}"));
        changed += usize::from(pixels(&odd) != pixels(&jpeg));
    }
    assert!(changed > 0, "no place shows what the test is about");
}

#[test]
fn truncation_is_an_error_without_output() {
    for case in [
        Case::default(),
        Case {
            progressive: true,
            ..Case::default()
        },
        Case {
            restart_interval: 3,
            ..Case::default()
        },
    ] {
        let jpeg = case.encode();
        let mut out = Vec::new();
        for length in (0..jpeg.len())
            .step_by(1 + jpeg.len() / 300)
            .chain([jpeg.len() - 1, jpeg.len() - 2])
        {
            let result = restart_markers(&jpeg[..length], &RestartOptions::default(), &mut out);
            let status = result.expect_err("a truncated file is refused");
            assert!(
                matches!(
                    status,
                    Status::Empty | Status::UnknownFormat | Status::Truncated
                ),
                "{length}: {status:?}"
            );
            assert!(out.is_empty());
        }
    }
}

#[test]
fn misplaced_restart_markers_are_refused() {
    let jpeg = Case {
        restart_interval: 3,
        ..Case::default()
    }
    .encode();
    let status =
        |jpeg: &[u8]| restart_markers(jpeg, &RestartOptions::default(), &mut Vec::new()).err();
    let first = jpeg
        .windows(2)
        .position(|pair| pair == [0xFF, 0xD0])
        .unwrap();

    let mut wrong_number = jpeg.clone();
    wrong_number[first + 1] = 0xD1;
    assert_eq!(status(&wrong_number), Some(Status::BadRestart));

    let mut no_interval = jpeg.clone();
    let dri = jpeg
        .windows(4)
        .position(|bytes| bytes == [0xFF, 0xDD, 0, 4])
        .unwrap();
    no_interval[dri + 5] = 200;
    assert_eq!(status(&no_interval), Some(Status::BadRestart));

    let sof = jpeg
        .windows(2)
        .position(|pair| pair == [0xFF, 0xC0])
        .unwrap();
    let mut taller = jpeg.clone();
    taller[sof + 5] = 1;
    assert_eq!(status(&taller), Some(Status::BadRestart));
    let mut gigantic = jpeg.clone();
    gigantic[sof + 5..sof + 9].fill(0xFF);
    assert_eq!(status(&gigantic), Some(Status::TooLarge));
    let mut twelve_bit = jpeg.clone();
    twelve_bit[sof + 4] = 12;
    assert_eq!(status(&twelve_bit), Some(Status::Unsupported));
    let mut lossless = jpeg.clone();
    lossless[sof + 1] = 0xC3;
    assert_eq!(status(&lossless), Some(Status::Unsupported));

    let without = |marker: u8| {
        let start = jpeg
            .windows(2)
            .position(|pair| pair == [0xFF, marker])
            .unwrap();
        let length = usize::from(jpeg[start + 2]) << 8 | usize::from(jpeg[start + 3]);
        [&jpeg[..start], &jpeg[start + 2 + length..]].concat()
    };
    assert_eq!(status(&without(0xC4)), Some(Status::MissingTable));
    assert_eq!(status(&without(0xDB)), Some(Status::MissingTable));
    assert_eq!(status(&without(0xC0)), Some(Status::CorruptHeader));
    assert_eq!(status(&without(0xDD)), Some(Status::BadRestart));
}
