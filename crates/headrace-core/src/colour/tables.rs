//! Operations that map each value through a table: invert, posterize, solarize, autocontrast, equalize (Pillow `ImageOps`, exact).

/// The new value of each value, per channel.
pub type Tables = [[u8; 256]; 3];

/// Return the table that changes nothing.
fn identity() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// Return tables with the same `function` of the value for all channels.
pub fn uniform(function: impl Fn(u8) -> u8) -> Tables {
    [std::array::from_fn(|value| function(value as u8)); 3]
}

/// Return how often each value occurs, per channel.
pub fn histograms(pixels: &[u8]) -> [[u32; 256]; 3] {
    // Two sets in turn, so that runs of equal pixels do not wait for each other's counts.
    let mut counts = [[[0_u32; 256]; 3]; 2];
    for (i, pixel) in pixels.chunks_exact(3).enumerate() {
        for (channel, &value) in counts[i % 2].iter_mut().zip(pixel) {
            channel[usize::from(value)] += 1;
        }
    }
    let [mut total, second] = counts;
    for (total, second) in total.iter_mut().flatten().zip(second.iter().flatten()) {
        *total += second;
    }
    total
}

/// Stretch each channel from its darkest and lightest value to 0 and 255 (`ImageOps.autocontrast`, no cutoff).
pub fn autocontrast(histograms: &[[u32; 256]; 3]) -> Tables {
    histograms.map(|counts| {
        let darkest = counts.iter().position(|&count| count > 0).unwrap_or(0);
        let lightest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        if lightest <= darkest {
            return identity();
        }
        let scale = 255.0 / (lightest - darkest) as f64;
        let offset = -(darkest as f64) * scale;
        // The cast truncates and clips, as Pillow does.
        std::array::from_fn(|value| (value as f64 * scale + offset) as u8)
    })
}

/// Spread each channel's values evenly (`ImageOps.equalize`).
pub fn equalize(histograms: &[[u32; 256]; 3]) -> Tables {
    histograms.map(|counts| {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let last = counts.iter().rev().find(|&&count| count > 0).copied();
        let step = (total - u64::from(last.unwrap_or(0))) / 255;
        if step == 0 {
            return identity();
        }
        let mut sum = step / 2;
        counts.map(|count| {
            let value = (sum / step).min(255) as u8;
            sum += u64::from(count);
            value
        })
    })
}

/// Map every value through its channel's table.
pub fn apply(pixels: &mut [u8], tables: &Tables) {
    for pixel in pixels.chunks_exact_mut(3) {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
}
