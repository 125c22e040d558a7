//! Decode a region of a JPEG: a used decoder and a new one give the same pixels, which equal the part of the whole image and, if
//! libjpeg-turbo decodes the file without a warning, libjpeg-turbo's pixels. The reader of facts accepts what is decoded.
#![no_main]

use std::cell::RefCell;

use headrace_core::cpu::Extension;
use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::geometry::Scale;
use headrace_core::jpeg::facts::jpeg_facts;
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::turbo;
use headrace_fuzz::{crop, is_in_range, is_small, region, rows, whole};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static USED: RefCell<(Decoder, Vec<u8>)> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, jpeg)) = data.split_first_chunk::<4>() else {
        return;
    };
    if !jpeg.starts_with(&[0xFF, 0xD8]) {
        return;
    }
    USED.with_borrow_mut(|(used, reference)| {
        let Ok(size) = used.size(jpeg) else { return };
        if !is_small(size) {
            return;
        }
        let part = region(size, choice);
        let cut = used.region(jpeg, part).map(|view| {
            assert_eq!(view.region, part);
            rows(view.pixels, view.stride, part)
        });
        // Once in four runs, because a new decoder costs more than the image.
        if choice[0] & 3 == 0 {
            let extensions = Extension::available();
            let extension = extensions[usize::from(choice[0] >> 2) % extensions.len()];
            let mut new = Decoder::with_extension(extension);
            let again = new
                .region(jpeg, part)
                .map(|view| rows(view.pixels, view.stride, part));
            assert_eq!(
                cut, again,
                "depends on what was decoded before, or on {extension:?}"
            );
        }
        // Decoding with the index that a decode made must give the same pixels.
        if choice[1] & 3 == 0 {
            let mut index = Index::new();
            let first = used
                .region_with(
                    jpeg,
                    whole(size),
                    &DecodeOptions::default(),
                    Some(&mut index),
                )
                .map(|_| ());
            let options = DecodeOptions {
                index: Some(&index),
                ..DecodeOptions::default()
            };
            let indexed = used
                .region_with(jpeg, part, &options, None)
                .map(|view| rows(view.pixels, view.stride, part));
            if first.is_ok() {
                assert_eq!(cut, indexed, "the index changes the result");
            }
        }
        if choice[2] & 3 == 0 {
            let scale = if choice[2] & 4 == 0 {
                Scale::Half
            } else {
                Scale::Quarter
            };
            let small = whole(size.scaled(scale));
            let options = DecodeOptions {
                scale,
                ..DecodeOptions::default()
            };
            let _ = used
                .region_with(jpeg, small, &options, None)
                .map(|view| rows(view.pixels, view.stride, small));
        }
        let full = turbo::region(jpeg, whole(size), reference);
        let Ok(cut) = cut else {
            return;
        };
        let facts = jpeg_facts(jpeg).map(|facts| (facts.width, facts.height));
        assert_eq!(
            facts,
            Ok((size.width, size.height)),
            "the header's reader refuses what is decoded"
        );
        if full.is_ok() && crop(reference, size, part) != cut {
            assert!(!is_in_range(jpeg), "differs from libjpeg-turbo");
        }
    });
});
