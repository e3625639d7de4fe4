//! Broken plans of calls that move bytes are refused for the right reason.

mod common;

use common::{algorithm, small_broadcast, small_gather, small_shape};
use foldcast_plan::verify::{self, Call, Fault, Start, Violation};
use foldcast_plan::{Place, Shape, Shares, Sources, Span, Step};
use types::transport::Counter;

fn broadcast(ranks: usize, root: usize, bytes: usize) -> Call {
    Call::of(algorithm("broadcast"), &small_broadcast(ranks, root, bytes))
}

fn gather(pieces: &[usize]) -> Call {
    Call::of(algorithm("all_gather"), &small_gather(pieces))
}

fn refused(call: Call) -> Violation {
    *verify::calls(&vec![call; 3], Start::default()).expect_err("a broken plan")
}

fn collect_of(call: &mut Call, rank: usize) -> &mut Step {
    let steps = &mut call.plans[rank].steps;
    steps.iter_mut().find(|step| matches!(step, Step::Collect { .. })).expect("the plan has such a step")
}

fn span_of(step: &mut Step) -> &mut Span {
    match step {
        Step::Stage { span, .. } | Step::Collect { span, .. } => span,
        other => panic!("{other} has no span of interest"),
    }
}

fn words(got: &str, expected: &str, span: Span) -> Fault {
    Fault::WrongTree { span, got: got.into(), expected: expected.into() }
}

#[test]
fn ranks_give_what_is_theirs_to_give() {
    let mut kept = broadcast(3, 1, 64);
    *collect_of(&mut kept, 2) = Step::Keep { span: 0..64 };
    assert_eq!(refused(kept).fault, Fault::NotItsShare { share: 0..0 });
    let mut handed = broadcast(3, 1, 64);
    handed.plans[2].steps.insert(0, Step::Stage { span: 0..64, to: Place::Gather { round: 0 } });
    assert_eq!(refused(handed).fault, Fault::NotItsShare { share: 0..0 });
    for span in [8..33, 7..32] {
        let mut beyond = gather(&[8, 24, 16]);
        *span_of(&mut beyond.plans[1].steps[0]) = span;
        assert_eq!(refused(beyond).fault, Fault::NotItsShare { share: 8..32 });
    }
    // All say that the root is rank 0, while rank 1 hands its bytes out.
    let mut wrong = broadcast(3, 1, 64);
    wrong.plans.iter_mut().for_each(|plan| plan.shape.shares = Shares::Root(0));
    assert_eq!(refused(wrong).fault, Fault::NotItsShare { share: 0..0 });
}

#[test]
fn what_is_moved_is_not_folded_and_what_is_reduced_is() {
    let mut reduced = Call::of(algorithm("local"), &small_shape(1, 16));
    reduced.plans[0].steps[0] = Step::Keep { span: 0..16 };
    assert_eq!(refused(reduced).fault, Fault::NotForKind, "NaNs of one contribution become canonical too");
    let mut moved = Call::of(algorithm("local"), &small_gather(&[16]));
    assert!(verify::calls(&[moved.clone()], Start::default()).is_ok());
    moved.plans[0].steps[0] = Step::Fold { span: 0..16, sources: Sources::Own, also: None };
    assert_eq!(refused(moved).fault, Fault::NotForKind);
    let mut two = broadcast(2, 0, 16);
    *collect_of(&mut two, 1) = Step::FoldAndStage { span: 0..16, round: 0, stage: None };
    assert_eq!(refused(two).fault, Fault::NotForKind);
}

#[test]
fn bytes_come_from_the_owner_of_their_place_and_from_this_call() {
    // Two pieces that change places, and one that is taken for longer than it is.
    let mut crossed = gather(&[8, 24, 24]);
    *collect_of(&mut crossed, 0) = Step::Collect { span: 8..32, from: 2, round: 0 };
    assert_eq!(refused(crossed).fault, Fault::Misplaced { span: 8..32, from: 32 });
    let mut longer = gather(&[8, 24, 16]);
    *span_of(collect_of(&mut longer, 0)) = 8..33;
    assert!(matches!(refused(longer).fault, Fault::Unwritten { .. }));
    let mut missing = gather(&[8, 24, 16]);
    missing.plans[2].steps.retain(|step| !matches!(step, Step::Keep { .. }));
    assert_eq!(refused(missing).fault, Fault::OutputMissing { span: 32..48 });
    // The root hands out its bytes in the first two calls only.
    let good = broadcast(3, 0, 64);
    let mut stale = good.clone();
    stale.plans[0].steps.remove(0);
    let violation = verify::calls(&[good.clone(), good, stale], Start::default()).expect_err("stale data");
    assert_eq!(violation.fault, words("r0 of call 0", "r0", 0..64));
    // Ranks that cut the whole in other ways are not in one call.
    let mut other = gather(&[16, 16]);
    for (rank, plan) in other.plans.iter_mut().enumerate() {
        plan.shape.shares = Shares::Pieces(if rank == 0 { [16, 16] } else { [0, 32] }.into());
    }
    assert!(matches!(refused(other).fault, Fault::Disagreement { field: "shape", .. }));
}

#[test]
fn gather_buffers_are_not_written_while_another_reads_them() {
    let without = |mut call: Call, rank: usize, round: u64| {
        let step = Step::Await { counter: Counter::Staged, round };
        let steps = &mut call.plans[rank].steps;
        let at = steps.iter().position(|other| *other == step).expect("the plan has such a step");
        steps.remove(at);
        refused(call).fault
    };
    // The root stages round 2 where others may still read round 0.
    assert!(matches!(without(broadcast(3, 0, 64 * 4), 0, 1), Fault::Race { .. }));
    // The next call's first chunk goes where the round before the last was.
    assert!(matches!(without(gather(&[0, 64 * 3, 0]), 1, 2), Fault::Race { .. }));
}

#[test]
fn shares_that_make_no_sense_are_refused() {
    let shares = [
        (broadcast(3, 1, 24), Shares::Root(3)),
        (broadcast(3, 1, 24), Shares::All),
        (broadcast(3, 1, 24), Shares::Pieces([8, 8, 8].into())),
        (gather(&[8, 8, 8]), Shares::Pieces([8, 8].into())),
        (gather(&[8, 8, 8]), Shares::Pieces([8, 8, 9].into())),
        (gather(&[8, 8, 8]), Shares::Root(1)),
    ];
    for (mut call, shares) in shares {
        call.plans.iter_mut().for_each(|plan| plan.shape.shares = shares.clone());
        assert!(matches!(refused(call).fault, Fault::Shape(_)), "{shares:?}");
    }
    let mut cut = Call::of(algorithm("all_gather"), &Shape { element: 4, ..small_gather(&[8, 8, 8]) });
    cut.plans.iter_mut().for_each(|plan| plan.shape.shares = Shares::Pieces([8, 10, 6].into()));
    assert!(matches!(refused(cut).fault, Fault::Shape(_)), "pieces are whole elements");
}

/// A call that is cut is several calls, each of a part of the whole.
#[test]
fn parts_of_a_call_are_calls_with_the_shares_that_lie_in_them() {
    for pieces in [&[8, 24, 16][..], &[0, 48, 0], &[16, 16, 16], &[1, 0, 47]] {
        let shares = Shares::Pieces(pieces.into());
        for cuts in [vec![0, 48], vec![0, 16, 32, 48], vec![0, 1, 8, 47, 48], vec![0, 0, 24, 24, 48]] {
            let mut given = vec![0; pieces.len()];
            for part in cuts.windows(2).map(|ends| ends[0]..ends[1]) {
                let inside = shares.within(&part);
                let lengths: Vec<usize> = (0..pieces.len()).map(|rank| inside.of(rank, part.len()).len()).collect();
                assert_eq!(lengths.iter().sum::<usize>(), part.len(), "{pieces:?}, {part:?}");
                for (rank, length) in lengths.iter().enumerate() {
                    let (whole, own) = (shares.of(rank, 48), inside.of(rank, part.len()));
                    let is_own =
                        own.is_empty() || (part.start + own.start >= whole.start && part.start + own.end <= whole.end);
                    assert!(is_own, "rank {rank} has {whole:?} of the whole and {own:?} of {part:?}");
                    given[rank] += length;
                }
                assert!(verify::calls(&vec![gather(&lengths); 3], Start::default()).is_ok(), "{lengths:?}");
            }
            assert_eq!(given, pieces);
        }
    }
    assert_eq!(Shares::All.within(&(8..16)), Shares::All);
    assert_eq!(Shares::Root(2).within(&(8..16)), Shares::Root(2));
}
