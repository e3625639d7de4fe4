//! Which algorithm is taken, that all ranks take the same, and what is said about it.

mod common;

use std::collections::HashSet;

use common::algorithm;
use foldcast_plan::fit::{Observation, fit};
use foldcast_plan::{
    ALGORITHMS, Choice, Constants, Explanation, Shape, Shares, all_reduce_algorithms, explain, plan, plan_with, select,
};
use proptest::prelude::*;
use types::OpKind;
use types::transport::Geometry;

fn chosen(ranks: usize, bytes: usize) -> &'static str {
    select(&Shape::all_reduce(ranks, bytes, 4)).name()
}

#[test]
fn the_choice_is_what_was_measured_to_be_best() {
    for bytes in [0, 4, 1 << 20, 1 << 33] {
        assert_eq!(chosen(1, bytes), "local");
    }
    for bytes in [0, 4, 48, 52, 1024, 32 << 10] {
        assert_eq!(chosen(2, bytes), "flat");
    }
    for bytes in [(32 << 10) + 4, 64 << 10, 1 << 20, 64 << 20] {
        assert_eq!(chosen(2, bytes), "one_shot");
    }
    for ranks in 3..=17 {
        for bytes in [0, 4, 48, 52, 1024, 2048] {
            assert_eq!(chosen(ranks, bytes), "flat", "{ranks} ranks, {bytes} bytes");
        }
        for bytes in [(4 << 10) + 4, 16 << 10, 1 << 20, 64 << 20] {
            assert_eq!(chosen(ranks, bytes), "reduce_scatter_allgather", "{ranks} ranks, {bytes} bytes");
        }
    }
    assert_eq!(chosen(4, 4 << 10), "flat");
    assert_eq!(select(&Shape::barrier(1)).name(), "local");
    assert_eq!(select(&Shape::barrier(9)).name(), "flat");
    for (ranks, expected) in [(1, ["local"; 2]), (2, ["broadcast", "all_gather"]), (9, ["broadcast", "all_gather"])] {
        for bytes in [0, 4, 1 << 20] {
            let shapes = [Shape::broadcast(ranks, 0, bytes, 4), Shape::all_gather(vec![bytes; ranks], 4)];
            assert_eq!(shapes.map(|shape| select(&shape).name()), expected, "{ranks} ranks, {bytes} bytes");
        }
    }
}

#[test]
fn the_choice_follows_the_constants() {
    let shape = Shape::all_reduce(8, 2048, 4);
    let slow_cores = Constants { signal_us: 0.0001, ..Constants::default() };
    assert_eq!(select(&shape).name(), "flat");
    let choice = Choice { constants: slow_cores, forced: None };
    assert_eq!(choice.select(&shape).name(), "reduce_scatter_allgather");
}

/// Fails where twice the bytes take less, or more than three times, the time.
fn check_for_cliffs(constants: Constants) {
    let choice = Choice { constants, forced: None };
    for ranks in 2..=17 {
        let time = |bytes: usize| {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            choice.select(&shape).cost(&shape, &constants)
        };
        for exponent in 2..30 {
            for bytes in [1_usize << exponent, (1 << exponent) + 4, 3 << (exponent - 1)] {
                let (once, twice) = (time(bytes), time(2 * bytes));
                let right = once <= twice && twice <= 3.0 * once;
                assert!(right, "{ranks} ranks, {bytes} bytes, {constants:?}: {once} us, {twice} us");
            }
        }
    }
}

#[test]
fn predicted_times_have_no_cliff() {
    check_for_cliffs(Constants::default());
    for ranks in 2..=17 {
        let (bytes, factor) = Choice::default().largest_step(ranks);
        assert!((1.5..3.0).contains(&factor), "{ranks} ranks: {factor} from {bytes} bytes on");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// On any machine where leaving the caches costs no more than all the rest, and a round no more than two signals: whatever
    /// is chosen, and wherever the choice changes.
    #[test]
    fn no_machine_has_a_cliff_between_algorithms(
        factors in prop::array::uniform5(0.1f64..10.0),
        memory in 0.0f64..1.0,
        exponent in 14u32..26,
    ) {
        let mut values = Constants::default().values();
        for (value, factor) in values.iter_mut().zip(factors) {
            *value *= factor;
        }
        let [signal, round, copy, fold, transfer, ..] = values;
        values[1] = round.min(2.0 * signal);
        values[5] = memory * (copy + transfer + fold);
        values[6] = f64::from(1u32 << exponent);
        check_for_cliffs(Constants::from_values(values).expect("sane values"));
    }
}

#[test]
fn a_forced_algorithm_is_taken_where_it_applies() {
    let forced = |name| Choice { forced: Some(name), ..Choice::default() };
    let chosen = |name, ranks, bytes| forced(name).select(&Shape::all_reduce(ranks, bytes, 4)).name();
    assert_eq!(chosen("one_shot", 2, 8), "one_shot");
    assert_eq!(chosen("one_shot", 3, 8), "flat");
    assert_eq!(chosen("reduce_scatter_allgather", 5, 8), "reduce_scatter_allgather");
    assert_eq!(chosen("reduce_scatter_allgather", 2, 8), "flat");
    assert_eq!(chosen("flat", 2, 32 << 10), "flat");
    assert_eq!(chosen("flat", 2, 64 << 10), "one_shot");
    assert_eq!(forced("one_shot").select(&Shape::barrier(2)).name(), "flat");
    assert_eq!(all_reduce_algorithms(), ["local", "flat", "one_shot", "reduce_scatter_allgather", "direct"]);
    let why = |name, ranks| Explanation::of(&Shape::all_reduce(ranks, 8, 4), &forced(name)).why;
    assert!(why("one_shot", 2).starts_with("it is forced; predicted "), "{}", why("one_shot", 2));
    let other = why("one_shot", 3);
    assert!(other.starts_with("one_shot, which is forced, cannot do this call; predicted "), "{other}");
}

#[test]
fn a_choice_travels_as_bytes() {
    let constants = Constants { signal_us: 0.25, cached_bytes: 12_345, ..Constants::default() };
    for forced in [None, Some("flat"), Some("reduce_scatter_allgather")] {
        let choice = Choice { constants, forced };
        assert_eq!(Choice::decode(&choice.encode()), Some(choice));
    }
    let bytes = Choice::default().encode();
    for cut in 0..bytes.len() {
        assert_eq!(Choice::decode(&bytes[..cut]), None, "cut to {cut} bytes");
    }
    assert_eq!(Choice::decode(&[&bytes[..], b"nonsense"].concat()), None);
    assert_eq!(Choice::decode(&[&bytes[..], &[0xff]].concat()), None);
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e9] {
        for at in 0..6 {
            let mut bytes = bytes.clone();
            bytes[8 * at..8 * at + 8].copy_from_slice(&bad.to_bits().to_le_bytes());
            assert_eq!(Choice::decode(&bytes), None, "{bad} as {}", Constants::NAMES[at]);
        }
    }
    let with_cached = |bytes| Constants::from_values([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, bytes]);
    assert!(with_cached(4096.0).is_some());
    assert!([f64::NAN, -1.0, 0.5, 1e15].into_iter().all(|bytes| with_cached(bytes).is_none()));
}

/// What a machine with these constants would measure.
fn observations(constants: &Constants) -> Vec<Observation> {
    let observe = |(name, ranks, bytes): (&'static str, usize, usize)| {
        let shape = Shape::all_reduce(ranks, bytes, 4);
        algorithm(name).applies(&shape).then(|| {
            let time_us = algorithm(name).cost(&shape, constants);
            Observation { algorithm: name, shape, time_us }
        })
    };
    let sizes = (3..27).map(|exponent| 1usize << exponent);
    let cases = sizes.flat_map(|bytes| [2, 4].map(|ranks| (ranks, bytes)));
    cases
        .flat_map(|(ranks, bytes)| all_reduce_algorithms().into_iter().map(move |name| (name, ranks, bytes)))
        .filter_map(observe)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What the fit predicts is what a machine measured that is as the model says.
    #[test]
    fn a_fit_predicts_what_was_measured(factors in prop::array::uniform6(0.4f64..2.5), exponent in 16u32..26) {
        let mut values = Constants::default().values();
        for (value, factor) in values.iter_mut().zip(factors) {
            *value *= factor;
        }
        values[6] = f64::from(1u32 << exponent);
        let machine = Constants::from_values(values).expect("sane values");
        let observations = observations(&machine);
        let fitted = fit(&observations, &Constants::default()).expect("there are observations");
        for observation in &observations {
            let ratio = observation.predicted_us(&fitted) / observation.time_us;
            prop_assert!((0.8..1.25).contains(&ratio), "{observation:?}: off by {ratio}; {machine:?}, {fitted:?}");
        }
    }
}

#[test]
fn what_was_not_measured_is_not_believed() {
    assert_eq!(fit(&[], &Constants::default()), None);
    let shape = Shape::all_reduce(2, 8, 4);
    let bad = [f64::NAN, 0.0, -1.0, f64::INFINITY];
    let bad = bad.map(|time_us| Observation { algorithm: "flat", shape: shape.clone(), time_us });
    assert_eq!(fit(&bad, &Constants::default()), None);
    let unknown = Observation { algorithm: "nonsense", shape: shape.clone(), time_us: 1.0 };
    let impossible = Observation { algorithm: "reduce_scatter_allgather", shape, time_us: 1.0 };
    assert_eq!(fit(&[unknown, impossible], &Constants::default()), None);
    // A machine five times as slow in everything: no constant is singled out.
    let values = Constants::default().values();
    let slow = Constants::from_values(core::array::from_fn(|at| values[at] * if at < 6 { 5.0 } else { 1.0 })).unwrap();
    let fitted = fit(&observations(&slow)[..3], &Constants::default()).unwrap();
    for (at, (got, want)) in fitted.values().iter().zip(slow.values()).take(6).enumerate() {
        assert!((0.8..1.25).contains(&(got / want)), "{}: {got} instead of {want}", Constants::NAMES[at]);
    }
}

#[test]
fn predictions_for_two_ranks_are_near_what_was_measured() {
    for (bytes, measured_us) in [(8, 0.13), (1 << 10, 0.36), (16 << 10, 1.95), (64 << 10, 5.2), (1 << 20, 105.0)] {
        let shape = Shape::all_reduce(2, bytes, 4);
        let predicted = select(&shape).cost(&shape, &Constants::default());
        let ratio = predicted / measured_us;
        assert!((0.5..2.0).contains(&ratio), "{bytes} bytes: predicted {predicted} us, measured {measured_us} us");
    }
}

#[test]
fn all_ranks_get_the_same_identity_and_rounds() {
    for ranks in 1..=9 {
        for bytes in [0, 8, 4096, 40_000, 1 << 20] {
            let shape = Shape::all_reduce(ranks, bytes, 8);
            let first = plan(&shape, 0);
            for rank in 1..ranks {
                let other = plan(&shape, rank);
                assert_eq!((first.id, first.rounds, first.algorithm), (other.id, other.rounds, other.algorithm));
            }
        }
    }
}

#[test]
fn whatever_changes_the_plan_changes_its_identity() {
    let base = Shape::all_reduce(2, 4096, 4);
    let geometry = base.geometry;
    let shapes = [
        base.clone(),
        Shape { kind: OpKind::Barrier, ..base.clone() },
        Shape { ranks: 3, ..base.clone() },
        Shape { bytes: 4100, ..base.clone() },
        Shape { element: 8, ..base.clone() },
        Shape { readable: true, ..base.clone() },
        Shape { shares: Shares::Root(0), ..base.clone() },
        Shape { shares: Shares::Root(1), ..base.clone() },
        Shape { shares: Shares::Pieces([4000, 96].into()), ..base.clone() },
        Shape { shares: Shares::Pieces([96, 4000].into()), ..base.clone() },
        Shape { geometry: Geometry { ranks: 3, ..geometry }, ..base.clone() },
        Shape { geometry: Geometry { slot_bytes: 5000, ..geometry }, ..base.clone() },
        Shape { geometry: Geometry { chunk_bytes: 5000, ..geometry }, ..base.clone() },
        Shape { geometry: Geometry { pair_depth: 5, ..geometry }, ..base.clone() },
    ];
    let mut seen = HashSet::new();
    for shape in shapes {
        assert!(seen.insert(plan_with(algorithm("flat"), &shape, 0).id), "{shape:?}");
    }
    assert!(seen.insert(plan_with(algorithm("one_shot"), &base, 0).id));
}

#[test]
fn names_are_unique_and_sources_are_given() {
    let names: HashSet<_> = ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
    assert_eq!(names.len(), ALGORITHMS.len());
    assert!(ALGORITHMS.iter().all(|algorithm| !algorithm.source().is_empty()));
}

#[test]
fn explain_says_what_and_why() {
    let text = explain(&Shape::all_reduce(4, 2 << 20, 4));
    let expected = [
        "allreduce of 524288 elements of 4 bytes",
        "on 4 ranks: reduce_scatter_allgather",
        "no other algorithm applies",
        "4 rounds",
        "one_shot                  does not apply",
        "us predicted",
        "0  Stage input 524288..655360 to hand-over buffer to rank 1, round 0",
        "Await Folded round 3",
    ];
    for words in expected {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    assert!(explain(&Shape::all_reduce(4, 32 << 20, 4)).contains(" more"), "long plans are cut");
    let small = explain(&Shape::all_reduce(2, 1024, 4));
    for words in ["on 2 ranks: flat", "next is one_shot with", "3  Fold output 0..1024 from own input and all slots"] {
        assert!(small.contains(words), "{words:?} is missing in\n{small}");
    }
    assert!(explain(&Shape::barrier(3)).starts_with("barrier on 3 ranks: flat"));
    let text = explain(&Shape::broadcast(3, 2, 1 << 20, 4));
    for words in ["broadcast of 262144 elements of 4 bytes (1 MiB) from rank 2 on 3 ranks: broadcast", "Collect output"]
    {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let text = explain(&Shape::all_gather([8, 0, 4096], 4));
    for words in
        ["allgather of 1026 elements", "in pieces of 0 bytes to 4 KiB on 3 ranks: all_gather", "Keep input 0..8"]
    {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
}

#[test]
fn explain_counts_what_a_rank_moves() {
    // Of N = 768 KiB over 3 ranks: two thirds staged and a third handed on; two thirds of inputs read, and of results.
    let text = explain(&Shape::all_reduce(3, 768 << 10, 4));
    let moved = "rank 0 writes 768 KiB for others, reads 1 MiB from others, folds 768 KiB";
    assert!(text.contains(moved), "{text}");
    let text = explain(&Shape::all_reduce(2, 1 << 20, 4));
    assert!(text.contains("rank 0 writes 1 MiB for others, reads 1 MiB from others, folds 2 MiB"), "{text}");
    // A root only gives, others only take; in an allgather each gives its piece and takes the others.
    let text = explain(&Shape::broadcast(4, 0, 1 << 20, 4));
    assert!(text.contains("rank 0 writes 1 MiB for others, reads 0 bytes from others, folds 0 bytes"), "{text}");
    let text = explain(&Shape::all_gather([1 << 20, 2 << 20, 4 << 20], 4));
    assert!(text.contains("rank 0 writes 1 MiB for others, reads 6 MiB from others, folds 0 bytes"), "{text}");
}
