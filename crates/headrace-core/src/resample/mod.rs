//! Antialiased resize of RGB pixels, bit-identical to Pillow's `image.crop(box).resize(size, filter)`.
//!
//! The horizontal pass comes first and is rounded to 8 bits, then the vertical pass, as in Pillow. A pass whose length does not
//! change is skipped. Only the pixels that the window of the resized grid needs are computed. Flips cost nothing: they permute
//! the output positions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod coefficients;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

pub use coefficients::{Axis, Filter, WEIGHT_BITS};

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView};
use crate::limits;
use kernels::{Horizontal, Vertical};

/// Longest side of a resized grid. Pillow's own buffers have a similar limit; it bounds the tables of a hostile request.
pub const MAX_GRID: u32 = 1 << 20;

/// Longest side of a source box: up to this length, Pillow's single-precision box is exact.
pub const MAX_SOURCE: u32 = 1 << 24;

/// Rows that the horizontal pass computes at a time: enough to use each table entry several times, few enough for the L1 cache.
const ROWS_AT_ONCE: usize = 8;

/// A resize: `image.crop(box_).resize((grid_w, grid_h), filter).crop(window)`, then flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResizeSpec {
    /// Source rectangle in image pixels: the box of Pillow's `crop()`.
    pub box_: Rect,
    /// Width that the box is resized to.
    pub grid_w: u32,
    /// Height that the box is resized to.
    pub grid_h: u32,
    /// The part of the resized grid to compute; the whole grid is `Rect::new(0, 0, grid_w, grid_h)`.
    pub window: Rect,
    /// The filter.
    pub filter: Filter,
    /// Mirror the window left to right.
    pub flip_x: bool,
    /// Mirror the window top to bottom.
    pub flip_y: bool,
}

impl ResizeSpec {
    /// Make the resize of `box_` to `width` × `height`, bilinear and not flipped.
    pub fn new(box_: Rect, width: u32, height: u32) -> Self {
        ResizeSpec {
            box_,
            grid_w: width,
            grid_h: height,
            window: Rect::new(0, 0, width, height),
            filter: Filter::Bilinear,
            flip_x: false,
            flip_y: false,
        }
    }

    /// Return the horizontal axis.
    pub fn axis_x(&self) -> Axis {
        Axis {
            source: self.box_.w,
            grid: self.grid_w,
            first: self.window.x,
            count: self.window.w,
            filter: self.filter,
        }
    }

    /// Return the vertical axis.
    pub fn axis_y(&self) -> Axis {
        Axis {
            source: self.box_.h,
            grid: self.grid_h,
            first: self.window.y,
            count: self.window.h,
            filter: self.filter,
        }
    }

    /// Return whether the vertical pass comes first in resamplers that this process creates from now on.
    pub fn vertical_first(&self) -> bool {
        PassOrder::chosen().vertical_first(self)
    }

    /// Return true if the box is not empty and the window lies in the grid.
    pub fn is_valid(&self) -> bool {
        let reachable = |start: u32, length: u32| length > 0 && start.checked_add(length).is_some();
        reachable(self.box_.x, self.box_.w)
            && reachable(self.box_.y, self.box_.h)
            && self.box_.w <= MAX_SOURCE
            && self.box_.h <= MAX_SOURCE
            && self.grid_w <= MAX_GRID
            && self.grid_h <= MAX_GRID
            && self.window.fits(self.grid_w, self.grid_h)
    }

    /// Return the image region that the window needs; an empty rectangle if the request is not valid.
    pub fn needed(&self) -> Rect {
        if !self.is_valid() {
            return Rect::default();
        }
        let (left, right) = self.axis_x().needed();
        let (top, bottom) = self.axis_y().needed();
        Rect::new(
            self.box_.x + left,
            self.box_.y + top,
            right - left,
            bottom - top,
        )
    }
}

/// The order of the passes. The first pass rounds to 8 bits, so the order changes the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PassOrder {
    /// Pillow 13 and later: vertical first if the height shrinks by more than twice as many pixels as the width.
    #[default]
    Pillow13,
    /// Pillow before 13: always horizontal first.
    HorizontalFirst,
}

/// The default order of new resamplers; true for horizontal first.
static HORIZONTAL_FIRST: AtomicBool = AtomicBool::new(false);

impl PassOrder {
    /// Make this the default order of resamplers that this process creates from now on.
    pub fn make_default(self) {
        HORIZONTAL_FIRST.store(self == PassOrder::HorizontalFirst, Ordering::Relaxed);
    }

    fn chosen() -> Self {
        if HORIZONTAL_FIRST.load(Ordering::Relaxed) {
            PassOrder::HorizontalFirst
        } else {
            PassOrder::Pillow13
        }
    }

    /// Return whether the vertical pass comes first. Source of the rule: Pillow 13.0.0 `Resample.c`, `ImagingResampleInner`.
    fn vertical_first(self, spec: &ResizeSpec) -> bool {
        let shrink = |source: u32, grid: u32| i64::from(source) - i64::from(grid);
        let rows = shrink(spec.box_.h, spec.grid_h);
        // torch resizes tensors horizontally first.
        let pillow13 = self == PassOrder::Pillow13 && !spec.filter.is_int16();
        pillow13 && rows > 0 && rows > 2 * shrink(spec.box_.w, spec.grid_w)
    }
}

/// The resampler of one thread, with its tables and intermediate rows. After the first images nothing is allocated.
#[derive(Debug)]
pub struct Resampler {
    extension: Extension,
    order: PassOrder,
    horizontal: Horizontal,
    vertical: Vertical,
    scratch: Vec<u8>,
}

impl Default for Resampler {
    fn default() -> Self {
        Self::with_extension(Extension::best())
    }
}

impl Resampler {
    /// Make a resampler whose kernels use `extension`, which the processor must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        extension.assert_available();
        Resampler {
            extension,
            order: PassOrder::chosen(),
            horizontal: Horizontal::default(),
            vertical: Vertical::default(),
            scratch: Vec::new(),
        }
    }

    /// Set the Pillow version whose results are reproduced.
    pub fn set_pass_order(&mut self, order: PassOrder) {
        self.order = order;
    }

    /// Resize `src`, which holds at least [`ResizeSpec::needed`], into `out`: uint8 RGB, `spec.window.h` rows of `spec.window.w`
    /// pixels, `out_stride` bytes from row to row.
    ///
    /// Errors: [`Status::BadBox`] if the request is not valid or `src` lacks needed pixels, [`Status::Internal`] if a buffer is
    /// too small, [`Status::TooLarge`] if the rows between the passes take too much memory.
    pub fn resize_into(
        &mut self,
        src: RgbView<'_>,
        spec: &ResizeSpec,
        out: &mut [u8],
        out_stride: usize,
    ) -> Result<()> {
        let needed = spec.needed();
        let source = Rows {
            bytes: view_of(&src, needed)?,
            stride: src.stride,
        };
        let (width, height) = (spec.window.w as usize, spec.window.h as usize);
        check_output(out, out_stride, width, height)?;
        let mut output = Output {
            bytes: out,
            stride: out_stride,
            row_bytes: width * 3,
            height,
            flip: spec.flip_y,
        };

        let pass_x = !spec.axis_x().is_identity() || spec.flip_x;
        let pass_y = !spec.axis_y().is_identity();
        let source_bytes = needed.w as usize * 3;
        let vertical_first = pass_x && pass_y && self.order.vertical_first(spec);
        if pass_x {
            self.prepare_horizontal(spec, needed);
        }
        if pass_y {
            let row_bytes = if vertical_first {
                source_bytes
            } else {
                width * 3
            };
            self.prepare_vertical(spec, needed, row_bytes);
        }
        match (pass_x, pass_y) {
            (false, false) => {
                for row in 0..height {
                    let target = output.row(row);
                    target.copy_from_slice(&source.from(row)[..target.len()]);
                }
            }
            (true, false) => {
                // Rows of a flipped output are not contiguous.
                let at_once = if spec.flip_y { 1 } else { height };
                for row in (0..height).step_by(at_once) {
                    let (rows, stride) = output.rows(row, at_once);
                    self.horizontal.run(&source, row, at_once, rows, stride);
                }
            }
            (false, true) => {
                for row in 0..height {
                    self.vertical.run(row, &source, output.row(row));
                }
            }
            (true, true) if vertical_first => {
                self.vertical_then_horizontal(&source, source_bytes, &mut output)?;
            }
            (true, true) => self.horizontal_then_vertical(&source, &mut output)?,
        }
        Ok(())
    }

    /// Make the tables of the horizontal pass, for source rows as wide as `needed`.
    fn prepare_horizontal(&mut self, spec: &ResizeSpec, needed: Rect) {
        let origin = needed.x - spec.box_.x;
        self.horizontal
            .weights
            .fill(self.extension, &spec.axis_x(), origin, spec.flip_x);
        self.horizontal
            .prepare(self.extension, needed.w as usize * 3);
    }

    /// Make the tables of the vertical pass, for rows of `row_bytes` bytes.
    fn prepare_vertical(&mut self, spec: &ResizeSpec, needed: Rect, row_bytes: usize) {
        let origin = needed.y - spec.box_.y;
        self.vertical
            .weights
            .fill(self.extension, &spec.axis_y(), origin, false);
        self.vertical.prepare(self.extension, row_bytes);
    }

    /// Run both passes. A few rows at a time are resized horizontally just before the vertical pass reads them, so that they are
    /// still in the cache.
    fn horizontal_then_vertical(
        &mut self,
        source: &Rows<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let row_bytes = output.row_bytes;
        let (start, count) = self.vertical.span(output.height - 1);
        let height = start + count;
        grow(&mut self.scratch, height * row_bytes)?;
        let mut ready = 0;
        for row in 0..output.height {
            let (start, count) = self.vertical.span(row);
            if ready < start + count {
                let end = (start + count).max(ready + ROWS_AT_ONCE).min(height);
                let narrow = &mut self.scratch[ready * row_bytes..end * row_bytes];
                self.horizontal
                    .run(source, ready, end - ready, narrow, row_bytes);
                ready = end;
            }
            let narrow = Rows {
                bytes: &self.scratch,
                stride: row_bytes,
            };
            self.vertical.run(row, &narrow, output.row(row));
        }
        Ok(())
    }

    /// Run both passes in the other order, a few output rows at a time through a buffer of as many rows.
    fn vertical_then_horizontal(
        &mut self,
        source: &Rows<'_>,
        source_bytes: usize,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let at_once = if output.flip { 1 } else { ROWS_AT_ONCE };
        let at_once = at_once.min(output.height);
        grow(&mut self.scratch, source_bytes * at_once)?;
        for first in (0..output.height).step_by(at_once) {
            let count = at_once.min(output.height - first);
            let short = &mut self.scratch[..source_bytes * count];
            for (row, line) in short.chunks_exact_mut(source_bytes).enumerate() {
                self.vertical.run(first + row, source, line);
            }
            let short = Rows {
                bytes: short,
                stride: source_bytes,
            };
            let (rows, stride) = output.rows(first, count);
            self.horizontal.run(&short, 0, count, rows, stride);
        }
        Ok(())
    }
}

/// Make the scratch memory at least `bytes` long. Contents of an earlier image are overwritten before they are read. An image of
/// one column and millions of rows could ask for any amount: that is [`Status::TooLarge`].
fn grow(scratch: &mut Vec<u8>, bytes: usize) -> Result<()> {
    if bytes as u64 > limits::max_bytes() {
        return Err(Status::TooLarge);
    }
    if bytes < scratch.len() {
        limits::shrink(scratch); // that of an unusually large image
    }
    limits::grow(scratch, bytes, 0)
}

/// Rows to read, `stride` bytes apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Rows<'a> {
    /// Return the bytes from the start of a row to the end of the buffer.
    fn from(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride..]
    }
}

/// Rows to write; if flipped, they are counted from the bottom.
struct Output<'a> {
    bytes: &'a mut [u8],
    stride: usize,
    row_bytes: usize,
    height: usize,
    flip: bool,
}

impl Output<'_> {
    fn row(&mut self, row: usize) -> &mut [u8] {
        let row = if self.flip {
            self.height - 1 - row
        } else {
            row
        };
        &mut self.bytes[row * self.stride..][..self.row_bytes]
    }

    /// Return `count` rows from `row` on, and their distance in bytes. A flipped output returns one row at a time.
    fn rows(&mut self, row: usize, count: usize) -> (&mut [u8], usize) {
        debug_assert!(count == 1 || !self.flip);
        if count == 1 {
            let stride = self.stride;
            return (self.row(row), stride);
        }
        let length = (count - 1) * self.stride + self.row_bytes;
        (&mut self.bytes[row * self.stride..][..length], self.stride)
    }
}

/// Return the bytes of `src` from the first pixel of `needed` on, after checking that `src` contains `needed`.
pub(crate) fn view_of<'a>(src: &RgbView<'a>, needed: Rect) -> Result<&'a [u8]> {
    let region = src.region;
    let inside = |start: u32, length: u32, from: u32, size: u32| {
        start >= from
            && u64::from(start) + u64::from(length) <= u64::from(from) + u64::from(size)
            && length > 0
    };
    if !inside(needed.x, needed.w, region.x, region.w)
        || !inside(needed.y, needed.h, region.y, region.h)
    {
        return Err(Status::BadBox);
    }
    let bytes = (region.h as usize - 1)
        .checked_mul(src.stride)
        .and_then(|rows| rows.checked_add(region.w as usize * 3));
    if src.stride < region.w as usize * 3 || bytes.is_none_or(|bytes| bytes > src.pixels.len()) {
        return Err(Status::Internal);
    }
    let first = (needed.y - region.y) as usize * src.stride + (needed.x - region.x) as usize * 3;
    Ok(&src.pixels[first..])
}

fn check_output(out: &[u8], stride: usize, width: usize, height: usize) -> Result<()> {
    let bytes = (height - 1)
        .checked_mul(stride)
        .and_then(|rows| rows.checked_add(width * 3));
    if stride < width * 3 || bytes.is_none_or(|bytes| bytes > out.len()) {
        return Err(Status::Internal);
    }
    Ok(())
}
