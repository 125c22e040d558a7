//! The lossless restart-marker writer: it writes the same coefficients as a baseline JPEG with optimal Huffman tables, divided into
//! segments of about one tile width that can be decoded independently.
//!
//! The symbols of a baseline file are copied without decoding them to coefficients. Progressive, arithmetic and multi-scan files
//! are read by libjpeg-turbo's coefficient reader and written by the same writer. Kept are every quantisation table in use, the
//! frame header, and the metadata asked for. Dropped are the bytes after the end-of-image marker (and the multi-picture index
//! that points to them), and metadata after the first scan.

use std::cell::RefCell;
use std::ops::Range;

use super::exif_segment;
use super::header::{self, Class, Frame, HuffmanSpec};
use super::marker::{self, next_segment, Segment};
use super::turbo;
use super::writer::block::symbols;
use super::writer::symbols::{
    record_scan, table_base, BlockPlan, Intervals, SymbolStream, TranscodeTable, MAX_BLOCKS_IN_MCU,
    PADDING,
};
use super::writer::{
    append_scan, append_segment, output_table, quantisation_payload, restart_interval, shrink,
};
use crate::error::{Result, Status};
use crate::geometry::Orientation;

/// Which metadata to keep. Segments that determine the colour space (JFIF, Adobe) are always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Metadata {
    /// All application segments and comments.
    #[default]
    Keep,
    /// Nothing but this orientation, in a minimal EXIF segment; no segment where it is upright.
    Orientation(Orientation),
}

/// Options of [`restart_markers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartOptions {
    /// Target width of a segment in pixels. With 32 a random crop skips about half of a file for 1.3 % more bytes.
    pub tile_px: u32,
    /// What metadata to keep.
    pub metadata: Metadata,
}

impl Default for RestartOptions {
    fn default() -> Self {
        RestartOptions {
            tile_px: 32,
            metadata: Metadata::Keep,
        }
    }
}

/// Write `jpeg` with restart markers into `out`, which is cleared first and left empty after an error. The pixels stay the same.
/// Writing the output again gives the same bytes.
pub fn restart_markers(jpeg: &[u8], options: &RestartOptions, out: &mut Vec<u8>) -> Result<()> {
    thread_local! {
        static WRITER: RefCell<RestartWriter> = RefCell::default();
    }
    WRITER.with_borrow_mut(|writer| writer.write(jpeg, options, out))
}

/// The writer of one thread, with its reusable memory (about four times the size of the largest file so far).
#[derive(Default)]
pub struct RestartWriter {
    stream: SymbolStream,
    unstuffed: Vec<u8>,
    input_segments: Vec<Range<usize>>,
}

impl RestartWriter {
    /// Write `jpeg` with restart markers, see [`restart_markers`].
    pub fn write(
        &mut self,
        jpeg: &[u8],
        options: &RestartOptions,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        self.stream.clear();
        let result = self
            .record(jpeg, options)
            .map(|header| self.assemble(&header, options, out));
        shrink(&mut self.stream, &mut self.unstuffed);
        result
    }

    /// Read the whole file: record its symbols in `stream`, and return its header.
    fn record<'a>(&mut self, jpeg: &'a [u8], options: &RestartOptions) -> Result<Header<'a>> {
        let mut header = Header::parse(jpeg)?;
        header.interval =
            restart_interval(header.mcus_per_row(), header.mcu_width(), options.tile_px);
        if !header.is_one_huffman_scan()? {
            self.record_coefficients(jpeg, &mut header)?;
            return Ok(header);
        }
        let behind_scan = destuff(
            jpeg,
            header.scan_start,
            &mut self.unstuffed,
            &mut self.input_segments,
        )?;
        match behind_scan {
            Some(end) if ends_in_eoi(jpeg, end)? => self.record_symbols(&header)?,
            _ => self.record_coefficients(jpeg, &mut header)?,
        }
        Ok(header)
    }

    fn record_symbols(&mut self, header: &Header<'_>) -> Result<()> {
        let tables = header.huffman_tables()?;
        let mut blocks: Vec<BlockPlan<'_>> = Vec::with_capacity(MAX_BLOCKS_IN_MCU);
        for component in &header.components {
            let kind = component.table_kind();
            let found = tables.iter().find(|(of, _)| *of == kind);
            let (_, tables) = found.ok_or(Status::Internal)?;
            let blocks_in_mcu = match header.components.len() {
                1 => 1,
                _ => component.h * component.v,
            };
            if blocks.len() + blocks_in_mcu > MAX_BLOCKS_IN_MCU {
                return Err(Status::CorruptHeader);
            }
            let plan = BlockPlan {
                dc: &tables.dc,
                ac: &tables.ac,
                base: table_base(output_table(component.index)),
                component: component.index,
            };
            blocks.extend(std::iter::repeat_n(plan, blocks_in_mcu));
        }
        let intervals = Intervals {
            mcus: header.mcus(),
            input: if header.input_interval == 0 {
                usize::MAX
            } else {
                header.input_interval
            },
            output: header.interval,
        };
        record_scan(
            &self.unstuffed,
            &self.input_segments,
            &blocks,
            intervals,
            &mut self.stream,
        )
    }

    /// Record the symbols of libjpeg-turbo's coefficients, for files that cannot be copied symbol by symbol.
    fn record_coefficients(&mut self, jpeg: &[u8], header: &mut Header<'_>) -> Result<()> {
        if header.components.iter().map(|c| c.h * c.v).sum::<usize>() > MAX_BLOCKS_IN_MCU
            && header.components.len() > 1
        {
            return Err(Status::Unsupported); // such components cannot share one scan
        }
        // The output has one scan in frame order.
        header
            .components
            .sort_unstable_by_key(|component| component.index);
        let mut recorder = CoefficientRecorder {
            stream: &mut self.stream,
            header,
            predictors: [0; 4],
            until_restart: header.interval,
        };
        let quantisation = turbo::coefficients(jpeg, &mut |rows| recorder.record_mcu_row(rows))?;
        self.stream.end_segment();
        header.rewrite_quantisation(&quantisation);
        Ok(())
    }

    fn assemble(&mut self, header: &Header<'_>, options: &RestartOptions, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0xFF, marker::SOI]);
        header.append_metadata(options.metadata, out);
        for tables in &header.quantisation {
            append_segment(marker::DQT, tables, out);
        }
        append_segment(header.output_frame_marker(), &header.frame, out);
        append_scan(
            &self.stream,
            header.interval,
            header.mcus(),
            header
                .components
                .iter()
                .map(|component| (component.id, component.index)),
            &mut self.unstuffed,
            out,
        );
    }
}

/// One component of the frame.
#[derive(Debug, Clone, Copy)]
struct Component {
    id: u8,
    h: usize,
    v: usize,
    quantisation: u8,
    /// Position in the frame header.
    index: usize,
    /// DC and AC table of the first scan.
    tables: (u8, u8),
}

/// Input DC table, input AC table and output table. Components with equal values share their look-up tables.
type TableKind = (u8, u8, usize);

struct Tables {
    dc: TranscodeTable,
    ac: TranscodeTable,
}

impl Component {
    fn table_kind(&self) -> TableKind {
        (self.tables.0, self.tables.1, output_table(self.index))
    }
}

/// The content of a file up to its first scan.
struct Header<'a> {
    /// Application segments and comments in their order.
    metadata: Vec<Segment<'a>>,
    /// Contents of the quantisation segments.
    quantisation: Vec<Vec<u8>>,
    /// Which of the four quantisation tables the file has.
    quantisation_seen: [bool; 4],
    /// Payloads of the Huffman segments, in order: later tables replace earlier ones.
    huffman: Vec<&'a [u8]>,
    frame_marker: u8,
    frame: Vec<u8>,
    width: usize,
    height: usize,
    /// The components, in the order of the first scan if it contains all of them.
    components: Vec<Component>,
    components_in_scan: usize,
    scan_start: usize,
    /// MCUs between restart markers of the input; 0 for no markers.
    input_interval: usize,
    /// MCUs between restart markers of the output.
    interval: usize,
}

impl<'a> Header<'a> {
    fn parse(jpeg: &'a [u8]) -> Result<Self> {
        match jpeg {
            [] => return Err(Status::Empty),
            _ if marker::begins(jpeg) => {}
            _ => return Err(Status::UnknownFormat),
        }
        let mut header = Header {
            metadata: Vec::new(),
            quantisation: Vec::new(),
            quantisation_seen: [false; 4],
            huffman: Vec::new(),
            frame_marker: 0,
            frame: Vec::new(),
            width: 0,
            height: 0,
            components: Vec::new(),
            components_in_scan: 0,
            scan_start: 0,
            input_interval: 0,
            interval: 0,
        };
        let mut at = 2;
        loop {
            let segment = next_segment(jpeg, at).ok_or(Status::Truncated)?;
            at = segment.end;
            match segment.code {
                marker::SOI => return Err(Status::CorruptHeader),
                marker::DQT => header.read_quantisation(segment.payload)?,
                marker::DHT => header.huffman.push(segment.payload),
                marker::DRI => match segment.payload {
                    &[high, low] => {
                        header.input_interval = usize::from(high) << 8 | usize::from(low)
                    }
                    _ => return Err(Status::CorruptHeader),
                },
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                    header.read_frame(segment)?
                }
                marker::SOS => {
                    header.read_scan(segment.payload)?;
                    header.scan_start = segment.end;
                    return Ok(header);
                }
                marker::EOI => return Err(Status::Truncated),
                marker::COM | marker::APP0..=marker::APP15 => header.metadata.push(segment),
                code if marker::is_known(code) => {}
                _ => return Err(Status::CorruptHeader),
            }
        }
    }

    fn read_quantisation(&mut self, payload: &[u8]) -> Result<()> {
        header::quantisation_tables(payload, |number, _| self.quantisation_seen[number] = true)?;
        self.quantisation.push(payload.to_vec());
        Ok(())
    }

    fn read_frame(&mut self, segment: Segment<'_>) -> Result<()> {
        if !self.components.is_empty() {
            return Err(Status::CorruptHeader);
        }
        let frame = Frame::read(segment.payload)?;
        let sequential_or_progressive = matches!(segment.code, 0xC0..=0xC2 | 0xC9 | 0xCA);
        if !sequential_or_progressive || frame.precision != 8 || frame.count() > 4 {
            return Err(Status::Unsupported);
        }
        if u64::from(frame.width) * u64::from(frame.height) > crate::limits::max_pixels() {
            return Err(Status::TooLarge);
        }
        (self.width, self.height) = (frame.width as usize, frame.height as usize);
        self.components = (0..)
            .zip(frame.components())
            .map(|(index, component)| Component {
                id: component.id,
                h: usize::from(component.h),
                v: usize::from(component.v),
                quantisation: component.quant,
                index,
                tables: (0, 0),
            })
            .collect();
        self.frame_marker = segment.code;
        self.frame = segment.payload.to_vec();
        Ok(())
    }

    fn read_scan(&mut self, payload: &[u8]) -> Result<()> {
        if self.components.is_empty() {
            return Err(Status::CorruptHeader);
        }
        let chosen = header::scan_components(payload)?;
        self.components_in_scan = chosen.len();
        if !(1..=4).contains(&self.components_in_scan) {
            return Err(Status::CorruptHeader);
        }
        for (place, (id, dc, ac)) in chosen.enumerate() {
            // Components of the scan move to the front in its order. A component that is listed twice is not found again.
            let rest = self.components.get(place..).unwrap_or_default();
            let found = rest
                .iter()
                .position(|c| c.id == id)
                .ok_or(Status::CorruptHeader)?;
            if rest[found + 1..].iter().any(|c| c.id == id) {
                return Err(Status::Unsupported); // of components with one name, libjpeg-turbo refuses some orders
            }
            if found > 0 && self.components_in_scan == self.components.len() {
                return Err(Status::CorruptHeader); // the scan keeps the frame's order (T.81 B.2.3), as libjpeg-turbo demands
            }
            self.components[place..=place + found].rotate_right(1);
            self.components[place].tables = (dc, ac);
        }
        Ok(())
    }

    /// Return whether the file is sequential Huffman with all components in its first scan, after checking the limits of such
    /// files.
    fn is_one_huffman_scan(&self) -> Result<bool> {
        if !matches!(self.frame_marker, 0xC0 | 0xC1)
            || self.components_in_scan < self.components.len()
        {
            return Ok(false);
        }
        let missing = |c: &Component| !self.quantisation_seen[usize::from(c.quantisation & 3)];
        if self.components.iter().any(missing) {
            return Err(Status::MissingTable);
        }
        Ok(true)
    }

    /// Return the tables of each kind of component in the file (see [`Component::table_kind`]).
    fn huffman_tables(&self) -> Result<Vec<(TableKind, Tables)>> {
        let mut definitions = [[None::<HuffmanSpec<'_>>; 4]; 2];
        for payload in &self.huffman {
            header::huffman_tables(payload, |class, number, table| {
                definitions[class as usize][number] = Some(table);
            })?;
        }
        let definition = |class: Class, number: u8| {
            let found = definitions[class as usize].get(usize::from(number));
            found.copied().flatten().ok_or(Status::MissingTable)
        };
        let mut tables: Vec<(TableKind, Tables)> = Vec::with_capacity(4);
        for kind in self.components.iter().map(Component::table_kind) {
            if tables.iter().all(|(of, _)| *of != kind) {
                let base = table_base(kind.2);
                let (dc, ac) = (
                    definition(Class::Dc, kind.0)?,
                    definition(Class::Ac, kind.1)?,
                );
                let dc = TranscodeTable::for_dc(&dc)?;
                let ac = TranscodeTable::for_ac(&ac, base + 256)?;
                tables.push((kind, Tables { dc, ac }));
            }
        }
        Ok(tables)
    }

    fn max_sampling(&self) -> (usize, usize) {
        let h = self.components.iter().map(|c| c.h).max().unwrap_or(1);
        (h, self.components.iter().map(|c| c.v).max().unwrap_or(1))
    }

    /// Return the width of an MCU in pixels. A scan of one component has MCUs of one block, whatever its sampling factors are.
    fn mcu_width(&self) -> usize {
        if self.components.len() == 1 {
            8
        } else {
            8 * self.max_sampling().0
        }
    }

    fn mcu_height(&self) -> usize {
        if self.components.len() == 1 {
            8
        } else {
            8 * self.max_sampling().1
        }
    }

    fn mcus_per_row(&self) -> usize {
        self.width.div_ceil(self.mcu_width())
    }

    fn mcus(&self) -> usize {
        self.mcus_per_row() * self.height.div_ceil(self.mcu_height())
    }

    /// Return the marker of the output: baseline, or extended sequential if there is a 16-bit quantisation table (T.81 B.2.4.1).
    fn output_frame_marker(&self) -> u8 {
        match self.frame_marker {
            0xC0 | 0xC1 => self.frame_marker,
            _ if self
                .quantisation
                .iter()
                .any(|tables| tables.first().is_some_and(|head| head >> 4 > 0)) =>
            {
                0xC1
            }
            _ => 0xC0,
        }
    }

    /// Store the quantisation tables that libjpeg-turbo used for each component, because scans may have redefined them.
    fn rewrite_quantisation(&mut self, tables: &[[u16; 64]; 4]) {
        self.quantisation.clear();
        let mut written: Vec<&[u16; 64]> = Vec::new();
        for component in &mut self.components {
            let table = &tables[component.index];
            let number = written
                .iter()
                .position(|other| *other == table)
                .unwrap_or_else(|| {
                    written.push(table);
                    self.quantisation
                        .push(quantisation_payload(written.len() as u8 - 1, table));
                    written.len() - 1
                });
            component.quantisation = number as u8;
            self.frame[6 + 3 * component.index + 2] = number as u8;
        }
    }

    fn append_metadata(&self, metadata: Metadata, out: &mut Vec<u8>) {
        for segment in &self.metadata {
            if segment_is_kept(segment, metadata) {
                append_segment(segment.code, segment.payload, out);
            }
        }
        match metadata {
            Metadata::Keep | Metadata::Orientation(Orientation::Upright) => {}
            Metadata::Orientation(other) => {
                append_segment(marker::APP1, &exif_segment::orientation_payload(other), out)
            }
        }
    }
}

/// Return whether to keep a segment. JFIF and Adobe segments determine the colour space. The multi-picture index (CIPA DC-007)
/// points to images after the first one, which are dropped.
fn segment_is_kept(segment: &Segment<'_>, metadata: Metadata) -> bool {
    let starts = |prefix: &[u8]| segment.payload.starts_with(prefix);
    match segment.code {
        0xE0 if starts(b"JFIF\0") => true,
        0xEE if starts(b"Adobe") => true,
        0xE2 if starts(b"MPF\0") => false,
        _ => metadata == Metadata::Keep,
    }
}

/// Copy entropy-coded data from `start` on into `out` without stuffing, followed by [`PADDING`], and list the restart segments.
/// Return the offset of the marker that ends the scan, or `None` if fill bytes precede a stuffed zero. T.81 allows fill bytes
/// before markers only (B.1.1.2). libjpeg-turbo decodes such an MCU twice: first as if the data ended at the fill bytes, then
/// whole. Coefficients of the first attempt can remain, so the caller must record libjpeg-turbo's own coefficients.
fn destuff(
    jpeg: &[u8],
    start: usize,
    out: &mut Vec<u8>,
    segments: &mut Vec<Range<usize>>,
) -> Result<Option<usize>> {
    out.clear();
    segments.clear();
    out.reserve(jpeg.len() - start + PADDING);
    let mut segment_start = 0;
    let mut position = start;
    let end = loop {
        let run = &jpeg[position..];
        let length = memchr::memchr(0xFF, run).ok_or(Status::Truncated)?;
        out.extend_from_slice(&run[..length]);
        position += length + 1;
        // Any number of fill bytes may precede a marker.
        let data_end = position;
        while jpeg.get(position) == Some(&0xFF) {
            position += 1;
        }
        let marker = *jpeg.get(position).ok_or(Status::Truncated)?;
        position += 1;
        match marker {
            0 if position > data_end + 1 => return Ok(None),
            0 => out.push(0xFF),
            0xD0..=0xD7 => {
                // Marker numbers are counted modulo 8 (T.81 B.2.1). libjpeg ignores restart markers behind the last segment.
                if usize::from(marker & 7) != segments.len() & 7 {
                    match jpeg.get(position..) {
                        Some([0xFF, code, ..]) if *code != 0 => break position - 2,
                        _ => return Err(Status::BadRestart),
                    }
                }
                segments.push(segment_start..out.len());
                segment_start = out.len();
            }
            _ => break position - 2,
        }
    };
    segments.push(segment_start..out.len());
    out.resize(out.len() + PADDING, 0);
    Ok(Some(end))
}

/// Return true if the file ends at `position` or after segments without effect, false if another scan follows.
fn ends_in_eoi(jpeg: &[u8], position: usize) -> Result<bool> {
    let mut at = position;
    loop {
        let segment = next_segment(jpeg, at).ok_or(Status::Truncated)?;
        at = segment.end;
        match segment.code {
            marker::EOI => return Ok(true),
            marker::SOS => return Ok(false),
            _ => {}
        }
    }
}

/// The recorder of coefficients as symbols of an interleaved scan.
struct CoefficientRecorder<'r, 'a> {
    stream: &'r mut SymbolStream,
    header: &'r Header<'a>,
    predictors: [i16; 4],
    until_restart: usize,
}

impl CoefficientRecorder<'_, '_> {
    /// Record one MCU row. Blocks and lines outside the image, which no decoder shows, repeat the DC value before them.
    fn record_mcu_row(&mut self, rows: &turbo::BlockRows<'_>) -> Result<()> {
        let single = self.header.components.len() == 1;
        for mcu in 0..self.header.mcus_per_row() {
            if self.until_restart == 0 {
                self.stream.end_segment();
                self.predictors = [0; 4];
                self.until_restart = self.header.interval;
            }
            self.until_restart -= 1;
            self.stream.reserve_mcu()?;
            for component in &self.header.components {
                let (h, v) = if single {
                    (1, 1)
                } else {
                    (component.h, component.v)
                };
                let base = table_base(output_table(component.index));
                let predictor = &mut self.predictors[component.index];
                for (line, column) in
                    (0..v).flat_map(|line| (0..h).map(move |column| (line, mcu * h + column)))
                {
                    let mut dummy = [0i16; 64];
                    dummy[0] = *predictor;
                    let block = rows.block(component.index, line, column).unwrap_or(&dummy);
                    self.stream.record_block(block, *predictor, base, symbols)?;
                    *predictor = block[0];
                }
            }
        }
        Ok(())
    }
}
