//! The loops that touch every byte: fold over the ranks' contributions, and copies to and from shared memory.
//!
//! A fold reads `k` sources once, combines them element by element in the canonical tree and writes the result:
//!
//! ```text
//! for d in 1, 2, 4, ...: for j in 0, 2d, 4d, ...: if j + d < k: a[j] = a[j] op a[j + d]
//! ```
//!
//! The result is `a[0]`. Its bits depend on the sources only: never on the length, the alignment, the instruction
//! set or the caller's floating-point settings. Integers wrap. float16 and bfloat16 are widened to float32, combined
//! there, and rounded once, to nearest even. Subnormals are kept. Maximum and minimum propagate NaN and order -0
//! below +0. A result that is NaN is the canonical quiet NaN: positive, with only the top bit of the fraction set.
//!
//! The loops stand once in `generic`, over a small trait for the vectors; `arch` has the instruction sets. Which one
//! is used is decided once, when the program runs: see [`dispatch()`].

mod arch;
mod cache;
mod copy;
mod dispatch;
mod environment;
mod fold;
mod generic;
mod partial;
mod run;
mod shared;

pub use cache::last_level_cache;
pub use copy::{copy_in, copy_out, copy_out_with, finish_streaming, take};
pub use dispatch::{Level, LevelError, dispatch, force};
pub use fold::{Fold, Hints, Source};
pub use shared::{ForeignBytes, SharedBytes};
