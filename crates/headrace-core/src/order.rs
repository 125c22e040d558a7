//! The order of an epoch, computed: the record at any position, without a list of the epoch in memory.

use crate::rng::{mix, GOLDEN};

const ROUNDS: usize = 6;

/// Return a 64-bit hash of integers, the same on every machine.
pub fn hashed(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, &part| {
        mix(state.wrapping_add(GOLDEN).wrapping_add(part))
    })
}

/// A pseudo-random permutation of 0..size: a six-round Feistel network over the next even power of two, restricted to the range
/// by cycle walking (Black and Rogaway 2002).
#[derive(Debug, Clone)]
pub struct Permutation {
    size: u64,
    half: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Make the permutation of 0..size under `key`.
    pub fn new(size: u64, key: u64) -> Self {
        let bits = 64 - size.saturating_sub(1).max(1).leading_zeros();
        Permutation {
            size,
            half: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|round| hashed(&[key, round as u64])),
        }
    }

    /// Return the image of `position` under the permutation; `None` if `position` is not below the size.
    pub fn get(&self, position: u64) -> Option<u64> {
        if position >= self.size {
            return None;
        }
        let mask = (1u64 << self.half) - 1;
        let mut value = position;
        // The loop ends: the network permutes a range less than four times as large, so the walk returns to its start, in range.
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mix(right ^ key) & mask));
            }
            value = (left << self.half) | right;
            if value < self.size {
                return Some(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_permuted() {
        for size in (1..70).chain([255, 256, 257, 4095, 4097]) {
            let permutation = Permutation::new(size, 42);
            let mut seen: Vec<u64> = (0..size)
                .filter_map(|position| permutation.get(position))
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..size).collect::<Vec<_>>());
            assert_eq!(permutation.get(size), None);
        }
        assert_eq!(Permutation::new(0, 1).get(0), None);
    }

    #[test]
    fn the_largest_range_is_walked_without_overflow() {
        let permutation = Permutation::new(1 << 62, 7);
        for position in [0, 1, (1 << 62) - 1] {
            assert!(permutation.get(position).is_some());
        }
    }
}
