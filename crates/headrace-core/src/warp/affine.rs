//! Affine maps from output pixels to source pixels, in Pillow's convention.

use std::io::Write;

/// The source point of an output point (x, y): `x' = a·x + b·y + c`, `y' = d·x + e·y + f`. Coordinates are continuous: pixel i
/// covers [i, i + 1), its centre is i + 0.5. The field order is that of Pillow's `Image.transform(size, AFFINE, data)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    /// Source x per output x.
    pub a: f64,
    /// Source x per output y.
    pub b: f64,
    /// Source x of the output's corner.
    pub c: f64,
    /// Source y per output x.
    pub d: f64,
    /// Source y per output y.
    pub e: f64,
    /// Source y of the output's corner.
    pub f: f64,
}

impl Affine {
    /// The identity.
    pub const IDENTITY: Affine = Affine {
        a: 1.0,
        b: 0.0,
        c: 0.0,
        d: 0.0,
        e: 1.0,
        f: 0.0,
    };

    /// Make the map with these six numbers, in the order a, b, c, d, e, f.
    pub fn new(data: [f64; 6]) -> Self {
        let [a, b, c, d, e, f] = data;
        Affine { a, b, c, d, e, f }
    }

    /// Make the map that mirrors an image of `width` left to right.
    pub fn flip_x(width: u32) -> Self {
        Affine {
            a: -1.0,
            c: f64::from(width),
            ..Self::IDENTITY
        }
    }

    /// Make the map that mirrors an image of `height` top to bottom.
    pub fn flip_y(height: u32) -> Self {
        Affine {
            e: -1.0,
            f: f64::from(height),
            ..Self::IDENTITY
        }
    }

    /// Make the map of a crop whose corner is at (x, y); negative values pad.
    pub fn crop(x: f64, y: f64) -> Self {
        Affine {
            c: x,
            f: y,
            ..Self::IDENTITY
        }
    }

    /// Make the map that rotates an image of `width` × `height` by `degrees` counter-clockwise about its centre, as Pillow's
    /// `Image.rotate` does without `expand`: cosine and sine are rounded to 15 decimals.
    pub fn rotation(degrees: f64, width: u32, height: u32) -> Self {
        let center = (f64::from(width) / 2.0, f64::from(height) / 2.0);
        Self::rotation_about(degrees, center)
    }

    /// Make the map of a rotation about any centre (continuous coordinates), see [`Affine::rotation`].
    pub fn rotation_about(degrees: f64, center: (f64, f64)) -> Self {
        let radians = -degrees.rem_euclid(360.0).to_radians();
        let (sin, cos) = (radians.sin(), radians.cos());
        let (a, b) = (round_decimals(cos), round_decimals(sin));
        let (d, e) = (round_decimals(-sin), round_decimals(cos));
        Affine {
            a,
            b,
            c: (a * -center.0 + b * -center.1) + center.0,
            d,
            e,
            f: (d * -center.0 + e * -center.1) + center.1,
        }
    }

    /// Make the inverse map of torchvision's `affine(angle, translate, scale, shear, center)`, with angle and shear in degrees and
    /// translate in pixels.
    /// Source of the formula: torchvision `_get_inverse_affine_matrix`.
    pub fn torchvision(
        angle: f64,
        translate: (f64, f64),
        scale: f64,
        shear: (f64, f64),
        center: (f64, f64),
    ) -> Self {
        let (rotation, shear_x, shear_y) = (
            angle.to_radians(),
            shear.0.to_radians(),
            shear.1.to_radians(),
        );
        let (cos, sin) = ((rotation - shear_y).cos(), (rotation - shear_y).sin());
        let forward_a = cos / shear_y.cos();
        let forward_b = -cos * shear_x.tan() / shear_y.cos() - rotation.sin();
        let forward_c = sin / shear_y.cos();
        let forward_d = -sin * shear_x.tan() / shear_y.cos() + rotation.cos();
        let (a, b) = (forward_d / scale, -forward_b / scale);
        let (d, e) = (-forward_c / scale, forward_a / scale);
        let (x, y) = (-center.0 - translate.0, -center.1 - translate.1);
        Affine {
            a,
            b,
            c: (0.0 / scale + (a * x + b * y)) + center.0,
            d,
            e,
            f: (0.0 / scale + (d * x + e * y)) + center.1,
        }
    }

    /// Return the map of applying `self` to an image first, and `next` to the result. A point goes through `next`, then through
    /// `self`.
    pub fn then(&self, next: &Affine) -> Affine {
        let (x, y) = self.apply(next.c, next.f);
        Affine {
            a: self.a * next.a + self.b * next.d,
            b: self.a * next.b + self.b * next.e,
            c: x,
            d: self.d * next.a + self.e * next.d,
            e: self.d * next.b + self.e * next.e,
            f: y,
        }
    }

    /// Return the source point of the output point (x, y).
    pub fn apply(&self, x: f64, y: f64) -> (f64, f64) {
        (
            self.a * x + self.b * y + self.c,
            self.d * x + self.e * y + self.f,
        )
    }

    /// Return the map to a source that is `x` × `y` times as large.
    pub fn scaled(&self, x: f64, y: f64) -> Affine {
        Affine {
            a: self.a * x,
            b: self.b * x,
            c: self.c * x,
            d: self.d * y,
            e: self.e * y,
            f: self.f * y,
        }
    }

    /// Return the number of source columns and rows that one output pixel covers. Above 1 the map shrinks the image.
    pub fn footprint(&self) -> (f64, f64) {
        (self.a.hypot(self.b), self.d.hypot(self.e))
    }

    /// Return (mirrored left to right, mirrored top to bottom) if the map only mirrors an image of `width` × `height`.
    pub fn as_flips(&self, width: u32, height: u32) -> Option<(bool, bool)> {
        let flip = |scale: f64, shift: f64, length: u32| match (scale, shift) {
            (1.0, 0.0) => Some(false),
            (-1.0, shift) if shift == f64::from(length) => Some(true),
            _ => None,
        };
        if self.b != 0.0 || self.d != 0.0 {
            return None;
        }
        Some((flip(self.a, self.c, width)?, flip(self.e, self.f, height)?))
    }

    /// Return true if the map takes every pixel centre to a pixel centre.
    pub fn is_lattice(&self) -> bool {
        let whole = |value: f64| value.fract() == 0.0 && value.abs() < 1e9;
        let (x, y) = self.apply(0.5, 0.5);
        [self.a, self.b, self.d, self.e, x - 0.5, y - 0.5]
            .into_iter()
            .all(whole)
    }

    /// Return true if every number is finite.
    pub fn is_finite(&self) -> bool {
        [self.a, self.b, self.c, self.d, self.e, self.f]
            .iter()
            .all(|value| value.is_finite())
    }
}

/// Return Python's `round(value, 15)` for |value| ≤ 1: correctly rounded decimals, then the nearest double. It allocates nothing.
fn round_decimals(value: f64) -> f64 {
    let mut text = [0_u8; 32];
    let mut rest = &mut text[..];
    if write!(rest, "{value:.15}").is_err() {
        return value;
    }
    let length = 32 - rest.len();
    std::str::from_utf8(&text[..length])
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(value)
}
