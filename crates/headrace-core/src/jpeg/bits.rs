//! The bit stream of entropy-coded data: a 64-bit window over bytes in which `FF 00` stands for `FF` and a marker ends the data.

/// A reader of bits, most significant first. After the end of the data (a marker, or the last byte) it returns zeros, and
/// [`BitReader::overrun`] counts how many of them were used, so that the hot loops need no checks.
#[derive(Debug, Clone, Copy)]
pub struct BitReader<'a> {
    data: &'a [u8],
    /// Offset of the first byte.
    start: usize,
    /// Offset of the next byte to load.
    position: usize,
    /// The next bits, left-aligned.
    window: u64,
    /// Valid bits in the window, padding included.
    count: u32,
    /// Zero bits that were padded after the end.
    padded: u32,
}

/// Return true if one of the eight bytes is `FF` (the classic zero-byte test on the complement).
#[inline(always)]
fn has_ff(word: u64) -> bool {
    let inverted = !word;
    inverted.wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080 != 0
}

impl<'a> BitReader<'a> {
    /// Make a reader whose first bit is bit `bit` (0 = most significant) of the byte at `position`.
    pub fn new(data: &'a [u8], position: usize, bit: u32) -> Self {
        let start = position.min(data.len());
        let mut reader = BitReader {
            data,
            start,
            position: start,
            window: 0,
            count: 0,
            padded: 0,
        };
        reader.refill();
        reader.skip(bit);
        reader
    }

    /// Make at least 56 bits valid.
    #[inline(always)]
    pub fn refill(&mut self) {
        let (window, count) = self.refilled(self.window, self.count);
        (self.window, self.count) = (window, count);
    }

    /// Refill as [`BitReader::refill`] does, for a caller that keeps the window and its number of valid bits in registers.
    #[inline(always)]
    pub fn refilled(&mut self, window: u64, count: u32) -> (u64, u32) {
        if let Some(bytes) = self
            .data
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            let word = u64::from_be_bytes(*bytes);
            if !has_ff(word) {
                // Bits below `count` may be set already. They have the right values, because their byte is loaded again.
                self.position += ((63 - count) >> 3) as usize;
                return (window | word >> count, count | 56);
            }
        }
        // On a copy: a reader whose address is taken cannot stay in registers.
        let mut copy = BitReader {
            window,
            count,
            ..*self
        };
        copy.refill_slowly();
        *self = copy;
        (copy.window, copy.count)
    }

    /// Return the window and its number of valid bits, for a caller that keeps them in registers.
    #[inline(always)]
    pub fn lend(&self) -> (u64, u32) {
        (self.window, self.count)
    }

    /// Store the window and its number of valid bits again after [`BitReader::lend`].
    #[inline(always)]
    pub fn take_back(&mut self, (window, count): (u64, u32)) {
        (self.window, self.count) = (window, count);
    }

    /// Refill near an `FF` or the end of the data: all bytes before the `FF` at once, then the byte that the `FF` encodes.
    #[cold]
    #[inline(never)]
    fn refill_slowly(&mut self) {
        loop {
            let room = (63 - self.count) / 8; // bytes
            let plain = self.plain_bytes().min(room);
            if plain > 0 {
                let word = (0..8).fold(0, |word, i| {
                    word << 8 | u64::from(self.data.get(self.position + i).copied().unwrap_or(0))
                });
                self.window |= (word & !(u64::MAX >> (8 * plain - 1) >> 1)) >> self.count;
                self.position += plain as usize;
                self.count += 8 * plain;
            }
            if self.count >= 56 {
                return;
            }
            match (
                self.data.get(self.position),
                self.data.get(self.position + 1),
            ) {
                (Some(0xFF), Some(0)) => {
                    self.window |= 0xFF << (56 - self.count);
                    self.position += 2;
                    self.count += 8;
                }
                (Some(&byte), _) if byte != 0xFF => {} // the last bytes of the file are loaded one by one
                _ => {
                    let zeros = (63 - self.count) / 8 * 8;
                    // Skipping most of a large damaged image can take more than 2^32 bits.
                    self.padded = self.padded.saturating_add(zeros);
                    self.count += zeros;
                    return;
                }
            }
        }
    }

    /// Return the number of bytes up to the next `FF`, at most 8.
    #[inline(always)]
    fn plain_bytes(&self) -> u32 {
        match self
            .data
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            Some(bytes) => {
                let inverted = !u64::from_le_bytes(*bytes);
                // The test is exact for the lowest zero byte. It may be wrong for bytes above, which do not matter.
                let zeros = inverted.wrapping_sub(0x0101_0101_0101_0101)
                    & !inverted
                    & 0x8080_8080_8080_8080;
                zeros.trailing_zeros() / 8
            }
            None => u32::from(
                self.data
                    .get(self.position)
                    .is_some_and(|&byte| byte != 0xFF),
            ),
        }
    }

    /// Return the next bits, left-aligned; 56 are valid after [`BitReader::refill`], less those skipped since.
    #[inline(always)]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Skip `bits` bits (below 64, and no more than are valid).
    #[inline(always)]
    pub fn skip(&mut self, bits: u32) {
        self.window <<= bits & 63;
        self.count -= bits & 63;
    }

    /// Return the number of padded bits that were used. More than 0 means that the data ended too early.
    pub fn overrun(&self) -> u32 {
        self.padded.saturating_sub(self.count)
    }

    /// Return byte offset and bit number of the next bit, from which [`BitReader::new`] continues.
    pub fn tell(&self) -> (usize, u32) {
        let unread = self.count - self.padded.min(self.count);
        let mut position = self.position;
        for _ in 0..unread.div_ceil(8) {
            position -= 1;
            // An `FF` before the start belongs to something else, such as a damaged header.
            let stuffed = position > self.start && self.data[position] == 0;
            if stuffed && self.data[position - 1] == 0xFF {
                position -= 1;
            }
        }
        (position, (8 - unread % 8) % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return all bits of `data` with stuffing removed, up to the first marker.
    fn plain_bits(data: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        let mut at = 0;
        while at < data.len() && !(data[at] == 0xFF && data.get(at + 1) != Some(&0)) {
            bits.extend((0..8).rev().map(|bit| data[at] >> bit & 1));
            at += if data[at] == 0xFF { 2 } else { 1 };
        }
        bits
    }

    fn sample() -> Vec<u8> {
        let mut data: Vec<u8> = (0..200u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        data.iter_mut()
            .filter(|byte| **byte == 0xFF)
            .for_each(|byte| *byte = 0xFE);
        for at in [0, 1, 30, 31, 32, 33, 64, 66, 68, 150, 190] {
            data.splice(at..at, [0xFF, 0]);
        }
        data.extend([0xFF, 0xD9, 1, 2, 3]);
        data
    }

    #[test]
    fn bits_come_in_order_and_end_at_the_marker() {
        let data = sample();
        let bits = plain_bits(&data);
        for step in 1..=27u32 {
            let mut reader = BitReader::new(&data, 0, 0);
            let mut at = 0;
            while at + step as usize <= bits.len() {
                reader.refill();
                let value = reader.window() >> (64 - step);
                let expected = bits[at..at + step as usize]
                    .iter()
                    .fold(0, |sum, &bit| sum << 1 | u64::from(bit));
                assert_eq!(value, expected, "step {step} at {at}");
                reader.skip(step);
                at += step as usize;
                assert_eq!(reader.overrun(), 0);
            }
            reader.refill();
            reader.skip(step);
            assert_eq!(reader.overrun(), (at as u32 + step) - bits.len() as u32);
        }
    }

    #[test]
    fn a_new_reader_continues_where_tell_points() {
        let data = sample();
        let mut reader = BitReader::new(&data, 0, 0);
        for _ in 0..120 {
            reader.refill();
            reader.skip(13);
            let (position, bit) = reader.tell();
            let mut again = BitReader::new(&data, position, bit);
            reader.refill();
            again.refill();
            assert_eq!(reader.window() >> 12, again.window() >> 12);
        }
    }

    #[test]
    fn an_overrun_of_any_length_is_noticed() {
        let mut reader = BitReader {
            padded: u32::MAX - 63,
            ..BitReader::new(&[], 0, 0)
        };
        for _ in 0..3 {
            reader.skip(56);
            reader.refill();
            assert!(reader.overrun() > 0);
        }
    }

    #[test]
    fn a_byte_before_the_start_is_no_stuffing() {
        let data = [0xFF, 0, 0x12, 0x34, 0xFF, 0, 0x56];
        let mut reader = BitReader::new(&data, 1, 0);
        assert_eq!(reader.tell(), (1, 0));
        reader.skip(3);
        assert_eq!(reader.tell(), (1, 3));
        reader.skip(21);
        assert_eq!(reader.tell(), (4, 0));
    }
}
