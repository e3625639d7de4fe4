//! `foldcast status` and `foldcast trace` with real ranks that hang, are stopped, are killed and come late.
//!
//! Ranks are this test program, started again ([`rank_process`]) and told what to do line by line ([`support`]).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod dumps;
mod late;
mod rank;
mod status;
mod support;

/// The way in for processes in the role of a rank.
#[test]
#[ignore = "a helper of other tests"]
fn rank_process() {
    rank::main();
}
