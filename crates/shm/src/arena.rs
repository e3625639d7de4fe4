//! Memory for arrays that the other processes of the host can read where they are.
//!
//! Each process has at most one arena: a sparse memory file as large as its arrays may become together, of which pieces are
//! given out. The others get a descriptor that is open for reading only: what lies in an arena is written by nobody but its
//! owner, so to that one it is memory like any other.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kernels::ForeignBytes;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use types::{Bytes, Error, Rank, Result};

use crate::fork::Home;
use crate::layout::{count, index};
use crate::retry::retry;
use crate::segment::Segment;
use crate::world::World;

/// What stands for a process's arena where groups have the digest of their key.
pub(crate) const IDENTITY: u128 = u128::from_le_bytes(*b"foldcast's arena");

/// Pieces are whole pages, so that each can be given back by itself.
const PAGE_BYTES: usize = 4096;
/// Memory is taken in steps of this size, so that a signal in between costs one step at most.
const STEP_BYTES: usize = 16 << 20;
/// All arenas of a host together have no more addresses than this in a process.
const MOST_ADDRESSES: usize = 1 << 45;
/// The size of an arena where the system does not say how much memory it has.
const DEFAULT_BYTES: usize = 64 << 30;

/// The arena of this process.
struct Arena {
    segment: Segment,
    file: OwnedFd,
    home: Home,
    /// Offsets and lengths of what is not given out, by offset; no two of them touch.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes)", self.segment.len())
    }
}

impl Arena {
    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // Whatever panics under the lock leaves a map of free pieces behind, if one too small.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first free piece of this length.
    fn take(&self, len: usize) -> Option<usize> {
        let mut free = self.free();
        let (offset, room) = free.iter().find(|(_, room)| **room >= len).map(|(offset, room)| (*offset, *room))?;
        free.remove(&offset);
        if room > len {
            free.insert(offset + len, room - len);
        }
        Some(offset)
    }

    fn put(&self, offset: usize, len: usize) {
        let mut free = self.free();
        let (mut start, mut end) = (offset, offset + len);
        if let Some((before, room)) = free.range(..offset).next_back().map(|(before, room)| (*before, *room))
            && before + room == start
        {
            free.remove(&before);
            start = before;
        }
        if let Some(room) = free.remove(&end) {
            end += room;
        }
        free.insert(start, end - start);
    }

    /// Gives the memory of a piece back to the system.
    fn discard(&self, offset: usize, len: usize) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = retry(|| fallocate(&self.file, punch, count(offset), count(len))) {
            log::debug!("{len} bytes of shared memory stay taken: {error}");
        }
    }

    /// Makes a piece's memory be there: what cannot be had is said now, and not by a signal when it is touched.
    fn fill(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        for step in (0..len).step_by(STEP_BYTES) {
            let bytes = STEP_BYTES.min(len - step);
            retry(|| fallocate(&self.file, FallocateFlags::empty(), count(offset + step), count(bytes)))?;
        }
        Ok(())
    }
}

/// Bytes in the arena of this process, which the other processes of the host can read. The memory goes back to the system when
/// the value is dropped.
pub struct Piece {
    arena: Arc<Arena>,
    offset: usize,
    /// As many as were asked for.
    len: usize,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.len)
    }
}

impl Piece {
    fn start(&self) -> *mut u8 {
        // SAFETY: `Arena::take` gives offsets of pieces inside the segment.
        unsafe { self.arena.segment.base().add(self.offset) }.as_ptr()
    }

    /// Bytes that it takes: whole pages.
    fn room(&self) -> usize {
        self.len.next_multiple_of(PAGE_BYTES)
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped as long as the arena lives, initialised (zero, or what was written), and the piece's
        // own: `Arena::take` gives them to nobody else, and other processes cannot write them.
        unsafe { core::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; what other processes read meanwhile are loads in their address space, through `ForeignBytes`.
        unsafe { core::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // A forked child does not have the memory, but could take its parent's away.
        if self.arena.home.is_here() {
            self.arena.discard(self.offset, self.room());
            self.arena.put(self.offset, self.room());
        }
    }
}

/// The arenas of the host, as one process sees them.
#[derive(Debug)]
pub(crate) struct Arenas {
    own: OnceLock<Arc<Arena>>,
    making: Mutex<()>,
    others: Box<[Other]>,
}

/// The arena of another rank.
#[derive(Debug, Default)]
struct Other {
    memory: OnceLock<Segment>,
    was_asked: AtomicBool,
}

impl Arenas {
    pub(crate) fn new(ranks: usize) -> Arenas {
        let others = core::iter::repeat_with(Other::default).take(ranks).collect();
        Arenas { own: OnceLock::new(), making: Mutex::default(), others }
    }

    /// Where in the own arena these bytes are, if they are there.
    pub(crate) fn place_of(&self, bytes: &[u8]) -> Option<u64> {
        let segment = &self.own.get()?.segment;
        let start = bytes.as_ptr().addr().checked_sub(segment.base().addr().get())?;
        let end = start.checked_add(bytes.len())?;
        (end <= segment.len()).then(|| count(start))
    }

    /// Whether the arena of this rank can be read here.
    pub(crate) fn can_read(&self, rank: Rank) -> bool {
        self.others.get(rank.index()).is_some_and(|other| other.memory.get().is_some())
    }

    /// Bytes of the arena of a rank, if they are there and can be read here.
    pub(crate) fn foreign(&self, rank: Rank, place: u64, len: usize) -> Option<ForeignBytes<'_>> {
        let segment = self.others.get(rank.index())?.memory.get()?;
        let place = usize::try_from(place).ok()?;
        if place.checked_add(len)? > segment.len() {
            return None;
        }
        // SAFETY: inside the mapping, as checked just now.
        let start = unsafe { segment.base().add(place) };
        // SAFETY: these bytes are mapped for reading while `self` is borrowed (what is in the cell stays), and no reference
        // to them is made anywhere.
        Some(unsafe { ForeignBytes::from_raw(start.as_ptr(), len) })
    }
}

impl World {
    /// Memory of this many bytes, all zero, that the other ranks can read where it is. `most`: how much this process may have of
    /// it at most, all pieces together; by default as much as the machine has. The first piece decides.
    ///
    /// # Errors
    /// [`Error::Resource`] if so much cannot be had; [`Error::ForkedProcess`] in a forked child.
    pub fn piece(&self, bytes: usize, most: Option<usize>) -> Result<Piece> {
        self.home().check()?;
        let arena = self.own_arena(most)?;
        let refused = |got: String, hint: &str| {
            Error::resource(format!("{} of memory that other ranks can read", Bytes(count(bytes))), got, hint)
        };
        let room = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).filter(|room| *room <= arena.segment.len());
        let Some((offset, room)) = room.and_then(|room| Some((arena.take(room)?, room))) else {
            let (all, left) = (arena.segment.len(), arena.free().values().copied().max().unwrap_or(0));
            let [all, left] = [all, left].map(|bytes| Bytes(count(bytes)));
            return Err(refused(
                format!("{left} in one piece, of {all} in all"),
                "let go of arrays, or raise FOLDCAST_ARENA_BYTES",
            ));
        };
        let filled = match available().filter(|available| *available < room) {
            Some(available) => Err(format!("{} that the system has left", Bytes(count(available)))),
            None => arena.fill(offset, room).map_err(|error| error.to_string()),
        };
        // Dropped if it could not be filled: then what was there already goes back.
        let piece = Piece { arena, offset, len: bytes };
        match filled {
            Ok(()) => Ok(piece),
            Err(got) => Err(refused(got, "let go of arrays, or free memory of the machine")),
        }
    }

    fn own_arena(&self, most: Option<usize>) -> Result<Arc<Arena>> {
        let arenas = self.arenas();
        if let Some(arena) = arenas.own.get() {
            return Ok(Arc::clone(arena));
        }
        let _making = arenas.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = arenas.own.get() {
            return Ok(Arc::clone(arena));
        }
        let len = most.unwrap_or_else(|| default_bytes(self.size())).clamp(PAGE_BYTES, MOST_ADDRESSES / self.size());
        let len = len / PAGE_BYTES * PAGE_BYTES;
        let (segment, file) = Segment::create("arrays that other ranks can read", len, self.home())?;
        let readable = for_reading(&file)?;
        let free = Mutex::new(BTreeMap::from([(0, len)]));
        let arena = Arc::new(Arena { segment, file, home: self.home(), free });
        let others = (0..self.size()).map(Rank::from_index).filter(|rank| *rank != self.rank()).collect();
        self.desk().offer(IDENTITY, readable, others);
        self.ring_bell();
        Ok(Arc::clone(arenas.own.get_or_init(|| arena)))
    }

    /// Asks the process of a rank for its arena, once; the monitor maps it when it comes. Never blocks.
    pub(crate) fn ask_for_arena(&self, of: Rank) {
        let Some(other) = self.arenas().others.get(of.index()).filter(|_| of != self.rank()) else { return };
        if !other.was_asked.swap(true, Ordering::Relaxed) {
            self.desk().want_arena(of);
            self.ring_bell();
        }
    }

    /// Takes over the arena of a rank; why that cannot be is said once. Its arrays are staged then, as private ones are.
    pub(crate) fn take_arena(&self, of: Rank, memory: core::result::Result<OwnedFd, String>) {
        let mapped = memory.and_then(|memory| {
            let what = format!("the arrays of {of}");
            Segment::attach_for_reading(&what, memory, self.home()).map_err(|error| error.to_string())
        });
        match (mapped, self.arenas().others.get(of.index())) {
            (Ok(segment), Some(other)) => drop(other.memory.set(segment)),
            (Err(why), _) => log::warn!("{}: the arrays of {of} are not read where they are: {why}", self.rank()),
            (Ok(_), None) => {}
        }
    }
}

/// A descriptor of the same memory that cannot be used to write it, nor be made to.
fn for_reading(file: &OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let opened = retry(|| rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    opened.map_err(|error: Errno| {
        Error::resource(
            "a descriptor for reading of memory for arrays",
            error,
            "mount /proc, and raise the limit on open files with `ulimit -n`",
        )
    })
}

/// As large as the memory of the machine, but no larger than files may be.
fn default_bytes(ranks: usize) -> usize {
    let all = meminfo("MemTotal:").unwrap_or(DEFAULT_BYTES).min(MOST_ADDRESSES / ranks);
    getrlimit(Resource::Fsize).current.map_or(all, |limit| all.min(index(limit)))
}

/// What the kernel says can be had without swapping.
fn available() -> Option<usize> {
    meminfo("MemAvailable:")
}

fn meminfo(name: &str) -> Option<usize> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn parse_meminfo(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests;
