//! The crate among real processes: ranks are this test program, started again in the role of a rank ([`rank`]) and told
//! what to do line by line ([`harness`]).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod deaths;
mod groups;
mod harness;
mod hostile;
mod leftovers;
mod meetings;
mod rank;
mod waiting;

/// The way in for processes in the role of a rank.
#[test]
#[ignore = "a helper of other tests"]
fn rank_process() {
    rank::main();
}
