//! A group's windows: its segment as one member sees it.

use core::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as LocalOrdering};

use kernels::{ForeignBytes, SharedBytes};
use types::transport::{Announcement, Channel, Counter, Geometry, Windows};
use types::{Cause, DecodeError, Error, Fingerprint, Rank, Result, Summary, Ticket};

use crate::blackbox::Journal;
use crate::door::publish_fence;
use crate::groups::GroupKey;
use crate::header::{Header, INLINE_BYTES, INLINE_OFFSET, PAYLOAD_OFFSET};
use crate::layout::{LINE_BYTES, Layout, RING_ENTRIES, count, index};
use crate::primitive::{AtomicU64, Ordering};
use crate::segment::Segment;
use crate::world::{GroupPeers, World};

mod founding;

const MAGIC: u64 = u64::from_le_bytes(*b"foldgrp4");
/// Room for the settings that a group's first member hands out.
pub const MAX_SETTINGS_BYTES: usize = 1024;

const SETTINGS_WORDS: usize = MAX_SETTINGS_BYTES / 8;
const SIDE_WORDS: usize = Fingerprint::MAX_ENCODED_BYTES / 8;
const CAUSE_WORDS: usize = Cause::ENCODED_BYTES / 8;
/// Offset of the settings in the segment: after magic, total, ranks, slot, chunk, depth, lanes, length of
/// the settings.
const AT_SETTINGS: usize = 128;
type Prologue = [AtomicU64; 8];
/// The page that they are on.
const PROLOGUE_BYTES: usize = 4096;

/// The memory that the members of a group share, as one of them sees it.
pub struct GroupWindows {
    segment: Segment,
    layout: Layout,
    rank: usize,
    members: Arc<[Rank]>,
    world: Arc<World>,
    key: GroupKey,
    journal: Arc<Journal>,
    settings: Vec<u8>,
    /// Whether a thread of this process has given its reason for ending the epoch: only one may write the line.
    has_spoken: AtomicBool,
}

impl fmt::Debug for GroupWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWindows").field("key", &self.key).field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl GroupWindows {
    /// Makes the group's segment, as its first member does, and the descriptor for the others.
    ///
    /// # Errors
    /// [`Error::Resource`] if the memory cannot be had; [`Error::InvalidArgument`] if the settings are too long.
    pub(crate) fn create(
        world: &Arc<World>,
        key: &GroupKey,
        geometry: Geometry,
        lanes: usize,
        settings: &[u8],
    ) -> Result<(GroupWindows, OwnedFd)> {
        if settings.len() > MAX_SETTINGS_BYTES {
            return Err(Error::invalid(
                "group settings",
                format!("at most {MAX_SETTINGS_BYTES} bytes"),
                format!("{} bytes", settings.len()),
            ));
        }
        let layout = Layout::new(geometry, lanes)?;
        let (segment, fd) = Segment::create(&format!("group '{}'", key.name()), layout.total(), world.home())?;
        store_bytes(segment.at::<[AtomicU64; SETTINGS_WORDS]>(AT_SETTINGS), settings);
        let fields = [
            layout.total(),
            geometry.ranks,
            geometry.slot_bytes,
            geometry.chunk_bytes,
            geometry.pair_depth,
            lanes,
            settings.len(),
        ];
        let prologue = segment.at::<Prologue>(0);
        for (word, field) in prologue[1..].iter().zip(fields) {
            word.store(count(field), Ordering::Relaxed);
        }
        prologue[0].store(MAGIC, Ordering::Release);
        Ok((GroupWindows::over(segment, layout, world, key, settings.to_vec()), fd))
    }

    /// Maps the segment that the group's first member made. Nothing in it is believed before it was checked.
    ///
    /// # Errors
    /// [`Error::Resource`] if it is no segment of this version for a group of this size, or cannot be mapped.
    pub(crate) fn attach(world: &Arc<World>, key: &GroupKey, fd: impl AsFd) -> Result<GroupWindows> {
        let len = Segment::size_of(&fd).map_err(|error| foreign(key, error.to_string()))?;
        if len < PROLOGUE_BYTES {
            return Err(foreign(key, format!("a segment of {len} bytes")));
        }
        let segment = Segment::attach(&format!("group '{}'", key.name()), fd, len, world.home())?;
        let (layout, settings_len) = read_prologue(&segment, key, len)?;
        let mut settings = load_bytes(segment.at::<[AtomicU64; SETTINGS_WORDS]>(AT_SETTINGS));
        settings.truncate(settings_len);
        Ok(GroupWindows::over(segment, layout, world, key, settings))
    }

    /// Ends the epoch because this rank cannot map the segment: for the page or two where that is said there may be room.
    ///
    /// # Errors
    /// [`Error::Resource`] if there is not.
    pub(crate) fn give_up(world: &World, key: &GroupKey, fd: impl AsFd) -> Result<()> {
        let what = format!("group '{}'", key.name());
        let len = Segment::size_of(&fd).map_err(|error| foreign(key, error.to_string()))?;
        let prologue = Segment::attach_start(&what, &fd, PROLOGUE_BYTES, world.home())?;
        let (layout, _) = read_prologue(&prologue, key, len)?;
        drop(prologue);
        let rank = own_index(world, key);
        let needed = layout.abort().max(layout.cause(rank)) + LINE_BYTES;
        let start = Segment::attach_start(&what, &fd, needed.next_multiple_of(PROLOGUE_BYTES), world.home())?;
        speak(&start, &layout, rank, &Cause::Failed { by: world.rank() });
        publish_fence();
        key.ranks().iter().for_each(|rank| world.door(*rank).ring());
        Ok(())
    }

    fn over(segment: Segment, layout: Layout, world: &Arc<World>, key: &GroupKey, settings: Vec<u8>) -> GroupWindows {
        let members: Arc<[Rank]> = key.ranks().into();
        GroupWindows {
            segment,
            layout,
            rank: own_index(world, key),
            members,
            world: Arc::clone(world),
            key: key.clone(),
            journal: world.journal(key),
            settings,
            has_spoken: AtomicBool::new(false),
        }
    }

    /// What the group was made as.
    #[must_use]
    pub const fn key(&self) -> &GroupKey {
        &self.key
    }

    /// The settings that the group's first member handed out with the memory.
    #[must_use]
    pub fn settings(&self) -> &[u8] {
        &self.settings
    }

    /// The world ranks of the members, in the group's order.
    #[must_use]
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The world that the group's processes belong to.
    #[must_use]
    pub const fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Where this process notes its calls.
    #[must_use]
    #[inline]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The fates of the members.
    #[must_use]
    pub fn peers(&self) -> GroupPeers {
        self.world.peers(Arc::clone(&self.members))
    }

    /// All places below are bounded by the layout once the owner is (the layout bounds the channel).
    #[inline]
    fn bound(&self, owner: usize) -> usize {
        assert!(owner < self.layout.geometry().ranks, "a group has no index {owner}");
        owner
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass offsets of the layout for a bounded owner; they are multiples of 8 and inside the segment,
        // whose length is the layout's total (checked when it was made or attached).
        unsafe { self.segment.at_unchecked(offset) }
    }

    #[inline]
    fn header_line(&self, channel: Channel, owner: usize, sequence: u64) -> &Header {
        let offset = self.layout.slot(channel, self.bound(owner), sequence);
        // SAFETY: a slot of the layout for a bounded owner is inside the segment and begins on a cache line.
        unsafe { self.segment.at_unchecked(offset) }
    }

    #[inline]
    fn view(&self, offset: usize, len: usize) -> SharedBytes<'_> {
        debug_assert!(offset + len <= self.segment.len());
        // SAFETY: offset and length lie inside one area of the layout (callers bound the length), so inside the mapping.
        let place = unsafe { self.segment.base().add(offset) };
        // SAFETY: the bytes stay mapped, readable and writable, while `self` is borrowed.
        unsafe { SharedBytes::from_raw(place.as_ptr(), len) }
    }

    fn entry(&self, offset: usize) -> u128 {
        let [low, high] = [self.word(offset), self.word(offset + 8)].map(|word| word.load(Ordering::Relaxed));
        u128::from(high) << 64 | u128::from(low)
    }

    fn set_entry(&self, offset: usize, identity: u128) {
        let [low, high] = halves(identity);
        self.word(offset).store(low, Ordering::Relaxed);
        self.word(offset + 8).store(high, Ordering::Relaxed);
    }

    /// Wakes all members' waiting threads, this process's included.
    fn wake_everybody(&self) {
        publish_fence();
        for rank in &*self.members {
            self.world.door(*rank).ring();
        }
    }
}

impl Windows for GroupWindows {
    type View<'a> = SharedBytes<'a>;
    type Foreign<'a> = ForeignBytes<'a>;

    #[inline]
    fn rank(&self) -> usize {
        self.rank
    }

    #[inline]
    fn geometry(&self) -> Geometry {
        self.layout.geometry()
    }

    #[inline]
    fn lanes(&self) -> usize {
        self.layout.lanes()
    }

    #[inline]
    fn publish_header(&self, channel: Channel, sequence: u64, hash: u64) {
        self.header_line(channel, self.rank, sequence).publish(sequence, hash);
    }

    #[inline]
    fn header(&self, channel: Channel, owner: usize, sequence: u64) -> Option<u64> {
        self.header_line(channel, owner, sequence).read(sequence)
    }

    #[inline]
    fn slot(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        assert!(len <= self.layout.geometry().slot_bytes, "{len} bytes do not fit a slot");
        let slot = self.layout.slot(channel, self.bound(owner), turn);
        self.view(slot + if len <= INLINE_BYTES { INLINE_OFFSET } else { PAYLOAD_OFFSET }, len)
    }

    #[inline]
    fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        assert!(len <= self.layout.geometry().chunk_bytes, "{len} bytes do not fit a chunk");
        assert!(writer != reader, "index {writer} hands nothing over to itself");
        self.view(self.layout.pair(channel, self.bound(writer), self.bound(reader), turn), len)
    }

    #[inline]
    fn gather(&self, channel: Channel, owner: usize, turn: u64, len: usize) -> SharedBytes<'_> {
        assert!(len <= self.layout.geometry().chunk_bytes, "{len} bytes do not fit a chunk");
        self.view(self.layout.gather(channel, self.bound(owner), turn), len)
    }

    fn place_of(&self, bytes: &[u8]) -> Option<u64> {
        self.world.arenas().place_of(bytes)
    }

    fn reads_all(&self) -> bool {
        let mut others = self.members.iter().enumerate().filter(|(index, _)| *index != self.rank);
        others.all(|(_, rank)| self.world.arenas().can_read(*rank))
    }

    fn ask_to_read(&self, owner: usize) {
        self.world.ask_for_arena(self.members[self.bound(owner)]);
    }

    fn foreign(&self, owner: usize, place: u64, len: usize) -> Option<ForeignBytes<'_>> {
        self.world.arenas().foreign(self.members[self.bound(owner)], place, len)
    }

    #[inline]
    fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> u64 {
        self.word(self.layout.counter(channel, self.bound(owner), counter)).load(Ordering::Acquire)
    }

    #[inline]
    fn publish(&self, channel: Channel, counter: Counter, value: u64) {
        self.word(self.layout.counter(channel, self.rank, counter)).store(value, Ordering::Release);
    }

    #[inline]
    fn wake(&self) {
        publish_fence();
        for (index, rank) in self.members.iter().enumerate() {
            if index != self.rank {
                self.world.door(*rank).ring();
            }
        }
    }

    fn describe(&self, channel: Channel, fingerprint: &Fingerprint) {
        let side = self.layout.side(channel, self.rank);
        let bytes = fingerprint.encode();
        store_bytes(self.segment.at::<[AtomicU64; SIDE_WORDS]>(side + 8), &bytes);
        self.word(side).store(count(bytes.len()), Ordering::Release);
    }

    fn description(&self, channel: Channel, owner: usize) -> Result<Fingerprint, DecodeError> {
        let side = self.layout.side(channel, self.bound(owner));
        let len = index(self.word(side).load(Ordering::Acquire));
        let bytes = load_bytes(self.segment.at::<[AtomicU64; SIDE_WORDS]>(side + 8));
        Fingerprint::decode(bytes.get(..len).ok_or(DecodeError)?)
    }

    fn announced(&self, owner: usize) -> u64 {
        self.word(self.layout.announced(self.bound(owner))).load(Ordering::Acquire)
    }

    fn announce(&self, announcement: Announcement) -> bool {
        let announced = self.announced(self.rank);
        let released = self.word(self.layout.released(self.rank)).load(Ordering::Acquire);
        // A peer's nonsense (more released than announced) is a huge difference: full.
        if announced.wrapping_sub(released) >= count(RING_ENTRIES) {
            return false;
        }
        self.set_entry(self.layout.announcement(self.rank, announced), announcement.identity);
        self.word(self.layout.announced(self.rank)).store(announced.wrapping_add(1), Ordering::Release);
        true
    }

    fn announcement(&self, owner: usize, index: u64) -> Option<Announcement> {
        if !in_list(index, self.announced(owner)) {
            return None;
        }
        let identity = self.entry(self.layout.announcement(owner, index));
        Some(Announcement { identity })
    }

    fn release_announcements(&self, owner: usize, index: u64) {
        self.word(self.layout.released(self.bound(owner))).store(index, Ordering::Release);
    }

    fn ordered(&self) -> u64 {
        self.word(self.layout.ordered()).load(Ordering::Acquire)
    }

    fn append_order(&self, identity: u128) -> bool {
        let ordered = self.ordered();
        let taken = |owner| self.counter(Channel::Named, owner, Counter::Taken);
        if (0..self.members.len()).any(|owner| ordered.wrapping_sub(taken(owner)) >= count(RING_ENTRIES)) {
            return false;
        }
        self.set_entry(self.layout.order(ordered), identity);
        self.word(self.layout.ordered()).store(ordered.wrapping_add(1), Ordering::Release);
        true
    }

    fn order(&self, index: u64) -> Option<u128> {
        in_list(index, self.ordered()).then(|| self.entry(self.layout.order(index)))
    }

    fn abort(&self, cause: &Cause) {
        if !self.world.home().is_here() {
            return;
        }
        let flag = self.word(self.layout.abort());
        if flag.load(Ordering::Acquire) == 0 && !self.has_spoken.swap(true, LocalOrdering::Relaxed) {
            speak(&self.segment, &self.layout, self.rank, cause);
        }
        self.wake_everybody();
    }

    #[inline]
    fn aborted(&self) -> Option<Cause> {
        match self.word(self.layout.abort()).load(Ordering::Acquire) {
            0 => None,
            author => Some(self.cause_by(author)),
        }
    }

    #[inline]
    fn note_begun(&self, channel: Channel, sequence: u64, summary: Summary, ticket: Option<Ticket>) {
        match (channel, ticket) {
            (Channel::Unnamed, None) => self.journal.begin(sequence, summary),
            (Channel::Unnamed, Some(ticket)) => self.journal.begun(ticket, Some(sequence)),
            (Channel::Named | Channel::Small, Some(ticket)) => self.journal.begun(ticket, None),
            // The first lane speaks for all.
            (Channel::Lane(_) | Channel::NamedLane(_), _) | (Channel::Named | Channel::Small, None) => {}
        }
    }

    fn note_waiting(&self, channel: Channel, ticket: Option<Ticket>, missing: &[usize]) {
        // Without a ticket it is the unnamed call under way.
        if ticket.is_some() || channel.of_kind() == Channel::Unnamed {
            self.journal.waiting(ticket, missing);
        }
    }

    fn arrival(
        &self,
        channel: Channel,
        owner: usize,
        sequence: u64,
        ticket: Option<Ticket>,
    ) -> Option<core::time::Duration> {
        self.journal.arrival(owner, sequence, ticket, channel.of_kind() == Channel::Named)
    }
}

impl GroupWindows {
    #[cold]
    fn cause_by(&self, author: u64) -> Cause {
        let author = index(author - 1);
        let Some(by) = self.members.get(author) else { return Cause::Failed { by: self.world.rank() } };
        let bytes = load_bytes(self.segment.at::<[AtomicU64; CAUSE_WORDS]>(self.layout.cause(author)));
        let cause = bytes.try_into().ok().and_then(|bytes| Cause::decode(&bytes));
        cause.unwrap_or(Cause::Failed { by: *by })
    }
}

impl Drop for GroupWindows {
    fn drop(&mut self) {
        if self.rank == 0 {
            self.world.withdraw(&self.key);
        }
    }
}

fn foreign(key: &GroupKey, got: String) -> Error {
    let wanted = format!("the memory of group '{}'", key.name());
    Error::resource(wanted, got, "see that all ranks run the same version")
}

fn own_index(world: &World, key: &GroupKey) -> usize {
    let place = key.ranks().iter().position(|rank| *rank == world.rank());
    place.expect("only members open a group (checked by the desk)")
}

/// The layout that the first member wrote into a segment of `len` bytes, checked, and the length of the settings.
fn read_prologue(segment: &Segment, key: &GroupKey, len: usize) -> Result<(Layout, usize)> {
    // Each word is read once: what is checked is what is used.
    let mut words = [0; 8];
    for (word, place) in words.iter_mut().zip(segment.at::<Prologue>(0)) {
        *word = place.load(Ordering::Acquire);
    }
    let [magic, total, ranks, slot_bytes, chunk_bytes, pair_depth, lanes, settings_len] = words.map(index);
    let geometry = Geometry { ranks, slot_bytes, chunk_bytes, pair_depth };
    if count(magic) != MAGIC || ranks != key.ranks().len() || settings_len > MAX_SETTINGS_BYTES {
        return Err(foreign(key, format!("memory of another kind ({geometry:?})")));
    }
    let layout = Layout::new(geometry, lanes)?;
    if layout.total() != len || total != len {
        return Err(foreign(key, format!("{len} bytes instead of {} for {geometry:?}", layout.total())));
    }
    Ok((layout, settings_len))
}

/// Gives the reason of the member of index `rank` for ending the epoch; the first one stays.
fn speak(segment: &Segment, layout: &Layout, rank: usize, cause: &Cause) {
    // The cause is complete before the flag names its author: a rank that dies in between has said nothing.
    store_bytes(segment.at::<[AtomicU64; CAUSE_WORDS]>(layout.cause(rank)), &cause.encode());
    let flag = segment.at::<AtomicU64>(layout.abort());
    let _ = flag.compare_exchange(0, count(rank) + 1, Ordering::AcqRel, Ordering::Acquire);
}

/// Whether entry `at` is published and not yet overwritten in a list of which `published` entries are.
fn in_list(at: u64, published: u64) -> bool {
    at < published && published - at <= count(RING_ENTRIES)
}

pub(crate) fn halves(value: u128) -> [u64; 2] {
    let bytes = value.to_le_bytes();
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(half)
    };
    [half(0), half(8)]
}

pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(value), Ordering::Relaxed);
    }
}

fn load_bytes(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

#[cfg(any(test, fuzzing))]
impl GroupWindows {
    /// The memory of the group and of the world, as a peer has it.
    pub(crate) fn segments(&self) -> [&Segment; 2] {
        [&self.segment, self.world.segment()]
    }

    /// Bytes of the segment before the slots.
    pub(crate) fn control_bytes(&self) -> usize {
        self.layout.order(count(RING_ENTRIES) - 1) + size_of::<u128>()
    }

    #[cfg(test)]
    pub(crate) const fn layout(&self) -> &Layout {
        &self.layout
    }
}

#[cfg(test)]
mod tests;
