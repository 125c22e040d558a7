//! CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of packed records and of TFRecord, and CRC-64/NVME, by which the index of
//! an image is looked up. Both find damage; neither tells forged bytes from others.

use crc_fast::{CrcAlgorithm, Digest};

/// Return the checksum of `data`. `crc` is the checksum of the bytes before `data`, 0 if there are none.
pub fn crc32c(data: &[u8], crc: u32) -> u32 {
    let state = u64::from(!crc); // the checksum is the complement of the state
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(data);
    digest.finalize() as u32
}

/// Return the CRC-64/NVME of `data` (NVM Express NVM command set 1.0, 5.2.1.3.4), which shares no collision with CRC-32C but by
/// chance.
pub fn crc64(data: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(data);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::{crc32c, crc64};

    #[test]
    fn checksums_match_the_standard() {
        assert_eq!(crc32c(b"123456789", 0), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32], 0), 0x8A91_36AA); // RFC 3720 B.4
        assert_eq!(crc32c(b"", 0), 0);
    }

    #[test]
    fn crc64_matches_the_standard() {
        assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888);
        assert_eq!(crc64(&[0; 4096]), 0x6482_D367_EB22_B64E); // NVM command set, 5.2.1.3.5
    }

    #[test]
    fn a_checksum_continues_over_several_pieces() {
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        let whole = crc32c(&data, 0);
        for cut in [0, 1, 63, 64, 4096, 9999] {
            assert_eq!(crc32c(&data[cut..], crc32c(&data[..cut], 0)), whole);
        }
    }
}
