//! Runs simulated worlds: many seeds, or one again with what happened in it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use foldcast_sim::{Cuts, Scenario, run, shrink};

/// Runs the real engine in simulated worlds, in which a seed decides everything.
#[derive(Parser)]
#[command(name = "foldcast-sim")]
struct Args {
    /// Runs this world only, and shows its last steps; decimal, or hexadecimal after 0x.
    #[arg(long, value_parser = seed)]
    seed: Option<u64>,
    /// Runs so many worlds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of their seeds.
    #[arg(long, value_parser = seed, default_value = "1")]
    first: u64,
    /// Leaves these calls out of the world.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    drop_calls: Vec<usize>,
    /// Leaves these faults out of the world.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    drop_faults: Vec<usize>,
    /// Shows the steps of a world in which all is right, too.
    #[arg(long, requires = "seed")]
    show: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("a seed is a number of 64 bits: {error}"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, &args),
        None => many(args.first, args.seeds),
    }
}

fn fails(scenario: &Scenario) -> bool {
    run(scenario, &|windows| windows, false).is_err()
}

fn one(seed: u64, args: &Args) -> ExitCode {
    let cuts =
        Cuts { calls: args.drop_calls.iter().copied().collect(), faults: args.drop_faults.iter().copied().collect() };
    let scenario = Scenario::new(seed).without(&cuts);
    if args.show {
        println!("{scenario:#?}");
    }
    match run(&scenario, &|windows| windows, true) {
        Ok(report) => {
            println!("seed {seed:#x}: right: {} turns, {:?}, {:?}", report.turns, report.time, report.tally);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(first: u64, seeds: u64) -> ExitCode {
    let start = Instant::now();
    let (mut turns, mut tally) = (0, BTreeMap::new());
    for seed in first..first.saturating_add(seeds) {
        match run(&Scenario::new(seed), &|windows| windows, false) {
            Ok(report) => {
                turns += report.turns;
                for (kind, number) in report.tally {
                    *tally.entry(kind).or_insert(0) += number;
                }
            }
            Err(_) => return explain(seed),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("sim: {seeds} worlds from seed {first:#x}: right, in {seconds:.1} s; {turns} turns; calls: {tally:?}");
    ExitCode::SUCCESS
}

/// Shows the smallest world that fails as this one does, and how to see it again.
fn explain(seed: u64) -> ExitCode {
    let whole = Scenario::new(seed);
    let cuts = shrink(&whole, &fails);
    if let Err(failure) = run(&whole.without(&cuts), &|windows| windows, true) {
        print!("{failure}");
    }
    let list = |option: &str, numbers: &std::collections::BTreeSet<usize>| {
        let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
        if numbers.is_empty() { String::new() } else { format!(" --{option} {}", numbers.join(",")) }
    };
    let (calls, faults) = (list("drop-calls", &cuts.calls), list("drop-faults", &cuts.faults));
    println!("sim: FAILED: again: cargo run --release -p foldcast-sim -- --seed {seed:#x}");
    println!("sim: the least of it: cargo run --release -p foldcast-sim -- --seed {seed:#x}{calls}{faults}");
    ExitCode::FAILURE
}
