//! Requantise any bytes: every extension writes the same bytes, which decode without a warning to an image of the same size and
//! can be requantised again. A refused file leaves no output.
#![no_main]

use std::cell::RefCell;

use headrace_core::cpu::Extension;
use headrace_core::decode::Decoder;
use headrace_core::geometry::{Orientation, Rect};
use headrace_core::jpeg::requantise::{RequantiseOptions, Requantiser};
use headrace_core::jpeg::turbo;
use headrace_fuzz::is_small;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static USED: RefCell<(Requantiser, Vec<u8>)> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, jpeg)) = data.split_first() else {
        return;
    };
    let options = RequantiseOptions {
        quality: 1 + choice % 100,
        tile_px: (choice & 1 == 0).then_some(1 + u32::from(choice >> 1)),
        orientation: Orientation::Upright,
    };
    let size = Decoder::new().size(jpeg);
    if size.is_ok_and(|size| !is_small(size)) {
        return;
    }
    USED.with_borrow_mut(|(requantiser, out)| {
        let done = requantiser.write(jpeg, &options, out);
        for extension in Extension::available() {
            let (mut fresh, mut other) = (Requantiser::with_extension(extension), vec![1]);
            assert_eq!(fresh.write(jpeg, &options, &mut other), done);
            assert!(*out == other, "{extension:?} differs");
        }
        if done.is_err() {
            assert!(out.is_empty());
            return;
        }
        let size = size.expect("an accepted file has a size");
        assert_eq!(turbo::size(out), Ok(size));
        let whole = Rect::new(0, 0, size.width, size.height);
        turbo::region(out, whole, &mut Vec::new()).expect("the output must decode");
        let mut again = Vec::new();
        requantiser
            .write(out, &options, &mut again)
            .expect("its own output must be accepted");
        assert!(turbo::size(&again) == Ok(size));
    });
});
