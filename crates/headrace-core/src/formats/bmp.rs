//! Bitmaps of 16 bits per pixel: the library rounds when it widens 5 and 6 bits to 8, Pillow truncates.

use crate::error::{Result, Status};

/// Bits of red, green and blue.
type Depths = [u32; 3];

/// Return the depths of a bitmap of 16 bits per pixel, `None` for other bitmaps. Layouts that Pillow does not read are refused.
fn depths(data: &[u8]) -> Result<Option<Depths>> {
    let number = |offset: usize, bytes: usize| -> u32 {
        let field = data.get(offset..offset + bytes).unwrap_or_default();
        field
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u32::from(byte))
    };
    // BITMAPINFOHEADER and its successors: bits per pixel at 14, compression at 16, masks at 40, after 14 bytes of file header.
    let (header_bytes, bits, compression) = (number(14, 4), number(14 + 14, 2), number(14 + 16, 4));
    if header_bytes < 40 || bits != 16 {
        return Ok(None);
    }
    let masks = [40, 44, 48].map(|offset| number(14 + offset, 4));
    match (compression, masks) {
        (0, _) | (3, [0x7C00, 0x3E0, 0x1F]) => Ok(Some([5, 5, 5])),
        (3, [0xF800, 0x7E0, 0x1F]) => Ok(Some([5, 6, 5])),
        _ => Err(Status::Unsupported),
    }
}

/// Convert RGB samples that were widened by rounding to Pillow's, which truncates value × 255 / maximum.
pub fn truncate_like_pillow(data: &[u8], rgb: &mut [u8]) -> Result<()> {
    let Some(depths) = depths(data)? else {
        return Ok(());
    };
    let tables = depths.map(|bits| {
        let maximum = (1u32 << bits) - 1;
        std::array::from_fn::<u8, 256, _>(|widened| {
            let value = (widened as u32 * maximum + 127) / 255;
            (value * 255 / maximum) as u8
        })
    });
    for pixel in rgb.chunks_exact_mut(3) {
        for (sample, table) in pixel.iter_mut().zip(&tables) {
            *sample = table[usize::from(*sample)];
        }
    }
    Ok(())
}
