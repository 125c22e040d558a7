//! Decode and transform masks: no panic, a used decoder and a new one give the same classes, and each class is stored or the fill.
#![no_main]

use std::cell::RefCell;

use headrace_core::geometry::Size;
use headrace_core::mask::Masker;
use headrace_core::program::step::{Sampling, Step};
use headrace_core::resample::Filter;
use headrace_core::warp::Interpolation;
use libfuzzer_sys::fuzz_target;

const SIDE: u32 = 16;

thread_local! {
    static USED: RefCell<Masker> = RefCell::default();
}

fn draw(
    masker: &mut Masker,
    png: &[u8],
    size: Size,
    turn: u8,
    fill: u8,
) -> Result<Vec<u8>, String> {
    let sampling = Sampling {
        interpolation: Interpolation::Bilinear,
        fill: [0; 3],
    };
    let steps = [
        Step::FlipX,
        Step::Rotate {
            degrees: f64::from(turn) * 1.5,
            expand: turn & 1 == 1,
            center: None,
            sampling,
        },
        Step::Resize {
            size: (SIDE, SIDE),
            filter: Filter::Bilinear,
        },
    ];
    let mut out = vec![0; (SIDE * SIDE) as usize];
    masker
        .draw(png, size, &steps, fill, &mut out)
        .map(|()| out)
        .map_err(|status| format!("{status:?}"))
}

fuzz_target!(|data: &[u8]| {
    let Some((&[width, height, turn, fill], png)) = data.split_first_chunk::<4>() else {
        return;
    };
    let size = Size {
        width: u32::from(width),
        height: u32::from(height),
    };
    let used = USED.with_borrow_mut(|masker| draw(masker, png, size, turn, fill));
    let new = draw(&mut Masker::default(), png, size, turn, fill);
    assert!(used == new, "the result depends on earlier masks");
    if let Ok(classes) = new {
        // Pixels from inside the mask do not depend on the fill.
        let other = draw(&mut Masker::default(), png, size, turn, !fill).unwrap_or_default();
        for (a, b) in classes.iter().zip(&other) {
            assert!(
                a == b || (*a == fill && *b == !fill),
                "a class that is neither stored nor the fill"
            );
        }
    }
});
