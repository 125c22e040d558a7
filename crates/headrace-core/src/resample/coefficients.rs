//! Filter weights of one axis, exactly as Pillow computes them.
//!
//! Source of the formulas: Pillow `src/libImaging/Resample.c` (`precompute_coeffs`, `normalize_coeffs_8bpc`) and, for nearest,
//! `Geometry.c` (`ImagingScaleAffine`). Weights are normalised in double precision, then rounded to 22 fraction bits; the order
//! of the floating-point operations below is the same, because the last bit matters.
//!
//! torch resizes uint8 tensors with the same weights, rounded to 16 bits (`aten/src/ATen/native/cpu/UpSampleKernel.cpp`,
//! `_compute_index_ranges_int16_weights`): all weights of an axis have as many fraction bits as the largest of them allows. Such
//! a weight, shifted left to 22 fraction bits, gives the same sums and the same rounding, so the kernels are shared.

use std::f64::consts::PI;

use crate::cpu::{vectorised, Extension};

/// Fraction bits of a weight: 32 bits minus 8 for the pixel, minus 2 for filters that overshoot (Pillow's `PRECISION_BITS`).
pub const WEIGHT_BITS: u32 = 32 - 8 - 2;

/// A resampling filter; names and results are Pillow's, those of `…Int16` torch's for uint8 tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Filter {
    /// The pixel under the centre, without averaging.
    Nearest,
    /// Mean over the footprint.
    Box,
    /// Triangle over twice the footprint (antialiased if the image shrinks).
    #[default]
    Bilinear,
    /// Hamming window over twice the footprint.
    Hamming,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// Sinc windowed to three lobes.
    Lanczos,
    /// `Bilinear` with weights of 16 bits, as torch resizes uint8 tensors.
    BilinearInt16,
    /// `Bicubic` with weights of 16 bits, as torch resizes uint8 tensors.
    BicubicInt16,
}

impl Filter {
    /// Return half the width of the filter at scale 1, in source pixels.
    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::BilinearInt16 | Filter::Hamming => 1.0,
            Filter::Bicubic | Filter::BicubicInt16 => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    /// Return the filter's value at `x`, in units of the footprint.
    #[inline(always)]
    fn value(self, x: f64) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Filter::Bilinear | Filter::BilinearInt16 => (1.0 - x.abs()).max(0.0),
            Filter::Hamming => hamming(x.abs()),
            Filter::Bicubic => cubic(x.abs()),
            Filter::BicubicInt16 => torch_cubic(x.abs()),
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }

    /// Return true for the filters of uint8 tensors, with weights of 16 bits.
    pub fn is_int16(self) -> bool {
        matches!(self, Filter::BilinearInt16 | Filter::BicubicInt16)
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}

fn hamming(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    if x >= 1.0 {
        return 0.0;
    }
    let x = x * PI;
    // Pillow writes these two constants as C floats, so the double has the rounding of a float.
    x.sin() / x * (f64::from(0.54_f32) + f64::from(0.46_f32) * x.cos())
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// [`cubic`] with torch's order of operations.
fn torch_cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// One axis of a resize: `source` pixels become `grid` pixels, of which `count` from `first` on are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Length of the source box in pixels.
    pub source: u32,
    /// Length of the resized grid in pixels.
    pub grid: u32,
    /// First computed grid position.
    pub first: u32,
    /// Number of computed grid positions.
    pub count: u32,
    /// The filter.
    pub filter: Filter,
}

impl Axis {
    /// Return true if the axis keeps its length, so that Pillow skips its pass.
    pub fn is_identity(&self) -> bool {
        self.source == self.grid
    }

    fn scale(&self) -> f64 {
        f64::from(self.source as f32) / f64::from(self.grid)
    }

    fn footing(&self) -> Footing {
        let scale = self.scale();
        // The filter widens when the axis shrinks (antialiasing), but never narrows.
        let stretch = scale.max(1.0);
        Footing {
            scale,
            support: self.filter.support() * stretch,
            inverse_stretch: 1.0 / stretch,
            source: self.source as i32,
        }
    }

    /// Return a bound of the number of weights of a computed position (Pillow's `ksize`).
    pub fn most_taps(&self) -> u32 {
        if self.is_identity() || self.filter == Filter::Nearest {
            return 1;
        }
        self.footing().support.ceil() as u32 * 2 + 1
    }

    /// Return the fraction bits of the weights.
    fn weight_bits(&self) -> u32 {
        if self.filter.is_int16() {
            int16_bits(self.largest_weight())
        } else {
            WEIGHT_BITS
        }
    }

    /// Return the largest weight of the whole axis, computed or not.
    fn largest_weight(&self) -> f64 {
        let footing = self.footing();
        let mut largest = 0.0_f64;
        for position in 0..self.grid {
            let (start, count) = footing.span(position);
            let center = footing.center(position);
            let value = |tap: u32| {
                let x =
                    (f64::from(start) + f64::from(tap) - center + 0.5) * footing.inverse_stretch;
                self.filter.value(x)
            };
            let sum: f64 = (0..count).map(value).sum();
            if sum != 0.0 {
                largest = (0..count)
                    .map(|tap| value(tap) / sum)
                    .fold(largest, f64::max);
            }
        }
        largest
    }

    /// Return the half-open range of source positions that the computed positions read.
    pub fn needed(&self) -> (u32, u32) {
        let last = self.first + self.count - 1;
        if self.is_identity() {
            return (self.first, last + 1);
        }
        if self.filter == Filter::Nearest {
            let step = self.scale();
            let mut at = step * 0.5;
            let mut range = (u32::MAX, 0);
            for position in 0..=last {
                if position >= self.first {
                    let source = (at as u32).min(self.source - 1);
                    range = (range.0.min(source), range.1.max(source + 1));
                }
                at += step;
            }
            return range;
        }
        let footing = self.footing();
        let (last_start, last_taps) = footing.span(last);
        (footing.span(self.first).0, last_start + last_taps)
    }
}

/// The constants of an axis.
#[derive(Clone, Copy)]
struct Footing {
    scale: f64,
    support: f64,
    inverse_stretch: f64,
    source: i32,
}

impl Footing {
    #[inline(always)]
    fn center(&self, position: u32) -> f64 {
        (f64::from(position) + 0.5) * self.scale
    }

    /// Return the first source position and the number of positions under the filter at a grid position.
    #[inline(always)]
    fn span(&self, position: u32) -> (u32, u32) {
        let center = self.center(position);
        let start = ((center - self.support + 0.5) as i32).max(0);
        let end = ((center + self.support + 0.5) as i32).min(self.source);
        (start as u32, (end - start).max(0) as u32)
    }
}

/// The weights of one axis: output `i` is the sum of `weights[i * taps + t] * pixel[starts[i] + t]` over `t < taps`.
#[derive(Debug, Default)]
pub struct Weights {
    /// First source position of each output, relative to the origin given to [`Weights::fill`].
    pub starts: Vec<u32>,
    /// Number of non-padding weights of each output.
    pub counts: Vec<u32>,
    /// Weights per output; shorter filters are padded with zeros at the end.
    pub taps: usize,
    /// Fixed-point weights, [`WEIGHT_BITS`] fraction bits, `taps` per output.
    pub values: Vec<i32>,
    exact: Vec<f64>,
}

impl Weights {
    /// Compute the table of `axis`, positions relative to source position `origin`; `reverse` lists the outputs last to first.
    pub fn fill(&mut self, extension: Extension, axis: &Axis, origin: u32, reverse: bool) {
        let count = axis.count as usize;
        self.starts.clear();
        self.counts.clear();
        self.values.clear();
        if axis.is_identity() || axis.filter == Filter::Nearest {
            self.fill_single(axis, origin);
        } else {
            self.fill_filtered(extension, axis, origin);
        }
        if reverse {
            self.starts.reverse();
            self.counts.reverse();
            for i in 0..count / 2 {
                for tap in 0..self.taps {
                    self.values
                        .swap(i * self.taps + tap, (count - 1 - i) * self.taps + tap);
                }
            }
        }
    }

    /// Fill the table with one source pixel of weight one per output, for identity and nearest.
    fn fill_single(&mut self, axis: &Axis, origin: u32) {
        self.taps = 1;
        let step = axis.scale();
        let mut at = step * 0.5;
        for position in 0..axis.first + axis.count {
            if position >= axis.first {
                self.starts.push((at as u32).min(axis.source - 1) - origin);
            }
            at += step; // accumulated, as in Pillow
        }
        self.counts.resize(axis.count as usize, 1);
        self.values.resize(axis.count as usize, 1 << WEIGHT_BITS);
    }

    fn fill_filtered(&mut self, extension: Extension, axis: &Axis, origin: u32) {
        let footing = axis.footing();
        self.starts.resize(axis.count as usize, 0);
        self.counts.resize(axis.count as usize, 0);
        let spans = self.starts.iter_mut().zip(&mut self.counts);
        for (position, (start, count)) in (axis.first..).zip(spans) {
            let span = footing.span(position);
            (*start, *count) = (span.0 - origin, span.1);
        }
        self.taps = self.counts.iter().copied().max().unwrap_or(0) as usize;
        self.values.resize(self.taps * axis.count as usize, 0);
        self.exact.resize(self.taps * LANES, 0.0);
        // Filters of simple arithmetic vectorise; the others spend their time in sine and cosine.
        let fill = match axis.filter {
            Filter::Bilinear | Filter::BilinearInt16 => fill_bilinear,
            Filter::Bicubic => fill_bicubic,
            _ => fill_any,
        };
        fill(extension, self, axis, origin);
    }

    /// Return the weights of one output, padding included.
    #[inline]
    pub fn of(&self, output: usize) -> &[i32] {
        &self.values[output * self.taps..][..self.taps]
    }
}

/// Outputs whose weights are computed together.
const LANES: usize = 8;

vectorised! {
    fn fill_bilinear(weights: &mut Weights, axis: &Axis, origin: u32) = fill_bilinear_body
}

#[inline(always)]
fn fill_bilinear_body(weights: &mut Weights, axis: &Axis, origin: u32) {
    fill_values(weights, axis, origin, |x| Filter::Bilinear.value(x));
}

vectorised! {
    fn fill_bicubic(weights: &mut Weights, axis: &Axis, origin: u32) = fill_bicubic_body
}

#[inline(always)]
fn fill_bicubic_body(weights: &mut Weights, axis: &Axis, origin: u32) {
    fill_values(weights, axis, origin, |x| Filter::Bicubic.value(x));
}

fn fill_any(_: Extension, weights: &mut Weights, axis: &Axis, origin: u32) {
    let filter = axis.filter;
    fill_values(weights, axis, origin, |x| filter.value(x));
}

/// Compute the weights of all outputs, [`LANES`] at a time.
#[inline(always)]
fn fill_values(weights: &mut Weights, axis: &Axis, origin: u32, value: impl Fn(f64) -> f64) {
    let footing = axis.footing();
    let bits = axis.weight_bits();
    let taps = weights.taps;
    let (starts, counts) = (&weights.starts, &weights.counts);
    for first in (0..starts.len()).step_by(LANES) {
        let lanes = LANES.min(starts.len() - first);
        let (mut begin, mut count, mut center) = ([0.0; LANES], [0; LANES], [0.0; LANES]);
        for lane in 0..lanes {
            begin[lane] = f64::from(starts[first + lane] + origin);
            count[lane] = counts[first + lane];
            center[lane] = footing.center(axis.first + (first + lane) as u32);
        }
        let mut sums = [0.0; LANES];
        for (tap, exact) in weights.exact.chunks_exact_mut(LANES).enumerate() {
            for lane in 0..LANES {
                let x = (begin[lane] + tap as f64 - center[lane] + 0.5) * footing.inverse_stretch;
                // Padding adds zero to the sum.
                exact[lane] = if (tap as u32) < count[lane] {
                    value(x)
                } else {
                    0.0
                };
                sums[lane] += exact[lane];
            }
        }
        let divisors = sums.map(|sum| if sum == 0.0 { 1.0 } else { sum });
        for (tap, exact) in weights.exact.chunks_exact(LANES).enumerate() {
            let mut fixed = [0; LANES];
            for lane in 0..LANES {
                fixed[lane] = to_fixed(exact[lane] / divisors[lane], bits);
            }
            for (lane, fixed) in fixed.into_iter().take(lanes).enumerate() {
                weights.values[(first + lane) * taps + tap] = fixed;
            }
        }
    }
}

/// Return the most fraction bits, at most [`WEIGHT_BITS`], with which a weight fits into 16 bits.
fn int16_bits(largest: f64) -> u32 {
    (0..WEIGHT_BITS)
        .find(|bits| (0.5 + largest * f64::from(1 << (bits + 1))) as i64 >= 1 << 15)
        .unwrap_or(WEIGHT_BITS)
}

/// Round half away from zero to `bits` fraction bits; the result has [`WEIGHT_BITS`].
#[inline(always)]
fn to_fixed(weight: f64, bits: u32) -> i32 {
    let scaled = weight * f64::from(1 << bits);
    let rounded = (if weight < 0.0 {
        scaled - 0.5
    } else {
        scaled + 0.5
    }) as i32;
    rounded << (WEIGHT_BITS - bits)
}
