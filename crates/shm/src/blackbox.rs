//! The black box: each rank's last operations, in the world's memory, where they can be read from outside while the rank
//! computes, hangs, is stopped, or is dead.
//!
//! A box has *tracks* of 256 records ([`crate::record`]). The unnamed blocking calls of a group have a track of their own,
//! which only the thread writes that has the turn to make such calls: a record costs six stores and a reading of the processor's
//! counter when the call is entered, and one store when it has ended. All other calls (named, submitted, and those of groups
//! that came when no track was left) share a track, where a record is taken under a lock; while an operation goes on its
//! record is never taken for another one. So what hangs stays in the box, whatever else the process does.
//!
//! `place` says where things lie, `view` reads them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use types::{GroupName, Rank, Summary, Ticket};

use crate::groups::GroupKey;
use crate::layout::index;
use crate::primitive::{AtomicU64, Ordering};
use crate::record::{Record, Stage, State, Words};
use crate::segment::{Segment, Shared};
use crate::ticks::{Anchor, Scale, Ticker};
use crate::world::World;

pub(crate) mod place;
pub mod view;

use place::{BOX_MAGIC, BoxHeader, Place, RECORDS, TrackHeader};

// SAFETY: atomic integers.
unsafe impl Shared for Record {}

/// Marks the key of a named operation, so that it is no call's number.
const NAMED: u64 = 1 << 63;

/// How an operation ended, and whether it went on for long enough that the end has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Done,
    /// With an error of this [kind](types::failure_code).
    Failed(u8),
}

/// What a process needs to write its own box.
pub(crate) struct Notes {
    place: Place,
    ticker: Ticker,
    anchor: Anchor,
    shared: Mutex<SharedTrack>,
    /// Tracks that no group has, the one that was given back first in front.
    free: Mutex<VecDeque<usize>>,
    journals: Mutex<HashMap<u128, Weak<Journal>>>,
}

/// Which records of the shared track are taken.
struct SharedTrack {
    next: u64,
    busy: [bool; RECORDS],
}

impl SharedTrack {
    /// The next place of an operation that has ended; `None` if none has.
    fn take(&mut self) -> Option<(usize, u64)> {
        for _ in 0..RECORDS {
            let number = self.next;
            let at = slot(number);
            self.next += 1;
            if !self.busy[at] {
                self.busy[at] = true;
                return Some((at, number));
            }
        }
        None
    }
}

/// Where the operation of this number lies in its track.
#[inline]
fn slot(number: u64) -> usize {
    index(number) % RECORDS
}

impl core::fmt::Debug for Notes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Notes").field("place", &self.place).field("ticker", &self.ticker).finish_non_exhaustive()
    }
}

impl Notes {
    /// Opens the box of a rank that enters its world.
    pub(crate) fn open(segment: &Segment, place: Place) -> Notes {
        let ticker = Ticker::of_host();
        let anchor = Anchor::now(ticker);
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(0);
        let fields = [u64::from(std::process::id()), ticker.code(), anchor.ticks, anchor.ns, wall_ns];
        let header = segment.at::<BoxHeader>(place.start);
        for (word, field) in header[1..].iter().zip(fields) {
            word.store(field, Ordering::Relaxed);
        }
        header[0].store(BOX_MAGIC, Ordering::Release);
        Notes {
            place,
            ticker,
            anchor,
            shared: Mutex::new(SharedTrack { next: 0, busy: [false; RECORDS] }),
            free: Mutex::new((0..place.tracks).collect()),
            journals: Mutex::default(),
        }
    }

    /// Turns ticks of this host into times.
    fn scale(&self) -> Scale {
        Scale::between(self.anchor, Anchor::now(self.ticker))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// The journal of a group that this rank is a member of: the same one while anybody has it.
    #[must_use]
    pub fn journal(self: &Arc<World>, key: &GroupKey) -> Arc<Journal> {
        let identity = key.identity();
        let mut journals = lock(&self.notes.journals);
        if let Some(journal) = journals.get(&identity).and_then(Weak::upgrade) {
            return journal;
        }
        journals.retain(|_, journal| journal.strong_count() > 0);
        let journal = Arc::new(Journal::open(self, key));
        journals.insert(identity, Arc::downgrade(&journal));
        journal
    }
}

/// Where a process notes its operations on one group. Nothing is written in a forked child.
pub struct Journal {
    world: Arc<World>,
    id: u64,
    name: GroupName,
    members: Arc<[Rank]>,
    /// The group's own track: its number, and where its records begin.
    track: Option<(usize, usize)>,
    /// Without one: the blocking unnamed call under way.
    current: Mutex<Option<Ticket>>,
}

impl core::fmt::Debug for Journal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Journal").field("name", &self.name).field("track", &self.track).finish_non_exhaustive()
    }
}

impl Journal {
    fn open(world: &Arc<World>, key: &GroupKey) -> Journal {
        // The low half would do as well: it stands for the group among those of one world.
        let [id, _] = crate::windows::halves(key.identity());
        let is_here = world.home().is_here();
        let track = if is_here { lock(&world.notes.free).pop_front() } else { None };
        let track = track.map(|track| (track, world.notes.place.records(track)));
        let (name, members) = (key.name().clone(), key.ranks().into());
        let journal = Journal { world: Arc::clone(world), id, name, members, track, current: Mutex::default() };
        if let Some((track, records)) = journal.track {
            // What the group noted that had the track before must not be taken for this one's.
            (0..RECORDS).for_each(|at| journal.record(records, at).clear());
            let header = world.segment().at::<TrackHeader>(world.notes.place.track(track));
            place::write_track(header, id, journal.members.len(), journal.name.as_str());
        }
        journal
    }

    #[inline]
    fn record(&self, records: usize, at: usize) -> &Record {
        let offset = records + (at % RECORDS) * size_of::<Record>();
        // SAFETY: a track's records lie inside its rank's box, which lies inside the segment (`Place`), and begin on a page.
        unsafe { self.world.segment().at_unchecked(offset) }
    }

    fn ticketed(&self, Ticket(at): Ticket) -> &Record {
        self.record(self.world.notes.place.shared(), usize::try_from(at).unwrap_or_default())
    }

    #[inline]
    fn now(&self) -> u64 {
        self.world.notes.ticker.now()
    }

    // ---- blocking unnamed calls: by their number ----

    /// The blocking unnamed call of this number has been entered.
    #[inline]
    pub fn begin(&self, number: u64, summary: Summary) {
        match self.track {
            Some((_, records)) => self.record(records, slot(number)).begin(number, summary.word(), self.now()),
            None => self.begin_beside(number, summary),
        }
    }

    #[cold]
    fn begin_beside(&self, number: u64, summary: Summary) {
        let words = Words { summary: summary.word(), key: number, begun: self.now(), ..Words::default() };
        *lock(&self.current) = self.take(State::at(Stage::Begun), words, "");
    }

    /// It has ended well, and so soon that its end needs no time.
    #[inline]
    pub fn done(&self, number: u64) {
        match self.track {
            Some((_, records)) => self.record(records, slot(number)).done(),
            None => self.ended(number, Outcome::Done),
        }
    }

    /// It has ended, if it was entered at all.
    #[cold]
    pub fn ended(&self, number: u64, outcome: Outcome) {
        match self.track {
            Some((_, records)) => {
                let record = self.record(records, slot(number));
                if record.own_number() == Some(number) {
                    let (stage, error) = outcome.parts();
                    record.set_ended(stage, error, self.now());
                }
            }
            None => {
                let current = lock(&self.current).take();
                self.finish(current, outcome);
            }
        }
    }

    /// The unnamed call that was entered last has ended: one that was submitted when there was no room for a ticket.
    #[cold]
    pub fn latest_ended(&self, outcome: Outcome) {
        if let Some(record) = self.latest().filter(|record| !record.own_state().stage.is_over()) {
            let (stage, error) = outcome.parts();
            record.set_ended(stage, error, self.now());
        }
    }

    /// The record of the last one entered.
    fn latest(&self) -> Option<&Record> {
        let Some((_, records)) = self.track else {
            return lock(&self.current).map(|ticket| self.ticketed(ticket));
        };
        let all = (0..RECORDS).map(|at| self.record(records, at));
        all.max_by_key(|record| record.own_number()).filter(|record| record.own_number().is_some())
    }

    // ---- all others: by their ticket ----

    /// Notes an operation in the shared track. `None` if so many are under way that there is no room.
    #[must_use]
    pub fn note(&self, stage: Stage, summary: Summary, name: &str) -> Option<Ticket> {
        let words = Words { summary: summary.word(), submitted: self.now(), ..Words::default() };
        self.take(State::at(stage), words, name)
    }

    fn take(&self, state: State, words: Words, name: &str) -> Option<Ticket> {
        if !self.world.home().is_here() {
            return None;
        }
        let Notes { place, shared, .. } = &self.world.notes;
        let (at, number) = lock(shared).take()?;
        let text = self.world.segment().at(place.text(at));
        let record = self.record(place.shared(), at);
        record.take(number, state, &Words { group: self.id, ..words }, || {
            place::write_text(text, name, self.name.as_str());
        });
        u32::try_from(at).ok().map(Ticket)
    }

    /// The named operation has this identity in its group.
    pub fn identify(&self, ticket: Option<Ticket>, identity: u128) {
        if let Some(ticket) = ticket {
            let [low, _] = crate::windows::halves(identity);
            self.ticketed(ticket).set_key(low | NAMED);
        }
    }

    /// The operation has been entered; an unnamed one has this number.
    pub fn begun(&self, ticket: Ticket, number: Option<u64>) {
        self.ticketed(ticket).set_begun(number, self.now());
    }

    /// The operation, or without a ticket the blocking unnamed call under way, waits for these members.
    pub fn waiting(&self, ticket: Option<Ticket>, missing: &[usize]) {
        let record = match ticket {
            Some(ticket) => Some(self.ticketed(ticket)),
            None => self.latest(),
        };
        let first = missing.first().and_then(|index| self.members.get(*index));
        let (Some(record), Some(Rank(first))) = (record, first) else { return };
        if !record.own_state().stage.is_over() {
            let awaited = u16::try_from(missing.len()).unwrap_or(u16::MAX);
            record.set_state(State { stage: Stage::Waiting, error: 0, awaited, first: *first });
        }
    }

    /// The operation has ended. Its record may be taken for another one from now on.
    pub fn finish(&self, ticket: Option<Ticket>, outcome: Outcome) {
        let Some(ticket @ Ticket(at)) = ticket.filter(|_| self.world.home().is_here()) else { return };
        let (stage, error) = outcome.parts();
        self.ticketed(ticket).set_ended(stage, error, self.now());
        lock(&self.world.notes.shared).busy[usize::try_from(at).unwrap_or_default() % RECORDS] = false;
    }

    // ---- of all members ----

    /// When a member came to a call: see [`arrival`](types::transport::Windows::arrival).
    pub(crate) fn arrival(&self, member: usize, number: u64, ticket: Option<Ticket>, named: bool) -> Option<Duration> {
        let own = ticket.and_then(|ticket| self.ticketed(ticket).read(|| ()));
        let key = match (named, own) {
            (true, Some((read, ()))) if read.words.key & NAMED != 0 => read.words.key,
            (true, _) => return None,
            (false, _) => number,
        };
        let rank = *self.members.get(member)?;
        let notes = &self.world.notes;
        let place = self.world.place_of(rank);
        let near = ticket.and_then(|Ticket(at)| usize::try_from(at).ok()).unwrap_or_default();
        let ticks = view::arrival(self.world.segment(), place, notes.ticker, self.id, key, (named, near))?;
        notes.scale().ns(ticks).map(Duration::from_nanos)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some((track, _)) = self.track
            && self.world.home().is_here()
        {
            // What is noted there stays until another group needs the track.
            lock(&self.world.notes.free).push_back(track);
        }
    }
}

impl Outcome {
    /// Of a call with this result.
    #[must_use]
    pub fn of<T>(result: &types::Result<T>) -> Outcome {
        match result {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Failed(types::failure_code(error)),
        }
    }

    const fn parts(self) -> (Stage, u8) {
        match self {
            Outcome::Done => (Stage::Done, 0),
            Outcome::Failed(error) => (Stage::Failed, error),
        }
    }
}

/// The text in these words: so many bytes from `start` on, as far as they are there.
fn text(words: &[AtomicU64], start: usize, len: usize) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let end = start.saturating_add(len).min(bytes.len());
    String::from_utf8_lossy(bytes.get(start..end).unwrap_or_default()).into_owned()
}

/// The text, cut at a character so that it has at most so many bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
