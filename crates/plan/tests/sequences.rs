//! Calls of different shapes and algorithms, and failed ones, one after the other on one channel.

mod common;

use common::{small, small_broadcast, small_gather, small_shape, ways_to_cut};
use foldcast_plan::verify::{self, Call, Start};
use foldcast_plan::{ALGORITHMS, Algorithm, Shape};
use proptest::prelude::*;

/// The `index`-th algorithm that applies, modulo their number.
fn applicable(shape: &Shape, index: usize) -> &'static dyn Algorithm {
    let all: Vec<_> = ALGORITHMS.iter().copied().filter(|algorithm| algorithm.applies(shape)).collect();
    all[index % all.len()]
}

/// A barrier for 0, else a call of one byte less: an allreduce, or by `index` one of the kinds that move.
fn shape(ranks: usize, bytes: usize, index: usize) -> Shape {
    let Some(bytes) = bytes.checked_sub(1) else {
        return Shape { geometry: small(ranks), ..Shape::barrier(ranks) };
    };
    match index {
        0..4 => small_shape(ranks, bytes),
        4..7 => small_broadcast(ranks, (bytes + index) % ranks, bytes),
        _ => {
            let ways = ways_to_cut(ranks, bytes, 1);
            small_gather(&ways[index % ways.len()])
        }
    }
}

#[derive(Clone, Debug)]
enum Recipe {
    Good {
        bytes: usize,
        algorithm: usize,
    },
    /// Each rank takes the next size and algorithm, from the beginning again when they run out.
    Mismatch(Vec<(usize, usize)>),
}

fn call(ranks: usize, recipe: &Recipe) -> Call {
    let of = |bytes, index| {
        let shape = shape(ranks, bytes, index);
        (applicable(&shape, index), shape)
    };
    match recipe {
        Recipe::Good { bytes, algorithm } => {
            let (algorithm, shape) = of(*bytes, *algorithm);
            Call::of(algorithm, &shape)
        }
        Recipe::Mismatch(each) => {
            let each: Vec<_> = each.iter().cycle().take(ranks).map(|(bytes, index)| of(*bytes, *index)).collect();
            Call::mismatch(&each)
        }
    }
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let bytes = || prop_oneof![0_usize..4, 0_usize..130, 0_usize..1200];
    prop_oneof![
        3 => (bytes(), 0_usize..12).prop_map(|(bytes, algorithm)| Recipe::Good { bytes, algorithm }),
        1 => prop::collection::vec((bytes(), 0_usize..12), 1..6).prop_map(Recipe::Mismatch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_is_right(
        ranks in 2_usize..10,
        recipes in prop::collection::vec(recipe(), 1..14),
        sequence in 0_u64..9,
        uses in 0_u64..9,
        slots in 0_u64..2,
        seed in any::<u64>(),
        in_place in any::<bool>(),
    ) {
        let calls: Vec<Call> = recipes.iter().map(|recipe| call(ranks, recipe)).collect();
        let start = Start { sequence, uses, slots };
        prop_assert!(verify::calls(&calls, start).is_ok(), "{}", verify::calls(&calls, start).unwrap_err());
        prop_assert_eq!(common::run(&calls, start, seed, in_place), Ok(()));
    }
}

#[test]
fn after_a_mismatch_of_any_two_calls_any_call_is_right() {
    for ranks in [2, 3, 6] {
        let sizes = [0, 1, 49, 97, 98, 160, 700];
        for (odd, others) in sizes.iter().flat_map(|odd| sizes.iter().map(move |others| (*odd, *others))) {
            for odd_rank in 0..ranks {
                let mut each = vec![(others, 1); ranks];
                // The odd rank calls another kind, or the same with another size.
                each[odd_rank] = (odd, [1, 5, 8][(odd + others) % 3]);
                let failed = call(ranks, &Recipe::Mismatch(each));
                for (good, algorithm) in sizes.into_iter().flat_map(|good| [(good, 1), (good, 5), (good, 8)]) {
                    let good = call(ranks, &Recipe::Good { bytes: good, algorithm });
                    let calls = [good.clone(), failed.clone(), good.clone(), failed.clone(), failed.clone(), good];
                    verify::calls(&calls, Start::default()).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_failed_call_does_not_count() {
    // Calls of one round use one turn: both sides of one pair buffer, and the two cells with their headers. Had the
    // failed calls counted, the last call would use another.
    let good = call(2, &Recipe::Good { bytes: 65, algorithm: 1 });
    let failed = call(2, &Recipe::Mismatch(vec![(65, 1), (50, 1)]));
    for calls in [&good, &failed] {
        assert!(calls.plans.iter().all(|plan| plan.algorithm == "one_shot" && plan.rounds == 1));
    }
    let areas = |calls: &[&Call], uses| {
        let calls: Vec<Call> = calls.iter().copied().cloned().collect();
        verify::calls(&calls, Start { sequence: 0, uses, slots: 0 }).unwrap().areas
    };
    for uses in 0..8 {
        assert_eq!(areas(&[&failed, &failed, &good], uses), 2 + 2);
        assert_eq!(areas(&[&good, &failed, &good], uses), 2 + 4);
    }
}
