//! AllReduce on ordinary machines: reduce over all ranks, give every rank the result.
//!
//! A [`Communicator`] is a process's place in a job. [`Group`]s of its ranks reduce arrays of twelve data types by four
//! reductions, blocking or submitted, matched by number or by name. Results have the same bits on every rank, whatever
//! the size or the way of calling. Errors say who, what, where, how long, expected and got.
//!
//! ```no_run
//! use foldcast::{Buffers, CallOptions, Communicator, DataType, InitOptions, Reduction};
//!
//! # fn main() -> foldcast::Result<()> {
//! let communicator = Communicator::init(InitOptions::default())?;
//! let (input, mut output) = ([1.0f32; 8], [0.0f32; 8]);
//! let buffers = Buffers::Separate { input: foldcast::bytes_of(&input), output: foldcast::bytes_of_mut(&mut output) };
//! communicator.world().all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod attended;
pub mod blackbox;
mod blocking;
pub mod built;
mod check;
mod collectives;
mod communicator;
mod config;
pub mod costs;
mod dump;
mod element;
mod fused;
mod group;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod join;
mod lanes;
mod memory;
mod moves;
mod notes;
mod progress;
mod rank_table;
mod sets;
mod settings;
mod shrink;
mod stage;
mod submitted;
mod wait;
mod world;

pub use communicator::{Communicator, InitOptions};
pub use config::{Config, CostsFrom, Timeout};
pub use element::{Element, bytes_of, bytes_of_mut};
pub use engine::{Claims, Completion, OwnedBuffers};
pub use fused::CompletionMany;
pub use group::{CallOptions, Group};
pub use memory::Memory;
pub use moves::{Finish, Place};
pub use plan as plans;
pub use plan::fusion;
pub use shm::launcher as launch;
pub use types::error;
pub use types::{
    Buffers, Bytes, CallSite, Cause, DataType, Elements, Ending, Error, GroupName, MAX_INPUT, OpKind, Product, Profile,
    Rank, Reduction, Result, Support, Tag, Unsupported, WORLD_GROUP, digest,
};
pub use wait::Interrupt;
