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
    write(&folder.join("cuda_plan"), &[40, 40, 128, 128], &jpegs)?;
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

fn noise(size: Size) -> Vec<u8> {
    let mut state = 1u32;
    (0..size.width * size.height * 3)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Return `jpeg` with a fill byte before the first stuffed zero of its scan, where the standard allows none.
fn with_fill_byte(jpeg: &[u8]) -> Outcome<Vec<u8>> {
    let find = |from: usize, wanted: [u8; 2]| {
        let found = jpeg[from..].windows(2).position(|pair| pair == wanted);
        found.map(|at| from + at)
    };
    let scan = find(0, [0xFF, 0xDA]).ok_or("the file has no scan")?;
    let stuffed = find(scan + 14, [0xFF, 0]).ok_or("the scan has no stuffed zero")?;
    Ok([&jpeg[..stuffed], &[0xFF], &jpeg[stuffed..]].concat())
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
        Encoding {
            lossless: true,
            rgb: true,
            factors: [(1, 1); 3],
            ..plain
        },
        Encoding {
            lossless: true,
            gray: true,
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
    files.push(with_fill_byte(&turbo::encode(
        &noise(size),
        size,
        &Encoding {
            quality: 95,
            ..plain
        },
    )?)?);
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
    // Bytes between the segments of the header, which every reader skips.
    let mut junk = files[0].clone();
    junk.splice(20..20, [0, 7, 0xFF, 0, 9]); // behind the JFIF segment
    files.push(junk);
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
    files.extend(bitmaps());
    files.extend(tiffs());
    files.push(animated_webp());
    files.push(interlaced_gif()?);
    files.extend(pngs_with_texts(&files[0]));
    Ok(files)
}

/// Return bitmaps of 8 × 4 pixels: run lengths with jumps, empty rows and stored pixels, and masks of 16 and 32 bits.
fn bitmaps() -> Vec<Vec<u8>> {
    let runs8 = [
        0, 3, 4, 5, 6, 0, 0, 2, 1, 0, 0, 2, 1, 0, 0, 0, 8, 7, 0, 0, 0, 2, 7, 1, 1, 9, 0, 0, 0, 1,
    ];
    let runs4 = [
        0, 3, 0x45, 0x60, 0, 0, 0, 0, 8, 0x78, 0, 0, 5, 0x12, 0, 2, 3, 0, 0, 0, 0, 1,
    ];
    let (pixels, no_masks) = (
        picture(
            Size {
                width: 8,
                height: 4,
            },
            4,
        ),
        [0; 4],
    );
    vec![
        bitmap(8, 1, no_masks, &runs8),
        bitmap(4, 2, no_masks, &runs4),
        bitmap(1, 0, no_masks, &pixels[..16]),
        bitmap(16, 3, [0xF800, 0x7E0, 0x1F, 0], &pixels[..64]),
        bitmap(16, 0, no_masks, &pixels[..64]),
        bitmap(32, 3, [0xFF_0000, 0xFF00, 0xFF, 0xFF00_0000], &pixels),
    ]
}

fn bitmap(bits: u16, compression: u32, masks: [u32; 4], data: &[u8]) -> Vec<u8> {
    let colours = if bits <= 8 { 1 << bits } else { 0 };
    let palette = picture(
        Size {
            width: colours,
            height: 1,
        },
        4,
    );
    let at = 14 + 56 + palette.len() as u32;
    let mut file = b"BM".to_vec();
    for field in [
        at + data.len() as u32,
        0,
        at,
        56,
        8,
        4,
        u32::from(bits) << 16 | 1,
        compression,
    ] {
        file.extend(field.to_le_bytes());
    }
    for field in [data.len() as u32, 0, 0, colours, 0].iter().chain(&masks) {
        file.extend(field.to_le_bytes());
    }
    [&file[..], &palette, data].concat()
}

/// Return TIFF files of 19 × 13 pixels that the library's encoder does not write: tiles, planes, and extra samples.
fn tiffs() -> Vec<Vec<u8>> {
    const TILED: bool = true;
    let kinds: [(u16, &[u16], bool, bool); 6] = [
        (2, &[], TILED, false),
        (2, &[], false, true),
        (2, &[2], TILED, false),
        (2, &[0], false, false),
        (5, &[], false, false),
        (1, &[2], false, false),
    ];
    let file = |&(photometric, extra, tiled, planes)| layout(photometric, extra, tiled, planes);
    kinds.iter().map(file).collect()
}

/// Write an uncompressed TIFF of 8 bits: one strip, one strip for each plane, or tiles of 16 × 16 pixels.
fn layout(photometric: u16, extra: &[u16], tiled: bool, planes: bool) -> Vec<u8> {
    let colours = [1, 1, 3, 1, 1, 4][usize::from(photometric)].max(1);
    let samples = if photometric == 5 { 4 } else { colours } + extra.len() as u32;
    let (places, pieces, bytes) = match (tiled, planes) {
        (true, _) => (324, 2, 16 * 16 * samples),
        (false, true) => (273, samples, 19 * 13),
        (false, false) => (273, 1, 19 * 13 * samples),
    };
    let starts = 1024;
    let mut tags: Vec<(u16, Vec<u32>)> = vec![
        (256, vec![19]),
        (257, vec![13]),
        (258, vec![8; samples as usize]),
        (259, vec![1]),
        (262, vec![photometric.into()]),
        (277, vec![samples]),
        (284, vec![if planes { 2 } else { 1 }]),
        (places, (0..pieces).map(|n| starts + n * bytes).collect()),
    ];
    if tiled {
        tags.extend([
            (322, vec![16]),
            (323, vec![16]),
            (325, vec![bytes; pieces as usize]),
        ]);
    } else {
        tags.extend([(278, vec![13]), (279, vec![bytes; pieces as usize])]);
    }
    if !extra.is_empty() {
        tags.push((338, extra.iter().map(|&kind| kind.into()).collect()));
    }
    tags.sort();
    let mut head = b"II*\0\x08\0\0\0".to_vec();
    head.extend((tags.len() as u16).to_le_bytes());
    let mut outside = Vec::new();
    for (tag, values) in &tags {
        let short = [258, 284, 338].contains(tag);
        head.extend(tag.to_le_bytes());
        head.extend([if short { 3 } else { 4 }, 0]); // SHORT or LONG
        head.extend((values.len() as u32).to_le_bytes());
        let bytes = if short { 2 } else { 4 };
        let mut stored: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes()[..bytes].to_vec())
            .collect();
        if stored.len() <= 4 {
            stored.resize(4, 0);
            head.extend(&stored);
        } else {
            let place = 8 + 2 + 12 * tags.len() + 4 + outside.len();
            head.extend((place as u32).to_le_bytes());
            outside.extend(stored);
        }
    }
    head.extend([0; 4]);
    head.extend(outside);
    head.resize(starts as usize, 0);
    let pixels = Size {
        width: pieces * bytes,
        height: 1,
    };
    [head, picture(pixels, 1)].concat()
}

/// Return an animated WebP: an extended header, and a frame that is blended and smaller than its canvas.
fn animated_webp() -> Vec<u8> {
    let chunk = |name: &[u8], content: &[u8]| {
        let padding = vec![0; content.len() % 2];
        [
            name,
            &(content.len() as u32).to_le_bytes(),
            content,
            &padding,
        ]
        .concat()
    };
    let header = [0x02, 0, 0, 0, 9, 0, 0, 7, 0, 0]; // animation; 10 × 8
    let place = [1, 0, 0, 0, 0, 0, 3, 0, 0, 3, 0, 0, 40, 0, 0, 0]; // 4 × 4 at (2, 0)
    let frame = [&place[..], &chunk(b"VP8 ", LOSSY_FRAME)].concat();
    let body = [
        b"WEBP".to_vec(),
        chunk(b"VP8X", &header),
        chunk(b"ANIM", &[0; 6]),
        chunk(b"ANMF", &frame),
    ]
    .concat();
    chunk(b"RIFF", &body)
}

/// Return an interlaced GIF with a transparent colour, whose frame is smaller than the screen.
fn interlaced_gif() -> Outcome<Vec<u8>> {
    let mut file = Vec::new();
    let mut frame = gif::Frame::from_indexed_pixels(9, 7, vec![1; 63], Some(2));
    (frame.left, frame.top, frame.interlaced) = (2, 1, true);
    gif::Encoder::new(&mut file, 12, 9, &[0, 0, 0, 90, 20, 10, 1, 2, 3, 4, 5, 6])?
        .write_frame(&frame)?;
    Ok(file)
}

/// Return the PNG with its orientation in texts, as ImageMagick writes it, plain and compressed (stored), and as XMP. The
/// checksums of these chunks are 0: the reader of texts does not compare them.
fn pngs_with_texts(png: &[u8]) -> Vec<Vec<u8>> {
    let digits: String = tiff_block()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let profile = format!("\nexif\n{:8}\n{digits}\n", tiff_block().len()).into_bytes();
    let length = profile.len() as u16;
    let stored = [
        &[0x78, 1, 1][..],
        &length.to_le_bytes(),
        &(!length).to_le_bytes(),
        &profile,
    ];
    let xmp = b"<rdf:Description tiff:Orientation=\"6\"/>".to_vec();
    let texts = [
        (b"tEXt", &b"Raw profile type exif\0"[..], profile.clone()),
        (b"zTXt", b"Raw profile type exif\0\0", stored.concat()),
        (
            b"iTXt",
            b"Raw profile type exif\0\x01\0\0\0",
            stored.concat(),
        ),
        (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0", xmp),
    ];
    let with = |(name, head, value): &(&[u8; 4], &[u8], Vec<u8>)| {
        let size = (head.len() + value.len()) as u32;
        let parts = [
            &png[..33],
            &size.to_be_bytes(),
            &name[..],
            head,
            value,
            &[0; 4],
            &png[33..],
        ];
        parts.concat()
    };
    texts.iter().map(with).collect()
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
