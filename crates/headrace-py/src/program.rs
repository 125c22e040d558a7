//! The geometric pipeline as Python hands it over: a list of (name, numbers, filter).

use std::sync::Arc;

use headrace_core::colour::draw::{ColourStep, Range};
use headrace_core::colour::ColourOp;
use headrace_core::decode::Size;
use headrace_core::program::{self, Op};
use headrace_core::resample::Filter;
use headrace_core::rng::Key;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A compiled geometric pipeline.
#[pyclass(frozen, module = "headrace._native")]
pub struct Program {
    pub inner: Arc<program::Program>,
}

/// The filter by torchvision's name.
pub fn filter(name: &str) -> PyResult<Filter> {
    match name {
        "nearest" => Ok(Filter::Nearest),
        "box" => Ok(Filter::Box),
        "bilinear" => Ok(Filter::Bilinear),
        "hamming" => Ok(Filter::Hamming),
        "bicubic" => Ok(Filter::Bicubic),
        "lanczos" => Ok(Filter::Lanczos),
        _ => Err(PyValueError::new_err(format!(
            "no resampling filter {name:?}; there are nearest, box, bilinear, hamming, bicubic, lanczos"
        ))),
    }
}

fn op(name: &str, numbers: &[f64], filter_name: &str) -> PyResult<Op> {
    let pair = |at: usize| (numbers[at] as u32, numbers[at + 1] as u32);
    let wanted = match name {
        "random_resized_crop" => 6,
        "random_crop" => 7,
        "resize_exact" | "resize_short" | "center_crop" => 2,
        "flip_x" | "flip_y" | "grayscale" => 1,
        "color_jitter" => 8,
        _ => return Err(PyValueError::new_err(format!("no operation {name:?}"))),
    };
    if numbers.len() != wanted {
        return Err(PyValueError::new_err(format!(
            "{name} takes {wanted} numbers, not {}",
            numbers.len()
        )));
    }
    Ok(match name {
        "random_resized_crop" => Op::RandomResizedCrop {
            size: pair(0),
            scale: (numbers[2], numbers[3]),
            ratio: (numbers[4], numbers[5]),
            filter: filter(filter_name)?,
        },
        "resize_exact" => Op::ResizeExact {
            size: pair(0),
            filter: filter(filter_name)?,
        },
        "resize_short" => {
            let (short, max) = pair(0);
            Op::ResizeShort {
                short,
                max,
                filter: filter(filter_name)?,
            }
        }
        "center_crop" => Op::CenterCrop { size: pair(0) },
        "random_crop" => Op::RandomCrop {
            size: pair(0),
            padding: [
                numbers[2] as u32,
                numbers[3] as u32,
                numbers[4] as u32,
                numbers[5] as u32,
            ],
            pad_if_needed: numbers[6] != 0.0,
        },
        "color_jitter" => {
            // A range that starts with NaN is left out.
            let range = |at: usize| -> Range {
                (!numbers[at].is_nan()).then(|| (numbers[at], numbers[at + 1]))
            };
            Op::Colour(ColourStep::Jitter {
                brightness: range(0),
                contrast: range(2),
                saturation: range(4),
                hue: range(6),
            })
        }
        "grayscale" => Op::Colour(ColourStep::Grayscale { p: numbers[0] }),
        "flip_x" => Op::FlipX { p: numbers[0] },
        _ => Op::FlipY { p: numbers[0] },
    })
}

#[pymethods]
impl Program {
    /// Compiles `ops`, a list of (name, numbers, filter). Raises ValueError in words when they are not one resampling.
    #[new]
    fn new(ops: Vec<(String, Vec<f64>, String)>) -> PyResult<Self> {
        let ops = ops
            .iter()
            .map(|(name, numbers, filter)| op(name, numbers, filter))
            .collect::<PyResult<Vec<_>>>()?;
        let inner = program::Program::new(ops).map_err(PyValueError::new_err)?;
        Ok(Program {
            inner: Arc::new(inner),
        })
    }

    /// Output (height, width) in pixels.
    #[getter]
    fn out(&self) -> (u32, u32) {
        self.inner.out()
    }

    /// The colour operations that an image gets, in order, as (name, factor); torchvision's functional names.
    fn colours(&self, seed: u64, epoch: u64, draw: u64) -> Vec<(&'static str, f64)> {
        let mut ops = Vec::new();
        self.inner.colours(Key { seed, epoch, draw }, &mut ops);
        let named = |op: ColourOp| match op {
            ColourOp::Brightness(factor) => ("adjust_brightness", f64::from(factor)),
            ColourOp::Contrast(factor) => ("adjust_contrast", f64::from(factor)),
            ColourOp::Saturation(factor) => ("adjust_saturation", f64::from(factor)),
            ColourOp::Hue(share) => ("adjust_hue", share),
            _ => ("rgb_to_grayscale", 3.0), // the only other operation that a step draws
        };
        ops.into_iter().map(named).collect()
    }

    /// What an image of this size gets: ((x, y, w, h) of the crop, (w, h) it is resized to, (x, y, w, h) of the visible window,
    /// flip_x, flip_y). Raises ValueError when the image is too small for it.
    #[allow(clippy::type_complexity)]
    fn place(
        &self,
        width: u32,
        height: u32,
        seed: u64,
        epoch: u64,
        draw: u64,
    ) -> PyResult<(
        (u32, u32, u32, u32),
        (u32, u32),
        (u32, u32, u32, u32),
        bool,
        bool,
    )> {
        let placed = self
            .inner
            .place(Size { width, height }, Key { seed, epoch, draw })
            .map_err(|status| PyValueError::new_err(status.message()))?;
        let spec = placed.spec;
        let (box_, window) = (spec.box_, spec.window);
        Ok((
            (box_.x, box_.y, box_.w, box_.h),
            (spec.grid_w, spec.grid_h),
            (window.x, window.y, window.w, window.h),
            spec.flip_x,
            spec.flip_y,
        ))
    }
}
