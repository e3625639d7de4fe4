//! The memory of a simulated group, and its windows.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use kernels::{ForeignBytes, SharedBytes};
use types::transport::{Announcement, Channel, Clock, Counter, Fate, Geometry, Peers, SLOT_INLINE_BYTES, Windows};
use types::{Cause, DecodeError, Fingerprint};

use crate::host::Host;
use crate::order::{Location, Order, Track};
use crate::random::Random;

/// What memory holds that nobody has written.
const POISON: u8 = 0xdb;

/// How a group's memory is made.
#[derive(Clone, Debug)]
pub struct Areas {
    /// Sizes of slots and buffers.
    pub geometry: Geometry,
    /// Into how many lanes large calls are cut.
    pub lanes: usize,
    /// Entries of the lists of named calls.
    pub ring: u64,
    /// The processes of the members, by their index in the group.
    pub members: Vec<usize>,
    /// Whether all see at once what is published, or when the world [lets](Memory::advance) them.
    pub immediate: bool,
}

/// Bytes that one rank writes and others read.
#[derive(Default)]
struct Piece {
    bytes: OnceCell<Box<[AtomicU8]>>,
    track: RefCell<Track>,
}

impl Piece {
    fn view(&self, room: usize, len: usize) -> SharedBytes<'_> {
        SharedBytes::from_atomics(&self.bytes.get_or_init(|| poisoned(room))[..len])
    }
}

fn poisoned(len: usize) -> Box<[AtomicU8]> {
    std::iter::repeat_with(|| AtomicU8::new(POISON)).take(len).collect()
}

/// What a channel has.
struct Area {
    headers: Vec<Location>,
    /// Payloads in the headers' own lines.
    beside: Vec<Piece>,
    slots: Vec<Piece>,
    pairs: Vec<Piece>,
    gathers: Vec<Piece>,
    counters: Vec<[Location; 5]>,
    descriptions: Vec<(RefCell<Track>, RefCell<Vec<u8>>)>,
}

/// What the ranks of a group share.
pub struct Memory {
    areas: Areas,
    host: Rc<Host>,
    order: Order,
    /// Of the unnamed calls, the named ones, the small named ones, and the lanes from 1 on of the first and of the second.
    channels: Vec<Area>,
    announced: Vec<Location>,
    released: Vec<Location>,
    announcements: RefCell<Vec<Vec<u128>>>,
    ordered: Location,
    entries: RefCell<Vec<u128>>,
    abort: Location,
    causes: RefCell<Vec<Option<Cause>>>,
    /// What was done that real memory does not forgive.
    races: RefCell<Vec<String>>,
    /// Whether such a thing panics at once.
    strict: Cell<bool>,
    /// For each rank whether its buffers are where others can read them, and if so, whether it reads those of all.
    readable: RefCell<Vec<Option<bool>>>,
    /// How often a rank has asked to read another one's.
    asked: Cell<usize>,
    /// What is read where it must not be, and written by those that are gone.
    nowhere: Piece,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("areas", &self.areas).finish_non_exhaustive()
    }
}

fn many<T: Default>(count: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(count).collect()
}

impl Memory {
    /// Memory that nobody has used. A race in it panics, unless the world [takes](Self::races) them.
    #[must_use]
    pub fn new(areas: Areas, host: &Rc<Host>) -> Rc<Memory> {
        let Geometry { ranks, pair_depth, .. } = areas.geometry;
        let area = || Area {
            headers: many(2 * ranks),
            beside: many(2 * ranks),
            slots: many(2 * ranks),
            pairs: many(ranks * ranks * pair_depth * 2),
            gathers: many(2 * ranks),
            counters: many(ranks),
            descriptions: many(ranks),
        };
        Rc::new(Memory {
            host: Rc::clone(host),
            order: Order::new(ranks, areas.immediate),
            channels: (0..1 + 2 * areas.lanes).map(|_| area()).collect(),
            announced: many(ranks),
            released: many(ranks),
            announcements: RefCell::new(vec![Vec::new(); ranks]),
            ordered: Location::default(),
            entries: RefCell::default(),
            abort: Location::default(),
            causes: RefCell::new(vec![None; ranks]),
            races: RefCell::default(),
            strict: Cell::new(true),
            readable: RefCell::new(vec![None; ranks]),
            asked: Cell::new(0),
            nowhere: Piece::default(),
            areas,
        })
    }

    /// How it was made.
    #[must_use]
    pub const fn areas(&self) -> &Areas {
        &self.areas
    }

    /// The processes behind it, and their time.
    #[must_use]
    pub const fn host(&self) -> &Rc<Host> {
        &self.host
    }

    /// The memory as a member sees it.
    #[must_use]
    pub fn windows(self: &Rc<Memory>, rank: usize) -> SimWindows {
        SimWindows { memory: Rc::clone(self), rank }
    }

    /// Takes out what was done that real memory does not forgive; from now on that does not panic.
    pub fn races(&self) -> Vec<String> {
        self.strict.set(false);
        self.races.take()
    }

    /// Says of each rank whether its buffers are where others can read them, and if so, whether it reads those of all. (It does
    /// not: the ranks live in one process, where none may read what another one borrows. So a world in which all do is one
    /// of ranks that say what is not so.)
    pub fn set_readable(&self, readable: impl FnOnce(&mut [Option<bool>])) {
        readable(&mut self.readable.borrow_mut());
    }

    /// How often a rank has asked to read another one's buffers.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked.get()
    }

    /// Lets a member see more of what the others have published, perhaps.
    pub fn advance(&self, rank: usize, random: &mut Random) {
        self.order.advance(rank, random);
    }

    /// Lets all see what was published before the last tick.
    pub fn tick(&self) {
        self.order.tick();
    }

    /// Why the epoch has ended, whoever sees it: who said so, and the cause.
    #[must_use]
    pub fn first_cause(&self) -> Option<(usize, Cause)> {
        let author = index(self.abort.latest()?[0]) - 1;
        Some((author, self.causes.borrow()[author].clone()?))
    }

    /// Shows again what a process published after it was stopped.
    pub fn resume(&self, rank: usize) {
        self.order.hold_back(rank, false);
    }

    fn area(&self, channel: Channel) -> &Area {
        match channel {
            Channel::Unnamed => &self.channels[0],
            Channel::Named => &self.channels[1],
            Channel::Small => &self.channels[2],
            Channel::Lane(lane) => &self.channels[2 + usize::from(lane)],
            Channel::NamedLane(lane) => &self.channels[1 + self.areas.lanes + usize::from(lane)],
        }
    }

    fn race(&self, what: impl FnOnce() -> String) {
        let text = what();
        assert!(!self.strict.get(), "{text}");
        self.races.borrow_mut().push(text);
    }
}

/// One rank's view of a simulated group's memory, of its peers and of time.
#[derive(Clone, Debug)]
pub struct SimWindows {
    memory: Rc<Memory>,
    rank: usize,
}

fn at(counter: Counter) -> usize {
    match counter {
        Counter::Staged => 0,
        Counter::Folded => 1,
        Counter::Verdict => 2,
        Counter::Taken => 3,
        Counter::Left => 4,
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a simulated world is small")
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("usize is at most 64 bits wide")
}

impl SimWindows {
    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }

    fn process(&self) -> usize {
        self.memory.areas.members[self.rank]
    }

    fn is_gone(&self) -> bool {
        self.memory.host.is_gone(self.process())
    }

    /// Whether this rank can publish something now.
    fn publishes(&self) -> bool {
        let Memory { host, order, .. } = &*self.memory;
        let lives = host.publishes(self.process());
        if host.is_stopped(self.process()) {
            order.hold_back(self.rank, true);
        }
        lives
    }

    fn load(&self, location: &Location) -> [u64; 2] {
        location.load(&self.memory.order, self.rank)
    }

    fn store(&self, location: &Location, value: [u64; 2], relaxed: bool) {
        if self.publishes() {
            location.store(&self.memory.order, self.rank, value, relaxed);
        }
    }

    /// Two ranks have two cells that change hands, more have two each.
    fn cell(&self, owner: usize, sequence: u64) -> usize {
        let parity = index(sequence & 1);
        if self.memory.areas.geometry.ranks == 2 { (owner + parity) & 1 } else { 2 * owner + parity }
    }

    /// A view of a piece, to write it if it is this rank's to write now, else to read it.
    fn touch<'a>(
        &'a self,
        piece: &'a Piece,
        (writes, turn): (bool, u64),
        (room, len): (usize, usize),
        what: impl FnOnce() -> String,
    ) -> SharedBytes<'a> {
        assert!(len <= room, "{len} bytes do not fit {}", what());
        let memory = &*self.memory;
        if self.is_gone() {
            return memory.nowhere.view(self.largest(), len);
        }
        let mut track = piece.track.borrow_mut();
        let touched = match writes {
            true => track.write(&memory.order, self.rank, turn, len),
            false => track.read(&memory.order, self.rank, turn, len),
        };
        if let Err(why) = touched {
            memory.race(|| format!("{}: {why}", what()));
            if !writes {
                return memory.nowhere.view(self.largest(), len);
            }
        }
        piece.view(room, len)
    }

    fn largest(&self) -> usize {
        let Geometry { slot_bytes, chunk_bytes, .. } = self.memory.areas.geometry;
        slot_bytes.max(chunk_bytes)
    }

    /// Publishes a header as a relaxed store would: others may see it before the data that it is to cover. Nothing does so,
    /// but a world that is to be found out.
    pub fn publish_header_early(&self, channel: Channel, sequence: u64, hash: u64) {
        let header = &self.memory.area(channel).headers[self.cell(self.rank, sequence)];
        self.store(header, [sequence, hash], true);
    }

    /// Sets a counter as a relaxed store would; as above.
    pub fn publish_early(&self, channel: Channel, counter: Counter, value: u64) {
        self.store(&self.memory.area(channel).counters[self.rank][at(counter)], [value, 0], true);
    }

    /// Ends the epoch with this cause, also if another one was first; as above.
    pub fn abort_again(&self, cause: &Cause) {
        self.memory.causes.borrow_mut()[self.rank] = Some(cause.clone());
        self.store(&self.memory.abort, [count(self.rank) + 1, 0], false);
    }
}

impl Clock for SimWindows {
    fn now(&self) -> Duration {
        self.memory.host.clock_of(self.process())
    }
}

impl Peers for SimWindows {
    fn fate(&self, index: usize) -> Fate {
        let Memory { host, order, areas, .. } = &*self.memory;
        let fate = host.fate(self.process(), areas.members[index]);
        if fate != Fate::Alive {
            order.learn_all(self.rank, index);
        }
        fate
    }
}

impl Windows for SimWindows {
    type View<'a> = SharedBytes<'a>;
    type Foreign<'a> = ForeignBytes<'a>;

    fn rank(&self) -> usize {
        self.rank
    }

    fn geometry(&self) -> Geometry {
        self.memory.areas.geometry
    }

    fn lanes(&self) -> usize {
        self.memory.areas.lanes
    }

    fn publish_header(&self, channel: Channel, sequence: u64, hash: u64) {
        let header = &self.memory.area(channel).headers[self.cell(self.rank, sequence)];
        self.store(header, [sequence, hash], false);
    }

    fn header(&self, channel: Channel, owner: usize, sequence: u64) -> Option<u64> {
        let [found, hash] = self.load(&self.memory.area(channel).headers[self.cell(owner, sequence)]);
        (found == sequence).then_some(hash)
    }

    fn slot(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        let (area, cell) = (self.memory.area(channel), self.cell(owner, turn));
        let (pieces, room) = match len {
            ..=SLOT_INLINE_BYTES => (&area.beside, SLOT_INLINE_BYTES),
            _ => (&area.slots, self.memory.areas.geometry.slot_bytes),
        };
        self.touch(&pieces[cell], (owner == self.rank, turn), (room, len), || {
            format!("{channel:?}, slot of index {owner} of turn {turn}")
        })
    }

    fn place_of(&self, _: &[u8]) -> Option<u64> {
        self.memory.readable.borrow()[self.rank].map(|_| 4096)
    }

    fn reads_all(&self) -> bool {
        self.memory.readable.borrow()[self.rank] == Some(true)
    }

    fn ask_to_read(&self, owner: usize) {
        assert!(owner != self.rank, "nobody asks himself");
        self.memory.asked.set(self.memory.asked.get() + 1);
    }

    fn foreign(&self, _: usize, _: u64, _: usize) -> Option<ForeignBytes<'_>> {
        None
    }

    fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        assert!(writer != reader, "index {writer} hands nothing over to itself");
        let Geometry { ranks, pair_depth, chunk_bytes, .. } = self.memory.areas.geometry;
        let side = (usize::from(writer > reader) + index(turn) / pair_depth) & 1;
        let pair = writer.min(reader) * ranks + writer.max(reader);
        let at = (pair * pair_depth + index(turn) % pair_depth) * 2 + side;
        let piece = &self.memory.area(channel).pairs[at];
        self.touch(piece, (writer == self.rank, turn), (chunk_bytes, len), || {
            format!("{channel:?}, hand-over buffer of index {writer} for {reader}, turn {turn}")
        })
    }

    fn gather(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        let piece = &self.memory.area(channel).gathers[2 * owner + index(turn & 1)];
        let room = self.memory.areas.geometry.chunk_bytes;
        self.touch(piece, (owner == self.rank, turn), (room, len), || {
            format!("{channel:?}, gather buffer of index {owner}, turn {turn}")
        })
    }

    fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> u64 {
        self.load(&self.memory.area(channel).counters[owner][at(counter)])[0]
    }

    fn publish(&self, channel: Channel, counter: Counter, value: u64) {
        self.store(&self.memory.area(channel).counters[self.rank][at(counter)], [value, 0], false);
    }

    fn wake(&self) {}

    fn describe(&self, channel: Channel, fingerprint: &Fingerprint) {
        if self.is_gone() {
            return;
        }
        let (track, bytes) = &self.memory.area(channel).descriptions[self.rank];
        if let Err(why) = track.borrow_mut().write(&self.memory.order, self.rank, 0, 0) {
            self.memory.race(|| format!("{channel:?}, fingerprint of index {}: {why}", self.rank));
        }
        *bytes.borrow_mut() = fingerprint.encode();
    }

    fn description(&self, channel: Channel, owner: usize) -> Result<Fingerprint, DecodeError> {
        let (track, bytes) = &self.memory.area(channel).descriptions[owner];
        if let Err(why) = track.borrow_mut().read(&self.memory.order, self.rank, 0, 0) {
            self.memory.race(|| format!("{channel:?}, fingerprint of index {owner}: {why}"));
            return Err(DecodeError);
        }
        Fingerprint::decode(&bytes.borrow())
    }

    fn announced(&self, owner: usize) -> u64 {
        self.load(&self.memory.announced[owner])[0]
    }

    fn announce(&self, announcement: Announcement) -> bool {
        let announced = self.announced(self.rank);
        if announced - self.load(&self.memory.released[self.rank])[0] >= self.memory.areas.ring {
            return false;
        }
        if !self.is_gone() {
            self.memory.announcements.borrow_mut()[self.rank].push(announcement.identity);
        }
        self.store(&self.memory.announced[self.rank], [announced + 1, 0], false);
        true
    }

    fn announcement(&self, owner: usize, at: u64) -> Option<Announcement> {
        let announced = self.announced(owner);
        let is_kept = at < announced && at + self.memory.areas.ring >= announced;
        let identity = self.memory.announcements.borrow()[owner].get(index(at)).copied();
        identity.filter(|_| is_kept).map(|identity| Announcement { identity })
    }

    fn release_announcements(&self, owner: usize, at: u64) {
        assert_eq!(self.rank, 0, "only the first rank releases");
        self.store(&self.memory.released[owner], [at, 0], false);
    }

    fn ordered(&self) -> u64 {
        self.load(&self.memory.ordered)[0]
    }

    fn append_order(&self, identity: u128) -> bool {
        assert_eq!(self.rank, 0, "only the first rank orders");
        let (ranks, ordered) = (0..self.memory.areas.geometry.ranks, self.ordered());
        let taken = ranks.map(|rank| self.counter(Channel::Named, rank, Counter::Taken)).min().unwrap_or(0);
        if ordered - taken >= self.memory.areas.ring {
            return false;
        }
        if !self.is_gone() {
            self.memory.entries.borrow_mut().push(identity);
        }
        self.store(&self.memory.ordered, [ordered + 1, 0], false);
        true
    }

    fn order(&self, at: u64) -> Option<u128> {
        let ordered = self.ordered();
        let is_kept = at < ordered && at + self.memory.areas.ring >= ordered;
        self.memory.entries.borrow().get(index(at)).copied().filter(|_| is_kept)
    }

    fn abort(&self, cause: &Cause) {
        let Memory { abort, causes, order, .. } = &*self.memory;
        if !self.publishes() {
            return;
        }
        // A rank speaks once; only the first to set the flag is heard.
        if causes.borrow()[self.rank].is_none() && self.load(abort) == [0; 2] {
            causes.borrow_mut()[self.rank] = Some(cause.clone());
            abort.store_first(order, self.rank, [count(self.rank) + 1, 0]);
        }
    }

    fn aborted(&self) -> Option<Cause> {
        match self.load(&self.memory.abort)[0] {
            0 => None,
            author => self.memory.causes.borrow()[index(author) - 1].clone(),
        }
    }
}
