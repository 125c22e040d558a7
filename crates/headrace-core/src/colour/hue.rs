//! Hue shift through Pillow's 8-bit HSV, as torchvision's PIL path does it; bit-identical.
//!
//! Source of the arithmetic, including where it is single and where double precision: Pillow `Convert.c`, `rgb2hsv_row` and `hsv2rgb`.

use super::planes::{for_each_block, BLOCK};
use crate::cpu::vectorised;

vectorised! {
    /// Adds `shift` (modulo 256, a full turn) to the hue of every pixel.
    pub fn shift(pixels: &mut [u8], shift: u8) = shift_body
}

#[inline(always)]
fn shift_body(pixels: &mut [u8], shift: u8) {
    for_each_block(pixels, |planes| {
        let [red, green, blue] = &mut planes.channels;
        let (mut hue, mut saturation, mut value) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
        for i in 0..BLOCK {
            (hue[i], saturation[i], value[i]) = to_hsv(red[i], green[i], blue[i]);
        }
        for i in 0..BLOCK {
            (red[i], green[i], blue[i]) =
                to_rgb(hue[i].wrapping_add(shift), saturation[i], value[i]);
        }
    });
}

/// Truncates a number that lies in 0..=255.
#[inline(always)]
#[allow(unsafe_code)]
fn truncate(value: f64) -> u8 {
    debug_assert!((0.0..256.0).contains(&value));
    // SAFETY: callers pass numbers from 0 to 255 and a fraction.
    unsafe { value.to_int_unchecked::<i32>() as u8 }
}

#[inline(always)]
fn to_hsv(red: u8, green: u8, blue: u8) -> (u8, u8, u8) {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let range = f32::from(most - least);
    // A grey pixel divides by one instead of zero; its hue and saturation are then set to zero.
    let divisor = range.max(1.0);
    let distance = |value: u8| f32::from(most - value) / divisor;
    let (from_red, from_green, from_blue) = (distance(red), distance(green), distance(blue));
    let sector = if red == most {
        from_blue - from_green
    } else if green == most {
        (2.0 + f64::from(from_red) - f64::from(from_blue)) as f32
    } else {
        (4.0 + f64::from(from_green) - f64::from(from_red)) as f32
    };
    let turn = f64::from(sector) / 6.0 + 1.0;
    // fmod(turn, 1) for a turn from 5/6 to 11/6.
    let turn = (if turn >= 1.0 { turn - 1.0 } else { turn }) as f32;
    let saturation = range / f32::from(most.max(1));
    let coloured = u8::from(most != least);
    let hue = truncate(f64::from(turn) * 255.0) * coloured;
    (
        hue,
        truncate(f64::from(saturation) * 255.0) * coloured,
        most,
    )
}

#[inline(always)]
fn to_rgb(hue: u8, saturation: u8, value: u8) -> (u8, u8, u8) {
    let sextant = f64::from(hue) * 6.0 / 255.0;
    let whole = sextant.floor();
    let part = (sextant - whole) as f32;
    let share = (f64::from(saturation) / 255.0) as f32;
    let level = f64::from(value);
    let rounded = |value: f64| truncate(value + 0.5);
    let low = rounded(level * (1.0 - f64::from(share)));
    let falling = rounded(level * (1.0 - f64::from(share * part)));
    let rising = rounded(level * (1.0 - f64::from(share) * (1.0 - f64::from(part))));
    let sector = truncate(whole);
    // 255 is a full turn and falls into sector 6, which is sector 0. With saturation 0 all three are `value`.
    let red = match sector {
        0 | 5 | 6 => value,
        1 => falling,
        4 => rising,
        _ => low,
    };
    let green = match sector {
        1 | 2 => value,
        3 => falling,
        0 | 6 => rising,
        _ => low,
    };
    let blue = match sector {
        3 | 4 => value,
        5 => falling,
        2 => rising,
        _ => low,
    };
    (red, green, blue)
}
