//! Plan the decoding of arbitrary bytes on a GPU: no panic, memory within the limit, a buffer whose every byte is written the same by
//! any number of threads, offsets that lie in the buffer and rise, and no image that the CPU kernel would refuse for its header.
#![no_main]

use headrace_core::cuda_plan::{record_bytes, Ask, Group, Plan, Refusal};
use headrace_core::decode::Decoder;
use headrace_core::engine::ItemBytes;
use headrace_core::geometry::{Rect, Size};
use headrace_fuzz::{is_small, region};
use libfuzzer_sys::fuzz_target;

/// Bytes of device memory. Small images share a group, larger ones get a group of their own, and the largest do not fit.
const SCRATCH_BYTES: u64 = 200_000;

/// Words of a record that the device uses as offsets: into the buffer (in units of 16 bytes) and of the image in the batch.
const CODES_AT: usize = 5;
const SEGMENTS_AT: usize = 6;
const SEGMENTS: usize = 7;
const BYTES_AT: usize = 8;
const SLOT: usize = 21;
const UNIT: usize = 16;

struct Image<'a>(&'a [u8]);

impl ItemBytes for Image<'_> {
    fn get<'a>(&'a self, _: &'a mut Vec<u8>) -> &'a [u8] {
        self.0
    }
}

fn word(bytes: &[u8], number: usize) -> usize {
    let at = number * 4;
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

/// Return the buffer of a plan, which must not depend on what was there before or on the number of threads.
fn filled(plan: &Plan, images: &[Image<'_>]) -> Vec<u8> {
    let mut first = vec![0x00; plan.size()];
    let mut again = vec![0xFF; plan.size()];
    assert!(plan.fill(images, &mut first, 1));
    assert!(plan.fill(images, &mut again, 3));
    assert!(first == again, "a byte of the buffer is not written");
    first
}

/// Check the groups: all planned images, one after the other, in memory within the limit.
fn check_groups(groups: &[Group], planned: usize) {
    let mut next = 0;
    for group in groups {
        assert!(group.first == next && group.images > 0);
        assert!(group.scratch_bytes() <= SCRATCH_BYTES);
        next += group.images;
    }
    assert_eq!(next as usize, planned);
}

/// Check the offsets that the device follows in one record.
fn check_record(record: &[u8], buffer: &[u8], slot: usize) {
    let units = buffer.len() / UNIT;
    let [codes, segments, bytes] = [CODES_AT, SEGMENTS_AT, BYTES_AT].map(|n| word(record, n));
    let count = word(record, SEGMENTS);
    assert_eq!(word(record, SLOT), slot);
    assert!(count > 0 && codes < segments && segments + count == bytes && bytes <= units);
    let mut expected = 0;
    let mut last_mcu = None;
    for number in 0..count {
        let segment = &buffer[(segments + number) * UNIT..][..UNIT];
        let [at, length, mcu, end] = [0, 1, 2, 3].map(|n| word(segment, n));
        assert_eq!(at, expected, "segments follow each other");
        assert!(bytes * UNIT + at + length <= buffer.len(), "bytes outside");
        assert!(mcu < end && last_mcu.is_none_or(|last| last < mcu));
        (expected, last_mcu) = (at + length.next_multiple_of(4), Some(mcu));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, jpeg)) = data.split_first_chunk::<4>() else {
        return;
    };
    let Ok(size) = Decoder::new().size(jpeg) else {
        let ask = Ask {
            box_: None,
            size: (8, 8),
            window: Rect::new(0, 0, 8, 8),
            flip: false,
        };
        let plan = Plan::new(&[Image(jpeg)], &[ask], SCRATCH_BYTES, 1);
        assert!(plan.refusals()[0] != 0 && plan.size() == 0);
        return;
    };
    if !is_small(size) {
        return;
    }
    let (width, height) = (1 + u32::from(choice[0]) / 4, 1 + u32::from(choice[1]) / 4);
    let window = region(
        Size { width, height },
        [choice[3], choice[2], choice[1], choice[0]],
    );
    let ask = |box_| Ask {
        box_,
        size: (width, height),
        window,
        flip: choice[2] & 1 == 1,
    };
    // Between two sound readings of the file: a box that leaves the image, which is refused.
    let outside = Rect::new(size.width, 0, 1, 1);
    let asks = [
        ask(Some(region(size, choice))),
        ask(Some(outside)),
        ask(None),
    ];
    let images = [Image(jpeg), Image(jpeg), Image(jpeg)];
    let plan = Plan::new(&images, &asks, SCRATCH_BYTES, 2);
    let refusals = plan.refusals();
    let allowed = 1..=Refusal::TooLarge as u8;
    assert!(refusals.iter().all(|n| *n == 0 || allowed.contains(n)));
    assert!(refusals[1] != 0);
    let planned: Vec<usize> = (0..3).filter(|&slot| refusals[slot] == 0).collect();
    check_groups(plan.groups(), planned.len());
    let buffer = filled(&plan, &images);
    for (record, &slot) in buffer.chunks_exact(record_bytes()[0]).zip(&planned) {
        check_record(record, &buffer, slot);
    }
    // Memory that another thread has changed since: shorter, and other bytes.
    let cut = &jpeg[..jpeg.len() / 2];
    filled(&plan, &[Image(cut), Image(&[]), Image(data)]);
});
