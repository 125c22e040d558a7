//! The loop filter that the frame header of a lossy WebP states (RFC 6386, sections 9.2 to 9.6). The library limits a level before it
//! adds the differences for modes, libwebp only behind it. Encoders stay within the limits; a damaged header may not.

/// Return whether the library filters a frame, given by its first partition, as libwebp does.
pub fn is_filtered_alike(partition: &[u8]) -> bool {
    let mut bits = Bits::new(partition);
    bits.literal(2); // colour space and clamping
    let segments = Segments::read(&mut bits);
    bits.flag(); // the simple filter
    let level = bits.literal(6);
    bits.literal(3); // sharpness
    if level == 0 || !bits.flag() || !bits.flag() {
        return true; // no filter, or no differences
    }
    let mut differences = || [(); 4].map(|()| bits.optional(6));
    let (of_frames, of_modes) = (differences(), differences());
    let limited = |level: i32| level.clamp(0, 63);
    segments.levels(level).into_iter().all(|level| {
        [of_frames[0], of_frames[0] + of_modes[0]]
            .into_iter()
            .all(|difference| limited(level + difference) == limited(limited(level) + difference))
    })
}

/// The levels of the segments of a frame.
struct Segments {
    used: bool,
    /// The levels are added to that of the frame.
    added: bool,
    levels: [i32; 4],
}

impl Segments {
    fn read(bits: &mut Bits<'_>) -> Self {
        let mut segments = Segments {
            used: bits.flag(),
            added: false,
            levels: [0; 4],
        };
        if !segments.used {
            return segments;
        }
        let (map, data) = (bits.flag(), bits.flag());
        if data {
            segments.added = !bits.flag();
            for _ in 0..4 {
                bits.optional(7); // quantisers
            }
            segments.levels = [(); 4].map(|()| bits.optional(6));
        }
        for _ in 0..if map { 3 } else { 0 } {
            if bits.flag() {
                bits.literal(8); // a probability
            }
        }
        segments
    }

    /// Return the levels before they are limited, of a frame with this one.
    fn levels(&self, frame: i32) -> [i32; 4] {
        match (self.used, self.added) {
            (false, _) => [frame; 4],
            (true, false) => self.levels,
            (true, true) => self.levels.map(|level| frame + level),
        }
    }
}

/// The boolean decoder (RFC 6386, section 7), for values of equal probability. Zeros follow the data.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    value: u32,
    range: u32,
    shifts: u32,
}

impl<'a> Bits<'a> {
    fn new(data: &'a [u8]) -> Self {
        let byte = |at: usize| data.get(at).map_or(0, |&byte| u32::from(byte));
        Bits {
            data,
            at: 2,
            value: byte(0) << 8 | byte(1),
            range: 255,
            shifts: 0,
        }
    }

    fn flag(&mut self) -> bool {
        let split = 1 + (((self.range - 1) * 128) >> 8);
        let set = self.value >= split << 8;
        if set {
            self.range -= split;
            self.value -= split << 8;
        } else {
            self.range = split;
        }
        while self.range < 128 {
            self.value <<= 1;
            self.range <<= 1;
            self.shifts += 1;
            if self.shifts == 8 {
                self.shifts = 0;
                self.value |= self.data.get(self.at).map_or(0, |&byte| u32::from(byte));
                self.at += 1;
            }
        }
        set
    }

    fn literal(&mut self, bits: u32) -> i32 {
        (0..bits).fold(0, |value, _| value << 1 | i32::from(self.flag()))
    }

    /// Read a number with a sign that may be missing.
    fn optional(&mut self, bits: u32) -> i32 {
        if !self.flag() {
            return 0;
        }
        let value = self.literal(bits);
        if self.flag() {
            -value
        } else {
            value
        }
    }
}
