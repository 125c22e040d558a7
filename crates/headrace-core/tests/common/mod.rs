//! Helpers of the golden tests: the source images of `golden/make_golden.py` and its hash.
#![allow(dead_code)] // each test binary uses a part

/// Return a test image, interleaved RGB: kind 0 noise, 1 smooth with a little noise, 2 black and white noise.
pub fn pattern(width: u32, height: u32, kind: u32) -> Vec<u8> {
    let mixed = |index: u32| {
        let mut value = index.wrapping_add(1).wrapping_mul(2_654_435_761);
        value ^= value >> 15;
        value = value.wrapping_mul(2_246_822_519);
        value ^ (value >> 13)
    };
    (0..width * height * 3)
        .map(|index| match kind {
            0 => (mixed(index) >> 8) as u8,
            1 => {
                let (channel, x, y) = (index % 3, index / 3 % width, index / 3 / width);
                ((x * 5 + y * 3 + channel * 40) % 240 + (mixed(index) >> 28)) as u8
            }
            _ => ((mixed(index) >> 31) * 255) as u8,
        })
        .collect()
}

/// Return the 64-bit FNV-1a hash of `data`.
pub fn fnv1a(data: &[u8]) -> u64 {
    data.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Return the cases of a golden file: the words of each line that is not a comment.
pub fn cases(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect()
}
