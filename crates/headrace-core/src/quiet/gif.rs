//! The blocks of a GIF that Pillow reads for its first frame (GifImagePlugin.py, GifDecode.c).

const EXTENSION: u8 = 0x21;
const FRAME: u8 = 0x2C;

/// Return whether the blocks up to the end of the first frame lie in the file. Pillow takes no part of a block.
pub fn is_quiet(data: &[u8]) -> bool {
    let table = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3usize << (1 + (flags & 7))
        }
    };
    let Some(&flags) = data.get(10) else {
        return false;
    };
    let mut at = 13 + table(flags);
    loop {
        at = match data.get(at) {
            Some(&EXTENSION) => match behind_blocks(data, at + 2) {
                Some(end) => end,
                None => return false,
            },
            Some(&FRAME) => {
                let flags = data.get(at + 9).copied();
                return flags
                    .is_some_and(|flags| behind_blocks(data, at + 11 + table(flags)).is_some());
            }
            _ => return false,
        }
    }
}

/// Return the offset behind blocks of data and the empty one that ends them.
fn behind_blocks(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let length = usize::from(*data.get(at)?);
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    }
}
