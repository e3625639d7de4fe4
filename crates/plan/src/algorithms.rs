//! The registry: an algorithm is one file in `algorithms/` and one line here.

use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Span, Step};

/// A way to do a collective. Implementors are pure functions of their arguments.
pub trait Algorithm: Sync {
    /// Name, unique among [`ALGORITHMS`].
    fn name(&self) -> &'static str;

    /// Where it comes from: a paper, or a sentence.
    fn source(&self) -> &'static str;

    /// Whether it can do this call at all. For each number of ranks, one algorithm applies to every size.
    fn applies(&self, shape: &Shape) -> bool;

    /// By how much the use count of the channel grows: the number of turns of pair and gather buffers.
    fn rounds(&self, shape: &Shape) -> u64;

    /// What `rank` does, in order.
    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step>;

    /// Predicted time of a call in microseconds, one core per rank.
    fn cost(&self, shape: &Shape, constants: &Constants) -> f64;
}

/// Declares the module of each algorithm and lists it. `cargo fmt` does not look into macros: the files are formatted
/// by `rustfmt crates/plan/src/algorithms/*.rs`.
macro_rules! register {
    ($($file:ident::$name:ident,)*) => {
        $(mod $file;)*

        /// Every algorithm, in the order in which ties are decided.
        pub static ALGORITHMS: &[&dyn Algorithm] = &[$(&$file::$name),*];
    };
}

register! {
    local::Local,
    flat::Flat,
    one_shot::OneShot,
    reduce_scatter_allgather::ReduceScatterAllgather,
    direct::Direct,
    all_gather::AllGather,
    broadcast::Broadcast,
}

/// `span` cut into chunks of `chunk` bytes: the part that belongs to `round`, empty if there is none.
fn chunk_of(span: &Span, chunk: usize, round: u64) -> Span {
    let skip = usize::try_from(round).ok().and_then(|round| round.checked_mul(chunk)).unwrap_or(usize::MAX);
    let start = span.start.saturating_add(skip).min(span.end);
    start..start.saturating_add(chunk).min(span.end)
}

/// What rank `owner` reduces in a round, where each reduces a piece of the whole: the pieces are equal for all ranks but the
/// last ones, and whole cache lines and elements.
fn chunk_of_piece(shape: &Shape, owner: usize, round: u64) -> Span {
    let bytes = piece_bytes(shape);
    let start = owner.saturating_mul(bytes).min(shape.bytes);
    let piece = start..start.saturating_add(bytes).min(shape.bytes);
    chunk_of(&piece, shape.chunk(), round)
}

/// Bytes of the first rank's piece, which is the largest.
fn piece_bytes(shape: &Shape) -> usize {
    shape.bytes.div_ceil(shape.ranks).next_multiple_of(shape.unit())
}

/// The other ranks, beginning with the next one: so that not all turn to the same rank at once.
fn peers(shape: &Shape, rank: usize) -> impl Iterator<Item = usize> + use<> {
    let ranks = shape.ranks;
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}

/// The number of chunks of `chunk` bytes that hold `bytes` bytes.
fn chunks(bytes: usize, chunk: usize) -> u64 {
    u64::try_from(bytes.div_ceil(chunk)).expect("usize is at most 64 bits wide")
}
