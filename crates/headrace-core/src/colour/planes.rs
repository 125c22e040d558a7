//! Blocks of pixels as three planes, so that loops over channels vectorise.

/// Pixels per block.
pub const BLOCK: usize = 64;

/// Red, green and blue of a block.
#[derive(Clone, Copy)]
pub struct Planes {
    /// Red, green, blue.
    pub channels: [[u8; BLOCK]; 3],
}

/// Runs `op` on every block of interleaved RGB `pixels`; a last, shorter block is padded with black for `op`.
#[inline(always)]
pub fn for_each_block(pixels: &mut [u8], mut op: impl FnMut(&mut Planes)) {
    let mut blocks = pixels.chunks_exact_mut(BLOCK * 3);
    for block in &mut blocks {
        let mut planes = split(block);
        op(&mut planes);
        join(&planes, block);
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        let mut block = [0; BLOCK * 3];
        block[..rest.len()].copy_from_slice(rest);
        let mut planes = split(&block);
        op(&mut planes);
        join(&planes, &mut block);
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

#[inline(always)]
fn split(block: &[u8]) -> Planes {
    let mut channels = [[0; BLOCK]; 3];
    for (i, pixel) in block.chunks_exact(3).enumerate() {
        for (plane, &value) in channels.iter_mut().zip(pixel) {
            plane[i] = value;
        }
    }
    Planes { channels }
}

#[inline(always)]
fn join(planes: &Planes, block: &mut [u8]) {
    for (i, pixel) in block.chunks_exact_mut(3).enumerate() {
        for (value, plane) in pixel.iter_mut().zip(&planes.channels) {
            *value = plane[i];
        }
    }
}

/// ITU-R 601 luma in 16-bit fixed point, as Pillow's conversion from RGB to L (`Convert.c`, `L24`).
#[inline(always)]
pub fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000;
    (sum >> 16) as u8
}

/// Truncates to a byte; clips what lies outside.
#[inline(always)]
#[allow(unsafe_code)]
#[allow(clippy::manual_clamp)] // clamp keeps NaN; in this order NaN becomes 0
pub fn to_byte(value: f32) -> u8 {
    let clipped = value.max(0.0).min(255.0);
    // SAFETY: the value is a number from 0 to 255.
    unsafe { clipped.to_int_unchecked::<i32>() as u8 }
}
