//! The memory of a group whose ranks live in one thread, as plain as can be: what it does is counted with the calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use kernels::{ForeignBytes, SharedBytes};
use types::transport::{Announcement, Channel, Clock, Counter, Fate, Geometry, Peers, SLOT_INLINE_BYTES, Windows};
use types::{Cause, DecodeError, Fingerprint, GroupName, Rank};

const RING: u64 = 8;

/// Into how many lanes large unnamed calls are cut.
pub(super) const LANES: usize = 3;

fn bytes(len: usize) -> Vec<AtomicU8> {
    std::iter::repeat_with(AtomicU8::default).take(len).collect()
}

#[derive(Default)]
struct Slot {
    sequence: AtomicU64,
    hash: AtomicU64,
    payload: Vec<AtomicU8>,
    /// A short payload, in the header's line.
    beside: Vec<AtomicU8>,
}

struct Area {
    slots: Vec<[Slot; 2]>,
    pairs: Vec<Vec<[Vec<AtomicU8>; 2]>>,
    gathers: Vec<[Vec<AtomicU8>; 2]>,
    counters: Vec<[AtomicU64; 5]>,
    descriptions: RefCell<Vec<Vec<u8>>>,
}

/// What the ranks of the group share.
pub(super) struct Memory {
    geometry: Geometry,
    /// Of the unnamed calls, the named ones, the small named ones, and the lanes from 1 on.
    areas: Vec<Area>,
    announced: RefCell<Vec<Vec<u128>>>,
    released: RefCell<Vec<u64>>,
    order: RefCell<Vec<u128>>,
    causes: RefCell<Vec<Option<Cause>>>,
    pub(super) fates: Vec<Cell<Fate>>,
    pub(super) now: Cell<Duration>,
}

impl Memory {
    pub(super) fn new(geometry: Geometry) -> Rc<Memory> {
        let ranks = geometry.ranks;
        let slot = || Slot { payload: bytes(geometry.slot_bytes), beside: bytes(SLOT_INLINE_BYTES), ..Slot::default() };
        let two = || [bytes(geometry.chunk_bytes), bytes(geometry.chunk_bytes)];
        let area = || Area {
            slots: (0..ranks).map(|_| [slot(), slot()]).collect(),
            pairs: (0..ranks * ranks).map(|_| (0..geometry.pair_depth).map(|_| two()).collect()).collect(),
            gathers: (0..ranks).map(|_| two()).collect(),
            counters: (0..ranks).map(|_| Default::default()).collect(),
            descriptions: RefCell::new(vec![Vec::new(); ranks]),
        };
        Rc::new(Memory {
            geometry,
            areas: (0..1 + 2 * LANES).map(|_| area()).collect(),
            announced: RefCell::new(vec![Vec::new(); ranks]),
            released: RefCell::new(vec![0; ranks]),
            order: RefCell::default(),
            causes: RefCell::new(vec![None; ranks]),
            fates: vec![Cell::new(Fate::Alive); ranks],
            now: Cell::new(Duration::ZERO),
        })
    }

    fn area(&self, channel: Channel) -> &Area {
        match channel {
            Channel::Unnamed => &self.areas[0],
            Channel::Named => &self.areas[1],
            Channel::Small => &self.areas[2],
            Channel::Lane(lane) => &self.areas[2 + usize::from(lane)],
            Channel::NamedLane(lane) => &self.areas[1 + LANES + usize::from(lane)],
        }
    }
}

impl Clock for Memory {
    fn now(&self) -> Duration {
        self.now.get()
    }
}

/// One rank's view of the memory.
pub(super) struct PlainWindows {
    pub(super) memory: Rc<Memory>,
    pub(super) rank: usize,
}

impl Peers for PlainWindows {
    fn fate(&self, index: usize) -> Fate {
        self.memory.fates[index].get()
    }
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
    usize::try_from(number).expect("64-bit tests")
}

impl PlainWindows {
    fn slot_of(&self, channel: Channel, owner: usize, sequence: u64) -> &Slot {
        let area = self.memory.area(channel);
        if self.memory.geometry.ranks == 2 {
            return &area.slots[0][(owner + index(sequence)) & 1];
        }
        &area.slots[owner][index(sequence) & 1]
    }
}

impl Windows for PlainWindows {
    type View<'a> = SharedBytes<'a>;
    type Foreign<'a> = ForeignBytes<'a>;

    fn rank(&self) -> usize {
        self.rank
    }

    fn geometry(&self) -> Geometry {
        self.memory.geometry
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn publish_header(&self, channel: Channel, sequence: u64, hash: u64) {
        let slot = self.slot_of(channel, self.rank, sequence);
        slot.hash.store(hash, Ordering::Relaxed);
        slot.sequence.store(sequence, Ordering::Release);
    }

    fn header(&self, channel: Channel, owner: usize, sequence: u64) -> Option<u64> {
        let slot = self.slot_of(channel, owner, sequence);
        (slot.sequence.load(Ordering::Acquire) == sequence).then(|| slot.hash.load(Ordering::Relaxed))
    }

    fn slot(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        let slot = self.slot_of(channel, owner, turn);
        let payload = if len <= SLOT_INLINE_BYTES { &slot.beside } else { &slot.payload };
        SharedBytes::from_atomics(&payload[..len])
    }

    fn place_of(&self, _: &[u8]) -> Option<u64> {
        None
    }

    fn reads_all(&self) -> bool {
        false
    }

    fn ask_to_read(&self, _: usize) {}

    fn foreign(&self, _: usize, _: u64, _: usize) -> Option<ForeignBytes<'_>> {
        None
    }

    fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        let Geometry { ranks, pair_depth, .. } = self.memory.geometry;
        let pair = writer.min(reader) * ranks + writer.max(reader);
        let turn = index(turn);
        let side = (usize::from(writer > reader) + turn / pair_depth) & 1;
        SharedBytes::from_atomics(&self.memory.area(channel).pairs[pair][turn % pair_depth][side][..len])
    }

    fn gather(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        SharedBytes::from_atomics(&self.memory.area(channel).gathers[owner][index(turn) & 1][..len])
    }

    fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> u64 {
        self.memory.area(channel).counters[owner][at(counter)].load(Ordering::Acquire)
    }

    fn publish(&self, channel: Channel, counter: Counter, value: u64) {
        self.memory.area(channel).counters[self.rank][at(counter)].store(value, Ordering::Release);
    }

    fn wake(&self) {}

    fn describe(&self, channel: Channel, fingerprint: &Fingerprint) {
        self.memory.area(channel).descriptions.borrow_mut()[self.rank] = fingerprint.encode();
    }

    fn description(&self, channel: Channel, owner: usize) -> Result<Fingerprint, DecodeError> {
        Fingerprint::decode(&self.memory.area(channel).descriptions.borrow()[owner])
    }

    fn announced(&self, owner: usize) -> u64 {
        u64::try_from(self.memory.announced.borrow()[owner].len()).expect("a length")
    }

    fn announce(&self, announcement: Announcement) -> bool {
        if self.announced(self.rank) - self.memory.released.borrow()[self.rank] >= RING {
            return false;
        }
        self.memory.announced.borrow_mut()[self.rank].push(announcement.identity);
        true
    }

    fn announcement(&self, owner: usize, at: u64) -> Option<Announcement> {
        self.memory.announced.borrow()[owner].get(index(at)).map(|identity| Announcement { identity: *identity })
    }

    fn release_announcements(&self, owner: usize, at: u64) {
        assert_eq!(self.rank, 0, "only the first rank releases");
        self.memory.released.borrow_mut()[owner] = at;
    }

    fn ordered(&self) -> u64 {
        u64::try_from(self.memory.order.borrow().len()).expect("a length")
    }

    fn append_order(&self, identity: u128) -> bool {
        assert_eq!(self.rank, 0, "only the first rank orders");
        let ranks = 0..self.memory.geometry.ranks;
        let taken = ranks.map(|rank| self.counter(Channel::Named, rank, Counter::Taken)).min().unwrap_or(0);
        if self.ordered() - taken >= RING {
            return false;
        }
        self.memory.order.borrow_mut().push(identity);
        true
    }

    fn order(&self, at: u64) -> Option<u128> {
        self.memory.order.borrow().get(index(at)).copied()
    }

    fn abort(&self, cause: &Cause) {
        self.memory.causes.borrow_mut()[self.rank].get_or_insert_with(|| cause.clone());
    }

    fn aborted(&self) -> Option<Cause> {
        self.memory.causes.borrow().iter().flatten().next().cloned()
    }
}

/// The group as one rank sees it, for messages. World ranks are ten times the group's, so that a mix-up shows.
pub(super) fn view(rank: usize, ranks: usize) -> foldcast_engine::View {
    let world = |index: usize| Rank::from_index(10 * index);
    foldcast_engine::View {
        rank: world(rank),
        ranks: (0..ranks).map(world).collect(),
        group: GroupName::new("test").expect("a name"),
    }
}
