//! The founding of a group that goes on where another one ended: all its members take part in it, or it is none.
//!
//! Each member arrives on a line of its own; one word says whether the group is founded, and else how many tries have
//! failed and who gave up the last one. So whoever decides and dies, or stops, holds up nobody: the decision is in memory
//! that outlives him.

use crate::layout::{count, index};
use crate::primitive::{AtomicU64, Ordering};

/// What came of a founding so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Founding {
    /// All members were there: the group exists. This stays.
    Founded,
    /// It does not exist. So many tries have failed; the next one has this number.
    Open(u64),
}

const FOUNDED: u64 = u64::MAX;
const AUTHOR_BITS: u32 = 16;
/// More tries are not counted: a rank that tries once a microsecond takes years for them.
const MOST_TRIES: u64 = (1 << (63 - AUTHOR_BITS)) - 1;

/// Says that a member takes part in this try.
pub fn arrive(line: &AtomicU64, number: u64) {
    line.store(number.saturating_add(1), Ordering::Release);
}

/// Whether a member takes part in this try; then all that it wrote before is visible.
#[must_use]
pub fn has_arrived(line: &AtomicU64, number: u64) -> bool {
    line.load(Ordering::Acquire) == number.saturating_add(1)
}

/// What came of it so far; what the author of the last failure wrote before is visible.
#[must_use]
pub fn founding(word: &AtomicU64) -> Founding {
    decode(word.load(Ordering::Acquire))
}

/// The index of the member that gave up the last try, if one has failed.
#[must_use]
pub fn author(word: &AtomicU64) -> Option<usize> {
    let word = word.load(Ordering::Acquire);
    (word != 0 && word != FOUNDED).then(|| index(word & ((1 << AUTHOR_BITS) - 1)))
}

/// Founds the group, if this try is still open; returns what came of it.
pub fn found(word: &AtomicU64, number: u64) -> Founding {
    decide(word, number, FOUNDED)
}

/// Fails this try, by the member of this index, if the try is still open; returns what came of it.
pub fn give_up(word: &AtomicU64, number: u64, author: usize) -> Founding {
    decide(word, number, (number + 1).min(MOST_TRIES) << AUTHOR_BITS | count(author))
}

fn decide(word: &AtomicU64, number: u64, wanted: u64) -> Founding {
    let seen = word.load(Ordering::Acquire);
    if decode(seen) != Founding::Open(number) {
        return decode(seen);
    }
    match word.compare_exchange(seen, wanted, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => decode(wanted),
        Err(first) => decode(first),
    }
}

fn decode(word: u64) -> Founding {
    if word == FOUNDED { Founding::Founded } else { Founding::Open(word >> AUTHOR_BITS) }
}
