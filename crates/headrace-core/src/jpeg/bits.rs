//! The bit stream of entropy-coded data: a 64-bit window over bytes in which `FF 00` stands for `FF` and a marker ends the data.

/// Reads bits, most significant first. Behind the end of the data (a marker, or the last byte) it delivers zeros, and
/// [`BitReader::overrun`] tells how many of those have been used, so that the hot loops need no checks.
#[derive(Debug, Clone, Copy)]
pub struct BitReader<'a> {
    data: &'a [u8],
    /// Offset of the next byte to load.
    position: usize,
    /// The next bits, left-aligned.
    window: u64,
    /// Valid bits in the window, invented ones included.
    count: u32,
    /// Zeros invented behind the end.
    invented: u32,
}

/// True if one of the eight bytes is `FF` (the classic zero-byte test on the complement).
#[inline(always)]
fn has_ff(word: u64) -> bool {
    let inverted = !word;
    inverted.wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080 != 0
}

impl<'a> BitReader<'a> {
    /// A reader whose first bit is bit `bit` (0 = most significant) of the byte at `position`.
    pub fn new(data: &'a [u8], position: usize, bit: u32) -> Self {
        let mut reader = BitReader {
            data,
            position: position.min(data.len()),
            window: 0,
            count: 0,
            invented: 0,
        };
        reader.refill();
        reader.skip(bit);
        reader
    }

    /// Makes at least 56 bits valid.
    #[inline(always)]
    pub fn refill(&mut self) {
        let (window, count) = self.refilled(self.window, self.count);
        (self.window, self.count) = (window, count);
    }

    /// As [`BitReader::refill`], with the window and its number of valid bits kept by the caller, in registers.
    #[inline(always)]
    pub fn refilled(&mut self, window: u64, count: u32) -> (u64, u32) {
        if let Some(bytes) = self
            .data
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            let word = u64::from_be_bytes(*bytes);
            if !has_ff(word) {
                // Bits below `count` may be set already, to the same values: the byte they came from is loaded again.
                self.position += ((63 - count) >> 3) as usize;
                return (window | word >> count, count | 56);
            }
        }
        // On a copy: a reader whose address were taken here could not live in registers.
        let mut copy = BitReader {
            window,
            count,
            ..*self
        };
        copy.refill_slowly();
        *self = copy;
        (copy.window, copy.count)
    }

    /// The window and its number of valid bits, to be kept by the caller.
    #[inline(always)]
    pub fn lend(&self) -> (u64, u32) {
        (self.window, self.count)
    }

    /// Takes back what was lent.
    #[inline(always)]
    pub fn take_back(&mut self, (window, count): (u64, u32)) {
        (self.window, self.count) = (window, count);
    }

    /// Refills where an `FF` or the end of the data is near: whole bytes up to the `FF` at once, then what the `FF` stands for.
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
                (Some(&byte), _) if byte != 0xFF => {} // the last bytes of the file come in one by one
                _ => {
                    let zeros = (63 - self.count) / 8 * 8;
                    self.invented += zeros;
                    self.count += zeros;
                    return;
                }
            }
        }
    }

    /// How many bytes from here on are no `FF`, at most 8.
    #[inline(always)]
    fn plain_bytes(&self) -> u32 {
        match self
            .data
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            Some(bytes) => {
                let inverted = !u64::from_le_bytes(*bytes);
                // The lowest zero byte is found exactly; bytes above it may be mistaken, but do not count.
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

    /// The next bits, left-aligned; 56 are valid after [`BitReader::refill`], less those skipped since.
    #[inline(always)]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Drops `bits` (below 64; no more than are valid).
    #[inline(always)]
    pub fn skip(&mut self, bits: u32) {
        self.window <<= bits & 63;
        self.count -= bits & 63;
    }

    /// Number of invented bits that have been used: more than 0 means that the data ended too early.
    pub fn overrun(&self) -> u32 {
        self.invented.saturating_sub(self.count)
    }

    /// Byte offset and bit of the next bit to be read, such that [`BitReader::new`] continues there.
    pub fn tell(&self) -> (usize, u32) {
        let unread = self.count - self.invented.min(self.count);
        let mut position = self.position;
        for _ in 0..unread.div_ceil(8) {
            position -= 1;
            if position > 0 && self.data[position] == 0 && self.data[position - 1] == 0xFF {
                position -= 1;
            }
        }
        (position, (8 - unread % 8) % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bits of `data` with stuffing removed, up to the first marker.
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
    fn tell_names_the_place_where_reading_goes_on() {
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
}
