//! The judge of the worlds is judged: windows in which something is wrong must be found out.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::cell::Cell;
use std::time::Duration;

use foldcast_sim::{Failure, Scenario, SimWindows, run};
use kernels::{ForeignBytes, SharedBytes};
use types::transport::{Announcement, Channel, Clock, Counter, Fate, Geometry, Peers, Windows};
use types::{Cause, DecodeError, Ending, Fingerprint};

/// What is wrong with windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// The header may be seen before the data that it covers.
    HeaderFirst,
    /// A counter may be seen before the data that it covers.
    CounterFirst,
    /// Nobody waits until all have taken note of a mismatch.
    NoVerdict,
    /// Two contributions are folded in each other's place.
    FoldOrder,
    /// A counter is taken for higher than it is.
    EarlyWait,
    /// Each rank has one gather buffer, and not two in turn.
    OneGather,
    /// Nobody ever learns of a death.
    LostDeath,
    /// One who lives is taken for dead.
    FalseDeath,
    /// The last cause stays, and not the first.
    LastCause,
    /// Headers that differ are taken for equal.
    NoCheck,
    /// The order of named calls is read from the wrong end of each two.
    WrongOrder,
    /// What a rank says when it ends the epoch never comes.
    LostAbort,
    /// Time stands still on one rank.
    NoTime,
}

/// The simulation's windows with a defect.
struct Defective {
    inner: SimWindows,
    defect: Defect,
    /// Hash of the own header.
    hash: Cell<u64>,
}

impl Defective {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// In whose place a contribution is folded.
    fn swapped(&self, owner: usize) -> usize {
        let own = self.inner.rank();
        let mut others = (0..self.inner.geometry().ranks).filter(|other| *other != own);
        match (others.next(), others.next_back()) {
            (Some(first), Some(last)) if self.has(Defect::FoldOrder) && owner == first => last,
            (Some(first), Some(last)) if self.has(Defect::FoldOrder) && owner == last => first,
            _ => owner,
        }
    }
}

impl Clock for Defective {
    fn now(&self) -> Duration {
        if self.has(Defect::NoTime) && self.inner.rank() == 0 { Duration::ZERO } else { self.inner.now() }
    }
}

impl Peers for Defective {
    fn fate(&self, index: usize) -> Fate {
        match self.defect {
            Defect::LostDeath => Fate::Alive,
            Defect::FalseDeath if index == 1 => Fate::Gone(Ending::Unknown),
            _ => self.inner.fate(index),
        }
    }
}

impl Windows for Defective {
    type View<'a> = SharedBytes<'a>;
    type Foreign<'a> = ForeignBytes<'a>;

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn publish_header(&self, channel: Channel, sequence: u64, hash: u64) {
        self.hash.set(hash);
        match self.defect {
            Defect::HeaderFirst => self.inner.publish_header_early(channel, sequence, hash),
            _ => self.inner.publish_header(channel, sequence, hash),
        }
    }

    fn header(&self, channel: Channel, owner: usize, sequence: u64) -> Option<u64> {
        let found = self.inner.header(channel, owner, sequence);
        if self.has(Defect::NoCheck) { found.map(|_| self.hash.get()) } else { found }
    }

    fn slot(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        self.inner.slot(channel, self.swapped(owner), turn, len)
    }

    fn place_of(&self, bytes: &[u8]) -> Option<u64> {
        self.inner.place_of(bytes)
    }

    fn reads_all(&self) -> bool {
        self.inner.reads_all()
    }

    fn ask_to_read(&self, owner: usize) {
        self.inner.ask_to_read(owner);
    }

    fn foreign(&self, owner: usize, place: u64, len: usize) -> Option<ForeignBytes<'_>> {
        self.inner.foreign(owner, place, len)
    }

    fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        let writer = if reader == self.inner.rank() { self.swapped(writer) } else { writer };
        self.inner.pair(channel, writer, reader, turn, len)
    }

    fn gather(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        // The parity of the turn says which of the two it is.
        self.inner.gather(channel, owner, if self.has(Defect::OneGather) { 2 * turn } else { turn }, len)
    }

    fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> u64 {
        let found = self.inner.counter(channel, owner, counter);
        match (self.defect, counter) {
            (Defect::NoVerdict, Counter::Verdict) => u64::MAX,
            (Defect::EarlyWait, Counter::Staged | Counter::Folded) => found + 1,
            _ => found,
        }
    }

    fn publish(&self, channel: Channel, counter: Counter, value: u64) {
        match (self.defect, counter) {
            (Defect::CounterFirst, Counter::Staged | Counter::Folded) => {
                self.inner.publish_early(channel, counter, value);
            }
            _ => self.inner.publish(channel, counter, value),
        }
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn describe(&self, channel: Channel, fingerprint: &Fingerprint) {
        self.inner.describe(channel, fingerprint);
    }

    fn description(&self, channel: Channel, owner: usize) -> Result<Fingerprint, DecodeError> {
        self.inner.description(channel, owner)
    }

    fn announced(&self, owner: usize) -> u64 {
        self.inner.announced(owner)
    }

    fn announce(&self, announcement: Announcement) -> bool {
        self.inner.announce(announcement)
    }

    fn announcement(&self, owner: usize, index: u64) -> Option<Announcement> {
        self.inner.announcement(owner, index)
    }

    fn release_announcements(&self, owner: usize, index: u64) {
        self.inner.release_announcements(owner, index);
    }

    fn ordered(&self) -> u64 {
        self.inner.ordered()
    }

    fn append_order(&self, identity: u128) -> bool {
        self.inner.append_order(identity)
    }

    fn order(&self, index: u64) -> Option<u128> {
        let other = index ^ 1;
        let swaps = self.has(Defect::WrongOrder) && self.inner.rank() == 1 && other < self.inner.ordered();
        self.inner.order(if swaps { other } else { index })
    }

    fn abort(&self, cause: &Cause) {
        match self.defect {
            Defect::LastCause => self.inner.abort_again(cause),
            Defect::LostAbort if self.inner.rank() == 0 => {}
            _ => self.inner.abort(cause),
        }
    }

    fn aborted(&self) -> Option<Cause> {
        self.inner.aborted()
    }
}

/// The first of some seeds whose world finds the defect out, and by what.
fn found(defect: Defect) -> Option<(u64, String)> {
    let wrap = |inner| Defective { inner, defect, hash: Cell::new(0) };
    (1..=400).find_map(|seed| {
        let Failure { wrong, .. } = run(&Scenario::new(seed), &wrap, false).err()?;
        Some((seed, wrong.join("; ")))
    })
}

/// Seeds that find a defect, with words that say by what.
fn must_find(defect: Defect, by: &[&str]) {
    let (seed, wrong) = found(defect).unwrap_or_else(|| panic!("{defect:?} is not found"));
    assert!(by.iter().any(|by| wrong.contains(by)), "{defect:?} is found by seed {seed} for another reason: {wrong}");
}

#[test]
fn a_header_that_is_seen_before_its_data() {
    must_find(Defect::HeaderFirst, &["has not been told"]);
}

#[test]
fn a_counter_that_is_seen_before_its_data() {
    must_find(Defect::CounterFirst, &["has not been told", "while index", "unordered"]);
}

#[test]
fn a_verdict_that_nobody_waits_for() {
    must_find(Defect::NoVerdict, &["while index", "told as", "values of a mismatch"]);
}

#[test]
fn a_fold_in_a_wrong_order() {
    must_find(Defect::FoldOrder, &["a wrong result"]);
}

#[test]
fn a_wait_that_ends_early() {
    must_find(Defect::EarlyWait, &["has not been told", "before anybody wrote", "for turn", "while index"]);
}

#[test]
fn a_buffer_that_is_used_again_too_soon() {
    must_find(Defect::OneGather, &["while index", "for turn"]);
}

#[test]
fn a_death_that_nobody_learns() {
    must_find(Defect::LostDeath, &["should have ended"]);
}

#[test]
fn a_death_that_is_none() {
    must_find(Defect::FalseDeath, &["that rank ended so"]);
}

#[test]
fn a_cause_that_replaces_the_first() {
    must_find(Defect::LastCause, &["replaces the first cause"]);
}

#[test]
fn a_check_that_is_left_out() {
    must_find(Defect::NoCheck, &["the ranks disagree", "a panic", "before anybody wrote", "bytes read", "for turn"]);
}

#[test]
fn an_order_that_is_read_wrongly() {
    must_find(Defect::WrongOrder, &["ranks agree", "that did not happen", "told as", "not all ranks"]);
}

#[test]
fn an_end_that_is_not_told() {
    must_find(Defect::LostAbort, &["goes on", "not over", "should have ended", "does not know"]);
}

#[test]
fn a_clock_that_stands_still() {
    must_find(Defect::NoTime, &["should have ended", "does not end", "a deadline of"]);
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for seed in 1..=100 {
        if let Err(failure) = run(&Scenario::new(seed), &|windows| windows, false) {
            panic!("{failure}");
        }
    }
}
