//! The samples of one component that a region needs, from the inverse DCT to rows of the image's width.

use super::entropy::GROUP;
use super::upsample;
use crate::cpu::Extension;
use crate::geometry::Rect;
use std::ops::Range;

/// Bytes before and behind every row of a plane, for replicated edge samples and for vectors that reach over.
pub const MARGIN: usize = 64;

/// A quantisation table in block order.
pub struct Quant(pub [u16; 64]);

impl Default for Quant {
    fn default() -> Self {
        Quant([1; 64])
    }
}

/// Samples of one component that the region needs, and where they are kept.
#[derive(Default)]
pub struct Plane {
    /// Blocks per MCU, horizontally and vertically.
    pub h: u32,
    pub v: u32,
    /// Samples that a block is transformed to, each way: 8, or fewer at a reduced scale.
    pub size: u32,
    /// The image has this many times more pixels than the component has samples: 1 or 2 each way.
    pub expand_x: u32,
    pub expand_y: u32,
    /// Size of the component in samples.
    pub width: u32,
    pub height: u32,
    /// First sample row and column that `samples` holds.
    pub left: u32,
    pub top: u32,
    /// Block rows that are transformed.
    pub blocks: Range<u32>,
    pub stride: usize,
    /// Groups per block row, and where this component's groups start in a row's coefficients.
    pub groups: usize,
    pub first_group: usize,
    pub tables: usize,
    pub quant: Quant,
    pub samples: Vec<u8>,
}

impl Plane {
    /// Samples that pixels `from..to` need along one axis: with a triangle filter, the neighbour on the far side too.
    pub fn needed(from: u32, to: u32, expand: u32, samples: u32) -> Range<u32> {
        match expand {
            1 => from..to,
            _ => from.saturating_sub(1) / 2..(to / 2 + 1).min(samples),
        }
    }

    /// Offset in `samples` of row `y`, column `left` of the component.
    pub fn row(&self, y: u32) -> usize {
        (y - self.top) as usize * self.stride + MARGIN
    }

    /// Samples in a row of all groups.
    pub fn row_samples(&self) -> usize {
        self.groups * GROUP * self.size as usize
    }

    /// Narrow chroma is repeated, not filtered (jdsample.c, jinit_upsampler).
    pub fn filtered(&self) -> bool {
        self.expand_x == 1 || self.width > 2
    }
}

/// The filter sees the first and last samples of a row repeated.
pub fn replicate_edges(plane: &mut Plane, block_row: u32) {
    for y in block_row * plane.size..(block_row + 1) * plane.size {
        let at = plane.row(y);
        plane.samples[at - 1] = plane.samples[at];
        let right = (plane.width - plane.left) as usize;
        if right <= plane.row_samples() {
            plane.samples[at + right] = plane.samples[at + right - 1];
        }
    }
}

/// Row `y` of the image, from the component's samples: a slice of the plane itself or, upsampled, of `row`.
pub fn upsampled<'a>(
    extension: Extension,
    plane: &'a Plane,
    region: Rect,
    y: u32,
    row: &'a mut [u8],
) -> &'a [u8] {
    let width = region.w as usize;
    let near = (y / plane.expand_y).min(plane.height - 1);
    let far = match (plane.expand_y, y & 1) {
        (1, _) => near,
        (_, 0) => near.saturating_sub(1),
        _ => (near + 1).min(plane.height - 1),
    };
    let column = (region.x / plane.expand_x - plane.left) as usize;
    let from = |y: u32, column: usize| &plane.samples[plane.row(y) + column..];
    if plane.expand_x == 1 {
        if plane.expand_y == 1 {
            return &from(near, column)[..width];
        }
        let bias = if y & 1 == 0 { 1 } else { 2 };
        upsample::blend_rows(
            extension,
            from(near, column),
            from(far, column),
            bias,
            &mut row[..width],
        );
        return &row[..width];
    }
    let odd = (region.x & 1) as usize; // the region starts with the second pixel of a pair
    let pairs = (width + odd).div_ceil(2);
    let column = column.wrapping_sub(1); // the sample before; the margin holds it for the first column
    let samples = |y: u32| &plane.samples[plane.row(y).wrapping_add(column)..];
    if !plane.filtered() {
        upsample::repeat_row(samples(near), pairs, row);
    } else if plane.expand_y == 1 {
        upsample::double_row(extension, samples(near), pairs, row);
    } else {
        upsample::double_blended(extension, samples(near), samples(far), pairs, row);
    }
    &row[odd..odd + width]
}
