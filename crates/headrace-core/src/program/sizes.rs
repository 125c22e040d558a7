//! torchvision's arithmetic of sizes and crops.

use crate::error::{Result, Status};
use crate::geometry::{Rect, Size};
use crate::limits::max_pixels;
use crate::rng::Rng;

/// Return the start of a centred crop of `part` pixels in `whole` (torchvision: `int(round((whole - part) / 2))` with Python's
/// rounding to even). A smaller image is padded at the start by half the difference, rounded down.
pub fn centre(whole: i64, part: i64) -> i64 {
    if part > whole {
        -((part - whole) / 2)
    } else {
        ((whole - part) as f64 / 2.0).round_ties_even() as i64
    }
}

/// Return the output (height, width) of `Resize(short, max_size=max)`, with torchvision's truncation.
pub fn resized(size: Size, short: u32, max: u32) -> Result<(u32, u32)> {
    let Size { width, height } = size;
    let (small, large) = (width.min(height), width.max(height));
    let mut new_small = short;
    let mut new_large = (f64::from(short) * f64::from(large) / f64::from(small)) as u32;
    if max > 0 && new_large > max {
        new_small = (f64::from(max) * f64::from(new_small) / f64::from(new_large)) as u32;
        new_large = max;
    }
    if new_small == 0 || u64::from(new_small) * u64::from(new_large) > max_pixels() {
        return Err(Status::TooLarge);
    }
    Ok(if width <= height {
        (new_large, new_small)
    } else {
        (new_small, new_large)
    })
}

/// Draw torchvision's `RandomResizedCrop.get_params`: ten attempts with a random area and log-uniform ratio, then a central crop.
pub fn random_resized_crop(
    size: Size,
    scale: (f64, f64),
    ratio: (f64, f64),
    rng: &mut Rng,
) -> Rect {
    let Size { width, height } = size;
    let area = f64::from(width) * f64::from(height);
    let log_ratio = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..10 {
        let target = area * rng.uniform(scale.0, scale.1);
        let aspect = rng.uniform(log_ratio.0, log_ratio.1).exp();
        let w = (target * aspect).sqrt().round_ties_even();
        let h = (target / aspect).sqrt().round_ties_even();
        if w >= 1.0 && w <= f64::from(width) && h >= 1.0 && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let y = rng.below(height - h + 1);
            let x = rng.below(width - w + 1);
            return Rect::new(x, y, w, h);
        }
    }
    central_crop(size, ratio)
}

/// Return the crop of `RandomResizedCrop` after ten attempts: central, as large as `ratio` allows, at least one pixel.
pub fn central_crop(size: Size, ratio: (f64, f64)) -> Rect {
    let Size { width, height } = size;
    let image_ratio = f64::from(width) / f64::from(height);
    let (w, h) = if image_ratio < ratio.0 {
        (
            width,
            ((f64::from(width) / ratio.0).round_ties_even() as u32).clamp(1, height),
        )
    } else if image_ratio > ratio.1 {
        (
            ((f64::from(height) * ratio.1).round_ties_even() as u32).clamp(1, width),
            height,
        )
    } else {
        (width, height)
    };
    Rect::new((width - w) / 2, (height - h) / 2, w, h)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Key;

    #[test]
    fn narrow_images_get_a_central_crop() {
        let key = Key {
            seed: 7,
            epoch: 0,
            draw: 0,
        };
        let size = Size {
            width: 1000,
            height: 2,
        };
        let crop = random_resized_crop(size, (0.5, 1.0), (0.75, 4.0 / 3.0), &mut Rng::new(key, 0));
        assert_eq!(crop, Rect::new(498, 0, 3, 2));
    }
}
