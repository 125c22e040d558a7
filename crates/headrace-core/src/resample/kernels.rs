//! The choice of the kernel of each pass, with its tables.

use super::coefficients::Weights;
use super::{scalar, Rows};
use crate::cpu::Extension;

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// The kernel of a pass, chosen when its tables are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kernel {
    #[default]
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// The horizontal pass: weights and the tables of the chosen kernel.
#[derive(Debug, Default)]
pub struct Horizontal {
    /// The weights, to be filled before [`Horizontal::prepare`].
    pub weights: Weights,
    kernel: Kernel,
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::Columns,
    #[cfg(target_arch = "x86_64")]
    avx512: avx512::Columns,
    #[cfg(target_arch = "aarch64")]
    neon: neon::Columns,
}

impl Horizontal {
    /// Make the tables for source rows of `source_bytes` bytes, for the fastest kernel up to `extension` that fits.
    pub fn prepare(&mut self, extension: Extension, source_bytes: usize) {
        self.kernel = Kernel::Scalar;
        #[cfg(target_arch = "x86_64")]
        if extension >= Extension::Avx512 && self.avx512.fill(&self.weights, source_bytes) {
            self.kernel = Kernel::Avx512;
        } else if extension >= Extension::Avx2 && self.avx2.fill(&self.weights, source_bytes) {
            self.kernel = Kernel::Avx2;
        }
        #[cfg(target_arch = "aarch64")]
        if extension == Extension::Neon && self.neon.fill(&self.weights, source_bytes) {
            self.kernel = Kernel::Neon;
        }
        let _ = (extension, source_bytes); // unused where no vector kernel exists
    }

    /// Run `count` rows of `source` from row `first` on, into rows of `output` that are `output_stride` bytes apart.
    pub fn run(
        &self,
        source: &Rows<'_>,
        first: usize,
        count: usize,
        output: &mut [u8],
        output_stride: usize,
    ) {
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => self.avx512.run(source, first, count, output, output_stride),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => self.avx2.run(source, first, count, output, output_stride),
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => self.neon.run(source, first, count, output, output_stride),
            Kernel::Scalar => {
                let row_bytes = self.weights.starts.len() * 3;
                for row in 0..count {
                    let output = &mut output[row * output_stride..][..row_bytes];
                    scalar::horizontal(&self.weights, source.from(first + row), output);
                }
            }
        }
    }
}

/// The vertical pass: weights and the tables of the chosen kernel.
#[derive(Debug, Default)]
pub struct Vertical {
    /// The weights, to be filled before [`Vertical::prepare`].
    pub weights: Weights,
    kernel: Kernel,
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::RowPairs,
    #[cfg(target_arch = "x86_64")]
    avx512: avx512::RowQuads,
}

impl Vertical {
    /// Make the tables for rows of `row_bytes` bytes, for the fastest kernel up to `extension` that fits.
    pub fn prepare(&mut self, extension: Extension, row_bytes: usize) {
        self.kernel = Kernel::Scalar;
        #[cfg(target_arch = "x86_64")]
        if extension >= Extension::Avx512 {
            self.avx512.fill(&self.weights);
            self.kernel = Kernel::Avx512;
        } else if extension >= Extension::Avx2 && row_bytes >= 32 && self.avx2.fill(&self.weights) {
            self.kernel = Kernel::Avx2;
        }
        #[cfg(target_arch = "aarch64")]
        if extension == Extension::Neon && row_bytes >= 16 {
            self.kernel = Kernel::Neon;
        }
        let _ = (extension, row_bytes); // unused where no vector kernel exists
    }

    /// Return the first source row that output row `row` reads, and the number of rows.
    pub fn span(&self, row: usize) -> (usize, usize) {
        (
            self.weights.starts[row] as usize,
            self.weights.counts[row] as usize,
        )
    }

    /// Compute output row `row`.
    pub fn run(&self, row: usize, source: &Rows<'_>, output: &mut [u8]) {
        let (start, count) = self.span(row);
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => self.avx512.run(row, source, start, count, output),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => self.avx2.run(row, source, start, count, output),
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => neon::vertical(&self.weights.of(row)[..count], source, start, output),
            Kernel::Scalar => {
                let weights = &self.weights.of(row)[..count];
                scalar::vertical(weights, source.from(start), source.stride, output);
            }
        }
    }
}
