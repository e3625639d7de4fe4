//! Speed of the kernels: nanoseconds for 8 bytes, and gigabytes read and written per second for data in the
//! second-level cache and in memory.
//!
//! `cargo run --release -p foldcast-kernels --example fold_bench [LEVEL...]`
#![allow(clippy::print_stdout, clippy::as_conversions, reason = "a program that prints estimates")]

use std::sync::atomic::AtomicU8;
use std::time::Instant;

use foldcast_kernels::{Fold, Hints, Level, SharedBytes, Source, dispatch, finish_streaming};
use types::{Buffers, DataType, Reduction};

/// A chunk, as the engine cuts large calls. With two sources and an output it stays in most second-level caches.
const CACHE_BYTES: usize = 64 << 10;
const MEMORY_BYTES: usize = 64 << 20;

/// Memory of one fold: this rank's and the peers' contributions, the stage and the result. numpy's large arrays start
/// 16 bytes behind a cache line, so the result does here.
struct World {
    input: Vec<u8>,
    output: Vec<u8>,
    peers: Vec<Vec<AtomicU8>>,
}

impl World {
    fn new(len: usize, ranks: usize) -> World {
        // Small patterns that are ordinary numbers in every data type.
        let byte = |i: usize| if i.is_multiple_of(2) { 0 } else { 0x3f };
        let shared = || (0..len).map(|i| AtomicU8::new(byte(i))).collect();
        World {
            input: (0..len).map(byte).collect(),
            output: vec![1; len + 128],
            peers: (1..ranks).map(|_| shared()).collect(),
        }
    }

    /// Nanoseconds of one fold: the best of a few rounds.
    fn time(&mut self, fold: Fold, rounds: usize, calls: usize, hints: Hints) -> f64 {
        let len = self.input.len();
        let start = self.output.as_ptr().align_offset(64) + 16;
        let sources: Vec<_> = core::iter::once(Source::Own)
            .chain(self.peers.iter().map(|p| Source::Shared(SharedBytes::from_atomics(p))))
            .collect();
        let output = &mut self.output[start..start + len];
        let mut buffers = Buffers::Separate { input: &self.input, output };
        best(rounds, calls, || {
            fold.fold(&mut buffers, 0..len, &sources, None, hints);
            if hints.streaming {
                finish_streaming();
            }
        })
    }

    /// Nanoseconds of one fold that stages as much as it folds.
    fn time_staged(&mut self, fold: Fold, rounds: usize, calls: usize, hints: Hints) -> f64 {
        let len = self.input.len() / 2;
        let start = self.output.as_ptr().align_offset(64) + 16;
        let peer = SharedBytes::from_atomics(&self.peers[0]);
        let (peer, stage) = (peer.slice(0..len), peer.slice(len..2 * len));
        let output = &mut self.output[start..start + 2 * len];
        let mut buffers = Buffers::Separate { input: &self.input, output };
        best(rounds, calls, || {
            fold.fold_and_stage(&mut buffers, 0..len, peer, true, Some((len..2 * len, stage)), hints);
            finish_streaming();
        })
    }
}

fn best(rounds: usize, calls: usize, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    best
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    println!("dispatch: {}", dispatch());
    let plain = Hints::default();
    let owner = Hints { take_ownership: true, streaming: false };
    let streaming = Hints { take_ownership: true, streaming: true };
    let cases = [
        (DataType::Float32, Reduction::Sum),
        (DataType::Float32, Reduction::Max),
        (DataType::Float64, Reduction::Sum),
        (DataType::Float16, Reduction::Sum),
        (DataType::Float16, Reduction::Max),
        (DataType::Bfloat16, Reduction::Sum),
        (DataType::Bfloat16, Reduction::Max),
        (DataType::Int8, Reduction::Sum),
        (DataType::Int8, Reduction::Prod),
        (DataType::Int32, Reduction::Max),
        (DataType::Int64, Reduction::Sum),
        (DataType::Int64, Reduction::Prod),
        (DataType::Uint64, Reduction::Max),
    ];
    for level in Level::ALL {
        if !(asked.is_empty() || asked.iter().any(|a| a == level.name())) {
            continue;
        }
        println!(
            "\n{}: ns at 8 B (2, 8 ranks), 48 B, 1000 B; GB/s at 64 KiB (2, 3, 4, 8, 11 ranks; staged)",
            level.name()
        );
        println!("and at 64 MiB (2 ranks; streaming; staged and streaming)");
        for (dtype, reduction) in cases {
            let Ok(fold) = Fold::with_level(dtype, reduction, level) else {
                println!("not on this machine");
                break;
            };
            print!("{:18}", format!("{dtype} {reduction}"));
            for (len, ranks) in [(8, 2), (8, 8), (48, 2), (1000, 2)] {
                print!("{:7.1}", World::new(len, ranks).time(fold, 30, 20_000, owner));
            }
            print!(" ns |");
            for ranks in [2, 3, 4, 8, 11] {
                let ns = World::new(CACHE_BYTES, ranks).time(fold, 30, 100, owner);
                print!("{:6.0}", ((ranks + 1) * CACHE_BYTES) as f64 / ns);
            }
            let ns = World::new(CACHE_BYTES * 2, 2).time_staged(fold, 30, 100, owner);
            print!(";{:6.0} |", (5 * CACHE_BYTES) as f64 / ns);
            let mut world = World::new(MEMORY_BYTES, 2);
            let bytes = 3 * MEMORY_BYTES;
            print!("{:6.1}", bytes as f64 / world.time(fold, 3, 1, plain));
            print!("{:6.1}", bytes as f64 / world.time(fold, 3, 1, streaming));
            println!("{:6.1} GB/s", (5 * MEMORY_BYTES / 2) as f64 / world.time_staged(fold, 3, 1, streaming));
        }
    }
}
