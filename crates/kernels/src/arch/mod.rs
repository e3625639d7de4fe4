//! The instruction sets: how each one loads, computes and stores, and its entry points.

mod half;
mod portable;

pub(crate) use portable::PORTABLE;
