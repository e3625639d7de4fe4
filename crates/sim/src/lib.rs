//! A simulated world that runs the real engine: ranks, shared memory, processes and time in one thread, and one seed that
//! decides everything.
//!
//! * [`Scenario`]: what is to happen: groups, calls, programs and mishaps, drawn from a seed, as plain data.
//! * [`Memory`] and [`SimWindows`]: a group's shared memory, which knows who may have seen what, and finds races that the
//!   schedule at hand would have forgiven.
//! * [`Host`]: processes, their ends and their clocks.
//! * [`run`]: runs a scenario, and judges each call as it ends by an oracle of its own.
//!
//! The README beside the code says what is simulated, what is judged, and how to replay a seed.
#![forbid(unsafe_code)]

mod cause;
mod host;
mod judge;
mod memory;
mod order;
mod random;
mod rank;
mod scenario;
mod shrink;
mod spec;
mod values;
mod world;

pub use host::{Fuse, Host};
pub use memory::{Areas, Memory, SimWindows};
pub use random::Random;
pub use rank::Sight;
pub use scenario::{Circle, Cuts, Fault, Making, Mishap, Mode, Op, Scenario};
pub use shrink::shrink;
pub use spec::Spec;
pub use world::{Failure, Report, run};

/// Runs the world of a seed, on windows as they are.
///
/// # Errors
/// What was wrong in it.
pub fn run_seed(seed: u64) -> Result<Report, Failure> {
    run(&Scenario::new(seed), &|windows| windows, false)
}
