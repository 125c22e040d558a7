//! The geometric part of a transform pipeline, as data: which part of the image, resized to what, cut and flipped how.
//! All of it folds into one resampling; random draws follow torchvision's algorithms.

use crate::colour::draw::ColourStep;
use crate::colour::ColourOp;
use crate::decode::Size;
use crate::error::{Result, Status};
use crate::geometry::Rect;
use crate::resample::{Filter, ResizeSpec};
use crate::rng::{Key, Rng};

/// One operation, with torchvision's meaning. Sizes are (height, width) in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// `RandomResizedCrop(size, scale, ratio)`.
    RandomResizedCrop {
        /// Output height and width.
        size: (u32, u32),
        /// Range of the crop's share of the image area.
        scale: (f64, f64),
        /// Range of width / height.
        ratio: (f64, f64),
        /// Resampling filter.
        filter: Filter,
    },
    /// `Resize((h, w))`.
    ResizeExact {
        /// Output height and width.
        size: (u32, u32),
        /// Resampling filter.
        filter: Filter,
    },
    /// `Resize(size, max_size=…)`: the shorter side becomes `short`, the longer keeps the ratio but is at most `max` (0: no limit).
    ResizeShort {
        /// Length of the shorter side.
        short: u32,
        /// Limit of the longer side, or 0.
        max: u32,
        /// Resampling filter.
        filter: Filter,
    },
    /// `CenterCrop(size)`; pads with black where the image is smaller.
    CenterCrop {
        /// Output height and width.
        size: (u32, u32),
    },
    /// `RandomCrop(size, padding)`: pads (left, top, right, bottom) with black, then cuts.
    RandomCrop {
        /// Output height and width.
        size: (u32, u32),
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Pad more where the image is still too small; otherwise that is an error.
        pad_if_needed: bool,
    },
    /// `RandomHorizontalFlip(p)`.
    FlipX {
        /// Probability.
        p: f64,
    },
    /// `RandomVerticalFlip(p)`.
    FlipY {
        /// Probability.
        p: f64,
    },
    /// Colours of the finished image; no pixel moves. Only flips may follow, which change no colour.
    Colour(ColourStep),
}

/// Operations in order, ending in images of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    ops: Vec<Op>,
    out: (u32, u32),
}

/// What one image needs: a single resampling, and where its result lies in the output (black elsewhere).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// The resampling.
    pub spec: ResizeSpec,
    /// Left and top of the resampled pixels in the output image.
    pub at: (u32, u32),
    /// True where the resampled pixels do not fill the output.
    pub padded: bool,
    /// False where nothing of the image is visible (a crop of padding only).
    pub visible: bool,
}

/// Geometry so far. `window` is in the coordinates of the unflipped grid and may leave it (padding).
struct State {
    source: Rect,
    resized: Option<(u32, u32, Filter)>,
    window: Window,
    flip_x: bool,
    flip_y: bool,
}

#[derive(Clone, Copy)]
struct Window {
    x: i64,
    y: i64,
    w: i64,
    h: i64,
}

impl Program {
    /// Checks that the operations are one resampling with a fixed output size; says in words why not.
    pub fn new(ops: Vec<Op>) -> std::result::Result<Self, String> {
        let mut out = None;
        let mut resized = false;
        let mut coloured = false;
        for op in &ops {
            if coloured && !matches!(op, Op::FlipX { .. } | Op::FlipY { .. } | Op::Colour(_)) {
                return Err("a crop or resize after a colour operation".into());
            }
            match *op {
                Op::RandomResizedCrop {
                    size, scale, ratio, ..
                } => {
                    if resized || out.is_some() {
                        return Err("RandomResizedCrop after another resize or crop".into());
                    }
                    check_range("scale", scale)?;
                    check_range("ratio", ratio)?;
                    resized = true;
                    out = Some(size);
                }
                Op::ResizeExact { size, .. } => {
                    if resized {
                        return Err("two resizes in one pipeline".into());
                    }
                    resized = true;
                    out = Some(size);
                }
                Op::ResizeShort { short, .. } => {
                    if resized {
                        return Err("two resizes in one pipeline".into());
                    }
                    if short == 0 {
                        return Err("Resize to 0 pixels".into());
                    }
                    resized = true;
                    out = None;
                }
                Op::CenterCrop { size } | Op::RandomCrop { size, .. } => out = Some(size),
                Op::FlipX { p } | Op::FlipY { p } => {
                    if !(0.0..=1.0).contains(&p) {
                        return Err(format!("a flip probability of {p}"));
                    }
                }
                Op::Colour(step) => {
                    step.check()?;
                    coloured = true;
                }
            }
        }
        let Some(out) = out else {
            return Err("the output size differs from image to image".into());
        };
        if out.0 == 0 || out.1 == 0 || u64::from(out.0) * u64::from(out.1) > 1 << 28 {
            return Err(format!("an output size of {}×{}", out.1, out.0));
        }
        Ok(Program { ops, out })
    }

    /// Output height and width in pixels.
    pub fn out(&self) -> (u32, u32) {
        self.out
    }

    /// The colour operations under this key, in order, in place of what `ops` held.
    pub fn colours(&self, key: Key, ops: &mut Vec<ColourOp>) {
        ops.clear();
        for (number, op) in self.ops.iter().enumerate() {
            if let Op::Colour(step) = op {
                step.draw(&mut Rng::new(key, number as u64), ops);
            }
        }
    }

    /// The resampling for an image of this size under this key.
    pub fn place(&self, size: Size, key: Key) -> Result<Placement> {
        let mut state = State {
            source: Rect::new(0, 0, size.width, size.height),
            resized: None,
            window: Window {
                x: 0,
                y: 0,
                w: i64::from(size.width),
                h: i64::from(size.height),
            },
            flip_x: false,
            flip_y: false,
        };
        for (number, op) in self.ops.iter().enumerate() {
            state.apply(op, &mut Rng::new(key, number as u64))?;
        }
        state.placement()
    }
}

fn check_range(name: &str, (low, high): (f64, f64)) -> std::result::Result<(), String> {
    if low > 0.0 && low <= high && high.is_finite() {
        Ok(())
    } else {
        Err(format!("a {name} range of ({low}, {high})"))
    }
}

impl State {
    fn apply(&mut self, op: &Op, rng: &mut Rng) -> Result<()> {
        match *op {
            Op::RandomResizedCrop {
                size,
                scale,
                ratio,
                filter,
            } => {
                let crop = random_resized_crop(
                    self.window.w as u32,
                    self.window.h as u32,
                    scale,
                    ratio,
                    rng,
                );
                self.cut(
                    i64::from(crop.x),
                    i64::from(crop.y),
                    i64::from(crop.w),
                    i64::from(crop.h),
                );
                self.resize(size, filter)?;
            }
            Op::ResizeExact { size, filter } => self.resize(size, filter)?,
            Op::ResizeShort { short, max, filter } => {
                let size = resized_size(self.window.w as u32, self.window.h as u32, short, max)?;
                self.resize(size, filter)?;
            }
            Op::CenterCrop { size: (h, w) } => self.cut(
                centre(self.window.w, i64::from(w)),
                centre(self.window.h, i64::from(h)),
                i64::from(w),
                i64::from(h),
            ),
            Op::RandomCrop {
                size: (h, w),
                padding: [left, top, right, bottom],
                pad_if_needed,
            } => {
                self.cut(
                    -i64::from(left),
                    -i64::from(top),
                    self.window.w + i64::from(left) + i64::from(right),
                    self.window.h + i64::from(top) + i64::from(bottom),
                );
                let (w, h) = (i64::from(w), i64::from(h));
                let (grow_x, grow_y) = ((w - self.window.w).max(0), (h - self.window.h).max(0));
                if grow_x > 0 || grow_y > 0 {
                    if !pad_if_needed {
                        return Err(Status::BadBox);
                    }
                    // torchvision pads by the difference on both sides.
                    self.cut(
                        -grow_x,
                        -grow_y,
                        self.window.w + 2 * grow_x,
                        self.window.h + 2 * grow_y,
                    );
                }
                let y = rng.below((self.window.h - h + 1) as u32);
                let x = rng.below((self.window.w - w + 1) as u32);
                self.cut(i64::from(x), i64::from(y), w, h);
            }
            Op::FlipX { p } => self.flip_x ^= rng.unit() < p,
            Op::FlipY { p } => self.flip_y ^= rng.unit() < p,
            Op::Colour(_) => {}
        }
        Ok(())
    }

    /// Cuts a rectangle given in the current, possibly flipped, picture.
    fn cut(&mut self, x: i64, y: i64, w: i64, h: i64) {
        let x = if self.flip_x {
            self.window.w - x - w
        } else {
            x
        };
        let y = if self.flip_y {
            self.window.h - y - h
        } else {
            y
        };
        self.window = Window {
            x: self.window.x + x,
            y: self.window.y + y,
            w,
            h,
        };
    }

    /// Resizes what is visible now. Padding before a resize would be resampled with the image, so it is refused.
    fn resize(&mut self, (height, width): (u32, u32), filter: Filter) -> Result<()> {
        let window = self.window;
        let inside = window.x >= 0
            && window.y >= 0
            && window.w > 0
            && window.h > 0
            && window.x + window.w <= i64::from(self.source.w)
            && window.y + window.h <= i64::from(self.source.h);
        if self.resized.is_some() || !inside {
            return Err(Status::BadBox);
        }
        self.source = Rect::new(
            window.x as u32,
            window.y as u32,
            window.w as u32,
            window.h as u32,
        );
        self.resized = Some((width, height, filter));
        self.window = Window {
            x: 0,
            y: 0,
            w: i64::from(width),
            h: i64::from(height),
        };
        Ok(())
    }

    fn placement(&self) -> Result<Placement> {
        let (grid_w, grid_h, filter) =
            self.resized
                .unwrap_or((self.source.w, self.source.h, Filter::Bilinear));
        let window = self.window;
        let (x0, y0) = (window.x.max(0), window.y.max(0));
        let x1 = (window.x + window.w).min(i64::from(grid_w));
        let y1 = (window.y + window.h).min(i64::from(grid_h));
        let visible = x1 > x0 && y1 > y0;
        let part = if visible {
            Rect::new(x0 as u32, y0 as u32, (x1 - x0) as u32, (y1 - y0) as u32)
        } else {
            Rect::new(0, 0, 1, 1)
        };
        let left = if self.flip_x {
            window.x + window.w - x1
        } else {
            x0 - window.x
        };
        let top = if self.flip_y {
            window.y + window.h - y1
        } else {
            y0 - window.y
        };
        Ok(Placement {
            spec: ResizeSpec {
                box_: self.source,
                grid_w,
                grid_h,
                window: part,
                filter,
                flip_x: self.flip_x,
                flip_y: self.flip_y,
            },
            at: (left.max(0) as u32, top.max(0) as u32),
            padded: i64::from(part.w) != window.w || i64::from(part.h) != window.h || !visible,
            visible,
        })
    }
}

/// Where a centred cut of `part` pixels starts in `whole` (torchvision: `int(round((whole - part) / 2))`, Python's rounding
/// to even; where the image is smaller it is padded by half the difference, rounded down, at the start).
fn centre(whole: i64, part: i64) -> i64 {
    if part > whole {
        -((part - whole) / 2)
    } else {
        ((whole - part) as f64 / 2.0).round_ties_even() as i64
    }
}

/// Output (height, width) of `Resize(short, max_size=max)`, with torchvision's truncation.
fn resized_size(width: u32, height: u32, short: u32, max: u32) -> Result<(u32, u32)> {
    let (small, large) = (width.min(height), width.max(height));
    let mut new_small = short;
    let mut new_large = (f64::from(short) * f64::from(large) / f64::from(small)) as u32;
    if max > 0 && new_large > max {
        new_small = (f64::from(max) * f64::from(new_small) / f64::from(new_large)) as u32;
        new_large = max;
    }
    if new_small == 0 || u64::from(new_small) * u64::from(new_large) > crate::decode::MAX_PIXELS {
        return Err(Status::TooLarge);
    }
    Ok(if width <= height {
        (new_large, new_small)
    } else {
        (new_small, new_large)
    })
}

/// torchvision's `RandomResizedCrop.get_params`: ten tries of a random area and log-uniform ratio, else a central crop.
fn random_resized_crop(
    width: u32,
    height: u32,
    scale: (f64, f64),
    ratio: (f64, f64),
    rng: &mut Rng,
) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..10 {
        let target = area * rng.uniform(scale.0, scale.1);
        let aspect = rng.uniform(log_ratio.0, log_ratio.1).exp();
        let w = (target * aspect).sqrt().round_ties_even();
        let h = (target / aspect).sqrt().round_ties_even();
        if w >= 1.0 && w <= f64::from(width) && h >= 1.0 && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let y = rng.below(height - h + 1);
            let x = rng.below(width - w + 1);
            return Rect::new(x, y, w, h);
        }
    }
    let image_ratio = f64::from(width) / f64::from(height);
    let (w, h) = if image_ratio < ratio.0 {
        (
            width,
            ((f64::from(width) / ratio.0).round_ties_even() as u32).clamp(1, height),
        )
    } else if image_ratio > ratio.1 {
        (
            ((f64::from(height) * ratio.1).round_ties_even() as u32).clamp(1, width),
            height,
        )
    } else {
        (width, height)
    };
    Rect::new((width - w) / 2, (height - h) / 2, w, h)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Size = Size {
        width: 500,
        height: 375,
    };

    fn key(draw: u64) -> Key {
        Key {
            seed: 7,
            epoch: 0,
            draw,
        }
    }

    fn program(ops: Vec<Op>) -> Program {
        Program::new(ops).expect("valid")
    }

    #[test]
    fn evaluation_pipeline_is_one_resize_with_a_window() {
        let eval = program(vec![
            Op::ResizeShort {
                short: 256,
                max: 0,
                filter: Filter::Bilinear,
            },
            Op::CenterCrop { size: (224, 224) },
        ]);
        let placed = eval.place(IMAGE, key(0)).expect("fits");
        // 256 * 500 / 375 = 341.33; (341 - 224) / 2 = 58.5 rounds to even: 58.
        assert_eq!((placed.spec.grid_w, placed.spec.grid_h), (341, 256));
        assert_eq!(placed.spec.window, Rect::new(58, 16, 224, 224));
        assert!(!placed.padded);
    }

    #[test]
    fn a_flip_before_a_crop_mirrors_the_crop() {
        let ops = |flip| {
            vec![
                Op::ResizeShort {
                    short: 256,
                    max: 0,
                    filter: Filter::Bilinear,
                },
                Op::FlipX { p: flip },
                Op::CenterCrop { size: (224, 224) },
            ]
        };
        let plain = program(ops(0.0)).place(IMAGE, key(0)).expect("fits");
        let flipped = program(ops(1.0)).place(IMAGE, key(0)).expect("fits");
        assert_eq!(plain.spec.window.x, 58);
        // Mirrored grid: the window that starts at 58 from the right starts at 341 - 58 - 224 = 59 from the left.
        assert_eq!(flipped.spec.window.x, 59);
        assert!(flipped.spec.flip_x);
    }

    #[test]
    fn random_resized_crops_have_torchvisions_distribution() {
        let crop = Op::RandomResizedCrop {
            size: (224, 224),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            filter: Filter::Bilinear,
        };
        let train = program(vec![crop, Op::FlipX { p: 0.5 }]);
        let (mut area, mut flips) = (0.0, 0);
        let n = 20_000;
        for draw in 0..n {
            let placed = train.place(IMAGE, key(draw)).expect("fits");
            let source = placed.spec.box_;
            assert!(source.fits(IMAGE.width, IMAGE.height));
            area += f64::from(source.w) * f64::from(source.h) / (500.0 * 375.0);
            flips += u32::from(placed.spec.flip_x);
        }
        // 0.4339: the mean of torchvision 0.29's own algorithm on 500×375 (200,000 draws, standard error 0.0005).
        assert!(
            (area / n as f64 - 0.4339).abs() < 0.01,
            "{}",
            area / n as f64
        );
        assert!((f64::from(flips) / n as f64 - 0.5).abs() < 0.02);
    }

    #[test]
    fn crops_larger_than_the_image_are_padded_around_it() {
        let placed = program(vec![Op::CenterCrop { size: (10, 8) }])
            .place(
                Size {
                    width: 5,
                    height: 20,
                },
                key(0),
            )
            .expect("fits");
        assert_eq!(placed.spec.window, Rect::new(0, 5, 5, 10));
        assert_eq!(placed.at, (1, 0));
        assert!(placed.padded);
    }

    #[test]
    fn random_crop_with_padding_stays_in_the_padded_image() {
        let crop = program(vec![Op::RandomCrop {
            size: (32, 32),
            padding: [4; 4],
            pad_if_needed: false,
        }]);
        let mut corners = std::collections::HashSet::new();
        for draw in 0..2000 {
            let placed = crop
                .place(
                    Size {
                        width: 32,
                        height: 32,
                    },
                    key(draw),
                )
                .expect("fits");
            assert!(placed.at.0 <= 4 && placed.at.1 <= 4);
            corners.insert((placed.spec.window.x, placed.at.0));
        }
        assert_eq!(corners.len(), 9);
    }

    #[test]
    fn what_cannot_be_one_resampling_is_refused_in_words() {
        let resize = Op::ResizeShort {
            short: 256,
            max: 0,
            filter: Filter::Bilinear,
        };
        assert!(Program::new(vec![resize]).is_err_and(|why| why.contains("differs")));
        assert!(Program::new(vec![resize, resize]).is_err_and(|why| why.contains("two resizes")));
        assert!(Program::new(vec![]).is_err());
        let crop = program(vec![Op::RandomCrop {
            size: (32, 32),
            padding: [0; 4],
            pad_if_needed: false,
        }]);
        assert_eq!(
            crop.place(
                Size {
                    width: 20,
                    height: 40
                },
                key(0)
            ),
            Err(Status::BadBox)
        );
    }

    #[test]
    fn narrow_images_fall_back_to_a_central_crop() {
        let mut rng = Rng::new(key(0), 0);
        let crop = random_resized_crop(1000, 2, (0.5, 1.0), (0.75, 4.0 / 3.0), &mut rng);
        assert_eq!(crop, Rect::new(498, 0, 3, 2));
    }
}
