//! Our own baseline decoder. It entropy-decodes only the MCUs that a region needs, then transforms, upsamples and converts them
//! row by row.

use super::entropy::{self, Cursor, Group, Plan, Run, Slot, Tables, GROUP};
use super::header::{Colour, Header};
use super::huffman::Builder;
use super::index::Index;
use super::plane::{replicate_edges, upsampled, Plane, Quant, MARGIN};
use super::profile::{Profile, Stage};
use super::upsample::{self, Channels};
use super::{idct, lanes, structure};
use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Scale};
use crate::limits;
use std::ops::Range;

/// The start value of a range that grows to cover others.
const NOTHING: Range<u32> = Range {
    start: u32::MAX,
    end: 0,
};

/// MCUs that a region needs.
struct Window {
    columns: Range<u32>,
    rows: Range<u32>,
    /// MCUs per row of the image.
    across: u32,
}

/// A region to decode, and the index to use and to extend.
pub struct Request<'r> {
    /// The scale of the decoded image.
    pub scale: Scale,
    /// The region in pixels of the image at that scale.
    pub region: Rect,
    /// The index of this image, if there is one.
    pub index: Option<&'r Index>,
    /// Receives the entries of `index` and those found while decoding.
    pub emit: Option<&'r mut Index>,
    /// The channels of a pixel in `out`.
    pub channels: Channels,
}

/// The coefficients of an MCU row of the whole image, not dequantised.
pub struct CoefficientRow<'r> {
    planes: &'r [Plane; 3],
    groups: &'r [Group],
}

impl CoefficientRow<'_> {
    /// Return line `y` of a component's blocks, from the left. Blocks after the last MCU are zero.
    pub fn line(&self, component: usize, y: usize) -> &[Group] {
        let plane = &self.planes[component];
        &self.groups[plane.first_group + y * plane.groups..][..plane.groups]
    }
}

/// Scratch memory of the decoder.
pub struct RegionDecoder {
    extension: Extension,
    tables: [Tables; 3],
    builder: Builder,
    planes: [Plane; 3],
    slots: Vec<Slot>,
    plan: Plan,
    /// Coefficients of one MCU row, all zero between rows. The last group receives skipped blocks.
    coefficients: Vec<Group>,
    starts: Vec<usize>,
    runs: Vec<Run>,
    upsampled_rows: [Vec<u8>; 3],
    /// Time per stage (empty without the feature `profile`).
    pub profile: Profile,
}

impl Default for RegionDecoder {
    fn default() -> Self {
        RegionDecoder::with_extension(Extension::best())
    }
}

/// Return the number of MCUs between restart markers; all MCUs if there are no markers.
fn interval(header: &Header<'_>) -> u32 {
    let (across, down) = header.mcus();
    match header.restart_interval {
        0 => across * down,
        interval => interval,
    }
}

/// Return true if this decoder decodes files with such a header. libjpeg-turbo decodes the others.
pub fn supports(header: &Header<'_>) -> bool {
    let (h_max, v_max) = header.max_factors();
    let fits = |factor: u8, max: u32| {
        max.is_multiple_of(u32::from(factor)) && max / u32::from(factor) <= 2
    };
    let components = header.components();
    let blocks: u32 = components.iter().map(|c| u32::from(c.h * c.v)).sum();
    blocks <= 10 // T.81 B.2.3
        && components.iter().all(|c| fits(c.h, h_max) && fits(c.v, v_max))
        && components.iter().all(|c| {
            header.quant[usize::from(c.quant)].is_some()
                && header.dc[usize::from(c.dc)].is_some()
                && header.ac[usize::from(c.ac)].is_some()
        })
}

impl RegionDecoder {
    /// Make a decoder whose kernels use `extension`. Panic if the machine lacks it ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        extension.assert_available();
        RegionDecoder {
            extension,
            tables: Default::default(),
            builder: Builder::default(),
            planes: Default::default(),
            slots: Vec::new(),
            plan: Plan::default(),
            coefficients: Vec::new(),
            starts: Vec::new(),
            runs: Vec::new(),
            upsampled_rows: Default::default(),
            profile: Profile::default(),
        }
    }

    /// Free the memory that an unusually large image has left.
    pub fn shrink(&mut self) {
        for plane in &mut self.planes {
            limits::shrink(&mut plane.samples);
        }
    }

    /// Check the structure without decoding: restart markers, their number and order, and the end of the file.
    pub fn check(&mut self, data: &[u8], header: &Header<'_>) -> Result<()> {
        self.profile.start();
        let (across, down) = header.mcus();
        let expected = (across * down).div_ceil(interval(header)) as usize;
        structure::segments(
            self.extension,
            data,
            header.scan,
            expected,
            &mut self.starts,
        )
    }

    /// Return the offset of the last restart segment that [`RegionDecoder::check`] found.
    pub fn last_segment(&self) -> Option<usize> {
        self.starts.last().copied()
    }

    /// Decode a region, which must lie in the image, to rows of `stride` bytes in `out`. Call [`RegionDecoder::check`] on the
    /// same data first.
    pub fn decode(
        &mut self,
        data: &[u8],
        header: &Header<'_>,
        request: Request<'_>,
        out: &mut [u8],
        stride: usize,
    ) -> Result<()> {
        let Request {
            scale,
            region,
            index,
            mut emit,
            channels,
        } = request;
        if channels == Channels::Gray && header.colour == Colour::Rgb {
            return Err(Status::Unsupported);
        }
        self.build_tables(header)?;
        let window = self.lay_out(header, scale, region)?;
        if channels == Channels::Gray {
            self.leave_out_chroma();
        }
        self.reserve_samples(header.count, region.w)?;
        // A file with restart markers needs no index.
        let unmarked = header.restart_interval == 0;
        let index = index.filter(|index| unmarked && !index.is_empty());
        if let Some(index) = index {
            index.check(data, header)?;
        }
        match (emit.as_deref_mut(), index) {
            (Some(emit), Some(index)) => emit.copy_from(index),
            (Some(emit), None) => emit.begin(data, header),
            (None, _) => {}
        }
        let mut emit = emit.filter(|emit| emit.can_grow());
        self.profile.lap(Stage::SetUp);
        if let Some(emit) = emit.as_deref_mut() {
            while emit.rows() < window.rows.start {
                self.decode_row_emitting(data, &window, 0..0, emit)??;
            }
        }
        let mut resume = None;
        let mut done = region.y;
        for row in window.rows.clone() {
            match emit.as_deref_mut() {
                Some(emit) if emit.rows() <= row => {
                    let stored =
                        self.decode_row_emitting(data, &window, window.columns.clone(), emit);
                    let behind = self.clean_after(stored)?;
                    // Without an index, nothing behind the last row's columns is read: the status must not depend on that.
                    if row + 1 < window.rows.end {
                        self.clean_after(behind)?;
                    }
                }
                _ => {
                    self.plan_row(header, index, &window, row, resume);
                    resume = self.decode_row(data)?;
                }
            }
            self.profile.lap(Stage::Entropy);
            self.transform_row(header.count, row);
            self.profile.lap(Stage::Transform);
            let ready = self.ready(header, scale, row + 1 == window.rows.end, row, region);
            self.convert_rows((header.colour, channels), region, done..ready, out, stride);
            done = done.max(ready);
            self.profile.lap(Stage::Colour);
        }
        Ok(())
    }

    /// Decode the whole image to coefficients and call `each` with each MCU row, from the top. Call [`RegionDecoder::check`] on the
    /// same data first.
    pub fn coefficient_rows(
        &mut self,
        data: &[u8],
        header: &Header<'_>,
        mut each: impl FnMut(&CoefficientRow<'_>) -> Result<()>,
    ) -> Result<()> {
        self.build_tables(header)?;
        let whole = Rect::new(0, 0, header.width, header.height);
        let window = self.lay_out(header, Scale::Full, whole)?;
        let mut resume = None;
        for row in window.rows.clone() {
            self.plan_row(header, None, &window, row, resume);
            resume = self.decode_row(data)?;
            let given = each(&CoefficientRow {
                planes: &self.planes,
                groups: &self.coefficients,
            });
            self.coefficients.fill([0; 64 * GROUP]);
            given?;
        }
        Ok(())
    }

    /// Clear the coefficients after an error, because each row starts with zeros.
    fn clean_after<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.coefficients.fill([0; 64 * GROUP]);
        }
        result
    }

    fn build_tables(&mut self, header: &Header<'_>) -> Result<()> {
        for (i, component) in header.components().iter().enumerate() {
            let same = |other: &&super::header::Component| {
                (other.dc, other.ac) == (component.dc, component.ac)
            };
            let first = header
                .components()
                .iter()
                .position(|other| same(&other))
                .unwrap_or(i);
            self.planes[i].tables = first;
            if first == i {
                let dc = header.dc[usize::from(component.dc)].ok_or(Status::MissingTable)?;
                let ac = header.ac[usize::from(component.ac)].ok_or(Status::MissingTable)?;
                self.tables[i].dc.build(&dc)?;
                self.tables[i].ac.build(&ac, &mut self.builder)?;
            }
        }
        Ok(())
    }

    /// Compute which MCUs and samples `region` needs, and size the scratch memory for them.
    fn lay_out(&mut self, header: &Header<'_>, scale: Scale, region: Rect) -> Result<Window> {
        let (h_max, v_max) = header.max_factors();
        let mut window = Window {
            columns: NOTHING,
            rows: NOTHING,
            across: header.mcus().0,
        };
        for (plane, component) in self.planes.iter_mut().zip(header.components()) {
            (plane.h, plane.v) = (u32::from(component.h), u32::from(component.v));
            let (least, wide, high) = (scale.block(), h_max * scale.block(), v_max * scale.block());
            // Subsampled chroma is reduced less instead of being upsampled (jdmaster.c, jpeg_calc_output_dimensions).
            plane.size = least;
            while plane.size < 8
                && wide.is_multiple_of(plane.h * plane.size * 2)
                && high.is_multiple_of(plane.v * plane.size * 2)
            {
                plane.size *= 2;
            }
            (plane.expand_x, plane.expand_y) =
                (wide / (plane.h * plane.size), high / (plane.v * plane.size));
            plane.width = (header.width * plane.h * plane.size).div_ceil(h_max * 8);
            plane.height = (header.height * plane.v * plane.size).div_ceil(v_max * 8);
            plane.quant =
                header.quant[usize::from(component.quant)].map_or_else(Quant::default, Quant);
            let columns = Plane::needed(region.x, region.x + region.w, plane.expand_x, plane.width);
            let rows = Plane::needed(region.y, region.y + region.h, plane.expand_y, plane.height);
            plane.blocks = rows.start / plane.size..rows.end.div_ceil(plane.size);
            let cover = |mcus: &mut Range<u32>, samples: Range<u32>, blocks: u32| {
                mcus.start = mcus.start.min(samples.start / blocks);
                mcus.end = mcus.end.max(samples.end.div_ceil(blocks));
            };
            cover(&mut window.columns, columns, plane.size * plane.h);
            cover(&mut window.rows, rows, plane.size * plane.v);
        }
        self.lay_out_blocks(header.count, &window)?;
        Ok(window)
    }

    /// Assign the blocks of the window's MCUs to groups of coefficients, and size the memory for one MCU row.
    fn lay_out_blocks(&mut self, count: usize, window: &Window) -> Result<()> {
        self.slots.clear();
        let mut first_group = 0;
        for (component, plane) in self.planes[..count].iter_mut().enumerate() {
            plane.left = window.columns.start * plane.h * plane.size;
            plane.top = plane.blocks.start * plane.size;
            plane.groups = ((window.columns.len() as u32 * plane.h) as usize).div_ceil(GROUP);
            plane.first_group = first_group;
            for y in 0..plane.v as usize {
                let (tables, h) = (plane.tables, plane.h as usize);
                let first_group = first_group + y * plane.groups;
                self.slots.extend((0..h).map(|x| Slot {
                    tables,
                    component,
                    first_group,
                    h,
                    x,
                }));
            }
            first_group += plane.groups * plane.v as usize;
        }
        // One more group for skipped blocks, which may hold values of the last image.
        if let Some(last) = self.coefficients.last_mut() {
            last.fill(0);
        }
        self.coefficients.truncate(first_group);
        limits::resize(&mut self.coefficients, first_group + 1, [0; 64 * GROUP])?;
        self.plan
            .lay_out(&self.slots, window.columns.len(), first_group);
        Ok(())
    }

    /// Reserve memory for the samples of a region that was laid out, `width` pixels wide.
    fn reserve_samples(&mut self, count: usize, width: u32) -> Result<()> {
        for plane in &mut self.planes[..count] {
            plane.stride = plane.row_samples() + 2 * MARGIN;
            let bytes = plane.stride * plane.blocks.len() * plane.size as usize;
            limits::grow(&mut plane.samples, bytes, 0)?;
        }
        for row in &mut self.upsampled_rows {
            limits::grow(row, width as usize + MARGIN, 0)?;
        }
        Ok(())
    }

    /// List the runs of MCUs that MCU row `row` of the window needs, one for each start position. `resume` is the end of the rows
    /// above.
    fn plan_row(
        &mut self,
        header: &Header<'_>,
        index: Option<&Index>,
        window: &Window,
        row: u32,
        resume: Option<Cursor>,
    ) {
        self.runs.clear();
        let interval = interval(header);
        let first = row * window.across + window.columns.start;
        let end = row * window.across + window.columns.end;
        let mut mcu = first;
        while mcu < end {
            let segment = mcu / interval;
            let position = self.starts[segment as usize]; // one per segment: `check` counted them
            let start = Cursor {
                position,
                bit: 0,
                predictors: [0; 3],
                mcu: segment * interval,
            };
            let next = (segment + 1).saturating_mul(interval);
            let (start, next) = index
                .and_then(|index| index.nearest(mcu))
                .unwrap_or((start, next));
            // A segment that began in the row above continues where that row ended.
            let start = resume
                .filter(|r| start.mcu < r.mcu && r.mcu <= mcu)
                .unwrap_or(start);
            let run_end = end.min(next);
            self.runs.push(Run {
                start,
                skip: mcu - start.mcu,
                column: mcu - first,
                count: run_end - mcu,
            });
            mcu = run_end;
        }
    }

    /// Entropy-decode the whole MCU row that `emit` covers next, store only the columns `wanted`, and append its index entries.
    /// The inner result is an error if the row is damaged behind these columns, which are stored then; `emit` does not cover it.
    fn decode_row_emitting(
        &mut self,
        data: &[u8],
        window: &Window,
        wanted: Range<u32>,
        emit: &mut Index,
    ) -> Result<Result<()>> {
        let number = emit.rows();
        let (mut cursor, _) = emit
            .nearest(number * window.across)
            .ok_or(Status::Internal)?;
        let spacing = emit.spacing();
        for start in (0..window.across).step_by(spacing as usize) {
            let end = (start + spacing).min(window.across);
            let (from, to) = (wanted.start.clamp(start, end), wanted.end.clamp(start, end));
            let stored = Run {
                start: cursor,
                skip: from - start,
                column: if from < to { from - wanted.start } else { 0 },
                count: to - from,
            };
            cursor = self.decode_run(data, &stored)?;
            if to < end {
                let rest = Run {
                    start: cursor,
                    skip: end - to,
                    column: 0,
                    count: 0,
                };
                cursor = match self.decode_run(data, &rest) {
                    Ok(behind) => behind,
                    Err(status) => {
                        emit.keep_rows(number);
                        return Ok(Err(status));
                    }
                };
            }
            emit.push(&cursor);
        }
        Ok(Ok(()))
    }

    fn decode_run(&mut self, data: &[u8], run: &Run) -> Result<Cursor> {
        let (tables, plan, groups) = (&self.tables, &self.plan, &mut self.coefficients);
        entropy::decode_run(self.extension, data, tables, plan, groups, run)
    }

    /// Entropy-decode the planned runs; return the last position.
    fn decode_row(&mut self, data: &[u8]) -> Result<Option<Cursor>> {
        let reached = if let [only] = self.runs[..] {
            self.decode_run(data, &only).map(Some)
        } else {
            let (tables, plan, groups) = (&self.tables, &self.plan, &mut self.coefficients);
            lanes::decode_runs(self.extension, data, tables, plan, groups, &self.runs)
        };
        self.clean_after(reached)
    }

    /// Transform the coefficients of MCU row `row` into samples and clear them.
    fn transform_row(&mut self, count: usize, row: u32) {
        for plane in &mut self.planes[..count] {
            for y in 0..plane.v {
                let block_row = row * plane.v + y;
                let first = plane.first_group + y as usize * plane.groups;
                let groups = &mut self.coefficients[first..first + plane.groups];
                if plane.blocks.contains(&block_row) {
                    let at = plane.row(block_row * plane.size);
                    for (g, group) in groups.iter_mut().enumerate() {
                        let at = at + g * GROUP * plane.size as usize;
                        let (quant, out) = (&plane.quant.0, &mut plane.samples);
                        match plane.size {
                            8 => idct::group(self.extension, group, quant, out, at, plane.stride),
                            size => idct::reduced::group(
                                self.extension,
                                size,
                                group,
                                quant,
                                out,
                                at,
                                plane.stride,
                            ),
                        }
                    }
                    if plane.expand_x == 2 {
                        replicate_edges(plane, block_row);
                    }
                } else {
                    groups.fill([0; 64 * GROUP]);
                }
            }
        }
    }

    /// Return the first pixel row that cannot be converted yet after MCU row `row`.
    fn ready(&self, header: &Header<'_>, scale: Scale, last: bool, row: u32, region: Rect) -> u32 {
        let end = region.y + region.h;
        if last {
            return end;
        }
        let (_, v_max) = header.max_factors();
        let filtered = self.planes[..header.count]
            .iter()
            .any(|plane| plane.expand_y == 2);
        // The last pixel row above an undecoded chroma row is blended with that row.
        ((row + 1) * scale.block() * v_max - u32::from(filtered)).clamp(region.y, end)
    }

    /// Transform no block of the second and the third component.
    fn leave_out_chroma(&mut self) {
        for plane in &mut self.planes[1..] {
            plane.blocks = 0..0;
            plane.expand_y = 1; // no row waits for chroma rows below
        }
    }

    fn convert_rows(
        &mut self,
        (colour, channels): (Colour, Channels),
        region: Rect,
        rows: Range<u32>,
        out: &mut [u8],
        stride: usize,
    ) {
        let width = region.w as usize;
        let extension = self.extension;
        for y in rows {
            let out = &mut out[(y - region.y) as usize * stride..][..width * channels.count()];
            let [row0, row1, row2] = &mut self.upsampled_rows;
            let first = upsampled(extension, &self.planes[0], region, y, row0);
            if channels == Channels::Gray {
                out.copy_from_slice(first);
                continue;
            }
            if colour == Colour::Gray {
                upsample::interleave([first; 3], channels, out);
                continue;
            }
            let second = upsampled(extension, &self.planes[1], region, y, row1);
            let third = upsampled(extension, &self.planes[2], region, y, row2);
            match colour {
                Colour::Rgb => upsample::interleave([first, second, third], channels, out),
                _ => upsample::ycc_to_rgb(extension, first, second, third, channels, out),
            }
        }
    }
}
