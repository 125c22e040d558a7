//! RandAugment, TrivialAugmentWide and AutoAugment: the operations and their magnitudes, from torchvision 0.29
//! (`transforms/v2/_auto_augment.py`, `transforms/autoaugment.py`).

use super::step::{Sampling, Step};
use crate::colour::ColourOp;
use crate::geometry::Size;
use crate::rng::Rng;
use crate::twister::Twister;
use Kind::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Invert, Posterize, Rotate,
    Sharpness, ShearX, ShearY, Solarize, TranslateX, TranslateY,
};

/// An automatic augmentation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Augment {
    /// The policy.
    pub policy: Policy,
    /// Sampling of its rotations, shears and shifts.
    pub sampling: Sampling,
    /// The set of transforms whose rounding is used.
    pub generation: Generation,
}

/// torchvision's two sets of transforms, which round the magnitudes of solarize and posterize differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// `torchvision.transforms`.
    V1,
    /// `torchvision.transforms.v2`.
    V2,
}

/// Which operations are drawn, their number and magnitude.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// `RandAugment(num_ops, magnitude, num_magnitude_bins)`.
    Rand {
        /// Number of operations, applied one after the other.
        ops: u32,
        /// Magnitude bin of all operations.
        magnitude: u32,
        /// Number of bins.
        bins: u32,
    },
    /// `TrivialAugmentWide(num_magnitude_bins)`: one operation of a random bin.
    TrivialWide {
        /// Number of bins.
        bins: u32,
    },
    /// `AutoAugment(policy)`: one of the policy's pairs.
    Auto(&'static [[Part; 2]]),
}

/// An operation of an AutoAugment pair, its probability, and its bin of ten.
pub type Part = (Kind, f32, u32);

/// The operations by torchvision's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

/// The space of RandAugment and TrivialAugmentWide, in torchvision's order.
const SPACE: [Kind; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The magnitudes of the strongest bin.
struct Most {
    shear: f64,
    /// Shift in pixels, (x, y).
    translate: (f64, f64),
    rotate: f64,
    enhance: f64,
    /// Number of bits that posterize removes.
    posterize: f32,
}

impl Most {
    /// Those of TrivialAugmentWide.
    const WIDE: Most = Most {
        shear: 0.99,
        translate: (32.0, 32.0),
        rotate: 135.0,
        enhance: 0.99,
        posterize: 6.0,
    };

    /// Return those of RandAugment and AutoAugment for an image of `size`.
    fn of(size: Size) -> Self {
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        Most {
            shear: 0.3,
            translate: (150.0 / 331.0 * width, 150.0 / 331.0 * height),
            rotate: 30.0,
            enhance: 0.9,
            posterize: 4.0,
        }
    }
}

impl Augment {
    /// Return an error message if a number is out of range.
    pub fn check(&self) -> Result<(), String> {
        match self.policy {
            Policy::Rand {
                magnitude, bins, ..
            } if bins < 2 || magnitude >= bins => Err(format!(
                "a magnitude of {magnitude} in {bins} magnitude bins"
            )),
            Policy::TrivialWide { bins } if bins < 2 => Err(format!("{bins} magnitude bins")),
            _ => Ok(()),
        }
    }

    /// Append the steps that `rng` draws for an image of `size`.
    pub fn draw(&self, size: Size, rng: &mut Rng, steps: &mut Vec<Step>) {
        let most = Most::of(size);
        match self.policy {
            Policy::Rand {
                ops,
                magnitude,
                bins,
            } => {
                for _ in 0..ops {
                    let kind = SPACE[rng.below(SPACE.len() as u32) as usize];
                    self.push(kind, &most, (magnitude, bins), || rng.unit() <= 0.5, steps);
                }
            }
            Policy::TrivialWide { bins } => {
                let most = Most::WIDE;
                let kind = SPACE[rng.below(SPACE.len() as u32) as usize];
                let bin = rng.below(bins);
                self.push(kind, &most, (bin, bins), || rng.unit() <= 0.5, steps);
            }
            Policy::Auto(pairs) => {
                for (kind, probability, bin) in pairs[rng.below(pairs.len() as u32) as usize] {
                    if rng.unit() <= f64::from(probability) {
                        self.push(kind, &most, (bin, 10), || rng.unit() <= 0.5, steps);
                    }
                }
            }
        }
    }

    /// Append the steps of torchvision's own draws from torch's stream for an image of `size`.
    pub fn replay(&self, size: Size, torch: &mut Twister, steps: &mut Vec<Step>) {
        let most = Most::of(size);
        let second = self.generation == Generation::V2;
        let negative = |torch: &mut Twister| {
            if second {
                torch.torch_unit() <= 0.5
            } else {
                torch.torch_below(2) == 1
            }
        };
        let any = |torch: &mut Twister| SPACE[torch.torch_below(SPACE.len() as u32) as usize];
        match self.policy {
            Policy::Rand {
                ops,
                magnitude,
                bins,
            } => {
                for _ in 0..ops {
                    let kind = any(torch);
                    self.push(kind, &most, (magnitude, bins), || negative(torch), steps);
                }
            }
            Policy::TrivialWide { bins } => {
                let kind = any(torch);
                let bin = if matches!(kind, Identity | AutoContrast | Equalize) {
                    0
                } else {
                    torch.torch_below(bins)
                };
                self.push(kind, &Most::WIDE, (bin, bins), || negative(torch), steps);
            }
            Policy::Auto(pairs) => {
                let parts = pairs[torch.torch_below(pairs.len() as u32) as usize];
                if second {
                    for (kind, probability, bin) in parts {
                        if torch.torch_unit() <= probability {
                            self.push(kind, &most, (bin, 10), || negative(torch), steps);
                        }
                    }
                    return;
                }
                let units = [torch.torch_unit(), torch.torch_unit()];
                let signs = [torch.torch_below(2), torch.torch_below(2)];
                for (at, (kind, probability, bin)) in parts.into_iter().enumerate() {
                    if units[at] <= probability {
                        self.push(kind, &most, (bin, 10), || signs[at] == 0, steps);
                    }
                }
            }
        }
    }

    /// Return the largest number of words that [`Augment::replay`] takes from the stream.
    pub fn most_words(&self) -> u64 {
        match self.policy {
            Policy::Rand { ops, .. } => 2 * u64::from(ops),
            Policy::TrivialWide { .. } => 3,
            Policy::Auto(_) => 5,
        }
    }

    /// Append the step of one operation. `negative`: draw the sign of its magnitude.
    fn push(
        &self,
        kind: Kind,
        most: &Most,
        bin: (u32, u32),
        mut negative: impl FnMut() -> bool,
        steps: &mut Vec<Step>,
    ) {
        let mut signed = |most: f64| {
            let value = linspace(0.0, most, bin);
            if negative() {
                -value
            } else {
                value
            }
        };
        let affine = |translate: (f64, f64), shear: (f64, f64), center| Step::Affine {
            angle: 0.0,
            translate,
            scale: 1.0,
            shear,
            center,
            sampling: self.sampling,
        };
        let still = (0.0, 0.0);
        let slope = |value: f64| value.atan().to_degrees();
        let step = match kind {
            Identity => return,
            ShearX => affine(still, (slope(signed(most.shear)), 0.0), Some(still)),
            ShearY => affine(still, (0.0, slope(signed(most.shear))), Some(still)),
            TranslateX => affine((signed(most.translate.0).trunc(), 0.0), still, None),
            TranslateY => affine((0.0, signed(most.translate.1).trunc()), still, None),
            Rotate => Step::Rotate {
                degrees: signed(most.rotate),
                expand: false,
                center: None,
                sampling: self.sampling,
            },
            Brightness => Step::Colour(ColourOp::Brightness((1.0 + signed(most.enhance)) as f32)),
            Color => Step::Colour(ColourOp::Saturation((1.0 + signed(most.enhance)) as f32)),
            Contrast => Step::Colour(ColourOp::Contrast((1.0 + signed(most.enhance)) as f32)),
            Sharpness => Step::Colour(ColourOp::Sharpness((1.0 + signed(most.enhance)) as f32)),
            Posterize => {
                let taken = bin.0 as f32 / ((bin.1 - 1) as f32 / most.posterize);
                let bits = match self.generation {
                    Generation::V1 => 8.0 - taken.round_ties_even(),
                    Generation::V2 => (8.0 - taken).round_ties_even(),
                };
                Step::Colour(ColourOp::Posterize(bits as u8))
            }
            Solarize => {
                let threshold = match self.generation {
                    Generation::V1 => linspace(255.0, 0.0, bin),
                    Generation::V2 => 255.0 * linspace(1.0, 0.0, bin),
                };
                Step::Colour(ColourOp::Solarize(threshold.ceil() as u16))
            }
            AutoContrast => Step::Colour(ColourOp::Autocontrast),
            Equalize => Step::Colour(ColourOp::Equalize),
            Invert => Step::Colour(ColourOp::Invert),
        };
        steps.push(step);
    }
}

/// Return element `bin` of `torch.linspace(start, end, bins)`, which counts from both ends, in fused single precision.
fn linspace(start: f64, end: f64, (bin, bins): (u32, u32)) -> f64 {
    let (start, end) = (start as f32, end as f32);
    let step = (end - start) / (bins - 1) as f32;
    f64::from(if bin < bins / 2 {
        step.mul_add(bin as f32, start)
    } else {
        (-step).mul_add((bins - 1 - bin) as f32, end)
    })
}

/// AutoAugment's policy for ImageNet (Cubuk et al. 2019).
pub const IMAGENET: &[[Part; 2]] = &[
    [(Posterize, 0.4, 8), (Rotate, 0.6, 9)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
    [(Posterize, 0.6, 7), (Posterize, 0.6, 6)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Equalize, 0.4, 0), (Rotate, 0.8, 8)],
    [(Solarize, 0.6, 3), (Equalize, 0.6, 0)],
    [(Posterize, 0.8, 5), (Equalize, 1.0, 0)],
    [(Rotate, 0.2, 3), (Solarize, 0.6, 8)],
    [(Equalize, 0.6, 0), (Posterize, 0.4, 6)],
    [(Rotate, 0.8, 8), (Color, 0.4, 0)],
    [(Rotate, 0.4, 9), (Equalize, 0.6, 0)],
    [(Equalize, 0.0, 0), (Equalize, 0.8, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Rotate, 0.8, 8), (Color, 1.0, 2)],
    [(Color, 0.8, 8), (Solarize, 0.8, 7)],
    [(Sharpness, 0.4, 7), (Invert, 0.6, 0)],
    [(ShearX, 0.6, 5), (Equalize, 1.0, 0)],
    [(Color, 0.4, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
];

/// AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019).
pub const CIFAR10: &[[Part; 2]] = &[
    [(Invert, 0.1, 0), (Contrast, 0.2, 6)],
    [(Rotate, 0.7, 2), (TranslateX, 0.3, 9)],
    [(Sharpness, 0.8, 1), (Sharpness, 0.9, 3)],
    [(ShearY, 0.5, 8), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.5, 0), (Equalize, 0.9, 0)],
    [(ShearY, 0.2, 7), (Posterize, 0.3, 7)],
    [(Color, 0.4, 3), (Brightness, 0.6, 7)],
    [(Sharpness, 0.3, 9), (Brightness, 0.7, 9)],
    [(Equalize, 0.6, 0), (Equalize, 0.5, 0)],
    [(Contrast, 0.6, 7), (Sharpness, 0.6, 5)],
    [(Color, 0.7, 7), (TranslateX, 0.5, 8)],
    [(Equalize, 0.3, 0), (AutoContrast, 0.4, 0)],
    [(TranslateY, 0.4, 3), (Sharpness, 0.2, 6)],
    [(Brightness, 0.9, 6), (Color, 0.2, 8)],
    [(Solarize, 0.5, 2), (Invert, 0.0, 0)],
    [(Equalize, 0.2, 0), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.2, 0), (Equalize, 0.6, 0)],
    [(Color, 0.9, 9), (Equalize, 0.6, 0)],
    [(AutoContrast, 0.8, 0), (Solarize, 0.2, 8)],
    [(Brightness, 0.1, 3), (Color, 0.7, 0)],
    [(Solarize, 0.4, 5), (AutoContrast, 0.9, 0)],
    [(TranslateY, 0.9, 9), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.9, 0), (Solarize, 0.8, 3)],
    [(Equalize, 0.8, 0), (Invert, 0.1, 0)],
    [(TranslateY, 0.7, 9), (AutoContrast, 0.9, 0)],
];

/// AutoAugment's policy for SVHN (Cubuk et al. 2019).
pub const SVHN: &[[Part; 2]] = &[
    [(ShearX, 0.9, 4), (Invert, 0.2, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.6, 0), (Solarize, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (AutoContrast, 0.8, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.4, 0)],
    [(ShearY, 0.9, 5), (Solarize, 0.2, 6)],
    [(Invert, 0.9, 0), (AutoContrast, 0.8, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (Solarize, 0.3, 3)],
    [(ShearY, 0.8, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.9, 0), (TranslateY, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Contrast, 0.3, 3), (Rotate, 0.8, 4)],
    [(Invert, 0.8, 0), (TranslateY, 0.0, 2)],
    [(ShearY, 0.7, 6), (Solarize, 0.4, 8)],
    [(Invert, 0.6, 0), (Rotate, 0.8, 4)],
    [(ShearY, 0.3, 7), (TranslateX, 0.9, 3)],
    [(ShearX, 0.1, 6), (Invert, 0.6, 0)],
    [(Solarize, 0.7, 2), (TranslateY, 0.6, 7)],
    [(ShearY, 0.8, 4), (Invert, 0.8, 0)],
    [(ShearX, 0.7, 9), (TranslateY, 0.8, 3)],
    [(ShearY, 0.8, 5), (AutoContrast, 0.7, 0)],
    [(ShearX, 0.7, 2), (Invert, 0.1, 0)],
];
