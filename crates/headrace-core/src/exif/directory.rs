//! The directories of a TIFF structure, read as Pillow reads them (TiffImagePlugin.py, `ImageFileDirectory_v2.load`).

/// A directory of fields in a TIFF structure.
pub(crate) struct Directory<'a> {
    tiff: &'a [u8],
    big_endian: bool,
    position: usize,
    pub(super) count: usize,
}

/// A field of a directory, with the bytes of its values.
pub(crate) struct Field<'a> {
    /// The number that says what the field is.
    pub(crate) tag: u32,
    /// The type of its values ([`unit`]).
    pub(crate) kind: u32,
    /// The number of values.
    pub(crate) count: u32,
    /// All values. Never empty.
    pub(crate) data: &'a [u8],
    big_endian: bool,
}

/// The types of values (TIFF 6.0, section 2; 13 is that of pointers to directories, 16 one of BigTIFF).
pub(crate) mod kind {
    pub(crate) const BYTE: u32 = 1;
    pub(crate) const ASCII: u32 = 2;
    pub(crate) const SHORT: u32 = 3;
    pub(crate) const LONG: u32 = 4;
    pub(crate) const RATIONAL: u32 = 5;
    pub(crate) const SBYTE: u32 = 6;
    pub(crate) const UNDEFINED: u32 = 7;
    pub(crate) const SSHORT: u32 = 8;
    pub(crate) const SLONG: u32 = 9;
    pub(crate) const SRATIONAL: u32 = 10;
    pub(crate) const FLOAT: u32 = 11;
    pub(crate) const DOUBLE: u32 = 12;
    pub(crate) const IFD: u32 = 13;
    pub(crate) const LONG8: u32 = 16;
}

/// Return the size of one value of a type in bytes; `None` for types that Pillow passes over.
fn unit(of: u32) -> Option<u64> {
    match of {
        kind::BYTE | kind::ASCII | kind::SBYTE | kind::UNDEFINED => Some(1),
        kind::SHORT | kind::SSHORT => Some(2),
        kind::LONG | kind::SLONG | kind::FLOAT | kind::IFD => Some(4),
        kind::RATIONAL | kind::SRATIONAL | kind::DOUBLE | kind::LONG8 => Some(8),
        _ => None,
    }
}

/// Return the number that some bytes are, at most eight.
fn number(bytes: &[u8], big_endian: bool) -> u64 {
    let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    if big_endian {
        bytes.iter().fold(0, fold)
    } else {
        bytes.iter().rev().fold(0, fold)
    }
}

impl<'a> Field<'a> {
    /// Return whether Pillow takes the values as one string of bytes or characters.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self.kind, kind::BYTE | kind::ASCII | kind::UNDEFINED)
    }

    /// Return the first value, where it is a whole number of at most 32 bits without a sign, whatever its type.
    pub(crate) fn number(&self) -> Option<u32> {
        let part = |at: usize, bytes: usize| {
            let field = self.data.get(at..at + bytes)?;
            Some(number(field, self.big_endian))
        };
        let whole = |value: f64| (value.fract() == 0.0).then_some(value as i64);
        let value = match self.kind {
            kind::SHORT => i64::try_from(part(0, 2)?).ok(),
            kind::LONG | kind::IFD => i64::try_from(part(0, 4)?).ok(),
            kind::LONG8 => i64::try_from(part(0, 8)?).ok(),
            kind::SBYTE => Some(i64::from(part(0, 1)? as u8 as i8)),
            kind::SSHORT => Some(i64::from(part(0, 2)? as u16 as i16)),
            kind::SLONG => Some(i64::from(part(0, 4)? as u32 as i32)),
            kind::RATIONAL => quotient(part(0, 4)? as i64, part(4, 4)? as i64),
            kind::SRATIONAL => {
                let signed = |value: u64| i64::from(value as u32 as i32);
                quotient(signed(part(0, 4)?), signed(part(4, 4)?))
            }
            kind::FLOAT => whole(f64::from(f32::from_bits(part(0, 4)? as u32))),
            kind::DOUBLE => whole(f64::from_bits(part(0, 8)?)),
            _ => None,
        };
        value.and_then(|value| u32::try_from(value).ok())
    }

    /// Return the whole numbers of two or four bytes at `at`, in the byte order of the structure.
    pub(crate) fn part(&self, at: usize, bytes: usize) -> Option<u64> {
        let field = self.data.get(at..at.checked_add(bytes)?)?;
        Some(number(field, self.big_endian))
    }
}

/// Return a quotient that is a whole number.
fn quotient(numerator: i64, denominator: i64) -> Option<i64> {
    (denominator != 0 && numerator % denominator == 0).then(|| numerator / denominator)
}

impl<'a> Directory<'a> {
    /// Find the first directory; `None` if the structure does not begin as TIFF. Pillow accepts both orders of the bytes of 42.
    pub(crate) fn first(tiff: &'a [u8]) -> Option<Self> {
        let big_endian = match tiff.get(..4)? {
            b"MM\0*" | b"MM*\0" => true,
            b"II*\0" | b"II\0*" => false,
            _ => return None,
        };
        let position = number(tiff.get(4..8)?, big_endian) as usize;
        Directory {
            tiff,
            big_endian,
            position,
            count: 0,
        }
        .at(position)
    }

    /// Return the directory at an offset of the same structure; `None` if nothing is there.
    pub(crate) fn at(&self, position: usize) -> Option<Self> {
        let count = self.tiff.get(position..position.checked_add(2)?)?;
        Some(Directory {
            count: number(count, self.big_endian) as usize,
            position,
            ..*self
        })
    }

    /// Return the offset of entry `index`, if it lies in the data.
    fn entry(&self, index: usize) -> Option<usize> {
        let offset = self.position.checked_add(2 + 12 * index)?;
        self.tiff.get(offset..offset.checked_add(12)?)?;
        Some(offset)
    }

    /// Return whether all entries lie in the data.
    pub(super) fn is_whole(&self) -> bool {
        self.count == 0 || self.entry(self.count - 1).is_some()
    }

    /// Visit the fields that Pillow takes note of, in the order of the file: of several with one tag the first. Fields of unknown
    /// types and without values are passed over. Return whether Pillow reads the whole directory without a warning.
    pub(crate) fn walk(&self, mut visit: impl FnMut(&Field<'a>)) -> bool {
        let number = |bytes: &[u8]| number(bytes, self.big_endian);
        let mut seen = [0u64; 1 << 10]; // a bit for each tag
        let mut total = 0; // bytes of values that lie outside of the entries
        let mut sound = true;
        for index in 0..self.count {
            let Some(entry) = self.entry(index).and_then(|at| self.tiff.get(at..at + 12)) else {
                return false;
            };
            let tag = number(&entry[..2]);
            let (word, bit) = (tag as usize / 64, 1 << (tag % 64));
            let (kind, count) = (number(&entry[2..4]) as u32, number(&entry[4..8]));
            let Some(unit) = unit(kind).filter(|_| seen[word] & bit == 0) else {
                continue;
            };
            let size = count * unit; // below 2³⁵
            let data = if size > 4 {
                total += size;
                if total > self.tiff.len() as u64 {
                    sound = false;
                    continue;
                }
                let start = number(&entry[8..]) as usize;
                let Some(data) = self.tiff.get(start..start + size as usize) else {
                    return false;
                };
                data
            } else {
                &entry[8..8 + size as usize]
            };
            if data.is_empty() {
                continue;
            }
            seen[word] |= bit;
            visit(&Field {
                tag: tag as u32,
                kind,
                count: count as u32,
                data,
                big_endian: self.big_endian,
            });
        }
        let end = self.position + 2 + 12 * self.count;
        sound && self.tiff.get(end..end + 4).is_some()
    }

    /// Return whether Pillow reads the directory without a warning, and all fields are as `accept` wants them.
    pub(crate) fn walk_all(&self, mut accept: impl FnMut(&Field<'a>) -> bool) -> bool {
        let mut accepted = true;
        let sound = self.walk(|field| accepted = accepted && accept(field));
        sound && accepted
    }

    /// Return whether Pillow misses an entry that `counts`: its values leave the data, or those of an entry before it do, at which
    /// Pillow stops.
    pub(crate) fn drops(&self, counts: impl Fn(u32) -> bool) -> bool {
        let (mut total, mut stopped) = (0, false);
        (0..self.count)
            .map_while(|index| self.entry(index))
            .any(|entry| {
                let word = |at: usize, bytes: usize| self.number(entry + at, bytes).unwrap_or(0);
                let size = u64::from(word(4, 4)) * unit(word(2, 2)).unwrap_or(0);
                let mut is_lost = stopped;
                if size > 4 && !stopped {
                    total += size;
                    let end = u64::from(word(8, 4)) + size;
                    if total > self.tiff.len() as u64 {
                        is_lost = true;
                    } else if end > self.tiff.len() as u64 {
                        (is_lost, stopped) = (true, true);
                    }
                }
                is_lost && counts(word(0, 2))
            })
    }

    /// Return whether an entry of a tag has no values, or values of a type that Pillow passes over.
    pub(crate) fn is_void(&self, tag: u32) -> bool {
        self.entries(tag).any(|entry| {
            let known = self.number(entry + 2, 2).and_then(unit).is_some();
            !known || self.number(entry + 4, 4) == Some(0)
        })
    }

    /// Return the places in the data that the entries take.
    pub(crate) fn place(&self) -> std::ops::Range<usize> {
        let start = self.position.saturating_add(2);
        start..start.saturating_add(12 * self.count)
    }

    /// Return whether two entries of a tag say different things: readers differ in which one counts.
    ///
    /// QuickTime of Mac OS X 10.4 wrote the orientation twice, in equal entries.
    pub(crate) fn contradicts_itself(&self, tag: u32) -> bool {
        let mut entries = self
            .entries(tag)
            .map(|entry| self.tiff.get(entry..entry + 12));
        let first = entries.next();
        entries.any(|other| Some(other) != first)
    }

    /// Return whether the tags ascend, as TIFF demands.
    pub(crate) fn ascends(&self) -> bool {
        (1..self.count).all(|index| {
            let tag = |index| self.entry(index).and_then(|entry| self.number(entry, 2));
            tag(index - 1) < tag(index)
        })
    }

    /// Return the offsets of the entries with this tag, up to the first entry that leaves the data.
    pub(crate) fn entries(&self, tag: u32) -> impl Iterator<Item = usize> + use<'_, 'a> {
        (0..self.count)
            .map_while(|index| self.entry(index))
            .filter(move |&offset| self.number(offset, 2) == Some(tag))
    }

    /// Return the first value of an entry of an integer type: 3 SHORT, 8 SSHORT, 4 LONG, 9 SLONG, 6 SBYTE (TIFF 6.0, section 2).
    pub(crate) fn value(&self, entry: usize) -> Option<u32> {
        let bytes = match self.number(entry + 2, 2)? {
            3 | 8 => 2,
            4 | 9 => 4,
            6 => 1,
            _ => return None,
        };
        let total = (self.number(entry + 4, 4)? as usize).checked_mul(bytes)?;
        match total {
            0 => None,
            1..=4 => self.number(entry + 8, bytes),
            _ => {
                let values = self.number(entry + 8, 4)? as usize;
                self.tiff.get(values..values.checked_add(total)?)?;
                self.number(values, bytes)
            }
        }
    }

    /// Write `value` to an entry with one value of type SHORT or LONG, in `copy`, a copy of the structure.
    pub(crate) fn set_value(&self, entry: usize, value: u32, copy: &mut [u8]) {
        let bytes = match (self.number(entry + 2, 2), self.number(entry + 4, 4)) {
            (Some(3), Some(1)) => 2,
            (Some(4), Some(1)) => 4,
            _ => return,
        };
        let Some(field) = copy.get_mut(entry + 8..entry + 8 + bytes) else {
            return;
        };
        if self.big_endian {
            field.copy_from_slice(&value.to_be_bytes()[4 - bytes..]);
        } else {
            field.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }

    /// Return the number of at most four bytes at an offset.
    pub(super) fn number(&self, offset: usize, bytes: usize) -> Option<u32> {
        let field = self.tiff.get(offset..offset.checked_add(bytes)?)?;
        Some(number(field, self.big_endian) as u32)
    }
}
