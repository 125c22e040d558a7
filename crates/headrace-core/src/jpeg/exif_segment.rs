//! A minimal EXIF segment, for files whose pixels are not stored upright.

use crate::geometry::Orientation;

/// Return the payload of an APP1 segment with one directory that holds only `orientation`.
pub fn orientation_payload(orientation: Orientation) -> Vec<u8> {
    let mut block = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    block.extend_from_slice(&[orientation as u8, 0, 0, 0, 0, 0, 0]);
    block
}
