//! Read the orientation of any bytes: no panic, and turning keeps every pixel.
#![no_main]

use headrace_core::exif::orientation;
use headrace_core::geometry::Size;
use headrace_fuzz::region;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, file)) = data.split_first_chunk::<4>() else {
        return;
    };
    let orientation = orientation(file);
    let stored = Size {
        width: 7,
        height: 4,
    };
    let upright = orientation.upright(stored);
    let part = region(upright, choice);
    let stored_part = orientation.stored_region(part, stored);
    assert!(stored_part.fits(stored.width, stored.height));
    let pixels: Vec<u8> = (0..stored_part.w * stored_part.h * 3)
        .map(|i| (i / 3) as u8)
        .collect();
    let mut turned = Vec::new();
    orientation.turn(
        &pixels,
        stored_part.w as usize * 3,
        stored_part,
        &mut turned,
    );
    assert_eq!(turned.len(), pixels.len());
    turned.sort_unstable();
    assert_eq!(turned, pixels);
});
