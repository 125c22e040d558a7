//! The passes over the pixels of one image, planned from its steps.
//!
//! Crops, flips and one resize are always one exact pass ([`Cut`]). With [`Fuse::Geometry`], consecutive geometric steps that
//! contain rotations or affine steps become one sampling; pixels that left the image at any of these steps stay fill ([`Edge`]).
//! With [`Fuse::Off`] every affine step is a separate pass, as in Pillow. Each pass computes only the part of its result that
//! later passes read, and the decoder decodes only the part that the first pass reads.

use super::cut::{Base, Cut};
use super::step::{Motion, Sampling, Step};
use crate::colour::ColourOp;
use crate::error::Result;
use crate::geometry::{Rect, Scale, Size};
use crate::resample::Filter;
use crate::warp::{Affine, Edge, Interpolation, WarpSpec};

/// Which steps are combined into one sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fuse {
    /// All consecutive geometric operations.
    #[default]
    Geometry,
    /// Only steps whose combination gives exactly the pixels of one operation after the other.
    Off,
}

/// One pass over the pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pass {
    /// Crop, resize and flip.
    Cut(Cut),
    /// Affine sampling, clipped to `edges` of [`Route::edges`].
    Warp {
        /// The sampling.
        spec: WarpSpec,
        /// Index of the first edge, and number of edges.
        edges: (usize, usize),
    },
    /// A colour operation, in place.
    Colour(ColourOp),
}

/// A pass, and the part of its result that is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leg {
    /// The pass.
    pub pass: Pass,
    /// The part of the result that is computed, in pixels of the result.
    pub window: Rect,
    /// Size of the whole result.
    pub size: Size,
}

/// The passes of one image. Each image reuses the memory.
#[derive(Debug, Default)]
pub struct Route {
    /// The passes in order; the first is geometric.
    pub legs: Vec<Leg>,
    /// Half-planes to which affine passes are clipped.
    pub edges: Vec<Edge>,
    /// The region of the image that the decoder must deliver.
    pub source: Rect,
}

/// Geometric steps that are not yet a pass.
enum Open {
    Cut(Cut),
    Run(Run),
}

/// Consecutive geometric steps: `base`, then `map` from output points to points of the base's window.
struct Run {
    base: Base,
    map: Affine,
    size: Size,
    sampling: Sampling,
    /// True if the resolution changes after the map: sample bilinearly, and antialias if it shrinks.
    antialias: bool,
    first_edge: usize,
    flip_x: bool,
    flip_y: bool,
}

struct Builder<'a> {
    route: &'a mut Route,
    open: Open,
    fuse: Fuse,
}

impl Route {
    /// Plan the passes for `steps` on an image of `size`.
    pub fn plan(&mut self, steps: &[Step], size: Size, fuse: Fuse) -> Result<()> {
        self.legs.clear();
        self.edges.clear();
        let mut builder = Builder {
            route: self,
            open: Open::Cut(Cut::whole(size)),
            fuse,
        };
        for step in steps {
            builder.add(step)?;
        }
        builder.close();
        self.narrow();
        Ok(())
    }

    /// Return the scale at which a JPEG of `size` can be decoded, and adapt the first pass to it. Reduced decoding changes the
    /// result.
    pub fn reduce(&mut self, size: Size) -> Scale {
        let scale = match self.legs.first_mut().map(|leg| &mut leg.pass) {
            Some(Pass::Cut(cut)) => cut.reduce(size),
            Some(Pass::Warp { spec, .. }) => spec.reduce(size),
            _ => Scale::Full,
        };
        if scale != Scale::Full {
            self.narrow();
        }
        scale
    }

    /// Reduce each pass, from the last to the first, to the part that later passes need.
    fn narrow(&mut self) {
        let Some(last) = self.legs.last() else {
            return;
        };
        let mut wanted = whole(last.size);
        for leg in self.legs.iter_mut().rev() {
            match &mut leg.pass {
                Pass::Colour(op) => {
                    if !op.is_pointwise() {
                        wanted = whole(leg.size);
                    }
                    leg.window = wanted;
                }
                Pass::Cut(cut) => {
                    leg.window = wanted;
                    wanted = cut.part(wanted).placement().spec.needed();
                }
                Pass::Warp { spec, .. } => {
                    leg.window = wanted;
                    spec.window = wanted;
                    wanted = spec.needed();
                }
            }
        }
        self.source = wanted;
    }
}

fn whole(size: Size) -> Rect {
    Rect::new(0, 0, size.width, size.height)
}

impl Builder<'_> {
    fn add(&mut self, step: &Step) -> Result<()> {
        let size = self.size();
        let after = step.size_after(size)?;
        match *step {
            Step::FlipX => self.flip(true, false),
            Step::FlipY => self.flip(false, true),
            Step::Crop { x, y, w, h, fill } => self.crop((x, y, w, h), fill),
            Step::Resize { size, filter } => self.resize(size, filter),
            Step::Rotate { sampling, .. } | Step::Affine { sampling, .. } => {
                match step.motion(size) {
                    Motion::Still => {}
                    Motion::HalfTurn => self.flip(true, true),
                    Motion::Map(map, _) => self.warp(&map, after, sampling),
                }
            }
            Step::Colour(op) => {
                self.close();
                let window = whole(size);
                self.route.legs.push(Leg {
                    pass: Pass::Colour(op),
                    window,
                    size,
                });
            }
        }
        Ok(())
    }

    fn size(&self) -> Size {
        match &self.open {
            Open::Cut(cut) => cut.size(),
            Open::Run(run) => run.size,
        }
    }

    /// Make a pass of the open steps, and open a cut of its result.
    fn close(&mut self) {
        let size = self.size();
        let pass = match &self.open {
            Open::Cut(cut) if cut.is_identity() && !self.route.legs.is_empty() => None,
            Open::Cut(cut) => Some(Pass::Cut(*cut)),
            Open::Run(run) => Some(run.pass(&mut self.route.edges)),
        };
        if let Some(pass) = pass {
            let window = whole(size);
            self.route.legs.push(Leg { pass, window, size });
        }
        self.open = Open::Cut(Cut::whole(size));
    }

    /// Mirror the image. Colour operations are symmetric, so a flip after them joins the geometric steps before them.
    fn flip(&mut self, x: bool, y: bool) {
        let fuse = self.fuse;
        match &mut self.open {
            Open::Cut(cut) if cut.is_identity() && !self.route.legs.is_empty() => {
                let legs = self.route.legs.iter_mut().rev();
                let before = legs
                    .map_while(|leg| match &mut leg.pass {
                        Pass::Colour(op) if op.is_symmetric() => Some(None),
                        Pass::Colour(_) => None,
                        geometry => Some(Some(geometry)),
                    })
                    .flatten()
                    .next();
                match before {
                    Some(Pass::Cut(cut)) => mirror(cut, x, y),
                    Some(Pass::Warp { spec, .. }) => {
                        spec.flip_x ^= x;
                        spec.flip_y ^= y;
                    }
                    _ => mirror(cut, x, y),
                }
            }
            Open::Cut(cut) => mirror(cut, x, y),
            Open::Run(run) if fuse == Fuse::Off => {
                run.flip_x ^= x;
                run.flip_y ^= y;
            }
            Open::Run(run) => {
                let size = run.size;
                if x {
                    run.follow(&Affine::flip_x(size.width), size, &mut self.route.edges);
                }
                if y {
                    run.follow(&Affine::flip_y(size.height), size, &mut self.route.edges);
                }
            }
        }
    }

    fn crop(&mut self, (x, y, w, h): (i64, i64, i64, i64), fill: [u8; 3]) {
        let size = self.size();
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        if let Open::Run(run) = &mut self.open {
            let leaves = x < 0 || y < 0 || x + w > width || y + h > height;
            if self.fuse == Fuse::Geometry && (!leaves || run.sampling.fill == fill) {
                let part = Affine::crop(x as f64, y as f64);
                let after = Size {
                    width: w as u32,
                    height: h as u32,
                };
                let edges = &mut self.route.edges;
                let first = edges.len();
                if leaves {
                    Edge::around(width as f64, height as f64, edges);
                }
                run.follow_all(&part, after, edges, first);
                return;
            }
            self.close();
        }
        let Open::Cut(cut) = &mut self.open else {
            return;
        };
        if !cut.crop(x, y, w, h, fill) {
            self.close();
            self.crop((x, y, w, h), fill);
        }
    }

    fn resize(&mut self, (height, width): (u32, u32), filter: Filter) {
        if let Open::Run(run) = &mut self.open {
            if self.fuse == Fuse::Geometry {
                let ratio = |old: u32, new: u32| f64::from(old) / f64::from(new);
                let map = Affine::IDENTITY
                    .scaled(ratio(run.size.width, width), ratio(run.size.height, height));
                run.antialias = true;
                run.sampling.interpolation = Interpolation::Bilinear;
                run.base.filter = if run.base.is_resized() {
                    run.base.filter
                } else {
                    filter
                };
                run.follow(&map, Size { width, height }, &mut self.route.edges);
                return;
            }
            self.close();
        }
        let Open::Cut(cut) = &mut self.open else {
            return;
        };
        if !cut.resize((height, width), filter) {
            self.close();
            self.resize((height, width), filter);
        }
    }

    fn warp(&mut self, map: &Affine, after: Size, sampling: Sampling) {
        let size = self.size();
        if let Open::Run(run) = &mut self.open {
            if self.fuse == Fuse::Geometry && run.sampling.fill == sampling.fill {
                let edges = &mut self.route.edges;
                let first = edges.len();
                Edge::around(f64::from(size.width), f64::from(size.height), edges);
                if sampling.interpolation == Interpolation::Bilinear {
                    run.sampling.interpolation = Interpolation::Bilinear;
                }
                run.follow_all(map, after, edges, first);
                return;
            }
            self.close();
        }
        if let Open::Cut(cut) = &self.open {
            let same_fill = cut.fill() == sampling.fill || !cut.placement().padded;
            let exact = cut.base().is_plain();
            if !exact && (self.fuse == Fuse::Off || !same_fill) {
                self.close();
            }
        }
        let Open::Cut(cut) = &self.open else {
            return;
        };
        let base = cut.base();
        let edges = &mut self.route.edges;
        let first_edge = edges.len();
        let mut run = Run {
            base,
            map: base.shown(),
            size,
            sampling,
            antialias: false,
            first_edge,
            flip_x: false,
            flip_y: false,
        };
        if !base.is_plain() {
            Edge::around(f64::from(size.width), f64::from(size.height), edges);
        }
        run.follow_all(map, after, edges, first_edge);
        self.open = Open::Run(run);
    }
}

fn mirror(cut: &mut Cut, x: bool, y: bool) {
    if x {
        cut.flip_x();
    }
    if y {
        cut.flip_y();
    }
}

impl Base {
    /// Return the map from points of the visible image to points of the grid.
    fn shown(&self) -> Affine {
        let (x, y, w, h) = self.window;
        let mut map = Affine::crop(x as f64, y as f64);
        if self.flip_x {
            map = map.then(&Affine::flip_x(w as u32));
        }
        if self.flip_y {
            map = map.then(&Affine::flip_y(h as u32));
        }
        map
    }

    fn is_resized(&self) -> bool {
        self.grid != (self.box_.w, self.box_.h)
    }
}

impl Run {
    /// Append a map that needs no new edges.
    fn follow(&mut self, map: &Affine, after: Size, edges: &mut [Edge]) {
        let first = edges.len();
        self.follow_all(map, after, edges, first);
    }

    /// Append a map. The edges from `new` on are in the coordinates of its source, like those before.
    fn follow_all(&mut self, map: &Affine, after: Size, edges: &mut [Edge], new: usize) {
        debug_assert!(new <= edges.len());
        for edge in &mut edges[self.first_edge..] {
            *edge = edge.seen_through(map);
        }
        self.map = self.map.then(map);
        self.size = after;
    }

    /// Return the pass, without the edges that clip nothing.
    fn pass(&self, edges: &mut Vec<Edge>) -> Pass {
        let size = self.size;
        let mut kept = self.first_edge;
        for at in self.first_edge..edges.len() {
            if edges[at].cuts(size.width, size.height) {
                edges[kept] = edges[at];
                kept += 1;
            }
        }
        edges.truncate(kept);
        let spec = WarpSpec {
            box_: self.base.box_,
            grid_w: self.base.grid.0,
            grid_h: self.base.grid.1,
            filter: self.base.filter,
            map: self.map,
            width: size.width,
            height: size.height,
            interpolation: self.sampling.interpolation,
            fill: self.sampling.fill,
            antialias: self.antialias,
            window: whole(size),
            flip_x: self.flip_x,
            flip_y: self.flip_y,
        };
        Pass::Warp {
            spec,
            edges: (self.first_edge, kept - self.first_edge),
        }
    }
}
