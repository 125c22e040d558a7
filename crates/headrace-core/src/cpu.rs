//! The SIMD instructions of this processor. Kernels are chosen by them at run time; tests loop over all that are available.

use std::sync::OnceLock;

/// A family of vector instructions for which kernels exist. Ordered: each later one of an architecture includes the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extension {
    /// No vector instructions: the readable reference that defines every result.
    Scalar,
    /// x86-64 with AVX2, FMA, BMI, LZCNT and POPCNT (Haswell 2013, Zen 2017).
    Avx2,
    /// x86-64 with AVX-512 F, BW, CD, DQ, VL, VBMI, VBMI2 and VNNI (Ice Lake 2019, Zen 4).
    Avx512,
    /// aarch64 with NEON, which every such processor has.
    Neon,
}

impl Extension {
    /// Return every extension that this processor can run, [`Extension::Scalar`] first, the fastest last.
    pub fn available() -> Vec<Extension> {
        [
            Extension::Scalar,
            Extension::Avx2,
            Extension::Avx512,
            Extension::Neon,
        ]
        .into_iter()
        .filter(|extension| extension.is_available())
        .collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Extension::Scalar => true,
            Extension::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("lzcnt")
                    && is_x86_feature_detected!("popcnt")
            }
            Extension::Avx512 => {
                Extension::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512cd")
                    && is_x86_feature_detected!("avx512vbmi2")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Extension::Neon => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_available(self) -> bool {
        match self {
            Extension::Scalar => true,
            Extension::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Extension::Avx2 | Extension::Avx512 => false,
        }
    }

    /// Return false: other architectures run the scalar code, which the compiler vectorises as far as it can.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_available(self) -> bool {
        self == Extension::Scalar
    }

    /// Panic unless this processor can run the extension. Kernels rely on it: naming an extension is safe code, and running vector
    /// instructions that a processor lacks is not. So whoever takes an `Extension` from outside the crate calls this first.
    pub fn assert_available(self) {
        // Ordered as they are, all up to the best have kernels that this processor runs, or no kernels here.
        assert!(
            self <= Extension::best(),
            "{self:?} is not available on this processor"
        );
    }

    /// Return the fastest extension of this processor (asked once, then remembered).
    pub fn best() -> Extension {
        static BEST: OnceLock<Extension> = OnceLock::new();
        *BEST.get_or_init(|| Extension::available().pop().unwrap_or(Extension::Scalar))
    }
}

/// Defines a function that runs `$body`, an `#[inline(always)]` function with the same arguments, compiled once per extension: the
/// compiler's own vectorisation, chosen at run time. Results do not depend on it: Rust never fuses or reorders float operations.
/// On aarch64 one version is enough: the compiler uses NEON everywhere.
macro_rules! vectorised {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        $visibility fn $name(extension: $crate::cpu::Extension, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,fma,avx2")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                match extension {
                    // SAFETY: an extension comes from `Extension::available`, so the processor has it.
                    $crate::cpu::Extension::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::cpu::Extension::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::cpu::Extension::Scalar | $crate::cpu::Extension::Neon => {}
                }
            }
            let _ = extension;
            $body($($argument),*)
        }
    };
}
pub(crate) use vectorised;
