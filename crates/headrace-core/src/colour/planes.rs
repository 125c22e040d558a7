//! Blocks of pixels as three planes, so that loops over channels vectorise.

/// Pixels per block.
pub const BLOCK: usize = 64;

/// Red, green and blue of a block.
#[derive(Clone, Copy)]
pub struct Planes {
    /// Red, green, blue.
    pub channels: [[u8; BLOCK]; 3],
}

/// Bytes per block of interleaved pixels.
pub const BLOCK_BYTES: usize = BLOCK * 3;

impl Planes {
    /// Make the planes of up to one block of interleaved RGB, padded with black. (Not a closure over blocks: the compiler would
    /// make a separate function of it, without the extension's instructions.)
    #[inline(always)]
    pub fn load(part: &[u8]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        match <&[u8; BLOCK_BYTES]>::try_from(part) {
            Ok(whole) => block = *whole,
            Err(_) => block[..part.len()].copy_from_slice(part),
        }
        let mut channels = [[0; BLOCK]; 3];
        for (i, pixel) in block.chunks_exact(3).enumerate() {
            for (plane, &value) in channels.iter_mut().zip(pixel) {
                plane[i] = value;
            }
        }
        Planes { channels }
    }

    /// Write the planes back as interleaved RGB.
    #[inline(always)]
    pub fn store(&self, part: &mut [u8]) {
        let mut block = [0; BLOCK_BYTES];
        for (i, pixel) in block.chunks_exact_mut(3).enumerate() {
            for (value, plane) in pixel.iter_mut().zip(&self.channels) {
                *value = plane[i];
            }
        }
        match <&mut [u8; BLOCK_BYTES]>::try_from(&mut *part) {
            Ok(whole) => *whole = block,
            Err(_) => part.copy_from_slice(&block[..part.len()]),
        }
    }
}

/// Return the ITU-R 601 luma in 16-bit fixed point, as Pillow's conversion from RGB to L (`Convert.c`, `L24`).
#[inline(always)]
pub fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000;
    (sum >> 16) as u8
}

/// Truncate to a byte; values outside are clipped.
#[inline(always)]
#[allow(unsafe_code)]
#[allow(clippy::manual_clamp)] // clamp keeps NaN; in this order NaN becomes 0
pub fn to_byte(value: f32) -> u8 {
    let clipped = value.max(0.0).min(255.0);
    // SAFETY: the value is a number from 0 to 255.
    unsafe { clipped.to_int_unchecked::<i32>() as u8 }
}
