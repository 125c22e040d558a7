//! Passes over a finished crop as (name, numbers), for the device that makes them (`python/headrace/gpu/augmentation/augment.py`).

use headrace_core::colour::neighbours::gaussian;
use headrace_core::colour::ColourOp;
use headrace_core::error::{Result, Status};
use headrace_core::program::split::Later;
use headrace_core::warp::Interpolation;

/// A pass: its name, and its numbers in the order that the device reads.
pub type Pass = (&'static str, Vec<f64>);

/// Append a pass. Errors: [`Status::Unsupported`] for a blur whose kernel does not fit, or that only the CPU has.
pub fn append(later: &Later, (width, height): (u32, u32), passes: &mut Vec<Pass>) -> Result<()> {
    match later {
        Later::Colour(op) => passes.push(colour(*op, (width, height))?),
        Later::Flip(x, y) => passes.extend(flip(*x, *y)),
        Later::Warp(spec, edges) => {
            let map = spec.map;
            let mut numbers = vec![map.a, map.b, map.c, map.d, map.e, map.f];
            numbers.extend(spec.fill.map(f64::from));
            numbers.extend(edges.iter().flat_map(|edge| edge.coefficients()));
            if spec.interpolation == Interpolation::Bicubic {
                return Err(Status::Unsupported);
            }
            passes.push((spec.interpolation.name(), numbers));
            passes.extend(flip(spec.flip_x, spec.flip_y));
        }
    }
    Ok(())
}

fn flip(x: bool, y: bool) -> impl Iterator<Item = Pass> {
    let both = [(x, "flip_x"), (y, "flip_y")];
    both.into_iter()
        .filter(|(flipped, _)| *flipped)
        .map(|(_, name)| (name, Vec::new()))
}

fn colour(op: ColourOp, (width, height): (u32, u32)) -> Result<Pass> {
    match op {
        // As the CPU's operation rounds the share of the circle (`colour/mod.rs`).
        ColourOp::Hue(share) => Ok(("hue", vec![f64::from((share * 255.0) as i32 as u8)])),
        ColourOp::Grayscale => Ok(("grayscale", Vec::new())),
        ColourOp::Dilate => Ok(("dilate", Vec::new())),
        ColourOp::Erode => Ok(("erode", Vec::new())),
        ColourOp::GaussianBlur { kernel, sigma } => {
            if !op.fits(width as usize, height as usize) {
                return Err(Status::Unsupported);
            }
            let mut numbers = vec![f64::from(kernel.0)];
            for (side, sigma) in [(kernel.0, sigma.0), (kernel.1, sigma.1)] {
                let mut weights = Vec::new();
                gaussian(usize::from(side), sigma, &mut weights);
                numbers.extend(weights.into_iter().map(f64::from));
            }
            Ok(("blur", numbers))
        }
        ColourOp::PillowBlur(_) | ColourOp::TorchBlur(_) => Err(Status::Unsupported),
        _ => {
            let mut numbers = Vec::new();
            let name = op.describe(|_, argument| argument.each(|number| numbers.push(number)));
            Ok((name.trim_start_matches("adjust_"), numbers))
        }
    }
}
