//! `foldcast run` with real processes.
//!
//! Every process of a test carries a mark in its environment, by which the test finds what is left. Times are guards
//! against hanging, except where the promise of two seconds is the point: there the limit is a generous multiple.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod basics;
mod endings;
mod namespaces;
mod output;
mod signals;
mod support;
mod terminal;
