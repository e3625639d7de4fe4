//! Shared memory between the processes of one host, waiting, and the birth and death of processes.
//!
//! [`Meeting::meet`] brings the ranks of a job together and gives a [`World`] and a
//! [`Monitor`], which one thread runs. [`World::request_group`] gives the
//! memory of a group, [`GroupWindows`], which is the engine's
//! [`Windows`](types::transport::Windows); [`GroupPeers`] are its
//! [`Peers`](types::transport::Peers). [`Waiter`] passes the time until a peer has done its part.
//!
//! The protocol and why it holds: `README.md` beside this crate.

pub mod door;
pub mod founding;
pub mod header;
pub mod layout;
pub mod primitive;
pub mod record;

// Only the modules above are checked by loom, whose atomics cannot lie in shared memory.
#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
pub mod blackbox;
#[cfg(not(loom))]
pub mod crew;
#[cfg(not(loom))]
mod death;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod groups;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod hostile;
#[cfg(not(loom))]
pub mod launcher;
#[cfg(not(loom))]
pub mod meeting;
#[cfg(not(loom))]
pub mod monitor;
#[cfg(not(loom))]
pub mod observe;
#[cfg(not(loom))]
mod retry;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod ticks;
#[cfg(not(loom))]
pub mod wait;
#[cfg(not(loom))]
pub mod windows;
#[cfg(not(loom))]
mod wire;
#[cfg(not(loom))]
pub mod world;

#[cfg(not(loom))]
pub use arena::Piece;
#[cfg(not(loom))]
pub use blackbox::{Journal, Outcome};
#[cfg(not(loom))]
pub use crew::Crew;
#[cfg(not(loom))]
pub use fork::Home;
#[cfg(not(loom))]
pub use founding::Founding;
#[cfg(not(loom))]
pub use groups::{GroupKey, Request};
#[cfg(not(loom))]
pub use meeting::{JobKey, Meeting};
#[cfg(not(loom))]
pub use monitor::Monitor;
#[cfg(not(loom))]
pub use signals::{Mask, Shield};
#[cfg(not(loom))]
pub use wait::{Awaits, Waiter, Woken};
#[cfg(not(loom))]
pub use windows::GroupWindows;
#[cfg(not(loom))]
pub use world::{GroupPeers, MonotonicClock, World};
