//! The proof that the plans of all ranks together are right.
//!
//! [`calls`] runs all ranks of a group through several calls, back to back, on symbols in place of numbers, and
//! either returns a [`Proof`] or the first [`Violation`]. What is proven, for every schedule of the ranks:
//!
//! 1. **Right result.** Each output byte is written exactly once, and is what the kind of call asks for: in an allreduce
//!    the canonical tree over the elements that all ranks have at that very place, of this very call; in an allgather
//!    the byte that the owner of the place has there; in a broadcast the root's. What is moved is never folded, and no
//!    rank reads input that is not its to give.
//! 2. **No data race.** Of two accesses to the same bytes of shared memory, one of them a write, one happened before
//!    the other, by nothing but program order, `Announce` to `Meet`, and `Publish` to `Await`. That holds across
//!    calls too: a rank may be a call ahead of another.
//! 3. **No deadlock.** Every wait ends.
//! 4. **Bounded memory.** Every place lies within the group's [geometry](types::transport::Geometry).
//! 5. **Agreement.** All ranks hold plans of equal identity and equal number of rounds.
//! 6. **Nothing counts before `Meet`.** Until then no counter moves and no output byte is written, so a call that ends
//!    in a mismatch leaves everything as it was. A [mismatch](Call::mismatch) can stand anywhere in the sequence; the
//!    calls after it must be right. It ends at `Meet`: that the ranks then wait for each other before they report, so
//!    that their descriptions stay readable, is not needed for anything proven here.
//! 7. **In place or not, the same plan.** No input byte is read after the output byte at its place was written.
//!
//! # Why one schedule speaks for all
//! A plan has no branch: what a rank does does not depend on when it does it. A wait is for a counter to *reach* a
//! value, and counters only grow (checked); or for a header, which stays until the next announcement in its cell, and
//! that must have happened after every other rank saw it (checked, as a race on the header). So a step that can run
//! stays able to run whatever the others do, and any two steps that can run can run in either order with the same
//! outcome. Schedules thus differ in order only: they run the same steps, and one ends with a rank waiting for ever
//! if and only if all do. It is therefore enough to run whoever can run.
//!
//! The order "happened before" is the weakest that any schedule gives: an `Await` of value v is ordered after the
//! *first* publication that reaches v, though a later one may be what a rank sees. If two accesses conflict, they are
//! found unordered in whichever sequence they are run. Where none are, each read has one write that it can see, and
//! the symbol found in memory is what every schedule reads.

mod form;
mod memory;
mod symbols;
mod violation;
mod world;

use crate::algorithms::Algorithm;
use crate::shape::{Plan, Shape, plan_with};

pub use violation::{Access, Area, Fault, Missing, Violation};

/// One call of all ranks of the group.
#[derive(Clone, Debug)]
pub struct Call {
    /// The plan of each rank.
    pub plans: Vec<Plan>,
    /// Whether the ranks find at `Meet` that they do not agree, and stop there.
    pub mismatch: bool,
}

impl Call {
    /// A call that all ranks make alike.
    #[must_use]
    pub fn of(algorithm: &dyn Algorithm, shape: &Shape) -> Call {
        let plans = (0..shape.ranks).map(|rank| plan_with(algorithm, shape, rank)).collect();
        Call { plans, mismatch: false }
    }

    /// A call in which each rank calls something else: algorithm and shape of each rank.
    #[must_use]
    pub fn mismatch(calls: &[(&dyn Algorithm, Shape)]) -> Call {
        let plans = calls.iter().enumerate().map(|(rank, (algorithm, shape))| plan_with(*algorithm, shape, rank));
        Call { plans: plans.collect(), mismatch: true }
    }
}

/// Where a channel stands before the first call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Sequence of the first call.
    pub sequence: u64,
    /// Use count of the pair and gather buffers.
    pub uses: u64,
    /// Count of longer payloads in slots.
    pub slots: u64,
}

/// What was proven, in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Steps that were run, over all ranks and calls.
    pub steps: usize,
    /// Distinct areas of shared memory that were touched, headers included.
    pub areas: usize,
}

/// Proves that these calls, one after the other on one channel, are right.
///
/// # Errors
/// The first [`Violation`] found: which call, rank and step, and what is wrong.
pub fn calls(calls: &[Call], start: Start) -> Result<Proof, Box<Violation>> {
    form::check(calls)?;
    world::World::new(calls, start).run()
}

/// Proves that an algorithm is right for this shape, `repeats` times back to back.
///
/// # Errors
/// As [`calls`].
pub fn algorithm(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    repeats: usize,
    start: Start,
) -> Result<Proof, Box<Violation>> {
    calls(&vec![Call::of(algorithm, shape); repeats], start)
}
