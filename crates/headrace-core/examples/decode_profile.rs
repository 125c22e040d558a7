//! The time of each decoding stage of one training image, and its distance to the floor of the stage: `decode_profile FOLDER`.
//!
//! FOLDER holds `N.jpg`, `N.marked.jpg` (the same with restart markers) and `N.box` ("x y w h") for N from 0. Prints one JSON
//! document; `benchmarks/decode.py` makes the folder and turns the document into a table. Needs the feature `profile`.
//!
//! Times: for every image and stage the minimum of ROUNDS (environment variable, default 9), because other load on the machine
//! only adds time; then the mean over images. Floors, each computed from rates measured here:
//!
//! - set-up (the header, the markers, the tables): reading every byte of the file once, because every decode looks for the restart
//!   markers and the end of the file;
//! - entropy: the look-ups that the needed MCUs take, times the latency of one (load the entry, shift the window, index again),
//!   divided by the chains in flight: one at first sight, two with an index or markers. One look-up holds 1.6 AC symbols;
//! - transform: shuffles of the inverse DCT (88 for as many blocks as a vector holds), one a cycle;
//! - colour: copying as many bytes as it reads and writes, six a pixel;
//! - resample: multiply-additions, in as many 16-bit lanes as two vectors hold, every cycle;
//! - other (the choice of a decoder): none.

use headrace_core::cpu::Extension;
use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::geometry::Rect;
use headrace_core::jpeg::header::{self, HuffmanSpec, ZIGZAG};
use headrace_core::jpeg::huffman::WINDOW;
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::turbo;
use headrace_core::resample::{Resampler, ResizeSpec};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const SIDE: u32 = 224;
const STAGES: [&str; 6] = [
    "set-up",
    "entropy",
    "transform",
    "colour",
    "resample",
    "other",
];
const WAYS: [&str; 3] = ["first sight", "with index", "restart-marked"];
/// AC symbols per look-up on photographs (jpeg/huffman.rs).
const SYMBOLS_PER_LOOK_UP: f64 = 1.6;
/// Shuffles of the inverse DCT for one vector of blocks (jpeg/idct/x86.rs): two passes of 20, the transposition 24, bytes 16,
/// rows 8.
const SHUFFLES: f64 = 88.0;

struct Image {
    original: Vec<u8>,
    marked: Vec<u8>,
    index: Index,
    region: Rect,
}

fn load(folder: &Path) -> Vec<Image> {
    let mut images = Vec::new();
    while let Ok(original) = std::fs::read(folder.join(format!("{}.jpg", images.len()))) {
        let number = images.len();
        let read = |name: &str| std::fs::read(folder.join(format!("{number}.{name}")));
        let marked = read("marked.jpg").expect("a file with markers beside each image");
        let text = String::from_utf8(read("box").expect("a box beside each image")).expect("text");
        let sides: Vec<u32> = text
            .split_whitespace()
            .map(|side| side.parse().expect("four numbers"))
            .collect();
        let (mut decoder, mut index) = (Decoder::new(), Index::new());
        let size = decoder.size(&original).expect("an image");
        decoder
            .region_with(
                &original,
                Rect::new(0, 0, size.width, size.height),
                &DecodeOptions::default(),
                Some(&mut index),
            )
            .expect("decodes");
        images.push(Image {
            original,
            marked,
            index,
            region: Rect::new(sides[0], sides[1], sides[2], sides[3]),
        });
    }
    images
}

/// Return the nanoseconds of each stage of decoding and resizing one image.
fn stages(
    decoder: &mut Decoder,
    resampler: &mut Resampler,
    image: &Image,
    way: usize,
    slot: &mut [u8],
) -> [u64; 6] {
    let options = DecodeOptions {
        index: (way == 1).then_some(&image.index),
        ..DecodeOptions::default()
    };
    let data = if way == 2 {
        &image.marked
    } else {
        &image.original
    };
    let before = decoder.profile().ns();
    let start = Instant::now();
    let view = decoder
        .region_with(data, image.region, &options, None)
        .expect("decodes");
    let spec = ResizeSpec::new(image.region, SIDE, SIDE);
    let began = Instant::now();
    resampler
        .resize_into(view, &spec, slot, SIDE as usize * 3)
        .expect("resizes");
    let (resample, whole) = (
        began.elapsed().as_nanos() as u64,
        start.elapsed().as_nanos() as u64,
    );
    let after = decoder.profile().ns();
    let [set_up, entropy, transform, colour] =
        [0, 1, 2, 3].map(|stage| after[stage] - before[stage]);
    let known = set_up + entropy + transform + colour + resample;
    [
        set_up,
        entropy,
        transform,
        colour,
        resample,
        whole.saturating_sub(known),
    ]
}

/// The work that an image needs, whatever the implementation.
#[derive(Default, Clone, Copy)]
struct Work {
    /// Blocks and AC symbols of the MCUs that the crop touches, and of all MCUs down to the crop's end.
    blocks: f64,
    symbols: f64,
    blocks_above: f64,
    symbols_above: f64,
    /// AC symbols of the crop whose code and value do not fit in a window, which takes longer.
    long_symbols: f64,
    file_bytes: f64,
    pixels: f64,
    multiplications: f64,
}

fn work(image: &Image) -> Work {
    let header = header::parse(&image.original).expect("a baseline file");
    let (h_max, v_max) = header.max_factors();
    let region = image.region;
    let columns = region.x / (8 * h_max)..(region.x + region.w).div_ceil(8 * h_max);
    let rows = region.y / (8 * v_max)..(region.y + region.h).div_ceil(8 * v_max);
    let mut work = Work {
        file_bytes: image.original.len() as f64,
        pixels: f64::from(region.w) * f64::from(region.h),
        ..Work::default()
    };
    let lengths = header.ac.map(|table| table.map(|spec| code_lengths(&spec)));
    let mut row = 0;
    turbo::coefficients(&image.original, &mut |blocks| {
        for (c, component) in header.components().iter().enumerate() {
            for line in 0..usize::from(component.v) {
                for (column, block) in (0..).map_while(|x| Some((x, blocks.block(c, line, x)?))) {
                    let lengths = lengths[usize::from(component.ac)].expect("its table");
                    let (symbols, long) = symbols(block, &lengths);
                    if row < rows.end {
                        work.blocks_above += 1.0;
                        work.symbols_above += symbols;
                    }
                    let inside = columns.contains(&(column as u32 / u32::from(component.h)));
                    if rows.contains(&row) && inside {
                        work.blocks += 1.0;
                        work.symbols += symbols;
                        work.long_symbols += long;
                    }
                }
            }
        }
        row += 1;
        Ok(())
    })
    .expect("coefficients");
    // A triangle over twice the footprint, but never less than two pixels.
    let taps = |from: u32| 2.0 * (f64::from(from) / f64::from(SIDE)).max(1.0);
    let side = f64::from(SIDE);
    work.multiplications =
        3.0 * side * (f64::from(region.h) * taps(region.w) + side * taps(region.h));
    work
}

/// Return the length of each symbol's code in bits.
fn code_lengths(spec: &HuffmanSpec<'_>) -> [usize; 256] {
    let mut lengths = [0; 256];
    let mut symbols = spec.symbols.iter();
    for (length, &count) in (1..).zip(spec.counts) {
        for &symbol in symbols.by_ref().take(usize::from(count)) {
            lengths[usize::from(symbol)] = length;
        }
    }
    lengths
}

/// Return the number of AC symbols of a block (coefficients, runs of sixteen zeros, and the end of the block), and of long ones.
fn symbols(block: &[i16; 64], lengths: &[usize; 256]) -> (f64, f64) {
    let (mut symbols, mut long, mut last) = (0, 0, 0);
    for (k, &place) in ZIGZAG.iter().enumerate().skip(1) {
        let value = block[usize::from(place)];
        if value != 0 {
            let (run, size) = (
                k - last - 1,
                16 - value.unsigned_abs().leading_zeros() as usize,
            );
            symbols += 1 + run / 16;
            long += u32::from(lengths[(run % 16) << 4 | size] + size > WINDOW as usize);
            last = k;
        }
    }
    symbols += usize::from(last < 63);
    (f64::from(symbols as u32), f64::from(long))
}

/// Return the minimum time of several runs of `work` in seconds.
fn least_s(mut work: impl FnMut()) -> f64 {
    (0..15)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// Return the clock rate in Hz, from a dependency chain of multiplications (three cycles on current cores) and rotations (one).
fn clock_hz() -> f64 {
    const STEPS: u32 = 300_000;
    let factor = black_box(0x9E37_79B9_7F4A_7C15u64);
    let chain = || {
        let mut x = black_box(1u64);
        for _ in 0..STEPS {
            x = x.wrapping_mul(factor).rotate_left(7);
        }
        black_box(x);
    };
    4.0 * f64::from(STEPS) / least_s(chain)
}

/// Return the time of one look-up in a dependency chain in seconds: load an entry, rotate the window by it, take the next index.
fn look_up_s() -> f64 {
    const STEPS: u32 = 300_000;
    let table: Vec<u64> = (0..2048u64)
        .map(|i| 3 + i.wrapping_mul(0x9E37_79B9) % 8)
        .collect();
    let table: &[u64; 2048] = black_box(table[..].try_into().expect("2048 entries"));
    let chain = || {
        let mut window = black_box(0x0123_4567_89AB_CDEFu64);
        for _ in 0..STEPS {
            window = window.rotate_left(table[(window >> 53) as usize] as u32);
        }
        black_box(window);
    };
    least_s(chain) / f64::from(STEPS)
}

/// Return bytes per second of reading the images one after the other, and of copying in the L2 cache (bytes read plus written).
fn bytes_a_second(images: &[Image]) -> (f64, f64) {
    let total: usize = images.iter().map(|image| image.original.len()).sum();
    let reading = least_s(|| {
        for image in images {
            let words = image.original.chunks_exact(8);
            let sum = words.fold(0u64, |sum, word| {
                sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            });
            black_box(sum);
        }
    });
    let (from, mut to) = (vec![1u8; 1 << 18], vec![0u8; 1 << 18]);
    let copying = least_s(|| {
        for _ in 0..20 {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
    });
    (total as f64 / reading, 40.0 * from.len() as f64 / copying)
}

/// Return the floor of each stage in microseconds for an image of `work`.
fn floors(work: &Work, way: usize, clock: f64, look_up: f64, (read, copy): (f64, f64)) -> [f64; 6] {
    // 16-bit lanes of a vector, and 8×8 blocks that one holds a row of.
    let lanes: f64 = match Extension::best() {
        Extension::Scalar => 1.0,
        Extension::Neon => 8.0,
        Extension::Avx2 => 16.0,
        Extension::Avx512 => 32.0,
    };
    let (blocks, symbols, chains) = match way {
        0 => (work.blocks_above, work.symbols_above, 1.0),
        _ => (work.blocks, work.symbols, 2.0),
    };
    let look_ups = blocks + symbols / SYMBOLS_PER_LOOK_UP;
    [
        work.file_bytes / read,
        look_ups * look_up / chains,
        work.blocks * SHUFFLES / (lanes / 8.0).max(1.0) / clock,
        work.pixels * 6.0 / copy,
        work.multiplications / (2.0 * lanes) / clock,
        0.0,
    ]
    .map(|seconds| seconds * 1e6)
}

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: decode_profile FOLDER");
        std::process::exit(2);
    };
    let rounds: usize = std::env::var("ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(9);
    let images = load(Path::new(&folder));
    let mut slot = vec![0; (SIDE * SIDE * 3) as usize];
    let mut least = vec![[[u64::MAX; 6]; 3]; images.len()];
    let mut threads: [(Decoder, Resampler); 3] = Default::default();
    for _ in 0..rounds {
        for (image, least) in images.iter().zip(&mut least) {
            for (way, (decoder, resampler)) in threads.iter_mut().enumerate() {
                let now = stages(decoder, resampler, image, way, &mut slot);
                for (least, now) in least[way].iter_mut().zip(now) {
                    *least = (*least).min(now);
                }
            }
        }
    }
    let (clock, look_up, rates) = (clock_hz(), look_up_s(), bytes_a_second(&images));
    let count = images.len().max(1) as f64;
    let works: Vec<Work> = images.iter().map(work).collect();
    let ways: Vec<String> = (0..WAYS.len())
        .map(|way| {
            let stages: Vec<String> = (0..STAGES.len())
                .map(|stage| {
                    let us =
                        least.iter().map(|of| of[way][stage] as f64).sum::<f64>() / count / 1e3;
                    let floor = works
                        .iter()
                        .map(|work| floors(work, way, clock, look_up, rates)[stage])
                        .sum::<f64>()
                        / count;
                    format!(
                        "{{\"stage\": \"{}\", \"us\": {us:.2}, \"floor_us\": {floor:.2}}}",
                        STAGES[stage]
                    )
                })
                .collect();
            format!(
                "{{\"way\": \"{}\", \"stages\": [{}]}}",
                WAYS[way],
                stages.join(", ")
            )
        })
        .collect();
    let mean = |of: fn(&Work) -> f64| works.iter().map(of).sum::<f64>() / count;
    println!(
        "{{\"images\": {}, \"rounds\": {rounds}, \"clock_ghz\": {:.2}, \"look_up_ns\": {:.2}, \"read_gb_s\": {:.1}, \"copy_gb_s\": {:.1}, \
         \"blocks\": {:.0}, \"ac_symbols\": {:.0}, \"long_symbols\": {:.0}, \"pixels\": {:.0}, \"multiplications\": {:.0}, \"file_bytes\": {:.0}, \
         \"extension\": \"{:?}\", \"ways\": [{}]}}",
        images.len(),
        clock / 1e9,
        look_up * 1e9,
        rates.0 / 1e9,
        rates.1 / 1e9,
        mean(|work| work.blocks),
        mean(|work| work.symbols),
        mean(|work| work.long_symbols),
        mean(|work| work.pixels),
        mean(|work| work.multiplications),
        mean(|work| work.file_bytes),
        Extension::best(),
        ways.join(", ")
    );
}
