//! The quantisation tables of libjpeg's quality setting.

/// ITU-T T.81 table K.1 (luminance), in natural order: libjpeg's quality 50.
pub const LUMINANCE: [u16; 64] = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113,
    92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
];

/// ITU-T T.81 table K.2 (chrominance), in natural order.
pub const CHROMINANCE: [u16; 64] = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
];

/// Return `base` scaled to `quality` (1 to 100), in eight bits (libjpeg's `jpeg_quality_scaling` and `jpeg_add_quant_table`).
pub const fn table(base: &[u16; 64], quality: u8) -> [u16; 64] {
    let quality = quality as u32;
    let scale = if quality < 50 {
        5000 / quality
    } else {
        200 - 2 * quality
    };
    let mut table = [0; 64];
    let mut k = 0;
    while k < 64 {
        let step = (base[k] as u32 * scale + 50) / 100;
        table[k] = if step < 1 {
            1
        } else if step > 255 {
            255
        } else {
            step as u16
        };
        k += 1;
    }
    table
}
