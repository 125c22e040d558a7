//! Streams of random numbers that batches share: each image draws in its turn, in the order in which a worker process of the script
//! would make the images.
//!
//! A thread reads and opens its image first, because what is drawn depends on the size; then it waits for its turn, draws, and
//! decodes while the next image draws. Threads claim images in order, so the image whose turn it is waits for nobody.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::lock;
use crate::error::{Result, Status};
use crate::program::replay::Plan;
use crate::program::streams::{Exponentials, Source, Streams};

/// The position of an image: the number of its batch in the stream, and its own in the batch.
type Place = (u64, usize);

struct State {
    streams: Streams,
    exponentials: Exponentials,
    /// Whose turn it is.
    at: Place,
    /// The number of the next batch that joins.
    joining: u64,
    /// Nothing is drawn from this image on.
    broken: Option<Place>,
    /// The words that the images which have joined may still take from torch's stream.
    owed: u64,
}

/// The random streams of one process of the script.
pub struct Stream {
    state: Mutex<State>,
    moved: Condvar,
}

impl Stream {
    /// Make a stream in the state of a process. `ranges`: the ranges of `uniform_` whose exponentials the plans need.
    pub fn new(streams: Streams, ranges: Vec<(f32, f32)>) -> Self {
        Stream {
            state: Mutex::new(State {
                exponentials: Exponentials::new(&streams.torch, ranges),
                streams,
                at: (0, 0),
                joining: 0,
                broken: None,
                owed: 0,
            }),
            moved: Condvar::new(),
        }
    }

    /// Return the streams as they are now.
    pub fn streams(&self) -> Streams {
        lock(&self.state).streams.clone()
    }

    /// Return what torch must take the exponentials of, so that those of `words` more words are known; see
    /// [`Exponentials::arguments`]. Empty if they are; otherwise those of `ahead` further words are among them.
    pub fn arguments(&self, words: u64, ahead: u64) -> Vec<f32> {
        let mut state = lock(&self.state);
        if !state.exponentials.are_needed() {
            return Vec::new();
        }
        let end = state.streams.torch.taken() + state.owed + words;
        match end.saturating_sub(state.exponentials.reach()) {
            0 => Vec::new(),
            missing => state.exponentials.arguments((missing + ahead) as usize),
        }
    }

    /// Take the exponentials of what [`Stream::arguments`] returned last.
    pub fn extend(&self, exponentials: &[f32]) {
        lock(&self.state).exponentials.extend(exponentials);
    }

    /// Draw outside of any batch.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Source<'_>) -> T) -> T {
        let State {
            streams,
            exponentials,
            ..
        } = &mut *lock(&self.state);
        draw(&mut Source {
            streams,
            exponentials,
        })
    }

    /// Begin anew in the state of a process. Images of earlier batches draw nothing any more.
    pub fn restart(&self, streams: Streams) {
        let mut state = lock(&self.state);
        state.exponentials.restart(&streams.torch);
        state.streams = streams;
        state.at = (state.joining, 0);
        state.broken = None;
        state.owed = 0;
        drop(state);
        self.moved.notify_all();
    }

    /// Give a turn to a batch of `images`, behind all that have one. `words`: the most that each takes from torch's stream.
    fn join(&self, images: usize, words: u64) -> u64 {
        let mut state = lock(&self.state);
        state.owed += words * images as u64;
        state.joining += 1;
        state.joining - 1
    }

    /// Let nothing be drawn from an image on.
    fn break_at(&self, place: Place) {
        let mut state = lock(&self.state);
        state.broken = Some(state.broken.map_or(place, |broken| broken.min(place)));
        drop(state);
        self.moved.notify_all();
    }
}

/// What a batch has drawn.
#[derive(Default)]
struct Drawn {
    before: Option<Box<Streams>>,
    /// For each image the number of words that the streams had given behind it.
    taken: Vec<[u64; 3]>,
}

/// The turn of a batch in a stream.
pub struct Turn {
    stream: Arc<Stream>,
    number: u64,
    images: usize,
    words: u64,
    /// How the numbers of each view are drawn.
    pub plans: Vec<Arc<Plan>>,
    /// The numbers of the views in the order in which they draw.
    pub order: Vec<usize>,
    drawn: Mutex<Drawn>,
}

impl Turn {
    /// Join a stream, with as many plans as views. `words`: the most that an image takes from torch's stream.
    pub fn new(
        stream: Arc<Stream>,
        images: usize,
        words: u64,
        plans: Vec<Arc<Plan>>,
        order: Vec<usize>,
    ) -> Self {
        let number = stream.join(images, words);
        Turn {
            stream,
            number,
            images,
            words,
            plans,
            order,
            drawn: Mutex::default(),
        }
    }

    /// Wait for the turn of an image, and draw. An error ends the drawing of all that follows.
    pub fn draw(
        &self,
        image: usize,
        draw: impl FnOnce(&mut Source<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = (self.number, image);
        let mut state = lock(&self.stream.state);
        loop {
            if state.at > place || state.broken.is_some_and(|broken| broken <= place) {
                return Err(Status::NotDrawn);
            }
            if state.at == place {
                break;
            }
            state = self
                .stream
                .moved
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let mut drawn = lock(&self.drawn);
        if image == 0 {
            drawn.before = Some(Box::new(state.streams.clone()));
        }
        let State {
            streams,
            exponentials,
            ..
        } = &mut *state;
        let result = draw(&mut Source {
            streams,
            exponentials,
        });
        if result.is_ok() {
            drawn.taken.push(state.streams.taken());
            state.owed = state.owed.saturating_sub(self.words);
            state.at = if image + 1 == self.images {
                (self.number + 1, 0)
            } else {
                (self.number, image + 1)
            };
        } else {
            state.broken = Some(place);
        }
        drop((drawn, state));
        self.stream.moved.notify_all();
        result
    }

    /// Let nothing be drawn from an image of this batch on: what it is depends on the script.
    pub fn break_at(&self, image: usize) {
        self.stream.break_at((self.number, image));
    }

    /// Return the streams as they were before an image drew, `images` for behind the last; `None` if that is not known.
    pub fn streams_before(&self, image: usize) -> Option<Streams> {
        {
            let drawn = lock(&self.drawn);
            if let Some(before) = &drawn.before {
                return match image {
                    0 => Some(Streams::clone(before)),
                    image => drawn.taken.get(image - 1).map(|&taken| before.after(taken)),
                };
            }
        }
        let state = lock(&self.stream.state);
        (image == 0 && state.at == (self.number, 0)).then(|| state.streams.clone())
    }
}
