//! Speed of the lossless restart-marker writer: `cargo run --release --example restart_speed -- FOLDER [SECONDS]`. One thread
//! makes whole passes over all JPEG files of the folder, in memory, until the time is over. It prints the median pass in CPU
//! time, so that other load on the machine does not count.

use std::time::{Duration, Instant};

use headrace_core::jpeg::restart::{RestartOptions, RestartWriter};

/// Return the CPU time of this thread in seconds (the first number of Linux' schedstat, in nanoseconds).
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds / 1e9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: restart_speed FOLDER [SECONDS]")?;
    let seconds: f64 = arguments.next().map_or(Ok(5.0), |text| text.parse())?;
    let mut files: Vec<Vec<u8>> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let bytes = std::fs::read(entry?.path())?;
        if bytes.starts_with(&[0xFF, 0xD8]) {
            files.push(bytes);
        }
    }
    let (mut writer, options, mut out) = (
        RestartWriter::default(),
        RestartOptions::default(),
        Vec::new(),
    );
    let (mut passes, mut failed, mut written) = (Vec::new(), 0, 0);
    let start = Instant::now();
    while passes.is_empty() || start.elapsed() < Duration::from_secs_f64(seconds) {
        let pass = cpu_seconds()?;
        (failed, written) = (0, 0);
        for file in &files {
            match writer.write(file, &options, &mut out) {
                Ok(()) => written += out.len(),
                Err(_) => failed += 1,
            }
        }
        passes.push(cpu_seconds()? - pass);
    }
    passes.sort_unstable_by(f64::total_cmp);
    let median = passes[passes.len() / 2];
    let size: usize = files.iter().map(Vec::len).sum();
    println!(
        "{} files, {failed} failed, {:.1} KB mean, {} passes: {:.0} img/s and {:.0} MB/s of one core; output/input bytes {:.4}",
        files.len(),
        size as f64 / files.len() as f64 / 1e3,
        passes.len(),
        files.len() as f64 / median,
        size as f64 / median / 1e6,
        written as f64 / size as f64,
    );
    Ok(())
}
