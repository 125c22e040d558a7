//! Masks: images of class numbers, which get the geometric operations of their image and no others.
//!
//! A mask is a PNG of gray samples or palette indices of up to 8 bits. The stored numbers are the classes; the palette is ignored.
//! Each operation samples the nearest pixel, one after the other, as Pillow does with `Resampling.NEAREST`.

use std::io::Cursor;

use crate::error::{Result, Status};
use crate::geometry::{Rect, RgbView, Size};
use crate::limits::{self, max_pixels};
use crate::program::route::{Fuse, Route};
use crate::program::step::{Sampling, Step};
use crate::render::Renderer;
use crate::resample::Filter;
use crate::warp::Interpolation;

/// The reusable memory of one thread.
#[derive(Default)]
pub struct Masker {
    samples: Vec<u8>,
    pixels: Vec<u8>,
    drawn: Vec<u8>,
    steps: Vec<Step>,
    route: Route,
    renderer: Renderer,
}

impl Masker {
    /// Decode the mask in `data`, which has the image's `size`, apply the image's `steps`, and write one byte per pixel to `out`.
    /// Pixels from outside the image get the class `fill`.
    ///
    /// Errors: [`Status::BadMask`], [`Status::MaskSize`], [`Status::TooLarge`].
    pub fn draw(
        &mut self,
        data: &[u8],
        size: Size,
        steps: &[Step],
        fill: u8,
        out: &mut [u8],
    ) -> Result<()> {
        self.decode(data, size)?;
        self.steps.clear();
        self.steps
            .extend(steps.iter().filter_map(|step| geometry(step, fill)));
        self.route.plan(&self.steps, size, Fuse::Off)?;
        let source = RgbView {
            pixels: &self.pixels,
            stride: 3 * size.width as usize,
            region: Rect::new(0, 0, size.width, size.height),
        };
        limits::resize(&mut self.drawn, 3 * out.len(), 0)?;
        self.renderer.render(source, &self.route, &mut self.drawn)?;
        for (class, pixel) in out.iter_mut().zip(self.drawn.chunks_exact(3)) {
            *class = pixel[0];
        }
        Ok(())
    }

    /// Decode the classes of `data` to pixels of three equal channels, because the renderer handles three.
    fn decode(&mut self, data: &[u8], size: Size) -> Result<()> {
        let bad = |_| Status::BadMask;
        let limits = png::Limits {
            bytes: max_pixels() as usize,
        };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(data), limits);
        decoder.set_ignore_iccp_chunk(true); // nobody needs the profile, and a small chunk may hold a large one
        let mut reader = decoder.read_info().map_err(bad)?;
        let info = reader.info();
        let stored = matches!(
            info.color_type,
            png::ColorType::Grayscale | png::ColorType::Indexed
        );
        let bits = info.bit_depth as usize;
        if !stored || bits > 8 {
            return Err(Status::BadMask);
        }
        if (info.width, info.height) != (size.width, size.height) {
            return Err(Status::MaskSize);
        }
        let bytes = reader.output_buffer_size().ok_or(Status::TooLarge)?;
        self.samples.clear(); // so that no pixels of an earlier mask remain if the decoder skips some
        limits::resize(&mut self.samples, bytes, 0)?;
        let row_bytes = reader.next_frame(&mut self.samples).map_err(bad)?.line_size;
        let width = size.width as usize;
        limits::resize(&mut self.pixels, 3 * width * size.height as usize, 0)?;
        let rows = self.samples.chunks_exact(row_bytes);
        for (row, out) in rows.zip(self.pixels.chunks_exact_mut(3 * width)) {
            for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
                pixel.fill(sample(row, x, bits));
            }
        }
        Ok(())
    }
}

/// Return sample `x` of a row of samples of 1, 2, 4 or 8 bits; the first is in the highest bits.
fn sample(row: &[u8], x: usize, bits: usize) -> u8 {
    let byte = row[x * bits / 8];
    (byte >> (8 - bits - x * bits % 8)) & (0xFF >> (8 - bits)) as u8
}

/// Return the step for a mask, which samples the nearest pixel; `None` for a colour operation.
fn geometry(step: &Step, fill: u8) -> Option<Step> {
    let nearest = Sampling {
        interpolation: Interpolation::Nearest,
        fill: [fill; 3],
    };
    let mut step = *step;
    match &mut step {
        Step::Crop { fill, .. } => *fill = nearest.fill,
        Step::Resize { filter, .. } => *filter = Filter::Nearest,
        Step::Rotate { sampling, .. } | Step::Affine { sampling, .. } => *sampling = nearest,
        Step::FlipX | Step::FlipY => {}
        Step::Colour(_) => return None,
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32, kind: png::ColorType, bits: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(kind);
        encoder.set_depth(png::BitDepth::from_u8(bits).expect("a depth"));
        if kind == png::ColorType::Indexed {
            encoder.set_palette(
                (0..=255)
                    .flat_map(|at: u8| [255 - at; 3])
                    .take(3 << bits)
                    .collect::<Vec<u8>>(),
            );
        }
        let mut writer = encoder.write_header().expect("memory");
        writer.write_image_data(data).expect("memory");
        writer.finish().expect("memory");
        bytes
    }

    fn drawn(data: &[u8], size: (u32, u32), steps: &[Step]) -> Result<Vec<u8>> {
        let mut out = vec![99; 6];
        let (width, height) = size;
        Masker::default().draw(data, Size { width, height }, steps, 7, &mut out)?;
        Ok(out)
    }

    const STILL: Step = Step::Crop {
        x: 0,
        y: 0,
        w: 3,
        h: 2,
        fill: [0; 3],
    };

    #[test]
    fn stored_numbers_are_the_classes_at_every_depth() {
        let kinds = [png::ColorType::Grayscale, png::ColorType::Indexed];
        for kind in kinds {
            for (bits, data, classes) in [
                (8, vec![1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
                (4, vec![0x12, 0x30, 0x45, 0x60], [1, 2, 3, 4, 5, 6]),
                (2, vec![0b0110_1100, 0b0011_0100], [1, 2, 3, 0, 3, 1]),
                (1, vec![0b1010_0000, 0b0110_0000], [1, 0, 1, 0, 1, 1]),
            ] {
                let data = png(3, 2, kind, bits, &data);
                assert_eq!(
                    drawn(&data, (3, 2), &[STILL]),
                    Ok(classes.to_vec()),
                    "{kind:?} {bits}"
                );
            }
        }
    }

    #[test]
    fn masks_get_geometry_with_the_nearest_pixel_and_no_colour_operations() {
        let data = png(3, 2, png::ColorType::Grayscale, 8, &[1, 2, 3, 4, 5, 6]);
        let shifted = Step::Crop {
            x: -1,
            y: 0,
            w: 3,
            h: 2,
            fill: [50; 3],
        };
        let invert = Step::Colour(crate::colour::ColourOp::Invert);
        let found = drawn(&data, (3, 2), &[Step::FlipX, invert, shifted]);
        assert_eq!(found, Ok(vec![7, 3, 2, 7, 6, 5]));
        let larger = Step::Resize {
            size: (1, 6),
            filter: Filter::Bicubic,
        };
        assert_eq!(drawn(&data, (3, 2), &[larger]), Ok(vec![4, 4, 5, 5, 6, 6]));
    }

    #[test]
    fn other_files_are_refused_as_masks() {
        let data = png(3, 2, png::ColorType::Grayscale, 8, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(drawn(&data, (2, 3), &[STILL]), Err(Status::MaskSize));
        let rgb = png(1, 1, png::ColorType::Rgb, 8, &[1, 2, 3]);
        let deep = png(1, 1, png::ColorType::Grayscale, 16, &[1, 2]);
        for data in [&rgb[..], &deep, &data[..data.len() / 2], b"", b"no png"] {
            assert_eq!(drawn(data, (1, 1), &[STILL]), Err(Status::BadMask));
        }
    }
}
