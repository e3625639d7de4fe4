//! Worlds in which all must be right.

use std::collections::BTreeMap;

use foldcast_sim::{Scenario, run, run_seed};

/// Seeds whose worlds have found a defect once.
const FOUND: [u64; 0] = [];

/// Few, as debug builds are slow; `make soak` runs many.
const SEEDS: u64 = 300;

#[test]
fn all_is_right_in_worlds_of_all_kinds() {
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in FOUND.into_iter().chain(1_000..1_000 + SEEDS) {
        match run_seed(seed) {
            Ok(report) => report.tally.into_iter().for_each(|(end, number)| *ends.entry(end).or_default() += number),
            Err(failure) => panic!("{failure}again: cargo run --release -p foldcast-sim -- --seed {seed:#x}"),
        }
    }
    // Worlds in which nothing goes wrong, or everything, would find nothing.
    for (end, least) in [
        ("right", 2000),
        ("mismatch", 300),
        ("rank died", 150),
        ("deadline", 40),
        ("group aborted", 150),
        ("closed", 3),
    ] {
        let found = ends.get(end).copied().unwrap_or(0);
        assert!(found >= least, "{found} calls end with: {end}; {ends:?}");
    }
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 0..60 {
        let trace = |seed| {
            let scenario = Scenario::new(seed);
            run(&scenario, &|windows| windows, true).map(|report| (report.turns, report.time, report.tally))
        };
        let (first, again) = (trace(seed).expect("a world without defects"), trace(seed).expect("the same"));
        assert_eq!(first, again, "seed {seed}");
    }
}
