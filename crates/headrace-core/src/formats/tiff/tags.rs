//! The tags of a TIFF file that say how pixels are stored: whether they say so in one way only. Readers differ in what they make
//! of the others: Pillow, libtiff and the library take other entries, or pass over them, and then decode other pixels or none.

use crate::error::{Result, Status};
use crate::exif::{kind, Directory, Field};

/// The tags that say how pixels are stored (TIFF 6.0, sections 3 to 21; 347 is that of JPEG tables).
const STORAGE: [u32; 21] = [
    256,
    257,
    258,
    259,
    262,
    266,
    273,
    ORIENTATION,
    277,
    278,
    279,
    284,
    317,
    320,
    322,
    323,
    324,
    325,
    338,
    339,
    JPEG_TABLES,
];
const ORIENTATION: u32 = 274;
const JPEG_TABLES: u32 = 347;
/// The type of BigTIFF's long numbers.
const LONG8: u32 = 16;
const BITS_PER_SAMPLE: u32 = 258;
const FILL_ORDER: u32 = 266;
const SAMPLES_PER_PIXEL: u32 = 277;
const EXTRA_SAMPLES: u32 = 338;
const SAMPLE_FORMAT: u32 = 339;
/// CorelDRAW 10 states this kind of a fourth sample; Pillow takes the sample as alpha.
const CORELS_ALPHA: u64 = 999;
/// Those that have one value: of several libtiff passes over all.
const SINGLE: [u32; 11] = [
    256,
    257,
    259,
    262,
    FILL_ORDER,
    SAMPLES_PER_PIXEL,
    278,
    284,
    317,
    322,
    323,
];
/// Those of tiles: size, offsets, byte counts. One of them alone makes libtiff look for tiles.
const TILES: [u32; 4] = [322, 323, 324, 325];
/// Least and greatest values, as SHORT, and of any type. They decide no pixel, but libtiff refuses odd ones.
const EXTREMES: [u32; 2] = [280, 281];
const EXTREMES_OF_ANY_TYPE: [u32; 2] = [340, 341];

/// Refuse files of which Pillow does not see all tags that say how pixels are stored, and files where such a tag stands twice and
/// contradicts itself, or has no values, values of another type, or another number of values than the format demands.
pub fn check(data: &[u8]) -> Result<()> {
    let Some(directory) = Directory::first(data) else {
        return match data.get(..4) {
            Some(b"II+\0" | b"MM\0+") => check_big(data),
            _ => Ok(()), // a damaged file, which the library refuses
        };
    };
    if directory.drops(|tag| STORAGE.contains(&tag)) {
        return Err(Status::Truncated);
    }
    let has = |tag: &u32| directory.entries(*tag).next().is_some();
    let odd = |tag: &u32| directory.contradicts_itself(*tag) || directory.is_void(*tag);
    let tiles = TILES.iter().filter(|tag| has(tag)).count();
    let extremes = EXTREMES.iter().chain(&EXTREMES_OF_ANY_TYPE);
    let samples = directory.entries(SAMPLES_PER_PIXEL).next();
    let samples = samples.map_or(Some(1), |entry| directory.value(entry));
    let mut usual = tiles == 0 || tiles == TILES.len();
    directory.walk(|field| usual = usual && is_usual(field, samples.unwrap_or(0)));
    if !usual || STORAGE.iter().chain(extremes).any(odd) {
        return Err(Status::CorruptHeader);
    }
    Ok(())
}

/// Refuse BigTIFFs whose first directory is out of order or names a tag twice, or whose storage tags have other types than SHORT,
/// LONG and LONG8. `Directory` does not read them.
fn check_big(data: &[u8]) -> Result<()> {
    let big_endian = data.starts_with(b"MM");
    let number = |at: u64, bytes: usize| {
        let begin = usize::try_from(at).ok();
        let part = begin.and_then(|begin| data.get(begin..begin.checked_add(bytes)?));
        let part = part.ok_or(Status::Truncated)?;
        let joined = |sum: u64, &byte: &u8| sum << 8 | u64::from(byte);
        Ok(if big_endian {
            part.iter().fold(0, joined)
        } else {
            part.iter().rev().fold(0, joined)
        })
    };
    let begin = number(8, 8)?;
    let mut before = None;
    let mut at = begin.checked_add(8).ok_or(Status::Truncated)?;
    for _ in 0..number(begin, 8)? {
        let (tag, kind) = (number(at, 2)? as u32, number(at + 2, 2)? as u32);
        let usual = [kind::SHORT, kind::LONG, LONG8].contains(&kind) || tag == JPEG_TABLES;
        if before >= Some(tag) || (STORAGE.contains(&tag) && !usual) {
            return Err(Status::CorruptHeader);
        }
        before = Some(tag);
        at = at.checked_add(20).ok_or(Status::Truncated)?;
    }
    Ok(())
}

/// Whether a tag has the type and the number of values that every reader takes, and values that Pillow knows. Some writers state one
/// value for all samples.
fn is_usual(field: &Field<'_>, samples: u32) -> bool {
    let short = field.kind == kind::SHORT;
    let of_samples = field.count == 1 || field.count >= samples;
    let all = |accept: &dyn Fn(u64) -> bool| {
        let bytes = if short { 2 } else { 4 };
        (0..field.count as usize).all(|at| field.part(at * bytes, bytes).is_some_and(accept))
    };
    let tag = field.tag;
    if EXTREMES_OF_ANY_TYPE.contains(&tag) {
        return field.count == samples;
    }
    if EXTREMES.contains(&tag) {
        let first = field.part(0, 2);
        return short && of_samples && all(&|value| Some(value) == first);
    }
    if !STORAGE.contains(&tag) || tag == ORIENTATION || tag == JPEG_TABLES {
        return true;
    }
    let usual_type = short || field.kind == kind::LONG;
    usual_type
        && (field.count == 1 || !SINGLE.contains(&tag))
        && match tag {
            FILL_ORDER => all(&|value| matches!(value, 1 | 2)),
            EXTRA_SAMPLES => all(&|value| matches!(value, 0..=2 | CORELS_ALPHA)),
            BITS_PER_SAMPLE | SAMPLE_FORMAT => of_samples,
            _ => true,
        }
}
