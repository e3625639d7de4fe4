use std::time::Instant;

use kernels::{Hints, SharedBytes, copy_out_with, finish_streaming};
use types::Reduction;

use crate::memory::{Aligned, AlignedAtomics};
use crate::method::Ranks;

/// Smaller sizes have no copy limit: a copy within a core's first cache is no yardstick for ranks on different cores.
pub const LEAST_LIMIT_BYTES: usize = 16 * 1024;

/// The time in us in which every rank copies this many bytes while all others do so too, each from a buffer of its own
/// to another: by the fastest way of copying (the system's memcpy, the library's copy with plain and with streaming
/// stores), the median of the slowest rank's times. What an allreduce has to do at least is read its input once and write
/// its output once, so out of the caches it takes no less. Below 1 MiB or so the copy stays in a core's cache, and no
/// allreduce comes near.
///
/// # Errors
/// The first error of a call.
pub fn copy_limit<R: Ranks>(ranks: &mut R, bytes: usize) -> Result<f64, R::Error> {
    let mut to = Aligned::new(bytes);
    let from = AlignedAtomics::new(bytes);
    let mut best = f64::INFINITY;
    for streaming in [false, true] {
        let hints = Hints { streaming, ..Hints::default() };
        let time = timed(ranks, bytes, &mut || {
            copy_out_with(to.bytes_mut(), SharedBytes::from_atomics(from.bytes()), hints);
            if streaming {
                finish_streaming();
            }
        })?;
        best = best.min(time);
    }
    drop(from);
    let from = Aligned::new(bytes);
    let memcpy = timed(ranks, bytes, &mut || {
        to.bytes_mut().copy_from_slice(from.bytes());
        // Each copy of a repetition must be made.
        std::hint::black_box(to.bytes_mut());
    })?;
    Ok(best.min(memcpy))
}

/// The time of a copy in us: the median over batches of the slowest rank's.
fn timed<R: Ranks>(ranks: &mut R, bytes: usize, copy: &mut dyn FnMut()) -> Result<f64, R::Error> {
    const MIB: usize = 1 << 20;
    const WARM_UP: usize = 2;
    let repeats = if bytes < MIB { u32::try_from(8 * MIB / bytes.max(1024)).unwrap_or(1) } else { 1 };
    let batches = if bytes < 64 * MIB { 21 } else { 9 };
    let mut times = Vec::new();
    for _ in 0..batches + WARM_UP {
        ranks.barrier()?;
        let start = Instant::now();
        for _ in 0..repeats {
            copy();
        }
        let time = start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats);
        times.push(ranks.combine(time, Reduction::Max)?);
    }
    let times = &mut times[WARM_UP..];
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
