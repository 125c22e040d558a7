//! libjpeg's "fancy" (triangle) upsampling of chroma, and the colour conversion, as plain code: the truth for the SIMD twins.

/// Vertical blend of two chroma rows, nearer row first: `(3 near + far + bias) >> 2`, bias 1 for the upper of a pair of rows and
/// 2 for the lower (jdsample.c, h1v2_fancy_upsample).
pub fn blend_rows(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = ((u16::from(near) * 3 + u16::from(far) + bias) >> 2) as u8;
    }
}

/// Doubles a row: output pixel `first + i` of the image lies in sample `(first + i) / 2`. `samples[0]` is the sample before that of
/// the first output pixel, so `samples` must hold `out.len() / 2 + 3` values (jdsample.c, h2v1_fancy_upsample).
pub fn double_row(samples: &[u8], first: u32, out: &mut [u8]) {
    let odd = (first & 1) as usize;
    for (i, out) in out.iter_mut().enumerate() {
        let at = (i + odd) / 2 + 1;
        let (neighbour, bias) = if (i + odd) & 1 == 0 {
            (at - 1, 1)
        } else {
            (at + 1, 2)
        };
        *out = ((u16::from(samples[at]) * 3 + u16::from(samples[neighbour]) + bias) >> 2) as u8;
    }
}

/// Doubles a row in both directions, with the sums of both before one rounding (jdsample.c, h2v2_fancy_upsample).
pub fn double_blended(near: &[u8], far: &[u8], first: u32, out: &mut [u8]) {
    let sum = |at: usize| u16::from(near[at]) * 3 + u16::from(far[at]);
    let odd = (first & 1) as usize;
    for (i, out) in out.iter_mut().enumerate() {
        let at = (i + odd) / 2 + 1;
        let (neighbour, bias) = if (i + odd) & 1 == 0 {
            (at - 1, 8)
        } else {
            (at + 1, 7)
        };
        *out = ((sum(at) * 3 + sum(neighbour) + bias) >> 4) as u8;
    }
}

/// Doubles a row without a filter, as libjpeg does where chroma is at most two samples wide. `samples` as in [`double_row`].
pub fn repeat_row(samples: &[u8], first: u32, out: &mut [u8]) {
    let odd = (first & 1) as usize;
    for (i, out) in out.iter_mut().enumerate() {
        *out = samples[(i + odd) / 2 + 1];
    }
}

/// YCbCr to interleaved RGB with libjpeg's 16-bit fixed-point tables (jdcolor.c, build_ycc_rgb_table).
pub fn ycc_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    const HALF: i32 = 1 << 15;
    let clamp = |value: i32| value.clamp(0, 255) as u8;
    for (((out, &y), &cb), &cr) in out.chunks_exact_mut(3).zip(y).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
        out[0] = clamp(y + ((91881 * cr + HALF) >> 16)); // 1.40200
        out[1] = clamp(y + ((-22554 * cb - 46802 * cr + HALF) >> 16)); // 0.34414, 0.71414
        out[2] = clamp(y + ((116130 * cb + HALF) >> 16)); // 1.77200
    }
}

/// Three planes to interleaved RGB, unchanged.
pub fn interleave(r: &[u8], g: &[u8], b: &[u8], out: &mut [u8]) {
    for (((out, &r), &g), &b) in out.chunks_exact_mut(3).zip(r).zip(g).zip(b) {
        out.copy_from_slice(&[r, g, b]);
    }
}
