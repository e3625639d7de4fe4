//! Calls in which the ranks find out whether they can read each other's buffers where they are.
//!
//! Whether a rank's buffers are in memory that others can read is known to that rank alone. So such a call has several plans:
//! they are equal up to `Meet`, but for what is staged before it, and there every rank reads the same offers and goes on with
//! the same plan.

use types::transport::Counter;

use crate::choice::Choice;
use crate::shape::{Plan, Shape, plan_with};
use crate::step::{Place, Step};

/// The plans of one rank for a call with offers, all of one identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offering {
    /// If no rank can go the direct way: all have staged their first data before the header.
    pub staged: Plan,
    /// If some rank cannot go it, and some other could: that one has staged nothing before the header. So whoever has not
    /// stages now, and all wait for that.
    pub late: Plan,
    /// If all ranks can read all buffers.
    pub direct: Plan,
}

impl Offering {
    /// The plans of a call for which `choice` would take another algorithm if all ranks could read all buffers; `None` for
    /// other calls, which make no offers.
    #[must_use]
    pub fn of(choice: &Choice, shape: &Shape, rank: usize) -> Option<Offering> {
        let readable = shape.in_readable_memory();
        let (staged, direct) = (choice.select(shape), choice.select(&readable));
        if !readable.readable || staged.name() == direct.name() {
            return None;
        }
        Offering::with(plan_with(staged, shape, rank), plan_with(direct, &readable, rank))
    }

    /// The plans of a call that is `staged` unless all ranks can read all buffers, and else `direct`; `None` if the former
    /// needs its slots.
    #[must_use]
    pub fn with(staged: Plan, direct: Plan) -> Option<Offering> {
        if staged.steps.iter().any(|step| matches!(step, Step::Stage { to: Place::Slot, .. })) {
            return None;
        }
        let id = types::digest(0x6f66_6665, &[staged.id, direct.id].map(u64::to_le_bytes).concat());
        let plan = |plan: &Plan, steps| Plan { id, steps, ..plan.clone() };
        Some(Offering {
            late: plan(&staged, late(&staged.steps)?),
            staged: plan(&staged, offering(&staged.steps)?),
            direct: plan(&direct, direct.steps.clone()),
        })
    }

    /// How many steps of the [`late`](Self::late) plan a rank leaves out after `Meet` that has staged before: they stage what
    /// it has staged.
    #[must_use]
    pub fn staged_before(&self) -> usize {
        self.staged.steps.iter().take_while(|step| matches!(step, Step::Stage { .. })).count()
    }
}

/// The steps before `Announce`, and those after `Meet`.
fn parts(steps: &[Step]) -> Option<(&[Step], &[Step])> {
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted);
    Some((&steps[..at(&Step::Announce)?], &steps[at(&Step::Meet)? + 1..]))
}

/// The same with an offer.
fn offering(steps: &[Step]) -> Option<Vec<Step>> {
    let (before, after) = parts(steps)?;
    Some([before, &[Step::Offer, Step::Announce, Step::Meet], after].concat())
}

/// The same with an offer, and nothing staged before the header, which therefore does not stand for it.
fn late(steps: &[Step]) -> Option<Vec<Step>> {
    let (before, after) = parts(steps)?;
    let round = |step: &Step| match step {
        Step::Stage { to: Place::Pair { round, .. } | Place::Gather { round }, .. } => Some(*round),
        _ => None,
    };
    // All ranks stage the same rounds, but for those who have nothing to give in them.
    let round = before.iter().filter_map(round).max().unwrap_or(0);
    let headers: &[Step] = &[Step::Offer, Step::Announce, Step::Meet];
    let staged = [Step::Publish { counter: Counter::Staged, round }, Step::Await { counter: Counter::Staged, round }];
    Some([headers, before, &staged, after].concat())
}
