//! The random streams of a process of the script, and how a pipeline draws from them.

use std::borrow::Cow;
use std::sync::Arc;

use headrace_core::engine;
use headrace_core::program::replay::{
    Arithmetic, Comparison, Decision, Draw, Erasing, Generator, Plan, Value,
};
use headrace_core::program::streams::Streams;
use headrace_core::twister::{Twister, WORDS};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::detach::{detached, guarded};
use crate::program::Program;

/// The bytes of one generator: the words of its state, and the number of those that were taken, each 4 bytes, little-endian.
const GENERATOR_BYTES: usize = 4 * (WORDS + 1);

/// Return the states of torch's, Python's and NumPy's generator, one after the other.
pub fn to_bytes(streams: &Streams) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * GENERATOR_BYTES);
    for twister in [&streams.torch, &streams.python, &streams.numpy] {
        let (words, next) = twister.state();
        for word in words.iter().copied().chain([next as u32]) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> PyResult<Streams> {
    let wrong = || PyValueError::new_err("these are no states of three generators");
    if bytes.len() != 3 * GENERATOR_BYTES {
        return Err(wrong());
    }
    let mut found = bytes.chunks_exact(GENERATOR_BYTES).map(|state| {
        let mut numbers = state
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let words = std::array::from_fn(|_| numbers.next().unwrap_or_default());
        Twister::new(words, numbers.next().unwrap_or_default() as usize)
    });
    let mut next = || found.next().flatten().ok_or_else(wrong);
    Ok(Streams {
        torch: next()?,
        python: next()?,
        numpy: next()?,
    })
}

/// The random streams of one process of the script: its generators of torch, Python and NumPy, in a state.
#[pyclass(frozen, module = "headrace._native")]
pub struct Stream {
    pub inner: Arc<engine::Stream>,
}

#[pymethods]
impl Stream {
    /// Make a stream in a state: 624 words and the number of taken words of torch's, Python's and NumPy's generator, uint32,
    /// little-endian. `ranges`: the ranges of torch's `uniform_` whose exponentials the plans need. Raise ValueError for other states.
    #[new]
    fn new(py: Python<'_>, state: &[u8], ranges: Vec<(f32, f32)>) -> PyResult<Self> {
        guarded(py, || {
            Ok(Stream {
                inner: Arc::new(engine::Stream::new(from_bytes(state)?, ranges)),
            })
        })
    }

    /// Return the state as it is now.
    fn state(&self, py: Python<'_>) -> PyResult<Cow<'static, [u8]>> {
        guarded(py, || Ok(Cow::Owned(to_bytes(&self.inner.streams()))))
    }

    /// Return what torch must take the exponentials of, so that those of `words` more words of its stream are known: float32, one range
    /// after the other. None if they are; otherwise those of `ahead` further words are among them. `extend` takes the results.
    fn arguments(
        &self,
        py: Python<'_>,
        words: u64,
        ahead: u64,
    ) -> PyResult<Option<Cow<'static, [u8]>>> {
        let found = detached(py, || self.inner.arguments(words, ahead))?;
        let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok((!bytes.is_empty()).then_some(Cow::Owned(bytes)))
    }

    /// Take the exponentials, float32, of what `arguments` returned last.
    fn extend(&self, py: Python<'_>, exponentials: &[u8]) -> PyResult<()> {
        let values: Vec<f32> = exponentials
            .chunks_exact(4)
            .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
            .collect();
        detached(py, || self.inner.extend(&values))
    }

    /// Begin anew in a state. Images of batches that have joined draw nothing any more.
    fn restart(&self, py: Python<'_>, state: &[u8]) -> PyResult<()> {
        let streams = from_bytes(state)?;
        detached(py, || self.inner.restart(streams))
    }
}

/// How the numbers of a pipeline are drawn.
#[pyclass(frozen, module = "headrace._native")]
pub struct DrawPlan {
    pub inner: Arc<Plan>,
}

/// The numbers of a decision, the range of the area, the number of the range of exponentials, the bytes of each channel.
type ErasingTuple = (Vec<f64>, (f32, f32), usize, [Vec<u8>; 3]);

#[pymethods]
impl DrawPlan {
    /// Make a plan: for each operation of a program (name, numbers), then what erases parts of the finished image. Raise ValueError for
    /// unknown names and numbers.
    #[new]
    fn new(
        py: Python<'_>,
        draws: Vec<(String, Vec<f64>)>,
        erasings: Vec<ErasingTuple>,
    ) -> PyResult<Self> {
        guarded(py, || {
            let draws = draws
                .iter()
                .map(|(name, numbers)| draw(name, numbers))
                .collect::<PyResult<_>>()?;
            let erasings = erasings
                .into_iter()
                .map(|(numbers, scale, range, value)| {
                    Ok(Erasing {
                        decision: decision(&numbers)?,
                        scale,
                        range,
                        value,
                    })
                })
                .collect::<PyResult<_>>()?;
            Ok(DrawPlan {
                inner: Arc::new(Plan { draws, erasings }),
            })
        })
    }

    /// Return the largest number of words that an image takes from torch's stream under a program.
    fn most_words(&self, py: Python<'_>, program: &Program) -> PyResult<u64> {
        guarded(py, || Ok(self.inner.most_words(&program.inner)))
    }

    /// Whether nothing is drawn.
    #[getter]
    fn is_fixed(&self) -> bool {
        self.inner.is_fixed()
    }
}

fn wrong(name: &str) -> PyErr {
    PyValueError::new_err(format!("the numbers of the draw {name:?} do not fit it"))
}

fn draw(name: &str, numbers: &[f64]) -> PyResult<Draw> {
    Ok(match (name, numbers) {
        ("fixed", []) => Draw::Fixed,
        ("torch", []) => Draw::Torch,
        ("torch_crop", &[range]) => Draw::TorchCrop(range as usize),
        ("python_crop", &[low, high]) => Draw::PythonCrop((low, high)),
        ("random_crop", &[version]) => Draw::RandomCrop(version == 2.0),
        ("affine", &[shears]) => Draw::Affine(shears as u32),
        ("decision", numbers) => Draw::Decision(decision(numbers)?),
        ("value", numbers) => Draw::Value(value(numbers)?),
        _ => return Err(wrong(name)),
    })
}

/// Read a decision: generator, comparison (0 <, 1 <=, 2 >, 3 >=), limit, arithmetic.
fn decision(numbers: &[f64]) -> PyResult<Decision> {
    let [generator, comparison, limit, arithmetic @ ..] = numbers else {
        return Err(wrong("decision"));
    };
    Ok(Decision {
        value: value(&[&[*generator], arithmetic].concat())?,
        comparison: match *comparison as u32 {
            0 => Comparison::Less,
            1 => Comparison::LessOrEqual,
            2 => Comparison::Greater,
            3 => Comparison::GreaterOrEqual,
            _ => return Err(wrong("decision")),
        },
        limit: *limit,
    })
}

/// Read a value: generator (0 torch, 1 Python, 2 NumPy), then pairs of an operation (0 +, 1 −, 2 − reversed, 3 ·, 4 /) and its number.
fn value(numbers: &[f64]) -> PyResult<Value> {
    let Some((generator, arithmetic)) = numbers.split_first() else {
        return Err(wrong("value"));
    };
    let (pairs, rest) = arithmetic.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong("value"));
    }
    let step = |&[operation, number]: &[f64; 2]| {
        Ok(match operation as u32 {
            0 => Arithmetic::Add(number),
            1 => Arithmetic::Subtract(number),
            2 => Arithmetic::SubtractFrom(number),
            3 => Arithmetic::Multiply(number),
            4 => Arithmetic::Divide(number),
            _ => return Err(wrong("value")),
        })
    };
    Ok(Value {
        generator: match *generator as u32 {
            0 => Generator::Torch,
            1 => Generator::Python,
            2 => Generator::Numpy,
            _ => return Err(wrong("value")),
        },
        arithmetic: pairs.iter().map(step).collect::<PyResult<_>>()?,
    })
}
