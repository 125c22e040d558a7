//! The samples of one component that a region needs, between inverse DCT and colour conversion.

use super::entropy::GROUP;
use super::upsample;
use crate::cpu::Extension;
use crate::geometry::Rect;
use std::ops::Range;

/// Bytes before and after every row of a plane, for replicated edge samples and for vectors that read beyond the row.
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
    /// Side of a transformed block in samples: 8, or fewer at a reduced scale.
    pub size: u32,
    /// Pixels of the image per sample of the component, 1 or 2, horizontally and vertically.
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
    /// Return the samples that pixels `from..to` need along one axis; the triangle filter needs a neighbour on each side.
    pub fn needed(from: u32, to: u32, expand: u32, samples: u32) -> Range<u32> {
        match expand {
            1 => from..to,
            _ => from.saturating_sub(1) / 2..(to / 2 + 1).min(samples),
        }
    }

    /// Return the offset in `samples` of row `y`, column `left` of the component.
    pub fn row(&self, y: u32) -> usize {
        (y - self.top) as usize * self.stride + MARGIN
    }

    /// Return the number of samples in a row of all groups.
    pub fn row_samples(&self) -> usize {
        self.groups * GROUP * self.size as usize
    }

    /// Return whether upsampling filters. Chroma of at most two columns is repeated instead (jdsample.c, jinit_upsampler).
    pub fn filtered(&self) -> bool {
        self.expand_x == 1 || self.width > 2
    }
}

/// Repeat the first and the last sample of each row beyond the edges, for the upsampling filter.
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

/// Return row `y` of the region at full resolution: a slice of the plane or, if upsampled, of `row`.
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
    let column = column.wrapping_sub(1); // the sample before; for the first column it is in the margin
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
