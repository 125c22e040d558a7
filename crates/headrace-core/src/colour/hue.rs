//! Hue shift in Pillow's 8-bit HSV, bit-identical to torchvision's PIL path.
//!
//! Source of the arithmetic, with its mix of single and double precision: Pillow `Convert.c`, `rgb2hsv_row` and `hsv2rgb`.

use super::planes::{Planes, BLOCK, BLOCK_BYTES};
use crate::cpu::vectorised;

vectorised! {
    /// Add `shift` (modulo 256, a full turn) to the hue of every pixel.
    pub fn shift(pixels: &mut [u8], shift: u8) = shift_body
}

#[inline(always)]
fn shift_body(pixels: &mut [u8], shift: u8) {
    let tables = Tables::new(shift);
    for block in pixels.chunks_mut(BLOCK_BYTES) {
        let mut planes = Planes::load(block);
        let [red, green, blue] = &mut planes.channels;
        // Separate loops over few arrays each, so that the compiler vectorises all of them.
        let (mut hue, mut saturation) = ([0_i32; BLOCK], [0_i32; BLOCK]);
        for i in 0..BLOCK {
            (hue[i], saturation[i]) =
                to_hue(i32::from(red[i]), i32::from(green[i]), i32::from(blue[i]));
        }
        let (mut sector, mut part, mut share) = ([0_i32; BLOCK], [0_f32; BLOCK], [0_f32; BLOCK]);
        for i in 0..BLOCK {
            let hue = hue[i] as usize & 0xFF;
            sector[i] = tables.sector[hue];
            part[i] = tables.part[hue];
            share[i] = tables.share[saturation[i] as usize & 0xFF];
        }
        for i in 0..BLOCK {
            let value = i32::from(red[i].max(green[i]).max(blue[i]));
            let (r, g, b) = to_rgb(sector[i], part[i], share[i], value);
            (red[i], green[i], blue[i]) = (r as u8, g as u8, b as u8);
        }
        planes.store(block);
    }
}

/// Values that depend on a hue or a saturation alone.
struct Tables {
    /// Sixth of the circle of the shifted hue.
    sector: [i32; 256],
    /// Position of the shifted hue in its sixth, 0 to 1.
    part: [f32; 256],
    /// Saturation from 0 to 1.
    share: [f32; 256],
}

impl Tables {
    fn new(shift: u8) -> Self {
        let sextant = |hue: usize| f64::from((hue as u8).wrapping_add(shift)) * 6.0 / 255.0;
        Tables {
            // 255 is a full turn: sector 6, which is sector 0.
            sector: std::array::from_fn(|hue| sextant(hue) as i32 % 6),
            part: std::array::from_fn(|hue| (sextant(hue) - f64::from(sextant(hue) as i32)) as f32),
            share: std::array::from_fn(|saturation| (saturation as f64 / 255.0) as f32),
        }
    }
}

/// Truncate a number from 0 to 256 (exclusive).
#[inline(always)]
#[allow(unsafe_code)]
fn truncate(value: f64) -> i32 {
    debug_assert!((0.0..256.0).contains(&value));
    // SAFETY: callers pass numbers from 0 to 255 and a fraction.
    unsafe { value.to_int_unchecked::<i32>() }
}

/// Return hue and saturation as 8-bit values.
#[inline(always)]
fn to_hue(red: i32, green: i32, blue: i32) -> (i32, i32) {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let range = (most - least) as f32;
    // A grey pixel divides by one instead of zero; its hue and saturation are then set to zero.
    let divisor = if most == least { 1.0 } else { range };
    let distance = |value: i32| (most - value) as f32 / divisor;
    let (from_red, from_green, from_blue) = (distance(red), distance(green), distance(blue));
    let first = from_blue - from_green;
    let second = (2.0 + f64::from(from_red) - f64::from(from_blue)) as f32;
    let third = (4.0 + f64::from(from_green) - f64::from(from_red)) as f32;
    let later = if green == most { second } else { third };
    let sector = if red == most { first } else { later };
    let turn = f64::from(sector) / 6.0 + 1.0;
    // fmod(turn, 1) for a turn from 5/6 to 11/6.
    let turn = turn - if turn >= 1.0 { 1.0 } else { 0.0 };
    let saturation = range / if most == 0 { 1.0 } else { most as f32 };
    let coloured = i32::from(most != least);
    let hue = truncate(f64::from(turn as f32) * 255.0);
    (
        hue * coloured,
        truncate(f64::from(saturation) * 255.0) * coloured,
    )
}

/// Return red, green and blue. With saturation 0 all three are `value`.
#[inline(always)]
fn to_rgb(sector: i32, part: f32, share: f32, value: i32) -> (i32, i32, i32) {
    let level = f64::from(value as f32);
    let rounded = |value: f64| truncate(value + 0.5);
    let low = rounded(level * (1.0 - f64::from(share)));
    let falling = rounded(level * (1.0 - f64::from(share * part)));
    let rising = rounded(level * (1.0 - f64::from(share) * (1.0 - f64::from(part))));
    // Each channel runs through the same six stages, two sectors apart.
    let stage = |sector: i32| {
        let lower = if sector == 4 { rising } else { low };
        let middle = if sector == 1 { falling } else { lower };
        if sector == 0 || sector == 5 {
            value
        } else {
            middle
        }
    };
    let back = |sector: i32, by: i32| {
        if sector < by {
            sector + 6 - by
        } else {
            sector - by
        }
    };
    (
        stage(sector),
        stage(back(sector, 2)),
        stage(back(sector, 4)),
    )
}
