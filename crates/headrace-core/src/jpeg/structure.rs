//! Where the entropy-coded data of a scan ends, and where its restart markers are. Reading this on every decode, whatever the
//! crop, makes an image's status a function of its bytes: a file cut short is bad in every epoch.

use super::header::marker;
use crate::error::{Result, Status};

/// Offset of the first marker at or after `from`: an `FF` followed by neither 00 nor FF. `None` when the data ends first.
pub fn next_marker(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += data.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
        match data.get(at + 1)? {
            0 => at += 2,
            0xFF => at += 1,
            _ => return Some(at),
        }
    }
}

/// Finds the segments of the scan whose data starts at `scan`: `starts` receives the offset of each segment's first byte.
/// The markers must number what `interval` asks for, in order, and the file must go on to an end-of-image marker.
pub fn segments(
    data: &[u8],
    scan: usize,
    mcus: u32,
    interval: u32,
    starts: &mut Vec<usize>,
) -> Result<()> {
    starts.clear();
    starts.push(scan);
    let mut at = scan;
    let end = loop {
        at = next_marker(data, at).ok_or(Status::Truncated)?;
        let code = data[at + 1];
        if !(marker::RST0..=marker::RST7).contains(&code) {
            break at;
        }
        if usize::from(code - marker::RST0) != (starts.len() - 1) % 8 {
            return Err(Status::BadRestart);
        }
        at += 2;
        starts.push(at);
    };
    let expected = if interval == 0 {
        1
    } else {
        mcus.div_ceil(interval) as usize
    };
    // Some encoders write a restart marker behind the last segment too; libjpeg passes over it.
    let trailing = starts.len() == expected + 1 && starts.last() == Some(&end);
    if trailing {
        starts.pop();
    }
    if starts.len() != expected {
        return Err(Status::BadRestart);
    }
    ends(data, end)
}

/// Checks that the segments from `from` on lead to an end-of-image marker, over further scans if there are any.
pub fn ends(data: &[u8], from: usize) -> Result<()> {
    let mut at = from;
    loop {
        let segment = super::header::next_segment(data, at).ok_or(Status::Truncated)?;
        at = segment.end;
        match segment.code {
            marker::EOI => return Ok(()),
            marker::SOS => at = next_marker(data, at).ok_or(Status::Truncated)?,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(data: &[u8], mcus: u32, interval: u32) -> Result<Vec<usize>> {
        let mut starts = Vec::new();
        segments(data, 0, mcus, interval, &mut starts).map(|()| starts)
    }

    #[test]
    fn segments_are_counted_against_the_interval() {
        let data = [1, 0xFF, 0, 0xFF, 0xD0, 2, 0xFF, 0xD1, 3, 0xFF, 0xD9];
        assert_eq!(starts(&data, 5, 2), Ok(vec![0, 5, 8]));
        assert_eq!(starts(&data, 4, 2), Err(Status::BadRestart));
        assert_eq!(starts(&data, 7, 2), Err(Status::BadRestart));
        assert_eq!(starts(&data, 5, 0), Err(Status::BadRestart));
        assert_eq!(starts(&data[..9], 5, 2), Err(Status::Truncated));
        assert_eq!(
            starts(&[1, 0xFF, 0xD1, 2, 0xFF, 0xD9], 2, 1),
            Err(Status::BadRestart)
        );
    }

    #[test]
    fn a_marker_behind_the_last_segment_is_passed_over() {
        assert_eq!(
            starts(&[1, 0xFF, 0xD0, 2, 0xFF, 0xD1, 0xFF, 0xD9], 2, 1),
            Ok(vec![0, 3])
        );
    }
}
