//! One of the ranks that are measured: every size that the forced algorithm can do, float32 sums out of place.

use std::io::Write;
use std::time::Instant;

use foldcast::plans::{Shape, algorithm};
use foldcast::{Buffers, CallOptions, Communicator, Config, DataType, Group, InitOptions, Reduction, Result};
use foldcast::{bytes_of, bytes_of_mut};

/// Microseconds of one batch, if a call is shorter. Short ones are seldom disturbed by other programs.
const BATCH_US: f64 = 2e3;
/// Microseconds for one size, or three batches.
const BUDGET_US: f64 = 150e3;
const MAX_BATCHES: f64 = 41.0;

/// Measures and, on rank 0, prints `bytes microseconds` for each size.
pub(super) fn run() -> core::result::Result<(), String> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let forced = config.algorithm.and_then(algorithm).ok_or("FOLDCAST_ALGO names the algorithm to measure")?;
    let size = config.size;
    let applies = |bytes: &usize| forced.applies(&Shape::all_reduce(size, *bytes, 4));
    let sizes = (1..13).map(|exponent| 2 << (2 * exponent)).filter(applies);
    let measured = || -> Result<()> {
        let communicator = Communicator::with_config(config.clone(), InitOptions::default())?;
        let group = communicator.world();
        for bytes in sizes {
            let time_us = measure(&group, bytes)?;
            if group.rank() == Some(0) {
                // The launcher that started this reads all of it.
                let _ = writeln!(std::io::stdout(), "{bytes} {time_us:.4}");
            }
        }
        Ok(())
    };
    measured().map_err(|error| error.to_string())
}

/// The largest of the ranks' numbers.
fn slowest(group: &Group, value: f64) -> Result<f64> {
    let mut value = [value];
    let buffers = Buffers::InPlace(bytes_of_mut(&mut value));
    group.all_reduce(DataType::Float64, Reduction::Max, buffers, &CallOptions::default())?;
    Ok(value[0])
}

/// Microseconds of a call: of the slowest rank's times of batches, each begun together, one of the shorter ones. Other
/// programs can only make them longer; the very shortest may be a fluke.
fn measure(group: &Group, bytes: usize) -> Result<f64> {
    let input = vec![1.0f32; bytes / size_of::<f32>()];
    let mut output = vec![0.0f32; input.len()];
    let mut calls = |count: u32| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            let buffers = Buffers::Separate { input: bytes_of(&input), output: bytes_of_mut(&mut output) };
            group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    };
    calls(2)?;
    let estimate = slowest(group, calls(2)?)?;
    #[allow(clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let number = |number: f64, most: f64| number.clamp(1.0, most) as u32;
    let per_batch = number(BATCH_US / estimate.max(0.01), 20e3);
    let batches = number(BUDGET_US / (estimate * f64::from(per_batch)).max(1.0), MAX_BATCHES).max(3);
    let mut times = Vec::new();
    for _ in 0..batches {
        group.barrier(&CallOptions::default())?;
        let time = calls(per_batch)?;
        times.push(slowest(group, time)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 8])
}
