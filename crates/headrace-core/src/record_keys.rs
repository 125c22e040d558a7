//! Record keys from file names (docs/reference/format.md, "Keys"), for a chunk of names at a time. `datasets/shards/keys.py` defines
//! them for one name.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

/// Names or keys, one after the other, and the start of each; the last start is the end.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    bytes: &'a [u8],
    start: &'a [i64],
}

impl<'a> Texts<'a> {
    /// Return the texts; `None` if the starts do not cut the bytes into pieces.
    pub fn new(bytes: &'a [u8], start: &'a [i64]) -> Option<Self> {
        let last = usize::try_from(*start.last()?).ok()?;
        let is_cut = start[0] >= 0 && start.windows(2).all(|pair| pair[0] <= pair[1]);
        (is_cut && last <= bytes.len()).then_some(Texts { bytes, start })
    }

    /// Return the texts, in order.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.start
            .windows(2)
            .map(move |pair| &self.bytes[pair[0] as usize..pair[1] as usize])
    }
}

/// Return a hash of each text, or of its stem. Hashes of one process can be compared.
pub fn hashes(texts: Texts<'_>, stems: bool) -> Vec<u64> {
    let hash = |text: &[u8]| {
        let mut hasher = DefaultHasher::new();
        hasher.write(if stems { split(text).0 } else { text });
        hasher.finish()
    };
    texts.iter().map(hash).collect()
}

/// Return a number for each text that depends on the text and `salt` alone, on any machine and in any version: the digest of
/// Python's `hashlib.blake2b(text, digest_size=8, salt=salt)`, little-endian.
pub fn order_numbers(texts: Texts<'_>, salt: [u8; 16]) -> Vec<u64> {
    let mut digest = blake2b_simd::Params::new();
    digest.hash_length(8).salt(&salt);
    let number = |text| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(digest.hash(text).as_bytes());
        u64::from_le_bytes(bytes)
    };
    texts.iter().map(number).collect()
}

/// Return the keys of names, one after the other, and the length of each. `shared`: not 0 where another name has the same stem.
pub fn keys_of(names: Texts<'_>, shared: &[u8]) -> (Vec<u8>, Vec<i64>) {
    let mut keys = Vec::with_capacity(names.bytes.len());
    let mut lengths = Vec::with_capacity(shared.len());
    for (name, &is_shared) in names.iter().zip(shared) {
        let begin = keys.len();
        let (stem, ending) = split(name);
        escape(stem, &mut keys);
        if is_shared != 0 || ending.is_empty() {
            keys.push(b'=');
            escape(ending, &mut keys);
        }
        lengths.push((keys.len() - begin) as i64);
    }
    (keys, lengths)
}

/// Return the name before and after the last dot of its last part; a leading dot starts no ending (Python's `os.path.splitext`).
fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let base = memchr::memrchr(b'/', name).map_or(0, |slash| slash + 1);
    match memchr::memrchr(b'.', &name[base..]) {
        Some(dot) if name[base..base + dot].iter().any(|&byte| byte != b'.') => {
            (&name[..base + dot], &name[base + dot + 1..])
        }
        _ => (name, &[]),
    }
}

/// Append `text` with dots, percent signs, equal signs, backslashes, control characters and non-UTF-8 bytes as `%XX`.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            if matches!(byte, b'.' | b'%' | b'=' | b'\\' | 0..=0x1F | 0x7F) {
                escape_byte(byte, out);
            } else {
                out.push(byte);
            }
        }
        for &byte in chunk.invalid() {
            escape_byte(byte, out);
        }
    }
}

fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([
        b'%',
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_become_keys() {
        let names: [&[u8]; 6] = [
            b"n01/a.b.JPEG",
            b"a.jpg",
            b"n/.hidden",
            b"caf\xe9.png",
            b"a\\b=.x",
            b"..c.d",
        ];
        let expected = "n01/a%2Eb|a=jpg|n/%2Ehidden=|caf%E9|a%5Cb%3D|%2E%2Ec";
        let mut start = vec![0];
        for name in names {
            start.push(start.last().unwrap() + name.len() as i64);
        }
        let bytes = names.concat();
        let texts = Texts::new(&bytes, &start).unwrap();
        let (keys, lengths) = keys_of(texts, &[0, 1, 0, 0, 0, 0]);
        assert_eq!(keys, expected.replace('|', "").into_bytes());
        let sizes: Vec<i64> = expected.split('|').map(|key| key.len() as i64).collect();
        assert_eq!(lengths, sizes);
        assert_eq!(
            hashes(texts, true)[1],
            hashes(Texts::new(b"a", &[0, 1]).unwrap(), false)[0]
        );
    }

    #[test]
    fn wrong_starts_are_refused() {
        for start in [&[][..], &[1, 0], &[-1, 0], &[0, 9]] {
            assert!(Texts::new(b"abc", start).is_none());
        }
        assert!(Texts::new(b"", &[0]).is_some());
    }

    #[test]
    fn order_numbers_are_digests_of_pythons_hashlib() {
        let data: Vec<u8> = (0..=255).cycle().take(300).collect();
        let salt = *b"order 1\0\0\0\0\0\0\0\0\0";
        for (length, expected) in [
            (0, 0x4876BB575A715B3F),
            (1, 0x624736416FD3A399),
            (24, 0x06773E89F511C3F0),
            (127, 0xB67CF1407FC09D6B),
            (128, 0xBE7BD8BC219952AC),
            (129, 0x2B7358B400AF5107),
            (256, 0x4BF86FA429AD919C),
            (300, 0x87BE4423F408A0C3),
        ] {
            let start = [0, length as i64];
            let text = Texts::new(&data[..length], &start).expect("one text");
            assert_eq!(order_numbers(text, salt), [expected], "{length} bytes");
        }
    }
}
