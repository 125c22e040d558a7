//! Tests of the plan: which segments, which groups, and a buffer without gaps.

use super::*;
use crate::geometry::Orientation;
use crate::pack::{encode_pixels, EncodeOptions};

struct File(Vec<u8>);

impl ItemBytes for File {
    fn get<'a>(&'a self, _: &'a mut Vec<u8>) -> &'a [u8] {
        &self.0
    }
}

/// Return a 4:2:0 JPEG of noise with a restart marker every 32 pixels.
fn marked(width: u32, height: u32) -> File {
    let pixels: Vec<u8> = (0..width * height * 3)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let how = EncodeOptions {
        gray: false,
        quality: 80,
        tile_px: Some(32),
        orientation: Orientation::Upright,
    };
    let mut out = Vec::new();
    encode_pixels(&pixels, Size { width, height }, &how, &mut out).expect("encodes");
    File(out)
}

fn ask(box_: Rect) -> Ask {
    Ask {
        box_: Some(box_),
        size: (16, 16),
        window: Rect::new(0, 0, 16, 16),
        flip: false,
    }
}

#[test]
fn only_segments_under_the_crop_are_planned() {
    let file = marked(320, 160); // 10 tiles across, 10 MCU rows
    let whole = plan_image(&file.0, &ask(Rect::new(0, 0, 320, 160))).ok();
    assert_eq!(whole.map(|order| order.segments.len()), Some(100));
    // Pixels 40 to 55 lie in the second tile; chroma is upsampled from its neighbours, which lie there too.
    let one = plan_image(&file.0, &ask(Rect::new(40, 36, 16, 8))).ok();
    let segments = one.map(|order| order.segments).unwrap_or_default();
    assert_eq!(
        segments.iter().map(|s| (s.mcu, s.end)).collect::<Vec<_>>(),
        [(42, 44)]
    );
    // A box that begins at a tile's edge needs the chroma column before it.
    let two = plan_image(&file.0, &ask(Rect::new(64, 36, 8, 8))).ok();
    assert_eq!(two.map(|order| order.segments.len()), Some(2));
}

#[test]
fn images_share_a_group_until_the_memory_is_full() {
    let files: Vec<File> = (0..5).map(|_| marked(96, 64)).collect();
    let asks = [ask(Rect::new(0, 0, 96, 64)); 5];
    let all = Plan::new(&files, &asks, 1 << 30, 2);
    assert_eq!(all.groups().len(), 1);
    let one = all.groups()[0].scratch_bytes() / 5;
    let two = Plan::new(&files, &asks, 2 * one + 1, 2);
    let shape = |plan: &Plan| {
        plan.groups()
            .iter()
            .map(|g| (g.first, g.images))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(&two), [(0, 2), (2, 2), (4, 1)]);
    let none = Plan::new(&files, &asks, one - 1, 2);
    assert_eq!(none.refusals(), [Refusal::TooLarge as u8; 5]);
    assert_eq!((none.groups().len(), none.size()), (0, 0));
}

#[test]
fn the_buffer_is_the_same_for_any_number_of_threads_and_covers_every_byte() {
    let files: Vec<File> = (1..6).map(|i| marked(40 * i, 30 * i)).collect();
    let asks: Vec<Ask> = (1..6)
        .map(|i| ask(Rect::new(i, 2 * i, 30 * i, 20 * i)))
        .collect();
    let plan = Plan::new(&files, &asks, 1 << 30, 1);
    let fill = |content: u8, threads: usize| {
        let mut out = vec![content; plan.size()];
        assert!(plan.fill(&files, &mut out, threads));
        out
    };
    assert!(fill(0, 1) == fill(0xFF, 4));
    assert!(!plan.fill(&files, &mut vec![0; plan.size() + 1], 1));
    assert!(!plan.fill(&files[1..], &mut vec![0; plan.size()], 1));
}

#[test]
fn cut_and_changed_files_are_refused_or_planned_within_their_bytes() {
    let sound = marked(90, 70);
    let whole = ask(Rect::new(0, 0, 90, 70));
    for cut in 0..sound.0.len() {
        assert!(plan_image(&sound.0[..cut], &whole).is_err(), "{cut} bytes");
    }
    for at in 0..sound.0.len() {
        let mut changed = File(sound.0.clone());
        changed.0[at] ^= 0x5A;
        let plan = Plan::new(&[changed], &[whole], 1 << 26, 1);
        let mut out = vec![0; plan.size()];
        let file = File(sound.0.clone()); // bytes that another thread changed back meanwhile
        assert!(plan.fill(&[file], &mut out, 1));
        assert!(plan.fill(&[File(Vec::new())], &mut out, 1));
    }
}
