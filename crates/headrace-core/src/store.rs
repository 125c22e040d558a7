//! The last step of an image: the conversion of uint8 RGB rows to the layout and dtype of the batch.
//!
//! Every deterministic chain of elementwise operations per channel (`ToTensor`, `Normalize`, `ToDtype`) is a table of 256 values
//! per channel. The framework's own arithmetic makes the table, so the result is exact.

use crate::error::{Result, Status};
use crate::geometry::Rect;

/// Order of the axes of one image in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Height, width, channel: interleaved pixels.
    Hwc,
    /// Channel, height, width: planes.
    Chw,
}

/// The values that are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// uint8, unchanged.
    U8,
    /// 16-bit floats as bit patterns: a table of 256 for each of R, G, B.
    Bits16(Box<[[u16; 256]; 3]>),
    /// 32-bit floats: a table of 256 for each of R, G, B.
    F32(Box<[[f32; 256]; 3]>),
}

/// The layout and the values of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// Axis order.
    pub layout: Layout,
    /// Value conversion.
    pub values: Values,
}

impl Store {
    /// Return the size of one value in bytes.
    pub fn value_bytes(&self) -> usize {
        match self.values {
            Values::U8 => 1,
            Values::Bits16(_) => 2,
            Values::F32(_) => 4,
        }
    }

    /// Return true if the slot holds interleaved uint8 pixels, so that the resampler can write to it directly.
    pub fn is_direct(&self) -> bool {
        self.layout == Layout::Hwc && self.values == Values::U8
    }

    /// Fill a rectangle of a stored image of planes with a value of each channel, given as its bytes. `width`: of the image.
    pub fn erase(
        &self,
        slot: &mut [u8],
        width: usize,
        rect: Rect,
        values: &[Vec<u8>; 3],
    ) -> Result<()> {
        let bytes = self.value_bytes();
        if self.layout != Layout::Chw || values.iter().any(|value| value.len() != bytes) {
            return Err(Status::Internal);
        }
        let plane = slot.len() / 3;
        let (x, y, w, h) = (
            rect.x as usize,
            rect.y as usize,
            rect.w as usize,
            rect.h as usize,
        );
        for (channel, value) in slot.chunks_exact_mut(plane).zip(values) {
            for row in channel.chunks_exact_mut(width * bytes).skip(y).take(h) {
                for to in row[x * bytes..(x + w) * bytes].chunks_exact_mut(bytes) {
                    to.copy_from_slice(value);
                }
            }
        }
        Ok(())
    }

    /// Write `pixels` (uint8 RGB, interleaved, 3 · n bytes) to `slot` (3 · n values).
    pub fn write(&self, pixels: &[u8], slot: &mut [u8]) -> Result<()> {
        if slot.len() != pixels.len() * self.value_bytes() || !pixels.len().is_multiple_of(3) {
            return Err(Status::Internal);
        }
        match (&self.values, self.layout) {
            (Values::U8, Layout::Hwc) => slot.copy_from_slice(pixels),
            (Values::U8, Layout::Chw) => planes(pixels, slot, |_, value| [value]),
            (Values::Bits16(table), Layout::Hwc) => {
                interleaved(pixels, slot, |channel, value| {
                    table[channel][usize::from(value)].to_ne_bytes()
                });
            }
            (Values::Bits16(table), Layout::Chw) => {
                planes(pixels, slot, |channel, value| {
                    table[channel][usize::from(value)].to_ne_bytes()
                });
            }
            (Values::F32(table), Layout::Hwc) => {
                interleaved(pixels, slot, |channel, value| {
                    table[channel][usize::from(value)].to_ne_bytes()
                });
            }
            (Values::F32(table), Layout::Chw) => {
                planes(pixels, slot, |channel, value| {
                    table[channel][usize::from(value)].to_ne_bytes()
                });
            }
        }
        Ok(())
    }
}

fn interleaved<const N: usize>(
    pixels: &[u8],
    slot: &mut [u8],
    convert: impl Fn(usize, u8) -> [u8; N],
) {
    for (pixel, to) in pixels.chunks_exact(3).zip(slot.chunks_exact_mut(3 * N)) {
        for channel in 0..3 {
            to[channel * N..(channel + 1) * N].copy_from_slice(&convert(channel, pixel[channel]));
        }
    }
}

/// Fill the three planes in one pass over the pixels, so that the image (150 KB) is read only once.
fn planes<const N: usize>(pixels: &[u8], slot: &mut [u8], convert: impl Fn(usize, u8) -> [u8; N]) {
    let plane = slot.len() / 3;
    let (red, rest) = slot.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    let targets = red
        .chunks_exact_mut(N)
        .zip(green.chunks_exact_mut(N))
        .zip(blue.chunks_exact_mut(N));
    for (pixel, ((r, g), b)) in pixels.chunks_exact(3).zip(targets) {
        r.copy_from_slice(&convert(0, pixel[0]));
        g.copy_from_slice(&convert(1, pixel[1]));
        b.copy_from_slice(&convert(2, pixel[2]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    #[test]
    fn layouts_and_tables() {
        let pixels = [1, 2, 3, 4, 5, 6];
        let mut table = Box::new([[0f32; 256]; 3]);
        for (channel, row) in table.iter_mut().enumerate() {
            for (value, entry) in row.iter_mut().enumerate() {
                *entry = value as f32 + 100.0 * channel as f32;
            }
        }
        let mut planar = [0; 6];
        Store {
            layout: Layout::Chw,
            values: Values::U8,
        }
        .write(&pixels, &mut planar)
        .expect("fits");
        assert_eq!(planar, [1, 4, 2, 5, 3, 6]);
        let mut wide = [0; 24];
        let store = Store {
            layout: Layout::Chw,
            values: Values::F32(table.clone()),
        };
        store.write(&pixels, &mut wide).expect("fits");
        assert_eq!(floats(&wide), [1.0, 4.0, 102.0, 105.0, 203.0, 206.0]);
        let store = Store {
            layout: Layout::Hwc,
            values: Values::F32(table),
        };
        store.write(&pixels, &mut wide).expect("fits");
        assert_eq!(floats(&wide), [1.0, 102.0, 203.0, 4.0, 105.0, 206.0]);
        assert_eq!(store.write(&pixels, &mut wide[..20]), Err(Status::Internal));
    }
}
