//! Plans of collective calls as plain data, and the proof that they are right.
//!
//! A [`Plan`] is what one rank does in one call: a list of [`Step`]s over the areas of a group's window. An
//! [`Algorithm`] writes the plans of all ranks, a [`Choice`] takes the cheapest algorithm for a [`Shape`] by
//! [`Constants`] that [`fit`] finds from measured times, [`verify`] proves that the plans of all ranks together are right,
//! and an [`Explanation`] says in words what was chosen and why.
//! No I/O, no clock, no state: equal arguments give equal plans on every rank.
//!
//! The README beside the code has the step vocabulary, the invariants, and how to add an algorithm.
#![forbid(unsafe_code)]

mod algorithms;
mod choice;
mod cost;
mod explain;
pub mod fit;
pub mod fusion;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod offering;
mod shape;
mod step;
pub mod verify;

pub use algorithms::{ALGORITHMS, Algorithm};
pub use choice::{Choice, algorithm, all_reduce_algorithms};
pub use cost::Constants;
pub use explain::{Candidate, Explanation, explain};
pub use offering::Offering;
pub use shape::{Plan, Shape, Shares, plan, plan_with, select};
pub use step::{Place, Sources, Span, Step};
