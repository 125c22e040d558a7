//! Items with JPEG indexes: an index of other bytes under an image's key changes no pixel and is replaced.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use headrace_core::decode::{DecodeOptions, Decoder};
use headrace_core::engine::{
    content_key, fill_items, BatchMemory, Engine, Group, IndexCache, Item, ItemBytes, Items,
    Source, Target,
};
use headrace_core::geometry::{Rect, Size};
use headrace_core::jpeg::index::Index;
use headrace_core::jpeg::turbo::{self, Encoding};
use headrace_core::store::{Layout, Store, Values};

const SIZE: Size = Size {
    width: 400,
    height: 320,
};

struct Bytes(Vec<u8>);

impl ItemBytes for Bytes {
    fn get<'a>(&'a self, _: &'a mut Vec<u8>) -> &'a [u8] {
        &self.0
    }
}

fn image(seed: u32) -> Vec<u8> {
    let samples = 0..SIZE.width * SIZE.height * 3;
    let pixels: Vec<u8> = samples
        .map(|i| (i.wrapping_mul(i + seed) / 997 + i / 3) as u8)
        .collect();
    turbo::encode(&pixels, SIZE, &Encoding::default()).unwrap()
}

fn index_of(data: &[u8]) -> Index {
    let mut index = Index::new();
    let whole = Rect::new(0, 0, SIZE.width, SIZE.height);
    Decoder::new()
        .region_with(data, whole, &DecodeOptions::default(), Some(&mut index))
        .unwrap();
    index
}

/// Items of one image: two crops that lie together, or far apart.
fn batch(data: &[u8], far: bool, memory: &mut [u8], indexes: Option<Arc<IndexCache>>) -> Items {
    let corner = if far { (340, 270) } else { (50, 50) };
    let boxes = [
        Rect::new(30, 40, 60, 50),
        Rect::new(corner.0, corner.1, 60, 50),
    ];
    let bytes = 20 * 10 * 3;
    let items = boxes.iter().enumerate().map(|(number, &box_)| Item {
        box_: Some(box_),
        size: Some((20, 10)),
        place: (0, number * bytes),
        ..Item::default()
    });
    let target = Target {
        store: Arc::new(Store {
            layout: Layout::Hwc,
            values: Values::U8,
        }),
        // SAFETY: the tests keep the memory until the batch is done.
        memory: unsafe { BatchMemory::new(memory.as_mut_ptr(), memory.len(), 1) },
    };
    let group = Group {
        source: Source::Memory(Box::new(Bytes(data.to_vec()))),
        count: 2,
    };
    let mut batch = Items::new(vec![group], items.collect(), vec![target]).unwrap();
    batch.indexes = indexes;
    batch
}

#[test]
fn the_index_of_another_image_is_refused_and_replaced() {
    let (one, other) = (image(1), image(2));
    let foreign = index_of(&other);
    for far in [false, true] {
        let mut plain = vec![9; 1200];
        assert_eq!(fill_items(batch(&one, far, &mut plain, None), 1), [0, 0]);
        let indexes = Arc::new(IndexCache::new(1 << 20));
        let key = content_key(&one);
        indexes.offer(key, &foreign, 0);
        for _ in 0..2 {
            let mut out = vec![9; 1200];
            let cache = Some(Arc::clone(&indexes));
            assert_eq!(fill_items(batch(&one, far, &mut out, cache), 1), [0, 0]);
            assert_eq!(out, plain, "far {far}");
        }
        // Made again, for the right image: it covers what the crops needed, and the decoder accepts it.
        let own = indexes.get(key).unwrap();
        assert!(own.rows() > 0 && *own != foreign);
        let options = DecodeOptions {
            index: Some(&own),
            ..DecodeOptions::default()
        };
        let mut decoder = Decoder::new();
        assert!(decoder
            .region_with(&one, Rect::new(30, 40, 60, 50), &options, None)
            .is_ok());
    }
}

#[test]
fn an_image_cut_short_under_the_key_of_the_whole_keeps_its_status() {
    let whole = image(3);
    let cut = &whole[..whole.len() * 2 / 3];
    let indexes = Arc::new(IndexCache::new(1 << 20));
    indexes.offer(content_key(cut), &index_of(&whole), 0);
    let (mut plain, mut out) = (vec![9; 1200], vec![9; 1200]);
    let expected = fill_items(batch(cut, true, &mut plain, None), 1);
    assert!(expected.iter().all(|&status| status != 0));
    let cache = Some(Arc::clone(&indexes));
    assert_eq!(fill_items(batch(cut, true, &mut out, cache), 1), expected);
    assert!(plain.iter().chain(&out).all(|&value| value == 0));
}

#[test]
fn the_engine_mixes_batches_of_items_and_cancels_them() {
    let data = image(4);
    let mut plain = vec![9; 1200];
    assert_eq!(fill_items(batch(&data, true, &mut plain, None), 4), [0, 0]);
    let engine = Engine::new(3, 2, false).unwrap();
    let mut memories: Vec<Vec<u8>> = (0..40).map(|_| vec![9; 1200]).collect();
    let jobs: Vec<_> = memories
        .iter_mut()
        .map(|memory| engine.submit_items(batch(&data, true, memory, None)))
        .collect();
    for job in &jobs[20..] {
        job.cancel();
    }
    for job in &jobs {
        assert!(job.wait(std::time::Duration::from_secs(30)));
    }
    drop(engine);
    assert!(memories[..20].iter().all(|memory| *memory == plain));
    assert!(memories[20..]
        .iter()
        .all(|memory| *memory == plain || memory.iter().all(|&value| value == 9)));
}
