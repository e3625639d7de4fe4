//! The command `foldcast`.
#![forbid(unsafe_code)]

fn main() {}
