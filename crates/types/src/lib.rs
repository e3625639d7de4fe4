//! Words that every Foldcast crate shares.
//!
//! Data types and reductions, ranks and groups, amounts, the buffers of a call, the fingerprint that ranks compare,
//! the error type, and the traits behind which shared memory, processes and time stand. Plain data and traits: no
//! I/O, no clock, no unsafe code.
#![forbid(unsafe_code)]

mod amount;
mod buffers;
mod call;
mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod note;
mod product;
mod rank;
pub mod transport;

pub use amount::{Bytes, Elements, MAX_INPUT};
pub use buffers::Buffers;
pub use call::{CallSite, DecodeError, Fingerprint, OpKind, Parts, Tag, digest};
pub use dtype::{DataType, Reduction};
pub use error::{Cause, Ending, Error, Result};
pub use note::{Summary, Ticket, failure_code, failure_code_of, failure_name};
pub use product::{Product, Profile, Support, Unsupported};
pub use rank::{GroupName, MAX_GROUP_NAME_BYTES, Rank, WORLD_GROUP};
