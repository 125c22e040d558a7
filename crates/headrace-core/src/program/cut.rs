//! Crops, flips and one resize, combined into one resampling with exactly Pillow's result.

use crate::geometry::{Rect, Scale, Size};
use crate::resample::{Filter, ResizeSpec};

/// A single resampling, and the place of its result in the output, which is filled around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// The resampling.
    pub spec: ResizeSpec,
    /// Left and top of the resampled pixels in the output image.
    pub at: (u32, u32),
    /// True if the resampled pixels do not fill the output.
    pub padded: bool,
    /// False if nothing of the image is visible (a crop of padding only).
    pub visible: bool,
    /// Colour around the resampled pixels.
    pub fill: [u8; 3],
}

/// The crops, flips and resize so far, of an image of a given size. `window` is in coordinates of the unflipped grid and may
/// leave it (padding).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    source: Rect,
    resized: Option<(u32, u32, Filter)>,
    window: Window,
    flip_x: bool,
    flip_y: bool,
    fill: [u8; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    x: i64,
    y: i64,
    w: i64,
    h: i64,
}

/// The exact resize at the start of an affine run: from a box of the source to a grid, with the visible part of the grid and its
/// flips.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Base {
    /// Source box.
    pub box_: Rect,
    /// Width and height of the grid.
    pub grid: (u32, u32),
    /// Filter of the resize.
    pub filter: Filter,
    /// The visible part of the grid; may leave it.
    pub window: (i64, i64, i64, i64),
    /// True if mirrored left to right.
    pub flip_x: bool,
    /// True if mirrored top to bottom.
    pub flip_y: bool,
}

impl Base {
    /// Return true if the whole grid is visible and not flipped.
    pub fn is_plain(&self) -> bool {
        let whole = (0, 0, i64::from(self.grid.0), i64::from(self.grid.1));
        self.window == whole && !self.flip_x && !self.flip_y
    }
}

impl Cut {
    /// Make the cut that keeps an image of `size` unchanged.
    pub fn whole(size: Size) -> Self {
        Cut {
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
            fill: [0; 3],
        }
    }

    /// Return the size of the result.
    pub fn size(&self) -> Size {
        Size {
            width: self.window.w as u32,
            height: self.window.h as u32,
        }
    }

    /// Return true if the cut changes nothing.
    pub fn is_identity(&self) -> bool {
        *self
            == Cut::whole(Size {
                width: self.source.w,
                height: self.source.h,
            })
    }

    fn grid(&self) -> (u32, u32) {
        let (w, h, _) = self
            .resized
            .unwrap_or((self.source.w, self.source.h, Filter::Bilinear));
        (w, h)
    }

    /// Return whether the window leaves the grid on any side.
    fn is_padded(&self) -> bool {
        let (grid_w, grid_h) = self.grid();
        let Window { x, y, w, h } = self.window;
        x < 0 || y < 0 || x + w > i64::from(grid_w) || y + h > i64::from(grid_h)
    }

    /// Return whether the window contains the whole grid, so that enlarging it reveals nothing that was cropped before.
    fn holds_grid(&self) -> bool {
        let (grid_w, grid_h) = self.grid();
        let Window { x, y, w, h } = self.window;
        x <= 0 && y <= 0 && x + w >= i64::from(grid_w) && y + h >= i64::from(grid_h)
    }

    /// Crop to a rectangle in coordinates of the current, possibly flipped, image. Return false and change nothing if the result
    /// is not a single resampling: padding around a part of the image, or padding of another colour than before.
    #[must_use]
    pub fn crop(&mut self, x: i64, y: i64, w: i64, h: i64, fill: [u8; 3]) -> bool {
        let leaves = x < 0 || y < 0 || x + w > self.window.w || y + h > self.window.h;
        if leaves && (!self.holds_grid() || (self.is_padded() && self.fill != fill)) {
            return false;
        }
        if leaves {
            self.fill = fill;
        }
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
        true
    }

    /// Resize the visible part. Return false and change nothing if the result is not a single exact resampling: a second resize,
    /// padding, or a flip before a filter that is not symmetric.
    #[must_use]
    pub fn resize(&mut self, (height, width): (u32, u32), filter: Filter) -> bool {
        let mirrored = self.flip_x || self.flip_y;
        let symmetric = !matches!(filter, Filter::Nearest | Filter::Box);
        if self.resized.is_some() || self.is_padded() || (mirrored && !symmetric) {
            return false;
        }
        let Window { x, y, w, h } = self.window;
        self.source = Rect::new(
            self.source.x + x as u32,
            self.source.y + y as u32,
            w as u32,
            h as u32,
        );
        self.resized = Some((width, height, filter));
        self.window = Window {
            x: 0,
            y: 0,
            w: i64::from(width),
            h: i64::from(height),
        };
        true
    }

    /// Mirror left to right.
    pub fn flip_x(&mut self) {
        self.flip_x = !self.flip_x;
    }

    /// Mirror top to bottom.
    pub fn flip_y(&mut self) {
        self.flip_y = !self.flip_y;
    }

    /// Return the scale at which a JPEG of `size` can be decoded for this cut, and move the source to the image at that scale.
    pub fn reduce(&mut self, size: Size) -> Scale {
        let Some((width, height, _)) = self.resized else {
            return Scale::Full;
        };
        let scale = Scale::for_target((self.source.w, self.source.h), (width, height));
        let small = size.scaled(scale);
        self.source = self
            .source
            .reduced(scale.divisor(), small.width, small.height);
        scale
    }

    /// Return the cut as the start of an affine run.
    pub fn base(&self) -> Base {
        let Window { x, y, w, h } = self.window;
        let (grid_w, grid_h) = self.grid();
        let mut base = Base {
            box_: self.source,
            grid: (grid_w, grid_h),
            filter: self
                .resized
                .map_or(Filter::Bilinear, |(_, _, filter)| filter),
            window: (x, y, w, h),
            flip_x: self.flip_x,
            flip_y: self.flip_y,
        };
        if self.resized.is_none() && !self.is_padded() {
            // Only a part of the image is left. It becomes the source, because nothing outside may become visible again.
            base.box_ = Rect::new(
                self.source.x + x as u32,
                self.source.y + y as u32,
                w as u32,
                h as u32,
            );
            base.grid = (w as u32, h as u32);
            base.window = (0, 0, w, h);
        }
        base
    }

    /// Return the colour of the padding.
    pub fn fill(&self) -> [u8; 3] {
        self.fill
    }

    /// Return the cut that computes only this rectangle of the result.
    pub fn part(&self, wanted: Rect) -> Cut {
        let mut part = *self;
        let inside = part.crop(
            i64::from(wanted.x),
            i64::from(wanted.y),
            i64::from(wanted.w),
            i64::from(wanted.h),
            self.fill,
        );
        debug_assert!(inside, "a part of the result");
        part
    }

    /// Return the resampling, and its place in the result.
    pub fn placement(&self) -> Placement {
        let (grid_w, grid_h) = self.grid();
        let filter = self
            .resized
            .map_or(Filter::Bilinear, |(_, _, filter)| filter);
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
        Placement {
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
            fill: self.fill,
        }
    }
}
