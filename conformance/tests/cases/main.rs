//! What users of neighbouring libraries reported, as tests: the README beside this crate lists them. A test's name begins with
//! the library and the number of the report.
//!
//! Each runs over every algorithm for an allreduce that the planner has, so a new one is tested with no further code. Ranks
//! are threads here, each with a communicator of its own: they meet, share memory and wait as processes do, and cost little.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod errors;
mod mismatches;
mod numbers;
mod oracle;
mod order;
mod plans;
mod shapes;
mod support;
mod table;
