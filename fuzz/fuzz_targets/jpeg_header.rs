//! Parse JPEG headers and check the structure of any bytes: no panic, and all offsets are in the file.
#![no_main]

use headrace_core::cpu::Extension;
use headrace_core::jpeg::{header, marker, structure};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut at = 0;
    while let Some(segment) = marker::next_segment(data, at) {
        assert!(segment.offset >= at && segment.end > segment.offset && segment.end <= data.len());
        at = segment.end;
    }
    let Ok(header) = header::parse(data) else {
        return;
    };
    assert!(header.width > 0 && header.height > 0 && header.scan <= data.len());
    assert!((1..=4).contains(&header.components().len()));
    let (across, down) = header.mcus();
    let mcus = across as usize * down as usize;
    let expected = match header.restart_interval as usize {
        0 => 1,
        interval => mcus.div_ceil(interval),
    };
    let mut first = None;
    for extension in Extension::available() {
        let mut starts = Vec::new();
        let result = structure::segments(extension, data, header.scan, expected, &mut starts);
        if result.is_ok() {
            assert_eq!(starts.len(), expected);
            assert!(starts.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(starts
                .iter()
                .all(|&start| start >= header.scan && start < data.len()));
        }
        let outcome = result.map(|()| starts);
        assert_eq!(
            first.get_or_insert_with(|| outcome.clone()),
            &outcome,
            "{extension:?} differs"
        );
    }
});
