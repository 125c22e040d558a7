//! Operations on the colours of an image, in place on uint8 RGB. Results equal those of Pillow (and of torchvision's PIL path)
//! bit for bit, rounding included. Only [`ColourOp::GaussianBlur`] may differ by one level in rare values (see [`neighbours`]).

mod blend;
mod chain;
pub mod draw;
mod hue;
pub mod neighbours;
pub mod pillow_blur;
mod planes;
mod tables;
pub mod torch_blur;

use crate::cpu::Extension;
use crate::error::{Result, Status};
use crate::limits;
use neighbours::MAX_KERNEL;
use torch_blur::BlurKey;

/// One operation. Factors have torchvision's meaning; 1 changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ColourOp {
    /// `adjust_brightness`: blend with black.
    Brightness(f32),
    /// `adjust_contrast`: blend with the mean luma.
    Contrast(f32),
    /// `adjust_saturation`: blend with the luma.
    Saturation(f32),
    /// `adjust_hue`: shift by this many turns, -0.5 to 0.5.
    Hue(f64),
    /// `rgb_to_grayscale` with three channels.
    Grayscale,
    /// `invert`.
    Invert,
    /// `posterize` to this many bits, 1 to 8.
    Posterize(u8),
    /// `solarize`: invert values of at least this threshold, 0 to 256.
    Solarize(u16),
    /// `autocontrast`.
    Autocontrast,
    /// `equalize`.
    Equalize,
    /// `adjust_sharpness`: blend with the smoothed image.
    Sharpness(f32),
    /// `gaussian_blur`: kernel width and height in pixels (odd), sigma along each in pixels.
    GaussianBlur {
        /// Kernel width and height.
        kernel: (u16, u16),
        /// Standard deviation across and down.
        sigma: (f32, f32),
    },
    /// Pillow's `ImageFilter.GaussianBlur` of this radius in pixels.
    PillowBlur(f32),
    /// torchvision's `gaussian_blur` with torch's own weights, which must have been given.
    TorchBlur(BlurKey),
    /// The largest value of each 3 × 3 neighbourhood, per channel.
    Dilate,
    /// The smallest value of each 3 × 3 neighbourhood, per channel.
    Erode,
}

/// An argument of one of torchvision's functions.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Argument {
    Number(f64),
    Numbers([f64; 2]),
    Integer(u32),
    Integers([u32; 2]),
}

impl Argument {
    /// Call `give` with each number.
    pub fn each(self, mut give: impl FnMut(f64)) {
        match self {
            Argument::Number(number) => give(number),
            Argument::Numbers(numbers) => numbers.into_iter().for_each(give),
            Argument::Integer(number) => give(f64::from(number)),
            Argument::Integers(numbers) => numbers.into_iter().map(f64::from).for_each(give),
        }
    }
}

impl ColourOp {
    /// Return torchvision's functional name, and call `give` with the name and value of each argument. `dilate`, `erode`,
    /// `pillow_blur` and `torch_blur` are no functions of torchvision.
    pub fn describe(&self, mut give: impl FnMut(&'static str, Argument)) -> &'static str {
        use Argument::{Integer, Integers, Number, Numbers};
        let mut with = |function: &'static str, name, argument| {
            give(name, argument);
            function
        };
        match *self {
            ColourOp::Brightness(factor) => with(
                "adjust_brightness",
                "brightness_factor",
                Number(factor.into()),
            ),
            ColourOp::Contrast(factor) => {
                with("adjust_contrast", "contrast_factor", Number(factor.into()))
            }
            ColourOp::Saturation(factor) => with(
                "adjust_saturation",
                "saturation_factor",
                Number(factor.into()),
            ),
            ColourOp::Sharpness(factor) => with(
                "adjust_sharpness",
                "sharpness_factor",
                Number(factor.into()),
            ),
            ColourOp::Hue(share) => with("adjust_hue", "hue_factor", Number(share)),
            ColourOp::Grayscale => with("rgb_to_grayscale", "num_output_channels", Integer(3)),
            ColourOp::Invert => "invert",
            ColourOp::Posterize(bits) => with("posterize", "bits", Integer(bits.into())),
            ColourOp::Solarize(least) => with("solarize", "threshold", Integer(least.into())),
            ColourOp::Autocontrast => "autocontrast",
            ColourOp::Equalize => "equalize",
            ColourOp::GaussianBlur {
                kernel: (w, h),
                sigma: (across, down),
            } => {
                with(
                    "gaussian_blur",
                    "kernel_size",
                    Integers([w.into(), h.into()]),
                );
                with(
                    "gaussian_blur",
                    "sigma",
                    Numbers([across.into(), down.into()]),
                )
            }
            ColourOp::PillowBlur(radius) => with("pillow_blur", "radius", Number(radius.into())),
            ColourOp::TorchBlur(BlurKey {
                kernel: (w, h),
                sigma,
                version,
            }) => {
                let sigma = f32::from_bits(sigma).into();
                with("torch_blur", "kernel_size", Integers([w.into(), h.into()]));
                with("torch_blur", "sigma", Numbers([sigma, sigma]));
                with("torch_blur", "version", Integer(version.into()))
            }
            ColourOp::Dilate => with("dilate", "size", Integer(3)),
            ColourOp::Erode => with("erode", "size", Integer(3)),
        }
    }

    /// Return true if each pixel's result depends on that pixel alone.
    pub fn is_pointwise(&self) -> bool {
        matches!(
            self,
            ColourOp::Brightness(_)
                | ColourOp::Saturation(_)
                | ColourOp::Hue(_)
                | ColourOp::Grayscale
                | ColourOp::Invert
                | ColourOp::Posterize(_)
                | ColourOp::Solarize(_)
        )
    }

    /// Return true if mirroring the image before or after the operation gives the same bits. The blur adds in a fixed order, so
    /// it does not.
    pub fn is_symmetric(&self) -> bool {
        !matches!(self, ColourOp::GaussianBlur { .. } | ColourOp::TorchBlur(_))
    }

    /// Return about how many copies of the pixels the operation needs as scratch memory.
    fn copies(&self) -> usize {
        match self {
            ColourOp::Sharpness(_)
            | ColourOp::GaussianBlur { .. }
            | ColourOp::PillowBlur(_)
            | ColourOp::Dilate
            | ColourOp::Erode => 1,
            ColourOp::TorchBlur(_) => 5, // in single precision, with a border
            _ => 0,
        }
    }

    /// Return true if the parameters are numbers in their ranges and a blur kernel's border can be reflected in an image of this
    /// size.
    pub fn fits(&self, width: usize, height: usize) -> bool {
        match *self {
            ColourOp::Brightness(factor)
            | ColourOp::Contrast(factor)
            | ColourOp::Saturation(factor)
            | ColourOp::Sharpness(factor) => factor.is_finite(),
            ColourOp::PillowBlur(radius) => (0.0..=pillow_blur::MAX_RADIUS).contains(&radius),
            ColourOp::Hue(share) => (-0.5..=0.5).contains(&share),
            ColourOp::Posterize(bits) => (1..=8).contains(&bits),
            ColourOp::TorchBlur(BlurKey { kernel, .. }) => {
                let side = |kernel: u16, length: usize| {
                    kernel % 2 == 1 && usize::from(kernel / 2) < length
                };
                side(kernel.0, width) && side(kernel.1, height)
            }
            ColourOp::GaussianBlur { kernel, sigma } => {
                let side = |kernel: u16, sigma: f32, length: usize| {
                    let kernel = usize::from(kernel);
                    kernel % 2 == 1 && kernel <= MAX_KERNEL && kernel / 2 < length && sigma > 0.0
                };
                side(kernel.0, sigma.0, width) && side(kernel.1, sigma.1, height)
            }
            _ => true,
        }
    }
}

/// Pixels in bytes above which the memory of copies is asked for first, because a thread that lacks it would end the process.
const LARGE_BYTES: usize = 1 << 24;

/// The colour operations of one thread, with their scratch memory. After the first images nothing is allocated.
#[derive(Debug)]
pub struct Colourist {
    extension: Extension,
    scratch: neighbours::Scratch,
    blur: pillow_blur::Scratch,
    torch_blur: torch_blur::Scratch,
}

impl Default for Colourist {
    fn default() -> Self {
        Self::with_extension(Extension::best())
    }
}

impl Colourist {
    /// Make one whose kernels use `extension`, which the processor must have ([`Extension::available`]).
    pub fn with_extension(extension: Extension) -> Self {
        extension.assert_available();
        Colourist {
            extension,
            scratch: neighbours::Scratch::default(),
            blur: pillow_blur::Scratch::default(),
            torch_blur: torch_blur::Scratch::default(),
        }
    }

    /// Apply `op` in place to `pixels`, uint8 RGB in rows of `width` pixels without gaps.
    ///
    /// Errors: [`Status::Internal`] if the buffer is not whole rows or the parameters are out of range,
    /// [`Status::Unsupported`] for a blur whose weights are not known, [`Status::TooLarge`] if there is no memory for the copies
    /// of a large image; the pixels are then unchanged.
    pub fn apply(&mut self, op: ColourOp, pixels: &mut [u8], width: u32) -> Result<()> {
        let width = width as usize;
        if width == 0 || pixels.is_empty() || pixels.len() % (width * 3) != 0 {
            return Err(Status::Internal);
        }
        if !op.fits(width, pixels.len() / (width * 3)) {
            return Err(Status::Internal);
        }
        if pixels.len() > LARGE_BYTES {
            limits::check_memory(op.copies().saturating_mul(pixels.len()))?;
        }
        let extension = self.extension;
        match op {
            ColourOp::Brightness(factor) => blend::with_constant(extension, pixels, 0, factor),
            ColourOp::Contrast(factor) => {
                let mean = blend::mean_luma(extension, pixels);
                blend::with_constant(extension, pixels, mean, factor);
            }
            ColourOp::Saturation(factor) => blend::saturation(extension, pixels, factor),
            // torchvision: `np.int32(hue_factor * 255).astype(np.uint8)`.
            ColourOp::Hue(share) => hue::shift(extension, pixels, (share * 255.0) as i32 as u8),
            ColourOp::Grayscale => blend::grayscale(extension, pixels),
            ColourOp::Invert => tables::apply(pixels, &tables::uniform(|value| !value)),
            ColourOp::Posterize(bits) => {
                let mask = !((1_u16 << (8 - bits)) - 1) as u8;
                tables::apply(pixels, &tables::uniform(|value| value & mask));
            }
            ColourOp::Solarize(threshold) => {
                let invert = |value: u8| {
                    if u16::from(value) < threshold {
                        value
                    } else {
                        !value
                    }
                };
                tables::apply(pixels, &tables::uniform(invert));
            }
            ColourOp::Autocontrast => {
                let histograms = tables::histograms(pixels);
                tables::apply(pixels, &tables::autocontrast(&histograms));
            }
            ColourOp::Equalize => {
                let histograms = tables::histograms(pixels);
                tables::apply(pixels, &tables::equalize(&histograms));
            }
            ColourOp::Sharpness(factor) => self.scratch.sharpness(extension, pixels, width, factor),
            ColourOp::GaussianBlur { kernel, sigma } => {
                let kernel = (usize::from(kernel.0), usize::from(kernel.1));
                self.scratch.blur(extension, pixels, width, kernel, sigma);
            }
            ColourOp::PillowBlur(radius) => self.blur.blur(extension, pixels, width, radius),
            ColourOp::TorchBlur(key) => {
                let weights = torch_blur::wait_for(key).ok_or(Status::Unsupported)?;
                let kernel = (usize::from(key.kernel.0), usize::from(key.kernel.1));
                self.torch_blur
                    .blur(extension, pixels, width, kernel, &weights);
            }
            ColourOp::Dilate => self.scratch.morphology(extension, pixels, width, true),
            ColourOp::Erode => self.scratch.morphology(extension, pixels, width, false),
        }
        Ok(())
    }
}
