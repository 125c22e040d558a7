//! Decode PNG, WebP, GIF, TIFF, BMP, PBM, PGM and PPM with and without EXIF orientation: no panic, no pixels of earlier images, and
//! a region equals the part of the whole image.
#![no_main]

use std::cell::RefCell;

use headrace_core::decode::Decoder;
use headrace_fuzz::{crop, is_small, region, rows, whole};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static USED: RefCell<Decoder> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, image)) = data.split_first_chunk::<4>() else {
        return;
    };
    USED.with_borrow_mut(|used| {
        used.set_exif(choice[3] & 1 == 1);
        let Ok(size) = used.size(image) else { return };
        if !is_small(size) {
            return;
        }
        let part = region(size, choice);
        let cut = used
            .region(image, part)
            .map(|view| rows(view.pixels, view.stride, part));
        let mut new = Decoder::new();
        new.set_exif(choice[3] & 1 == 1);
        match (cut, new.region(image, whole(size))) {
            (Ok(cut), Ok(view)) => {
                assert!(crop(view.pixels, size, part) == cut, "not the image's part");
            }
            (Err(_), Err(_)) => {}
            (cut, full) => panic!(
                "the status depends on the region: {:?} {:?}",
                cut.err(),
                full.err()
            ),
        }
    });
});
