//! The work of the CUDA decoder, planned on the CPU: which restart segments of a batch of JPEGs the crops touch, with everything that
//! the kernels need, as one buffer for one copy to the device. Nothing is entropy-decoded here.
//!
//! The records below are read by `python/headrace/gpu/decoder/decode.cuh`, which declares the same fields in the same order. All are
//! 32-bit words, so neither side pads. The buffer holds the records of all planned images, then, for each image, its Huffman tables,
//! its segments and their bytes.

mod group;

use std::thread;

use crate::cpu::Extension;
use crate::engine::ItemBytes;
use crate::error::or_internal;
use crate::geometry::{Rect, Size};
use crate::jpeg::header::{self, Class, Colour, Header, HuffmanSpec};
use crate::jpeg::huffman::Codes;
use crate::jpeg::{region, structure};
use crate::resample::{Axis, ResizeSpec};

pub use group::Group;

/// Threads of a CUDA block, and the pieces of work that it takes, as `decode.cuh` names them.
pub mod chunk {
    /// Restart segments.
    pub const SEGMENTS: u32 = 128;
    /// 8×8 blocks.
    pub const BLOCKS: u32 = 16;
    /// Outputs of a filter axis.
    pub const WEIGHTS: u32 = 128;
    /// Pixels.
    pub const PIXELS: u32 = 256;
}

/// Unit of offsets into the buffer, and alignment of each part.
const UNIT: usize = 16;

/// Bytes of a restart segment above which an image is left to the CPU: one thread would decode it for longer than the rest of the
/// batch takes. Tiles of 32 pixels hold about 150 bytes.
const LONGEST_SEGMENT: u32 = 4096;

/// Why the device does not decode an image; the CPU kernel decodes it, or finds the status of a damaged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Not a baseline JPEG of one or three components in one scan.
    OtherKind = 1,
    /// No restart markers, or so few that segments are long.
    LongSegments = 2,
    /// Header or structure is damaged.
    Damaged = 3,
    /// The box is empty or leaves the image.
    BadBox = 4,
    /// More memory than the limit of the device's scratch memory.
    TooLarge = 5,
}

/// The crop, resize and flip of one image.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// The crop in image pixels; the whole image by default.
    pub box_: Option<Rect>,
    /// Width and height that the crop is resized to.
    pub size: (u32, u32),
    /// The part of the resized crop to compute.
    pub window: Rect,
    /// Mirror left to right.
    pub flip: bool,
}

/// A component's record.
#[derive(Clone, Copy)]
struct Component {
    blocks: u32,
    h: u32,
    v: u32,
    across: u32,
    down: u32,
    expand: (u32, u32),
    size: (u32, u32),
    corner: (u32, u32),
    tables: u32,
    quant: [u16; 64],
}

/// An image that the device decodes.
struct Order {
    components: Vec<Component>,
    colour: Colour,
    mcus_across: u32,
    columns: (u32, u32),
    rows: (u32, u32),
    needed: Rect,
    vertical_first: bool,
    flip: bool,
    axes: [(Axis, u32); 2],
    codes: Vec<Codes>,
    segments: Vec<Segment>,
    /// What the image adds to its group.
    need: Group,
    /// Where its part of the buffer begins and how long it is, in units.
    part: (u32, u32),
}

/// A restart segment that the crop touches: bytes in the file, first MCU, and the MCU after the last needed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: usize,
    length: u32,
    mcu: u32,
    end: u32,
}

/// The plan of a batch.
pub struct Plan {
    orders: Vec<Result<Order, Refusal>>,
    groups: Vec<Group>,
    records: u32,
    size: usize,
}

impl Plan {
    /// Plan the decoding of `images`, one [`Ask`] each, with groups that need at most `scratch_bytes` on the device.
    pub fn new<B: ItemBytes>(
        images: &[B],
        asks: &[Ask],
        scratch_bytes: u64,
        threads: usize,
    ) -> Self {
        let mut orders: Vec<Result<Order, Refusal>> = Vec::new();
        orders.resize_with(images.len(), || Err(Refusal::OtherKind));
        let mut jobs: Vec<_> = orders.iter_mut().zip(images).zip(asks).collect();
        in_parallel(&mut jobs, threads, |((order, image), ask)| {
            let mut copy = Vec::new();
            let made = or_internal(|| Ok(plan_image(image.get(&mut copy), ask)));
            **order = made.unwrap_or(Err(Refusal::Damaged));
        });
        let mut plan = Plan {
            orders,
            groups: Vec::new(),
            records: 0,
            size: 0,
        };
        plan.lay_out(scratch_bytes.min(u64::from(u32::MAX)));
        plan
    }

    /// Return 0 or the refusal's number for each image.
    pub fn refusals(&self) -> Vec<u8> {
        let number =
            |order: &Result<Order, Refusal>| order.as_ref().map_or_else(|&r| r as u8, |_| 0);
        self.orders.iter().map(number).collect()
    }

    /// Return the groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Return the size of the buffer in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Assign images to groups, and places in the buffer.
    fn lay_out(&mut self, limit: u64) {
        for order in &mut self.orders {
            if order.as_ref().is_ok_and(|o| o.need.scratch_bytes() > limit) {
                *order = Err(Refusal::TooLarge);
            }
        }
        self.records = self.orders.iter().flatten().count() as u32;
        let mut at = (self.records as usize * RECORD_BYTES).div_ceil(UNIT);
        let mut group = Group::default();
        for order in self.orders.iter_mut() {
            let Ok(planned) = order else { continue };
            let units = planned.units();
            let Ok(start) = u32::try_from(at) else {
                *order = Err(Refusal::TooLarge); // a record stays unused
                continue;
            };
            planned.part = (start, units);
            at += units as usize;
            let before = group;
            group = match before.plus(&planned.need) {
                Some(sum) if sum.scratch_bytes() <= limit => sum,
                _ => {
                    self.groups.push(before);
                    Group {
                        first: before.first + before.images,
                        ..planned.need
                    }
                }
            };
        }
        if group.images > 0 {
            self.groups.push(group);
        }
        self.size = at * UNIT;
    }

    /// Write the buffer, [`Plan::size`] bytes, for the same `images`. Return false if a size differs.
    pub fn fill<B: ItemBytes>(&self, images: &[B], out: &mut [u8], threads: usize) -> bool {
        if out.len() != self.size || images.len() != self.orders.len() {
            return false;
        }
        let head = (self.records as usize * RECORD_BYTES).next_multiple_of(UNIT);
        let (records, mut rest) = out.split_at_mut(head);
        let mut records = records.chunks_exact_mut(RECORD_BYTES);
        let mut jobs = Vec::with_capacity(images.len());
        let mut used = Group::default();
        let mut groups = self.groups.iter();
        let mut left = 0;
        for (slot, (order, image)) in self.orders.iter().zip(images).enumerate() {
            let Ok(order) = order else { continue };
            if left == 0 {
                left = groups.next().map_or(0, |group| group.images);
                used = Group::default();
            }
            left -= 1;
            let Some(record) = records.next() else {
                return false;
            };
            order.write_record(slot as u32, &used, record);
            used = used.plus(&order.need).unwrap_or(used);
            let (part, after) = rest.split_at_mut(order.part.1 as usize * UNIT);
            rest = after;
            jobs.push((order, image, part));
        }
        records.into_remainder().fill(0);
        in_parallel(&mut jobs, threads, |(order, image, part)| {
            order.write_part(image.get(&mut Vec::new()), part);
        });
        true
    }
}

/// Call `work` for each of `jobs`, on `threads` threads.
fn in_parallel<J: Send>(jobs: &mut [J], threads: usize, work: impl Fn(&mut J) + Sync) {
    let each = jobs.len().div_ceil(threads.max(1)).max(1);
    let work = &work;
    thread::scope(|scope| {
        let mut parts = jobs.chunks_mut(each);
        let own = parts.next();
        for part in parts {
            scope.spawn(move || part.iter_mut().for_each(work));
        }
        own.into_iter().flatten().for_each(work);
    });
}

fn plan_image(data: &[u8], ask: &Ask) -> Result<Order, Refusal> {
    let header = header::parse(data).map_err(|_| Refusal::OtherKind)?;
    let size = Size {
        width: header.width,
        height: header.height,
    };
    if !region::supports(&header) || u32::try_from(data.len()).is_err() {
        return Err(Refusal::OtherKind);
    }
    size.checked().map_err(|_| Refusal::TooLarge)?;
    let mut spec = ResizeSpec::new(
        ask.box_.unwrap_or(Rect::new(0, 0, size.width, size.height)),
        ask.size.0,
        ask.size.1,
    );
    spec.window = ask.window;
    if !spec.box_.fits(size.width, size.height) || !spec.is_valid() {
        return Err(Refusal::BadBox);
    }
    let needed = spec.needed();
    let (tables, codes) = code_tables(&header)?;
    let mut order = Order {
        components: Vec::new(),
        colour: header.colour,
        mcus_across: header.mcus().0,
        columns: (0, 0),
        rows: (0, 0),
        needed,
        vertical_first: spec.vertical_first(),
        flip: ask.flip,
        axes: [spec.axis_x(), spec.axis_y()].map(|axis| (axis, axis.most_taps())),
        codes,
        segments: Vec::new(),
        need: Group::default(),
        part: (0, 0),
    };
    order.place_components(&header, &tables);
    order.find_segments(data, &header)?;
    order.measure().ok_or(Refusal::TooLarge)?;
    Ok(order)
}

/// Return the number of each component's pair of tables, and the codes of the pairs: DC, AC, DC, AC. There are at most two pairs.
fn code_tables(header: &Header<'_>) -> Result<(Vec<u32>, Vec<Codes>), Refusal> {
    let mut pairs: Vec<(u8, u8)> = Vec::new();
    let mut numbers = Vec::new();
    for component in header.components() {
        let pair = (component.dc, component.ac);
        let known = pairs.iter().position(|&other| other == pair);
        numbers.push(known.unwrap_or(pairs.len()) as u32);
        if known.is_none() {
            pairs.push(pair);
        }
    }
    if pairs.len() > 2 {
        return Err(Refusal::OtherKind);
    }
    let mut codes = Vec::new();
    let mut build = |spec: Option<HuffmanSpec<'_>>, class| {
        let spec = spec.ok_or(Refusal::Damaged)?;
        let mut built = Codes::default();
        built
            .build(&spec, class, |_, _| ())
            .map_err(|_| Refusal::Damaged)?;
        codes.push(built);
        Ok(())
    };
    for (dc, ac) in pairs {
        build(header.dc[usize::from(dc)], Class::Dc)?;
        build(header.ac[usize::from(ac)], Class::Ac)?;
    }
    Ok((numbers, codes))
}

/// Return the samples that pixels `from..to` need along one axis: the triangle filter needs a neighbour on each side.
fn samples_needed(from: u32, to: u32, expand: u32, samples: u32) -> (u32, u32) {
    match expand {
        1 => (from, to),
        _ => (from.saturating_sub(1) / 2, (to / 2 + 1).min(samples)),
    }
}

impl Order {
    /// Compute the MCUs that the region needs and the place of each component's blocks.
    fn place_components(&mut self, header: &Header<'_>, tables: &[u32]) {
        let (h_max, v_max) = header.max_factors();
        let needed = self.needed;
        let (mut columns, mut rows) = ((u32::MAX, 0), (u32::MAX, 0));
        for component in header.components() {
            let (h, v) = (u32::from(component.h), u32::from(component.v));
            let expand = (h_max / h, v_max / v);
            let width = header.width.div_ceil(expand.0);
            let height = header.height.div_ceil(expand.1);
            let x = samples_needed(needed.x, needed.x + needed.w, expand.0, width);
            let y = samples_needed(needed.y, needed.y + needed.h, expand.1, height);
            columns.0 = columns.0.min(x.0 / (8 * h));
            columns.1 = columns.1.max(x.1.div_ceil(8 * h));
            rows.0 = rows.0.min(y.0 / (8 * v));
            rows.1 = rows.1.max(y.1.div_ceil(8 * v));
        }
        (self.columns, self.rows) = (columns, rows);
        let mut blocks = 0;
        for (component, &tables) in header.components().iter().zip(tables) {
            let (h, v) = (u32::from(component.h), u32::from(component.v));
            let expand = (h_max / h, v_max / v);
            let placed = Component {
                blocks,
                h,
                v,
                across: (columns.1 - columns.0) * h,
                down: (rows.1 - rows.0) * v,
                expand,
                size: (
                    header.width.div_ceil(expand.0),
                    header.height.div_ceil(expand.1),
                ),
                corner: (columns.0 * h * 8, rows.0 * v * 8),
                tables,
                quant: header.quant[usize::from(component.quant)].unwrap_or([1; 64]),
            };
            blocks += placed.across * placed.down; // at most MAX_PIXELS / 64 · 3, and the edges
            self.components.push(placed);
        }
        self.need.blocks = blocks;
    }

    /// Check the structure of the scan, and list the restart segments that the MCU window touches.
    fn find_segments(&mut self, data: &[u8], header: &Header<'_>) -> Result<(), Refusal> {
        let (across, down) = header.mcus();
        let interval = match header.restart_interval {
            0 => across * down,
            interval => interval,
        };
        let expected = (across * down).div_ceil(interval) as usize;
        let extension = Extension::best();
        let mut starts = Vec::new();
        structure::segments(extension, data, header.scan, expected, &mut starts)
            .map_err(|_| Refusal::Damaged)?;
        for row in self.rows.0..self.rows.1 {
            let end = row * across + self.columns.1;
            let mut mcu = row * across + self.columns.0;
            while mcu < end {
                let number = mcu / interval;
                let first = number * interval;
                let stop = end.min(first.saturating_add(interval));
                match self.segments.last_mut() {
                    Some(last) if last.mcu == first => last.end = stop,
                    _ => {
                        let start = starts[number as usize];
                        // The marker before the next segment is its last two bytes.
                        let end = match starts.get(number as usize + 1) {
                            Some(next) => next - 2,
                            None => structure::next_marker(extension, data, start)
                                .ok_or(Refusal::Damaged)?,
                        };
                        self.segments.push(Segment {
                            start,
                            length: end.saturating_sub(start) as u32,
                            mcu: first,
                            end: stop,
                        });
                    }
                }
                mcu = stop;
            }
        }
        if self.segments.iter().any(|s| s.length > LONGEST_SEGMENT) {
            return Err(Refusal::LongSegments);
        }
        Ok(())
    }

    /// Compute what the image adds to its group; `None` if a number overflows.
    fn measure(&mut self) -> Option<()> {
        let [x, y] = &self.axes;
        let words = |(axis, taps): &(Axis, u32)| axis.count.checked_mul(taps.checked_add(2)?);
        let middle = self.middle();
        let pixels = x.0.count.checked_mul(y.0.count)?;
        let middle_pixels = middle.0.checked_mul(middle.1)?;
        self.need = Group {
            first: 0,
            images: 1,
            blocks: self.need.blocks,
            middle: middle_pixels.checked_mul(3)?.checked_next_multiple_of(4)?,
            table: words(x)?.checked_add(words(y)?)?,
            chunks: [
                (self.segments.len() as u32).div_ceil(chunk::SEGMENTS),
                self.need.blocks.div_ceil(chunk::BLOCKS),
                x.0.count.checked_add(y.0.count)?.div_ceil(chunk::WEIGHTS),
                middle_pixels.div_ceil(chunk::PIXELS),
                pixels.div_ceil(chunk::PIXELS),
            ],
        };
        Some(())
    }

    /// Return width and height of the pixels between the two passes.
    fn middle(&self) -> (u32, u32) {
        if self.vertical_first {
            (self.needed.w, self.axes[1].0.count)
        } else {
            (self.axes[0].0.count, self.needed.h)
        }
    }

    /// Return units of codes, segments and bytes.
    fn part_units(&self) -> [usize; 3] {
        let bytes: usize = self.segments.iter().map(Segment::padded).sum();
        [
            self.codes.len() * CODES_BYTES / UNIT,
            self.segments.len(),
            bytes.div_ceil(UNIT),
        ]
    }

    fn units(&self) -> u32 {
        self.part_units().iter().sum::<usize>() as u32
    }

    /// Write the record of the image. `used` is what the images before it in the group need.
    fn write_record(&self, slot: u32, used: &Group, out: &mut [u8]) {
        let [codes, segments, _] = self.part_units();
        let start = self.part.0;
        let mut words = Words { out, at: 0 };
        words.all(&used.chunks);
        words.all(&[
            start,
            start + codes as u32,
            self.segments.len() as u32,
            start + (codes + segments) as u32,
            self.components.len() as u32,
            self.colour as u32,
            self.mcus_across,
            self.columns.0,
            self.columns.1 - self.columns.0,
            self.rows.0,
            self.rows.1 - self.rows.0,
            self.need.blocks,
            self.needed.w,
            self.needed.h,
            u32::from(self.vertical_first),
            u32::from(self.flip),
            slot,
            used.middle,
        ]);
        let mut table = used.table;
        for ((axis, taps), corner) in self.axes.iter().zip([self.needed.x, self.needed.y]) {
            let origin = axis.needed().0;
            words.all(&[axis.source, axis.grid, axis.first, axis.count]);
            words.all(&[origin, corner, *taps, table]);
            table += axis.count * (taps + 2);
        }
        for component in &self.components {
            words.all(&[
                used.blocks + component.blocks,
                component.h,
                component.v,
                component.across,
                component.down,
                component.expand.0,
                component.expand.1,
                component.size.0,
                component.size.1,
                component.corner.0,
                component.corner.1,
                component.tables,
            ]);
            for pair in component.quant.chunks_exact(2) {
                words.all(&[u32::from(pair[0]) | u32::from(pair[1]) << 16]);
            }
        }
        words.zeros();
    }

    /// Write codes, segments and bytes.
    fn write_part(&self, data: &[u8], out: &mut [u8]) {
        let [codes, segments, _] = self.part_units();
        let (head, bytes) = out.split_at_mut((codes + segments) * UNIT);
        let mut words = Words { out: head, at: 0 };
        for codes in &self.codes {
            words.all(&codes.limits()[1..]);
            let bases = codes.bases();
            bases[1..]
                .iter()
                .for_each(|&base| words.all(&[base as u32]));
            for four in codes.symbols().chunks_exact(4) {
                words.all(&[u32::from_le_bytes([four[0], four[1], four[2], four[3]])]);
            }
        }
        let mut at = 0;
        for segment in &self.segments {
            words.all(&[at as u32, segment.length, segment.mcu, segment.end]);
            let to = &mut bytes[at..at + segment.padded()];
            let from = data.get(segment.start..).unwrap_or_default();
            let from = &from[..from.len().min(segment.length as usize)];
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(0);
            at += segment.padded();
        }
        bytes[at..].fill(0);
    }
}

impl Segment {
    /// Return the bytes in the buffer: whole words, so that the device reads aligned words.
    fn padded(&self) -> usize {
        (self.length as usize).next_multiple_of(4)
    }
}

/// Size of an image's record, of a component's and of a code's.
const COMPONENT_WORDS: usize = 12 + 32;
const RECORD_BYTES: usize = 4 * (5 + 18 + 2 * 8 + 3 * COMPONENT_WORDS);
const CODES_BYTES: usize = 4 * (16 + 16 + 64);

/// Return the sizes that `decode.cuh` must have: an image's record, a code's, a segment's.
pub fn record_bytes() -> [usize; 3] {
    [RECORD_BYTES, CODES_BYTES, UNIT]
}

/// A writer of 32-bit words.
struct Words<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Words<'_> {
    fn all(&mut self, words: &[u32]) {
        for word in words {
            self.out[self.at..self.at + 4].copy_from_slice(&word.to_ne_bytes());
            self.at += 4;
        }
    }

    fn zeros(&mut self) {
        self.out[self.at..].fill(0);
    }
}

#[cfg(test)]
mod tests;
