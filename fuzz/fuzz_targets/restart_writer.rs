//! Write restart markers into any bytes: the output decodes without a warning to the same coefficients, and writing it again
//! gives the same bytes.
#![no_main]

use std::cell::RefCell;

use headrace_core::exif;
use headrace_core::jpeg::restart::{Metadata, RestartOptions, RestartWriter};
use headrace_core::jpeg::turbo;
use headrace_fuzz::is_small;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WRITER: RefCell<(RestartWriter, Vec<u8>, Vec<u8>)> = RefCell::default();
}

fn coefficients(jpeg: &[u8]) -> headrace_core::error::Result<(Vec<[i16; 64]>, [[u16; 64]; 4])> {
    let mut blocks = Vec::new();
    let tables = turbo::coefficients(jpeg, &mut |rows| {
        for (component, line) in
            (0..4).flat_map(|component| (0..4).map(move |line| (component, line)))
        {
            blocks.extend((0..).map_while(|column| rows.block(component, line, column)));
        }
        Ok(())
    })?;
    Ok((blocks, tables))
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, jpeg)) = data.split_first() else {
        return;
    };
    let metadata = if choice & 1 == 0 {
        Metadata::Keep
    } else {
        Metadata::Orientation(exif::orientation(jpeg))
    };
    let options = RestartOptions {
        tile_px: 1 + u32::from(choice >> 1),
        metadata,
    };
    if turbo::size(jpeg).is_ok_and(|size| !is_small(size)) {
        return;
    }
    WRITER.with_borrow_mut(|(writer, out, again)| {
        if writer.write(jpeg, &options, out).is_err() {
            assert!(out.is_empty());
            return;
        }
        let marked = coefficients(out).expect("the output must decode");
        if let Ok(original) = coefficients(jpeg) {
            assert!(marked == original, "coefficients or tables changed");
        }
        writer
            .write(out, &options, again)
            .expect("its own output must be accepted");
        assert!(again == out, "writing again changes the bytes");
    });
});
