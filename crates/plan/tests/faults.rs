//! Each way to break a plan is refused for the right reason, and the message says where.

mod common;

use common::{algorithm, small, small_shape};
use foldcast_plan::verify::{self, Access, Area, Call, Fault, Missing, Start, Violation};
use foldcast_plan::{Place, Plan, Shape, Shares, Sources, Span, Step};
use types::transport::{Counter, Geometry};

fn one_shot(rounds: usize) -> Call {
    Call::of(algorithm("one_shot"), &small_shape(2, 64 * rounds))
}

fn scatter(ranks: usize, rounds: usize) -> Call {
    Call::of(algorithm("reduce_scatter_allgather"), &small_shape(ranks, 64 * ranks * rounds))
}

fn flat(ranks: usize) -> Call {
    Call::of(algorithm("flat"), &small_shape(ranks, 96))
}

fn refused(call: Call) -> Violation {
    *verify::calls(&vec![call; 3], Start::default()).expect_err("a broken plan")
}

/// The index of the first step that satisfies a condition.
fn find(plan: &Plan, wanted: impl Fn(&Step) -> bool) -> usize {
    find_in(&plan.steps, wanted)
}

fn find_in(steps: &[Step], wanted: impl Fn(&Step) -> bool) -> usize {
    steps.iter().position(wanted).expect("the plan has such a step")
}

fn is_collect(step: &Step) -> bool {
    matches!(step, Step::Collect { .. })
}

fn is_fold(step: &Step) -> bool {
    matches!(step, Step::Fold { .. } | Step::FoldAndStage { .. })
}

fn is_stage(step: &Step) -> bool {
    matches!(step, Step::Stage { .. })
}

fn publish(counter: Counter, round: u64) -> Step {
    Step::Publish { counter, round }
}

fn await_(counter: Counter, round: u64) -> Step {
    Step::Await { counter, round }
}

fn remove(call: &mut Call, rank: usize, step: &Step) {
    let plan = &mut call.plans[rank];
    let at = find(plan, |other| other == step);
    plan.steps.remove(at);
}

fn span_of(step: &mut Step) -> &mut Span {
    match step {
        Step::Stage { span, .. } | Step::Fold { span, .. } | Step::Collect { span, .. } => span,
        other => panic!("{other} has no span of interest"),
    }
}

#[test]
fn a_missing_await_is_a_race() {
    let mut call = one_shot(6);
    remove(&mut call, 1, &await_(Counter::Staged, 3));
    let violation = refused(call);
    let Fault::Race { area, bytes, access, other_access, other, other_call, other_step } = violation.fault else {
        panic!("{violation}")
    };
    // Round 3 of call 0: index 3 of 4, and the side that rank 0 fills first. Rank 0 staged it with its fold of round 1.
    assert_eq!((violation.call, violation.rank), (0, 1));
    assert_eq!(area, Area::Pair { low: 0, high: 1, index: 3, side: 0 });
    assert_eq!((bytes, access, other_access), (0..64, Access::Read, Access::Write));
    assert_eq!((other, other_call), (0, 0));
    let staged = &one_shot(6).plans[0].steps[other_step];
    assert!(matches!(staged, Step::FoldAndStage { stage: Some((_, 3)), .. }), "{staged}");
}

#[test]
fn a_missing_await_for_results_is_a_race() {
    let mut call = scatter(4, 3);
    remove(&mut call, 2, &await_(Counter::Folded, 1));
    let violation = refused(call);
    let collected = matches!(violation.step, Some((_, Step::Collect { round: 1, .. })));
    assert!(violation.rank == 2 && collected && matches!(violation.fault, Fault::Race { .. }), "{violation}");
}

#[test]
fn a_missing_publication_is_a_deadlock_of_whoever_waits() {
    let mut call = scatter(3, 2);
    remove(&mut call, 1, &publish(Counter::Folded, 1));
    let violation = refused(call);
    let value = 2;
    assert_eq!(violation.fault, Fault::Deadlock(Missing::Counter { from: 1, counter: Counter::Folded, value }));
    assert!(violation.rank != 1, "{violation}");

    let mut last = one_shot(5);
    remove(&mut last, 0, &publish(Counter::Staged, 4));
    let violation = refused(last);
    let missing = Missing::Counter { from: 0, counter: Counter::Staged, value: 5 };
    assert_eq!((violation.rank, violation.fault), (1, Fault::Deadlock(missing)));
}

#[test]
fn waiting_before_publishing_on_all_ranks_is_a_deadlock() {
    let mut call = scatter(3, 1);
    for plan in &mut call.plans {
        let at = find(plan, |step| matches!(step, Step::Publish { .. }));
        plan.steps.swap(at, at + 1);
    }
    assert!(matches!(refused(call).fault, Fault::Deadlock(_)));
}

#[test]
fn the_header_comes_once_and_before_meet() {
    let mut none = flat(3);
    remove(&mut none, 1, &Step::Announce);
    let mut no_meet = flat(3);
    remove(&mut no_meet, 1, &Step::Meet);
    let mut twice = flat(3);
    twice.plans[1].steps.insert(1, Step::Announce);
    let mut swapped = flat(3);
    swapped.plans[1].steps.swap(1, 2);
    for call in [none, no_meet, twice, swapped] {
        let violation = refused(call);
        assert_eq!((violation.rank, violation.fault), (1, Fault::Headers));
    }
    let mut alone = Call::of(algorithm("local"), &small_shape(1, 8));
    alone.plans[0].steps.insert(0, Step::Announce);
    assert_eq!(refused(alone).fault, Fault::Headers);
}

#[test]
fn nothing_counts_before_meet() {
    let early = [
        (flat(2), Step::Fold { span: 0..96, sources: Sources::Slots, also: None }),
        (one_shot(3), publish(Counter::Staged, 0)),
        (one_shot(3), await_(Counter::Staged, 0)),
        (one_shot(3), Step::FoldAndStage { span: 0..64, round: 0, stage: None }),
        (scatter(3, 1), Step::Collect { span: 0..64, from: 0, round: 0 }),
    ];
    for (mut call, step) in early {
        let meet = find(&call.plans[1], |step| *step == Step::Meet);
        call.plans[1].steps.insert(meet, step.clone());
        let violation = refused(call);
        assert_eq!(violation.step, Some((meet, step)));
        assert_eq!(violation.fault, Fault::BeforeMeet);
    }
}

#[test]
fn what_is_staged_after_the_header_is_not_covered_by_it() {
    let mut call = flat(3);
    call.plans[2].steps.swap(0, 1);
    let violation = refused(call);
    assert!(matches!(violation.fault, Fault::Race { area: Area::Slot { owner: 2, .. }, other: 2, .. }), "{violation}");
}

#[test]
fn a_buffer_is_not_written_while_another_may_read_it() {
    // Staged once more after Meet, while the reader may be folding: the same bytes, but nobody may count on that. Which
    // of the two comes first in the proof does not matter.
    for (rank, access, other_access) in [(0, Access::Write, Access::Read), (1, Access::Read, Access::Write)] {
        let mut call = one_shot(1);
        let place = Place::Pair { reader: 1 - rank, round: 0 };
        let meet = find(&call.plans[rank], |step| *step == Step::Meet);
        call.plans[rank].steps.insert(meet + 1, Step::Stage { span: 0..64, to: place });
        let violation = refused(call);
        let Fault::Race { access: own, other_access: others, other_call: 0, .. } = violation.fault else {
            panic!("{violation}")
        };
        assert_eq!((own, others), (access, other_access), "{violation}");
    }
}

/// Rank 0 of three folds everything and hands it out through its gather buffers, without asking whether the others are
/// done with the last round.
fn central(rounds: u64) -> Call {
    let at = |round: u64| usize::try_from(round).expect("a few rounds") * 64;
    let geometry = Geometry { pair_depth: 8, ..small(3) };
    let shape = Shape { geometry, ..small_shape(3, at(rounds)) };
    let span = |round| at(round)..at(round + 1);
    let steps = |rank| {
        let mut steps = Vec::new();
        if rank != 0 {
            let to = |round| Place::Pair { reader: 0, round };
            steps.extend((0..rounds).map(|round| Step::Stage { span: span(round), to: to(round) }));
        }
        steps.extend([Step::Announce, Step::Meet]);
        for round in 0..rounds {
            let also = Some(Place::Gather { round });
            steps.extend(match rank {
                0 => [
                    Step::Fold { span: span(round), sources: Sources::Pairs { round }, also },
                    publish(Counter::Folded, round),
                ],
                _ => [await_(Counter::Folded, round), Step::Collect { span: span(round), from: 0, round }],
            });
        }
        // The others await each other too.
        if rank != 0 {
            let publications: Vec<Step> = (0..rounds).map(|round| publish(Counter::Folded, round)).collect();
            let after_meet = find_in(&steps, |step| *step == Step::Meet) + 1;
            steps.splice(after_meet..after_meet, publications);
        }
        steps
    };
    let plan = |rank| Plan { algorithm: "central", id: 9, rounds, steps: steps(rank), shape: shape.clone() };
    Call { plans: (0..3).map(plan).collect(), mismatch: false }
}

#[test]
fn a_gather_buffer_is_not_written_before_all_have_collected() {
    assert!(verify::calls(&vec![central(2); 5], Start::default()).is_ok(), "there are two of them");
    let violation = refused(central(3));
    let Fault::Race { area, access, other_access, .. } = violation.fault else { panic!("{violation}") };
    assert!(matches!(area, Area::Gather { owner: 0, index: 0 }), "{violation}");
    assert!(access != other_access, "{violation}");
}

#[test]
fn staging_for_the_wrong_reader() {
    let stage_to = |call: &mut Call, at: usize, to: usize| match &mut call.plans[0].steps[at] {
        Step::Stage { to: Place::Pair { reader, .. }, .. } => *reader = to,
        other => panic!("{other}"),
    };
    // What was for rank 1 goes to rank 2, and is then written over: rank 1 finds nothing.
    let mut other = scatter(4, 1);
    stage_to(&mut other, 0, 2);
    let violation = refused(other);
    let Fault::Unwritten { area, bytes } = &violation.fault else { panic!("{violation}") };
    assert_eq!((violation.rank, bytes), (1, &(0..64)));
    assert!(matches!(area, Area::Pair { low: 0, high: 1, .. }));

    // Two ranks get each other's part.
    let mut crossed = scatter(4, 1);
    stage_to(&mut crossed, 0, 2);
    stage_to(&mut crossed, 1, 1);
    let violation = refused(crossed);
    assert_eq!(violation.fault, Fault::Misplaced { span: 64..128, from: 128 });

    for nobody in [0, 4] {
        let mut call = scatter(4, 1);
        stage_to(&mut call, 0, nobody);
        assert_eq!(refused(call).fault, Fault::NotAPeer { named: nobody });
    }
}

#[test]
fn wrong_spans() {
    let with = |mut call: Call, step: usize, new: Span| {
        *span_of(&mut call.plans[0].steps[step]) = new;
        refused(call).fault
    };
    // Staged a little beside, too little, nothing, beyond the end.
    assert_eq!(with(scatter(3, 1), 0, 65..129), Fault::Misplaced { span: 64..128, from: 65 });
    assert!(matches!(with(scatter(3, 1), 0, 64..127), Fault::Unwritten { bytes, .. } if bytes == (63..64)));
    assert_eq!(with(scatter(3, 1), 0, 64..64), Fault::Span { bytes: 192 });
    assert_eq!(with(scatter(3, 1), 0, 129..193), Fault::Span { bytes: 192 });
    // More than a chunk; part of a slot; more than a slot.
    assert_eq!(with(scatter(3, 1), 0, 64..129), Fault::Room { bytes: 65, room: 64 });
    assert_eq!(with(flat(3), 0, 0..48), Fault::PartOfSlot);
    let mut large = flat(3);
    for plan in &mut large.plans {
        plan.shape.geometry.slot_bytes = 95;
    }
    assert_eq!(refused(large).fault, Fault::Room { bytes: 96, room: 95 });
    // Folded and collected beside: a gap, or the same bytes twice.
    let call = scatter(3, 1);
    let fold = find(&call.plans[0], is_fold);
    assert_eq!(with(call.clone(), fold, 0..63), Fault::OutputMissing { span: 63..64 });
    let collect = find(&call.plans[0], is_collect);
    assert_eq!(with(call.clone(), collect, 63..127), Fault::Misplaced { span: 63..127, from: 64 });
    assert_eq!(with(call, collect, 64..127), Fault::OutputMissing { span: 127..128 });
}

#[test]
fn elements_are_not_cut() {
    let shape = Shape { element: 4, ..small_shape(3, 192) };
    let mut call = Call::of(algorithm("reduce_scatter_allgather"), &shape);
    *span_of(&mut call.plans[0].steps[0]) = 64..126;
    assert_eq!(refused(call).fault, Fault::CutElement { element: 4 });
}

#[test]
fn wrong_rounds() {
    // The header stands for round 0 only: folding round 1's buffer early finds nothing, or what a peer is writing.
    let mut early = scatter(3, 3);
    let fold = find(&early.plans[0], is_fold);
    let Step::Fold { sources, .. } = &mut early.plans[0].steps[fold] else { unreachable!("found as a fold") };
    *sources = Sources::Pairs { round: 1 };
    let fault = refused(early).fault;
    assert!(matches!(fault, Fault::Unwritten { .. } | Fault::Misplaced { .. } | Fault::Race { .. }), "{fault}");

    // Waiting for an earlier round than the one that is read: the bytes may be there by then, or not. Where the buffer
    // was used before, its old content is what is read.
    for (rounds, wrong, stale) in [(4, 3, false), (6, 4, true)] {
        let mut late = one_shot(rounds);
        let at = find(&late.plans[0], |step| *step == await_(Counter::Staged, wrong));
        late.plans[0].steps[at] = await_(Counter::Staged, wrong - 1);
        match refused(late).fault {
            Fault::Race { .. } => assert!(!stale),
            Fault::Misplaced { span, from } => assert!(stale && span == (256..320) && from == 0),
            other => panic!("{other}"),
        }
    }

    // Waiting for a round that the other can only publish after hearing of this one. (Up to round 5 it can: it runs
    // ahead as far as what it has heard allows.)
    for (round, ends) in [(5, true), (6, false)] {
        let mut ahead = one_shot(8);
        let at = find(&ahead.plans[0], |step| *step == await_(Counter::Staged, 2));
        ahead.plans[0].steps[at] = await_(Counter::Staged, round);
        match verify::calls(&[ahead], Start::default()) {
            Ok(_) => assert!(ends, "round {round}"),
            Err(violation) => assert!(!ends && matches!(violation.fault, Fault::Deadlock(_)), "{violation}"),
        }
    }

    // Publishing backwards, beyond the call, or what is not a plan's to publish.
    let mut backwards = one_shot(6);
    let at = find(&backwards.plans[0], |step| *step == publish(Counter::Staged, 3));
    backwards.plans[0].steps[at] = publish(Counter::Staged, 2);
    let fault = Fault::CounterBackwards { counter: Counter::Staged, from: 3, to: 3 };
    assert_eq!(refused(backwards).fault, fault);
    let mut beyond = one_shot(6);
    beyond.plans[0].steps.push(publish(Counter::Staged, 6));
    assert_eq!(refused(beyond).fault, Fault::Round { round: 6, rounds: 6 });
    let mut foreign = one_shot(6);
    foreign.plans[0].steps.push(publish(Counter::Verdict, 5));
    assert_eq!(refused(foreign).fault, Fault::ForeignCounter(Counter::Verdict));
}

#[test]
fn the_whole_output_is_written_once() {
    let mut missing = scatter(3, 2);
    let at = find(&missing.plans[2], is_collect);
    missing.plans[2].steps.remove(at);
    let violation = refused(missing);
    assert_eq!((violation.rank, violation.step), (2, None));
    assert_eq!(violation.fault, Fault::OutputMissing { span: 0..64 });

    let mut twice = scatter(3, 2);
    let at = find(&twice.plans[2], is_collect);
    let again = twice.plans[2].steps[at].clone();
    twice.plans[2].steps.insert(at, again);
    assert_eq!(refused(twice).fault, Fault::OutputTwice { span: 0..64 });

    let mut no_fold = flat(2);
    no_fold.plans[1].steps.pop();
    assert_eq!(refused(no_fold).fault, Fault::OutputMissing { span: 0..96 });
}

#[test]
fn input_is_not_read_where_output_was_written() {
    let mut again = flat(2);
    let fold = again.plans[0].steps[3].clone();
    again.plans[0].steps.push(fold);
    assert_eq!(refused(again).fault, Fault::InputOverwritten { span: 0..96 });

    let mut late = flat(2);
    late.plans[0].steps.push(Step::Stage { span: 0..96, to: Place::Slot });
    assert_eq!(refused(late).fault, Fault::InputOverwritten { span: 0..96 });

    // Both in one loop.
    let mut same = one_shot(4);
    let at = find(&same.plans[0], is_fold);
    same.plans[0].steps[at] = Step::FoldAndStage { span: 0..64, round: 0, stage: Some((0..64, 2)) };
    assert_eq!(refused(same).fault, Fault::Aliased);
}

#[test]
fn every_input_counts_once_and_in_the_order_of_the_tree() {
    let mut alone = flat(2);
    alone.plans[1].steps[3] = Step::Fold { span: 0..96, sources: Sources::Own, also: None };
    let words = |got: &str, expected: &str, span| Fault::WrongTree { span, got: got.into(), expected: expected.into() };
    assert_eq!(refused(alone).fault, words("r1", "r0+r1", 0..96));

    // Rank 0 hands on its result, which rank 1 takes for an input.
    let shape = small_shape(2, 64);
    let span = 0..64;
    let staged = |reader| Step::Stage { span: 0..64, to: Place::Pair { reader, round: 0 } };
    let fold = |round, also| Step::Fold { span: span.clone(), sources: Sources::Pairs { round }, also };
    let first = vec![
        staged(1),
        Step::Announce,
        Step::Meet,
        fold(0, Some(Place::Pair { reader: 1, round: 1 })),
        publish(Counter::Staged, 1),
    ];
    let second = vec![staged(0), Step::Announce, Step::Meet, await_(Counter::Staged, 1), fold(1, None)];
    let plan = |steps| Plan { algorithm: "twice", id: 3, rounds: 2, steps, shape: shape.clone() };
    let call = Call { plans: vec![plan(first), plan(second)], mismatch: false };
    assert_eq!(refused(call).fault, words("(r0+r1)+r1", "r0+r1", 0..64));
}

#[test]
fn old_data_is_not_taken_for_new() {
    // In the third call rank 0 forgets to stage: the cell then holds what it staged two calls before. (The payload lies beside
    // the header: of longer ones there is a count, which would tell.)
    let good = Call::of(algorithm("flat"), &small_shape(3, 33));
    let mut stale = good.clone();
    let at = find(&stale.plans[0], is_stage);
    stale.plans[0].steps.remove(at);
    let calls = [good.clone(), good, stale];
    let violation = verify::calls(&calls, Start::default()).expect_err("stale data");
    let Fault::WrongTree { got, expected, .. } = violation.fault else { panic!("{violation}") };
    assert_eq!((got.as_str(), expected.as_str()), ("(r0 of call 0+r1)+r2", "(r0+r1)+r2"));
    assert_eq!(violation.call, 2);
}

#[test]
fn results_are_handed_on_and_collected_from_their_owner() {
    let mut kept = scatter(3, 1);
    let at = find(&kept.plans[1], is_fold);
    let Step::Fold { also, .. } = &mut kept.plans[1].steps[at] else { unreachable!("found as a fold") };
    *also = None;
    let fault = refused(kept).fault;
    assert!(matches!(fault, Fault::Unwritten { area: Area::Gather { owner: 1, .. }, .. }), "{fault}");

    for (from, expected) in [(2, Fault::Misplaced { span: 64..128, from: 128 }), (0, Fault::NotAPeer { named: 0 })] {
        let mut wrong = scatter(3, 1);
        let at = find(&wrong.plans[0], is_collect);
        wrong.plans[0].steps[at] = Step::Collect { span: 64..128, from, round: 0 };
        assert_eq!(refused(wrong).fault, expected);
    }
}

#[test]
fn a_fold_does_not_write_what_it_reads() {
    // The buffer to rank 1 in round 1 is the one from rank 1 in round 0: with a depth of one the sides change.
    let mut call = scatter(3, 3);
    let at = find(&call.plans[0], is_fold);
    let Step::Fold { also, .. } = &mut call.plans[0].steps[at] else { unreachable!("found as a fold") };
    *also = Some(Place::Pair { reader: 1, round: 1 });
    assert_eq!(refused(call).fault, Fault::Aliased);
}

#[test]
fn too_few_buffers_for_the_pipeline() {
    let with = |pair_depth| {
        let geometry = Geometry { pair_depth, ..small(2) };
        let shape = Shape { geometry, ..small_shape(2, 600) };
        verify::algorithm(algorithm("one_shot"), &shape, 2, Start::default()).map_err(|violation| violation.fault)
    };
    assert!(matches!(with(0), Err(Fault::Shape(_))));
    assert!(
        matches!(with(1), Err(Fault::Race { access: Access::Write, other_access: Access::Write, .. })),
        "{:?}",
        with(1)
    );
    assert_eq!(with(2), Err(Fault::Aliased));
    assert!(with(3).is_ok());
}

#[test]
fn ranks_agree_on_their_plan() {
    let field = |change: fn(&mut Plan)| {
        let mut call = scatter(3, 2);
        change(&mut call.plans[2]);
        let violation = refused(call);
        match violation.fault {
            Fault::Disagreement { other: 0, field } if violation.rank == 2 => field,
            other => panic!("{other}"),
        }
    };
    assert_eq!(field(|plan| plan.id ^= 1), "id");
    assert_eq!(field(|plan| plan.rounds += 1), "number of rounds");
    assert_eq!(field(|plan| plan.shape.element = 2), "shape");
    assert_eq!(field(|plan| plan.algorithm = "other"), "algorithm");
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    let changes: [fn(&mut Shape); 8] = [
        |shape| shape.ranks = 4,
        |shape| shape.geometry.ranks = 2,
        |shape| shape.element = 7,
        |shape| shape.element = 0,
        |shape| shape.kind = types::OpKind::Barrier,
        |shape| shape.shares = Shares::Root(0),
        |shape| shape.kind = types::OpKind::Broadcast,
        |shape| shape.kind = types::OpKind::AllGather,
    ];
    for change in changes {
        let mut call = flat(3);
        call.plans.iter_mut().for_each(|plan| change(&mut plan.shape));
        assert!(matches!(refused(call).fault, Fault::Shape(_)));
    }
    let mixed = [flat(3), flat(2)];
    assert!(matches!(verify::calls(&mixed, Start::default()).unwrap_err().fault, Fault::Shape(_)));
    let mut grown = flat(3);
    grown.plans.iter_mut().for_each(|plan| plan.shape.geometry.slot_bytes += 1);
    let violation = verify::calls(&[flat(3), grown], Start::default()).unwrap_err();
    assert_eq!((violation.call, violation.fault), (1, Fault::Shape("the areas of a group do not change")));
    let alone = Call { mismatch: true, ..Call::of(algorithm("local"), &small_shape(1, 8)) };
    assert!(matches!(refused(alone).fault, Fault::Shape(_)));
    let mut three = flat(3);
    three.plans[0].steps[3] = Step::FoldAndStage { span: 0..64, round: 0, stage: None };
    assert_eq!(refused(three).fault, Fault::NotTwoRanks);
}

#[test]
fn messages_say_where_and_what() {
    let mut call = scatter(3, 2);
    remove(&mut call, 1, &publish(Counter::Folded, 1));
    let text = refused(call).to_string();
    let expected = "call 0, rank 0, step 13 (Await Folded round 1): waits for ever for Folded of rank 1 to reach 2";
    assert_eq!(text, expected);

    let mut call = one_shot(3);
    remove(&mut call, 1, &await_(Counter::Staged, 2));
    let text = refused(call).to_string();
    let expected = "call 0, rank 1, step 7 (Fold output 128..192 from own input and hand-over buffer, round 2): read of \
                    bytes 0..64 of side 0 of pair buffer 2 of rank 0 and rank 1, unordered with the write by rank 0 in \
                    step 4 of call 0";
    assert_eq!(text, expected);
}
