//! The kernels against a naive oracle, on every instruction set that this machine has.
#![allow(clippy::unwrap_used, reason = "tests")]

mod contract;
mod oracle;
mod properties;
mod sixteen;
mod world;
