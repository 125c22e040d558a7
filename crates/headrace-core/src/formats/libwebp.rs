//! libwebp, the library of Pillow: the first frame of a WebP file, and its pixels. WebP has no checksums, and decoders differ in
//! what they make of damage: in 16-bit arithmetic that overflows, in codes that no encoder writes, in bytes behind the end.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libwebp_sys as webp;
use webp::VP8StatusCode as Outcome;

use crate::error::{Result, Status};
use crate::geometry::Size;
use crate::limits;

/// The first frame of a file, and its place on the canvas.
pub struct FirstFrame<'a> {
    pub canvas: Size,
    x: usize,
    y: usize,
    size: Size,
    /// About how many bytes the library takes for each pixel beside those of the result.
    working_bytes: usize,
    data: &'a [u8],
}

/// The frames of a file; the destructor frees them.
struct Frames<'a> {
    list: *mut webp::WebPDemuxer,
    data: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Read the containers of all frames. libwebp refuses a file whose chunks contradict each other, as Pillow does.
    fn of(data: &'a [u8]) -> Result<Self> {
        let whole = webp::WebPData {
            bytes: data.as_ptr(),
            size: data.len(),
        };
        let version = webp::WEBP_DEMUX_ABI_VERSION as c_int;
        // SAFETY: the pointer and length are of one slice, which outlives `Frames`; no state is asked for.
        let list = unsafe { webp::WebPDemuxInternal(&whole, 0, null_mut(), version) };
        if list.is_null() {
            return Err(Status::CorruptHeader);
        }
        Ok(Frames { list, data })
    }

    fn first(&self) -> Result<FirstFrame<'a>> {
        use webp::WebPFormatFeature::{WEBP_FF_CANVAS_HEIGHT, WEBP_FF_CANVAS_WIDTH};

        let mut place = MaybeUninit::<webp::WebPIterator>::zeroed();
        // SAFETY: `list` is a list of frames. Zeros are a sound iterator, which the library fills in and which owns no memory.
        let (width, height, found, place) = unsafe {
            (
                webp::WebPDemuxGetI(self.list, WEBP_FF_CANVAS_WIDTH),
                webp::WebPDemuxGetI(self.list, WEBP_FF_CANVAS_HEIGHT),
                webp::WebPDemuxGetFrame(self.list, 1, place.as_mut_ptr()),
                place.assume_init(),
            )
        };
        if found == 0 || width == 0 || height == 0 {
            return Err(Status::CorruptHeader);
        }
        let start = (place.fragment.bytes as usize).wrapping_sub(self.data.as_ptr() as usize);
        let end = start.wrapping_add(place.fragment.size);
        let data = self.data.get(start..end).ok_or(Status::CorruptHeader)?;
        Ok(FirstFrame {
            canvas: Size { width, height },
            x: place.x_offset.unsigned_abs() as usize,
            y: place.y_offset.unsigned_abs() as usize,
            size: Size {
                width: place.width.unsigned_abs(),
                height: place.height.unsigned_abs(),
            },
            working_bytes: match (is_lossy(data)?, place.has_alpha != 0) {
                (false, _) => 4,
                (true, true) => 2, // the values of alpha, and what they are decoded from
                (true, false) => 0,
            },
            data,
        })
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        // SAFETY: `list` came from `WebPDemuxInternal`, and is freed once.
        unsafe { webp::WebPDemuxDelete(self.list) };
    }
}

/// Find the first frame. Nothing is decoded.
pub fn first_frame(data: &[u8]) -> Result<FirstFrame<'_>> {
    Frames::of(data)?.first()
}

fn is_lossy(data: &[u8]) -> Result<bool> {
    const LOSSY: c_int = 1;
    let mut facts = MaybeUninit::<webp::WebPBitstreamFeatures>::zeroed();
    // SAFETY: the pointer and length are of one slice; zeros are sound facts, and the library fills them in.
    let (outcome, facts) = unsafe {
        let outcome = webp::WebPGetFeatures(data.as_ptr(), data.len(), facts.as_mut_ptr());
        (outcome, facts.assume_init())
    };
    checked(outcome, Status::CorruptHeader)?;
    Ok(facts.format == LOSSY)
}

impl FirstFrame<'_> {
    /// Decode the frame to the RGB canvas `out`, which is black around the frame.
    pub fn decode(&self, out: &mut Vec<u8>) -> Result<()> {
        let bytes = self.canvas.pixels().saturating_mul(3);
        if bytes > limits::max_bytes() {
            return Err(Status::TooLarge);
        }
        let fits = |at: usize, size: u32, side: u32| at as u64 + u64::from(size) <= u64::from(side);
        if !fits(self.x, self.size.width, self.canvas.width)
            || !fits(self.y, self.size.height, self.canvas.height)
            || self.size.pixels() == 0
        {
            return Err(Status::CorruptHeader);
        }
        out.clear(); // so that no pixels of an earlier image remain
        limits::resize(out, bytes as usize, 0)?;
        limits::check_memory(self.working_bytes * self.size.pixels() as usize)?;
        let stride = self.canvas.width as usize * 3;
        let room = &mut out[self.y * stride + self.x * 3..];
        let mut config = webp::WebPDecoderConfig::new().or(Err(Status::Internal))?;
        config.output.colorspace = webp::WEBP_CSP_MODE::MODE_RGB;
        config.output.is_external_memory = 1;
        config.output.u.RGBA = webp::WebPRGBABuffer {
            rgba: room.as_mut_ptr(),
            stride: c_int::try_from(stride).or(Err(Status::TooLarge))?,
            size: room.len(),
        };
        // SAFETY: the data and the room for pixels are slices with their lengths. The library writes rows at multiples of the
        // stride, and refuses an image whose rows are longer than that or need more room, whatever size the frame states.
        let outcome = unsafe {
            let outcome = webp::WebPDecode(self.data.as_ptr(), self.data.len(), &mut config);
            webp::WebPFreeDecBuffer(&mut config.output);
            outcome
        };
        checked(outcome, Status::CorruptData)?;
        let decoded = (config.output.width, config.output.height);
        if decoded == (self.size.width as c_int, self.size.height as c_int) {
            Ok(())
        } else {
            Err(Status::CorruptHeader)
        }
    }
}

fn checked(outcome: Outcome, damaged: Status) -> Result<()> {
    match outcome {
        Outcome::VP8_STATUS_OK => Ok(()),
        Outcome::VP8_STATUS_OUT_OF_MEMORY => Err(Status::TooLarge),
        Outcome::VP8_STATUS_SUSPENDED | Outcome::VP8_STATUS_NOT_ENOUGH_DATA => {
            Err(Status::Truncated)
        }
        Outcome::VP8_STATUS_UNSUPPORTED_FEATURE => Err(Status::Unsupported),
        _ => Err(damaged),
    }
}
