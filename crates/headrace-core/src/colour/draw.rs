//! Random colour operations as data, drawn with torchvision's algorithms.

use super::neighbours::MAX_KERNEL;
use super::pillow_blur::MAX_RADIUS;
use super::torch_blur::BlurKey;
use super::ColourOp;
use crate::rng::Rng;

/// The range from which a factor is drawn uniformly; `None` omits the operation.
pub type Range = Option<(f64, f64)>;

/// One random step of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ColourStep {
    /// `ColorJitter`: the four operations in a random order, each with a factor from its range.
    Jitter {
        /// `adjust_brightness`, factors of 0 or more.
        brightness: Range,
        /// `adjust_contrast`, factors of 0 or more.
        contrast: Range,
        /// `adjust_saturation`, factors of 0 or more.
        saturation: Range,
        /// `adjust_hue`, turns from -0.5 to 0.5.
        hue: Range,
    },
    /// One operation with fixed parameters, with a probability: `RandomGrayscale`, `RandomInvert` and so on.
    Sometimes {
        /// Probability.
        p: f64,
        /// The operation.
        op: ColourOp,
    },
    /// `GaussianBlur`, the same sigma across and down.
    Blur {
        /// Kernel width and height in pixels, odd.
        kernel: (u16, u16),
        /// Range of sigma in pixels.
        sigma: (f64, f64),
    },
    /// Pillow's `ImageFilter.GaussianBlur`.
    PillowBlur {
        /// Range of the radius in pixels.
        radius: (f64, f64),
    },
    /// torchvision's `GaussianBlur` with torch's own weights.
    TorchBlur {
        /// Kernel width and height in pixels, odd.
        kernel: (u16, u16),
        /// Range of sigma in pixels.
        sigma: (f64, f64),
        /// See [`BlurKey::version`].
        version: u8,
    },
    /// The largest or smallest value of a square neighbourhood: a 3 × 3 filter, repeated `radius` times.
    Morphology {
        /// True for the largest value, false for the smallest.
        dilate: bool,
        /// Distance from the centre to the edge of the neighbourhood in pixels: 1 for 3 × 3.
        radius: u32,
    },
}

impl ColourStep {
    /// Return an error message if a parameter is out of range.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, range: Range, least: f64, most: f64| match range {
            Some((low, high)) if !(least <= low && low <= high && high <= most) => {
                Err(format!("a {name} range of ({low}, {high})"))
            }
            _ => Ok(()),
        };
        match *self {
            ColourStep::Jitter {
                brightness,
                contrast,
                saturation,
                hue,
            } => {
                within("brightness", brightness, 0.0, f64::from(f32::MAX))?;
                within("contrast", contrast, 0.0, f64::from(f32::MAX))?;
                within("saturation", saturation, 0.0, f64::from(f32::MAX))?;
                within("hue", hue, -0.5, 0.5)
            }
            ColourStep::Sometimes { p, op } => {
                within("probability", Some((p, p)), 0.0, 1.0)?;
                if op.fits(usize::MAX, usize::MAX) {
                    Ok(())
                } else {
                    Err(format!("{op:?}"))
                }
            }
            ColourStep::Blur { kernel, sigma } | ColourStep::TorchBlur { kernel, sigma, .. } => {
                let odd = |side: u16| side % 2 == 1 && usize::from(side) <= MAX_KERNEL;
                if !odd(kernel.0) || !odd(kernel.1) {
                    return Err(format!(
                        "a blur kernel of {}×{}: sides must be odd and at most {MAX_KERNEL}",
                        kernel.0, kernel.1
                    ));
                }
                within("sigma", Some(sigma), f64::MIN_POSITIVE, f64::from(f32::MAX))
            }
            ColourStep::PillowBlur { radius } => {
                within("radius", Some(radius), 0.0, f64::from(MAX_RADIUS))
            }
            ColourStep::Morphology { radius, .. } if !(1..=64).contains(&radius) => {
                Err(format!("a neighbourhood of {}", 2 * u64::from(radius) + 1))
            }
            ColourStep::Morphology { .. } => Ok(()),
        }
    }

    /// Call `give` with each operation that `rng` draws, in order. Factors are rounded to single precision, as torch draws them.
    pub fn draw_each(&self, rng: &mut Rng, mut give: impl FnMut(ColourOp)) {
        match *self {
            ColourStep::Sometimes { p, op } => {
                if rng.unit() < p {
                    give(op);
                }
            }
            ColourStep::Blur { kernel, sigma } => {
                let sigma = rng.uniform(sigma.0, sigma.1) as f32;
                give(ColourOp::GaussianBlur {
                    kernel,
                    sigma: (sigma, sigma),
                });
            }
            ColourStep::TorchBlur {
                kernel,
                sigma,
                version,
            } => {
                let sigma = (rng.uniform(sigma.0, sigma.1) as f32).to_bits();
                give(ColourOp::TorchBlur(BlurKey {
                    kernel,
                    sigma,
                    version,
                }));
            }
            ColourStep::PillowBlur { radius } => {
                give(ColourOp::PillowBlur(rng.uniform(radius.0, radius.1) as f32));
            }
            ColourStep::Morphology { dilate, radius } => {
                for _ in 0..radius {
                    give(if dilate {
                        ColourOp::Dilate
                    } else {
                        ColourOp::Erode
                    });
                }
            }
            ColourStep::Jitter {
                brightness,
                contrast,
                saturation,
                hue,
            } => {
                let mut order = [0, 1, 2, 3];
                for last in (1..order.len()).rev() {
                    order.swap(last, rng.below(last as u32 + 1) as usize);
                }
                let mut factor =
                    |range: Range| range.map(|(low, high)| rng.uniform(low, high) as f32);
                let drawn = [
                    factor(brightness).map(ColourOp::Brightness),
                    factor(contrast).map(ColourOp::Contrast),
                    factor(saturation).map(ColourOp::Saturation),
                    factor(hue).map(|share| ColourOp::Hue(f64::from(share))),
                ];
                for op in order.iter().filter_map(|&which| drawn[which]) {
                    give(op);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Key;

    fn drawn(step: ColourStep, draw: u64) -> Vec<ColourOp> {
        let mut ops = Vec::new();
        let key = Key {
            seed: 3,
            epoch: 1,
            draw,
        };
        step.draw_each(&mut Rng::new(key, 2), |op| ops.push(op));
        ops
    }

    #[test]
    fn factors_lie_in_their_ranges_and_every_order_occurs() {
        let step = ColourStep::Jitter {
            brightness: Some((0.6, 1.4)),
            contrast: Some((0.5, 1.5)),
            saturation: Some((0.0, 2.0)),
            hue: Some((-0.1, 0.2)),
        };
        assert!(step.check().is_ok());
        let mut orders = std::collections::HashMap::new();
        let mut sum = 0.0;
        for draw in 0..4800 {
            let ops = drawn(step, draw);
            let names: Vec<u8> = ops
                .iter()
                .map(|op| match *op {
                    ColourOp::Brightness(factor) => {
                        assert!((0.6..=1.4).contains(&factor));
                        sum += f64::from(factor);
                        0
                    }
                    ColourOp::Contrast(factor) => {
                        assert!((0.5..=1.5).contains(&factor));
                        1
                    }
                    ColourOp::Saturation(factor) => {
                        assert!((0.0..=2.0).contains(&factor));
                        2
                    }
                    ColourOp::Hue(share) => {
                        assert!((-0.1..=0.2001).contains(&share));
                        3
                    }
                    _ => panic!("{op:?}"),
                })
                .collect();
            *orders.entry(names).or_insert(0) += 1;
        }
        assert_eq!(orders.len(), 24);
        // 200 expected each; standard deviation 13.8.
        assert!(
            orders.values().all(|&count| (130..=270).contains(&count)),
            "{orders:?}"
        );
        assert!((sum / 4800.0 - 1.0).abs() < 0.02);
    }

    #[test]
    fn omitted_operations_are_not_drawn() {
        let step = ColourStep::Jitter {
            brightness: None,
            contrast: Some((2.0, 2.0)),
            saturation: None,
            hue: None,
        };
        assert_eq!(drawn(step, 5), [ColourOp::Contrast(2.0)]);
        let grey: usize = (0..1000)
            .map(|draw| {
                drawn(
                    ColourStep::Sometimes {
                        p: 0.2,
                        op: ColourOp::Grayscale,
                    },
                    draw,
                )
                .len()
            })
            .sum();
        assert!((140..=260).contains(&grey), "{grey}");
    }

    #[test]
    fn ranges_are_checked() {
        let hue = |range| ColourStep::Jitter {
            brightness: None,
            contrast: None,
            saturation: None,
            hue: Some(range),
        };
        for (step, words) in [
            (hue((-0.6, 0.1)), "hue"),
            (hue((0.2, 0.1)), "hue"),
            (hue((f64::NAN, 0.1)), "hue"),
            (
                ColourStep::Sometimes {
                    p: 1.5,
                    op: ColourOp::Grayscale,
                },
                "probability",
            ),
        ] {
            let error = step.check().expect_err("out of range");
            assert!(error.contains(words), "{error}");
        }
    }
}
