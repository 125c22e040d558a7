//! Read JPEG indexes whose checksums are corrected, so that the fuzzer passes them: no panic, whatever a forged index states, and
//! writing an index again gives an equal index.
#![no_main]

use std::sync::OnceLock;

use headrace_core::crc::crc32c;
use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::geometry::Size;
use headrace_core::jpeg::binding::{Binding, BINDING_BYTES};
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::turbo::{encode, Encoding};
use headrace_fuzz::region;
use libfuzzer_sys::fuzz_target;

const SIZE: Size = Size {
    width: 200,
    height: 40,
};

fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let pixels: Vec<u8> = (0..SIZE.width * SIZE.height * 3)
            .map(|i| (i * i / 77) as u8)
            .collect();
        encode(&pixels, SIZE, &Encoding::default()).expect("a valid request")
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first_chunk::<4>() else {
        return;
    };
    let mut bytes = rest.to_vec();
    // From byte 12 on the index is bound to the image.
    if let Some(fields) = bytes.get_mut(12..12 + BINDING_BYTES) {
        let bound = Binding::of(image()).expect("random numbers");
        fields.copy_from_slice(&bound.to_bytes());
    }
    let sum = crc32c(&bytes, 0);
    bytes.extend(sum.to_le_bytes());
    let Ok(index) = Index::from_bytes(&bytes) else {
        return;
    };
    assert_eq!(Index::from_bytes(&index.to_bytes()).as_ref(), Ok(&index));
    let options = DecodeOptions {
        index: Some(&index),
        ..DecodeOptions::default()
    };
    let part = region(SIZE, choice);
    let mut decoder = Decoder::new();
    let mut grown = Index::new();
    if let Ok(view) = decoder.region_with(image(), part, &options, Some(&mut grown)) {
        assert_eq!(view.region, part);
    }
});
