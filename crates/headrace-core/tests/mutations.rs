//! A damaged file gives a status or correct pixels, never a crash, a hang, or pixels of an earlier image. The mutations are the
//! same in each run.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use headrace_core::decode::Decoder;
use headrace_core::error::{Result, Status};
use headrace_core::geometry::{Orientation, Rect, Size};
use headrace_core::jpeg::marker::{self, next_segment};
use headrace_core::jpeg::requantise::{requantise, RequantiseOptions};
use headrace_core::jpeg::restart::{restart_markers, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use image::{ExtendedColorType, ImageEncoder};

const SIZE: Size = Size {
    width: 75,
    height: 43,
};

fn picture(channels: u32) -> Vec<u8> {
    let mut state = 3u32;
    let samples = SIZE.width * SIZE.height * channels;
    (0..samples)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (x, y) = (i / channels % SIZE.width, i / channels / SIZE.width);
            ((x * 3 + y * 2 + 50 * (i % channels)) as u8).wrapping_add((state >> 28) as u8)
        })
        .collect()
}

fn jpeg(how: Encoding) -> Vec<u8> {
    turbo::encode(&picture(if how.gray { 1 } else { 3 }), SIZE, &how).unwrap()
}

/// Return a gray TIFF of one strip with JPEG compression, which none of our libraries writes.
fn tiff_of_jpeg() -> Vec<u8> {
    let strip = jpeg(Encoding {
        gray: true,
        ..Encoding::default()
    });
    let (w, h, fields) = (SIZE.width, SIZE.height, 9u16);
    let place = 8 + 2 + 12 * u32::from(fields) + 4;
    let mut file = b"II*\0\x08\0\0\0".to_vec();
    file.extend(fields.to_le_bytes());
    for (tag, value) in [
        (256u16, w),
        (257, h),
        (258, 8),
        (259, 7),
        (262, 1),
        (273, place),
        (277, 1),
        (278, h),
        (279, strip.len() as u32),
    ] {
        file.extend(tag.to_le_bytes());
        file.extend([4, 0, 1, 0, 0, 0]); // one number of 32 bits
        file.extend(value.to_le_bytes());
    }
    file.extend([0; 4]);
    [file, strip].concat()
}

/// Return small files of every kind that the decoder reads.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let plain = Encoding {
        factors: [(2, 2), (1, 1), (1, 1)],
        ..Encoding::default()
    };
    let mut marked = Vec::new();
    restart_markers(&jpeg(plain), &RestartOptions::default(), &mut marked).unwrap();
    let mut cmyk = Vec::new();
    jpeg_encoder::Encoder::new(&mut cmyk, 80)
        .encode(
            &picture(4),
            SIZE.width as u16,
            SIZE.height as u16,
            jpeg_encoder::ColorType::Cmyk,
        )
        .unwrap();

    let rgb = ExtendedColorType::Rgb8;
    let (w, h) = (SIZE.width, SIZE.height);
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, w, h);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_filter(png::Filter::Adaptive);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&picture(3)).unwrap();
    writer.finish().unwrap();
    let mut webp = Vec::new();
    image::codecs::webp::WebPEncoder::new_lossless(&mut webp)
        .write_image(&picture(3), w, h, rgb)
        .unwrap();
    let mut bmp = Vec::new();
    image::codecs::bmp::BmpEncoder::new(&mut bmp)
        .write_image(&picture(3), w, h, rgb)
        .unwrap();
    let mut tiff = Cursor::new(Vec::new());
    tiff::encoder::TiffEncoder::new(&mut tiff)
        .unwrap()
        .write_image::<tiff::encoder::colortype::RGB8>(w, h, &picture(3))
        .unwrap();
    let mut gif = Vec::new();
    gif::Encoder::new(&mut gif, w as u16, h as u16, &[])
        .unwrap()
        .write_frame(&gif::Frame::from_rgb(w as u16, h as u16, &picture(3)))
        .unwrap();
    let portable = |head: &str, samples: Vec<u8>| {
        let head = format!("{head}\n# comment\n{w} {h}\n");
        [head.into_bytes(), samples].concat()
    };
    let numbers = picture(3)
        .iter()
        .map(|value| format!("{value} "))
        .collect::<String>();
    vec![
        ("4:2:0", jpeg(plain)),
        ("4:4:4", jpeg(Encoding::default())),
        (
            "gray",
            jpeg(Encoding {
                gray: true,
                ..Encoding::default()
            }),
        ),
        ("restart markers", marked),
        (
            "progressive",
            jpeg(Encoding {
                progressive: true,
                ..plain
            }),
        ),
        (
            "separate scans",
            jpeg(Encoding {
                separate_scans: true,
                ..plain
            }),
        ),
        (
            "arithmetic",
            jpeg(Encoding {
                arithmetic: true,
                ..plain
            }),
        ),
        ("CMYK", cmyk),
        ("PNG", png),
        ("WebP", webp),
        ("BMP", bmp),
        ("TIFF", tiff.into_inner()),
        ("GIF", gif),
        ("TIFF of a JPEG", tiff_of_jpeg()),
        ("PPM", portable("P6", [b"255\n", &picture(3)[..]].concat())),
        (
            "PGM of 16 bits",
            portable("P5", [b"900\n", &picture(2)[..]].concat()),
        ),
        (
            "PBM",
            portable("P4", picture(1)[..(w.div_ceil(8) * h) as usize].to_vec()),
        ),
        (
            "plain PPM",
            portable("P3", format!("255\n{numbers}").into()),
        ),
    ]
}

/// Return the pixels of a region, without gaps.
fn region(decoder: &mut Decoder, data: &[u8], region: Rect) -> Result<Vec<u8>> {
    let view = decoder.region(data, region)?;
    let rows = (region.y - view.region.y) as usize..(region.y - view.region.y + region.h) as usize;
    let left = (region.x - view.region.x) as usize * 3;
    Ok(rows
        .flat_map(|row| view.pixels[row * view.stride + left..][..region.w as usize * 3].to_vec())
        .collect())
}

fn crop(full: &[u8], width: u32, part: Rect) -> Vec<u8> {
    (part.y..part.y + part.h)
        .flat_map(|y| full[(y * width + part.x) as usize * 3..][..part.w as usize * 3].to_vec())
        .collect()
}

/// The checks that must hold for any bytes.
struct Judge {
    /// A decoder of all images so far; its results must not depend on them.
    used: Decoder,
    taken: usize,
    refused: usize,
}

impl Judge {
    fn check(&mut self, data: &[u8], what: &str) {
        let size = self.used.size(data);
        assert_eq!(size, Decoder::new().size(data), "{what}: size");
        let Ok(size) = size else {
            self.refused += 1;
            assert_ne!(size, Err(Status::Internal), "{what}");
            return;
        };
        let whole = Rect::new(0, 0, size.width, size.height);
        if u64::from(size.width) * u64::from(size.height) > 1 << 20 {
            return; // a wrong size, which only costs memory
        }
        let full = region(&mut self.used, data, whole);
        assert_eq!(
            full,
            region(&mut Decoder::new(), data, whole),
            "{what}: pixels of an earlier image"
        );
        assert_ne!(full, Err(Status::Internal), "{what}");
        self.compare_with_turbo(data, &full, size, what);
        self.requantise(data, &full, size, what);
        let parts = [
            Rect::new(0, 0, 1, 1),
            Rect::new(
                size.width / 3,
                size.height / 3,
                size.width.div_ceil(3),
                size.height.div_ceil(3),
            ),
            Rect::new(size.width - 1, 0, 1, size.height),
        ];
        for part in parts
            .iter()
            .filter(|part| part.fits(size.width, size.height))
        {
            let cut = region(&mut self.used, data, *part);
            assert_eq!(
                cut,
                region(&mut Decoder::new(), data, *part),
                "{what} {part:?}: a new decoder gives another result"
            );
            if let (Ok(full), Ok(cut)) = (&full, &cut) {
                assert_eq!(
                    &crop(full, size.width, *part),
                    cut,
                    "{what} {part:?}: not the image's part"
                );
            }
        }
        match full {
            Ok(_) => self.taken += 1,
            Err(_) => self.refused += 1,
        }
    }

    /// Check that a file is requantised only if it is sound, and that the result is sound.
    fn requantise(&self, data: &[u8], full: &Result<Vec<u8>>, size: Size, what: &str) {
        let options = RequantiseOptions {
            quality: 50,
            tile_px: Some(32),
            orientation: Orientation::Upright,
        };
        let mut out = vec![1];
        match requantise(data, &options, &mut out) {
            Err(_) => assert!(out.is_empty(), "{what}: output after an error"),
            Ok(()) => {
                assert!(full.is_ok(), "{what}: {full:?}, but requantised");
                let whole = Rect::new(0, 0, size.width, size.height);
                let decoded = region(&mut Decoder::new(), &out, whole);
                assert!(decoded.is_ok(), "{what}, requantised: {decoded:?}");
                let read = turbo::region(&out, whole, &mut Vec::new());
                assert!(read.is_ok(), "{what}, requantised: {read:?}");
            }
        }
    }

    /// Check that the pixels equal those of libjpeg-turbo, and that a file is decoded only if libjpeg-turbo decodes it without a
    /// warning.
    fn compare_with_turbo(&self, data: &[u8], full: &Result<Vec<u8>>, size: Size, what: &str) {
        let mut pixels = Vec::new();
        if !data.starts_with(&[0xFF, 0xD8]) {
            return;
        }
        let Ok(full) = full else { return };
        let whole = Rect::new(0, 0, size.width, size.height);
        let stride = turbo::region(data, whole, &mut pixels)
            .unwrap_or_else(|status| panic!("{what}: taken, but for libjpeg-turbo {status:?}"));
        // Beyond the range of any encoder our scalar code equals libjpeg-turbo's x86 kernels, not its NEON kernels
        // (docs/reference/exactness.md).
        assert!(
            full == &pixels[..stride * size.height as usize]
                || cfg!(not(target_arch = "x86_64")) && !is_in_range(data),
            "{what}: pixels differ from libjpeg-turbo's"
        );
    }
}

/// Return whether the dequantised coefficients of each block sum to less than 2^13, as those of an encoder do.
fn is_in_range(jpeg: &[u8]) -> bool {
    let mut largest = [[0i64; 64]; 4];
    let read = turbo::coefficients(jpeg, &mut |rows| {
        for (component, largest) in largest.iter_mut().enumerate() {
            for block in (0..4)
                .flat_map(|line| (0..).map_while(move |column| rows.block(component, line, column)))
            {
                for (largest, &value) in largest.iter_mut().zip(block) {
                    *largest = (*largest).max(i64::from(value).abs());
                }
            }
        }
        Ok(())
    });
    let Ok(tables) = read else { return false };
    largest.iter().zip(&tables).all(|(values, steps)| {
        let products = values.iter().zip(steps).map(|(v, &s)| v * i64::from(s));
        products.sum::<i64>() < 1 << 13
    })
}

/// Run `mutate` on every seed; return how many mutations were decoded and how many refused.
fn judge(mut mutate: impl FnMut(&[u8], &mut dyn FnMut(&[u8], String))) -> (usize, usize) {
    let mut judge = Judge {
        used: Decoder::new(),
        taken: 0,
        refused: 0,
    };
    for (kind, data) in seeds() {
        judge.check(&data, kind);
        assert!(judge.taken > 0, "the undamaged {kind} file is refused");
        mutate(&data, &mut |mutated, what| {
            judge.check(mutated, &format!("{kind}, {what}"))
        });
    }
    (judge.taken - seeds().len(), judge.refused)
}

#[test]
fn truncation_is_always_detected() {
    let mut taken = Vec::new();
    for (kind, data) in seeds() {
        for sixteenths in 1..16 {
            let cut = &data[..data.len() * sixteenths / 16];
            let mut decoder = Decoder::new();
            if let Ok(size) = decoder.size(cut) {
                let last_row = Rect::new(0, size.height - 1, size.width, 1);
                if region(&mut decoder, cut, last_row).is_ok() {
                    taken.push((kind, sixteenths));
                }
                // A truncated JPEG fails for every crop, even one whose data is present.
                let corner = region(&mut decoder, cut, Rect::new(0, 0, 1, 1));
                assert!(
                    corner.is_err() || !data.starts_with(&[0xFF, 0xD8]),
                    "{kind} {sixteenths}/16"
                );
            }
        }
    }
    assert_eq!(taken, []);
}

#[test]
fn flipped_bits_are_survived() {
    let (taken, refused) = judge(|data, check| {
        let mut state = 9u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize
        };
        for _ in 0..150 {
            let (byte, bit) = (random() % data.len(), random() % 8);
            let mut mutated = data.to_vec();
            mutated[byte] ^= 1 << bit;
            check(&mutated, format!("bit {bit} of byte {byte}"));
        }
    });
    assert!(taken > 100 && refused > 100, "{taken} {refused}");
}

#[test]
fn lost_doubled_and_zeroed_bytes_are_survived() {
    judge(|data, check| {
        for start in (0..data.len()).step_by(data.len() / 25 + 1) {
            let (before, behind) = data.split_at(start);
            let gap = 7.min(behind.len());
            check(
                &[before, &behind[gap..]].concat(),
                format!("{gap} bytes lost at {start}"),
            );
            check(
                &[before, &behind[..gap], behind].concat(),
                format!("{gap} bytes twice at {start}"),
            );
            check(
                &[before, &vec![0; gap], &behind[gap..]].concat(),
                format!("{gap} zeros at {start}"),
            );
            check(
                &[before, &vec![0xFF; gap], &behind[gap..]].concat(),
                format!("{gap} bytes 0xFF at {start}"),
            );
        }
    });
}

fn jpeg_segments(data: &[u8]) -> Vec<(u8, std::ops::Range<usize>)> {
    let mut segments = Vec::new();
    let mut at = 2;
    while let Some(segment) = next_segment(data, at) {
        if !data.starts_with(&[0xFF, marker::SOI]) || segment.code == marker::EOI {
            break;
        }
        segments.push((segment.code, segment.offset..segment.end));
        at = segment.end;
    }
    segments
}

#[test]
fn lost_doubled_and_exchanged_jpeg_segments_are_survived() {
    let (_, refused) = judge(|data, check| {
        let segments = jpeg_segments(data);
        for (number, (code, range)) in segments.iter().enumerate() {
            let (before, segment, behind) = (
                &data[..range.start],
                &data[range.clone()],
                &data[range.end..],
            );
            check(
                &[before, behind].concat(),
                format!("segment {number} ({code:02X}) lost"),
            );
            check(
                &[before, segment, segment, behind].concat(),
                format!("segment {number} ({code:02X}) twice"),
            );
            if let Some((_, next)) = segments.get(number + 1) {
                let between = &data[range.end..next.start];
                let exchanged = [
                    before,
                    &data[next.clone()],
                    between,
                    segment,
                    &data[next.end..],
                ]
                .concat();
                check(
                    &exchanged,
                    format!(
                        "segments {number} ({code:02X}) and {} exchanged",
                        number + 1
                    ),
                );
            }
        }
    });
    assert!(refused > 50);
}

#[test]
fn misplaced_jpeg_markers_are_survived() {
    judge(|data, check| {
        let Some((_, scan)) = jpeg_segments(data)
            .into_iter()
            .find(|(code, _)| *code == marker::SOS)
        else {
            return;
        };
        for code in [
            0xD0,
            0xD1,
            0xD7,
            marker::SOI,
            marker::EOI,
            marker::SOS,
            marker::DHT,
            marker::DRI,
            0xC0,
            0x01,
            0xDC,
        ] {
            for at in (scan.end..data.len()).step_by((data.len() - scan.end) / 9 + 1) {
                let mutated = [&data[..at], &[0xFF, code], &data[at..]].concat();
                check(&mutated, format!("marker {code:02X} at {at}"));
            }
        }
    });
}

#[test]
fn wrong_values_in_jpeg_headers_are_survived() {
    judge(|data, check| {
        for (code, range) in jpeg_segments(data) {
            let mut set = |offset: usize, bytes: &[u8]| {
                let mut mutated = data.to_vec();
                mutated[range.start + offset..range.start + offset + bytes.len()]
                    .copy_from_slice(bytes);
                check(
                    &mutated,
                    format!("segment {code:02X} offset {offset}: {bytes:?}"),
                );
            };
            match code {
                0xC0..=0xC2 | 0xC9 => {
                    for value in [0u16, 1, 7, 42, 44, 74, 76, 80, 96, 500, 65_535] {
                        set(5, &value.to_be_bytes());
                        set(7, &value.to_be_bytes());
                    }
                    for value in [0, 1, 2, 3, 4, 5, 255] {
                        set(9, &[value]);
                    }
                    for factors in [0x00, 0x11, 0x12, 0x14, 0x21, 0x22, 0x41, 0x44, 0x51, 0xFF] {
                        set(11, &[factors]);
                    }
                    set(4, &[12]);
                    set(12, &[3]);
                    set(10, &[99]);
                }
                marker::DRI => {
                    for value in [0u16, 1, 2, 3, 4, 6, 100, 65_535] {
                        set(4, &value.to_be_bytes());
                    }
                }
                marker::SOS => {
                    for value in [0, 1, 2, 3, 4, 5, 255] {
                        set(4, &[value]);
                    }
                    for tables in [0x11, 0x22, 0x33, 0x44, 0xFF] {
                        set(6, &[tables]);
                    }
                }
                marker::DHT => {
                    for at in 5..21 {
                        for count in [0, 1, 2, 3, 255] {
                            set(at, &[count]);
                        }
                    }
                    set(4, &[0x44]);
                }
                marker::DQT => {
                    set(4, &[0x10]);
                    set(4, &[0x04]);
                    set(5, &[0; 64]);
                }
                _ => {}
            }
            for length in [0u16, 1, 2, 3, 65_535] {
                set(2, &length.to_be_bytes());
            }
        }
    });
}

/// The restart writer keeps the pixels of every mutation that it accepts.
#[test]
fn the_restart_writer_never_writes_damaged_files() {
    let (mut written, mut refused) = (0, 0);
    let mut out = Vec::new();
    let mut check = |data: &[u8], what: String| {
        if restart_markers(data, &RestartOptions::default(), &mut out).is_err() {
            assert!(out.is_empty(), "{what}");
            refused += 1;
            return;
        }
        written += 1;
        let size = turbo::size(&out).unwrap_or_else(|status| panic!("{what}: wrote {status:?}"));
        let whole = Rect::new(0, 0, size.width, size.height);
        let bytes = size.width as usize * size.height as usize * 3;
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        turbo::region(&out, whole, &mut behind)
            .unwrap_or_else(|status| panic!("{what}: wrote {status:?}"));
        if turbo::region(data, whole, &mut before).is_ok() {
            assert!(before[..bytes] == behind[..bytes], "{what}: pixels changed");
        }
    };
    for (kind, data) in seeds()
        .into_iter()
        .filter(|(_, data)| data.starts_with(&[0xFF, 0xD8]))
    {
        for byte in (0..data.len()).step_by(data.len() / 300 + 1) {
            for bit in [0, 3, 7] {
                let mut mutated = data.clone();
                mutated[byte] ^= 1 << bit;
                check(&mutated, format!("{kind}, bit {bit} of byte {byte}"));
            }
        }
        for (number, (code, range)) in jpeg_segments(&data).into_iter().enumerate() {
            let lost = [&data[..range.start], &data[range.end..]].concat();
            check(&lost, format!("{kind}, segment {number} ({code:02X}) lost"));
        }
    }
    assert!(written > 500 && refused > 500, "{written} {refused}");
}

/// A scan of a few bytes can cover the whole image, so the number of scans is limited.
#[test]
fn endless_scans_are_refused() {
    let progressive = jpeg(Encoding {
        progressive: true,
        ..Encoding::default()
    });
    let segments = jpeg_segments(&progressive);
    let (_, last_scan) = segments
        .iter()
        .rfind(|(code, _)| *code == marker::SOS)
        .unwrap();
    let scan = &progressive[last_scan.start..progressive.len() - 2];
    let mut bomb = progressive[..progressive.len() - 2].to_vec();
    for _ in 0..200 {
        bomb.extend_from_slice(scan);
    }
    bomb.extend_from_slice(&[0xFF, marker::EOI]);
    let whole = Rect::new(0, 0, SIZE.width, SIZE.height);
    assert!(Decoder::new().region(&bomb, whole).is_err());
    assert!(restart_markers(&bomb, &RestartOptions::default(), &mut Vec::new()).is_err());
}
