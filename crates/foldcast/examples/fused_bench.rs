//! Times the allreduce of a list against calls one by one and against one plain call of the same bytes.
//!
//! ```sh
//! foldcast run -n 2 -- target/release/examples/fused_bench
//! ```
//!
//! For each list, rank 0 prints its number of arrays and bytes, and the best and the median time in us of: the list at once,
//! one by one, and one array of all bytes. Each batch begins at a barrier; its time is the slowest rank's.
//! BENCH_SAMPLES (41) is the number of batches.

use std::process::ExitCode;
use std::time::Instant;

use foldcast::{Buffers, CallOptions, Communicator, DataType, Group, InitOptions, Reduction, Result, bytes_of_mut};

/// The trainable arrays of ResNet-50, in elements: 161, of 25.5 million float32.
fn resnet50() -> Vec<usize> {
    let mut sizes = vec![1000, 2048 * 1000];
    for (inner, outer, blocks, from) in
        [(512, 2048, 3, 1024), (256, 1024, 6, 512), (128, 512, 4, 256), (64, 256, 3, 64)]
    {
        for block in (0..blocks).rev() {
            let input = if block == 0 { from } else { outer };
            for (kernel, channels) in [(inner * outer, outer), (9 * inner * inner, inner), (input * inner, inner)] {
                sizes.extend([channels, channels, kernel]);
            }
            if block == 0 {
                sizes.extend([outer, outer, input * outer]);
            }
        }
    }
    sizes.extend([64, 64, 49 * 3 * 64]);
    sizes
}

fn sum(group: &Group, both: &mut [f32]) -> Result<()> {
    let buffers = Buffers::InPlace(bytes_of_mut(both));
    group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())
}

fn together(group: &Group, list: &mut [Vec<f32>]) -> Result<()> {
    let mut buffers: Vec<_> = list.iter_mut().map(|both| Buffers::InPlace(bytes_of_mut(both))).collect();
    group.all_reduce_many(DataType::Float32, Reduction::Sum, &mut buffers, &CallOptions::default())
}

/// Best and median time of a batch on the slowest rank, in us.
fn time(group: &Group, samples: usize, mut batch: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..samples {
        group.barrier(&CallOptions::default())?;
        let start = Instant::now();
        batch()?;
        let mut slowest = (start.elapsed().as_secs_f64() * 1e6).to_le_bytes();
        let buffers = Buffers::InPlace(&mut slowest);
        group.all_reduce(DataType::Float64, Reduction::Max, buffers, &CallOptions::default())?;
        times.push(f64::from_le_bytes(slowest));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[0], times[times.len() / 2]))
}

#[allow(clippy::print_stdout, reason = "a benchmark prints")]
fn run() -> Result<()> {
    let communicator = Communicator::init(InitOptions::default())?;
    let group = communicator.world();
    let samples = std::env::var("BENCH_SAMPLES").ok().and_then(|text| text.parse().ok()).unwrap_or(41);
    let mut lists: Vec<(String, Vec<usize>)> = Vec::new();
    for bytes in [4, 1 << 10, 4 << 10, 16 << 10, 31 << 10, 64 << 10, 256 << 10] {
        lists.push((format!("160 x {bytes} B"), vec![bytes / 4; 160]));
    }
    lists.push(("ResNet-50".into(), resnet50()));
    for (name, sizes) in lists {
        let mut list: Vec<Vec<f32>> = sizes.iter().map(|count| vec![0.0; *count]).collect();
        let mut whole = vec![0.0; sizes.iter().sum()];
        let many = time(&group, samples, || together(&group, &mut list))?;
        let each = time(&group, samples, || list.iter_mut().try_for_each(|both| sum(&group, both)))?;
        let one = time(&group, samples, || sum(&group, &mut whole))?;
        if communicator.rank().0 == 0 {
            let figures = [("list", many), ("one by one", each), ("one array", one)];
            let words = figures.map(|(what, (best, median))| format!("{what} {best:.1} (median {median:.1})"));
            println!(
                "{name}: {} arrays, {} bytes, {} ranks: {} us",
                list.len(),
                whole.len() * 4,
                group.size(),
                words.join(", ")
            );
        }
    }
    communicator.shutdown();
    Ok(())
}

#[allow(clippy::print_stderr, reason = "a benchmark says what went wrong")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
