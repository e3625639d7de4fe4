//! What it costs to note a call, in ns: the least over many batches, so that what else the machine does hardly counts.
//!
//! `cargo run --release -p foldcast-shm --example note_bench`
#![allow(clippy::print_stdout, reason = "a program that measures")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use foldcast_shm::observe::Stage;
use foldcast_shm::{GroupKey, JobKey, Meeting, Outcome};
use types::{DataType, GroupName, OpKind, Rank, Reduction, Summary};

const BATCHES: u32 = 20_000;
const CALLS: u32 = 100;

/// The least time of one of the calls of a batch.
fn least(mut call: impl FnMut(u64)) -> f64 {
    let mut least = Duration::MAX;
    for batch in 0..u64::from(BATCHES) {
        let first = 1 + batch * u64::from(CALLS);
        let start = Instant::now();
        (first..first + u64::from(CALLS)).for_each(&mut call);
        least = least.min(start.elapsed());
    }
    least.as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn main() -> types::Result<()> {
    let job = JobKey::new(format!("note-bench-{}", std::process::id()));
    let (world, _monitor) = Meeting::new(&job, Rank(0), 1, None).meet()?;
    let journal = world.journal(&GroupKey::new(GroupName::world(), vec![Rank(0)], 0));
    let summary = black_box(Summary::new(OpKind::AllReduce, DataType::Float32, Reduction::Sum, 8));
    let blocking = least(|number| {
        journal.begin(number, summary);
        journal.done(number);
    });
    let named = least(|_| {
        let ticket = journal.note(Stage::Submitted, summary, "gradient");
        journal.finish(ticket, Outcome::Done);
    });
    println!("a blocking unnamed call: {blocking:.2} ns; a named or submitted one: {named:.2} ns");
    Ok(())
}
