//! The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), in the state of a generator of torch, Python or NumPy.
//!
//! The three make numbers of its words in ways of their own: torch in single precision, Python and NumPy in double.

/// The number of words of a state.
pub const WORDS: usize = 624;

const SHIFT: usize = 397;

/// A generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twister {
    words: [u32; WORDS],
    next: usize,
    taken: u64,
}

impl Twister {
    /// Make a generator from the words of its state and the number of those that were taken; `None` if there are not so many.
    pub fn new(words: [u32; WORDS], next: usize) -> Option<Self> {
        (next <= WORDS).then_some(Twister {
            words,
            next,
            taken: 0,
        })
    }

    /// Return the words of the state, and the number of those that were taken.
    pub fn state(&self) -> (&[u32; WORDS], usize) {
        (&self.words, self.next)
    }

    /// Return how many words this object has given.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Give `count` words to nobody.
    pub fn skip(&mut self, count: u64) {
        for _ in 0..count {
            self.word();
        }
    }

    /// Return the next 32 bits.
    pub fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.renew();
        }
        let mut word = self.words[self.next];
        self.next += 1;
        self.taken += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn renew(&mut self) {
        for at in 0..WORDS {
            let joined =
                (self.words[at] & 0x8000_0000) | (self.words[(at + 1) % WORDS] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.words[at] = self.words[(at + SHIFT) % WORDS] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// Return the value of torch's `rand` on the CPU in single precision: 24 bits, at least 0 and below 1.
    pub fn torch_unit(&mut self) -> f32 {
        torch_unit(self.word())
    }

    /// Return the value of torch's `uniform_(low, high)` on the CPU in single precision.
    pub fn torch_uniform(&mut self, low: f32, high: f32) -> f32 {
        torch_uniform(self.word(), low, high)
    }

    /// Return the value of torch's `randint(count)` on the CPU, `count` at least 1.
    pub fn torch_below(&mut self, count: u32) -> u32 {
        self.word() % count
    }

    /// Return the values of torch's `randperm(N)` on the CPU.
    pub fn torch_permutation<const N: usize>(&mut self) -> [usize; N] {
        let mut order = std::array::from_fn(|at| at);
        for at in 0..N.saturating_sub(1) {
            order.swap(at, at + self.torch_below((N - at) as u32) as usize);
        }
        order
    }

    /// Return the value of Python's and NumPy's `random.random()`: 53 bits, at least 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// Return the value of Python's `random.randrange(count)`, `count` at least 1.
    pub fn python_below(&mut self, count: u32) -> u32 {
        let bits = u32::BITS - count.leading_zeros();
        loop {
            let drawn = self.word() >> (u32::BITS - bits);
            if drawn < count {
                return drawn;
            }
        }
    }
}

fn torch_unit(word: u32) -> f32 {
    (word & 0x00ff_ffff) as f32 * (1.0 / 16_777_216.0)
}

/// Return what torch's `uniform_` makes of a word: the product is exact in double precision, the sum is rounded twice.
pub fn torch_uniform(word: u32, low: f32, high: f32) -> f32 {
    (f64::from(torch_unit(word)) * f64::from(high - low) + f64::from(low)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state that the seed 5489 gives, as the authors' `init_genrand` computes it.
    fn seeded() -> Twister {
        let mut words = [5489u32; WORDS];
        for at in 1..WORDS {
            let last = words[at - 1];
            words[at] = 1_812_433_253u32
                .wrapping_mul(last ^ (last >> 30))
                .wrapping_add(at as u32);
        }
        Twister::new(words, WORDS).expect("a state")
    }

    #[test]
    fn words_are_those_of_the_standard() {
        // C++11, [rand.predef]: the 10,000th word of a default-constructed mt19937.
        let mut twister = seeded();
        twister.skip(9_999);
        assert_eq!(twister.word(), 4_123_659_995);
        assert_eq!(twister.taken(), 10_000);
    }

    #[test]
    fn a_state_continues_where_it_was_taken() {
        let mut one = seeded();
        one.skip(700);
        let (words, next) = one.state();
        let mut other = Twister::new(*words, next).expect("a state");
        assert_eq!(other.word(), one.word());
        assert!(Twister::new([0; WORDS], WORDS + 1).is_none());
    }

    #[test]
    fn numbers_lie_in_their_ranges() {
        let mut twister = seeded();
        for count in 1..2000 {
            assert!(twister.torch_below(count) < count);
            assert!(twister.python_below(count) < count);
            assert!((0.0..1.0).contains(&twister.unit()));
            assert!((0.5..=2.0).contains(&twister.torch_uniform(0.5, 2.0)));
            let mut order = twister.torch_permutation::<4>();
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
    }
}
