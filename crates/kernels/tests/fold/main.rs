//! The kernels against a naive oracle, on every instruction set that this machine has.
#![allow(missing_docs, reason = "tests")]

mod contract;
mod oracle;
mod properties;
mod sixteen;
mod world;
