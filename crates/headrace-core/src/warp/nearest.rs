//! Nearest neighbour. Pillow has three arithmetics here, which differ in rare pixels: accumulated doubles where the axes stay
//! straight, 16.16 fixed point otherwise, and accumulated doubles again where that would overflow (`Geometry.c`).

use super::{Affine, Line, Picture, WarpSpec};
use crate::cpu::Extension;

/// The walk over the rows of one output, in Pillow's arithmetic.
pub enum Nearest {
    /// 16.16 fixed point: the place of any pixel follows at once.
    Fixed(Walk<i64>, Extension),
    /// Doubles that are added up, pixel by pixel and row by row, from the output's corner; the row that `start` stands at.
    Added(Walk<f64>, u32),
}

impl Nearest {
    /// For the whole output of `spec`, whatever its window is.
    pub fn new(picture: &Picture<'_>, map: &Affine, spec: &WarpSpec, extension: Extension) -> Self {
        let fits = |x: u32, y: u32| {
            let (x, y) = map.apply(f64::from(x), f64::from(y));
            x.abs() < 32768.0 && y.abs() < 32768.0
        };
        let straight = map.b == 0.0 && map.d == 0.0;
        let (w, h) = (spec.width, spec.height);
        let in_range = fits(0, 0) && fits(w, 0) && fits(0, h) && fits(w, h);
        // A picture whose bytes are counted in more than 31 bits is left to the plain code.
        let small = i32::try_from(picture.bytes.len()).is_ok();
        if !straight && in_range {
            let fixed = Walk::new(map, |value| (value * 65536.0 + 0.5).floor() as i64);
            let extension = if small { extension } else { Extension::Scalar };
            Nearest::Fixed(fixed, extension)
        } else {
            Nearest::Added(Walk::new(map, |value| value), 0)
        }
    }

    /// Samples a row; rows must come in order.
    pub fn row(&mut self, picture: &Picture<'_>, line: Line, output: &mut [u8]) {
        match self {
            Nearest::Fixed(walk, extension) => {
                let (y, first) = (i64::from(line.y), i64::from(line.first));
                let from = |start: i64, across: i64, down: i64| start + down * y + across * first;
                let at = (
                    from(walk.start.0, walk.step_x.0, walk.step_y.0),
                    from(walk.start.1, walk.step_x.1, walk.step_y.1),
                );
                fixed(*extension, picture, at, walk.step_x, line.fill, output);
            }
            Nearest::Added(walk, row) => {
                while *row < line.y {
                    walk.start = walk.next(walk.start, walk.step_y);
                    *row += 1;
                }
                let mut at = walk.start;
                for _ in 0..line.first {
                    at = walk.next(at, walk.step_x);
                }
                let index = |value: f64| if value < 0.0 { -1 } else { value as i64 };
                for pixel in output.chunks_exact_mut(3) {
                    let value = picture.inside(index(at.0), index(at.1));
                    pixel.copy_from_slice(&value.unwrap_or(line.fill));
                    at = walk.next(at, walk.step_x);
                }
            }
        }
    }
}

/// Source coordinates that advance by addition, as Pillow's do.
pub struct Walk<T> {
    start: (T, T),
    step_x: (T, T),
    step_y: (T, T),
}

impl<T: Copy + std::ops::Add<Output = T>> Walk<T> {
    fn new(map: &Affine, convert: impl Fn(f64) -> T) -> Self {
        let half = |across: f64, down: f64, shift: f64| shift + across * 0.5 + down * 0.5;
        Walk {
            start: (
                convert(half(map.a, map.b, map.c)),
                convert(half(map.d, map.e, map.f)),
            ),
            step_x: (convert(map.a), convert(map.d)),
            step_y: (convert(map.b), convert(map.e)),
        }
    }

    fn next(&self, at: (T, T), step: (T, T)) -> (T, T) {
        (at.0 + step.0, at.1 + step.1)
    }
}

/// One row in fixed point: pixel i comes from `at + i * step`.
fn fixed(
    _extension: Extension,
    picture: &Picture<'_>,
    at: (i64, i64),
    step: (i64, i64),
    fill: [u8; 3],
    output: &mut [u8],
) {
    let (mut x, mut y) = at;
    for pixel in output.chunks_exact_mut(3) {
        let value = picture.inside(x >> 16, y >> 16);
        pixel.copy_from_slice(&value.unwrap_or(fill));
        (x, y) = (x + step.0, y + step.1);
    }
}
