//! libjpeg-turbo through its libjpeg API (`turbo_shim.c`): the reference of our own decoder, and the decoder of all files that ours
//! does not support (progressive, arithmetic, CMYK, 12 bits). The TurboJPEG API cannot skip scanlines or read coefficients.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::error::{Result, Status};
use crate::geometry::{Rect, Scale, Size};
use crate::limits;

// The shim's symbols live in a static library that links against the one turbojpeg-sys builds.
use turbojpeg_sys as _;

unsafe extern "C" {
    fn headrace_turbo_size(
        data: *const u8,
        length: usize,
        width: *mut u32,
        height: *mut u32,
        components: *mut u32,
    ) -> i32;
    fn headrace_turbo_region(
        data: *const u8,
        length: usize,
        region: *const RegionOfShim,
        out: *mut u8,
        line: *mut u8,
    ) -> i32;
    fn headrace_turbo_encode(
        pixels: *const u8,
        w: u32,
        h: u32,
        space: i32,
        factors: *const u8,
        quality: i32,
        restart_interval: u32,
        flags: i32,
        out: *mut u8,
        room: usize,
    ) -> usize;
    fn headrace_turbo_coefficients(
        data: *const u8,
        length: usize,
        most_scans: u32,
        most_coefficient_bytes: usize,
        on_row: extern "C" fn(*mut c_void, *const *const i16, *const u32) -> i32,
        context: *mut c_void,
        quantisation: *mut u16,
    ) -> i32;
}

/// A region to decode, and what its buffers were made for; `headrace_region_t` of the shim.
#[repr(C)]
struct RegionOfShim {
    out_bytes: usize,
    line_bytes: usize,
    image_width: u32,
    image_height: u32,
    components: u32,
    scale_divisor: u32,
    x: u32,
    y: u32,
    w: u32,
    h: u32,
    to_the_end: u32,
    most_scans: u32,
    most_coefficient_bytes: usize,
}

/// Return the largest size of whole-image coefficient arrays in bytes.
fn most_coefficient_bytes() -> usize {
    usize::try_from(limits::max_bytes()).unwrap_or(usize::MAX)
}

fn check(status: i32) -> Result<()> {
    match Status::ALL.get(usize::try_from(status).unwrap_or(usize::MAX)) {
        Some(Status::Ok) => Ok(()),
        Some(&status) => Err(status),
        None => Err(Status::Internal),
    }
}

/// Return width and height from the header. Lossless files, which no function here decodes, are [`Status::Unsupported`].
pub fn size(data: &[u8]) -> Result<Size> {
    header(data).map(|(size, _)| size)
}

/// Return the size and the number of components.
fn header(data: &[u8]) -> Result<(Size, u32)> {
    let (mut width, mut height, mut components) = (0, 0, 0);
    // SAFETY: the pointers are valid for the call, and the shim reads at most `length` bytes.
    check(unsafe {
        headrace_turbo_size(
            data.as_ptr(),
            data.len(),
            &mut width,
            &mut height,
            &mut components,
        )
    })?;
    Ok((Size { width, height }, components))
}

/// How much of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Up to the last row of the region.
    Region,
    /// All of it, so that the status does not depend on the region.
    File,
}

/// Decode `region`, which must lie in the image, into `pixels` (resized as needed); return the row stride in bytes.
pub fn region(data: &[u8], region: Rect, pixels: &mut Vec<u8>) -> Result<usize> {
    region_scaled(data, Scale::Full, region, Extent::Region, pixels)
}

/// Decode as [`region`] does, from the image reduced by `scale`.
pub fn region_scaled(
    data: &[u8],
    scale: Scale,
    region: Rect,
    extent: Extent,
    pixels: &mut Vec<u8>,
) -> Result<usize> {
    let most_scans = limits::most_scans(header(data)?.0.pixels(), data.len());
    region_of_scans(data, scale, region, extent, most_scans, pixels)
}

/// Decode as [`region_scaled`] does, from a file of at most so many scans.
pub(crate) fn region_of_scans(
    data: &[u8],
    scale: Scale,
    region: Rect,
    extent: Extent,
    most_scans: u32,
    pixels: &mut Vec<u8>,
) -> Result<usize> {
    if most_scans == 0 {
        return Err(Status::TooLarge);
    }
    let (size, components) = header(data)?;
    let scaled = size.scaled(scale);
    if !region.fits(scaled.width, scaled.height) {
        return Err(Status::BadBox);
    }
    let stride = region.w as usize * 3;
    let image = stride * region.h as usize;
    // The line buffer follows the pixels: one row of the whole width, 8 bytes per pixel for CMYK of 12 bits.
    let needed = image + size.width as usize * 8 + 64;
    limits::grow(pixels, needed, 0)?;
    let (out, line) = pixels.split_at_mut(image);
    let padding = line.as_ptr().align_offset(2);
    let line = &mut line[padding..];
    let request = RegionOfShim {
        out_bytes: out.len(),
        line_bytes: line.len(),
        image_width: size.width,
        image_height: size.height,
        components,
        scale_divisor: scale.divisor(),
        x: region.x,
        y: region.y,
        w: region.w,
        h: region.h,
        to_the_end: u32::from(extent == Extent::File),
        most_scans,
        most_coefficient_bytes: most_coefficient_bytes(),
    };
    // SAFETY: the buffers have the sizes that `request` states. The shim reads the header again, compares it with `request`, and
    // writes no more than these sizes whatever the bytes are by then.
    check(unsafe {
        headrace_turbo_region(
            data.as_ptr(),
            data.len(),
            &request,
            out.as_mut_ptr(),
            line.as_mut_ptr(),
        )
    })?;
    Ok(stride)
}

/// Options of [`encode`]: for the files of the packer, and for every kind of file that the tests need.
#[derive(Debug, Clone, Copy)]
pub struct Encoding {
    /// Horizontal and vertical sampling factor of each component; one component (grayscale) uses the first.
    pub factors: [(u8, u8); 3],
    /// Write one component.
    pub gray: bool,
    /// Store RGB without conversion (Adobe transform 0).
    pub rgb: bool,
    /// IJG quality, 1 to 100.
    pub quality: u8,
    /// MCUs between restart markers, 0 for none.
    pub restart_interval: u32,
    /// Huffman tables optimised for the image.
    pub optimised: bool,
    /// Progressive.
    pub progressive: bool,
    /// One scan for each component.
    pub separate_scans: bool,
    /// Arithmetic coding.
    pub arithmetic: bool,
    /// Samples of 12 bits: the pixels times 16, plus varying low bits.
    pub twelve_bits: bool,
    /// Lossless (SOF3), which nothing here decodes.
    pub lossless: bool,
}

impl Default for Encoding {
    fn default() -> Self {
        Encoding {
            factors: [(1, 1); 3],
            gray: false,
            rgb: false,
            quality: 90,
            restart_interval: 0,
            optimised: false,
            progressive: false,
            separate_scans: false,
            arithmetic: false,
            twelve_bits: false,
            lossless: false,
        }
    }
}

/// Encode interleaved RGB (or gray) pixels with libjpeg-turbo.
pub fn encode(pixels: &[u8], size: Size, how: &Encoding) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    encode_into(pixels, size, how, &mut out)?;
    Ok(out)
}

/// Encode as [`encode`] does, into `out`, whose memory is reused.
pub fn encode_into(pixels: &[u8], size: Size, how: &Encoding, out: &mut Vec<u8>) -> Result<()> {
    let samples = size.width as usize * size.height as usize * if how.gray { 1 } else { 3 };
    if pixels.len() < samples {
        return Err(Status::BadBox);
    }
    let space = if how.gray { 1 } else { 3 - i32::from(how.rgb) };
    let flag = |set: bool, bit: i32| if set { bit } else { 0 };
    let flags = flag(how.optimised, 1)
        | flag(how.progressive, 2)
        | flag(how.separate_scans, 4)
        | flag(how.arithmetic, 8)
        | flag(how.twelve_bits, 16)
        | flag(how.lossless, 32);
    let factors = how.factors.map(|(h, v)| [h, v]).concat();
    // Photographs fit into the first size, noise at quality 100 into the second.
    for room in [samples + 65_536, samples * 8 + 65_536] {
        out.clear();
        limits::reserve(out, room)?;
        // SAFETY: `pixels` holds all samples (checked), `factors` six bytes, `out` has room for as many bytes as stated; all live
        // during the call.
        let written = unsafe {
            headrace_turbo_encode(
                pixels.as_ptr(),
                size.width,
                size.height,
                space,
                factors.as_ptr(),
                i32::from(how.quality),
                how.restart_interval,
                flags,
                out.as_mut_ptr(),
                room,
            )
        };
        if written > 0 {
            // SAFETY: the shim wrote the first `written` bytes, at most `room`.
            unsafe { out.set_len(written.min(room)) };
            return Ok(());
        }
    }
    Err(Status::Unsupported)
}

/// The coefficients of one MCU row, in natural order; valid while [`coefficients`] calls.
pub struct BlockRows<'a> {
    rows: &'a [*const [i16; 64]; 16],
    widths: &'a [u32; 4],
}

impl BlockRows<'_> {
    /// Return the block in `column` of `line` (0 to 3) of a component (0 to 3); `None` outside the image.
    pub fn block(&self, component: usize, line: usize, column: usize) -> Option<&[i16; 64]> {
        let row = self.rows[4 * component + line];
        if row.is_null() || column >= self.widths[component] as usize {
            return None;
        }
        // SAFETY: the shim points each row at `widths[component]` blocks of 64 coefficients that live during the call.
        Some(unsafe { &*row.add(column) })
    }
}

struct RowContext<'a> {
    on_row: &'a mut dyn FnMut(&BlockRows<'_>) -> Result<()>,
}

extern "C" fn on_row(context: *mut c_void, rows: *const *const i16, widths: *const u32) -> i32 {
    // SAFETY: the shim hands back the context that `coefficients` gave it, 16 row pointers and 4 widths.
    let (context, rows, widths) = unsafe {
        (
            &mut *context.cast::<RowContext<'_>>(),
            &*rows.cast::<[*const [i16; 64]; 16]>(),
            &*widths.cast::<[u32; 4]>(),
        )
    };
    // A panic must not unwind into C.
    match catch_unwind(AssertUnwindSafe(|| {
        (context.on_row)(&BlockRows { rows, widths })
    })) {
        Ok(Ok(())) => Status::Ok as i32,
        Ok(Err(status)) => status as i32,
        Err(_) => Status::Internal as i32,
    }
}

/// Read the coefficients of a JPEG of any coding (progressive, arithmetic, several scans) and call `each_row` with each MCU row.
/// Return the quantisation tables of up to four components in natural order.
pub fn coefficients(
    data: &[u8],
    each_row: &mut dyn FnMut(&BlockRows<'_>) -> Result<()>,
) -> Result<[[u16; 64]; 4]> {
    let most_scans = limits::most_scans(size(data)?.pixels(), data.len());
    if most_scans == 0 {
        return Err(Status::TooLarge);
    }
    let mut quantisation = [[0u16; 64]; 4];
    let mut context = RowContext { on_row: each_row };
    // SAFETY: the data are valid for `length` bytes, the context outlives the call, and the tables have room for 4 × 64.
    check(unsafe {
        headrace_turbo_coefficients(
            data.as_ptr(),
            data.len(),
            most_scans,
            most_coefficient_bytes(),
            on_row,
            (&raw mut context).cast(),
            quantisation.as_mut_ptr().cast(),
        )
    })?;
    Ok(quantisation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decode one row of a 16×16 image into exact buffers, with `change` of what the caller expects.
    fn row_with(change: impl Fn(&mut RegionOfShim)) -> Result<()> {
        let size = Size {
            width: 16,
            height: 16,
        };
        let data = encode(&[90; 16 * 16 * 3], size, &Encoding::default())?;
        let (mut out, mut line) = ([0u8; 48], [0u16; 24]);
        let mut request = RegionOfShim {
            out_bytes: 48,
            line_bytes: 48,
            image_width: 16,
            image_height: 16,
            components: 3,
            scale_divisor: 1,
            x: 0,
            y: 5,
            w: 16,
            h: 1,
            to_the_end: 1,
            most_scans: 1,
            most_coefficient_bytes: 1 << 20,
        };
        change(&mut request);
        // SAFETY: the buffers have 48 bytes each, and no test below states more.
        check(unsafe {
            headrace_turbo_region(
                data.as_ptr(),
                data.len(),
                &request,
                out.as_mut_ptr(),
                line.as_mut_ptr().cast(),
            )
        })
    }

    #[test]
    fn a_header_that_differs_from_the_first_reading_is_refused() {
        assert_eq!(row_with(|_| {}), Ok(()));
        let changes: [fn(&mut RegionOfShim); 8] = [
            |r| r.image_width = 8, // the image is wider than it was
            |r| r.image_width = 32,
            |r| r.image_height = 8,
            |r| r.components = 1,
            |r| r.line_bytes = 47,
            |r| r.out_bytes = 47,
            |r| r.y = 16,
            |r| (r.x, r.w) = (u32::MAX, 2), // the sum overflows 32 bits
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(
                row_with(change),
                Err(Status::CorruptHeader),
                "change {number}"
            );
        }
    }
}
