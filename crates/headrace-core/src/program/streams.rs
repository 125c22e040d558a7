//! The random streams of a process of a script: its generators, and what torch has computed of torch's next words.
//!
//! torch's exponential has no bits of its own that could be computed here: [`Exponentials`] holds those of the stream's next words.

use std::collections::VecDeque;

use crate::error::{Result, Status};
use crate::twister::{torch_uniform, Twister};

/// The generators of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streams {
    /// torch's default generator.
    pub torch: Twister,
    /// Python's `random`.
    pub python: Twister,
    /// NumPy's `numpy.random`.
    pub numpy: Twister,
}

impl Streams {
    /// Return how many words each stream has given: torch's, Python's, NumPy's.
    pub fn taken(&self) -> [u64; 3] {
        [self.torch.taken(), self.python.taken(), self.numpy.taken()]
    }

    /// Return the streams as they are after they have given these numbers of words in all.
    #[must_use]
    pub fn after(&self, taken: [u64; 3]) -> Self {
        let mut streams = self.clone();
        let [torch, python, numpy] = taken;
        streams.torch.skip(torch.saturating_sub(self.torch.taken()));
        streams
            .python
            .skip(python.saturating_sub(self.python.taken()));
        streams.numpy.skip(numpy.saturating_sub(self.numpy.taken()));
        streams
    }
}

/// torch's exponentials of the values of `uniform_` for the next words of its stream, for each of some ranges.
#[derive(Debug, Clone)]
pub struct Exponentials {
    ranges: Vec<(f32, f32)>,
    values: Vec<VecDeque<f32>>,
    first: u64,
    ahead: Twister,
}

impl Exponentials {
    /// Begin at the state of `torch`, knowing none. `ranges`: the bounds of `uniform_`.
    pub fn new(torch: &Twister, ranges: Vec<(f32, f32)>) -> Self {
        Exponentials {
            values: vec![VecDeque::new(); ranges.len()],
            ranges,
            first: torch.taken(),
            ahead: torch.clone(),
        }
    }

    /// Begin anew at the state of `torch`.
    pub fn restart(&mut self, torch: &Twister) {
        *self = Exponentials::new(torch, std::mem::take(&mut self.ranges));
    }

    /// Return whether there are ranges whose exponentials are needed.
    pub fn are_needed(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Return how many of the stream's words have been handed out by [`Exponentials::arguments`] in all.
    pub fn reach(&self) -> u64 {
        self.ahead.taken()
    }

    /// Return what torch must take the exponentials of next: the values of `count` words, for one range after the other.
    /// [`Exponentials::extend`] takes the results.
    pub fn arguments(&mut self, count: usize) -> Vec<f32> {
        let words: Vec<u32> = (0..count).map(|_| self.ahead.word()).collect();
        let values = |&(low, high): &(f32, f32)| {
            words
                .iter()
                .map(move |&word| torch_uniform(word, low, high))
                .collect::<Vec<_>>()
        };
        self.ranges.iter().flat_map(values).collect()
    }

    /// Add the exponentials of the values that [`Exponentials::arguments`] returned last.
    pub fn extend(&mut self, exponentials: &[f32]) {
        let count = exponentials.len() / self.ranges.len().max(1);
        for (known, new) in self
            .values
            .iter_mut()
            .zip(exponentials.chunks_exact(count.max(1)))
        {
            known.extend(new);
        }
    }

    /// Return the exponential for a word of the stream, by the number of the words before it. Forget those of earlier words.
    fn take(&mut self, range: usize, word: u64) -> Result<f32> {
        while self.first < word {
            self.first += 1;
            for known in &mut self.values {
                known.pop_front();
            }
        }
        let known = self.values.get(range).and_then(|known| known.front());
        known
            .copied()
            .filter(|_| self.first == word)
            .ok_or(Status::NotDrawn)
    }
}

/// What the numbers of an image come from.
pub struct Source<'a> {
    /// The generators.
    pub streams: &'a mut Streams,
    /// What torch has computed of its next words.
    pub exponentials: &'a mut Exponentials,
}

impl Source<'_> {
    /// Return torch's `exp(uniform_(…))` for a range.
    pub(super) fn exponential(&mut self, range: usize) -> Result<f32> {
        let word = self.streams.torch.taken();
        let value = self.exponentials.take(range, word)?;
        self.streams.torch.word();
        Ok(value)
    }
}
