//! Which instruction set the kernels use; chosen once at run time, settable in tests.

/// A set of instructions with kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extension {
    /// Plain code: the truth for the others.
    Scalar,
    /// AVX2 (x86-64).
    Avx2,
    /// AVX-512 F, BW and VBMI (x86-64).
    Avx512,
}

impl Extension {
    /// Every extension this machine has, plain code first.
    pub fn available() -> Vec<Extension> {
        let mut found = vec![Extension::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
            found.push(Extension::Avx2);
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vbmi");
            if avx512 {
                found.push(Extension::Avx512);
            }
        }
        found
    }

    /// The best one.
    pub fn best() -> Extension {
        Extension::available()
            .last()
            .copied()
            .unwrap_or(Extension::Scalar)
    }
}
