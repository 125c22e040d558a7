//! The EXIF orientation of an image: one number in a TIFF structure that JPEG, PNG, WebP and TIFF files carry.

/// How the stored pixels must be turned to stand upright (EXIF tag 0x0112). 1 is upright already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Orientation {
    /// As stored.
    #[default]
    Upright = 1,
    /// Mirror left-right.
    FlipX = 2,
    /// Turn by 180°.
    Rotate180 = 3,
    /// Mirror top-bottom.
    FlipY = 4,
    /// Mirror along the main diagonal.
    Transpose = 5,
    /// Turn by 90° clockwise.
    Rotate90 = 6,
    /// Mirror along the other diagonal.
    Transverse = 7,
    /// Turn by 90° counter-clockwise.
    Rotate270 = 8,
}

impl Orientation {
    /// The orientation with this EXIF number, 1 to 8.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Orientation::Upright,
            2 => Orientation::FlipX,
            3 => Orientation::Rotate180,
            4 => Orientation::FlipY,
            5 => Orientation::Transpose,
            6 => Orientation::Rotate90,
            7 => Orientation::Transverse,
            8 => Orientation::Rotate270,
            _ => return None,
        })
    }
}

/// The tag's number in the first image directory (EXIF 2.32, table 4).
const ORIENTATION_TAG: u32 = 0x0112;

/// The orientation that a TIFF structure (an EXIF block behind `Exif\0\0`, or a whole TIFF file) states; damage or an
/// unknown number count as none, as for Pillow.
pub fn orientation_in_tiff(tiff: &[u8]) -> Option<Orientation> {
    let big_endian = match tiff.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let number = |offset: usize, bytes: usize| -> Option<u32> {
        let field = tiff.get(offset..offset.checked_add(bytes)?)?;
        let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
        Some(if big_endian {
            field.iter().fold(0, fold)
        } else {
            field.iter().rev().fold(0, fold)
        })
    };
    let directory = number(4, 4)? as usize;
    let entries = number(directory, 2)? as usize;
    (0..entries)
        .map_while(|entry| {
            let offset = directory.checked_add(2 + 12 * entry)?;
            Some((number(offset, 2)?, offset))
        })
        .find(|&(tag, _)| tag == ORIENTATION_TAG)
        .and_then(|(_, offset)| match number(offset + 2, 2)? {
            1 => number(offset + 8, 1), // BYTE
            3 => number(offset + 8, 2), // SHORT, the standard's type
            4 => number(offset + 8, 4), // LONG
            _ => None,
        })
        .and_then(Orientation::from_number)
}

/// A minimal EXIF block for an APP1 segment: one directory with the orientation.
pub fn exif_with_orientation(orientation: Orientation) -> Vec<u8> {
    let mut block = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    block.extend_from_slice(&[orientation as u8, 0, 0, 0, 0, 0, 0]);
    block
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_minimal_block_reads_back() {
        for number in 1..=8 {
            let orientation = Orientation::from_number(number).unwrap();
            let block = exif_with_orientation(orientation);
            assert_eq!(orientation_in_tiff(&block[6..]), Some(orientation));
            for length in 6..block.len() - 6 {
                assert_eq!(
                    orientation_in_tiff(&block[6..length]),
                    None,
                    "cut at {length}"
                );
            }
        }
    }

    #[test]
    fn little_endian_and_other_tags_before() {
        let tiff = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x04\0\0\0abc\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(orientation_in_tiff(tiff), Some(Orientation::Rotate90));
    }

    #[test]
    fn nonsense_is_no_orientation() {
        assert_eq!(orientation_in_tiff(b""), None);
        assert_eq!(orientation_in_tiff(b"MM\0*\xff\xff\xff\xff"), None);
        let mut block = exif_with_orientation(Orientation::FlipX);
        block[25] = 9;
        assert_eq!(orientation_in_tiff(&block[6..]), None);
    }
}
