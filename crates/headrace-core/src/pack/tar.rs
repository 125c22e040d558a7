//! Tar members as `docs/reference/format.md` defines them; `headrace/datasets/shards/tar.py` writes the same bytes and explains the choices.

/// Bytes of a tar block.
pub const BLOCK: usize = 512;
const NAME_BYTES: usize = 100;
/// The largest number in eleven octal digits: 8 GiB - 1.
pub const MAX_SIZE: u64 = (1 << 33) - 1;

/// Append the header block(s) of a regular file of `size` bytes, at most [`MAX_SIZE`].
pub fn append_header(name: &str, size: u64, out: &mut Vec<u8>) {
    let raw = name.as_bytes();
    if raw.len() <= NAME_BYTES && raw.is_ascii() {
        out.extend_from_slice(&block(raw, size, b'0'));
        return;
    }
    let record = pax_record(raw);
    out.extend_from_slice(&block(b"PaxHeaders/path", record.len() as u64, b'x'));
    out.extend_from_slice(&record);
    append_padding(record.len(), out);
    out.extend_from_slice(&block(&short(raw), size, b'0'));
}

/// Append the zeros that fill the last block of `size` bytes.
pub fn append_padding(size: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + size.wrapping_neg() % BLOCK, 0);
}

/// Append a whole member.
pub fn append_member(name: &str, data: &[u8], out: &mut Vec<u8>) {
    append_header(name, data.len() as u64, out);
    out.extend_from_slice(data);
    append_padding(data.len(), out);
}

/// Return a ustar header (POSIX.1-2017, pax, "ustar Interchange Format") with mode 0644, owner 0 and time 0.
fn block(name: &[u8], size: u64, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut set = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, name);
    set(NAME_BYTES, b"0000644\x000000000\x000000000\0");
    set(124, format!("{size:011o}\x0000000000000\0").as_bytes());
    set(148, b"        "); // the checksum counts its own field as spaces
    set(156, &[kind]);
    set(257, b"ustar\x0000");
    set(329, b"0000000\x000000000\0");
    let total: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{total:06o}\0 ").as_bytes());
    block
}

/// Return `LENGTH path=NAME\n`, where LENGTH counts its own digits too.
fn pax_record(path: &[u8]) -> Vec<u8> {
    let body = path.len() + " path=\n".len();
    let mut length = body;
    while length.to_string().len() + body != length {
        length = length.to_string().len() + body;
    }
    [length.to_string().as_bytes(), b" path=", path, b"\n"].concat()
}

/// Return the name for readers without pax support: the end of the full name, in ASCII.
fn short(raw: &[u8]) -> Vec<u8> {
    let end = &raw[raw.len().saturating_sub(NAME_BYTES)..];
    let ascii = end.iter().map(|&byte| if byte < 128 { byte } else { b'_' });
    ascii.skip_while(|&byte| byte == b'/').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_header_data_and_padding() {
        let mut out = Vec::new();
        append_member("a/b.cls", b"12", &mut out);
        assert_eq!(out.len(), 2 * BLOCK);
        assert_eq!(&out[..8], b"a/b.cls\0");
        assert_eq!(&out[124..136], b"00000000002\0");
        assert_eq!(&out[BLOCK..BLOCK + 3], b"12\0");
    }

    #[test]
    fn the_length_of_a_pax_record_counts_itself() {
        for length in 80..120 {
            let record = pax_record(&vec![b'x'; length]);
            let digits = record.iter().take_while(|byte| byte.is_ascii_digit());
            let stated = digits.fold(0, |sum, digit| 10 * sum + usize::from(digit - b'0'));
            assert_eq!(stated, record.len());
        }
    }
}
