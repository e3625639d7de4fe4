//! Broken plans are refused; and what the proof accepts, however it came about, is right on bytes.

mod common;

use common::{small, small_broadcast, small_gather, small_readable, small_shape};
use foldcast_plan::verify::{self, Call, Fault, Start, Violation};
use foldcast_plan::{ALGORITHMS, Place, Plan, Shape, Sources, Step, select};
use proptest::prelude::*;
use types::transport::Counter;

/// Every algorithm in calls that together have every kind of step, empty pieces, short chunks, one round and many.
fn bases() -> Vec<Call> {
    let sizes = [
        (1, 40),
        (2, 1),
        (2, 64),
        (2, 96),
        (2, 128),
        (2, 190),
        (2, 7 * 64),
        (2, 900),
        (3, 1),
        (3, 17),
        (3, 192),
        (3, 600),
        (4, 4 * 64 * 3),
        (5, 48),
        (5, 4 * 64),
        (5, 700),
        (7, 64 * 8),
    ];
    let mut calls = Vec::new();
    for (ranks, bytes) in sizes {
        for (shape, readable) in [(small_shape(ranks, bytes), false), (small_readable(ranks, bytes), true)] {
            let applicable = ALGORITHMS.iter().filter(|algorithm| algorithm.applies(&shape));
            let new = applicable.filter(|algorithm| !readable || !algorithm.applies(&small_shape(ranks, bytes)));
            calls.extend(new.map(|algorithm| Call::of(*algorithm, &shape)));
        }
    }
    let moves = [
        small_broadcast(1, 0, 40),
        small_broadcast(2, 1, 1),
        small_broadcast(2, 0, 300),
        small_broadcast(3, 2, 64),
        small_broadcast(4, 1, 200),
        small_gather(&[40]),
        small_gather(&[1, 0]),
        small_gather(&[64, 300]),
        small_gather(&[70, 70, 70]),
        small_gather(&[0, 200, 0, 130]),
    ];
    calls.extend(moves.iter().map(|shape| Call::of(select(shape), shape)));
    calls
}

fn prove(call: &Call) -> Result<(), Box<Violation>> {
    verify::calls(&vec![call.clone(); 3], Start::default()).map(|_| ())
}

/// Panics unless the bytes are right in several orders, in place and not.
fn runs_right(call: &Call, seeds: u64) {
    for seed in 0..seeds {
        for in_place in [false, true] {
            let done = common::run(&vec![call.clone(); 3], Start::default(), seed, in_place);
            done.unwrap_or_else(|wrong| {
                let plans: Vec<_> = call.plans.iter().map(|plan| &plan.steps).collect();
                panic!("accepted, but {wrong} (seed {seed}, in place {in_place}): {plans:#?}")
            });
        }
    }
}

/// Steps that a plan can do without, as far as results go. (What another algorithm than these can do without, its
/// author must say here.)
fn can_be_left_out(plan: &Plan, index: usize) -> bool {
    let folds = |round| {
        plan.steps
            .iter()
            .any(|step| matches!(step, Step::Fold { sources: Sources::Pairs { round: other }, .. } if *other == round))
    };
    let collects =
        |wanted| plan.steps.iter().any(|step| matches!(step, Step::Collect { round, .. } if *round == wanted));
    match &plan.steps[index] {
        // The next publication says the same of this round too, only later; and in these pipelines, of one counter, it
        // comes without waiting for whoever waits for this one.
        Step::Publish { counter: Counter::Staged, .. } if plan.algorithm != "reduce_scatter_allgather" => {
            plan.steps[index + 1..].iter().any(|step| matches!(step, Step::Publish { .. }))
        }
        // Whose piece has nothing in this round waits for the others all the same, and uses nothing of theirs.
        Step::Await { counter: Counter::Staged, round } => {
            plan.algorithm == "reduce_scatter_allgather" && !folds(*round)
        }
        // The last one says "I read nothing of yours any more" to those of whom something is taken.
        Step::Await { counter: Counter::Folded, round } if plan.algorithm == "direct" => {
            let after = &plan.steps[index + 1..];
            let is_last = *round + 1 == plan.rounds;
            let gives = plan.steps.iter().any(|step| matches!(step, Step::Fold { .. }));
            let takes = after.iter().take_while(|step| !matches!(step, Step::Await { .. }));
            let takes = takes.filter(|step| matches!(step, Step::Take { .. })).count() > 0;
            if is_last { !gives } else { !takes }
        }
        Step::Await { counter: Counter::Folded, round } => !collects(*round),
        // As for `Staged` above: but for the last one.
        Step::Publish { counter: Counter::Folded, round } => plan.algorithm == "direct" && round + 1 < plan.rounds,
        _ => false,
    }
}

#[test]
fn every_step_is_needed() {
    let mut left_out = 0;
    for base in bases() {
        for rank in 0..base.plans.len() {
            for index in 0..base.plans[rank].steps.len() {
                let mut call = base.clone();
                let step = call.plans[rank].steps.remove(index);
                let name = base.plans[rank].algorithm;
                if can_be_left_out(&base.plans[rank], index) {
                    left_out += 1;
                    prove(&call).unwrap_or_else(|violation| panic!("{name} without {step}: {violation}"));
                    runs_right(&call, 4);
                } else {
                    assert!(prove(&call).is_err(), "{name}, rank {rank}, without step {index}: {step}");
                }
            }
        }
    }
    assert!(left_out > 0, "the exceptions are tested too");
}

#[test]
fn neighbouring_steps_in_the_other_order_are_refused_or_right() {
    let (mut accepted, mut refused) = (0, 0);
    for base in bases() {
        for rank in 0..base.plans.len() {
            for index in 1..base.plans[rank].steps.len() {
                let mut call = base.clone();
                call.plans[rank].steps.swap(index - 1, index);
                if prove(&call).is_ok() {
                    accepted += 1;
                    runs_right(&call, 1);
                } else {
                    refused += 1;
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Changes one thing in a plan; `by` and `other` say how and where, modulo what there is.
fn change(plan: &mut Plan, kind: usize, at: usize, other: usize, by: i64) {
    let steps = &mut plan.steps;
    if steps.is_empty() {
        return;
    }
    let (at, other) = (at % steps.len(), other % steps.len());
    match kind {
        0 => drop(steps.remove(at)),
        1 => steps.insert(other, steps[at].clone()),
        2 => steps.swap(at, other),
        3 => {
            let step = steps.remove(at);
            steps.insert(other.min(steps.len()), step);
        }
        4 => shift_span(&mut steps[at], by, by),
        5 => shift_span(&mut steps[at], by, 0),
        6 => shift_span(&mut steps[at], 0, by),
        7 => shift_round(&mut steps[at], by),
        _ => shift_rank(&mut steps[at], by),
    }
}

fn shift_span(step: &mut Step, start: i64, end: i64) {
    let moved = |at: usize, by: i64| at.saturating_add_signed(isize::try_from(by).expect("a few bytes"));
    if let Step::Stage { span, .. }
    | Step::Fold { span, .. }
    | Step::FoldAndStage { span, .. }
    | Step::Keep { span }
    | Step::Collect { span, .. }
    | Step::Take { span, .. } = step
    {
        *span = moved(span.start, start)..moved(span.end, end);
    }
}

fn shift_round(step: &mut Step, by: i64) {
    use Place::{Gather, Pair, Slot};
    let round = match step {
        Step::Stage { to: Pair { round, .. } | Gather { round }, .. }
        | Step::Fold { also: Some(Pair { round, .. } | Gather { round }), .. }
        | Step::Fold { sources: Sources::Pairs { round }, .. }
        | Step::Publish { round, .. }
        | Step::Await { round, .. }
        | Step::FoldAndStage { round, .. }
        | Step::Collect { round, .. } => round,
        Step::Stage { to: Slot, .. }
        | Step::Keep { .. }
        | Step::Fold { .. }
        | Step::Take { .. }
        | Step::Offer
        | Step::Announce
        | Step::Meet => return,
    };
    *round = round.saturating_add_signed(by.signum());
}

fn shift_rank(step: &mut Step, by: i64) {
    let rank = match step {
        Step::Stage { to: Place::Pair { reader, .. }, .. } => reader,
        Step::Collect { from, .. } | Step::Take { from, .. } => from,
        _ => return,
    };
    *rank = rank.saturating_add_signed(isize::try_from(by.signum()).expect("one"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The proof and the world of bytes know nothing of each other: whatever one accepts must be right in the other.
    #[test]
    fn what_is_accepted_is_right(
        base in any::<prop::sample::Index>(),
        everywhere in any::<bool>(),
        changes in prop::collection::vec((0_usize..9, 0_usize..7, 0_usize..60, 0_usize..60, -3_i64..4), 1..4),
    ) {
        let mut call = base.get(&bases()).clone();
        for (kind, rank, at, other, by) in changes {
            let ranks = call.plans.len();
            for (index, plan) in call.plans.iter_mut().enumerate() {
                if everywhere || index == rank % ranks {
                    change(plan, kind, at, other, by);
                }
            }
        }
        if prove(&call).is_ok() {
            runs_right(&call, 3);
        }
    }
}

/// A step that has read a part and waits for the rest is not in its rank's log when another rank writes over that part.
#[test]
fn a_race_with_a_step_that_waits_for_the_rest_is_named() {
    let all = bases();
    let refused = all.iter().filter(|base| base.plans.len() > 3).filter(|base| {
        let mut call = (*base).clone();
        change(&mut call.plans[1], 1, 12, 16, 0);
        change(&mut call.plans[3], 0, 28, 0, 0);
        prove(&call).is_err()
    });
    assert!(refused.count() > 0, "the changes break some plan");
}

/// A pipeline for two ranks that stages `lag` chunks ahead, over `depth` buffers.
fn pipeline(lag: u64, depth: usize, rounds: u64) -> Call {
    let geometry = types::transport::Geometry { pair_depth: depth, ..small(2) };
    let at = |round: u64| usize::try_from(round).expect("a few rounds") * 64;
    let shape = Shape { geometry, ..Shape::all_reduce(2, at(rounds), 1) };
    let span = |round| at(round)..at(round + 1);
    let steps = |rank: usize| {
        let place = |round| Place::Pair { reader: 1 - rank, round };
        let mut steps: Vec<Step> =
            (0..lag.min(rounds)).map(|round| Step::Stage { span: span(round), to: place(round) }).collect();
        steps.extend([Step::Announce, Step::Meet]);
        for round in 0..rounds {
            if round >= lag {
                steps.push(Step::Await { counter: Counter::Staged, round });
            }
            let ahead = round + lag;
            let stage = (ahead < rounds).then(|| (span(ahead), ahead));
            steps.push(Step::FoldAndStage { span: span(round), round, stage });
            if ahead < rounds {
                steps.push(Step::Publish { counter: Counter::Staged, round: ahead });
            }
        }
        steps
    };
    let plan = |rank| Plan { algorithm: "pipeline", id: 1, rounds, steps: steps(rank), shape: shape.clone() };
    Call { plans: vec![plan(0), plan(1)], mismatch: false }
}

#[test]
fn staging_may_run_ahead_by_less_than_the_buffers_used_in_turn() {
    for lag in 1..7 {
        for depth in 1..8 {
            let call = pipeline(lag, depth, 12);
            match prove(&call) {
                Ok(()) => {
                    assert!(usize::try_from(lag).unwrap() < depth, "lag {lag}, depth {depth}");
                    runs_right(&call, 3);
                }
                Err(violation) => {
                    assert!(usize::try_from(lag).unwrap() >= depth, "lag {lag}, depth {depth}: {violation}");
                    assert!(matches!(violation.fault, Fault::Race { .. } | Fault::Aliased), "{violation}");
                }
            }
        }
    }
}
