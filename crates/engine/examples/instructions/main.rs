//! What is counted by `ci/instructions.sh`: folds of the kernels, and small calls between two ranks that one thread steps in
//! turn. The counts do not depend on the machine's load, and hardly on the machine: a change of them is a change of the code.
//!
//! Everything that counts runs within `measured`, which callgrind collects and dumps by its name. The names of the cases go
//! to standard output, one a line, in the order of the dumps, each with the number to divide by.
#![allow(clippy::print_stdout, reason = "a program that is measured")]

mod plain;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use foldcast_engine::{ChannelState, Choice, Execution, Ground, Life, Limits, Poll, Preparer, Terms, View, Work};
use kernels::{Fold, Hints, Level, SharedBytes, Source};
use plain::{Memory, PlainWindows, view};
use types::transport::{Channel, Clock, Geometry};
use types::{Buffers, DataType, Reduction};

/// A chunk, as the engine cuts large calls.
const CHUNK_BYTES: usize = 64 << 10;
const CALLS: u32 = 500;

/// Keep the name: it is how the counting knows where to begin and to end.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
    // Something after the call, so that the frame is there until the end.
    std::hint::black_box(());
}

/// Memory that begins on a cache line, whatever the allocator does.
struct Lines<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T> Lines<T> {
    fn new(len: usize, byte: fn(u8) -> T) -> Lines<T> {
        // Small patterns that are ordinary numbers in every data type.
        let memory: Vec<T> = (0..len + 64).map(|at| byte(if at % 2 == 0 { 0 } else { 0x3f })).collect();
        let start = memory.as_ptr().align_offset(64);
        Lines { memory, start, len }
    }

    fn bytes(&self) -> &[T] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// Instructions for each KiB of the result.
fn folds(level: Level) {
    const CASES: [(DataType, Reduction); 8] = [
        (DataType::Float32, Reduction::Sum),
        (DataType::Float32, Reduction::Max),
        (DataType::Float64, Reduction::Sum),
        (DataType::Float16, Reduction::Sum),
        (DataType::Bfloat16, Reduction::Sum),
        (DataType::Int8, Reduction::Sum),
        (DataType::Int32, Reduction::Max),
        (DataType::Int64, Reduction::Prod),
    ];
    let (input, mut output) = (Lines::new(CHUNK_BYTES, |byte| byte), Lines::new(CHUNK_BYTES, |byte| byte));
    let peers: Vec<Lines<AtomicU8>> = (0..3).map(|_| Lines::new(CHUNK_BYTES, AtomicU8::new)).collect();
    let hints = Hints { take_ownership: true, streaming: false };
    for (dtype, reduction) in CASES {
        let fold = Fold::with_level(dtype, reduction, level).expect("looked for before");
        for ranks in [2, 4] {
            let mut sources = vec![Source::Own];
            for peer in &peers[..ranks - 1] {
                sources.push(Source::Shared(SharedBytes::from_atomics(peer.bytes())));
            }
            let mut buffers = Buffers::Separate { input: input.bytes(), output: output.bytes_mut() };
            println!("fold {} {dtype} {reduction} {ranks} ranks, per KiB\t{}", level.name(), CHUNK_BYTES >> 10);
            measured(&mut || fold.fold(&mut buffers, 0..CHUNK_BYTES, &sources, None, hints));
        }
    }
}

struct Rank {
    windows: PlainWindows,
    life: Life,
    view: View,
    preparer: Preparer,
    state: ChannelState,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Rank {
    fn new(memory: &Rc<Memory>, terms: &Arc<Terms>, rank: usize, bytes: usize) -> Rank {
        Rank {
            windows: PlainWindows { memory: Rc::clone(memory), rank },
            life: Life::default(),
            view: view(rank, 2),
            preparer: Preparer::new(Arc::clone(terms), rank, 0, 0),
            state: ChannelState::new(Channel::Unnamed),
            input: vec![0; bytes],
            output: vec![1; bytes],
        }
    }

    /// Begins a call, or goes on with it; returns whether it has ended.
    fn step(&mut self, execution: &mut Option<Execution>) -> bool {
        let limits = Limits { deadline: None, first_warning: Duration::MAX };
        let work = Work::all_reduce(DataType::Float32, Reduction::Sum, self.input.len());
        let mut call = self.preparer.call(&work, limits);
        let clock: &dyn Clock = &*self.windows.memory;
        let ground = Ground { windows: &self.windows, peers: &self.windows, life: &self.life, view: &self.view, clock };
        let execution = execution.get_or_insert_with(|| Execution::begin(&mut self.state));
        let mut buffers = Buffers::Separate { input: &self.input, output: &mut self.output };
        match execution.poll(ground, &mut self.state, &mut call, &mut buffers, false) {
            Poll::Ready(result) => result.map(|()| true).expect("a good call"),
            Poll::Pending => false,
        }
    }
}

/// Instructions for each call and rank, of which one finds its peer there and the other comes back for it.
fn small_calls(bytes: usize) {
    let geometry = Geometry::of(2);
    let memory = Memory::new(geometry);
    let terms = Arc::new(Terms { geometry, choice: Choice::default(), lanes: 1 });
    let mut ranks = [0, 1].map(|rank| Rank::new(&memory, &terms, rank, bytes));
    let mut calls = |count: u32| {
        for _ in 0..count {
            let [first, second] = &mut ranks;
            let mut begun = None;
            assert!(!first.step(&mut begun) && second.step(&mut None) && first.step(&mut begun), "one after the other");
        }
    };
    // Plans and fingerprints are made once.
    calls(2);
    println!("call of {bytes} B, per rank\t{}", 2 * CALLS);
    measured(&mut || calls(CALLS));
}

fn main() {
    for level in [Level::Portable, Level::Avx2] {
        if level.is_available() {
            folds(level);
        }
    }
    for bytes in [8, 1024] {
        small_calls(bytes);
    }
}
