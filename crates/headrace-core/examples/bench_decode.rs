//! Decoding speed of random-resized-crop boxes, one thread: `bench_decode FOLDER [RESTART_MARKED_FOLDER]`.
//!
//! Rows are interleaved in chunks of images, so that other load on the machine affects all rows alike. The time of a row is the
//! sum over chunks of the median over rounds of the thread's CPU time. The feature `profile` adds the time of each stage. ROUNDS,
//! LIMIT (number of images) and ROWS (measure only rows whose names contain one of these words, separated by commas) are environment
//! variables.

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::geometry::Rect;
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::turbo;
use std::path::Path;

const CHUNK: usize = 4;

struct Image {
    original: Vec<u8>,
    marked: Option<Vec<u8>>,
    index: Index,
    whole: Rect,
    region: Rect,
}

/// Return the CPU time of this thread in ns (Linux; /proc/thread-self/schedstat is updated only at clock ticks).
#[allow(unsafe_code)]
fn cpu_ns() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD_CPU_TIME: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: `timespec` is two 64-bit integers on 64-bit Linux, and the pointer is valid for the call.
    unsafe { clock_gettime(THREAD_CPU_TIME, &mut time) };
    (time[0] * 1_000_000_000 + time[1]) as u64
}

/// Return a number drawn uniformly from 0 to 1 (by a linear congruential generator, which is good enough here).
fn uniform(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// Draw torchvision's RandomResizedCrop box with its default scale (0.08, 1) and ratio (3/4, 4/3).
fn crop_box(width: u32, height: u32, state: &mut u64) -> Rect {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * (0.08 + 0.92 * uniform(state));
        let log_ratio = (0.75f64).ln() + ((4.0f64 / 3.0).ln() - (0.75f64).ln()) * uniform(state);
        let w = (target * log_ratio.exp()).sqrt().round() as u32;
        let h = (target / log_ratio.exp()).sqrt().round() as u32;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let x = (uniform(state) * f64::from(width - w + 1)) as u32;
            let y = (uniform(state) * f64::from(height - h + 1)) as u32;
            return Rect::new(x, y, w, h);
        }
    }
    let side = width.min(height);
    Rect::new((width - side) / 2, (height - side) / 2, side, side)
}

fn load(folder: &Path, marked: Option<&Path>, limit: usize) -> Vec<Image> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let mut state = 42;
    let mut decoder = Decoder::new();
    let mut images = Vec::new();
    for path in files.iter().take(limit) {
        let original = std::fs::read(path).expect("readable");
        let Ok(size) = decoder.size(&original) else {
            continue;
        };
        let name = path.file_name().expect("a file");
        let marked = marked.and_then(|folder| std::fs::read(folder.join(name)).ok());
        let region = crop_box(size.width, size.height, &mut state);
        let mut index = Index::new();
        decoder
            .region_with(
                &original,
                Rect::new(0, 0, size.width, size.height),
                &DecodeOptions::default(),
                Some(&mut index),
            )
            .expect("decodes");
        images.push(Image {
            index,
            original,
            marked,
            whole: Rect::new(0, 0, size.width, size.height),
            region,
        });
    }
    images
}

fn quantile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    values[((values.len() - 1) as f64 * share) as usize]
}

type Row<'a> = (&'static str, Box<dyn FnMut(&Image) + 'a>);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(folder) = arguments.first() else {
        eprintln!("usage: bench_decode FOLDER [RESTART_MARKED_FOLDER]");
        std::process::exit(2);
    };
    let number = |name: &str, default: usize| {
        std::env::var(name)
            .ok()
            .and_then(|v| v.parse().ok())
            .unwrap_or(default)
    };
    let marked = arguments.get(1).map(Path::new);
    let images = load(Path::new(folder), marked, number("LIMIT", usize::MAX));
    let rounds = number("ROUNDS", 7);

    let mut pixels = Vec::new();
    let mut partial_pixels = Vec::new();
    let (mut first, mut whole, mut with_markers) = (Decoder::new(), Decoder::new(), Decoder::new());
    let (mut with_index, mut making_index, mut made_index) =
        (Decoder::new(), Decoder::new(), Index::new());
    let (mut whole_marked, mut whole_index) = (Decoder::new(), Decoder::new());
    let mut rows: Vec<Row<'_>> = vec![
        (
            "libjpeg-turbo, full",
            Box::new(|i| assert!(turbo::region(&i.original, i.whole, &mut pixels).is_ok())),
        ),
        (
            "libjpeg-turbo, partial",
            Box::new(
                |i| assert!(turbo::region(&i.original, i.region, &mut partial_pixels).is_ok()),
            ),
        ),
        (
            "headrace, full",
            Box::new(|i| assert!(whole.region(&i.original, i.whole).is_ok())),
        ),
        (
            "headrace, first sight",
            Box::new(|i| assert!(first.region(&i.original, i.region).is_ok())),
        ),
    ];
    rows.push((
        "headrace, with index",
        Box::new(|i| {
            let options = DecodeOptions {
                index: Some(&i.index),
                ..DecodeOptions::default()
            };
            assert!(with_index
                .region_with(&i.original, i.region, &options, None)
                .is_ok());
        }),
    ));
    rows.push((
        "headrace, making the index",
        Box::new(|i| {
            let made = making_index.region_with(
                &i.original,
                i.region,
                &DecodeOptions::default(),
                Some(&mut made_index),
            );
            assert!(made.is_ok());
        }),
    ));
    if marked.is_some() {
        rows.push((
            "headrace, restart markers",
            Box::new(|i| {
                let data = i.marked.as_deref().unwrap_or(&i.original);
                assert!(with_markers.region(data, i.region).is_ok());
            }),
        ));
        rows.push((
            "headrace, full, restart markers",
            Box::new(|i| {
                let data = i.marked.as_deref().unwrap_or(&i.original);
                assert!(whole_marked.region(data, i.whole).is_ok());
            }),
        ));
    }
    rows.push((
        "headrace, full, with index",
        Box::new(|i| {
            let options = DecodeOptions {
                index: Some(&i.index),
                ..DecodeOptions::default()
            };
            assert!(whole_index
                .region_with(&i.original, i.whole, &options, None)
                .is_ok());
        }),
    ));
    if let Ok(wanted) = std::env::var("ROWS") {
        rows.retain(|(name, _)| wanted.split(',').any(|word| name.contains(word)));
    }
    let chunks: Vec<&[Image]> = images.chunks(CHUNK).collect();
    let mut times = vec![vec![Vec::with_capacity(rounds); chunks.len()]; rows.len()];
    for round in 0..=rounds {
        for (c, chunk) in chunks.iter().enumerate() {
            for (r, (_, work)) in rows.iter_mut().enumerate() {
                let start = cpu_ns();
                chunk.iter().for_each(&mut *work);
                if round > 0 {
                    times[r][c].push(cpu_ns() - start); // the first round warms up
                }
            }
        }
    }
    let index_bytes: usize = images
        .iter()
        .map(|image| image.index.to_bytes().len())
        .sum();
    println!("an index takes {} bytes", index_bytes / images.len());
    println!(
        "{} images, {} rounds, CPU time of one thread",
        images.len(),
        rounds
    );
    println!(
        "{:31} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "", "us/image", "images/s", "ratio", "quarter", "least"
    );
    // If other work shares the core, minimum and first quartile tell more about the code than the median.
    let total = |r: &[Vec<u64>], share: f64| {
        r.iter()
            .map(|t| quantile(&mut t.clone(), share))
            .sum::<u64>() as f64
    };
    for ((name, _), row) in rows.iter().zip(&times) {
        let us = total(row, 0.5) / images.len() as f64 / 1000.0;
        let ratio = |share: f64| total(&times[0], share) / total(row, share);
        println!(
            "{name:31} {us:9.1} {:9.0} {:8.2} {:8.2} {:8.2}",
            1e6 / us,
            ratio(0.5),
            ratio(0.25),
            ratio(0.0)
        );
    }
    drop(rows);
    #[cfg(feature = "profile")]
    for (name, decoder) in [
        ("full", &whole),
        ("first sight", &first),
        ("index", &with_index),
        ("restart markers", &with_markers),
        ("full, restart markers", &whole_marked),
        ("full, index", &whole_index),
    ] {
        println!("{name}: {}", decoder.profile());
    }
}
