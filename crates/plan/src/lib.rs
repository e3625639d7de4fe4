//! Plans of collective calls as plain data, and the proof that they are right.
//!
//! A [`Plan`] is what one rank does in one call: a list of [`Step`]s over the areas of a group's window. An
//! [`Algorithm`] writes the plans of all ranks, [`select`] takes the cheapest algorithm for a [`Shape`], [`verify`]
//! proves that the plans of all ranks together are right, and [`explain()`] says in words what was chosen and why.
//! No I/O, no clock, no state: equal arguments give equal plans on every rank.
//!
//! The README beside the code has the step vocabulary, the invariants, and how to add an algorithm.
#![forbid(unsafe_code)]

mod algorithms;
mod cost;
mod explain;
pub mod fusion;
mod shape;
mod step;
pub mod verify;

pub use algorithms::{ALGORITHMS, Algorithm};
pub use cost::Constants;
pub use explain::explain;
pub use shape::{Plan, Shape, Shares, plan, plan_with, select, select_with};
pub use step::{Place, Sources, Span, Step};
