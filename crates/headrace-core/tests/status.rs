//! The status of an image is a function of its bytes, never of the region: for JPEGs of every kind, sound, truncated and damaged.

mod common;

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::error::Status;
use headrace_core::geometry::{Rect, Size};
use headrace_core::jpeg::turbo::{encode, Encoding};
use headrace_core::order::hashed;

const SIZE: Size = Size {
    width: 75,
    height: 61,
};

fn kinds() -> Vec<(&'static str, Encoding)> {
    let plain = Encoding::default();
    let subsampled = [(2, 2), (1, 1), (1, 1)];
    vec![
        ("baseline", plain),
        (
            "4:2:0",
            Encoding {
                factors: subsampled,
                ..plain
            },
        ),
        (
            "gray",
            Encoding {
                gray: true,
                ..plain
            },
        ),
        (
            "restart markers",
            Encoding {
                restart_interval: 5,
                ..plain
            },
        ),
        (
            "progressive",
            Encoding {
                progressive: true,
                ..plain
            },
        ),
        (
            "progressive 4:2:0",
            Encoding {
                progressive: true,
                factors: subsampled,
                ..plain
            },
        ),
        (
            "separate scans",
            Encoding {
                separate_scans: true,
                ..plain
            },
        ),
        (
            "arithmetic",
            Encoding {
                arithmetic: true,
                ..plain
            },
        ),
        (
            "progressive arithmetic",
            Encoding {
                arithmetic: true,
                progressive: true,
                ..plain
            },
        ),
        (
            "12 bits",
            Encoding {
                twelve_bits: true,
                ..plain
            },
        ),
        (
            "lossless",
            Encoding {
                lossless: true,
                rgb: true,
                ..plain
            },
        ),
        (
            "lossless gray",
            Encoding {
                lossless: true,
                gray: true,
                ..plain
            },
        ),
    ]
}

fn regions() -> impl Iterator<Item = Rect> {
    let corners = [
        Rect::new(0, 0, SIZE.width, SIZE.height),
        Rect::new(0, 0, 1, 1),
        Rect::new(SIZE.width - 1, SIZE.height - 1, 1, 1),
        Rect::new(0, SIZE.height - 1, SIZE.width, 1),
    ];
    let random = (0..12u64).map(|number| {
        let draw = |part: u64, limit: u32| (hashed(&[number, part]) % u64::from(limit)) as u32;
        let (x, y) = (draw(0, SIZE.width), draw(1, SIZE.height));
        let w = 1 + draw(2, SIZE.width - x);
        Rect::new(x, y, w, 1 + draw(3, SIZE.height - y))
    });
    corners.into_iter().chain(random)
}

/// Return the status of every region, which must be the same.
fn status(decoder: &mut Decoder, data: &[u8], what: &str) -> Status {
    let mut found = None;
    for region in regions() {
        let result = decoder.region_with(data, region, &DecodeOptions::default(), None);
        let status = result.err().unwrap_or(Status::Ok);
        assert_eq!(*found.get_or_insert(status), status, "{what}, {region:?}");
    }
    found.unwrap_or(Status::Internal)
}

#[test]
fn sound_files_have_one_status_for_every_region() {
    let pixels = common::pattern(SIZE.width, SIZE.height, 1);
    let mut decoder = Decoder::new();
    for (name, kind) in kinds() {
        let data = encode(&pixels, SIZE, &kind).expect(name);
        let expected = if kind.lossless {
            Status::Unsupported
        } else {
            Status::Ok
        };
        assert_eq!(status(&mut decoder, &data, name), expected, "{name}");
        if kind.lossless {
            assert_eq!(decoder.size(&data), Err(expected), "{name}");
        }
    }
}

#[test]
fn truncated_files_have_one_status_for_every_region() {
    let pixels = common::pattern(SIZE.width, SIZE.height, 1);
    let mut decoder = Decoder::new();
    for (name, kind) in kinds() {
        let data = encode(&pixels, SIZE, &kind).expect(name);
        for cut in 1..40 {
            let mut part = data[..data.len() * cut / 40].to_vec();
            let what = format!("{name}, {} of {} bytes", part.len(), data.len());
            assert_ne!(status(&mut decoder, &part, &what), Status::Ok, "{what}");
            // With an end marker, as a program writes it that closes a broken download.
            part.extend([0xFF, 0xD9]);
            if !is_ours(&kind) {
                status(&mut decoder, &part, &format!("{what} and an end marker"));
            }
        }
    }
}

#[test]
fn damage_that_libjpeg_turbo_finds_does_not_depend_on_the_region() {
    let pixels = common::pattern(SIZE.width, SIZE.height, 1);
    let mut decoder = Decoder::new();
    for (name, kind) in kinds() {
        if is_ours(&kind) || kind.lossless {
            continue; // crops read only their part of the entropy-coded data: docs/reference/exactness-files.md
        }
        let data = encode(&pixels, SIZE, &kind).expect(name);
        let mut damaged = 0; // of the files that keep their size
        for number in 0..60 {
            let mut file = data.clone();
            let at = 20 + hashed(&[number, 9]) as usize % (file.len() - 22);
            file[at] ^= 1 << (number % 8);
            if decoder.size(&file) != Ok(SIZE) {
                continue; // another image, on which the regions do not lie
            }
            let found = status(
                &mut decoder,
                &file,
                &format!("{name}, bit {} of byte {at}", number % 8),
            );
            damaged += usize::from(found != Status::Ok);
        }
        assert!(damaged > 0, "{name}");
    }
}

/// Return whether our own decoder reads files of this kind, by regions.
fn is_ours(kind: &Encoding) -> bool {
    !(kind.progressive
        || kind.separate_scans
        || kind.arithmetic
        || kind.twelve_bits
        || kind.lossless)
}
