//! Random numbers as a pure function of a key, so that augmentation does not depend on threads, ranks or resuming.

/// The key of a random draw: nothing else may influence the draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The loader's seed.
    pub seed: u64,
    /// The epoch number.
    pub epoch: u64,
    /// Which record of the dataset (or which position, where a sampler repeats records).
    pub draw: u64,
}

/// SplitMix64 (Steele, Lea, Flood 2014) started from a hashed key. It passes BigCrush; a stream here is a few dozen draws.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

/// Return the output of SplitMix64's finaliser for `z`.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Rng {
    /// Make the stream of operation number `op` of the pipeline under `key`.
    pub fn new(key: Key, op: u64) -> Self {
        let mut state = mix(key.seed.wrapping_add(GOLDEN));
        for part in [key.epoch, key.draw, op] {
            state = mix(state.wrapping_add(GOLDEN) ^ mix(part.wrapping_add(GOLDEN)));
        }
        Rng { state }
    }

    /// Return 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Return a number drawn uniformly from [0, 1), with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Return a number drawn uniformly from [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Return an integer drawn uniformly from 0..n (n ≥ 1), as the high half of a product: the bias is below 2⁻³² for any image
    /// size.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_every_part_of_the_key() {
        let key = Key {
            seed: 1,
            epoch: 2,
            draw: 3,
        };
        let first = |key, op| Rng::new(key, op).bits();
        let base = first(key, 0);
        assert_eq!(base, first(key, 0));
        for other in [
            Key { seed: 2, ..key },
            Key { epoch: 3, ..key },
            Key { draw: 4, ..key },
        ] {
            assert_ne!(base, first(other, 0));
        }
        assert_ne!(base, first(key, 1));
    }

    #[test]
    fn uniform_draws_have_the_right_mean_and_range() {
        let n = 20_000;
        let mut sum = 0.0;
        let mut counts = [0u32; 7];
        for draw in 0..n {
            let mut rng = Rng::new(
                Key {
                    seed: 0,
                    epoch: 0,
                    draw,
                },
                0,
            );
            let u = rng.unit();
            assert!((0.0..1.0).contains(&u));
            sum += u;
            counts[rng.below(7) as usize] += 1;
        }
        assert!((sum / n as f64 - 0.5).abs() < 0.01);
        // Expected 2857 each, standard deviation 49: six of those.
        assert!(
            counts
                .iter()
                .all(|&count| (i64::from(count) - 2857).abs() < 300),
            "{counts:?}"
        );
    }
}
