//! The world segment and what this process knows of the ranks of its host: doors, processors, lives and deaths.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64 as LocalU64, AtomicUsize, Ordering as LocalOrdering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use types::transport::{Clock, Fate, Geometry, Peers};
use types::{Ending, Error, Rank, Result};

use crate::arena::Arenas;
use crate::blackbox::Notes;
use crate::blackbox::place::{self, Place};
use crate::blackbox::view::{self, Noted};
use crate::door::{Door, publish_fence};
use crate::fork::Home;
use crate::groups::Desk;
use crate::layout::{count, index};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::retry::retry;
use crate::segment::{Segment, Shared};
use crate::wire::Address;

const MAGIC: u64 = u64::from_le_bytes(*b"foldwrld");
const HEADER_BYTES: usize = 4096;

/// A rank's state word: it takes part.
const ALIVE: u32 = 1;
/// A rank's state word: it has left in order and will do nothing more.
const LEFT: u32 = 2;

/// What every rank of the host sees of a rank, each part on lines of its own.
#[repr(C, align(128))]
struct RankBlock {
    door: Door,
    life: LifeLine,
    cpu: CpuLine,
}

#[repr(C, align(128))]
struct LifeLine {
    state: AtomicU32,
    calls: AtomicU64,
}

/// The processor on which the rank was last seen, plus 1; changes seldom.
#[repr(C, align(128))]
struct CpuLine(AtomicU32);

// SAFETY: atomic integers and padding that is never read.
unsafe impl Shared for RankBlock {}

/// The ranks of one job on this host, as one of them sees them.
///
/// In a forked child the memory behind it is not there. Callers ask [`home`](World::home) first; without that only the
/// methods that say so may be used there.
#[derive(Debug)]
pub struct World {
    segment: Segment,
    rank: Rank,
    size: usize,
    home: Home,
    fates: Box<[LocalU64]>,
    /// Ranks that are seen to be gone, and it is not known yet how.
    dying: AtomicUsize,
    pub(crate) addresses: Box<[Address]>,
    arenas: Arenas,
    desk: Mutex<Desk>,
    bell: OwnedFd,
    stopping: AtomicBool,
    crowded: AtomicBool,
    pub(crate) notes: Notes,
    shown: OnceLock<Shown>,
}

/// What this process gives to those of its user who ask what the job does.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) job: String,
    pub(crate) memory: OwnedFd,
}

impl World {
    /// Bytes of the world segment of so many ranks.
    pub(crate) const fn segment_bytes(size: usize) -> usize {
        first_box(size) + size * place::bytes(size)
    }

    /// How many ranks a segment of so many bytes is for, if it says that it is for `ranks`.
    pub(crate) fn ranks_of(segment: &Segment) -> Option<usize> {
        let [magic, ranks] = segment.at::<[AtomicU64; 2]>(0);
        let is_world = magic.load(Ordering::Acquire) == MAGIC;
        let ranks = index(ranks.load(Ordering::Relaxed));
        let fits = (1..=Geometry::MAX_RANKS).contains(&ranks) && World::segment_bytes(ranks) == segment.len();
        (is_world && fits).then_some(ranks)
    }

    /// Makes the world segment, as the hub does once.
    pub(crate) fn create_segment(size: usize, home: Home) -> Result<(Segment, OwnedFd)> {
        let (segment, fd) = Segment::create("the job's ranks", World::segment_bytes(size), home)?;
        segment.at::<[AtomicU64; 2]>(0)[1].store(count(size), Ordering::Relaxed);
        segment.at::<[AtomicU64; 2]>(0)[0].store(MAGIC, Ordering::Release);
        Ok((segment, fd))
    }

    /// Says to the others that a rank which has met them cannot go on after all.
    pub(crate) fn give_up(segment: &Segment, rank: Rank) {
        let blocks = || {
            let size = World::ranks_of(segment).unwrap_or_default();
            (0..size).map(|index| segment.at::<RankBlock>(HEADER_BYTES + index * size_of::<RankBlock>()))
        };
        if let Some(own) = blocks().nth(rank.index()) {
            own.life.state.store(LEFT, Ordering::Release);
            publish_fence();
            blocks().for_each(|block| block.door.ring());
        }
    }

    /// Enters the world whose segment this is; `addresses` say where the processes serve group memory.
    pub(crate) fn enter(segment: Segment, rank: Rank, addresses: Box<[Address]>, home: Home) -> Result<World> {
        let size = addresses.len();
        let [magic, ranks] = segment.at::<[AtomicU64; 2]>(0);
        let found = (magic.load(Ordering::Acquire), ranks.load(Ordering::Relaxed));
        if found != (MAGIC, count(size)) {
            return Err(Error::resource(
                "the world segment",
                format!("memory of another kind ({:016x}, {} ranks)", found.0, found.1),
                "see that all ranks run the same version",
            ));
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            Error::resource("an event descriptor", error, "raise the limit on open files with `ulimit -n`")
        })?;
        let notes = Notes::open(&segment, Place::of(first_box(size), rank.index(), size));
        let world = World {
            segment,
            rank,
            size,
            home,
            fates: (0..size).map(|_| LocalU64::new(0)).collect(),
            dying: AtomicUsize::new(0),
            addresses,
            arenas: Arenas::new(size),
            desk: Mutex::new(Desk::default()),
            bell,
            stopping: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            notes,
            shown: OnceLock::new(),
        };
        world.block(rank).life.state.store(ALIVE, Ordering::Release);
        world.note_cpu();
        Ok(world)
    }

    /// This process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks of the job on this host.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The process that this world belongs to.
    #[must_use]
    pub const fn home(&self) -> Home {
        self.home
    }

    pub(crate) const fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Where a rank's box lies.
    pub(crate) fn place_of(&self, rank: Rank) -> Place {
        assert!(rank.index() < self.size, "{rank} of a world of {} ranks", self.size);
        Place::of(first_box(self.size), rank.index(), self.size)
    }

    /// What a rank has noted of its operations, whatever has become of it; `None` if it has not entered the world.
    ///
    /// # Panics
    /// If the world has no such rank.
    #[must_use]
    pub fn noted(&self, rank: Rank) -> Option<Noted> {
        view::read(&self.segment, self.place_of(rank))
    }

    /// Lets processes of this user see the memory of the world, which is the job's of this name.
    pub(crate) fn show(&self, job: &str, memory: OwnedFd) {
        let _ = self.shown.set(Shown { job: job.into(), memory });
    }

    pub(crate) fn shown(&self) -> Option<&Shown> {
        self.shown.get()
    }

    fn block(&self, rank: Rank) -> &RankBlock {
        assert!(rank.index() < self.size, "{rank} of a world of {} ranks", self.size);
        self.segment.at(HEADER_BYTES + rank.index() * size_of::<RankBlock>())
    }

    /// The door of a rank.
    ///
    /// # Panics
    /// If the world has no such rank.
    #[must_use]
    pub fn door(&self, rank: Rank) -> &Door {
        &self.block(rank).door
    }

    /// Wakes the threads of this process that wait, so that they look again. In a forked child it does nothing.
    pub fn ring_own(&self) {
        if self.home.is_here() {
            publish_fence();
            self.door(self.rank).ring();
        }
    }

    /// Wakes every rank. In a forked child it does nothing.
    pub fn ring_all(&self) {
        if !self.home.is_here() {
            return;
        }
        publish_fence();
        for index in 0..self.size {
            self.door(Rank::from_index(index)).ring();
        }
    }

    /// Notes for the others on which processor this rank runs. A few ns; writes only when it has changed.
    #[inline]
    pub fn note_cpu(&self) {
        let here = own_cpu();
        let line = &self.block(self.rank).cpu.0;
        if line.load(Ordering::Relaxed) != here {
            line.store(here, Ordering::Relaxed);
        }
    }

    /// Whether one of these ranks that `awaits` asks for, by place in the list, was last seen on the processor that the
    /// calling thread runs on: it cannot go on while the caller spins. Keeps for [`is_crowded`](Self::is_crowded) whether any
    /// of them was.
    #[must_use]
    pub fn is_awaited_here(&self, ranks: &[Rank], awaits: &dyn Fn(usize) -> bool) -> bool {
        let here = own_cpu();
        let is_here = |rank: Rank| rank != self.rank && self.block(rank).cpu.0.load(Ordering::Relaxed) == here;
        let (mut crowded, mut awaited) = (false, false);
        for (place, _) in ranks.iter().enumerate().filter(|(_, rank)| is_here(**rank)) {
            crowded = true;
            if awaits(place) {
                awaited = true;
                break;
            }
        }
        if self.is_crowded() != crowded {
            self.crowded.store(crowded, LocalOrdering::Relaxed);
        }
        awaited
    }

    /// Whether the last wait of this process that looked for its peers found one on its own processor.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(LocalOrdering::Relaxed)
    }

    /// Says to the others that this rank has made `calls` calls and will do nothing more; whoever sees it sees all that
    /// this rank wrote before. Rings every door. In a forked child it does nothing.
    pub fn leave(&self, calls: u64) {
        if !self.home.is_here() {
            return;
        }
        let life = &self.block(self.rank).life;
        life.calls.store(calls, Ordering::Relaxed);
        life.state.store(LEFT, Ordering::Release);
        self.ring_all();
        // Whoever waits for this rank to make a group's memory is told by the monitor.
        self.ring_bell();
    }

    /// What is known of a rank. Once it is gone, all that it ever wrote is visible.
    ///
    /// Nobody has left while it is to be told how another rank died: it may have left because of that, and the death is
    /// the cause to tell of.
    #[must_use]
    pub fn fate(&self, rank: Rank) -> Fate {
        let known = decode(self.fates[rank.index()].load(LocalOrdering::Acquire));
        match (known, self.left(rank)) {
            (Fate::Alive, Some(_)) if self.dying.load(LocalOrdering::Acquire) > 0 => Fate::Alive,
            (Fate::Alive | Fate::Gone(Ending::Unknown), Some(calls)) => Fate::Gone(Ending::Left(calls)),
            (known, _) => known,
        }
    }

    /// After how many calls a rank has left in order, if it has.
    pub(crate) fn left(&self, rank: Rank) -> Option<u64> {
        let life = &self.block(rank).life;
        (life.state.load(Ordering::Acquire) == LEFT).then(|| life.calls.load(Ordering::Relaxed))
    }

    /// Records how a rank ended, and wakes this process's waiting threads. The first record stays.
    pub(crate) fn record(&self, rank: Rank, ending: Ending) {
        let fate = &self.fates[rank.index()];
        if fate.compare_exchange(0, encode(ending), LocalOrdering::Release, LocalOrdering::Relaxed).is_ok() {
            log::debug!("{} sees that {rank} {ending}", self.rank);
            self.ring_own();
        }
    }

    /// Says of how many ranks it is to be told how they died; whoever waits looks again.
    pub(crate) fn set_dying(&self, number: usize) {
        if self.dying.swap(number, LocalOrdering::Release) > number {
            self.ring_own();
        }
    }

    /// The fates of these ranks, as a group's engine asks for them.
    #[must_use]
    pub fn peers(self: &Arc<World>, ranks: impl Into<Arc<[Rank]>>) -> GroupPeers {
        GroupPeers { world: Arc::clone(self), ranks: ranks.into() }
    }

    /// Tells [`Monitor::run`](crate::monitor::Monitor::run) to return.
    pub fn stop_monitor(&self) {
        self.stopping.store(true, LocalOrdering::Release);
        self.ring_bell();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(LocalOrdering::Acquire)
    }

    pub(crate) const fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the monitor look at the desk.
    pub(crate) fn ring_bell(&self) {
        // The only way to fail is a full counter, and then the monitor has not looked yet.
        let _ = retry(|| rustix::io::write(&self.bell, &1u64.to_ne_bytes()));
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The fates of a group's ranks.
#[derive(Clone, Debug)]
pub struct GroupPeers {
    world: Arc<World>,
    ranks: Arc<[Rank]>,
}

impl GroupPeers {
    /// The world ranks, in the group's order.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }
}

impl Peers for GroupPeers {
    fn fate(&self, index: usize) -> Fate {
        self.ranks.get(index).map_or(Fate::Alive, |rank| self.world.fate(*rank))
    }
}

/// The monotonic clock of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// The calling thread's processor plus 1, or 0 where that is not to be had.
fn own_cpu() -> u32 {
    // SAFETY: takes nothing and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).map_or(0, |cpu| cpu + 1)
}

/// Where the ranks' boxes begin.
const fn first_box(size: usize) -> usize {
    (HEADER_BYTES + size * size_of::<RankBlock>()).next_multiple_of(4096)
}

/// How a rank of the world in this segment ended its part, if it left in order.
pub(crate) fn has_left(segment: &Segment, rank: Rank) -> Option<u64> {
    let block: &RankBlock = segment.at(HEADER_BYTES + rank.index() * size_of::<RankBlock>());
    (block.life.state.load(Ordering::Acquire) == LEFT).then(|| block.life.calls.load(Ordering::Relaxed))
}

/// What a rank of the world in this segment has noted.
pub(crate) fn noted_in(segment: &Segment, rank: Rank, size: usize) -> Option<Noted> {
    view::read(segment, Place::of(first_box(size), rank.index(), size))
}

const VALUE_BITS: u32 = 60;

fn encode(ending: Ending) -> u64 {
    let (kind, value) = match ending {
        Ending::Unknown => (1, 0),
        Ending::Exited(status) => (2, u64::from(status.cast_unsigned())),
        Ending::Signalled(signal) => (3, u64::from(signal.cast_unsigned())),
        Ending::Left(calls) => (4, calls & ((1 << VALUE_BITS) - 1)),
    };
    kind << VALUE_BITS | value
}

fn decode(fate: u64) -> Fate {
    let value = fate & ((1 << VALUE_BITS) - 1);
    let number = u32::try_from(value).unwrap_or(0).cast_signed();
    match fate >> VALUE_BITS {
        0 => Fate::Alive,
        2 => Fate::Gone(Ending::Exited(number)),
        3 => Fate::Gone(Ending::Signalled(number)),
        4 => Fate::Gone(Ending::Left(value)),
        _ => Fate::Gone(Ending::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_round_trip() {
        for ending in
            [Ending::Unknown, Ending::Exited(-3), Ending::Exited(0), Ending::Signalled(9), Ending::Left(1 << 40)]
        {
            assert_eq!(decode(encode(ending)), Fate::Gone(ending));
        }
        assert_eq!(decode(0), Fate::Alive);
    }

    #[test]
    fn what_different_ranks_write_is_on_different_lines() {
        assert_eq!(size_of::<RankBlock>(), 3 * 128);
        for size in [1, 2, 64, 65, Geometry::MAX_RANKS] {
            let last = Place::of(first_box(size), size - 1, size);
            let end = last.records(last.tracks - 1) + place::RECORDS * size_of::<crate::record::Record>();
            assert_eq!(World::segment_bytes(size), end);
            assert!(World::segment_bytes(size).is_multiple_of(4096));
        }
    }
}
