//! The numbers that a script's own transforms draw, drawn natively: from streams in the state of the script's generators, in the
//! order and with the arithmetic of the library whose transform it is.
//!
//! torchvision (0.19 to 0.29) draws from torch's generator in single precision, timm (1.0) from Python's, code of scripts from
//! Python's or NumPy's. The numbers come
//! from [`super::streams`].

use super::op::Op;
use super::sizes;
use super::step::Step;
use super::streams::{Source, Streams};
use crate::colour::draw::{ColourStep, Range};
use crate::colour::torch_blur::BlurKey;
use crate::colour::ColourOp;
use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::twister::Twister;

/// A generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generator {
    /// torch's.
    Torch,
    /// Python's.
    Python,
    /// NumPy's.
    Numpy,
}

/// One operation of arithmetic on a number that was drawn, in double precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arithmetic {
    /// number + value
    Add(f64),
    /// number − value
    Subtract(f64),
    /// value − number
    SubtractFrom(f64),
    /// number · value
    Multiply(f64),
    /// number / value
    Divide(f64),
}

/// A number that code draws between 0 and 1, and what the code computes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The generator.
    pub generator: Generator,
    /// The operations, in order.
    pub arithmetic: Vec<Arithmetic>,
}

impl Value {
    fn draw(&self, streams: &mut Streams) -> f64 {
        let drawn = match self.generator {
            Generator::Torch => f64::from(streams.torch.torch_unit()),
            Generator::Python => streams.python.unit(),
            Generator::Numpy => streams.numpy.unit(),
        };
        let compute = |number, step: &Arithmetic| match *step {
            Arithmetic::Add(value) => number + value,
            Arithmetic::Subtract(value) => number - value,
            Arithmetic::SubtractFrom(value) => value - number,
            Arithmetic::Multiply(value) => number * value,
            Arithmetic::Divide(value) => number / value,
        };
        self.arithmetic.iter().fold(drawn, compute)
    }
}

/// How a number is compared with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The decision whether an operation is applied: a number that is drawn, compared with a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The number.
    pub value: Value,
    /// The comparison.
    pub comparison: Comparison,
    /// The limit.
    pub limit: f64,
}

impl Decision {
    fn draw(&self, streams: &mut Streams) -> bool {
        let (drawn, limit) = (self.value.draw(streams), self.limit);
        match self.comparison {
            Comparison::Less => drawn < limit,
            Comparison::LessOrEqual => drawn <= limit,
            Comparison::Greater => drawn > limit,
            Comparison::GreaterOrEqual => drawn >= limit,
        }
    }
}

/// How the numbers of one operation are drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Draw {
    /// It draws none.
    Fixed,
    /// torchvision's `RandomResizedCrop`: the number of the range of its exponentials.
    TorchCrop(usize),
    /// timm's `RandomResizedCropAndInterpolation`: the logarithms of its ratios.
    PythonCrop((f64, f64)),
    /// `RandomCrop` of torchvision's first or second (true) transforms.
    RandomCrop(bool),
    /// torchvision's `RandomAffine`: the number of axes along which it draws a shear.
    Affine(u32),
    /// Another operation of torchvision, which draws from torch's generator in one way.
    Torch,
    /// Whether the operation is applied.
    Decision(Decision),
    /// The operation's one number.
    Value(Value),
}

impl Draw {
    /// Return whether an operation with a probability is applied.
    pub(super) fn decide(&self, source: &mut Source<'_>) -> Result<bool> {
        match self {
            Draw::Fixed => Ok(true),
            Draw::Decision(decision) => Ok(decision.draw(source.streams)),
            _ => Err(Status::NotDrawn),
        }
    }

    /// Return the largest number of words that this takes from torch's stream for `op`.
    fn most_words(&self, op: &Op) -> u64 {
        match (self, op) {
            (Draw::TorchCrop(_), _) => MOST_CROP_WORDS,
            (Draw::RandomCrop(_), _) => 2,
            (Draw::Affine(shears), _) => 4 + u64::from(*shears),
            (Draw::Torch, Op::Augment(augment)) => augment.most_words(),
            (Draw::Torch, _) => 7, // ColorJitter: a permutation of four and four factors
            (Draw::Decision(_) | Draw::Value(_), _) => 1,
            _ => 0,
        }
    }
}

/// Ten attempts of two numbers each, and a position.
const MOST_CROP_WORDS: u64 = 22;

/// torchvision's `RandomErasing` with fixed values, on a finished image.
#[derive(Debug, Clone, PartialEq)]
pub struct Erasing {
    /// Whether the image is erased.
    pub decision: Decision,
    /// Range of the erased share of the area.
    pub scale: (f32, f32),
    /// The number of the range of its exponentials.
    pub range: usize,
    /// The bytes of the value of each channel in the batch.
    pub value: [Vec<u8>; 3],
}

impl Erasing {
    /// Draw the rectangle that is erased in an image of `size`, if one is.
    pub fn draw(&self, size: Size, source: &mut Source<'_>) -> Result<Option<Rect>> {
        if !self.decision.draw(source.streams) {
            return Ok(None);
        }
        let Size { width, height } = size;
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let (low, high) = self.scale;
            let target = area * f64::from(source.streams.torch.torch_uniform(low, high));
            let aspect = f64::from(source.exponential(self.range)?);
            let h = (target * aspect).sqrt().round_ties_even();
            let w = (target / aspect).sqrt().round_ties_even();
            if h < f64::from(height) && w < f64::from(width) {
                let (w, h) = (w as u32, h as u32);
                let y = source.streams.torch.torch_below(height - h + 1);
                let x = source.streams.torch.torch_below(width - w + 1);
                return Ok(Some(Rect::new(x, y, w, h)));
            }
        }
        Ok(None)
    }
}

/// How the numbers of a pipeline are drawn: for each of its operations, and for what erases parts of the finished image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// One for each operation of the program.
    pub draws: Vec<Draw>,
    /// In order.
    pub erasings: Vec<Erasing>,
}

impl Plan {
    /// Return the largest number of words that an image takes from torch's stream under `program`.
    pub fn most_words(&self, program: &super::Program) -> u64 {
        let draws = self.draws.iter().zip(&program.ops);
        draws.map(|(draw, op)| draw.most_words(op)).sum::<u64>()
            + self.erasings.len() as u64 * (MOST_CROP_WORDS + 1)
    }

    /// Return whether nothing is drawn.
    pub fn is_fixed(&self) -> bool {
        self.erasings.is_empty() && self.draws.iter().all(|draw| *draw == Draw::Fixed)
    }
}

impl Op {
    /// Append the steps for an image of `size`, with the numbers that the script's own transform draws.
    pub(super) fn replay(
        &self,
        size: Size,
        draw: &Draw,
        source: &mut Source<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        match (self, draw) {
            (
                Op::RandomResizedCrop {
                    size: out,
                    scale,
                    ratio,
                    filters,
                },
                _,
            ) => {
                let rect = match draw {
                    Draw::TorchCrop(range) => torch_crop(size, *scale, *ratio, *range, source)?,
                    Draw::PythonCrop(logarithms) => python_crop(
                        size,
                        *scale,
                        *ratio,
                        *logarithms,
                        &mut source.streams.python,
                    ),
                    _ => return Err(Status::NotDrawn),
                };
                if rect.w == 0 || rect.h == 0 {
                    return Err(Status::BadBox);
                }
                let [x, y, w, h] = [rect.x, rect.y, rect.w, rect.h].map(i64::from);
                steps.push(Step::Crop {
                    x,
                    y,
                    w,
                    h,
                    fill: [0; 3],
                });
                let filter = filters.choose(|count| source.streams.python.python_below(count));
                steps.push(Step::Resize { size: *out, filter });
            }
            (
                Op::RandomCrop {
                    size: out,
                    padding,
                    pad_if_needed,
                },
                Draw::RandomCrop(second),
            ) => {
                let torch = &mut source.streams.torch;
                steps.push(random_crop(
                    size,
                    *out,
                    *padding,
                    *pad_if_needed,
                    *second,
                    torch,
                )?);
            }
            (Op::FlipX { .. }, _) => steps.extend(draw.decide(source)?.then_some(Step::FlipX)),
            (Op::FlipY { .. }, _) => steps.extend(draw.decide(source)?.then_some(Step::FlipY)),
            (
                Op::RandomRotation {
                    degrees,
                    expand,
                    center,
                    sampling,
                },
                Draw::Torch,
            ) => steps.push(Step::Rotate {
                degrees: uniform(&mut source.streams.torch, *degrees),
                expand: *expand,
                center: *center,
                sampling: *sampling,
            }),
            (Op::RandomAffine { .. }, Draw::Affine(shears)) => {
                steps.extend(self.replay_affine(size, *shears, &mut source.streams.torch));
            }
            (Op::Augment(augment), Draw::Torch) => {
                augment.replay(size, &mut source.streams.torch, steps)
            }
            (Op::Colour(step), _) => return self.replay_colour(step, size, draw, source, steps),
            (
                Op::ResizeExact { .. }
                | Op::ResizeShort { .. }
                | Op::CenterCrop { .. }
                | Op::Pad { .. },
                Draw::Fixed,
            ) => {
                return self.fixed(size, steps);
            }
            _ => return Err(Status::NotDrawn),
        }
        Ok(())
    }

    fn replay_affine(&self, size: Size, shears: u32, torch: &mut Twister) -> Option<Step> {
        let Op::RandomAffine {
            degrees,
            translate,
            scale,
            shear,
            center,
            sampling,
        } = *self
        else {
            return None;
        };
        let angle = uniform(torch, degrees);
        let mut shift = |most: f64| uniform(torch, (-most, most)).round_ties_even();
        let translate = translate.map_or((0.0, 0.0), |(x, y)| {
            (
                shift(x * f64::from(size.width)),
                shift(y * f64::from(size.height)),
            )
        });
        let scale = scale.map_or(1.0, |scale| uniform(torch, scale));
        let mut sheared = |axis: u32| {
            if axis < shears {
                uniform(torch, shear[axis as usize])
            } else {
                0.0
            }
        };
        let shear = (sheared(0), sheared(1));
        Some(Step::Affine {
            angle,
            translate,
            scale,
            shear,
            center,
            sampling,
        })
    }

    fn replay_colour(
        &self,
        step: &ColourStep,
        size: Size,
        draw: &Draw,
        source: &mut Source<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        let mut push = |op| steps.push(Step::Colour(op));
        match (*step, draw) {
            (ColourStep::Sometimes { op, .. }, _) => {
                if draw.decide(source)? {
                    push(op);
                }
            }
            (
                ColourStep::TorchBlur {
                    kernel,
                    sigma,
                    version,
                },
                Draw::Torch,
            ) => {
                self.require_room(size)?;
                let sigma = source
                    .streams
                    .torch
                    .torch_uniform(sigma.0 as f32, sigma.1 as f32)
                    .to_bits();
                push(ColourOp::TorchBlur(BlurKey {
                    kernel,
                    sigma,
                    version,
                }));
            }
            (ColourStep::PillowBlur { .. }, Draw::Value(value)) => {
                push(ColourOp::PillowBlur(value.draw(source.streams) as f32));
            }
            (ColourStep::PillowBlur { radius }, Draw::Fixed) if radius.0 == radius.1 => {
                push(ColourOp::PillowBlur(radius.0 as f32));
            }
            (
                ColourStep::Jitter {
                    brightness,
                    contrast,
                    saturation,
                    hue,
                },
                Draw::Torch,
            ) => {
                let torch = &mut source.streams.torch;
                let order = torch.torch_permutation::<4>();
                let mut factor = |range: Range| {
                    range.map(|(low, high)| torch.torch_uniform(low as f32, high as f32))
                };
                let drawn = [
                    factor(brightness).map(ColourOp::Brightness),
                    factor(contrast).map(ColourOp::Contrast),
                    factor(saturation).map(ColourOp::Saturation),
                    factor(hue).map(|share| ColourOp::Hue(f64::from(share))),
                ];
                order
                    .iter()
                    .filter_map(|&which| drawn[which])
                    .for_each(push);
            }
            _ => return Err(Status::NotDrawn),
        }
        Ok(())
    }
}

/// Return torch's `uniform_` between bounds that torch rounds to single precision.
fn uniform(torch: &mut Twister, (low, high): (f64, f64)) -> f64 {
    f64::from(torch.torch_uniform(low as f32, high as f32))
}

fn torch_crop(
    size: Size,
    scale: (f64, f64),
    ratio: (f64, f64),
    range: usize,
    source: &mut Source<'_>,
) -> Result<Rect> {
    let area = f64::from(size.width) * f64::from(size.height);
    for _ in 0..10 {
        let target = area * uniform(&mut source.streams.torch, scale);
        let aspect = f64::from(source.exponential(range)?);
        let (w, h) = sides(target, aspect);
        if 0.0 < w && w <= f64::from(size.width) && 0.0 < h && h <= f64::from(size.height) {
            let (w, h) = (w as u32, h as u32);
            let y = source.streams.torch.torch_below(size.height - h + 1);
            let x = source.streams.torch.torch_below(size.width - w + 1);
            return Ok(Rect::new(x, y, w, h));
        }
    }
    Ok(central_crop(size, ratio))
}

fn python_crop(
    size: Size,
    scale: (f64, f64),
    ratio: (f64, f64),
    logarithms: (f64, f64),
    python: &mut Twister,
) -> Rect {
    let area = f64::from(size.width) * f64::from(size.height);
    let between =
        |python: &mut Twister, (low, high): (f64, f64)| low + (high - low) * python.unit();
    for _ in 0..10 {
        let target = between(python, scale) * area;
        let aspect = between(python, logarithms).exp();
        let (w, h) = sides(target, aspect);
        if w <= f64::from(size.width) && h <= f64::from(size.height) {
            let (w, h) = (w as u32, h as u32);
            let y = python.python_below(size.height - h + 1);
            let x = python.python_below(size.width - w + 1);
            return Rect::new(x, y, w, h);
        }
    }
    central_crop(size, ratio)
}

/// Return width and height of a rectangle of this area and ratio, rounded as Python rounds.
fn sides(area: f64, aspect: f64) -> (f64, f64) {
    (
        (area * aspect).sqrt().round_ties_even(),
        (area / aspect).sqrt().round_ties_even(),
    )
}

/// Return the crop after ten attempts; a side of 0 if torchvision's has one.
fn central_crop(size: Size, ratio: (f64, f64)) -> Rect {
    let found = sizes::central_crop(size, ratio);
    let image_ratio = f64::from(size.width) / f64::from(size.height);
    let is_none = (image_ratio < ratio.0
        && (f64::from(size.width) / ratio.0).round_ties_even() < 1.0)
        || (image_ratio > ratio.1 && (f64::from(size.height) * ratio.1).round_ties_even() < 1.0);
    if is_none {
        Rect::new(0, 0, 0, 0)
    } else {
        found
    }
}

/// Replay torchvision's `RandomCrop`: y is drawn first. The first transforms draw both or none, the second each if it is needed.
fn random_crop(
    size: Size,
    (h, w): (u32, u32),
    padding: [u32; 4],
    pad_if_needed: bool,
    second: bool,
    torch: &mut Twister,
) -> Result<Step> {
    let (w, h) = (i64::from(w), i64::from(h));
    let [left, top, right, bottom] = padding.map(i64::from);
    let padded = (
        i64::from(size.width) + left + right,
        i64::from(size.height) + top + bottom,
    );
    let grow = ((w - padded.0).max(0), (h - padded.1).max(0));
    if grow != (0, 0) && !pad_if_needed {
        return Err(Status::BadBox);
    }
    let free = (padded.0 + 2 * grow.0 - w, padded.1 + 2 * grow.1 - h);
    let mut below = |free: i64, drawn: bool| {
        if drawn {
            i64::from(torch.torch_below(free as u32 + 1))
        } else {
            0
        }
    };
    let both = free != (0, 0);
    let y = below(free.1, if second { free.1 > 0 } else { both });
    let x = below(free.0, if second { free.0 > 0 } else { both });
    Ok(Step::Crop {
        x: x - grow.0 - left,
        y: y - grow.1 - top,
        w,
        h,
        fill: [0; 3],
    })
}
