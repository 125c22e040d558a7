//! Requantisation equals its definition: the coefficients that libjpeg-turbo reads, transformed with cosines in `f64`.

#![allow(clippy::unwrap_used)]

mod common;

use common::{fnv1a, pattern};
use headrace_core::cpu::Extension;
use headrace_core::error::Status;
use headrace_core::exif;
use headrace_core::geometry::{Orientation, Rect, Size};
use headrace_core::jpeg::facts::jpeg_facts;
use headrace_core::jpeg::requantise::{RequantiseOptions, Requantiser};
use headrace_core::jpeg::turbo::{self, Encoding};

type Block = [f64; 64];

/// Sampling factors of luma and of chroma.
const SAMPLINGS: [[(u8, u8); 3]; 8] = [
    [(1, 1), (1, 1), (1, 1)],
    [(2, 1), (1, 1), (1, 1)],
    [(1, 2), (1, 1), (1, 1)],
    [(2, 2), (1, 1), (1, 1)],
    [(2, 2), (2, 1), (2, 1)],
    [(2, 2), (1, 2), (1, 2)],
    [(2, 1), (2, 1), (2, 1)],
    [(1, 2), (1, 2), (1, 2)],
];

fn options(quality: u8) -> RequantiseOptions {
    RequantiseOptions {
        quality,
        tile_px: Some(32),
        orientation: Orientation::Upright,
    }
}

fn encoded(size: (u32, u32), kind: u32, how: &Encoding) -> Vec<u8> {
    let mut pixels = pattern(size.0, size.1, kind);
    if how.gray {
        pixels.truncate((size.0 * size.1) as usize);
    }
    let (width, height) = size;
    turbo::encode(&pixels, Size { width, height }, how).unwrap()
}

fn requantised(jpeg: &[u8], options: &RequantiseOptions) -> Vec<u8> {
    let mut out = Vec::new();
    Requantiser::default()
        .write(jpeg, options, &mut out)
        .unwrap();
    out
}

/// All blocks of a file: `[component][line][column]`, dequantised, and the quantisation tables.
struct Coefficients {
    blocks: [Vec<Vec<Block>>; 3],
    tables: [[u16; 64]; 4],
}

/// Return the coefficients of a file. `lines` is the number of lines in an MCU row of each component, `columns` of blocks in a
/// line.
fn coefficients(jpeg: &[u8], lines: [usize; 3], columns: [usize; 3]) -> Coefficients {
    let mut blocks: [Vec<Vec<Block>>; 3] = Default::default();
    let tables = turbo::coefficients(jpeg, &mut |rows| {
        for component in 0..3 {
            for line in 0..lines[component] {
                let found: Vec<Block> = (0..columns[component])
                    .filter_map(|column| rows.block(component, line, column))
                    .map(|block| block.map(f64::from))
                    .collect();
                if !found.is_empty() {
                    blocks[component].push(found);
                }
            }
        }
        Ok(())
    })
    .unwrap();
    for (component, table) in blocks.iter_mut().zip(&tables) {
        for block in component.iter_mut().flatten() {
            (0..64).for_each(|k| block[k] *= f64::from(table[k]));
        }
    }
    Coefficients { blocks, tables }
}

/// Return the orthonormal DCT of `n` samples.
fn dct(n: usize) -> Vec<Vec<f64>> {
    let entry = |frequency: usize, sample: usize| {
        let scale = if frequency == 0 { 1.0 } else { 2.0 } / n as f64;
        let angle = (2 * sample + 1) as f64 * frequency as f64 / (2 * n) as f64;
        scale.sqrt() * (angle * std::f64::consts::PI).cos()
    };
    (0..n)
        .map(|frequency| (0..n).map(|sample| entry(frequency, sample)).collect())
        .collect()
}

/// Return the eight frequencies of eight samples at half the resolution, from the lowest four frequencies of two blocks: each is
/// transformed to four samples, and these back.
fn halved(first: [f64; 4], second: [f64; 4]) -> [f64; 8] {
    let (four, eight) = (dct(4), dct(8));
    let samples: Vec<f64> = [first, second]
        .iter()
        .flat_map(|half| {
            let at = |sample: usize| (0..4).map(|v| four[v][sample] * half[v]).sum::<f64>();
            [at(0), at(1), at(2), at(3)].map(|sample| sample / 2f64.sqrt())
        })
        .collect();
    std::array::from_fn(|u| (0..8).map(|x| eight[u][x] * samples[x]).sum())
}

/// Merge two blocks, side by side or the second below the first. Outside the image the image is reflected.
fn merged(first: &Block, second: Option<&Block>, across: bool) -> Block {
    let (along, other) = if across { (1, 8) } else { (8, 1) };
    let mut out = [0.0; 64];
    for line in 0..8 {
        let low = |block: &Block| std::array::from_fn(|v| block[v * along + line * other]);
        let first: [f64; 4] = low(first);
        let reflected = std::array::from_fn(|v| if v % 2 == 0 { first[v] } else { -first[v] });
        let values = halved(first, second.map_or(reflected, low));
        (0..8).for_each(|u| out[u * along + line * other] = values[u]);
    }
    out
}

fn merged_across(lines: &[Vec<Block>]) -> Vec<Vec<Block>> {
    let line = |line: &Vec<Block>| {
        line.chunks(2)
            .map(|pair| merged(&pair[0], pair.get(1), true))
            .collect()
    };
    lines.iter().map(line).collect()
}

fn merged_down(lines: &[Vec<Block>]) -> Vec<Vec<Block>> {
    let pair = |pair: &[Vec<Block>]| {
        (0..pair[0].len())
            .map(|x| merged(&pair[0][x], pair.get(1).map(|line| &line[x]), false))
            .collect()
    };
    lines.chunks(2).map(pair).collect()
}

#[test]
fn levels_equal_the_definition() {
    let mut compared = 0;
    for factors in SAMPLINGS {
        for (size, kind) in [
            ((64, 48), 0),
            ((33, 17), 1),
            ((16, 16), 2),
            ((71, 40), 0),
            ((8, 9), 1),
        ] {
            let source = encoded(
                size,
                kind,
                &Encoding {
                    factors,
                    quality: 97,
                    ..Encoding::default()
                },
            );
            let h = factors.map(|(h, _)| usize::from(h));
            let v = factors.map(|(_, v)| usize::from(v));
            let across = |px: u32, of: usize, most: usize| (px as usize * of).div_ceil(8 * most);
            let columns = h.map(|of| across(size.0, of, h[0]));
            let before = coefficients(&source, v, columns);
            let after = requantised(&source, &options(80));
            let facts = jpeg_facts(&after).unwrap();
            assert_eq!(
                (facts.width, facts.height, facts.quality),
                (size.0, size.1, Some(80))
            );
            let (wide, high) = (size.0.div_ceil(8) as usize, size.1.div_ceil(8) as usize);
            let found = coefficients(
                &after,
                [2, 1, 1],
                [wide, wide.div_ceil(2), wide.div_ceil(2)],
            );
            for component in 0..3 {
                let mut expected = before.blocks[component].clone();
                let full = |of: [usize; 3]| component > 0 && of[component] == of[0];
                if full(h) {
                    expected = merged_across(&expected);
                }
                if full(v) {
                    expected = merged_down(&expected);
                }
                let table = &found.tables[component];
                let lines = if component == 0 {
                    high
                } else {
                    high.div_ceil(2)
                };
                assert_eq!(found.blocks[component].len(), lines);
                for (y, line) in found.blocks[component].iter().enumerate() {
                    for (x, block) in line.iter().enumerate() {
                        for k in 0..64 {
                            let level = block[k] / f64::from(table[k]);
                            let exact = expected[y][x][k] / f64::from(table[k]);
                            assert!(
                                (level - exact).abs() < 0.5 + 1e-4,
                                "{factors:?} {size:?}: component {component}, block {x}, {y}, \
                                 coefficient {k}: {level} for {exact}"
                            );
                            compared += usize::from(level != 0.0);
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 20_000);
}

#[test]
fn the_same_quality_keeps_every_coefficient() {
    for gray in [false, true] {
        let factors = [
            (if gray { 1 } else { 2 }, if gray { 1 } else { 2 }),
            (1, 1),
            (1, 1),
        ];
        let how = Encoding {
            factors,
            gray,
            quality: 90,
            restart_interval: 3,
            ..Encoding::default()
        };
        for (size, kind) in [((90, 50), 0), ((90, 50), 1), ((1, 1), 0), ((17, 40), 2)] {
            let source = encoded(size, kind, &how);
            let after = requantised(&source, &options(90));
            let whole = Rect::new(0, 0, size.0, size.1);
            let [mut a, mut b] = [Vec::new(), Vec::new()];
            turbo::region(&source, whole, &mut a).unwrap();
            turbo::region(&after, whole, &mut b).unwrap();
            let samples = (size.0 * size.1 * 3) as usize;
            assert_eq!(a[..samples], b[..samples]);
            assert_eq!(
                requantised(&after, &options(90)),
                after,
                "writing again changes nothing"
            );
        }
    }
}

#[test]
fn every_size_and_sampling_stays_close_and_equal_on_every_extension() {
    for factors in SAMPLINGS {
        for width in [1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 50] {
            for height in [1, 8, 9, 16, 17, 23, 33] {
                for restart_interval in [0, 1, 5] {
                    let size = (width, height);
                    let how = Encoding {
                        factors,
                        quality: 98,
                        restart_interval,
                        ..Encoding::default()
                    };
                    let source = encoded(size, 1, &how);
                    let after = requantised(&source, &options(95));
                    for extension in Extension::available() {
                        let mut out = vec![1];
                        Requantiser::with_extension(extension)
                            .write(&source, &options(95), &mut out)
                            .unwrap();
                        assert_eq!(out, after, "{extension:?}, {factors:?}, {size:?}");
                    }
                    let whole = Rect::new(0, 0, width, height);
                    let [mut a, mut b] = [Vec::new(), Vec::new()];
                    turbo::region(&source, whole, &mut a).unwrap();
                    turbo::region(&after, whole, &mut b).unwrap(); // without a warning, so the stream is sound
                    let samples = (width * height * 3) as usize;
                    let error: i64 = (0..samples)
                        .map(|at| (i64::from(a[at]) - i64::from(b[at])).abs())
                        .sum();
                    // The colours of the pattern change by 240 every few pixels, which halved chroma cannot represent.
                    assert!(
                        error <= 14 * samples as i64,
                        "{factors:?} {size:?}: mean error {}",
                        error as f64 / samples as f64
                    );
                }
            }
        }
    }
}

/// Packed datasets are compared by digest, so no processor, compiler or later version may write other bytes.
#[test]
fn the_written_bytes_never_change() {
    let hashes: Vec<u64> = SAMPLINGS
        .iter()
        .map(|&factors| {
            let how = Encoding {
                factors,
                quality: 97,
                ..Encoding::default()
            };
            fnv1a(&requantised(&encoded((77, 45), 1, &how), &options(85)))
        })
        .collect();
    // Only the resolution of chroma matters, not how the factors state it.
    let (full, wide, high, quarter) = (
        0x0A2A_5113_321D_013E,
        0xD37B_8F9C_530D_2692,
        0x6769_B4CD_5ADE_67E1,
        0xC42B_2AF8_D04D_ED1D,
    );
    assert_eq!(hashes, [full, wide, high, quarter, high, wide, full, full]);
}

#[test]
fn restart_markers_and_the_orientation_are_written() {
    let how = Encoding {
        quality: 98,
        ..Encoding::default()
    };
    let source = encoded((100, 40), 1, &how);
    let count = |jpeg: &[u8]| {
        jpeg.windows(2)
            .filter(|pair| pair[0] == 0xFF && (0xD0..=0xD7).contains(&pair[1]))
            .count()
    };
    // Seven MCUs in each of three rows: seven is prime, so tiles of two straddle rows.
    assert_eq!(count(&requantised(&source, &options(90))), 10);
    let turned = RequantiseOptions {
        quality: 90,
        tile_px: None,
        orientation: Orientation::Rotate90,
    };
    let after = requantised(&source, &turned);
    assert_eq!(count(&after), 0);
    assert_eq!(exif::orientation(&after), Orientation::Rotate90);
    assert_eq!(jpeg_facts(&after).map(|facts| facts.width), Ok(100));
}

#[test]
fn unsupported_files_are_refused() {
    let plain = Encoding::default();
    let refused = [
        Encoding { rgb: true, ..plain },
        Encoding {
            progressive: true,
            ..plain
        },
        Encoding {
            separate_scans: true,
            ..plain
        },
        Encoding {
            factors: [(4, 1), (1, 1), (1, 1)],
            ..plain
        },
        Encoding {
            factors: [(1, 1), (2, 2), (1, 1)],
            ..plain
        },
        Encoding {
            factors: [(2, 2), (2, 2), (1, 1)],
            ..plain
        },
    ];
    let mut requantiser = Requantiser::default();
    for how in refused {
        let mut out = vec![1];
        let result = requantiser.write(&encoded((40, 40), 1, &how), &options(80), &mut out);
        assert_eq!(
            (result, out.len()),
            (Err(Status::Unsupported), 0),
            "{how:?}"
        );
    }
    let source = encoded((40, 40), 1, &plain);
    for end in [0, 2, 100, source.len() / 2, source.len() - 2] {
        let mut out = vec![1];
        assert!(requantiser
            .write(&source[..end], &options(80), &mut out)
            .is_err());
        assert!(out.is_empty());
    }
}
