//! One operation of a rank as others may read it at any time: a cache line that only its owner writes.
//!
//! The place of an operation is used again for a later one. So the line has a turn, odd while the place changes hands;
//! whoever reads it even and unchanged around the other words has read one operation and not parts of two. Within a turn
//! each word changes by itself, and the state comes last: who sees `done` sees the end.

use crate::primitive::{AtomicU64, Ordering, fence};

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Handed over; it has not begun.
    Submitted,
    /// Entered: its header is published.
    Begun,
    /// It waits for other ranks.
    Waiting,
    /// It has ended well.
    Done,
    /// It has ended with an error.
    Failed,
}

impl Stage {
    const fn code(self) -> u64 {
        match self {
            Stage::Submitted => 1,
            Stage::Begun => 2,
            Stage::Waiting => 3,
            Stage::Done => 4,
            Stage::Failed => 5,
        }
    }

    fn from_code(code: u64) -> Option<Stage> {
        let all = [Stage::Submitted, Stage::Begun, Stage::Waiting, Stage::Done, Stage::Failed];
        all.into_iter().find(|stage| stage.code() == code)
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Stage::Done | Stage::Failed)
    }
}

/// The state of an operation, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// How far it has come.
    pub stage: Stage,
    /// The kind of the error, for one that failed.
    pub error: u8,
    /// For how many ranks it waits, or waited last.
    pub awaited: u16,
    /// The first of them, a rank of the world.
    pub first: u32,
}

impl State {
    /// Of an operation that waits for nobody.
    #[must_use]
    pub const fn at(stage: Stage) -> State {
        State { stage, error: 0, awaited: 0, first: 0 }
    }

    fn word(self) -> u64 {
        self.stage.code() | u64::from(self.error) << 8 | u64::from(self.awaited) << 16 | u64::from(self.first) << 32
    }

    fn from_word(word: u64) -> Option<State> {
        let [stage, error, awaited @ .., _, _, _, _] = word.to_le_bytes();
        let first = u32::try_from(word >> 32).unwrap_or_default();
        let stage = Stage::from_code(u64::from(stage))?;
        Some(State { stage, error, awaited: u16::from_le_bytes(awaited), first })
    }
}

/// The words of an operation that do not change while it goes on, and the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// What it is: [`types::Summary`].
    pub summary: u64,
    /// What it is matched by: the number of an unnamed call, once it is known, half of the identity of a named one.
    pub key: u64,
    /// Which group it belongs to.
    pub group: u64,
    /// When it was handed over; 0 if it began at once. Times are ticks.
    pub submitted: u64,
    /// When it was entered; 0 if it was not yet.
    pub begun: u64,
    /// When it ended; 0 if it has not, or so soon that nobody looked.
    pub ended: u64,
}

/// An operation as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The number under which it was noted, counted from 0 in its list.
    pub number: u64,
    /// Its state.
    pub state: State,
    /// The rest.
    pub words: Words,
}

/// The place of one operation.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Record {
    /// Twice the number and 2; odd while the place changes hands; 0 if it was never used.
    turn: AtomicU64,
    state: AtomicU64,
    summary: AtomicU64,
    key: AtomicU64,
    group: AtomicU64,
    submitted: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Record {
    /// Takes the place for an operation that begins now, in a list where the place and the number say the rest.
    #[inline]
    pub fn begin(&self, number: u64, summary: u64, begun: u64) {
        self.turn.store((number << 1) + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.summary.store(summary, Ordering::Relaxed);
        self.begun.store(begun, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.state.store(Stage::Begun.code(), Ordering::Relaxed);
        self.turn.store((number << 1) + 2, Ordering::Release);
    }

    /// Takes the place for any operation. `more` writes what belongs to it elsewhere.
    pub fn take(&self, number: u64, state: State, words: &Words, more: impl FnOnce()) {
        self.turn.store((number << 1) + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.summary.store(words.summary, Ordering::Relaxed);
        self.key.store(words.key, Ordering::Relaxed);
        self.group.store(words.group, Ordering::Relaxed);
        self.submitted.store(words.submitted, Ordering::Relaxed);
        self.begun.store(words.begun, Ordering::Relaxed);
        self.ended.store(words.ended, Ordering::Relaxed);
        self.state.store(state.word(), Ordering::Relaxed);
        more();
        self.turn.store((number << 1) + 2, Ordering::Release);
    }

    /// Frees the place of what it held.
    pub fn clear(&self) {
        self.turn.store(0, Ordering::Release);
    }

    /// The operation has ended well, soon enough for nobody to have looked.
    #[inline]
    pub fn done(&self) {
        self.state.store(Stage::Done.code(), Ordering::Release);
    }

    /// The operation has begun, now that it is known what it is matched by.
    pub fn set_begun(&self, key: Option<u64>, begun: u64) {
        if let Some(key) = key {
            self.key.store(key, Ordering::Relaxed);
        }
        self.begun.store(begun, Ordering::Relaxed);
        self.set_state(State::at(Stage::Begun));
    }

    /// What the operation is matched by.
    pub fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Release);
    }

    /// The operation has ended; whom it waited for stays.
    pub fn set_ended(&self, stage: Stage, error: u8, ended: u64) {
        let before = self.own_state();
        self.ended.store(ended, Ordering::Relaxed);
        self.set_state(State { stage, error, ..before });
    }

    /// Changes the state.
    pub fn set_state(&self, state: State) {
        self.state.store(state.word(), Ordering::Release);
    }

    /// The state, for the owner.
    #[must_use]
    pub fn own_state(&self) -> State {
        State::from_word(self.state.load(Ordering::Relaxed)).unwrap_or(State::at(Stage::Begun))
    }

    /// Whether it was never taken, or freed again.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.turn.load(Ordering::Relaxed) == 0
    }

    /// The number of the operation that has the place, for the owner.
    #[must_use]
    pub fn own_number(&self) -> Option<u64> {
        number(self.turn.load(Ordering::Relaxed))
    }

    /// The operation that has the place; `None` if there is none, or it changes hands just now. `more` reads what belongs to
    /// it elsewhere.
    pub fn read<T>(&self, more: impl FnOnce() -> T) -> Option<(Read, T)> {
        let turn = self.turn.load(Ordering::Acquire);
        let number = number(turn)?;
        let state = State::from_word(self.state.load(Ordering::Acquire));
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let words = Words {
            summary: word(&self.summary),
            key: word(&self.key),
            group: word(&self.group),
            submitted: word(&self.submitted),
            begun: word(&self.begun),
            ended: word(&self.ended),
        };
        let more = more();
        fence(Ordering::Acquire);
        (self.turn.load(Ordering::Relaxed) == turn).then_some((Read { number, state: state?, words }, more))
    }
}

fn number(turn: u64) -> Option<u64> {
    (turn != 0 && turn.is_multiple_of(2)).then(|| (turn >> 1) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let record = Record::default();
        assert_eq!(record.read(|| ()), None);
        let words = Words { summary: 1, key: 2, group: 3, submitted: 4, begun: 0, ended: 0 };
        record.take(0, State::at(Stage::Submitted), &words, || ());
        let (read, more) = record.read(|| 5).unwrap();
        assert_eq!((read.number, read.state, read.words, more), (0, State::at(Stage::Submitted), words, 5));
        record.set_begun(Some(9), 6);
        let waiting = State { stage: Stage::Waiting, error: 0, awaited: 2, first: u32::MAX };
        record.set_state(waiting);
        assert_eq!(record.read(|| ()).unwrap().0.state, waiting);
        record.set_ended(Stage::Failed, 7, 8);
        let (read, ()) = record.read(|| ()).unwrap();
        assert_eq!(read.state, State { stage: Stage::Failed, error: 7, ..waiting });
        assert_eq!(read.words, Words { key: 9, begun: 6, ended: 8, ..words });
        record.begin(300, 10, 11);
        let (read, ()) = record.read(|| ()).unwrap();
        assert_eq!((read.number, read.state, read.words.ended), (300, State::at(Stage::Begun), 0));
        record.done();
        assert_eq!(record.read(|| ()).unwrap().0.state, State::at(Stage::Done));
        record.clear();
        assert_eq!(record.read(|| ()), None);
    }

    #[test]
    fn a_place_that_changes_hands_is_not_read() {
        let record = Record::default();
        record.begin(1, 2, 3);
        let read = record.read(|| record.begin(257, 4, 5));
        assert_eq!(read, None);
        record.take(2, State::at(Stage::Done), &Words::default(), || assert_eq!(record.read(|| ()), None));
        assert!(record.read(|| ()).is_some());
    }

    #[test]
    fn a_record_has_a_cache_line() {
        assert_eq!((size_of::<Record>(), align_of::<Record>()), (64, 64));
    }
}
