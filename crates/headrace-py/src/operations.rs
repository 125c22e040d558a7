//! The operations of a pipeline: one row each, from which the reading of a Python value, its checks and its description follow.
//!
//! Python gives an operation as (name, values by field). `python/headrace/transforms/native_operations.py` makes them of transforms.

use headrace_core::colour::draw::{ColourStep, Range};
use headrace_core::colour::neighbours::MAX_KERNEL;
use headrace_core::colour::pillow_blur::MAX_RADIUS;
use headrace_core::colour::ColourOp;
use headrace_core::program::augment::{Augment, Generation, Policy};
use headrace_core::program::filters::Filters;
use headrace_core::program::op::Op;
use headrace_core::program::step::Sampling;
use headrace_core::resample::Filter;
use headrace_core::warp::Interpolation;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::values::{Kind, Pairs, Value};

/// What an operation may do to an image.
#[derive(Clone, Copy)]
enum Effect {
    /// Cut, resize, pad or mirror.
    Moves,
    /// Rotate or shear.
    Turns,
    /// Change values of pixels.
    Colours,
    /// Rotate, shear, or change values of pixels.
    Augments,
    /// What the operations after it do.
    Groups,
}

/// A field of an operation.
struct Field {
    name: &'static str,
    kind: Kind,
    /// How many numbers.
    count: usize,
    is_optional: bool,
    choices: fn() -> Vec<&'static str>,
    /// The least and the largest number.
    range: Option<(f64, f64)>,
}

/// A row of [`OPERATIONS`].
struct Operation {
    name: &'static str,
    effect: Effect,
    fields: &'static [Field],
    make: fn(&Given<'_, '_>) -> PyResult<Op>,
}

/// The largest number of pixels along a side, or of a border.
const MOST_PIXELS: u32 = u32::MAX;

/// Declare [`OPERATIONS`]: `name Effect { field in [least, most]: type, … } => expression of the fields;`.
macro_rules! operations {
    ($($name:ident $effect:ident {
        $($field:ident $(in [$least:expr, $most:expr])?: $type:ty),* $(,)?
    } => $op:expr;)*) => {
        /// All operations.
        const OPERATIONS: &[Operation] = &[$(Operation {
            name: stringify!($name),
            effect: Effect::$effect,
            fields: &[$(operations!(field $field, $type $(, $least, $most)?)),*],
            make: |given| {
                $(let $field: $type = given.take(&operations!(field $field, $type $(, $least, $most)?))?;)*
                Ok($op)
            },
        }),*];
    };
    (field $field:ident, $type:ty $(, $least:expr, $most:expr)?) => {
        Field {
            name: stringify!($field),
            kind: <$type as Value>::KIND,
            count: <$type as Value>::COUNT,
            is_optional: <$type as Value>::OPTIONAL,
            choices: <$type as Value>::choices,
            range: operations!(range $($least, $most)?),
        }
    };
    (range $least:expr, $most:expr) => { Some(($least as f64, $most as f64)) };
    (range) => { None };
}

operations! {
    random_resized_crop Moves {
        size in [1, MOST_PIXELS]: (u32, u32), scale: (f64, f64), ratio: (f64, f64), interpolation: Filters
    } => Op::RandomResizedCrop { size, scale, ratio, filters: interpolation };
    resize_exact Moves {
        size in [1, MOST_PIXELS]: (u32, u32), interpolation: Filter
    } => Op::ResizeExact { size, filter: interpolation };
    resize_short Moves {
        size in [1, MOST_PIXELS]: u32, max_size in [1, MOST_PIXELS]: Option<u32>, interpolation: Filter
    } => Op::ResizeShort { short: size, max: max_size.unwrap_or(0), filter: interpolation };
    center_crop Moves { size in [1, MOST_PIXELS]: (u32, u32) } => Op::CenterCrop { size };
    random_crop Moves {
        size in [1, MOST_PIXELS]: (u32, u32), padding in [0, MOST_PIXELS]: [u32; 4], pad_if_needed: bool
    } => Op::RandomCrop { size, padding, pad_if_needed };
    pad Moves { padding in [0, MOST_PIXELS]: [u32; 4], fill in [0, 255]: [u8; 3] } => Op::Pad { padding, fill };
    flip_x Moves { p in [0, 1]: f64 } => Op::FlipX { p };
    flip_y Moves { p in [0, 1]: f64 } => Op::FlipY { p };
    rotation Turns {
        degrees: (f64, f64),
        expand: bool,
        center: Option<(f64, f64)>,
        fill in [0, 255]: [u8; 3],
        interpolation: Interpolation,
    } => Op::RandomRotation { degrees, expand, center, sampling: Sampling { interpolation, fill } };
    affine Turns {
        degrees: (f64, f64),
        translate in [0, 1]: Option<(f64, f64)>,
        scale: Option<(f64, f64)>,
        shear: [f64; 4],
        center: Option<(f64, f64)>,
        fill in [0, 255]: [u8; 3],
        interpolation: Interpolation,
    } => Op::RandomAffine {
        degrees,
        translate,
        scale,
        shear: [(shear[0], shear[1]), (shear[2], shear[3])],
        center,
        sampling: Sampling { interpolation, fill },
    };
    apply Groups { p in [0, 1]: f64, count in [0, u32::MAX]: u32 } => Op::Apply { p, count };
    rand_augment Augments {
        num_ops in [0, 1000]: u32,
        magnitude in [0, (1 << 20) - 1]: u32,
        num_magnitude_bins in [2, 1 << 20]: u32,
        version in [1, 2]: u8,
        fill in [0, 255]: [u8; 3],
        interpolation: Interpolation,
    } => augment(
        Policy::Rand { ops: num_ops, magnitude, bins: num_magnitude_bins },
        version,
        Sampling { interpolation, fill },
    );
    trivial_augment_wide Augments {
        num_magnitude_bins in [2, 1 << 20]: u32,
        version in [1, 2]: u8,
        fill in [0, 255]: [u8; 3],
        interpolation: Interpolation,
    } => augment(Policy::TrivialWide { bins: num_magnitude_bins }, version, Sampling { interpolation, fill });
    auto_augment Augments {
        policy: Pairs, version in [1, 2]: u8, fill in [0, 255]: [u8; 3], interpolation: Interpolation
    } => augment(Policy::Auto(policy.0), version, Sampling { interpolation, fill });
    color_jitter Colours {
        brightness in [0, f32::MAX]: Range,
        contrast in [0, f32::MAX]: Range,
        saturation in [0, f32::MAX]: Range,
        hue in [-0.5, 0.5]: Range,
    } => Op::Colour(ColourStep::Jitter { brightness, contrast, saturation, hue });
    grayscale Colours { p in [0, 1]: f64 } => sometimes(p, ColourOp::Grayscale);
    blur Colours {
        kernel_size in [1, MAX_KERNEL]: (u16, u16), sigma: (f64, f64)
    } => Op::Colour(ColourStep::Blur { kernel: kernel_size, sigma });
    pillow_blur Colours { radius in [0, MAX_RADIUS]: (f64, f64) } => Op::Colour(ColourStep::PillowBlur { radius });
    torch_blur Colours {
        kernel_size in [1, MAX_KERNEL]: (u16, u16), sigma: (f64, f64), version in [1, 2]: u8
    } => Op::Colour(ColourStep::TorchBlur { kernel: kernel_size, sigma, version });
    invert Colours { p in [0, 1]: f64 } => sometimes(p, ColourOp::Invert);
    posterize Colours { p in [0, 1]: f64, bits in [1, 8]: u8 } => sometimes(p, ColourOp::Posterize(bits));
    // Values below the threshold stay, so a threshold between two levels is rounded up.
    solarize Colours {
        p in [0, 1]: f64, threshold in [0, 256]: f64
    } => sometimes(p, ColourOp::Solarize(threshold.ceil() as u16));
    autocontrast Colours { p in [0, 1]: f64 } => sometimes(p, ColourOp::Autocontrast);
    equalize Colours { p in [0, 1]: f64 } => sometimes(p, ColourOp::Equalize);
    sharpness Colours {
        p in [0, 1]: f64, sharpness_factor in [0, f64::MAX]: f64
    } => sometimes(p, ColourOp::Sharpness(sharpness_factor as f32));
    dilate Colours { radius in [1, MAX_KERNEL / 2]: u32 } => Op::Colour(ColourStep::Morphology { dilate: true, radius });
    erode Colours { radius in [1, MAX_KERNEL / 2]: u32 } => Op::Colour(ColourStep::Morphology { dilate: false, radius });
}

fn augment(policy: Policy, version: u8, sampling: Sampling) -> Op {
    Op::Augment(Augment {
        policy,
        generation: if version == 1 {
            Generation::V1
        } else {
            Generation::V2
        },
        sampling,
    })
}

fn sometimes(p: f64, op: ColourOp) -> Op {
    Op::Colour(ColourStep::Sometimes { p, op })
}

/// The values of one operation.
struct Given<'a, 'py> {
    operation: &'static Operation,
    values: &'a Bound<'py, PyDict>,
}

impl Given<'_, '_> {
    /// Return the value of a field. Raise ValueError, naming operation and field, for one that is missing or does not fit.
    fn take<T: Value>(&self, field: &Field) -> PyResult<T> {
        let Some(value) = self.values.get_item(field.name)? else {
            return Err(self.refused(&format!("{} is missing", field.name)));
        };
        let fits = |read: &T| field.range.is_none_or(|range| read.within(range));
        T::read(&value).filter(fits).ok_or_else(|| {
            let text = value.repr().map(|text| text.to_string_lossy().into_owned());
            self.refused(&format!(
                "{} must be {}, not {}",
                field.name,
                field.wanted(),
                text.unwrap_or_else(|_| "that".into())
            ))
        })
    }

    fn refused(&self, why: &str) -> PyErr {
        PyValueError::new_err(format!("{}: {why}", self.operation.name))
    }
}

impl Field {
    /// Return what the field accepts, in words.
    fn wanted(&self) -> String {
        let what = match (self.kind, self.count) {
            (Kind::Flag, _) => "True or False".into(),
            (Kind::Choice, _) => format!("one of {}", (self.choices)().join(", ")),
            (Kind::Filters, _) => format!("some of {}", (self.choices)().join(", ")),
            (Kind::Integer, 1) => "an int".into(),
            (Kind::Number, 1) => "a number".into(),
            (Kind::Integer, count) => format!("{count} ints"),
            (Kind::Number, count) => format!("{count} numbers"),
        };
        let range = self.range.map(|(least, most)| {
            if most < f64::from(f32::MAX) {
                format!(" from {least} to {most}")
            } else {
                format!(" from {least} to {most:e}")
            }
        });
        let none = if self.is_optional { " or None" } else { "" };
        format!("{what}{}{none}", range.unwrap_or_default())
    }
}

/// Return the operation of a name and its values. Raise ValueError for unknown names, and values that are missing or do not fit.
pub fn op(name: &str, values: &Bound<'_, PyDict>) -> PyResult<Op> {
    let Some(operation) = OPERATIONS.iter().find(|one| one.name == name) else {
        return Err(PyValueError::new_err(format!("no operation {name:?}")));
    };
    let given = Given { operation, values };
    let made = (operation.make)(&given)?;
    if values.len() > operation.fields.len() {
        let known: Vec<_> = operation.fields.iter().map(|field| field.name).collect();
        return Err(given.refused(&format!("there are only {}", known.join(", "))));
    }
    Ok(made)
}

/// Name, kind, count, whether None is a value, the choices, the least and the largest number.
type FieldTuple = (
    &'static str,
    &'static str,
    usize,
    bool,
    Vec<&'static str>,
    Option<(f64, f64)>,
);

/// Return the operations that a `Program` takes: name, effect ("moves", "turns", "colours", "augments", "groups"), and fields as
/// (name, kind, count of numbers, whether None is a value, choices, range). Kinds are "flag", "integer", "number", "choice", "filters".
#[pyfunction]
pub fn operation_schema() -> Vec<(&'static str, &'static str, Vec<FieldTuple>)> {
    let field = |field: &Field| {
        (
            field.name,
            field.kind.word(),
            field.count,
            field.is_optional,
            (field.choices)(),
            field.range,
        )
    };
    let row = |one: &Operation| {
        let effect = match one.effect {
            Effect::Moves => "moves",
            Effect::Turns => "turns",
            Effect::Colours => "colours",
            Effect::Augments => "augments",
            Effect::Groups => "groups",
        };
        (one.name, effect, one.fields.iter().map(field).collect())
    };
    OPERATIONS.iter().map(row).collect()
}
