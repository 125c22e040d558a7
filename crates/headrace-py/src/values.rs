//! The values that Python gives for the fields of an operation, and what a field accepts.

use headrace_core::program::augment::{Part, CIFAR10, IMAGENET, SVHN};
use headrace_core::program::filters::Filters;
use headrace_core::resample::Filter;
use headrace_core::warp::Interpolation;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub const FILTERS: [(&str, Filter); 8] = [
    ("nearest", Filter::Nearest),
    ("box", Filter::Box),
    ("bilinear", Filter::Bilinear),
    ("hamming", Filter::Hamming),
    ("bicubic", Filter::Bicubic),
    ("lanczos", Filter::Lanczos),
    ("bilinear-int16", Filter::BilinearInt16),
    ("bicubic-int16", Filter::BicubicInt16),
];

/// The interpolations of operations that rotate or shear. Pillow's bicubic is for lazy images only.
const INTERPOLATIONS: [(&str, Interpolation); 2] = [
    ("nearest", Interpolation::Nearest),
    ("bilinear", Interpolation::Bilinear),
];

/// The pairs of operations of AutoAugment.
#[derive(Clone, Copy)]
pub struct Pairs(pub &'static [[Part; 2]]);

const PAIRS: [(&str, Pairs); 3] = [
    ("imagenet", Pairs(IMAGENET)),
    ("cifar10", Pairs(CIFAR10)),
    ("svhn", Pairs(SVHN)),
];

/// Return the filter by torchvision's name.
pub fn filter(name: &str) -> PyResult<Filter> {
    named(&FILTERS, name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "no resampling filter {name:?}; there are {}",
            FILTERS.map(|(known, _)| known).join(", ")
        ))
    })
}

fn named<T: Copy>(table: &[(&'static str, T)], name: &str) -> Option<T> {
    let found = table.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// True or false.
    Flag,
    /// Whole numbers.
    Integer,
    /// Any numbers.
    Number,
    /// One of several words.
    Choice,
    /// One resampling filter or more, by name.
    Filters,
}

impl Kind {
    /// Return the word for it that Python reads.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Flag => "flag",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Choice => "choice",
            Kind::Filters => "filters",
        }
    }
}

/// A type that a field may have.
pub trait Value: Sized {
    const KIND: Kind;
    /// How many numbers: one value, or a tuple of several.
    const COUNT: usize = 1;
    /// Whether None is a value.
    const OPTIONAL: bool = false;

    /// Return the words to choose from.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    /// Convert a Python value; `None` if it is another kind of value.
    fn read(given: &Bound<'_, PyAny>) -> Option<Self>;

    /// Return whether all numbers lie in a range, its ends included.
    fn within(&self, _range: (f64, f64)) -> bool {
        true
    }
}

/// A type of number.
pub trait Number: Copy + Into<f64> + for<'py> FromPyObjectOwned<'py> {
    const KIND: Kind;
}

impl Number for u8 {
    const KIND: Kind = Kind::Integer;
}

impl Number for u16 {
    const KIND: Kind = Kind::Integer;
}

impl Number for u32 {
    const KIND: Kind = Kind::Integer;
}

impl Number for f64 {
    const KIND: Kind = Kind::Number;
}

impl<T: Number> Value for T {
    const KIND: Kind = <T as Number>::KIND;

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        given.extract().ok()
    }

    fn within(&self, (least, most): (f64, f64)) -> bool {
        (least..=most).contains(&(*self).into())
    }
}

impl<T: Number, const N: usize> Value for [T; N] {
    const KIND: Kind = <T as Number>::KIND;
    const COUNT: usize = N;

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        given.extract::<Vec<T>>().ok()?.try_into().ok()
    }

    fn within(&self, range: (f64, f64)) -> bool {
        self.iter().all(|number| number.within(range))
    }
}

impl<T: Number> Value for (T, T) {
    const KIND: Kind = <T as Number>::KIND;
    const COUNT: usize = 2;

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        <[T; 2]>::read(given).map(Into::into)
    }

    fn within(&self, range: (f64, f64)) -> bool {
        self.0.within(range) && self.1.within(range)
    }
}

impl<T: Value> Value for Option<T> {
    const KIND: Kind = T::KIND;
    const COUNT: usize = T::COUNT;
    const OPTIONAL: bool = true;

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        if given.is_none() {
            Some(None)
        } else {
            T::read(given).map(Some)
        }
    }

    fn within(&self, range: (f64, f64)) -> bool {
        self.as_ref().is_none_or(|value| value.within(range))
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Flag;

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        given.extract().ok()
    }
}

fn word(given: &Bound<'_, PyAny>) -> Option<String> {
    given.extract().ok()
}

impl Value for Filter {
    const KIND: Kind = Kind::Choice;

    fn choices() -> Vec<&'static str> {
        names(&FILTERS)
    }

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        named(&FILTERS, &word(given)?)
    }
}

impl Value for Filters {
    const KIND: Kind = Kind::Filters;

    fn choices() -> Vec<&'static str> {
        names(&FILTERS)
    }

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        let given: Vec<String> = given.extract().ok()?;
        let found: Option<Vec<_>> = given.iter().map(|name| named(&FILTERS, name)).collect();
        Filters::new(&found?)
    }
}

impl Value for Interpolation {
    const KIND: Kind = Kind::Choice;

    fn choices() -> Vec<&'static str> {
        names(&INTERPOLATIONS)
    }

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        named(&INTERPOLATIONS, &word(given)?)
    }
}

impl Value for Pairs {
    const KIND: Kind = Kind::Choice;

    fn choices() -> Vec<&'static str> {
        names(&PAIRS)
    }

    fn read(given: &Bound<'_, PyAny>) -> Option<Self> {
        named(&PAIRS, &word(given)?)
    }
}
