//! Time per stage of the decoder, measured only with the feature `profile`. Without it every call does nothing.

/// The stages, in the order in which an image passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Header, markers, tables, layout.
    SetUp,
    /// Huffman decoding.
    Entropy,
    /// Dequantisation and inverse DCT.
    Transform,
    /// Upsampling, colour conversion, writing of pixels.
    Colour,
}

/// Nanoseconds per stage.
#[derive(Debug, Default)]
pub struct Profile {
    #[cfg(feature = "profile")]
    ns: [u64; 4],
    #[cfg(feature = "profile")]
    since: Option<std::time::Instant>,
}

impl Profile {
    /// Start the clock.
    #[inline(always)]
    pub fn start(&mut self) {
        #[cfg(feature = "profile")]
        {
            self.since = Some(std::time::Instant::now());
        }
    }

    /// Add the time since the last call to `stage`.
    #[inline(always)]
    pub fn lap(&mut self, stage: Stage) {
        let _ = stage;
        #[cfg(feature = "profile")]
        {
            let now = std::time::Instant::now();
            if let Some(since) = self.since.replace(now) {
                self.ns[stage as usize] += (now - since).as_nanos() as u64;
            }
        }
    }
}

#[cfg(feature = "profile")]
impl Profile {
    /// Return the nanoseconds of each [`Stage`] so far, in their order.
    pub fn ns(&self) -> [u64; 4] {
        self.ns
    }
}

#[cfg(feature = "profile")]
impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: u64 = self.ns.iter().sum();
        let share = |stage: Stage| 100.0 * self.ns[stage as usize] as f64 / total.max(1) as f64;
        write!(
            f,
            "set-up {:.1} %, entropy {:.1} %, transform {:.1} %, colour {:.1} % of {:.1} ms",
            share(Stage::SetUp),
            share(Stage::Entropy),
            share(Stage::Transform),
            share(Stage::Colour),
            total as f64 / 1e6
        )
    }
}
