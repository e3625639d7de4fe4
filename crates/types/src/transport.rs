//! The traits behind which shared memory, other processes and time stand.
//!
//! The engine is written against these traits only. A group of `size` ranks sees its members as indices
//! `0..size` (group ranks); the shared-memory crate, and simulated worlds, implement the traits.
//!
//! # The areas of a group's window
//! There are several [`Channel`]s: for unnamed calls, for named calls, for small named calls, and for each further lane of large
//! calls, of the unnamed and of the named ones. Each has areas of its own:
//!
//! * **Slots**: a header (sequence and fingerprint hash) and a small payload, which lies beside the header if it is no
//!   longer than [`SLOT_INLINE_BYTES`], and else in a cell that is counted by itself. Rank `r` writes both once, before it
//!   publishes the header; everybody may read them until that rank publishes header `s + 2`.
//!   For two ranks, the two cells change hands: rank `r` writes cell `(r + n) & 1`. For more, each rank has two
//!   cells of its own, used in turn. For headers and what lies beside them `n` is the sequence, for longer payloads
//!   their own count: so their cells change hands whatever other calls lie between.
//! * **Pair buffers**, for hand-over between two ranks: in use `u`, `pair(writer, reader, u)` and
//!   `pair(reader, writer, u)` are the two sides of one pair of buffers, and the sides change with each use of
//!   the same place. A rank therefore only ever writes a buffer that it has itself finished reading.
//! * **Gather buffers**: written by their owner, read by everybody; two of them, used in turn.
//! * **Counters**: monotonic, written by their owner only.
//!
//! # What is not the group's
//! Each process may have memory of its own that the others can read: where a program has its arrays there, they need not be
//! staged. What a rank says of it in a call stands in its slot.

use core::time::Duration;

use crate::call::{DecodeError, Fingerprint};
use crate::error::{Cause, Ending};
use crate::note::{Summary, Ticket};

/// Which of a group's sets of buffers a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Unnamed calls, in the order of their numbers.
    Unnamed,
    /// Named calls, in the published order.
    Named,
    /// Named calls that are small in the eyes of group rank 0, in the published order, beside the others. (It has all areas:
    /// what other ranks call by that name may be large.)
    Small,
    /// A lane, counted from 1, of the unnamed calls that are cut into several; their lane 0 is `Unnamed`.
    Lane(u8),
    /// A lane, counted from 1, of the named calls that are cut into several; their lane 0 is `Named`.
    NamedLane(u8),
}

impl Channel {
    /// The channel on which a rank says that it [begins no more](Counter::Left) calls of this kind.
    #[must_use]
    pub const fn of_kind(self) -> Channel {
        match self {
            Channel::Unnamed | Channel::Lane(_) => Channel::Unnamed,
            Channel::Named | Channel::Small | Channel::NamedLane(_) => Channel::Named,
        }
    }

    /// The channel of this lane, counted from 1, of calls of this kind.
    #[must_use]
    pub const fn lane(self, lane: u8) -> Channel {
        match self.of_kind() {
            Channel::Unnamed => Channel::Lane(lane),
            _ => Channel::NamedLane(lane),
        }
    }
}

/// A rank's monotonic counters of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Rounds whose hand-over buffers this rank has filled.
    Staged,
    /// Rounds whose gather buffer this rank has filled; where nothing is staged, whose part of the output.
    Folded,
    /// Sequence of the last call whose mismatch this rank has seen on every rank.
    Verdict,
    /// Entries of the published order that this rank has taken over (channel `Named`).
    Taken,
    /// Set when this rank closes the group in order, to one more than the calls that it has begun: it begins no more.
    Left,
}

/// Payloads up to this size lie beside the header of a slot, in its cache line.
pub const SLOT_INLINE_BYTES: usize = 48;

/// Sizes of the areas that each channel of a group has. Equal on all ranks of a group: part of what its first member hands
/// out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Ranks of the group on this host.
    pub ranks: usize,
    /// Payload bytes of a slot.
    pub slot_bytes: usize,
    /// Bytes of a pair buffer and of a gather buffer.
    pub chunk_bytes: usize,
    /// Pair buffers per pair of ranks and side, used in turn.
    pub pair_depth: usize,
}

impl Geometry {
    /// What the memory of a group takes at most for each of its ranks, whatever their number.
    pub const MAX_BYTES_PER_RANK: usize = 16 << 20;

    /// The most ranks for which [`of`](Self::of) keeps within [`MAX_BYTES_PER_RANK`](Self::MAX_BYTES_PER_RANK).
    pub const MAX_RANKS: usize = 4096;

    /// The most lanes that a call is cut into.
    pub const MAX_LANES: usize = 16;

    /// Channels that every group has.
    const CHANNELS: usize = 3;

    /// Bytes of a full chunk of many ranks, and of two.
    const FULL_CHUNK_BYTES: usize = 64 << 10;

    /// Bytes of a chunk of few ranks.
    const LARGER_CHUNK_BYTES: usize = 128 << 10;

    /// What a rank stages in one round, with such chunks, is at most so much: it stays in a core's cache until it is read.
    const ROUND_BYTES: usize = 1 << 20;

    /// Of the bytes of a rank, what is left for everything but pair and gather buffers: slots, counters, lists.
    const OTHER_BYTES: usize = 256 << 10;

    /// Buffers begin on such pairs of cache lines, which processors fetch together.
    const LINE_PAIR_BYTES: usize = 128;

    /// The areas of a group of this many ranks.
    ///
    /// Each pair of ranks has buffers of its own, so that with many ranks there are many buffers. A chunk is 64 KiB, or if
    /// there are too many for that (from 79 ranks on), the largest number of whole pairs of cache lines with which a rank's
    /// share of them stays within [`MAX_BYTES_PER_RANK`](Self::MAX_BYTES_PER_RANK). Three to nine ranks, which wait for each
    /// other once a round and not chunk by chunk, have chunks of 128 KiB: what a rank stages in a round is at most 1 MiB then.
    #[must_use]
    pub const fn of(ranks: usize) -> Geometry {
        let (slot_bytes, pair_depth) = if ranks <= 2 { (32 << 10, 4) } else { (4 << 10, 1) };
        let is_large = ranks > 2 && (ranks - 1) * Geometry::LARGER_CHUNK_BYTES <= Geometry::ROUND_BYTES;
        let chunk_bytes = if is_large { Geometry::LARGER_CHUNK_BYTES } else { Geometry::FULL_CHUNK_BYTES };
        let mut geometry = Geometry { ranks, slot_bytes, chunk_bytes, pair_depth };
        let room =
            (Geometry::MAX_BYTES_PER_RANK - Geometry::OTHER_BYTES) / (Geometry::CHANNELS * geometry.buffers_per_rank());
        if geometry.chunk_stride() > room {
            // The stride is the chunk and a sixteenth of it, rounded up.
            let chunk = room.saturating_sub(Geometry::LINE_PAIR_BYTES) / 17 * 16;
            let chunk = chunk / Geometry::LINE_PAIR_BYTES * Geometry::LINE_PAIR_BYTES;
            geometry.chunk_bytes = if chunk > 0 { chunk } else { Geometry::LINE_PAIR_BYTES };
        }
        geometry
    }

    /// How many lanes a group with these areas can have if so many are wanted: at least 1, at most
    /// [`MAX_LANES`](Self::MAX_LANES), and no more than fit [`MAX_BYTES_PER_RANK`](Self::MAX_BYTES_PER_RANK) together.
    #[must_use]
    pub const fn lanes(&self, wanted: usize) -> usize {
        let buffers = self.buffers_per_rank() * self.chunk_stride();
        // Two cells, and the lines of counters and fingerprint.
        let lane = buffers + 2 * self.slot_bytes + (4 << 10);
        let used = Geometry::CHANNELS * buffers + Geometry::OTHER_BYTES;
        // One for unnamed calls, one for named ones.
        let fit = 1 + Geometry::MAX_BYTES_PER_RANK.saturating_sub(used) / (2 * lane);
        let most = if fit < Geometry::MAX_LANES { fit } else { Geometry::MAX_LANES };
        if wanted < 1 {
            1
        } else if wanted < most {
            wanted
        } else {
            most
        }
    }

    /// Pair and gather buffers of a channel for each rank: its sides of the buffers that it shares with each other rank,
    /// and two to gather.
    const fn buffers_per_rank(&self) -> usize {
        self.ranks.saturating_sub(1) * self.pair_depth + 2
    }

    /// Bytes from one pair or gather buffer to the next: a sixteenth of the chunk (at most 4 KiB) lies between them, so that
    /// the same offsets of different buffers do not share a set of the caches.
    #[must_use]
    pub const fn chunk_stride(&self) -> usize {
        let gap = (self.chunk_bytes / 16).next_multiple_of(Geometry::LINE_PAIR_BYTES);
        self.chunk_bytes + if gap < 4096 { gap } else { 4096 }
    }
}

/// One entry of a rank's list of submitted named calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Identity of name and use, see [`Tag::identity`](crate::Tag::identity).
    pub identity: u128,
}

/// A rank's view of the memory that it shares with the other ranks of one group.
///
/// Everything that is read through it was written by other processes: implementors bound every length, and callers
/// treat every value as data that may be wrong.
pub trait Windows {
    /// A piece of shared memory.
    type View<'a>: Copy
    where
        Self: 'a;

    /// A piece of another process's memory, which this process can only read.
    type Foreign<'a>: Copy
    where
        Self: 'a;

    /// This rank's index in the group.
    fn rank(&self) -> usize;

    /// The areas' sizes; `geometry().ranks` is the size of the group.
    fn geometry(&self) -> Geometry;

    /// Into how many lanes a large call is cut, at least 1: there are the channels [`Channel::Lane`] and
    /// [`Channel::NamedLane`] below this number. Equal on all ranks of a group: part of what its first member hands out.
    fn lanes(&self) -> usize;

    /// Publishes the header of call `sequence`: whoever sees it sees all that this rank wrote before.
    fn publish_header(&self, channel: Channel, sequence: u64, hash: u64);

    /// The fingerprint hash in the header of call `sequence` of rank `owner`, if that is the header there now.
    fn header(&self, channel: Channel, owner: usize, sequence: u64) -> Option<u64>;

    /// The first `len` payload bytes of slot `turn` of rank `owner`. That is the call's sequence if `len` is no more than
    /// [`SLOT_INLINE_BYTES`], and else how many longer payloads the channel's calls have had before. Writer and reader give
    /// the same `len`.
    ///
    /// # Panics
    /// If `len` is more than `geometry().slot_bytes`.
    fn slot(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> Self::View<'_>;

    /// The first `len` bytes of the hand-over buffer that `writer` fills for `reader` in use `turn`.
    ///
    /// # Panics
    /// If `len` is more than `geometry().chunk_bytes`, or writer and reader are the same.
    fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64, len: usize) -> Self::View<'_>;

    /// The first `len` bytes of the gather buffer of rank `owner` in use `turn`.
    ///
    /// # Panics
    /// If `len` is more than `geometry().chunk_bytes`.
    fn gather(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> Self::View<'_>;

    /// Where these bytes of this process are in that part of its memory which the others can be let read, if they are there.
    fn place_of(&self, bytes: &[u8]) -> Option<u64>;

    /// Whether this process can read that part of the memory of every other rank.
    fn reads_all(&self) -> bool;

    /// Sees to it that this process can read that part of the memory of rank `owner`, sooner or later. Never waits.
    fn ask_to_read(&self, owner: usize);

    /// The `len` bytes from this place on in that part of the memory of rank `owner`; `None` if they are not all in it, or this
    /// process cannot read it. The answer is the same for all ranks that can, and for as long as the group lives.
    fn foreign(&self, owner: usize, place: u64, len: usize) -> Option<Self::Foreign<'_>>;

    /// A counter of rank `owner`: whoever sees a value sees all that the owner wrote before publishing it.
    fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> u64;

    /// Sets one of this rank's own counters.
    fn publish(&self, channel: Channel, counter: Counter, value: u64);

    /// Wakes the ranks of the group that sleep. What was published before is visible to whoever wakes, or
    /// goes to sleep later. Cheap if nobody sleeps.
    fn wake(&self);

    /// Writes this rank's full fingerprint, before the header whose hash it explains.
    fn describe(&self, channel: Channel, fingerprint: &Fingerprint);

    /// The full fingerprint that rank `owner` wrote last.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes there are none.
    fn description(&self, channel: Channel, owner: usize) -> Result<Fingerprint, DecodeError>;

    /// Number of named calls that rank `owner` has announced.
    fn announced(&self, owner: usize) -> u64;

    /// Announces a named call of this rank; `false` if the list is full until the first rank has read more of it.
    fn announce(&self, announcement: Announcement) -> bool;

    /// The `index`-th announcement of rank `owner`, if it is still in the list.
    fn announcement(&self, owner: usize, index: u64) -> Option<Announcement>;

    /// Group rank 0 only: says that it has read the announcements of rank `owner` below `index`.
    fn release_announcements(&self, owner: usize, index: u64);

    /// Number of entries of the order of named calls that group rank 0 has published.
    fn ordered(&self) -> u64;

    /// Group rank 0 only: appends to the order; `false` if the list is full until all ranks have taken more of it
    /// ([`Counter::Taken`]).
    fn append_order(&self, identity: u128) -> bool;

    /// The `index`-th entry of the order, if it is published and still in the list.
    fn order(&self, index: u64) -> Option<u128>;

    /// Ends the epoch of the group on all ranks. The first cause that a rank gives stays.
    fn abort(&self, cause: &Cause);

    /// Why the group's epoch ended, if it did: the first cause found over the ranks.
    fn aborted(&self) -> Option<Cause>;

    /// Notes, for whoever looks from outside, that this rank has entered call `sequence`: its header is published. One with
    /// a ticket was noted before. Costs next to nothing; nothing depends on it.
    #[inline]
    fn note_begun(&self, channel: Channel, sequence: u64, summary: Summary, ticket: Option<Ticket>) {
        let _ = (channel, sequence, summary, ticket);
    }

    /// Notes that the channel's current call, or the one with this ticket, waits for these members.
    fn note_waiting(&self, channel: Channel, ticket: Option<Ticket>, missing: &[usize]) {
        let _ = (channel, ticket, missing);
    }

    /// When rank `owner` came to a call: to an unnamed one by publishing its header, to a named one by submitting it. By a
    /// clock that all ranks of the group share; `None` if that is not known. For calls that have waited long: it may search.
    fn arrival(&self, channel: Channel, owner: usize, sequence: u64, ticket: Option<Ticket>) -> Option<Duration> {
        let _ = (channel, owner, sequence, ticket);
        None
    }
}

/// What is known of another rank of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It lives, or nothing else is known.
    Alive,
    /// It will do nothing more, and this is how it ended.
    Gone(Ending),
}

/// What is known of the processes behind a group's ranks.
pub trait Peers {
    /// The fate of the group's rank `index`. Once `Gone`, all that it ever wrote is visible.
    fn fate(&self, index: usize) -> Fate;
}

/// Time since some fixed moment of this process.
pub trait Clock {
    /// Now.
    fn now(&self) -> Duration;
}
