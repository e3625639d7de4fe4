//! What a rank may have seen of what the others wrote, as release and acquire order allow.
//!
//! Every store that others read is a *publication* of its writer, and has a number. A reader sees a prefix of a writer's
//! publications, which grows when the world lets it: so a rank may see a header long after it was written, and two ranks
//! may see different things. Who loads a released value *knows* from then on what its writer had written before, and what
//! that one knew. Data may be read only if its write is known, and written only if the reads of what was there are known:
//! whoever does otherwise has a race on real memory, whatever the schedule at hand.

use std::cell::RefCell;
use std::rc::Rc;

use crate::random::Random;

/// One publication.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) writer: usize,
    number: u64,
    /// What whoever acquires it knows then, by writer; of a relaxed store nothing.
    knows: Rc<[u64]>,
}

/// Who has published, seen and learnt what, in one group.
#[derive(Debug)]
pub(crate) struct Order(RefCell<State>);

#[derive(Debug)]
struct State {
    /// Publications, by writer.
    published: Vec<u64>,
    /// What a reader knows of each writer.
    known: Vec<Vec<u64>>,
    /// What a reader sees of each writer at least.
    seen: Vec<Vec<u64>>,
    /// What everybody sees, and will see at the next tick.
    floor: Vec<u64>,
    next_floor: Vec<u64>,
    /// What is to be seen at most of a writer that was stopped in the middle of something.
    cap: Vec<Option<u64>>,
    /// Whether what is published is seen at once.
    immediate: bool,
}

impl Order {
    pub(crate) fn new(ranks: usize, immediate: bool) -> Order {
        let zeros = || vec![0; ranks];
        Order(RefCell::new(State {
            published: zeros(),
            known: vec![zeros(); ranks],
            seen: vec![zeros(); ranks],
            floor: zeros(),
            next_floor: zeros(),
            cap: vec![None; ranks],
            immediate,
        }))
    }

    /// Counts a publication. A `relaxed` one carries no knowledge: real windows have none such.
    pub(crate) fn publish(&self, writer: usize, relaxed: bool) -> Stamp {
        let mut state = self.0.borrow_mut();
        state.published[writer] += 1;
        let number = state.published[writer];
        state.known[writer][writer] = number;
        let knows = if relaxed { vec![0; state.known.len()].into() } else { state.known[writer].as_slice().into() };
        Stamp { writer, number, knows }
    }

    /// Whether a reader sees this publication.
    pub(crate) fn sees(&self, reader: usize, stamp: &Stamp) -> bool {
        let state = self.0.borrow();
        reader == stamp.writer || state.seen(reader, stamp.writer) >= stamp.number
    }

    /// Whether everybody does.
    pub(crate) fn all_see(&self, stamp: &Stamp) -> bool {
        let state = self.0.borrow();
        (0..state.seen.len()).all(|reader| reader == stamp.writer || state.seen(reader, stamp.writer) >= stamp.number)
    }

    /// The reader has loaded what was published: it knows what came before.
    pub(crate) fn acquire(&self, reader: usize, stamp: &Stamp) {
        let mut state = self.0.borrow_mut();
        for (own, theirs) in state.known[reader].iter_mut().zip(stamp.knows.iter()) {
            *own = (*own).max(*theirs);
        }
        let seen = &mut state.seen[reader][stamp.writer];
        *seen = (*seen).max(stamp.number);
    }

    /// When a rank touches data now: covered by its next publication.
    pub(crate) fn epoch(&self, rank: usize) -> u64 {
        self.0.borrow().published[rank] + 1
    }

    /// Whether a rank knows what another one did at that time.
    pub(crate) fn knows(&self, rank: usize, other: usize, epoch: u64) -> bool {
        rank == other || self.0.borrow().known[rank][other] >= epoch
    }

    /// The rank learns that the other one has ended: all that it wrote is visible.
    pub(crate) fn learn_all(&self, rank: usize, other: usize) {
        let mut state = self.0.borrow_mut();
        let theirs = state.known[other].clone();
        for (own, theirs) in state.known[rank].iter_mut().zip(theirs) {
            *own = (*own).max(theirs);
        }
        let all = state.published[other] + 1;
        state.known[rank][other] = all;
        state.seen[rank][other] = all;
    }

    /// Lets a reader see more of the others, perhaps.
    pub(crate) fn advance(&self, reader: usize, random: &mut Random) {
        let mut state = self.0.borrow_mut();
        for writer in 0..state.seen.len() {
            let (seen, end) = (state.seen(reader, writer), state.end(writer));
            if seen < end && random.chance(1, 2) {
                let more = usize::try_from(end - seen).expect("few publications");
                state.seen[reader][writer] = seen + 1 + u64::try_from(random.below(more)).expect("few publications");
            }
        }
    }

    /// Lets everybody see what was there at the last tick.
    pub(crate) fn tick(&self) {
        let mut state = self.0.borrow_mut();
        state.floor = state.next_floor.clone();
        state.next_floor = (0..state.published.len()).map(|writer| state.end(writer)).collect();
    }

    /// From now on nothing more is seen of this writer, or again all.
    pub(crate) fn hold_back(&self, writer: usize, held: bool) {
        let mut state = self.0.borrow_mut();
        let published = state.published[writer];
        let cap = &mut state.cap[writer];
        if held {
            cap.get_or_insert(published);
        } else {
            *cap = None;
        }
    }
}

impl State {
    fn end(&self, writer: usize) -> u64 {
        self.cap[writer].unwrap_or(self.published[writer])
    }

    fn seen(&self, reader: usize, writer: usize) -> u64 {
        let forced = self.floor[writer].max(self.seen[reader][writer]).max(self.known[reader][writer]);
        if self.immediate { self.end(writer).max(forced) } else { forced }
    }
}

/// A word, or two that belong together, that ranks store and load.
#[derive(Debug, Default)]
pub(crate) struct Location(RefCell<Vec<(Stamp, [u64; 2])>>);

/// A location keeps this many stores before it looks for those that nobody can see any more.
const KEPT: usize = 32;

impl Location {
    /// Stores behind all others.
    pub(crate) fn store(&self, order: &Order, writer: usize, value: [u64; 2], relaxed: bool) {
        let mut stores = self.0.borrow_mut();
        stores.push((order.publish(writer, relaxed), value));
        if stores.len() > KEPT
            && let Some(at) = stores.iter().rposition(|(stamp, _)| order.all_see(stamp))
        {
            stores.drain(..at);
        }
    }

    /// The last value that the reader sees; zeros if none.
    pub(crate) fn load(&self, order: &Order, reader: usize) -> [u64; 2] {
        let stores = self.0.borrow();
        let Some((stamp, value)) = stores.iter().rev().find(|(stamp, _)| order.sees(reader, stamp)) else {
            return [0; 2];
        };
        order.acquire(reader, stamp);
        *value
    }

    /// Stores if nobody has yet, as a compare-and-swap from zero does; else loads what is there. Returns whether it stored.
    pub(crate) fn store_first(&self, order: &Order, writer: usize, value: [u64; 2]) -> bool {
        let found = self.0.borrow().last().cloned();
        match found {
            Some((stamp, _)) => order.acquire(writer, &stamp),
            None => self.store(order, writer, value, false),
        }
        self.0.borrow().len() == 1 && self.0.borrow()[0].0.writer == writer
    }

    /// What is there, whoever sees it.
    pub(crate) fn latest(&self) -> Option<[u64; 2]> {
        self.0.borrow().last().map(|(_, value)| *value)
    }
}

/// Who wrote and read a piece of data since when.
#[derive(Debug, Default)]
pub(crate) struct Track {
    written: Option<Written>,
    reads: Vec<(usize, u64)>,
}

#[derive(Debug)]
struct Written {
    by: usize,
    epoch: u64,
    turn: u64,
    len: usize,
}

impl Track {
    /// Notes a write; says what is wrong with it.
    pub(crate) fn write(&mut self, order: &Order, rank: usize, turn: u64, len: usize) -> Result<(), String> {
        let epoch = order.epoch(rank);
        let reader = self.reads.iter().find(|(reader, epoch)| !order.knows(rank, *reader, *epoch)).map(|(of, _)| *of);
        let writer = self.written.as_ref().filter(|old| !order.knows(rank, old.by, old.epoch)).map(|old| old.by);
        self.reads.clear();
        self.written = Some(Written { by: rank, epoch, turn, len });
        match (reader, writer) {
            (Some(other), _) => Err(format!("written by index {rank} while index {other} may still read it")),
            (None, Some(other)) => Err(format!("written by index {rank}, unordered with the write by index {other}")),
            (None, None) => Ok(()),
        }
    }

    /// Notes a read; says what is wrong with it.
    pub(crate) fn read(&mut self, order: &Order, rank: usize, turn: u64, len: usize) -> Result<(), String> {
        let epoch = order.epoch(rank);
        match self.reads.iter_mut().find(|(reader, _)| *reader == rank) {
            Some((_, last)) => *last = epoch,
            None => self.reads.push((rank, epoch)),
        }
        match &self.written {
            None => Err(format!("read by index {rank} before anybody wrote it")),
            Some(old) if !order.knows(rank, old.by, old.epoch) => {
                Err(format!("read by index {rank}, which has not been told that index {} has written it", old.by))
            }
            Some(old) if old.turn != turn => {
                Err(format!("read by index {rank} for turn {turn}, while it holds what was written for {}", old.turn))
            }
            Some(old) if old.len < len => {
                Err(format!("{len} bytes read by index {rank} where index {} wrote {}", old.by, old.len))
            }
            Some(_) => Ok(()),
        }
    }
}
