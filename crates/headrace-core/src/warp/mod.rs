//! One affine sampling of an image: any chain of flips, rotations, shears and shifts after a resize.
//!
//! The operation is Pillow's `image.crop(box).resize(grid).transform(size, AFFINE, matrix)`. The resize is the antialiased one of
//! [`crate::resample`]; the sampling, nearest, bilinear or bicubic, is bit-identical to Pillow's. A map that shrinks its source aliases in
//! Pillow. With `antialias` the resize uses a smaller grid instead, so that one output pixel covers one pixel of the grid: a
//! triangle prefilter without an extra pass.

mod affine;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bicubic;
mod edge;
mod nearest;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod span;

pub use affine::Affine;
pub use edge::Edge;

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView, Scale, Size};
use crate::limits;
use crate::resample::{Filter, Resampler, ResizeSpec};
use nearest::Nearest;

/// Interpolation between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Interpolation {
    /// The pixel under the point.
    Nearest,
    /// Weighted mean of the four pixels around the point.
    #[default]
    Bilinear,
    /// Cubics over the 4 × 4 pixels around the point.
    Bicubic,
}

impl Interpolation {
    /// Return the name that Python's side uses.
    pub fn name(self) -> &'static str {
        match self {
            Interpolation::Nearest => "nearest",
            Interpolation::Bilinear => "bilinear",
            Interpolation::Bicubic => "bicubic",
        }
    }

    /// Return the interpolation of this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Interpolation::Nearest,
            Interpolation::Bilinear,
            Interpolation::Bicubic,
        ];
        all.into_iter().find(|one| one.name() == name)
    }
}

/// An affine sampling: `image.crop(box_).resize((grid_w, grid_h), filter).transform((width, height), AFFINE, map, fillcolor=fill)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarpSpec {
    /// Source rectangle in image pixels; nothing outside it is visible.
    pub box_: Rect,
    /// Width of the grid that the box is resized to; the width of the box if it is not resized.
    pub grid_w: u32,
    /// Height of the grid that the box is resized to.
    pub grid_h: u32,
    /// Filter of the resize.
    pub filter: Filter,
    /// Map from output points to grid points.
    pub map: Affine,
    /// Output width in pixels.
    pub width: u32,
    /// Output height in pixels.
    pub height: u32,
    /// Interpolation of the grid.
    pub interpolation: Interpolation,
    /// Colour of output pixels whose centre is outside the grid.
    pub fill: [u8; 3],
    /// Shrink the grid first if the map shrinks it (bilinear only). Off reproduces Pillow, aliasing included.
    pub antialias: bool,
    /// The part of the output to compute, after flipping.
    pub window: Rect,
    /// Mirror the output left to right.
    pub flip_x: bool,
    /// Mirror the output top to bottom.
    pub flip_y: bool,
}

impl WarpSpec {
    /// Return the grid and the map to it, reduced for antialiasing if asked for and needed.
    fn reduced(&self) -> (u32, u32, Affine) {
        if !self.antialias || self.interpolation != Interpolation::Bilinear {
            return (self.grid_w, self.grid_h, self.map);
        }
        let (across, down) = self.map.footprint();
        let shrink =
            |length: u32, by: f64| ((f64::from(length) / by.max(1.0)).round() as u32).max(1);
        let (width, height) = (shrink(self.grid_w, across), shrink(self.grid_h, down));
        let ratio = |new: u32, old: u32| f64::from(new) / f64::from(old);
        let map = self
            .map
            .scaled(ratio(width, self.grid_w), ratio(height, self.grid_h));
        (width, height, map)
    }

    /// Return the scale at which a JPEG of `size` can be decoded for this sampling, and move the box to the image at that scale.
    pub fn reduce(&mut self, size: Size) -> Scale {
        let (width, height, map) = self.reduced();
        let scale = Scale::for_target((self.box_.w, self.box_.h), (width, height));
        if scale != Scale::Full {
            let small = size.scaled(scale);
            self.box_ = self
                .box_
                .reduced(scale.divisor(), small.width, small.height);
            (self.grid_w, self.grid_h, self.map) = (width, height, map);
            self.antialias = false;
        }
        scale
    }

    /// Return the first step, the resize from the box to the part of the (possibly smaller) grid that the map reads.
    fn resize(&self) -> ResizeSpec {
        let (grid_w, grid_h, map) = self.reduced();
        ResizeSpec {
            box_: self.box_,
            grid_w,
            grid_h,
            window: reach(&map, self.upright(), grid_w, grid_h),
            filter: self.filter,
            flip_x: false,
            flip_y: false,
        }
    }

    /// Return the window before flipping.
    fn upright(&self) -> Rect {
        let Rect { x, y, w, h } = self.window;
        let mirrored = |flip: bool, length: u32, start: u32, part: u32| {
            if flip {
                length - start - part
            } else {
                start
            }
        };
        Rect::new(
            mirrored(self.flip_x, self.width, x, w),
            mirrored(self.flip_y, self.height, y, h),
            w,
            h,
        )
    }

    /// Return true if the map is finite, the output has pixels, and the resize is valid.
    pub fn is_valid(&self) -> bool {
        self.map.is_finite()
            && self.window.fits(self.width, self.height)
            && self.grid_w > 0
            && self.grid_h > 0
            && self.resize().is_valid()
    }

    /// Return whether the source of each output pixel can be computed from its column and row alone. Pillow accumulates the
    /// source of nearest pixels over the whole output where the axes turn and fixed point would overflow.
    pub fn is_direct(&self) -> bool {
        self.interpolation != Interpolation::Nearest
            || nearest::is_straight(&self.map)
            || nearest::fits_fixed_point(&self.map, self.width, self.height)
    }

    /// Return the image region that the sampling needs; an empty rectangle if the request is not valid. It holds at least one
    /// pixel even if the whole output is fill.
    pub fn needed(&self) -> Rect {
        if !self.is_valid() {
            return Rect::default();
        }
        self.resize().needed()
    }
}

/// Return the part of a grid of `grid_w` × `grid_h` that samples of a part of the output read, with a margin of one pixel.
fn reach(map: &Affine, output: Rect, grid_w: u32, grid_h: u32) -> Rect {
    let (left, top) = (f64::from(output.x), f64::from(output.y));
    let (right, bottom) = (left + f64::from(output.w), top + f64::from(output.h));
    let corners = [(left, top), (right, top), (left, bottom), (right, bottom)];
    let corners = corners.map(|(x, y)| map.apply(x, y));
    let side = |values: [f64; 4], length: u32| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min) - 2.0;
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) + 2.0;
        let last = f64::from(length) - 1.0;
        let (low, high) = (low.clamp(0.0, last) as u32, high.clamp(0.0, last) as u32);
        (low, high - low + 1)
    };
    let (x, w) = side(corners.map(|corner| corner.0), grid_w);
    let (y, h) = side(corners.map(|corner| corner.1), grid_h);
    Rect::new(x, y, w, h)
}

/// The sampled pixels: a window of an image of `width` × `height`.
#[derive(Debug, Clone, Copy)]
struct Picture<'a> {
    bytes: &'a [u8],
    stride: usize,
    window: Rect,
    width: u32,
    height: u32,
}

impl Picture<'_> {
    /// Return a pixel, with coordinates clamped to the image and to the window, which holds all pixels that a sample inside the
    /// image reads.
    #[inline(always)]
    fn pixel(&self, x: i64, y: i64) -> [u8; 3] {
        let place = |at: i64, first: u32, count: u32| {
            (at - i64::from(first)).clamp(0, i64::from(count) - 1) as usize
        };
        let x = place(x, self.window.x, self.window.w);
        let y = place(y, self.window.y, self.window.h);
        let at = y * self.stride + x * 3;
        [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2]]
    }

    /// Panic unless `bytes` bytes can be read at every pixel on the straight way between two pixels, given as column and row of
    /// the window, and in `below` rows under it. The vector kernels rely on that and check nothing else.
    #[cfg(target_arch = "x86_64")]
    fn assert_readable(&self, ends: [(i64, i64); 2], below: usize, bytes: usize) {
        let [(x0, y0), (x1, y1)] = ends;
        assert!(x0.min(x1).min(y0).min(y1) >= 0, "a pixel before the window");
        let (x, y) = (x0.max(x1) as usize, y0.max(y1) as usize + below);
        assert!(x < self.window.w as usize && y < self.window.h as usize);
        assert!(y * self.stride + x * 3 + bytes <= self.bytes.len());
    }

    /// Return a pixel, or `None` outside the image.
    #[inline(always)]
    fn inside(&self, x: i64, y: i64) -> Option<[u8; 3]> {
        let within = |at: i64, length: u32| at >= 0 && at < i64::from(length);
        (within(x, self.width) && within(y, self.height)).then(|| self.pixel(x, y))
    }
}

/// The affine sampler of one thread, with the memory of the resized grid. After the first images nothing is allocated.
#[derive(Debug)]
pub struct Warper {
    extension: Extension,
    resampler: Resampler,
    grid: Vec<u8>,
}

impl Default for Warper {
    fn default() -> Self {
        Self::with_extension(Extension::best())
    }
}

impl Warper {
    /// Make one whose kernels use `extension`, which the processor must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        Warper {
            extension,
            resampler: Resampler::with_extension(extension),
            grid: Vec::new(),
        }
    }

    /// Return the resampler of the first step, to set its pass order or to use it alone.
    pub fn resampler(&mut self) -> &mut Resampler {
        &mut self.resampler
    }

    /// Sample `src`, which holds at least [`WarpSpec::needed`], into `out`: the rows of the window as uint8 RGB, `out_stride`
    /// bytes apart. Pixels outside one of `edges` (in coordinates of the output before flipping) are fill.
    ///
    /// Errors: [`Status::BadBox`] if the request is not valid or `src` lacks needed pixels, [`Status::Internal`] if a buffer is
    /// too small.
    pub fn warp_into(
        &mut self,
        src: RgbView<'_>,
        spec: &WarpSpec,
        edges: &[Edge],
        out: &mut [u8],
        out_stride: usize,
    ) -> Result<()> {
        if !spec.is_valid() {
            return Err(Status::BadBox);
        }
        let mut resize = spec.resize();
        let (grid_w, grid_h, map) = spec.reduced();
        if edges.is_empty() && (grid_w, grid_h) == (spec.width, spec.height) {
            if let Some((flip_x, flip_y)) = map.as_flips(grid_w, grid_h) {
                let (x, y) = (flip_x ^ spec.flip_x, flip_y ^ spec.flip_y);
                let window = WarpSpec {
                    flip_x: x,
                    flip_y: y,
                    ..*spec
                };
                resize.window = window.upright();
                (resize.flip_x, resize.flip_y) = (x, y);
                return self.resampler.resize_into(src, &resize, out, out_stride);
            }
        }
        let row_bytes = spec.window.w as usize * 3;
        let length = (spec.window.h as usize - 1) * out_stride + row_bytes;
        if out_stride < row_bytes || out.len() < length {
            return Err(Status::Internal);
        }

        let whole = (grid_w, grid_h) == (spec.box_.w, spec.box_.h);
        let window = resize.window;
        let (bytes, stride) = if whole {
            (crate::resample::view_of(&src, resize.needed())?, src.stride)
        } else {
            let stride = window.w as usize * 3;
            let length = stride * window.h as usize;
            limits::grow(&mut self.grid, length + SLACK, 0)?;
            self.resampler
                .resize_into(src, &resize, &mut self.grid[..length], stride)?;
            (&self.grid[..length + SLACK], stride)
        };
        let picture = Picture {
            bytes,
            stride,
            window,
            width: grid_w,
            height: grid_h,
        };
        self.sample(&picture, &map, spec, edges, out, out_stride);
        Ok(())
    }

    fn sample(
        &self,
        picture: &Picture<'_>,
        map: &Affine,
        spec: &WarpSpec,
        edges: &[Edge],
        out: &mut [u8],
        out_stride: usize,
    ) {
        let part = spec.upright();
        let row_bytes = part.w as usize * 3;
        let mut nearest = (spec.interpolation == Interpolation::Nearest)
            .then(|| Nearest::new(picture, map, spec, self.extension));
        let lattice = map.is_lattice();
        for row in 0..part.h {
            let y = part.y + row;
            let target = if spec.flip_y { part.h - 1 - row } else { row };
            let output = &mut out[target as usize * out_stride..][..row_bytes];
            let line = Line {
                first: part.x,
                y,
                fill: spec.fill,
            };
            match &mut nearest {
                Some(nearest) => nearest.row(picture, line, output),
                None if spec.interpolation == Interpolation::Bicubic => {
                    bicubic::row(self.extension, picture, map, line, output);
                }
                None if lattice => scalar::lattice(picture, map, line, output),
                None => self.bilinear(picture, map, line, output),
            }
            for edge in edges {
                let (start, end) = edge.shown(y, part.x, part.w as usize);
                paint(&mut output[..start * 3], spec.fill);
                paint(&mut output[end.max(start) * 3..], spec.fill);
            }
            if spec.flip_x {
                mirror(output);
            }
        }
    }
}

impl Warper {
    /// Sample a row bilinearly, one part at a time.
    fn bilinear(&self, picture: &Picture<'_>, map: &Affine, line: Line, output: &mut [u8]) {
        for (number, part) in output.chunks_mut(PART * 3).enumerate() {
            let line = Line {
                first: line.first + (number * PART) as u32,
                ..line
            };
            match self.extension {
                #[cfg(target_arch = "x86_64")]
                Extension::Avx512 => avx512::bilinear(picture, map, line, part),
                #[cfg(target_arch = "x86_64")]
                Extension::Avx2 => avx2::bilinear(picture, map, line, part),
                _ => scalar::bilinear_part(picture, map, line, part, 0..part.len() / 3),
            }
        }
    }
}

/// Largest number of pixels that a bilinear kernel computes at a time; the error bound of the vector kernels depends on it.
const PART: usize = 1024;

fn paint(pixels: &mut [u8], colour: [u8; 3]) {
    for pixel in pixels.chunks_exact_mut(3) {
        pixel.copy_from_slice(&colour);
    }
}

/// Reverse the pixels of a row.
fn mirror(row: &mut [u8]) {
    let middle = row.len() / 6 * 3;
    let (left, right) = row.split_at_mut(middle);
    for (a, b) in left.chunks_exact_mut(3).zip(right.rchunks_exact_mut(3)) {
        a.swap_with_slice(b);
    }
}

/// A part of an output row: the row, its first pixel, and the colour outside the image.
#[derive(Debug, Clone, Copy)]
struct Line {
    first: u32,
    y: u32,
    fill: [u8; 3],
}

/// Bytes after the last pixel of the grid: vector kernels read pixels two at a time, eight bytes.
const SLACK: usize = 8;
