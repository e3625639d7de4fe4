//! Which algorithm is taken, that all ranks take the same, and what is said about it.

mod common;

use std::collections::HashSet;

use common::algorithm;
use foldcast_plan::{ALGORITHMS, Constants, Shape, Shares, explain, plan, plan_with, select, select_with};
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
    assert_eq!(select_with(&shape, &slow_cores).name(), "reduce_scatter_allgather");
}

#[test]
fn predicted_times_have_no_cliff() {
    let constants = Constants::default();
    for ranks in 2..=17 {
        let time = |bytes: usize| {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            select(&shape).cost(&shape, &constants)
        };
        for exponent in 2..30 {
            for bytes in [1_usize << exponent, (1 << exponent) + 4, 3 << (exponent - 1)] {
                let (once, twice) = (time(bytes), time(2 * bytes));
                assert!(once <= twice && twice <= 3.0 * once, "{ranks} ranks, {bytes} bytes: {once} us, {twice} us");
            }
        }
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
    let text = explain(&Shape::all_reduce(4, 1 << 20, 4));
    let expected = [
        "allreduce of 262144 elements of 4 bytes",
        "on 4 ranks: reduce_scatter_allgather",
        "no other algorithm applies",
        "4 rounds",
        "one_shot                  does not apply",
        "us predicted",
        "0  Stage input 262144..327680 to hand-over buffer to rank 1, round 0",
        "and 4 more",
    ];
    for words in expected {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
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
