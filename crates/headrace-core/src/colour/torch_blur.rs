//! Gaussian blur as torchvision's `gaussian_blur` on uint8: a direct convolution with torch's own weights.
//!
//! torch adds the products of one value row by row from the first weight to the last, each with one rounding (a fused multiply-add;
//! oneDNN's depthwise convolution). So does this blur: its sums have torch's bits. torch computes the weights, because its
//! exponential and its sums round in their own ways: a blur wants the weights of its sigma ([`want`]), and [`give`] takes them.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::neighbours::{pad_row, reflect};
use crate::cpu::{vectorised, Extension};

/// One blur: which weights it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlurKey {
    /// Kernel width and height in pixels, odd.
    pub kernel: (u16, u16),
    /// The bits of sigma, in pixels, in single precision.
    pub sigma: u32,
    /// 1 for the weights of `torchvision.transforms`, 2 for those of its `v2`: they are rounded in different ways.
    pub version: u8,
}

/// Memory for weights in bytes. The oldest are dropped first: a batch needs a few MiB for a short time.
const MOST_BYTES: usize = 128 << 20;

/// The weights that were given, with their order and their size.
#[derive(Debug, Default)]
struct Given {
    weights: HashMap<BlurKey, Arc<[f32]>>,
    order: VecDeque<BlurKey>,
    bytes: usize,
    /// Blurs whose weights are wanted.
    wanted: VecDeque<BlurKey>,
    /// Whether somebody gives what is wanted.
    served: bool,
}

static GIVEN: Mutex<Option<Given>> = Mutex::new(None);

/// Weights were given or wanted, or the service has begun or ended.
static CHANGED: Condvar = Condvar::new();

fn given() -> MutexGuard<'static, Option<Given>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keep the weights of a blur, row by row from the top. Return false, and keep nothing, if their number does not fit the kernel.
pub fn give(key: BlurKey, weights: &[f32]) -> bool {
    if weights.len() != usize::from(key.kernel.0) * usize::from(key.kernel.1) {
        return false;
    }
    let mut lock = given();
    let given = lock.get_or_insert_default();
    if given.weights.insert(key, weights.into()).is_none() {
        given.order.push_back(key);
        given.bytes += size_of_val(weights);
    }
    while given.bytes > MOST_BYTES && given.order.len() > 1 {
        if let Some(old) = given
            .order
            .pop_front()
            .and_then(|key| given.weights.remove(&key))
        {
            given.bytes -= size_of_val(&old[..]);
        }
    }
    drop(lock);
    CHANGED.notify_all();
    true
}

/// Begin or end the service: whether somebody waits in [`wanted`] and gives what is wanted.
pub fn serve(on: bool) {
    let mut lock = given();
    let given = lock.get_or_insert_default();
    given.served = on;
    given.wanted.clear();
    drop(lock);
    CHANGED.notify_all();
}

/// Want the weights of a blur soon, if they are not there and somebody gives them.
pub fn want(key: BlurKey) {
    let mut lock = given();
    let given = lock.get_or_insert_default();
    if given.served && !given.weights.contains_key(&key) && !given.wanted.contains(&key) {
        given.wanted.push_back(key);
        drop(lock);
        CHANGED.notify_all();
    }
}

/// Wait until weights are wanted, at most `timeout`, and return which; `None` if the service has ended.
pub fn wanted(timeout: Duration) -> Option<Vec<BlurKey>> {
    let idle = |given: &mut Option<Given>| {
        let given = given.get_or_insert_default();
        given.served && given.wanted.is_empty()
    };
    let (mut lock, _) = CHANGED
        .wait_timeout_while(given(), timeout, idle)
        .unwrap_or_else(PoisonError::into_inner);
    let given = lock.get_or_insert_default();
    given.served.then(|| given.wanted.drain(..).collect())
}

/// Return the weights of a blur; wait for them while somebody gives what is wanted.
pub fn wait_for(key: BlurKey) -> Option<Arc<[f32]>> {
    loop {
        if let Some(found) = find(key) {
            return Some(found);
        }
        want(key);
        let waits = |given: &mut Option<Given>| {
            let given = given.get_or_insert_default();
            given.served && !given.weights.contains_key(&key)
        };
        let (mut lock, _) = CHANGED
            .wait_timeout_while(given(), AGAIN, waits)
            .unwrap_or_else(PoisonError::into_inner);
        let given = lock.get_or_insert_default();
        if !given.served {
            return given.weights.get(&key).cloned();
        }
    }
}

/// Want weights again that have not come for so long: others may have displaced them.
const AGAIN: Duration = Duration::from_secs(1);

/// Return the weights of a blur, if they were given.
pub fn find(key: BlurKey) -> Option<Arc<[f32]>> {
    given().as_ref()?.weights.get(&key).cloned()
}

thread_local! {
    /// The lock of the weights, while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Given>>>> = const { RefCell::new(None) };
}

/// Take the lock of the weights before this thread forks, so that no other thread has it then: the child would wait for ever.
pub fn hold() {
    HELD.with_borrow_mut(|held| {
        if held.is_none() {
            *held = Some(given());
        }
    });
}

/// Release the lock that [`hold`] took, in the parent and in the child.
pub fn release() {
    HELD.with_borrow_mut(|held| *held = None);
}

/// Rows of the output that are summed together: they share the values that are read.
const ROWS: usize = 4;

/// Values of a row that are summed together.
const PART: usize = 32;

/// Scratch memory of the blur.
#[derive(Debug, Default)]
pub struct Scratch {
    line: Vec<u8>,
    padded: Vec<f32>,
    weights: Vec<f32>,
    sums: Vec<f32>,
}

impl Scratch {
    /// Blur uint8 RGB pixels in place, in rows of `width` pixels without gaps, with reflected borders, rounded half to even.
    /// Kernel sides are odd, and half of one is less than the image's side. `weights`: row by row from the top.
    pub fn blur(
        &mut self,
        extension: Extension,
        pixels: &mut [u8],
        width: usize,
        kernel: (usize, usize),
        weights: &[f32],
    ) {
        self.pad(pixels, width, kernel);
        let mut outputs = pixels.chunks_exact_mut(width * 3);
        self.sum(extension, width, kernel, weights, |sums| {
            if let Some(output) = outputs.next() {
                round(extension, sums, output);
            }
        });
    }

    /// Write the sums that [`Scratch::blur`] rounds to `output`, one for each value of `pixels`: for comparisons with torch.
    pub fn sums(
        &mut self,
        extension: Extension,
        pixels: &[u8],
        width: usize,
        kernel: (usize, usize),
        weights: &[f32],
        output: &mut Vec<f32>,
    ) {
        self.pad(pixels, width, kernel);
        output.clear();
        self.sum(extension, width, kernel, weights, |sums| {
            if output.len() < pixels.len() {
                output.extend_from_slice(sums);
            }
        });
    }

    /// Copy the image with its reflected border, in single precision. Behind each row and below the image is room for whole parts.
    fn pad(&mut self, pixels: &[u8], width: usize, kernel: (usize, usize)) {
        let row = width * 3;
        let height = pixels.len() / row;
        let (side, above) = (kernel.0 / 2, kernel.1 / 2);
        let stride = stride(width, kernel.0);
        self.line.clear();
        self.line.resize(row + side * 6, 0);
        self.padded.clear();
        self.padded.resize(
            stride * (height.next_multiple_of(ROWS) + kernel.1 + ROWS),
            0.0,
        );
        for (y, padded) in self
            .padded
            .chunks_exact_mut(stride)
            .take(height + 2 * above)
            .enumerate()
        {
            let source = reflect(y as isize - above as isize, height);
            pad_row(&pixels[source * row..][..row], side, &mut self.line);
            for (value, &byte) in padded.iter_mut().zip(&self.line) {
                *value = f32::from(byte);
            }
        }
    }

    /// Call `give` with the sums of each row, from the top; at the end perhaps with rows that are below the image.
    ///
    /// Rows and columns at the edge of the kernel whose weights are all zero are left out: a zero changes no sum.
    fn sum(
        &mut self,
        extension: Extension,
        width: usize,
        kernel: (usize, usize),
        weights: &[f32],
        mut give: impl FnMut(&[f32]),
    ) {
        let row = width * 3;
        let slot = row.next_multiple_of(PART);
        let stride = stride(width, kernel.0);
        let (columns, rows) = occupied(kernel, weights);
        // ROWS - 1 rows of zeros above and below: each of the rows that are summed together begins and ends at its own place.
        self.weights.clear();
        self.weights.resize((ROWS - 1) * columns.len(), 0.0);
        for line in weights
            .chunks_exact(kernel.0)
            .skip(rows.start)
            .take(rows.len())
        {
            self.weights.extend_from_slice(&line[columns.clone()]);
        }
        self.weights
            .resize((rows.len() + 2 * (ROWS - 1)) * columns.len(), 0.0);
        self.sums.clear();
        self.sums.resize(slot * ROWS, 0.0);
        let height = self.padded.len() / stride - kernel.1 - ROWS;
        for y in (0..height).step_by(ROWS) {
            let source = &self.padded[(y + rows.start) * stride + columns.start * 3..];
            sum_rows(
                extension,
                source,
                stride,
                &self.weights,
                columns.len(),
                &mut self.sums,
            );
            for sums in self.sums.chunks_exact(slot) {
                give(&sums[..row]);
            }
        }
    }
}

/// Return the number of values from one row of the padded image to the next.
fn stride(width: usize, columns: usize) -> usize {
    (width * 3).next_multiple_of(PART) + columns / 2 * 6
}

/// Return the columns and rows of a kernel between the first and the last weight that is not zero.
fn occupied(kernel: (usize, usize), weights: &[f32]) -> (Range<usize>, Range<usize>) {
    let (mut columns, mut rows) = (kernel.0..0, kernel.1..0);
    for (at, _) in weights
        .iter()
        .enumerate()
        .filter(|(_, &weight)| weight != 0.0)
    {
        let (x, y) = (at % kernel.0, at / kernel.0);
        columns = columns.start.min(x)..columns.end.max(x + 1);
        rows = rows.start.min(y)..rows.end.max(y + 1);
    }
    if rows.is_empty() {
        return (0..1, 0..1);
    }
    (columns, rows)
}

vectorised! {
    fn sum_rows(source: &[f32], stride: usize, weights: &[f32], columns: usize, sums: &mut [f32]) = sum_rows_body
}

/// Write ROWS rows of sums, one after the other. `source` begins at the first value of the first row; each weight's value is
/// three further than that of the weight before.
#[inline(always)]
fn sum_rows_body(source: &[f32], stride: usize, weights: &[f32], columns: usize, sums: &mut [f32]) {
    let slot = sums.len() / ROWS;
    let lines = weights.len() / columns - (ROWS - 1);
    for start in (0..slot).step_by(PART) {
        let mut parts = [[0.0_f32; PART]; ROWS];
        for line in 0..lines {
            let values = &source[line * stride + start..];
            let weights = &weights[line * columns..][..columns * ROWS];
            for column in 0..columns {
                let values = &values[column * 3..][..PART];
                for (row, part) in parts.iter_mut().enumerate() {
                    let weight = weights[(ROWS - 1 - row) * columns + column];
                    for i in 0..PART {
                        part[i] = values[i].mul_add(weight, part[i]);
                    }
                }
            }
        }
        for (row, part) in parts.iter().enumerate() {
            sums[row * slot + start..][..PART].copy_from_slice(part);
        }
    }
}

vectorised! {
    fn round(sums: &[f32], output: &mut [u8]) = round_body
}

#[inline(always)]
fn round_body(sums: &[f32], output: &mut [u8]) {
    for (&sum, output) in sums.iter().zip(output) {
        *output = super::planes::to_byte(sum.round_ties_even());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: (usize, usize) = (5, 3);

    fn example() -> (Vec<u8>, Vec<f32>) {
        let pixels = (0..13 * 11 * 3_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let weights = (0..15).map(|i| {
            if i % 5 == 0 {
                0.0
            } else {
                1.0 / (i + 7) as f32
            }
        });
        (pixels, weights.collect())
    }

    /// One value after the other, straight from the definition.
    fn expected(pixels: &[u8], weights: &[f32], width: usize) -> Vec<f32> {
        let height = pixels.len() / 3 / width;
        let value = |at: usize| {
            let (x, y) = (at / 3 % width, at / 3 / width);
            let taps = weights.iter().enumerate();
            taps.fold(0.0, |sum: f32, (tap, weight)| {
                let x = reflect(
                    (x + tap % KERNEL.0) as isize - (KERNEL.0 / 2) as isize,
                    width,
                );
                let y = reflect(
                    (y + tap / KERNEL.0) as isize - (KERNEL.1 / 2) as isize,
                    height,
                );
                f32::from(pixels[(y * width + x) * 3 + at % 3]).mul_add(*weight, sum)
            })
        };
        (0..pixels.len()).map(value).collect()
    }

    #[test]
    fn every_extension_adds_in_the_order_of_the_weights() {
        let (pixels, weights) = example();
        for width in [11, 13, 47] {
            let pixels = &pixels[..pixels.len() / (width * 3) * width * 3];
            let expected = expected(pixels, &weights, width);
            for extension in Extension::available() {
                let (mut scratch, mut sums) = (Scratch::default(), Vec::new());
                scratch.sums(extension, pixels, width, KERNEL, &weights, &mut sums);
                assert_eq!(sums, expected, "{extension:?}, {width} pixels wide");
                let mut blurred = pixels.to_vec();
                scratch.blur(extension, &mut blurred, width, KERNEL, &weights);
                let rounded = expected
                    .iter()
                    .map(|sum| sum.round_ties_even().min(255.0) as u8);
                assert!(blurred.into_iter().eq(rounded));
            }
        }
    }

    #[test]
    fn nobody_else_has_the_lock_between_hold_and_release() {
        let key = BlurKey {
            kernel: (3, 1),
            sigma: 9,
            version: 2,
        };
        hold();
        hold();
        let other = std::thread::spawn(move || {
            assert!(give(key, &[0.25; 3]));
            std::time::Instant::now()
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        let released = std::time::Instant::now();
        release();
        assert!(other.join().is_ok_and(|given| given >= released));
        release();
        assert_eq!(find(key).as_deref(), Some(&[0.25; 3][..]));
    }

    #[test]
    fn weights_of_another_number_are_not_kept() {
        let key = BlurKey {
            kernel: (5, 3),
            sigma: 7,
            version: 1,
        };
        assert!(!give(key, &[0.5; 14]));
        assert!(find(key).is_none());
        assert!(give(key, &[0.5; 15]));
        assert_eq!(find(key).as_deref(), Some(&[0.5; 15][..]));
    }
}
