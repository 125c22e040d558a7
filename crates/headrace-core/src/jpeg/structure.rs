//! The structure of a scan: its restart markers and its end. Every decode checks the structure, whatever the crop, so that the
//! status of an image is a function of its bytes: a truncated file fails in every epoch.
#![allow(unsafe_code)]

use super::marker::{self, next_segment};
use crate::cpu::Extension;
use crate::error::{Result, Status};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Return the offset of the first marker at or after `from`: an `FF` followed by neither 00 nor FF. `None` if the data ends first.
pub fn next_marker(extension: Extension, data: &[u8], from: usize) -> Option<usize> {
    extension.assert_available();
    match extension {
        // SAFETY: the processor has the extension, see the line before.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx512 => unsafe { next_marker_avx512(data, from) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Extension::Avx2 => unsafe { next_marker_avx2(data, from) },
        _ => next_marker_plain(data, from),
    }
}

/// Search 32 positions at a time for an `FF` that is followed by neither 00 nor `FF`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn next_marker_avx2(data: &[u8], from: usize) -> Option<usize> {
    let all = _mm256_set1_epi8(-1);
    for at in (from..data.len().saturating_sub(32)).step_by(32) {
        let bytes = &data[at..at + 33];
        // SAFETY: both loads stay in the 33 bytes; unaligned access is allowed.
        let (here, behind) = unsafe {
            (
                _mm256_loadu_si256(bytes.as_ptr().cast()),
                _mm256_loadu_si256(bytes.as_ptr().add(1).cast()),
            )
        };
        let no_code = _mm256_or_si256(
            _mm256_cmpeq_epi8(behind, _mm256_setzero_si256()),
            _mm256_cmpeq_epi8(behind, all),
        );
        let found =
            _mm256_movemask_epi8(_mm256_andnot_si256(no_code, _mm256_cmpeq_epi8(here, all))) as u32;
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
    }
    let searched = data
        .len()
        .saturating_sub(32)
        .saturating_sub(from)
        .div_ceil(32)
        * 32;
    next_marker_plain(data, from + searched)
}

/// Search as [`next_marker_avx2`] does, 64 positions at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn next_marker_avx512(data: &[u8], from: usize) -> Option<usize> {
    let all = _mm512_set1_epi8(-1);
    for at in (from..data.len().saturating_sub(64)).step_by(64) {
        let bytes = &data[at..at + 65];
        // SAFETY: both loads stay in the 65 bytes; unaligned access is allowed.
        let (here, behind) = unsafe {
            (
                _mm512_loadu_si512(bytes.as_ptr().cast()),
                _mm512_loadu_si512(bytes.as_ptr().add(1).cast()),
            )
        };
        let marked = _mm512_cmpeq_epi8_mask(here, all);
        let found = _mm512_mask_cmpneq_epi8_mask(
            _mm512_mask_cmpneq_epi8_mask(marked, behind, all),
            behind,
            _mm512_setzero_si512(),
        );
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
    }
    let searched = data
        .len()
        .saturating_sub(64)
        .saturating_sub(from)
        .div_ceil(64)
        * 64;
    next_marker_plain(data, from + searched)
}

fn next_marker_plain(data: &[u8], from: usize) -> Option<usize> {
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

/// Find the restart segments of the scan whose data starts at `scan`; `starts` receives the offset of the first byte of each. Their
/// number must be `expected`, their markers in order, and an end-of-image marker must follow. Some encoders write a restart marker
/// after the last segment too: libjpeg ignores such markers, whatever their numbers are.
pub fn segments(
    extension: Extension,
    data: &[u8],
    scan: usize,
    expected: usize,
    starts: &mut Vec<usize>,
) -> Result<()> {
    starts.clear();
    starts.push(scan);
    let mut at = scan;
    let end = loop {
        at = next_marker(extension, data, at).ok_or(Status::Truncated)?;
        let code = data[at + 1];
        if !(marker::RST0..=marker::RST7).contains(&code) {
            break at;
        }
        if starts.len() == expected {
            break behind_restart_markers(data, at).ok_or(Status::BadRestart)?;
        }
        if usize::from(code - marker::RST0) != (starts.len() - 1) % 8 {
            return Err(Status::BadRestart);
        }
        at += 2;
        starts.push(at);
    };
    if starts.len() != expected {
        return Err(Status::BadRestart);
    }
    check_end(extension, data, end)
}

/// Return the offset of the marker that follows restart markers at `from`; `None` if anything but fill bytes stands between them.
fn behind_restart_markers(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let code = match data.get(at..)? {
            [0xFF, 0xFF, ..] => 0xFF,
            [0xFF, code, ..] if *code != 0 => *code,
            _ => return None,
        };
        at += match code {
            0xFF => 1,
            marker::RST0..=marker::RST7 => 2,
            _ => return Some(at),
        };
    }
}

/// Check that the segments from `from` on, further scans included, lead to an end-of-image marker.
pub fn check_end(extension: Extension, data: &[u8], from: usize) -> Result<()> {
    let mut at = from;
    loop {
        let segment = next_segment(data, at).ok_or(Status::Truncated)?;
        at = segment.end;
        match segment.code {
            marker::EOI => return Ok(()),
            marker::SOS => at = next_marker(extension, data, at).ok_or(Status::Truncated)?,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(data: &[u8], expected: usize) -> Result<Vec<usize>> {
        let mut starts = Vec::new();
        segments(Extension::best(), data, 0, expected, &mut starts).map(|()| starts)
    }

    #[test]
    fn every_extension_finds_the_same_markers() {
        let mut data: Vec<u8> = (0..700u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for (at, bytes) in [
            (0, [0xFF, 0]),
            (31, [0xFF, 0]),
            (63, [0xFF, 0xD1]),
            (64, [0xFF, 0xFF]),
            (127, [0xFF, 0xFF]),
            (300, [0xFF, 1]),
            (698, [7, 0xFF]),
        ] {
            data[at..at + 2].copy_from_slice(&bytes);
        }
        for length in 0..=data.len() {
            for from in [0, 1, 33, length / 2, length] {
                let expected = next_marker_plain(&data[..length], from);
                for extension in Extension::available() {
                    assert_eq!(
                        next_marker(extension, &data[..length], from),
                        expected,
                        "{extension:?} {from}..{length}"
                    );
                }
            }
        }
    }

    #[test]
    fn segments_are_counted_against_the_interval() {
        let data = [1, 0xFF, 0, 0xFF, 0xD0, 2, 0xFF, 0xD1, 3, 0xFF, 0xD9];
        assert_eq!(starts(&data, 3), Ok(vec![0, 5, 8]));
        assert_eq!(starts(&data, 2), Err(Status::BadRestart));
        assert_eq!(starts(&data, 4), Err(Status::BadRestart));
        assert_eq!(starts(&data[..9], 3), Err(Status::Truncated));
        assert_eq!(
            starts(&[1, 0xFF, 0xD1, 2, 0xFF, 0xD9], 2),
            Err(Status::BadRestart)
        );
    }

    #[test]
    fn a_marker_after_the_last_segment_is_ignored() {
        assert_eq!(
            starts(&[1, 0xFF, 0xD0, 2, 0xFF, 0xD1, 0xFF, 0xD9], 2),
            Ok(vec![0, 3])
        );
        for markers in [&[0xD0][..], &[0xD1], &[0xD7], &[0xD5, 0xFF, 0xFF, 0xD5]] {
            let mut data = vec![1, 0xFF];
            data.extend(markers);
            data.extend([0xFF, 0xDC, 0, 4, 0, 1, 0xFF, 0xD9]); // the height once more
            assert_eq!(starts(&data, 1), Ok(vec![0]), "{markers:x?}");
        }
        assert_eq!(
            starts(&[1, 0xFF, 0xD1, 7, 0xFF, 0xD9], 1),
            Err(Status::BadRestart)
        );
    }
}
