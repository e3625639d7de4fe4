//! How a collective is timed, and how every element of its result is checked: one method for Foldcast and for others.
//!
//! Whoever can be measured implements [`Ranks`]. A [`Case`] is what is measured, a [`Method`] for how long, and
//! [`measure`] does it:
//!
//! 1. The output is filled with rubbish, one call is made, every element is compared with what it must be ([`Pattern`]).
//! 2. Calls that are not timed warm up and tell how long a call takes; that decides how many make a batch.
//! 3. Batches run, each after a barrier. A batch's time is the slowest rank's.
//! 4. Every element of the last call's result is compared again.
//!
//! The time of a case is the median over that third of the batches in which the ranks waited least on a run queue, since
//! other programs may use the processors.
//!
//! [`copy_limit`] is the yardstick: the time in which all ranks at once copy as many bytes. [`line_round_trip_ns`] tells how
//! far two processors are from each other, which small calls depend on.
#![forbid(unsafe_code)]

mod case;
mod limit;
mod line;
mod machine;
mod memory;
mod method;
mod pattern;

pub use case::{Case, Kind, plain_line, short_name};
pub use limit::{LEAST_LIMIT_BYTES, copy_limit};
pub use line::line_round_trip_ns;
pub use machine::run_delay_ns;
pub use memory::Aligned;
pub use method::{Measured, Method, Quantiles, Ranks, measure};
pub use pattern::Pattern;
