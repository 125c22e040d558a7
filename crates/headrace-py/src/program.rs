//! Pipelines for Python, which passes them as lists of operations (`operations.rs`).

use std::sync::Arc;

use headrace_core::colour::{Argument, ColourOp};
use headrace_core::error::Status;
use headrace_core::geometry::Size;
use headrace_core::program;
use headrace_core::program::route::{Fuse, Route};
use headrace_core::program::step::{Sampling, Step};
use headrace_core::resample::ResizeSpec;
use headrace_core::rng::Key;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::detach::{detached, guarded};
use crate::operations::op;
use crate::passes::{self, Pass};
use crate::stream::{DrawPlan, Stream};
use crate::values::FILTERS;

/// A compiled pipeline.
#[pyclass(frozen, module = "headrace._native")]
pub struct Program {
    pub inner: Arc<program::Program>,
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

/// Put the arguments of a colour operation into `arguments`, and return torchvision's functional name.
fn colour_described(op: ColourOp, arguments: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let mut put = Ok(());
    let name = op.describe(|name, argument| {
        let set = match argument {
            Argument::Number(number) => arguments.set_item(name, number),
            Argument::Numbers(numbers) => arguments.set_item(name, numbers.to_vec()),
            Argument::Integer(number) => arguments.set_item(name, number),
            Argument::Integers(numbers) => arguments.set_item(name, numbers.to_vec()),
        };
        if let Err(error) = set {
            put = Err(error);
        }
    });
    put.map(|()| name)
}

#[pymethods]
impl Program {
    /// Compile `ops`, a list of operations, each (name, values by field): `operation_schema` says which there are. With `fuse`, all
    /// consecutive geometric operations become one sampling; otherwise only those whose combination gives exactly the pixels of one
    /// operation after the other. With `dct_scale`, JPEGs that the first resize shrinks to half or less are decoded at reduced size. With
    /// `scale_depth`, gray of 16 bits is scaled to 8 bits, else clipped at 255.
    /// Raise ValueError with a message if `ops` is not valid.
    #[new]
    #[pyo3(signature = (ops, fuse=true, dct_scale=false, scale_depth=false))]
    fn new(
        py: Python<'_>,
        ops: Vec<(String, Bound<'_, PyDict>)>,
        fuse: bool,
        dct_scale: bool,
        scale_depth: bool,
    ) -> PyResult<Self> {
        guarded(py, || {
            let ops = ops
                .iter()
                .map(|(name, values)| op(name, values))
                .collect::<PyResult<Vec<_>>>()?;
            let fuse = if fuse { Fuse::Geometry } else { Fuse::Off };
            let inner = program::Program::new(ops, fuse).map_err(PyValueError::new_err)?;
            Ok(Program {
                inner: Arc::new(
                    inner
                        .with_dct_scale(dct_scale)
                        .with_scale_depth(scale_depth),
                ),
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
