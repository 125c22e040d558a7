//! Which SIMD instructions this processor has; kernels are chosen by it at run time, and tests loop over all of it.

use std::sync::OnceLock;

/// A family of vector instructions for which kernels exist. Ordered: each later one of an architecture includes the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extension {
    /// No vector instructions: the readable twin that defines every result.
    Scalar,
    /// x86-64 with AVX2 and FMA (Haswell 2013, Zen 2017).
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, VBMI and VNNI (Ice Lake 2019, Zen 4).
    Avx512,
}

impl Extension {
    /// Every extension that this processor can run, [`Extension::Scalar`] first, the fastest last.
    pub fn available() -> Vec<Extension> {
        let mut found = vec![Extension::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Extension::Avx2);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    found.push(Extension::Avx512);
                }
            }
        }
        found
    }

    /// The fastest extension of this processor (asked once, then remembered).
    pub fn best() -> Extension {
        static BEST: OnceLock<Extension> = OnceLock::new();
        *BEST.get_or_init(|| Extension::available().pop().unwrap_or(Extension::Scalar))
    }
}
