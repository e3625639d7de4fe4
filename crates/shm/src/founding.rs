//! The founding of a group that goes on where another one ended: all its members take part in it, or it is none.
//!
//! Each member arrives on a line of its own; one word, which is set once, says what came of it. So whoever decides and
//! dies, or stops, holds up nobody: the decision is in memory that outlives him.

use types::Cause;

use crate::layout::{count, index};
use crate::primitive::{AtomicU64, Ordering};

/// What came of a founding, as a member sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Founding {
    /// Nothing yet.
    Open,
    /// All members were there: the group exists.
    Founded,
    /// A member gave it up for this reason: the group will never exist.
    Failed(Cause),
}

/// What was decided. The first decision stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// All members have arrived.
    Founded,
    /// The member of this index gave it up, for the reason on its line.
    Failed(usize),
}

const FOUNDED: u64 = 1;
const FIRST_AUTHOR: u64 = 2;

/// Says that a member takes part.
pub fn arrive(line: &AtomicU64) {
    line.store(1, Ordering::Release);
}

/// Whether a member takes part; then all that it wrote before is visible.
#[must_use]
pub fn has_arrived(line: &AtomicU64) -> bool {
    line.load(Ordering::Acquire) != 0
}

/// What was decided, if anything was; then what the author wrote before is visible.
#[must_use]
pub fn decision(line: &AtomicU64) -> Option<Decision> {
    decode(line.load(Ordering::Acquire))
}

/// Decides, unless that was done before; returns what was decided.
pub fn decide(line: &AtomicU64, wanted: Decision) -> Decision {
    let word = match wanted {
        Decision::Founded => FOUNDED,
        Decision::Failed(author) => FIRST_AUTHOR + count(author),
    };
    match line.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => wanted,
        Err(first) => decode(first).unwrap_or(wanted),
    }
}

fn decode(word: u64) -> Option<Decision> {
    match word {
        0 => None,
        FOUNDED => Some(Decision::Founded),
        author => Some(Decision::Failed(index(author - FIRST_AUTHOR))),
    }
}
