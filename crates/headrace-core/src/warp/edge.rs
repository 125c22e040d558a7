//! Half-planes of the output in which the image is visible; outside them is fill.

use super::Affine;

/// A half-plane: the image is visible at output pixels whose centre (x, y) has `p·x + q·y + r >= 0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    p: f64,
    q: f64,
    r: f64,
}

impl Edge {
    /// Append the four edges of an image of `width` × `height`.
    pub fn around(width: f64, height: f64, edges: &mut Vec<Edge>) {
        let edge = |p, q, r| Edge { p, q, r };
        edges.extend([
            edge(1.0, 0.0, 0.0),
            edge(-1.0, 0.0, width),
            edge(0.0, 1.0, 0.0),
            edge(0.0, -1.0, height),
        ]);
    }

    /// Return the edge in the coordinates of an image whose points `map` maps to the current coordinates.
    #[must_use]
    pub fn seen_through(&self, map: &Affine) -> Edge {
        Edge {
            p: self.p * map.a + self.q * map.d,
            q: self.p * map.b + self.q * map.e,
            r: self.p * map.c + self.q * map.f + self.r,
        }
    }

    /// Return p, q and r.
    pub fn coefficients(&self) -> [f64; 3] {
        [self.p, self.q, self.r]
    }

    fn at(&self, x: f64, y: f64) -> f64 {
        self.p * x + self.q * y + self.r
    }

    /// Return whether any pixel of an image of `width` × `height` is outside.
    pub fn cuts(&self, width: u32, height: u32) -> bool {
        let (right, bottom) = (f64::from(width) - 0.5, f64::from(height) - 0.5);
        let corners = [(0.5, 0.5), (right, 0.5), (0.5, bottom), (right, bottom)];
        // Written so that NaN counts as outside.
        !corners.into_iter().all(|(x, y)| self.at(x, y) >= 0.0)
    }

    /// Return the range of visible pixels among the `count` pixels of row `y` from `first` on, counted from `first`.
    pub fn shown(&self, y: u32, first: u32, count: usize) -> (usize, usize) {
        // At pixel i: value + p·i.
        let value = self.at(f64::from(first) + 0.5, f64::from(y) + 0.5);
        let zero = -value / self.p;
        if self.p > 0.0 {
            (zero.ceil().clamp(0.0, count as f64) as usize, count)
        } else if self.p < 0.0 {
            (0, (zero.floor() + 1.0).clamp(0.0, count as f64) as usize)
        } else {
            (0, if value >= 0.0 { count } else { 0 })
        }
    }
}
