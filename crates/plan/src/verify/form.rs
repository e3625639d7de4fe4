//! What can be said of each plan by itself.

use types::OpKind;
use types::transport::Counter;

use super::Call;
use super::violation::{Fault, Violation};
use crate::shape::{Plan, Shape, Shares};
use crate::step::{Place, Sources, Span, Step};

/// Checks every plan of every call, and that the ranks of each call agree.
pub(super) fn check(calls: &[Call]) -> Result<(), Box<Violation>> {
    let first = calls.first().and_then(|call| call.plans.first());
    let ranks = calls.first().map_or(0, |call| call.plans.len());
    for (index, call) in calls.iter().enumerate() {
        let violation = |rank, step: Option<(usize, &Step)>, fault| {
            Box::new(Violation { call: index, rank, step: step.map(|(at, step)| (at, step.clone())), fault })
        };
        for (rank, plan) in call.plans.iter().enumerate() {
            shape(&plan.shape, ranks, call.plans.len()).map_err(|fault| violation(rank, None, fault))?;
            if first.is_some_and(|first| first.shape.geometry != plan.shape.geometry) {
                return Err(violation(rank, None, Fault::Shape("the areas of a group do not change")));
            }
            if call.mismatch && ranks < 2 {
                return Err(violation(rank, None, Fault::Shape("one rank cannot disagree with itself")));
            }
            if !call.mismatch {
                agreement(plan, &call.plans[0]).map_err(|fault| violation(rank, None, fault))?;
            }
            for (at, step) in plan.steps.iter().enumerate() {
                self::step(step, plan, rank).map_err(|fault| violation(rank, Some((at, step)), fault))?;
            }
            order(plan).map_err(|(at, fault)| violation(rank, at.map(|at| (at, &plan.steps[at])), fault))?;
            offers(plan).map_err(|(at, fault)| violation(rank, Some((at, &plan.steps[at])), fault))?;
        }
    }
    Ok(())
}

fn shape(shape: &Shape, ranks: usize, plans: usize) -> Result<(), Fault> {
    let geometry = shape.geometry;
    let table = [
        (plans == ranks, "the calls of one sequence have different numbers of ranks"),
        (shape.ranks == ranks, "not as many plans as the shape has ranks"),
        (geometry.ranks == ranks, "areas of a group of another size"),
        (shape.element > 0 && shape.bytes.is_multiple_of(shape.element), "not a whole number of elements"),
        (shape.kind != OpKind::Barrier || shape.bytes == 0, "a barrier with a payload"),
        (shares(shape), "not the shares of a call of this kind"),
        (geometry.pair_depth > 0, "no pair buffers"),
        (shape.kind == OpKind::AllReduce || !shape.readable, "buffers that others read, in a call of another kind"),
    ];
    match table.into_iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(Fault::Shape(what)),
        None => Ok(()),
    }
}

/// Whether the shares are those of a call of this kind, and make up the whole.
fn shares(shape: &Shape) -> bool {
    match (&shape.shares, shape.kind) {
        (Shares::All, OpKind::AllReduce | OpKind::Barrier) => true,
        (Shares::Root(root), OpKind::Broadcast) => *root < shape.ranks,
        (Shares::Pieces(pieces), OpKind::AllGather) => {
            let whole = |piece: &usize| piece.is_multiple_of(shape.element);
            pieces.len() == shape.ranks && pieces.iter().all(whole) && pieces.iter().sum::<usize>() == shape.bytes
        }
        _ => false,
    }
}

fn agreement(plan: &Plan, first: &Plan) -> Result<(), Fault> {
    let table = [
        (plan.algorithm == first.algorithm, "algorithm"),
        (plan.id == first.id, "id"),
        (plan.rounds == first.rounds, "number of rounds"),
        (plan.slots() == first.slots(), "number of longer payloads in slots"),
        (plan.shape == first.shape, "shape"),
    ];
    match table.into_iter().find(|(holds, _)| !holds) {
        Some((_, field)) => Err(Fault::Disagreement { other: 0, field }),
        None => Ok(()),
    }
}

/// One `Announce` and later one `Meet`, and nothing that counts before it.
fn order(plan: &Plan) -> Result<(), (Option<usize>, Fault)> {
    let positions = |wanted: &Step| -> Vec<usize> {
        let all = plan.steps.iter().enumerate();
        all.filter(|(_, step)| *step == wanted).map(|(at, _)| at).collect()
    };
    let (announced, met) = (positions(&Step::Announce), positions(&Step::Meet));
    let meet = match (plan.shape.ranks, announced.as_slice(), met.as_slice()) {
        (1, [], []) => return Ok(()),
        (ranks, [announce], [meet]) if ranks > 1 && announce < meet => *meet,
        _ => return Err((None, Fault::Headers)),
    };
    let early = |step: &Step| !matches!(step, Step::Stage { .. } | Step::Offer | Step::Announce);
    match plan.steps[..meet].iter().position(early) {
        Some(at) => Err((Some(at), Fault::BeforeMeet)),
        None => Ok(()),
    }
}

/// One offer at most, before `Announce`, in a slot that has no other use; and one where others' buffers are read.
fn offers(plan: &Plan) -> Result<(), (usize, Fault)> {
    let position = |wanted: &dyn Fn(&Step) -> bool| plan.steps.iter().position(wanted);
    let offer = position(&|step| *step == Step::Offer);
    let announce = position(&|step| *step == Step::Announce);
    let is_offered = offer.is_some() && offer < announce && plan.shape.readable;
    let reads = |step: &Step| matches!(step, Step::Fold { sources: Sources::Inputs, .. } | Step::Take { .. });
    if let Some(at) = position(&reads).filter(|_| !is_offered) {
        return Err((at, Fault::NotOffered));
    }
    let Some(offer) = offer else { return Ok(()) };
    let again = |step: &Step| match step {
        Step::Offer | Step::Fold { sources: Sources::Slots, .. } => true,
        Step::Stage { to, .. } | Step::Fold { also: Some(to), .. } => *to == Place::Slot,
        _ => false,
    };
    let mut others = plan.steps.iter().enumerate().filter(|(at, _)| *at != offer);
    match others.find(|(_, step)| again(step)) {
        Some((at, _)) => Err((at, Fault::OffersCollide)),
        None if offer < announce.unwrap_or(0) => Ok(()),
        None => Err((offer, Fault::Headers)),
    }
}

fn step(step: &Step, plan: &Plan, rank: usize) -> Result<(), Fault> {
    match step {
        Step::Stage { span: staged, to } => {
            span(staged, &plan.shape)?;
            share(staged, plan, rank)?;
            place(to, staged, plan, rank)
        }
        Step::Keep { span: kept } => {
            span(kept, &plan.shape)?;
            share(kept, plan, rank)?;
            // Reduced are the contributions of one rank too: their NaNs become canonical.
            if plan.shape.kind == OpKind::AllReduce { Err(Fault::NotForKind) } else { Ok(()) }
        }
        Step::Fold { .. } | Step::FoldAndStage { .. } if plan.shape.kind != OpKind::AllReduce => Err(Fault::NotForKind),
        Step::Offer | Step::Announce | Step::Meet => Ok(()),
        Step::Publish { counter, round: at } | Step::Await { counter, round: at } => match counter {
            Counter::Staged | Counter::Folded => round(*at, plan),
            Counter::Verdict | Counter::Taken | Counter::Left => Err(Fault::ForeignCounter(*counter)),
        },
        Step::Fold { span: folded, sources, also } => {
            span(folded, &plan.shape)?;
            match sources {
                Sources::Own | Sources::Inputs => {}
                Sources::Slots => place(&Place::Slot, folded, plan, rank)?,
                Sources::Pairs { round: at } => pair(*at, folded, plan)?,
            }
            also.as_ref().map_or(Ok(()), |to| place(to, folded, plan, rank))
        }
        Step::FoldAndStage { span: folded, round: at, stage } => {
            if plan.shape.ranks != 2 {
                return Err(Fault::NotTwoRanks);
            }
            span(folded, &plan.shape)?;
            pair(*at, folded, plan)?;
            let Some((staged, ahead)) = stage else { return Ok(()) };
            span(staged, &plan.shape)?;
            pair(*ahead, staged, plan)
        }
        Step::Collect { span: collected, from, round: at } => {
            span(collected, &plan.shape)?;
            peer(*from, plan, rank)?;
            pair(*at, collected, plan)
        }
        Step::Take { span: taken, from } => {
            span(taken, &plan.shape)?;
            peer(*from, plan, rank)
        }
    }
}

fn span(span: &Span, shape: &Shape) -> Result<(), Fault> {
    if span.is_empty() || span.end > shape.bytes {
        return Err(Fault::Span { bytes: shape.bytes });
    }
    if !span.start.is_multiple_of(shape.element) || !span.end.is_multiple_of(shape.element) {
        return Err(Fault::CutElement { element: shape.element });
    }
    Ok(())
}

fn share(span: &Span, plan: &Plan, rank: usize) -> Result<(), Fault> {
    let share = plan.shape.share(rank);
    if span.start < share.start || span.end > share.end { Err(Fault::NotItsShare { share }) } else { Ok(()) }
}

fn peer(named: usize, plan: &Plan, rank: usize) -> Result<(), Fault> {
    if named == rank || named >= plan.shape.ranks { Err(Fault::NotAPeer { named }) } else { Ok(()) }
}

fn round(round: u64, plan: &Plan) -> Result<(), Fault> {
    if round >= plan.rounds { Err(Fault::Round { round, rounds: plan.rounds }) } else { Ok(()) }
}

fn room(span: &Span, room: usize) -> Result<(), Fault> {
    if span.len() > room { Err(Fault::Room { bytes: span.len(), room }) } else { Ok(()) }
}

/// A pair or gather buffer of a round: both hold a chunk.
fn pair(at: u64, span: &Span, plan: &Plan) -> Result<(), Fault> {
    round(at, plan)?;
    room(span, plan.shape.geometry.chunk_bytes)
}

fn place(place: &Place, span: &Span, plan: &Plan, rank: usize) -> Result<(), Fault> {
    match place {
        Place::Slot if *span != (0..plan.shape.bytes) => Err(Fault::PartOfSlot),
        Place::Slot => room(span, plan.shape.geometry.slot_bytes),
        Place::Pair { reader, round } => peer(*reader, plan, rank).and_then(|()| pair(*round, span, plan)),
        Place::Gather { round } => pair(*round, span, plan),
    }
}
