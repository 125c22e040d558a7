//! One affine sampling per image: any chain of flips, rotations, shears and shifts after a resize.
//!
//! The request is Pillow's `image.crop(box).resize(grid).transform(size, AFFINE, matrix)`. The resize is the exact antialiased one of
//! [`crate::resample`]; the sampling is bit-identical to Pillow's, nearest or bilinear. Where the map shrinks its source, which Pillow
//! samples with aliasing, `antialias` makes the resize go to a smaller grid instead, so that the footprint of an output pixel is one pixel
//! of the grid: a triangle prefilter at no extra pass.

mod affine;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod span;

pub use affine::Affine;

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView};
use crate::resample::{Filter, Resampler, ResizeSpec};

/// How a sample is taken between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Interpolation {
    /// The pixel under the point.
    Nearest,
    /// Weighted mean of the four pixels around the point.
    #[default]
    Bilinear,
}

/// What to compute: `image.crop(box_).resize((grid_w, grid_h), filter).transform((width, height), AFFINE, map, fillcolor=fill)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarpSpec {
    /// Source rectangle in image pixels; nothing outside it shows.
    pub box_: Rect,
    /// Width of the grid that the box is resized to; the box's width if it is not resized.
    pub grid_w: u32,
    /// Height of the grid that the box is resized to.
    pub grid_h: u32,
    /// Filter of the resize.
    pub filter: Filter,
    /// Output point to grid point.
    pub map: Affine,
    /// Output width in pixels.
    pub width: u32,
    /// Output height in pixels.
    pub height: u32,
    /// How the grid is sampled.
    pub interpolation: Interpolation,
    /// Colour of output pixels whose centre falls outside the grid.
    pub fill: [u8; 3],
    /// Shrinks the grid first where the map shrinks it (bilinear only). Off reproduces Pillow, aliasing included.
    pub antialias: bool,
}

impl WarpSpec {
    /// The grid and the map onto it after antialiasing, if asked for and needed.
    fn reduced(&self) -> (u32, u32, Affine) {
        if !self.antialias || self.interpolation == Interpolation::Nearest {
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

    /// The resize that comes first: from the box to the part of the (possibly smaller) grid that the map can reach.
    fn resize(&self) -> ResizeSpec {
        let (grid_w, grid_h, map) = self.reduced();
        ResizeSpec {
            box_: self.box_,
            grid_w,
            grid_h,
            window: reach(&map, self.width, self.height, grid_w, grid_h),
            filter: self.filter,
            flip_x: false,
            flip_y: false,
        }
    }

    /// True if the map is finite, the output not empty, and the resize valid.
    pub fn is_valid(&self) -> bool {
        self.map.is_finite()
            && self.width > 0
            && self.height > 0
            && self.grid_w > 0
            && self.grid_h > 0
            && self.resize().is_valid()
    }

    /// The image region that the decoder must deliver; an empty rectangle if the request is not valid. It holds at least one pixel even
    /// if all of the output is fill.
    pub fn needed(&self) -> Rect {
        if !self.is_valid() {
            return Rect::default();
        }
        self.resize().needed()
    }
}

/// The part of a grid of `grid_w` × `grid_h` that samples of an output of `width` × `height` read, with a pixel to spare.
fn reach(map: &Affine, width: u32, height: u32, grid_w: u32, grid_h: u32) -> Rect {
    let (width, height) = (f64::from(width), f64::from(height));
    let corners = [(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)];
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

/// The pixels that are sampled: a window of a picture of `width` × `height`.
#[derive(Debug, Clone, Copy)]
struct Picture<'a> {
    bytes: &'a [u8],
    stride: usize,
    window: Rect,
    width: u32,
    height: u32,
}

impl Picture<'_> {
    /// A pixel, coordinates clamped to the picture (and to the window, which holds all that a sample inside the picture touches).
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

    /// A pixel, or None outside the picture.
    #[inline(always)]
    fn inside(&self, x: i64, y: i64) -> Option<[u8; 3]> {
        let within = |at: i64, length: u32| at >= 0 && at < i64::from(length);
        (within(x, self.width) && within(y, self.height)).then(|| self.pixel(x, y))
    }
}

/// Warps images one after another; holds the resized grid, so that the steady state allocates nothing.
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
    /// A warper that uses the given instructions, which the processor must have (see [`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        Warper {
            extension,
            resampler: Resampler::with_extension(extension),
            grid: Vec::new(),
        }
    }

    /// The resampler of the first step, to choose its pass order or to use it alone.
    pub fn resampler(&mut self) -> &mut Resampler {
        &mut self.resampler
    }

    /// Warps `src`, which holds at least [`WarpSpec::needed`], into `out`: uint8 RGB, `spec.height` rows of `spec.width` pixels,
    /// `out_stride` bytes from row to row.
    ///
    /// Errors: [`Status::BadBox`] if the request is not valid or `src` lacks needed pixels, [`Status::Internal`] if a buffer is too small.
    pub fn warp_into(
        &mut self,
        src: RgbView<'_>,
        spec: &WarpSpec,
        out: &mut [u8],
        out_stride: usize,
    ) -> Result<()> {
        if !spec.is_valid() {
            return Err(Status::BadBox);
        }
        let mut resize = spec.resize();
        let (grid_w, grid_h, map) = spec.reduced();
        if (grid_w, grid_h) == (spec.width, spec.height) {
            if let Some((flip_x, flip_y)) = map.as_flips(grid_w, grid_h) {
                (resize.flip_x, resize.flip_y) = (flip_x, flip_y);
                resize.window = Rect::new(0, 0, grid_w, grid_h);
                return self.resampler.resize_into(src, &resize, out, out_stride);
            }
        }
        let row_bytes = spec.width as usize * 3;
        let length = (spec.height as usize - 1) * out_stride + row_bytes;
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
            if self.grid.len() < length + SLACK {
                self.grid.resize(length + SLACK, 0);
            }
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
        self.sample(&picture, &map, spec, out, out_stride);
        Ok(())
    }

    fn sample(
        &self,
        picture: &Picture<'_>,
        map: &Affine,
        spec: &WarpSpec,
        out: &mut [u8],
        out_stride: usize,
    ) {
        let row_bytes = spec.width as usize * 3;
        if spec.interpolation == Interpolation::Nearest {
            let size = (spec.width, spec.height);
            scalar::nearest(picture, map, size, spec.fill, |y, write| {
                write(&mut out[y as usize * out_stride..][..row_bytes]);
            });
            return;
        }
        let lattice = map.is_lattice();
        for y in 0..spec.height {
            let output = &mut out[y as usize * out_stride..][..row_bytes];
            match self.extension {
                _ if lattice => scalar::lattice(picture, map, y, spec.fill, output),
                #[cfg(target_arch = "x86_64")]
                Extension::Avx512 => avx512::bilinear(picture, map, y, spec.fill, output),
                #[cfg(target_arch = "x86_64")]
                Extension::Avx2 => avx2::bilinear(picture, map, y, spec.fill, output),
                _ => {
                    let all = 0..spec.width as usize;
                    scalar::bilinear_part(picture, map, y, spec.fill, output, all);
                }
            }
        }
    }
}

/// Bytes after the last pixel of the grid: vector kernels read pixels two at a time, eight bytes.
const SLACK: usize = 8;
