//! The requantiser: it writes a JPEG at lower quality and the same size from its coefficients, dividing them by the new
//! quantisation steps. The image is never decoded to pixels. This takes less time than decoding and encoding, and loses less,
//! because neither samples nor colours are rounded in between.
//!
//! Chroma of full resolution becomes 4:2:0. A block of half the resolution can represent the lower four frequencies of two
//! neighbouring blocks; [`HALVE`] computes it (as a reduced inverse DCT followed by the DCT would). On photographs the result is
//! slightly closer to the original than the mean of 2×2 samples that encoders use.
//!
//! All arithmetic is `f32` multiplication and addition in a fixed order, so every machine writes the same bytes.
#![allow(unsafe_code)]

use std::cell::RefCell;

use super::entropy::{Group, GROUP};
use super::header::{self, Colour, Header};
use super::quality;
use super::region::{self, CoefficientRow, RegionDecoder};
use super::writer::symbols::{table_base, SymbolStream};
use super::writer::{
    append_scan, append_segment, block, output_table, quantisation_payload, restart_interval,
    shrink,
};
use super::{exif_segment, marker};
use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::Orientation;
use crate::limits::max_pixels;

/// A block's values in natural order.
type Block<T> = [T; 64];

/// The largest coefficient of baseline codes for 8-bit samples (T.81 table F.2). It also limits DC differences to 11 bits.
const LARGEST: f32 = 1023.0;

/// Options of [`Requantiser::write`].
#[derive(Debug, Clone, Copy)]
pub struct RequantiseOptions {
    /// IJG quality, 1 to 100.
    pub quality: u8,
    /// Pixels of width between restart markers; `None` for no markers.
    pub tile_px: Option<u32>,
    /// Orientation to state in an EXIF segment unless it is upright.
    pub orientation: Orientation,
}

/// Requantise `jpeg` with a writer of the calling thread, see [`Requantiser::write`].
pub fn requantise(jpeg: &[u8], options: &RequantiseOptions, out: &mut Vec<u8>) -> Result<()> {
    thread_local! {
        static REQUANTISER: RefCell<Requantiser> = RefCell::default();
    }
    REQUANTISER.with_borrow_mut(|requantiser| requantiser.write(jpeg, options, out))
}

/// The requantiser of one thread, with its reusable memory.
pub struct Requantiser {
    extension: Extension,
    decoder: RegionDecoder,
    stream: SymbolStream,
    unstuffed: Vec<u8>,
    blocks: Blocks,
}

impl Default for Requantiser {
    fn default() -> Self {
        Requantiser::with_extension(Extension::best())
    }
}

impl Requantiser {
    /// Make one whose kernels use `extension`, which the machine must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        Requantiser {
            extension,
            decoder: RegionDecoder::with_extension(extension),
            stream: SymbolStream::default(),
            unstuffed: Vec::new(),
            blocks: Blocks::default(),
        }
    }

    /// Requantise `jpeg` into `out`, which is cleared first and left empty after an error. The result is grey or YCbCr 4:2:0,
    /// baseline with optimal Huffman tables, without metadata.
    ///
    /// Errors: [`Status::Unsupported`] unless the file is a baseline YCbCr or grey image with luma at full resolution and chroma at
    /// full or half.
    pub fn write(
        &mut self,
        jpeg: &[u8],
        options: &RequantiseOptions,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        let header = header::parse(jpeg)?;
        if u64::from(header.width) * u64::from(header.height) > max_pixels() {
            return Err(Status::TooLarge);
        }
        let layout = Layout::of(&header)?;
        self.decoder.check(jpeg, &header)?;
        let tables = [&quality::LUMINANCE, &quality::CHROMINANCE]
            .map(|base| quality::table(base, options.quality));
        let mcus = layout.columns * layout.rows;
        let interval = options.tile_px.map_or(mcus, |tile_px| {
            restart_interval(layout.columns, layout.mcu_px, tile_px)
        });
        self.stream.clear();
        let mut row = OutputRow::new(&header, &layout, &tables, interval, &mut self.blocks);
        let (extension, stream) = (self.extension, &mut self.stream);
        let done = self
            .decoder
            .coefficient_rows(jpeg, &header, |from| {
                row.take(extension, Some(from), stream)
            })
            .and_then(|()| row.take(extension, None, stream));
        if done.is_ok() {
            self.stream.end_segment();
            append_head(&header, &tables, options.orientation, out);
            append_scan(
                &self.stream,
                interval,
                mcus,
                (0..header.count).map(|index| (index as u8 + 1, index)),
                &mut self.unstuffed,
                out,
            );
        }
        shrink(&mut self.stream, &mut self.unstuffed);
        done
    }
}

/// Append all segments before the Huffman tables, as libjpeg writes them.
fn append_head(
    header: &Header<'_>,
    tables: &[Block<u16>; 2],
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(&[0xFF, marker::SOI]);
    // JFIF 1.01, no density, no thumbnail.
    append_segment(marker::APP0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0", out);
    if orientation != Orientation::Upright {
        append_segment(
            marker::APP1,
            &exif_segment::orientation_payload(orientation),
            out,
        );
    }
    let colour = header.count > 1;
    for (number, table) in tables.iter().enumerate().take(1 + usize::from(colour)) {
        append_segment(marker::DQT, &quantisation_payload(number as u8, table), out);
    }
    let [h1, h0] = (header.height as u16).to_be_bytes();
    let [w1, w0] = (header.width as u16).to_be_bytes();
    let mut frame = vec![8, h1, h0, w1, w0, header.count as u8];
    for index in 0..header.count {
        let factors = if colour && index == 0 { 0x22 } else { 0x11 };
        frame.extend_from_slice(&[index as u8 + 1, factors, output_table(index) as u8]);
    }
    append_segment(marker::SOF0, &frame, out);
}

/// The geometry of the blocks in the file and in the new MCUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Layout {
    /// Side of a new MCU in pixels: 8 in grey, 16 in colour.
    mcu_px: usize,
    /// Side of a new MCU in luma blocks.
    side: usize,
    /// New MCUs across and down.
    columns: usize,
    rows: usize,
    /// Blocks across of the image in the file, of luma and of chroma, without the padding of the last MCU.
    across: [usize; 2],
    /// Lines of luma blocks of the image.
    down: usize,
    /// Lines of blocks in an MCU row of the file, of luma and of chroma.
    lines: [usize; 2],
    /// Whether chroma has the resolution of luma, across and down, and must be halved.
    halve: (bool, bool),
}

impl Layout {
    fn of(header: &Header<'_>) -> Result<Self> {
        if !region::supports(header) || header.colour == Colour::Rgb {
            return Err(Status::Unsupported);
        }
        let factors = |index: usize| {
            let component = &header.components[index];
            (u32::from(component.h), u32::from(component.v))
        };
        let colour = header.count > 1;
        let (luma, chroma) = (factors(0), factors(usize::from(colour)));
        // Cameras do not write chroma that is finer than luma, or chroma components with different sampling.
        if luma != header.max_factors() || luma.0 > 2 || luma.1 > 2 {
            return Err(Status::Unsupported);
        }
        if colour && factors(2) != chroma {
            return Err(Status::Unsupported);
        }
        let side = 1 + usize::from(colour);
        let mcu_px = 8 * side;
        let across = |h: u32| (header.width * h).div_ceil(8 * luma.0) as usize;
        Ok(Layout {
            mcu_px,
            side,
            columns: (header.width as usize).div_ceil(mcu_px),
            rows: (header.height as usize).div_ceil(mcu_px),
            across: [luma.0, chroma.0].map(across),
            down: (header.height as usize).div_ceil(8),
            lines: [luma.1, chroma.1].map(|v| v as usize),
            halve: (chroma.0 == luma.0, chroma.1 == luma.1),
        })
    }
}

/// Blocks of a new MCU row.
#[derive(Default)]
struct Blocks {
    /// New levels of luma: the lines of one row of new MCUs. The file may have one block less across.
    luma: Vec<Block<i16>>,
    /// Dequantised coefficients of chroma, one line for each component. If chroma is halved, the lower frequencies of the blocks
    /// that are merged are stored side by side.
    chroma: [Vec<Block<f32>>; 2],
}

/// A new MCU row while it is made from one or two MCU rows of the file.
struct OutputRow<'r> {
    layout: Layout,
    components: usize,
    interval: usize,
    /// The new luma level for an old level of 1.
    luma_ratio: Block<f32>,
    /// The old steps of both chroma components, and the inverse of their new step.
    chroma_steps: [Block<f32>; 2],
    chroma_inverse: Block<f32>,
    /// Lines of luma that were read from the file for this row.
    taken: usize,
    done: usize,
    blocks: &'r mut Blocks,
    predictors: [i16; 3],
    until_restart: usize,
}

impl<'r> OutputRow<'r> {
    fn new(
        header: &Header<'_>,
        layout: &Layout,
        tables: &[Block<u16>; 2],
        interval: usize,
        blocks: &'r mut Blocks,
    ) -> Self {
        let steps = |component: &header::Component| {
            let table = header.quant[usize::from(component.quant)];
            table.unwrap_or([1; 64]).map(f32::from) // `supports` checked that the table exists
        };
        let [of_luma, of_cb, of_cr] = [0, 1, 2].map(|index| steps(&header.components[index]));
        let [luma, chroma] = tables.map(|table| table.map(|step| 1.0 / f32::from(step)));
        let line = layout.side * layout.columns;
        blocks.luma.resize(layout.side * line, [0; 64]);
        for blocks in &mut blocks.chroma {
            blocks.resize(layout.columns, [0.0; 64]);
        }
        OutputRow {
            layout: *layout,
            components: header.count,
            interval,
            luma_ratio: std::array::from_fn(|k| of_luma[k] * luma[k]),
            chroma_steps: [of_cb, of_cr],
            chroma_inverse: chroma,
            taken: 0,
            done: 0,
            blocks,
            predictors: [0; 3],
            until_restart: interval,
        }
    }

    /// Add the next MCU row of the file, or its end, and record the new row when it is complete.
    fn take(
        &mut self,
        extension: Extension,
        from: Option<&CoefficientRow<'_>>,
        stream: &mut SymbolStream,
    ) -> Result<()> {
        match extension {
            // SAFETY: an extension is only named on a machine that has it (`Extension::available`).
            #[cfg(target_arch = "x86_64")]
            Extension::Avx512 => unsafe { self.take_avx512(from, stream) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Extension::Avx2 => unsafe { self.take_avx2(from, stream) },
            _ => self.take_anywhere(from, stream, block::symbols),
        }
    }

    /// As `take`, compiled for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn take_avx2(
        &mut self,
        from: Option<&CoefficientRow<'_>>,
        stream: &mut SymbolStream,
    ) -> Result<()> {
        self.take_anywhere(from, stream, block::symbols)
    }

    /// As `take_avx2`, with a separate kernel for symbols.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn take_avx512(
        &mut self,
        from: Option<&CoefficientRow<'_>>,
        stream: &mut SymbolStream,
    ) -> Result<()> {
        self.take_anywhere(from, stream, |block, predictor, base, words| {
            block::symbols_avx512(block, predictor, base, words)
        })
    }

    #[inline(always)]
    fn take_anywhere(
        &mut self,
        from: Option<&CoefficientRow<'_>>,
        stream: &mut SymbolStream,
        symbols: impl Fn(&Block<i16>, i16, u32, &mut [u32; block::ROOM]) -> Result<usize>,
    ) -> Result<()> {
        let Layout {
            side,
            columns,
            across,
            down,
            lines,
            halve,
            ..
        } = self.layout;
        if let Some(from) = from {
            let lines = lines.map(|lines| lines.min(down - self.done));
            for y in 0..lines[0] {
                let to = &mut self.blocks.luma[(self.taken + y) * side * columns..][..across[0]];
                for (group, blocks) in from.line(0, y).iter().zip(to.chunks_mut(GROUP)) {
                    quantise(group, &self.luma_ratio, blocks);
                }
            }
            for component in 1..self.components {
                let steps = &self.chroma_steps[component - 1];
                let to = &mut self.blocks.chroma[component - 1];
                for y in 0..lines[1] {
                    let line = from.line(component, y);
                    let (below, line) = (self.taken + y > 0, (line, across[1]));
                    match halve {
                        (true, true) => gather::<4, 4>(line, steps, below, to),
                        (true, false) => gather::<4, 8>(line, steps, below, to),
                        (false, true) => gather::<8, 4>(line, steps, below, to),
                        (false, false) => gather::<8, 8>(line, steps, below, to),
                    }
                }
            }
            self.taken += lines[0];
            self.done += lines[0];
        }
        let whole = self.taken == side;
        if whole || (from.is_none() && self.taken > 0) {
            self.record(stream, symbols)?;
            self.taken = 0;
        }
        Ok(())
    }

    #[inline(always)]
    fn record(
        &mut self,
        stream: &mut SymbolStream,
        symbols: impl Fn(&Block<i16>, i16, u32, &mut [u32; block::ROOM]) -> Result<usize>,
    ) -> Result<()> {
        let Layout {
            side,
            columns,
            across,
            halve,
            ..
        } = self.layout;
        for column in 0..columns {
            if self.until_restart == 0 {
                stream.end_segment();
                self.predictors = [0; 3];
                self.until_restart = self.interval;
            }
            self.until_restart -= 1;
            stream.reserve_mcu()?;
            for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, column * side + x))) {
                let mut beyond = [0; 64]; // blocks outside the image take the fewest bits this way
                beyond[0] = self.predictors[0];
                let there = y < self.taken && x < across[0];
                let block = if there {
                    &self.blocks.luma[y * side * columns + x]
                } else {
                    &beyond
                };
                stream.record_block(block, self.predictors[0], table_base(0), &symbols)?;
                self.predictors[0] = block[0];
            }
            for component in 1..self.components {
                let mut block = self.blocks.chroma[component - 1][column];
                if halve.0 {
                    if 2 * column + 1 == across[1] {
                        mirror(&mut block, 1, 8);
                    }
                    block = halved_across(&block);
                }
                if halve.1 {
                    if self.taken < side {
                        mirror(&mut block, 8, 1);
                    }
                    block = halved_down(&block);
                }
                let mut quantised = [0; 64];
                for (row, to) in quantised.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let (from, inverse) = (&block[row * 8..], &self.chroma_inverse[row * 8..]);
                    *to = levels(std::array::from_fn(|k| from[k] * inverse[k]));
                }
                let block = quantised;
                let predictor = &mut self.predictors[component];
                let base = table_base(output_table(component));
                stream.record_block(&block, *predictor, base, &symbols)?;
                *predictor = block[0];
            }
        }
        Ok(())
    }
}

/// Return the nearest levels that baseline codes can represent; halves are rounded away from zero.
#[inline(always)]
fn levels(values: [f32; 8]) -> [i16; 8] {
    values.map(|value| {
        // Not clamp(): its handling of NaN, which cannot occur here, costs a third more.
        let value = if value > LARGEST { LARGEST } else { value };
        let value = if value < -LARGEST { -LARGEST } else { value };
        // SAFETY: a number within ±1024; no product of finite factors this small is a NaN.
        unsafe { (value + 0.5f32.copysign(value)).to_int_unchecked::<i32>() as i16 }
    })
}

/// Write the new levels of the first blocks of a group to `blocks`.
#[inline(always)]
fn quantise(group: &Group, ratio: &Block<f32>, blocks: &mut [Block<i16>]) {
    let (from, _) = group.as_chunks::<8>();
    let (ratio, _) = ratio.as_chunks::<8>();
    for (lane, block) in blocks.iter_mut().enumerate() {
        for (row, to) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let from = &from[row * GROUP + lane];
            *to = levels(std::array::from_fn(|k| f32::from(from[k]) * ratio[row][k]));
        }
    }
}

/// Dequantise the first W frequencies across and H down of a line's blocks, and store them as [`Blocks::chroma`] describes: with 4,
/// two blocks share one.
#[inline(always)]
fn gather<const W: usize, const H: usize>(
    (line, across): (&[Group], usize),
    steps: &Block<f32>,
    below: bool,
    to: &mut [Block<f32>],
) {
    let top = if below && H < 8 { H } else { 0 };
    for (number, group) in line.iter().enumerate() {
        let lanes = across.saturating_sub(number * GROUP).min(GROUP);
        for row in 0..H {
            let (from, steps) = (
                &group[row * 8 * GROUP..][..8 * GROUP],
                &steps[row * 8..][..8],
            );
            let values: [f32; 8 * GROUP] =
                std::array::from_fn(|k| f32::from(from[k]) * steps[k % 8]);
            for (lane, values) in values.chunks_exact(8).take(lanes).enumerate() {
                let left = (number * GROUP + lane) * W; // 8 per block
                to[left / 8][(top + row) * 8 + left % 8..][..W].copy_from_slice(&values[..W]);
            }
        }
    }
}

/// Fill the second half of an axis, which lies outside the image, as if the image were reflected there, which is smooth. `along`
/// and `across` are the strides of the axis and of the other one.
#[inline(always)]
fn mirror(block: &mut Block<f32>, along: usize, across: usize) {
    for place in (0..8).map(|line| line * across) {
        for frequency in 0..4 {
            let value = block[place + frequency * along];
            let odd = frequency % 2 == 1;
            block[place + (frequency + 4) * along] = if odd { -value } else { value };
        }
    }
}

/// Contribution of the first half to the odd frequencies of a block of eight samples; each half comes from the lowest four
/// frequencies of eight samples at twice the resolution. (The even frequencies take 0.5 of the frequency at half their number.
/// The second half contributes the same with the signs of a reflection.) It is `D8[1, 3, 5, 7][0..4] * inverse(D4) / sqrt(2)`,
/// where Dn is the orthonormal DCT of n samples.
const HALVE: [[f32; 4]; 4] = [
    [0.453_063_72, 0.207_867_4, -0.037_328_917, 0.011_443_663],
    [-0.159_094_82, 0.395_532_54, 0.256_64, -0.048_772_58],
    [0.106_303_76, -0.176_221_48, 0.384_088_88, 0.245_196_32],
    [-0.090_119_98, 0.138_892_56, -0.187_665_14, 0.432_861_46],
];

/// The complete matrix of [`HALVE`] as `[input][output]`, so that a row of the result is a sum of rows of this matrix.
const HALVE_BY_INPUT: [[f32; 8]; 8] = {
    let mut matrix = [[0.0; 8]; 8];
    let mut input = 0;
    while input < 4 {
        matrix[input][2 * input] = 0.5;
        let mut row = 0;
        while row < 4 {
            matrix[input][2 * row + 1] = HALVE[row][input];
            row += 1;
        }
        let mut output = 0;
        while output < 8 {
            let reflected = (input + output) % 2 == 1;
            let value = matrix[input][output];
            matrix[input + 4][output] = if reflected { -value } else { value };
            output += 1;
        }
        input += 1;
    }
    matrix
};

/// Return one block of half the vertical resolution. Rows 0 to 3 and 4 to 7 of `block` are the lowest frequencies of the upper and
/// the lower block.
#[inline(always)]
fn halved_down(block: &Block<f32>) -> Block<f32> {
    let at = |row: usize, column: usize| block[row * 8 + column];
    let mut out = [0.0; 64];
    for column in 0..8 {
        let sums: [f32; 4] = std::array::from_fn(|row| at(row, column) + at(row + 4, column));
        let differences: [f32; 4] =
            std::array::from_fn(|row| at(row, column) - at(row + 4, column));
        let even = [sums[0], differences[1], sums[2], differences[3]];
        let odd = [differences[0], sums[1], differences[2], sums[3]];
        for row in 0..4 {
            let [a, b, c, d] = HALVE[row];
            out[16 * row + column] = 0.5 * even[row];
            out[16 * row + 8 + column] = a * odd[0] + b * odd[1] + c * odd[2] + d * odd[3];
        }
    }
    out
}

/// Return one block of half the horizontal resolution, from columns 0 to 3 and 4 to 7. Sums of vectors are faster than transposing.
#[inline(always)]
fn halved_across(block: &Block<f32>) -> Block<f32> {
    let mut out = [0.0; 64];
    let (rows, _) = block.as_chunks::<8>();
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<8>().0) {
        for (value, matrix) in row.iter().zip(&HALVE_BY_INPUT) {
            for (out, factor) in out.iter_mut().zip(matrix) {
                *out += value * factor;
            }
        }
    }
    out
}
