//! What binds a JPEG index to its image: the length of the bytes, and a keyed digest of them.
//!
//! An index that is used for other bytes gives wrong pixels without an error, and a checksum such as CRC-32C can be forged: whoever
//! makes a dataset can make two images of one checksum. HighwayHash (Alakuijala, Cox and Wassenberg 2016, arXiv 1612.06257) has a
//! secret key: who does not know it cannot make two images of one digest. Each process draws its key once and writes it into its
//! indexes, so that other processes can check them. Who can read an index knows its key, so files of indexes are private.

use std::sync::OnceLock;

use highway::{HighwayHash, HighwayHasher, Key};
use rustix::rand::{getrandom, GetRandomFlags};

/// The bytes of [`Binding::to_bytes`].
pub const BINDING_BYTES: usize = 56;

/// The bytes that an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Binding {
    length: u64,
    key: [u64; 4],
    digest: [u64; 2],
}

impl Binding {
    /// Bind to `data`, by the key of this process. `None` if the system gives no random numbers.
    pub fn of(data: &[u8]) -> Option<Self> {
        process_key().map(|key| Self::by(key, data))
    }

    fn by(key: [u64; 4], data: &[u8]) -> Self {
        Binding {
            length: data.len() as u64,
            key,
            digest: HighwayHasher::new(Key(key)).hash128(data),
        }
    }

    /// Return whether `data` are the bytes that were bound.
    pub fn fits(&self, data: &[u8]) -> bool {
        self.length == data.len() as u64 && *self == Self::by(self.key, data)
    }

    /// Return length, key and digest, little-endian.
    pub fn to_bytes(self) -> [u8; BINDING_BYTES] {
        let mut bytes = [0; BINDING_BYTES];
        let numbers = [self.length].into_iter().chain(self.key).chain(self.digest);
        for (number, field) in numbers.zip(bytes.chunks_exact_mut(8)) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Read what [`Binding::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8; BINDING_BYTES]) -> Self {
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_le_bytes(field)
        };
        Binding {
            length: number(0),
            key: [1, 2, 3, 4].map(number),
            digest: [5, 6].map(number),
        }
    }
}

/// Return the key of this process, which the system's random numbers give.
fn process_key() -> Option<[u64; 4]> {
    static KEY: OnceLock<Option<[u64; 4]>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut bytes = [0; 32]; // up to 256 bytes come at once (getrandom(2))
        let drawn = getrandom(&mut bytes, GetRandomFlags::empty());
        drawn.is_ok_and(|drawn| drawn == bytes.len()).then(|| {
            let mut key = [0; 4];
            for (word, field) in key.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = field
                    .iter()
                    .fold(0, |word, &byte| word << 8 | u64::from(byte));
            }
            key
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_reference() {
        // google/highwayhash, highwayhash_test.cc, kExpected128: key 0706050403020100…, the bytes 0, 1, 2, … up to the length.
        let key = [
            0x0706_0504_0302_0100,
            0x0F0E_0D0C_0B0A_0908,
            0x1716_1514_1312_1110,
            0x1F1E_1D1C_1B1A_1918,
        ];
        let digest = |length: u8| Binding::by(key, &(0..length).collect::<Vec<u8>>()).digest;
        assert_eq!(digest(0), [0x0FED_268F_9D8F_FEC7, 0x3356_5E76_7F09_3E6F]);
        assert_eq!(digest(1), [0xD6B0_A889_3681_E7A8, 0xDC29_1DF9_EB9C_DCB4]);
    }

    #[test]
    fn other_bytes_do_not_fit() {
        let data: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        let bound = Binding::of(&data).expect("random numbers");
        assert!(bound.fits(&data) && !bound.fits(&data[1..]) && !bound.fits(b""));
        for bit in 0..8 * data.len() {
            let mut other = data.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!bound.fits(&other), "bit {bit}");
        }
        assert_eq!(Binding::from_bytes(&bound.to_bytes()), bound);
        let mut keyless = bound;
        keyless.key[3] ^= 1;
        assert!(!keyless.fits(&data), "the key counts");
        assert_ne!(bound.key, [0; 4]);
    }
}
