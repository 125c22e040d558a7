//! Pipelines for Python, which passes them as lists of (name, numbers, interpolation).

use std::sync::Arc;

use headrace_core::colour::draw::{ColourStep, Range};
use headrace_core::colour::torch_blur::BlurKey;
use headrace_core::colour::ColourOp;
use headrace_core::error::Status;
use headrace_core::geometry::Size;
use headrace_core::program;
use headrace_core::program::augment::{Augment, Generation, Policy, CIFAR10, IMAGENET, SVHN};
use headrace_core::program::filters::Filters;
use headrace_core::program::op::Op;
use headrace_core::program::route::{Fuse, Route};
use headrace_core::program::step::{Sampling, Step};
use headrace_core::resample::{Filter, ResizeSpec};
use headrace_core::rng::Key;
use headrace_core::warp::Interpolation;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::detach::{detached, guarded};
use crate::passes::{self, Pass};
use crate::stream::{DrawPlan, Stream};

/// A compiled pipeline.
#[pyclass(frozen, module = "headrace._native")]
pub struct Program {
    pub inner: Arc<program::Program>,
}

const FILTERS: [(&str, Filter); 8] = [
    ("nearest", Filter::Nearest),
    ("box", Filter::Box),
    ("bilinear", Filter::Bilinear),
    ("hamming", Filter::Hamming),
    ("bicubic", Filter::Bicubic),
    ("lanczos", Filter::Lanczos),
    ("bilinear-int16", Filter::BilinearInt16),
    ("bicubic-int16", Filter::BicubicInt16),
];

/// Return the filter by torchvision's name.
pub fn filter(name: &str) -> PyResult<Filter> {
    let found = FILTERS.iter().find(|(known, _)| *known == name);
    found.map(|(_, filter)| *filter).ok_or_else(|| {
        PyValueError::new_err(format!(
            "no resampling filter {name:?}; there are {}",
            FILTERS.map(|(known, _)| known).join(", ")
        ))
    })
}

/// Return one filter, or a choice of several: "bilinear or bicubic".
fn filters(names: &str) -> PyResult<Filters> {
    let found = names
        .split(" or ")
        .map(filter)
        .collect::<PyResult<Vec<_>>>()?;
    Filters::new(&found)
        .ok_or_else(|| PyValueError::new_err(format!("too many resampling filters: {names}")))
}

fn interpolation(name: &str) -> PyResult<Interpolation> {
    let offered = |found: &Interpolation| *found != Interpolation::Bicubic;
    Interpolation::named(name).filter(offered).ok_or_else(|| {
        PyValueError::new_err(format!(
            "no interpolation {name:?} of an affine operation; there are nearest, bilinear"
        ))
    })
}

/// The numbers of one operation, read one after the other.
struct Numbers<'a> {
    name: &'a str,
    rest: &'a [f64],
}

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> PyResult<[f64; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(PyValueError::new_err(format!(
                "{} has too few numbers",
                self.name
            )));
        };
        self.rest = rest;
        Ok(*taken)
    }

    fn one(&mut self) -> PyResult<f64> {
        self.take::<1>().map(|[number]| number)
    }

    fn pair(&mut self) -> PyResult<(f64, f64)> {
        self.take().map(|[first, second]| (first, second))
    }

    fn size(&mut self) -> PyResult<(u32, u32)> {
        self.take()
            .map(|[height, width]| (height as u32, width as u32))
    }

    /// Read a range; NaN as its first number means none.
    fn range(&mut self) -> PyResult<Range> {
        self.pair()
            .map(|(low, high)| (!low.is_nan()).then_some((low, high)))
    }

    fn padding(&mut self) -> PyResult<[u32; 4]> {
        self.take()
            .map(|sides: [f64; 4]| sides.map(|side| side as u32))
    }

    fn fill(&mut self) -> PyResult<[u8; 3]> {
        self.take()
            .map(|colour: [f64; 3]| colour.map(|value| value as u8))
    }

    fn sampling(&mut self, name: &str) -> PyResult<Sampling> {
        Ok(Sampling {
            interpolation: interpolation(name)?,
            fill: self.fill()?,
        })
    }
}

fn op(name: &str, numbers: &[f64], filter_name: &str) -> PyResult<Op> {
    let mut numbers = Numbers {
        name,
        rest: numbers,
    };
    let made = geometry(name, &mut numbers, filter_name)?
        .map_or_else(|| colour(name, &mut numbers).map(Op::Colour), Ok)?;
    if numbers.rest.is_empty() {
        Ok(made)
    } else {
        Err(PyValueError::new_err(format!(
            "{name} has too many numbers"
        )))
    }
}

fn geometry(name: &str, numbers: &mut Numbers<'_>, filter_name: &str) -> PyResult<Option<Op>> {
    Ok(Some(match name {
        "random_resized_crop" => Op::RandomResizedCrop {
            size: numbers.size()?,
            scale: numbers.pair()?,
            ratio: numbers.pair()?,
            filters: filters(filter_name)?,
        },
        "resize_exact" => Op::ResizeExact {
            size: numbers.size()?,
            filter: filter(filter_name)?,
        },
        "resize_short" => Op::ResizeShort {
            short: numbers.one()? as u32,
            max: numbers.one()? as u32,
            filter: filter(filter_name)?,
        },
        "center_crop" => Op::CenterCrop {
            size: numbers.size()?,
        },
        "random_crop" => Op::RandomCrop {
            size: numbers.size()?,
            padding: numbers.padding()?,
            pad_if_needed: numbers.one()? != 0.0,
        },
        "pad" => Op::Pad {
            padding: numbers.padding()?,
            fill: numbers.fill()?,
        },
        "flip_x" => Op::FlipX { p: numbers.one()? },
        "flip_y" => Op::FlipY { p: numbers.one()? },
        "rotation" => Op::RandomRotation {
            degrees: numbers.pair()?,
            expand: numbers.one()? != 0.0,
            center: numbers.range()?,
            sampling: numbers.sampling(filter_name)?,
        },
        "affine" => Op::RandomAffine {
            degrees: numbers.pair()?,
            translate: numbers.range()?,
            scale: numbers.range()?,
            shear: [numbers.pair()?, numbers.pair()?],
            center: numbers.range()?,
            sampling: numbers.sampling(filter_name)?,
        },
        "apply" => Op::Apply {
            p: numbers.one()?,
            count: numbers.one()? as u32,
        },
        "rand_augment" => {
            let [ops, magnitude, bins] = numbers.take()?.map(|number: f64| number as u32);
            let policy = Policy::Rand {
                ops,
                magnitude,
                bins,
            };
            augment(policy, numbers, filter_name)?
        }
        "trivial_augment_wide" => {
            let bins = numbers.one()? as u32;
            augment(Policy::TrivialWide { bins }, numbers, filter_name)?
        }
        "auto_augment_imagenet" => augment(Policy::Auto(IMAGENET), numbers, filter_name)?,
        "auto_augment_cifar10" => augment(Policy::Auto(CIFAR10), numbers, filter_name)?,
        "auto_augment_svhn" => augment(Policy::Auto(SVHN), numbers, filter_name)?,
        _ => return Ok(None),
    }))
}

fn augment(policy: Policy, numbers: &mut Numbers<'_>, filter_name: &str) -> PyResult<Op> {
    let generation = if numbers.one()? == 1.0 {
        Generation::V1
    } else {
        Generation::V2
    };
    Ok(Op::Augment(Augment {
        policy,
        generation,
        sampling: numbers.sampling(filter_name)?,
    }))
}

fn colour(name: &str, numbers: &mut Numbers<'_>) -> PyResult<ColourStep> {
    Ok(match name {
        "color_jitter" => ColourStep::Jitter {
            brightness: numbers.range()?,
            contrast: numbers.range()?,
            saturation: numbers.range()?,
            hue: numbers.range()?,
        },
        "blur" => ColourStep::Blur {
            kernel: numbers
                .pair()
                .map(|(width, height)| (width as u16, height as u16))?,
            sigma: numbers.pair()?,
        },
        "pillow_blur" => ColourStep::PillowBlur {
            radius: numbers.pair()?,
        },
        "torch_blur" => ColourStep::TorchBlur {
            kernel: numbers
                .pair()
                .map(|(width, height)| (width as u16, height as u16))?,
            sigma: numbers.pair()?,
            version: numbers.one()? as u8,
        },
        "dilate" | "erode" => ColourStep::Morphology {
            dilate: name == "dilate",
            radius: numbers.one()? as u32,
        },
        _ => {
            let p = numbers.one()?;
            let op = match name {
                "grayscale" => ColourOp::Grayscale,
                "invert" => ColourOp::Invert,
                "autocontrast" => ColourOp::Autocontrast,
                "equalize" => ColourOp::Equalize,
                "posterize" => ColourOp::Posterize(numbers.one()? as u8),
                // Values below the threshold stay, so a threshold between two levels is rounded up.
                "solarize" => ColourOp::Solarize(numbers.one()?.ceil().clamp(0.0, 256.0) as u16),
                "sharpness" => ColourOp::Sharpness(numbers.one()? as f32),
                _ => return Err(PyValueError::new_err(format!("no operation {name:?}"))),
            };
            ColourStep::Sometimes { p, op }
        }
    })
}

fn colour_name(op: ColourOp) -> (&'static str, f64) {
    match op {
        ColourOp::Brightness(factor) => ("adjust_brightness", f64::from(factor)),
        ColourOp::Contrast(factor) => ("adjust_contrast", f64::from(factor)),
        ColourOp::Saturation(factor) => ("adjust_saturation", f64::from(factor)),
        ColourOp::Sharpness(factor) => ("adjust_sharpness", f64::from(factor)),
        ColourOp::Hue(share) => ("adjust_hue", share),
        ColourOp::Grayscale => ("rgb_to_grayscale", 3.0),
        ColourOp::Posterize(bits) => ("posterize", f64::from(bits)),
        ColourOp::Solarize(threshold) => ("solarize", f64::from(threshold)),
        ColourOp::Invert => ("invert", f64::NAN),
        ColourOp::Autocontrast => ("autocontrast", f64::NAN),
        ColourOp::Equalize => ("equalize", f64::NAN),
        ColourOp::GaussianBlur { sigma, .. } => ("gaussian_blur", f64::from(sigma.0)),
        ColourOp::PillowBlur(radius) => ("pillow_blur", f64::from(radius)),
        ColourOp::TorchBlur(key) => ("torch_blur", f64::from(f32::from_bits(key.sigma))),
        ColourOp::Dilate => ("dilate", 3.0),
        ColourOp::Erode => ("erode", 3.0),
    }
}

/// Return a step as (torchvision's functional name, its arguments); `size` is the size of the image before the step.
fn described<'py>(
    py: Python<'py>,
    step: &Step,
    size: Size,
) -> PyResult<(&'static str, Bound<'py, PyDict>)> {
    let arguments = PyDict::new(py);
    let put_sampling = |sampling: &Sampling| {
        arguments.set_item("interpolation", sampling.interpolation.name())?;
        arguments.set_item("fill", sampling.fill.map(u32::from).to_vec())
    };
    let name = match *step {
        Step::FlipX => "horizontal_flip",
        Step::FlipY => "vertical_flip",
        Step::Crop { x, y, w, h, fill } if fill != [0; 3] => {
            let (width, height) = (i64::from(size.width), i64::from(size.height));
            arguments.set_item("padding", vec![-x, -y, w + x - width, h + y - height])?;
            arguments.set_item("fill", fill.map(u32::from).to_vec())?;
            "pad"
        }
        Step::Crop { x, y, w, h, .. } => {
            for (name, value) in [("top", y), ("left", x), ("height", h), ("width", w)] {
                arguments.set_item(name, value)?;
            }
            "crop"
        }
        Step::Resize {
            size: (height, width),
            filter,
        } => {
            let known = FILTERS.iter().find(|(_, known)| *known == filter);
            arguments.set_item("size", vec![height, width])?;
            arguments.set_item("interpolation", known.map(|(name, _)| *name))?;
            "resize"
        }
        Step::Rotate {
            degrees,
            expand,
            center,
            sampling,
        } => {
            arguments.set_item("angle", degrees)?;
            arguments.set_item("expand", expand)?;
            arguments.set_item("center", center.map(|(x, y)| vec![x, y]))?;
            put_sampling(&sampling)?;
            "rotate"
        }
        Step::Affine {
            angle,
            translate,
            scale,
            shear,
            center,
            sampling,
        } => {
            arguments.set_item("angle", angle)?;
            arguments.set_item("translate", vec![translate.0 as i64, translate.1 as i64])?;
            arguments.set_item("scale", scale)?;
            arguments.set_item("shear", vec![shear.0, shear.1])?;
            arguments.set_item("center", center.map(|(x, y)| vec![x, y]))?;
            put_sampling(&sampling)?;
            "affine"
        }
        Step::Colour(op) => colour_described(op, &arguments)?,
    };
    Ok((name, arguments))
}

fn colour_described(op: ColourOp, arguments: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let (name, value) = colour_name(op);
    match op {
        ColourOp::GaussianBlur { kernel, sigma } => {
            arguments.set_item("kernel_size", vec![kernel.0, kernel.1])?;
            arguments.set_item("sigma", vec![sigma.0, sigma.1])?;
        }
        ColourOp::TorchBlur(BlurKey {
            kernel, version, ..
        }) => {
            arguments.set_item("kernel_size", vec![kernel.0, kernel.1])?;
            arguments.set_item("sigma", vec![value, value])?;
            arguments.set_item("version", version)?;
        }
        ColourOp::PillowBlur(radius) => arguments.set_item("radius", radius)?,
        ColourOp::Posterize(bits) => arguments.set_item("bits", bits)?,
        ColourOp::Solarize(threshold) => arguments.set_item("threshold", threshold)?,
        ColourOp::Grayscale => arguments.set_item("num_output_channels", 3)?,
        ColourOp::Dilate | ColourOp::Erode => arguments.set_item("size", 3)?,
        _ if !value.is_nan() => {
            let factor = format!("{}_factor", name.trim_start_matches("adjust_"));
            arguments.set_item(factor, value)?;
        }
        _ => {}
    }
    Ok(name)
}

#[pymethods]
impl Program {
    /// Compile `ops`, a list of (name, numbers, interpolation). With `fuse`, all consecutive geometric operations become one
    /// sampling; otherwise only those whose combination gives exactly the pixels of one operation after the other. With
    /// `dct_scale`, JPEGs that the first resize shrinks to half or less are decoded at reduced size. Raise ValueError with a
    /// message if `ops` is not valid.
    #[new]
    #[pyo3(signature = (ops, fuse=true, dct_scale=false))]
    fn new(
        py: Python<'_>,
        ops: Vec<(String, Vec<f64>, String)>,
        fuse: bool,
        dct_scale: bool,
    ) -> PyResult<Self> {
        guarded(py, || {
            let ops = ops
                .iter()
                .map(|(name, numbers, filter)| op(name, numbers, filter))
                .collect::<PyResult<Vec<_>>>()?;
            let fuse = if fuse { Fuse::Geometry } else { Fuse::Off };
            let inner = program::Program::new(ops, fuse).map_err(PyValueError::new_err)?;
            Ok(Program {
                inner: Arc::new(inner.with_dct_scale(dct_scale)),
            })
        })
    }

    /// Return the output (height, width) in pixels.
    #[getter]
    fn out(&self) -> (u32, u32) {
        self.inner.out()
    }

    /// Return the operations on an image of this size, in order, as (torchvision's functional name, its arguments). `dilate` and
    /// `erode`, which torchvision lacks, take a `size`, `pillow_blur` takes a `radius`, `torch_blur`
    /// also the `version` of torchvision. Raise ValueError if the image is too small.
    fn parameters<'py>(
        &self,
        py: Python<'py>,
        width: u32,
        height: u32,
        seed: u64,
        epoch: u64,
        draw: u64,
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        let refuse = |status: Status| PyValueError::new_err(status.message());
        guarded(py, || {
            let (mut size, mut steps) = (Size { width, height }, Vec::new());
            self.inner
                .draw(size, Key { seed, epoch, draw }, &mut steps)
                .map_err(refuse)?;
            let mut found = Vec::new();
            for step in &steps {
                found.push(described(py, step, size)?);
                size = step.size_after(size).map_err(refuse)?;
            }
            Ok(found)
        })
    }

    /// Return the operations on an image of this size as `parameters` does, with numbers drawn from `stream` as `plan` says, and the
    /// rectangles (x, y, w, h) that are erased in the result. Raise ValueError if the image is too small, or an exponential is not known.
    fn replayed<'py>(
        &self,
        py: Python<'py>,
        width: u32,
        height: u32,
        plan: &DrawPlan,
        stream: &Stream,
    ) -> PyResult<Replayed<'py>> {
        let refuse = |status: Status| PyValueError::new_err(status.message());
        let (mut size, mut steps, mut erased) = (Size { width, height }, Vec::new(), Vec::new());
        detached(py, || {
            stream.inner.draw(|source| {
                self.inner.replay(size, &plan.inner, source, &mut steps)?;
                let (height, width) = self.inner.out();
                for erasing in &plan.inner.erasings {
                    let rect = erasing.draw(Size { width, height }, source)?;
                    erased.extend(rect.map(|rect| (rect.x, rect.y, rect.w, rect.h)));
                }
                Ok(())
            })
        })?
        .map_err(refuse)?;
        let mut found = Vec::new();
        for step in &steps {
            found.push(described(py, step, size)?);
            size = step.size_after(size).map_err(refuse)?;
        }
        Ok((found, erased))
    }

    /// Return the colour operations on an image, in order, as (torchvision's functional name, factor).
    fn colours(
        &self,
        py: Python<'_>,
        seed: u64,
        epoch: u64,
        draw: u64,
    ) -> PyResult<Vec<(&'static str, f64)>> {
        guarded(py, || {
            let mut ops = Vec::new();
            self.inner.colours(Key { seed, epoch, draw }, &mut ops);
            Ok(ops.into_iter().map(colour_name).collect())
        })
    }

    /// Return the resampling of an image of this size: ((x, y, w, h) of the crop, (w, h) of the resized crop, (x, y, w, h) of the
    /// visible window, flip_x, flip_y). Raise ValueError if the image is too small, or takes more than one resampling.
    fn place(
        &self,
        py: Python<'_>,
        width: u32,
        height: u32,
        seed: u64,
        epoch: u64,
        draw: u64,
    ) -> PyResult<Resampling> {
        let (size, key) = (Size { width, height }, Key { seed, epoch, draw });
        let placed = detached(py, || self.inner.place(size, key))?
            .map_err(|status| PyValueError::new_err(status.message()))?;
        Ok(resampling(&placed.spec))
    }

    /// Return the first resampling of an image of this size, as `place` does, and the passes that follow it over an image of the
    /// output's size, as (name, numbers). Raise ValueError if the image is too small, or its passes cannot be split so.
    fn split(
        &self,
        py: Python<'_>,
        width: u32,
        height: u32,
        seed: u64,
        epoch: u64,
        draw: u64,
    ) -> PyResult<(Resampling, Vec<Pass>)> {
        let (size, key) = (Size { width, height }, Key { seed, epoch, draw });
        detached(py, || {
            let (placed, later) = self.inner.split(size, key, &mut Route::default())?;
            let (height, width) = self.inner.out();
            let mut passes = Vec::new();
            for pass in &later {
                passes::append(pass, (width, height), &mut passes)?;
            }
            Ok((resampling(&placed.spec), passes))
        })?
        .map_err(|status: Status| PyValueError::new_err(status.message()))
    }
}

/// The operations as (name, arguments), and the erased rectangles.
type Replayed<'py> = (
    Vec<(&'static str, Bound<'py, PyDict>)>,
    Vec<(u32, u32, u32, u32)>,
);

/// The crop, the size it is resized to, the visible window, and whether it is mirrored.
type Resampling = (
    (u32, u32, u32, u32),
    (u32, u32),
    (u32, u32, u32, u32),
    bool,
    bool,
);

fn resampling(spec: &ResizeSpec) -> Resampling {
    let (box_, window) = (spec.box_, spec.window);
    (
        (box_.x, box_.y, box_.w, box_.h),
        (spec.grid_w, spec.grid_h),
        (window.x, window.y, window.w, window.h),
        spec.flip_x,
        spec.flip_y,
    )
}
