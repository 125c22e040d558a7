//! Write the seeds of the fuzzer, small generated images of every kind, to `FOLDER/TARGET/`.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::geometry::{Orientation, Rect, Size};
use headrace_core::jpeg::exif_segment::orientation_payload;
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::restart::{restart_markers, RestartOptions};
use headrace_core::jpeg::turbo::{self, Encoding};
use image::{ExtendedColorType, ImageEncoder};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: seeds FOLDER")?);
    let (jpegs, others) = (jpegs()?, others()?);
    write(&folder.join("jpeg_header"), &[], &jpegs)?;
    write(&folder.join("restart_writer"), &[7], &jpegs)?;
    write(&folder.join("requantiser"), &[7], &jpegs)?;
    write(&folder.join("jpeg_region"), &[40, 40, 128, 128], &jpegs)?;
    write(&folder.join("formats"), &[40, 40, 128, 128], &others)?;
    write(
        &folder.join("exif"),
        &[40, 40, 128, 128],
        &[&jpegs[..2], &others, &[tiff_block()]].concat(),
    )?;
    write(
        &folder.join("index_reader"),
        &[40, 40, 128, 128],
        &[index()?],
    )?;
    write(&folder.join("masks"), &[19, 13, 33, 255], &masks()?)?;
    Ok(())
}

/// Return a gray PNG of 8 bits; the fuzzer finds other depths and palettes itself.
fn masks() -> Outcome<Vec<Vec<u8>>> {
    let size = Size {
        width: 19,
        height: 13,
    };
    let mut file = Vec::new();
    image::codecs::png::PngEncoder::new(&mut file).write_image(
        &picture(size, 1),
        size.width,
        size.height,
        ExtendedColorType::L8,
    )?;
    Ok(vec![file])
}

/// Return the index of an image like that of the target, without its checksum.
fn index() -> Outcome<Vec<u8>> {
    let size = Size {
        width: 200,
        height: 40,
    };
    let file = turbo::encode(&picture(size, 3), size, &Encoding::default())?;
    let mut index = Index::new();
    let whole = Rect::new(0, 0, size.width, size.height);
    Decoder::new().region_with(&file, whole, &DecodeOptions::default(), Some(&mut index))?;
    let mut bytes = index.to_bytes();
    bytes.truncate(bytes.len() - 4);
    Ok(bytes)
}

fn write(folder: &Path, prefix: &[u8], images: &[Vec<u8>]) -> Outcome<()> {
    std::fs::create_dir_all(folder)?;
    for (number, image) in images.iter().enumerate() {
        std::fs::write(
            folder.join(format!("seed-{number:02}")),
            [prefix, image].concat(),
        )?;
    }
    Ok(())
}

fn picture(size: Size, channels: u32) -> Vec<u8> {
    let mut state = 3u32;
    (0..size.width * size.height * channels)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (x, y) = (i / channels % size.width, i / channels / size.width);
            ((x * 5 + y * 3 + 50 * (i % channels)) as u8).wrapping_add((state >> 29) as u8)
        })
        .collect()
}

fn tiff_block() -> Vec<u8> {
    orientation_payload(Orientation::Rotate90)[6..].to_vec()
}

fn jpegs() -> Outcome<Vec<Vec<u8>>> {
    let size = Size {
        width: 37,
        height: 21,
    };
    let plain = Encoding {
        factors: [(2, 2), (1, 1), (1, 1)],
        quality: 60,
        ..Encoding::default()
    };
    let kinds = [
        plain,
        Encoding {
            factors: [(1, 1); 3],
            ..plain
        },
        Encoding {
            factors: [(2, 1), (1, 1), (1, 1)],
            ..plain
        },
        Encoding {
            factors: [(1, 2), (1, 1), (1, 1)],
            ..plain
        },
        Encoding {
            factors: [(4, 1), (1, 1), (1, 1)],
            ..plain
        },
        Encoding {
            gray: true,
            ..plain
        },
        Encoding {
            rgb: true,
            factors: [(1, 1); 3],
            ..plain
        },
        Encoding {
            restart_interval: 1,
            ..plain
        },
        Encoding {
            optimised: true,
            ..plain
        },
        Encoding {
            progressive: true,
            ..plain
        },
        Encoding {
            separate_scans: true,
            ..plain
        },
        Encoding {
            arithmetic: true,
            ..plain
        },
        Encoding {
            quality: 100,
            ..plain
        },
        Encoding {
            twelve_bits: true,
            ..plain
        },
    ];
    let mut files = Vec::new();
    for kind in kinds {
        files.push(turbo::encode(
            &picture(size, if kind.gray { 1 } else { 3 }),
            size,
            &kind,
        )?);
    }
    let mut marked = Vec::new();
    restart_markers(&files[1], &RestartOptions::default(), &mut marked)?;
    files.push(marked);
    for colour in [
        jpeg_encoder::ColorType::Cmyk,
        jpeg_encoder::ColorType::CmykAsYcck,
    ] {
        let mut file = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut file, 70);
        encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
        encoder.add_app_segment(1, &orientation_payload(Orientation::Rotate90))?;
        encoder.encode(
            &picture(size, 4),
            size.width as u16,
            size.height as u16,
            colour,
        )?;
        files.push(file);
    }
    Ok(files)
}

fn others() -> Outcome<Vec<Vec<u8>>> {
    let size = Size {
        width: 19,
        height: 13,
    };
    let (w, h) = (size.width, size.height);
    let (gray, rgb, rgba) = (picture(size, 1), picture(size, 3), picture(size, 4));
    let mut files = vec![Vec::new(); 5];
    image::codecs::png::PngEncoder::new(&mut files[0]).write_image(
        &rgb,
        w,
        h,
        ExtendedColorType::Rgb8,
    )?;
    image::codecs::png::PngEncoder::new(&mut files[1]).write_image(
        &rgba,
        w,
        h,
        ExtendedColorType::Rgba8,
    )?;
    image::codecs::webp::WebPEncoder::new_lossless(&mut files[2]).write_image(
        &rgb,
        w,
        h,
        ExtendedColorType::Rgb8,
    )?;
    image::codecs::bmp::BmpEncoder::new(&mut files[3]).write_image(
        &rgb,
        w,
        h,
        ExtendedColorType::Rgb8,
    )?;
    let mut frame = gif::Frame::from_rgb(w as u16, h as u16, &rgb);
    frame.top = 2;
    gif::Encoder::new(&mut files[4], w as u16, h as u16 + 2, &[])?.write_frame(&frame)?;
    for wide in [false, true] {
        let mut tiff = Cursor::new(Vec::new());
        let mut encoder = tiff::encoder::TiffEncoder::new(&mut tiff)?;
        if wide {
            let wide: Vec<u16> = gray.iter().map(|&value| u16::from(value) * 3).collect();
            encoder.write_image::<tiff::encoder::colortype::Gray16>(w, h, &wide)?;
        } else {
            encoder.write_image::<tiff::encoder::colortype::RGB8>(w, h, &rgb)?;
        }
        files.push(tiff.into_inner());
    }
    files.push(lossy_webp());
    for (kind, maximum, samples) in [("P5", "255", &gray), ("P6", "300", &[rgb, rgba].concat())] {
        let head = format!("{kind} {w} {h} {maximum}\n");
        files.push([head.as_bytes(), samples].concat());
    }
    files.push(b"P1 # plain\n3 2 010 111".to_vec());
    files.push(b"P3 1 2 99 1 2 3 4 5 6".to_vec());
    Ok(files)
}

/// Return a 4 × 4 lossy WebP file, for which there is no encoder in Rust: RIFF header and one VP8 key frame.
fn lossy_webp() -> Vec<u8> {
    let frame = LOSSY_FRAME;
    let mut file = b"RIFF".to_vec();
    file.extend_from_slice(&(frame.len() as u32 + 12).to_le_bytes());
    file.extend_from_slice(b"WEBPVP8 ");
    file.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    file.extend_from_slice(frame);
    file
}

#[rustfmt::skip]
const LOSSY_FRAME: &[u8] = &[
    0xD0, 0x01, 0x00, 0x9D, 0x01, 0x2A, 0x04, 0x00, 0x04, 0x00, 0x04, 0x00, 0x68, 0x25, 0x88, 0x02, 0x74, 0x00, 0xF4, 0x93,
    0xA9, 0xF5, 0xC0, 0x00, 0xFC, 0xFE, 0xFE, 0xF1, 0x73, 0xD8, 0x9A, 0x3A, 0x60, 0x35, 0xA8, 0xA2, 0x8F, 0x99, 0x6B, 0x43,
    0x93, 0x5F, 0x10, 0xC0, 0x00, 0x00,
];
