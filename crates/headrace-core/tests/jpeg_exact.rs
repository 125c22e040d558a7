//! Our decoder gives the pixels of libjpeg-turbo's full decode: every subsampling, odd sizes, restart intervals, random crops.

use headrace_core::cpu::Extension;
use headrace_core::crc::crc32c;
use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::error::Status;
use headrace_core::geometry::{Rect, Scale, Size};
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::marker::{self, next_segment};
use headrace_core::jpeg::turbo::{self, Encoding, Extent};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::path::PathBuf;

/// A small random generator (xorshift64*), so that failures are reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    fn rect(&mut self, size: Size) -> Rect {
        let w = 1 + self.below(size.width);
        let h = 1 + self.below(size.height);
        Rect::new(
            self.below(size.width - w + 1),
            self.below(size.height - h + 1),
            w,
            h,
        )
    }
}

/// Return an image like a photograph: slopes, edges, noise and saturated spots, so that all coefficient sizes occur.
fn picture(size: Size, channels: usize, random: &mut Random) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(size.width as usize * size.height as usize * channels);
    let noise = [0, 8, 60, 255][random.below(4) as usize];
    for y in 0..size.height {
        for x in 0..size.width {
            for c in 0..channels as u32 {
                let slope = (x * (2 + c) + y * (3 - c)) / 4;
                let edge = if (x / 13 + y / 17) % 3 == c { 120 } else { 0 };
                let grain = random.below(noise + 1);
                pixels.push(
                    (slope + edge + grain).min(if (x / 40) % 2 == 0 { 255 } else { 400 }) as u8,
                );
            }
        }
    }
    pixels
}

fn crop(full: &[u8], width: u32, region: Rect) -> Vec<u8> {
    let rows = region.y..region.y + region.h;
    let row = |y: u32| &full[(y * width + region.x) as usize * 3..][..region.w as usize * 3];
    rows.flat_map(|y| row(y).iter().copied()).collect()
}

/// Compare the whole image and `crops` random regions with libjpeg-turbo's full decode.
fn assert_exact(decoder: &mut Decoder, data: &[u8], crops: u32, random: &mut Random, what: &str) {
    assert_exact_scaled(decoder, data, Scale::Full, crops, random, what);
}

/// Compare as [`assert_exact`] does, at a reduced scale.
fn assert_exact_scaled(
    decoder: &mut Decoder,
    data: &[u8],
    scale: Scale,
    crops: u32,
    random: &mut Random,
    what: &str,
) {
    let size = decoder
        .size(data)
        .unwrap_or_else(|status| panic!("{what}: {status}"))
        .scaled(scale);
    let whole = Rect::new(0, 0, size.width, size.height);
    let mut full = Vec::new();
    turbo::region_scaled(data, scale, whole, Extent::Region, &mut full)
        .unwrap_or_else(|status| panic!("{what}: libjpeg-turbo: {status}"));
    let options = DecodeOptions {
        scale,
        ..DecodeOptions::default()
    };
    let edges = [
        Rect::new(0, 0, 1, size.height),
        Rect::new(size.width - 1, 0, 1, size.height),
        Rect::new(0, size.height - 1, size.width, 1),
    ];
    let regions: Vec<Rect> = std::iter::once(whole)
        .chain(edges)
        .chain((0..crops).map(|_| random.rect(size)))
        .collect();
    for region in regions {
        let view = decoder
            .region_with(data, region, &options, None)
            .unwrap_or_else(|status| panic!("{what} {region:?}: {status}"));
        let expected = crop(&full, size.width, region);
        let row_bytes = region.w as usize * 3;
        for y in 0..region.h as usize {
            let ours = &view.pixels[y * view.stride..][..row_bytes];
            let theirs = &expected[y * row_bytes..][..row_bytes];
            if let Some(at) = ours.iter().zip(theirs).position(|(a, b)| a != b) {
                panic!(
                    "{what} {scale:?} {region:?}: row {y} byte {at}: ours {} libjpeg-turbo {}",
                    ours[at], theirs[at]
                );
            }
        }
    }
}

/// Decode `region` with and without an index, compare the pixels, and return the index that was made.
fn assert_same_with_index(data: &[u8], region: Rect, index: Option<&Index>, what: &str) -> Index {
    let (mut plain, mut indexed, mut emitted) = (Decoder::new(), Decoder::new(), Index::new());
    let expected = plain.region(data, region).expect("decodes").pixels
        [..(region.w * region.h * 3) as usize]
        .to_vec();
    let options = DecodeOptions {
        index,
        ..DecodeOptions::default()
    };
    for emit in [None, Some(&mut emitted)] {
        let view = indexed
            .region_with(data, region, &options, emit)
            .unwrap_or_else(|status| panic!("{what}: {status}"));
        assert!(
            view.pixels[..expected.len()] == expected[..],
            "{what} {region:?}: differs with an index"
        );
    }
    emitted
}

#[test]
fn indexes_of_any_coverage_give_the_same_pixels() {
    let mut random = Random(12);
    for factors in FACTORS {
        for (width, height) in [(1, 1), (40, 90), (333, 200)] {
            let size = Size { width, height };
            let how = Encoding {
                factors,
                quality: 85,
                ..Encoding::default()
            };
            let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
            let mut index = Index::new();
            for round in 0..25 {
                let region = if round == 24 {
                    Rect::new(0, 0, width, height)
                } else {
                    random.rect(size)
                };
                let given = (round % 5 > 0).then_some(&index);
                let more = assert_same_with_index(
                    &data,
                    region,
                    given,
                    &format!("{width}x{height} {how:?}"),
                );
                assert_eq!(Index::from_bytes(&more.to_bytes()), Ok(more.clone()));
                if more.rows() >= index.rows() {
                    index = more;
                }
            }
        }
    }
}

#[test]
fn an_index_of_other_bytes_is_refused() {
    let mut random = Random(13);
    let size = Size {
        width: 200,
        height: 120,
    };
    let pictures = [(); 2].map(|()| {
        turbo::encode(&picture(size, 3, &mut random), size, &Encoding::default()).expect("encoded")
    });
    let whole = Rect::new(0, 0, 200, 120);
    let index = assert_same_with_index(&pictures[0], whole, None, "first");
    assert!(index.rows() > 0);
    let options = DecodeOptions {
        index: Some(&index),
        ..DecodeOptions::default()
    };
    let mut decoder = Decoder::new();
    let mut emitted = index.clone();
    let refused = decoder
        .region_with(&pictures[1], whole, &options, Some(&mut emitted))
        .err();
    assert_eq!(
        (refused, emitted.is_empty()),
        (Some(Status::BadIndex), true)
    );
    let mut changed = pictures[0].clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    assert_eq!(
        decoder.region_with(&changed, whole, &options, None).err(),
        Some(Status::BadIndex)
    );
}

#[test]
fn restart_markers_and_other_kinds_need_no_index() {
    let mut random = Random(14);
    let size = Size {
        width: 90,
        height: 70,
    };
    let marked = Encoding {
        restart_interval: 3,
        ..Encoding::default()
    };
    let progressive = Encoding {
        progressive: true,
        ..Encoding::default()
    };
    for how in [marked, progressive] {
        let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
        let emitted = assert_same_with_index(&data, random.rect(size), None, "no index");
        assert!(emitted.is_empty());
        assert_same_with_index(&data, random.rect(size), Some(&emitted), "an empty index");
    }
}

/// Luma and chroma factors: 4:4:4, 4:2:2, 4:4:0, 4:2:0, then unusual ones (some are decoded by libjpeg-turbo).
const FACTORS: [[(u8, u8); 3]; 10] = [
    [(1, 1), (1, 1), (1, 1)],
    [(2, 1), (1, 1), (1, 1)],
    [(1, 2), (1, 1), (1, 1)],
    [(2, 2), (1, 1), (1, 1)],
    [(2, 2), (2, 1), (1, 2)],
    [(2, 2), (1, 2), (1, 2)],
    [(1, 1), (2, 2), (1, 1)],
    [(2, 1), (2, 1), (2, 1)],
    [(4, 1), (1, 1), (1, 1)],
    [(1, 2), (1, 2), (1, 1)],
];

#[test]
fn all_subsamplings_sizes_and_restart_intervals_are_exact() {
    let mut random = Random(7);
    let mut decoder = Decoder::new();
    let sizes = [
        (1, 1),
        (2, 3),
        (7, 9),
        (8, 8),
        (17, 15),
        (16, 33),
        (31, 64),
        (97, 61),
        (130, 129),
        (251, 83),
    ];
    for factors in FACTORS {
        for (width, height) in sizes {
            for restart_interval in [0, 1, 2, 3, 5, 8, 64] {
                let size = Size { width, height };
                let how = Encoding {
                    factors,
                    restart_interval,
                    quality: [30, 75, 90, 100][random.below(4) as usize],
                    optimised: random.below(2) == 0,
                    rgb: random.below(6) == 0,
                    ..Encoding::default()
                };
                let data =
                    turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
                assert_exact(
                    &mut decoder,
                    &data,
                    20,
                    &mut random,
                    &format!("{width}x{height} {how:?}"),
                );
            }
        }
    }
}

#[test]
fn grayscale_is_exact() {
    let mut random = Random(8);
    let mut decoder = Decoder::new();
    for (width, height) in [(1, 1), (9, 8), (64, 64), (201, 77)] {
        for factor in [(1, 1), (2, 2), (2, 1)] {
            for restart_interval in [0, 1, 7] {
                let size = Size { width, height };
                let how = Encoding {
                    factors: [factor; 3],
                    gray: true,
                    restart_interval,
                    ..Encoding::default()
                };
                let data =
                    turbo::encode(&picture(size, 1, &mut random), size, &how).expect("encoded");
                assert_exact(
                    &mut decoder,
                    &data,
                    20,
                    &mut random,
                    &format!("{width}x{height} {how:?}"),
                );
            }
        }
    }
}

#[test]
fn other_files_are_decoded_by_libjpeg_turbo() {
    let mut random = Random(9);
    let mut decoder = Decoder::new();
    let size = Size {
        width: 75,
        height: 50,
    };
    for factors in FACTORS {
        let kinds = [
            Encoding {
                progressive: true,
                ..Encoding::default()
            },
            Encoding {
                separate_scans: true,
                ..Encoding::default()
            },
            Encoding {
                arithmetic: true,
                ..Encoding::default()
            },
            Encoding {
                twelve_bits: true,
                ..Encoding::default()
            },
            Encoding {
                twelve_bits: true,
                progressive: true,
                ..Encoding::default()
            },
        ];
        for kind in kinds {
            let how = Encoding { factors, ..kind };
            let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
            assert_exact(&mut decoder, &data, 20, &mut random, &format!("{how:?}"));
        }
    }
}

/// Four more bits hardly change a pixel, so channels, rows and bytes are in the right order.
#[test]
fn twelve_bit_files_decode_like_eight_bit_files() {
    let size = Size {
        width: 75,
        height: 50,
    };
    let pixels: Vec<u8> = (0..75 * 50 * 3)
        .map(|i| (i * i / 4001 + i / 90) as u8)
        .collect();
    let decoded = [false, true].map(|twelve_bits| {
        let how = Encoding {
            twelve_bits,
            quality: 100,
            ..Encoding::default()
        };
        let data = turbo::encode(&pixels, size, &how).expect("encoded");
        let whole = Rect::new(0, 0, 75, 50);
        let mut decoder = Decoder::new();
        decoder.region(&data, whole).expect("decodes").pixels[..75 * 50 * 3].to_vec()
    });
    let distance = |a: &[u8], b: &[u8]| -> f64 {
        let sum: i32 = a
            .iter()
            .zip(b)
            .map(|(&a, &b)| (i32::from(a) - i32::from(b)).abs())
            .sum();
        f64::from(sum) / a.len() as f64
    };
    assert!(distance(&decoded[0], &decoded[1]) < 2.0);
    assert!(distance(&pixels, &decoded[1]) < 4.0);
}

#[test]
fn cmyk_is_decoded() {
    let mut random = Random(18);
    let mut decoder = Decoder::new();
    for (width, height) in [(1, 1), (9, 17), (75, 50)] {
        let size = Size { width, height };
        for colour in [ColorType::Cmyk, ColorType::CmykAsYcck] {
            for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_2] {
                for progressive in [false, true] {
                    let mut data = Vec::new();
                    let mut encoder = Encoder::new(&mut data, 85);
                    encoder.set_sampling_factor(sampling);
                    encoder.set_progressive(progressive);
                    let pixels = picture(size, 4, &mut random);
                    encoder
                        .encode(&pixels, width as u16, height as u16, colour)
                        .expect("encoded");
                    let what = format!("{width}x{height} {colour:?} {sampling:?} {progressive}");
                    assert_exact(&mut decoder, &data, 20, &mut random, &what);
                }
            }
        }
    }
}

/// Return the JPEG with entries of its quantisation tables replaced by `steps(k)`, for the k-th entry in file order.
fn requantised(jpeg: &[u8], steps: impl Fn(usize) -> Option<u8>) -> Vec<u8> {
    let mut changed = jpeg.to_vec();
    let mut at = 2;
    while let Some(segment) = next_segment(jpeg, at) {
        if segment.code == marker::SOS {
            break;
        }
        if segment.code == marker::DQT {
            let tables = &mut changed[segment.offset + 4..segment.end];
            for table in tables.chunks_exact_mut(65) {
                for (k, to) in table[1..].iter_mut().enumerate() {
                    *to = steps(k).unwrap_or(*to);
                }
            }
        }
        at = segment.end;
    }
    changed
}

/// Up to 8191 a dequantised DC value gives libjpeg-turbo's pixels; above, ours do on x86-64, and saturate elsewhere
/// (docs/reference/exactness.md).
#[test]
fn flat_blocks_beyond_the_range_are_as_documented() {
    let size = Size {
        width: 16,
        height: 8,
    };
    let how = Encoding {
        gray: true,
        quality: 100,
        ..Encoding::default()
    };
    for (pixel, extreme) in [(255, 255), (0, 0)] {
        let flat = turbo::encode(&[pixel; 128], size, &how).expect("encoded");
        let coefficient = (i32::from(pixel) - 128) * 8;
        for step in 1..=255u8 {
            let data = requantised(&flat, |k| (k == 0).then_some(step));
            let (whole, mut reference) = (Rect::new(0, 0, 16, 8), Vec::new());
            turbo::region(&data, whole, &mut reference).expect("libjpeg-turbo decodes");
            for extension in Extension::available() {
                let mut decoder = Decoder::with_extension(extension);
                let pixels = &decoder.region(&data, whole).expect("decodes").pixels[..384];
                let dequantised = coefficient * i32::from(step);
                let wraps = cfg!(target_arch = "x86_64"); // as in libjpeg-turbo (jpeg/idct/mod.rs)
                if dequantised.abs() < 8192 || wraps && dequantised.abs() < 1 << 15 {
                    assert!(pixels == &reference[..384], "{extension:?} {dequantised}");
                } else if dequantised.abs() < 1 << 15 {
                    assert!(pixels == [extreme; 384], "{extension:?} {dequantised}");
                }
            }
        }
    }
}

/// If coefficients overflow 16 bits, the scalar code defines the result.
#[test]
fn overflowing_coefficients_are_alike_on_every_extension() {
    let mut random = Random(20);
    let size = Size {
        width: 130,
        height: 70,
    };
    for factors in &FACTORS[..4] {
        let how = Encoding {
            factors: *factors,
            quality: 100,
            ..Encoding::default()
        };
        let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
        let data = requantised(&data, |k| Some(if k % 3 == 0 { 255 } else { 97 }));
        for _ in 0..20 {
            let region = random.rect(size);
            let pixels: Vec<Vec<u8>> = Extension::available()
                .into_iter()
                .map(|extension| {
                    let mut decoder = Decoder::with_extension(extension);
                    let view = decoder.region(&data, region).expect("decodes");
                    view.pixels[..(region.w * region.h * 3) as usize].to_vec()
                })
                .collect();
            assert!(
                pixels.iter().all(|other| other == &pixels[0]),
                "{factors:?} {region:?}"
            );
        }
    }
}

#[test]
fn the_longest_sides_are_decoded() {
    let mut random = Random(19);
    let mut decoder = Decoder::new();
    for (width, height) in [(4096, 3), (5, 4096), (4095, 33), (31, 4093)] {
        for factors in &FACTORS[..4] {
            for restart_interval in [0, 13] {
                let size = Size { width, height };
                let how = Encoding {
                    factors: *factors,
                    restart_interval,
                    ..Encoding::default()
                };
                let data =
                    turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
                let what = format!("{width}x{height} {how:?}");
                assert_exact(&mut decoder, &data, 20, &mut random, &what);
            }
        }
    }
}

#[test]
fn a_large_image_is_exact() {
    let mut random = Random(10);
    let size = Size {
        width: 2049,
        height: 1031,
    };
    for factors in [FACTORS[0], FACTORS[3]] {
        let how = Encoding {
            factors,
            restart_interval: 100,
            ..Encoding::default()
        };
        let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
        assert_exact(
            &mut Decoder::new(),
            &data,
            20,
            &mut random,
            &format!("{how:?}"),
        );
    }
}

#[test]
fn reduced_scales_are_exact() {
    let mut random = Random(15);
    let mut decoders: Vec<Decoder> = Extension::available()
        .into_iter()
        .map(Decoder::with_extension)
        .collect();
    for factors in FACTORS {
        for (width, height) in [(1, 1), (9, 17), (64, 40), (131, 77)] {
            for restart_interval in [0, 3] {
                let size = Size { width, height };
                let how = Encoding {
                    factors,
                    restart_interval,
                    quality: 92,
                    ..Encoding::default()
                };
                let data =
                    turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
                for decoder in &mut decoders {
                    for scale in [Scale::Half, Scale::Quarter] {
                        let what = format!("{width}x{height} {how:?}");
                        assert_exact_scaled(decoder, &data, scale, 8, &mut random, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn every_extension_is_exact() {
    let mut random = Random(16);
    for extension in Extension::available() {
        let mut decoder = Decoder::with_extension(extension);
        for factors in FACTORS {
            for restart_interval in [0, 1, 4] {
                let size = Size {
                    width: 205,
                    height: 99,
                };
                let how = Encoding {
                    factors,
                    restart_interval,
                    optimised: true,
                    ..Encoding::default()
                };
                let data =
                    turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
                assert_exact(
                    &mut decoder,
                    &data,
                    8,
                    &mut random,
                    &format!("{extension:?} {how:?}"),
                );
            }
        }
    }
}

/// Return small files of several kinds, with their size.
fn small_files(random: &mut Random) -> Vec<(Vec<u8>, Size)> {
    let size = Size {
        width: 75,
        height: 50,
    };
    let kinds = [
        Encoding::default(),
        Encoding {
            factors: FACTORS[3],
            optimised: true,
            ..Encoding::default()
        },
        Encoding {
            factors: FACTORS[1],
            restart_interval: 2,
            ..Encoding::default()
        },
        Encoding {
            restart_interval: 7,
            quality: 100,
            ..Encoding::default()
        },
        Encoding {
            progressive: true,
            ..Encoding::default()
        },
    ];
    kinds
        .iter()
        .map(|how| {
            (
                turbo::encode(&picture(size, 3, random), size, how).expect("encoded"),
                size,
            )
        })
        .collect()
}

#[test]
fn a_truncated_file_fails_whatever_the_crop() {
    let mut random = Random(17);
    let mut decoder = Decoder::new();
    for (data, size) in small_files(&mut random) {
        let corner = Rect::new(0, 0, 3, 3);
        for length in (0..data.len())
            .step_by(1 + data.len() / 400)
            .chain([data.len() - 1])
        {
            let cut = &data[..length];
            let whole = decoder
                .region(cut, Rect::new(0, 0, size.width, size.height))
                .err();
            assert!(whole.is_some(), "{length} of {} bytes", data.len());
            assert_eq!(
                decoder.region(cut, corner).err(),
                whole,
                "{length} of {} bytes",
                data.len()
            );
        }
        assert!(decoder
            .region(&[&data[..], b"trailing bytes"].concat(), corner)
            .is_ok());
    }
}

#[test]
fn damaged_files_never_crash_or_change_later_images() {
    let mut random = Random(18);
    let mut reused = Decoder::new();
    for (data, size) in small_files(&mut random) {
        for _ in 0..1500 {
            let mut damaged = data.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(damaged.len() as u32) as usize;
                match random.below(4) {
                    0 => damaged[at] ^= 1 << random.below(8),
                    1 => damaged[at] = [0, 0xFF, 0xD0, 0xD9, 0x7F][random.below(5) as usize],
                    2 => drop(
                        damaged.drain(at..(at + 1 + random.below(20) as usize).min(damaged.len())),
                    ),
                    _ => damaged.insert(at, random.next() as u8),
                }
            }
            let region = random.rect(size);
            let fresh = Decoder::new()
                .region(&damaged, region)
                .map(|view| view.pixels[..(region.w * region.h * 3) as usize].to_vec());
            let again = reused
                .region(&damaged, region)
                .map(|view| view.pixels[..(region.w * region.h * 3) as usize].to_vec());
            assert!(
                fresh == again,
                "{region:?} depends on earlier images: {:?} {:?}",
                fresh.err(),
                again.err()
            );
        }
        // Earlier damaged files must not change a sound image.
        assert_exact(&mut reused, &data, 5, &mut random, "after damage");
    }
}

#[test]
fn a_forged_index_never_crashes() {
    let mut random = Random(19);
    let size = Size {
        width: 200,
        height: 120,
    };
    let mut decoder = Decoder::new();
    for factors in [FACTORS[0], FACTORS[3]] {
        let how = Encoding {
            factors,
            ..Encoding::default()
        };
        let data = turbo::encode(&picture(size, 3, &mut random), size, &how).expect("encoded");
        let bytes =
            assert_same_with_index(&data, Rect::new(0, 0, 200, 120), None, "honest").to_bytes();
        for _ in 0..1500 {
            let mut forged = bytes[..bytes.len() - 4].to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(forged.len() as u32) as usize;
                forged[at] = random.next() as u8;
            }
            forged.extend(crc32c(&forged, 0).to_le_bytes());
            let Ok(index) = Index::from_bytes(&forged) else {
                continue;
            };
            let options = DecodeOptions {
                index: Some(&index),
                ..DecodeOptions::default()
            };
            let mut emitted = Index::new();
            let _ = decoder.region_with(&data, random.rect(size), &options, Some(&mut emitted));
        }
        assert_exact(&mut decoder, &data, 5, &mut random, "after forgery");
    }
}

/// Return the sample photographs, if there are any.
fn samples() -> Vec<PathBuf> {
    let root = std::env::var_os("HEADRACE_TEST_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join("imagenet-sample"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files
}

#[test]
fn sample_photographs_are_exact() {
    let mut random = Random(11);
    let mut decoder = Decoder::new();
    for path in samples().iter().step_by(7) {
        let data = std::fs::read(path).expect("readable");
        assert_exact(
            &mut decoder,
            &data,
            20,
            &mut random,
            &path.display().to_string(),
        );
    }
}
