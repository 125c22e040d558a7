//! Images that the device decodes together, and the memory that they need.

/// Images whose scratch memory fits the limit together: the kernels run once for each group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Group {
    /// First record, and their number.
    pub first: u32,
    /// Number of images.
    pub images: u32,
    /// Blocks of 64 coefficients (16 bits each), and of 64 samples.
    pub blocks: u32,
    /// Bytes of pixels between the two passes of the resize.
    pub middle: u32,
    /// 32-bit words of filter weights.
    pub table: u32,
    /// CUDA blocks of the five kernels: entropy, IDCT, weights, first pass, second pass.
    pub chunks: [u32; 5],
}

impl Group {
    /// Return the device memory that the images need together.
    pub fn scratch_bytes(&self) -> u64 {
        u64::from(self.blocks) * (128 + 64) + u64::from(self.middle) + u64::from(self.table) * 4
    }

    /// Return the sum of both, or `None` if a field overflows.
    pub(super) fn plus(&self, other: &Group) -> Option<Group> {
        let mut sum = Group {
            first: self.first,
            images: self.images + other.images,
            blocks: self.blocks.checked_add(other.blocks)?,
            middle: self.middle.checked_add(other.middle)?,
            table: self.table.checked_add(other.table)?,
            chunks: self.chunks,
        };
        for (chunks, more) in sum.chunks.iter_mut().zip(other.chunks) {
            *chunks = chunks.checked_add(more).filter(|&n| n < 1 << 31)?;
        }
        Some(sum)
    }
}
