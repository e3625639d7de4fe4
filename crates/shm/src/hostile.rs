//! What must hold whatever another process sends or writes: for the tests below and the fuzz targets in `fuzz/`.

use std::sync::Arc;

use kernels::{SharedBytes, copy_out};
use types::transport::{Announcement, Channel, Counter, Geometry, Peers, Windows};
use types::{GroupName, Rank};

use crate::fork::Home;
use crate::groups::GroupKey;
use crate::launcher::{hello, notice, parse_hello, parse_notice};
use crate::layout::Layout;
use crate::primitive::{AtomicU64, Ordering};
use crate::segment::Segment;
use crate::windows::GroupWindows;
use crate::wire::{Address, MAX_PACKET_BYTES, Message};
use crate::world::World;

pub(crate) const LANES: usize = 3;
pub(crate) const CHANNELS: [Channel; 7] = [
    Channel::Unnamed,
    Channel::Named,
    Channel::Small,
    Channel::Lane(1),
    Channel::Lane(2),
    Channel::NamedLane(1),
    Channel::NamedLane(2),
];
pub(crate) const COUNTERS: [Counter; 4] = [Counter::Staged, Counter::Folded, Counter::Verdict, Counter::Taken];

/// A packet of a meeting, or between those who serve group memory.
///
/// # Panics
/// If something does not hold.
pub fn packet(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    // Texts are made whole, and cut: what comes out of that is passed on as it is.
    let again = message.encode();
    assert!(again.len() <= MAX_PACKET_BYTES, "{message:?}");
    let passed_on = Message::decode(&again).expect("what this process sends is a message");
    assert_eq!(passed_on.encode(), again);
}

/// A packet between a launcher and a rank, in either direction.
///
/// # Panics
/// If something does not hold.
pub fn launch(bytes: &[u8]) {
    if let Some((rank, ending)) = parse_notice(bytes) {
        assert_eq!(parse_notice(&notice(rank, ending)), Some((rank, ending)));
    }
    if let Some(rank) = parse_hello(bytes) {
        assert_eq!(bytes, hello(rank));
    }
}

/// The members of a group, all in this process, each with mappings of its own.
pub(crate) fn members(size: usize) -> Vec<GroupWindows> {
    let home = Home::here().expect("a process may know itself");
    let (_, world_memory) = World::create_segment(size, home).expect("there is memory for a test");
    let world = |rank| {
        let segment =
            Segment::attach("test", &world_memory, World::segment_bytes(size), home).expect("it was just made");
        Arc::new(World::enter(segment, rank, vec![Address::default(); size].into(), home).expect("it was just made"))
    };
    let ranks: Vec<Rank> = (0..size).map(Rank::from_index).collect();
    let key = GroupKey::new(GroupName::new("g").expect("a good name"), ranks, 0);
    let made = GroupWindows::create(&world(Rank(0)), &key, Geometry::of(size), LANES, b"settings");
    let (first, memory) = made.expect("there is memory for a test");
    let other = |rank| GroupWindows::attach(&world(Rank::from_index(rank)), &key, &memory).expect("it was just made");
    core::iter::once(first).chain((1..size).map(other)).collect()
}

pub(crate) fn read(view: SharedBytes<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    copy_out(&mut bytes, view);
    bytes
}

/// Everything that a rank reads.
pub(crate) fn read_all(own: &GroupWindows) {
    let owners = own.geometry().ranks;
    for channel in CHANNELS {
        for owner in 0..owners {
            for at in [0, 1, 1023, 1 << 40, u64::MAX] {
                let _ = own.header(channel, owner, at);
                let _ = read(own.slot(channel, owner, at, 100));
                let _ = read(own.gather(channel, owner, at, 64));
                let _ = own.announcement(owner, at);
                let _ = own.order(at);
                if owner != own.rank() {
                    let _ = read(own.pair(channel, owner, own.rank(), at, 64));
                }
            }
            for counter in COUNTERS {
                let _ = own.counter(channel, owner, counter);
            }
            let _ = own.description(channel, owner);
            let _ = own.announced(owner);
            let _ = own.peers().fate(owner);
        }
    }
    let _ = own.announce(Announcement { identity: 1 });
    let _ = own.append_order(1);
    let _ = own.ordered();
    let _ = own.aborted();
    own.wake();
}

/// Memory of a group, and of the world, as a peer may write it: where (4 bytes; the highest bit for the world's) and what
/// (8 bytes), as often as there are bytes.
///
/// # Panics
/// If a member does.
pub fn memory(bytes: &[u8]) {
    thread_local! {
        static GROUP: Vec<GroupWindows> = members(3);
    }
    GROUP.with(|group| {
        let (own, peer) = (group[0].segments(), group[1].segments());
        let ends = [group[0].control_bytes(), own[1].len()];
        let words = |segment: &Segment, end: usize| -> Vec<u64> {
            (0..end).step_by(8).map(|at| segment.at::<AtomicU64>(at).load(Ordering::Relaxed)).collect()
        };
        let before = [0, 1].map(|which| words(own[which], ends[which]));
        for (at, value) in writes(bytes) {
            let which = usize::from(at >> 31 != 0);
            peer[which].at::<AtomicU64>(place(at, ends[which])).store(value, Ordering::Relaxed);
        }
        group.iter().for_each(read_all);
        // Whatever comes next begins with what was there.
        for (which, words) in before.iter().enumerate() {
            for (word, at) in words.iter().zip((0..).step_by(8)) {
                own[which].at::<AtomicU64>(at).store(*word, Ordering::Relaxed);
            }
        }
    });
}

/// Makes a view of all of every area; one that is not inside the memory panics.
fn view_all(own: &GroupWindows) {
    let Geometry { ranks, slot_bytes, chunk_bytes, pair_depth } = own.geometry();
    let turns = (0..=2 * u64::try_from(pair_depth).expect("a small number")).chain([1 << 40, u64::MAX]);
    for (channel, turn) in
        CHANNELS[..2 + own.lanes().min(LANES)].iter().flat_map(|at| turns.clone().map(|turn| (*at, turn)))
    {
        for owner in 0..ranks {
            let _ = own.slot(channel, owner, turn, slot_bytes);
            let _ = own.gather(channel, owner, turn, chunk_bytes);
            for reader in (0..ranks).filter(|reader| *reader != owner) {
                let _ = own.pair(channel, owner, reader, turn, chunk_bytes);
            }
        }
    }
}

/// Memory that another process hands over as a group's: writes as above into the part that is believed, once checked. Other sizes
/// that need as many pages are believed: they can spoil what the group's calls give, and no access is outside of the memory.
///
/// # Panics
/// If it is taken for memory of another size than it is.
pub fn handed_over(bytes: &[u8]) {
    /// The sizes and the settings.
    const CHECKED: usize = 128 + crate::windows::MAX_SETTINGS_BYTES;
    thread_local! {
        static GROUP: Vec<GroupWindows> = members(3);
    }
    GROUP.with(|group| {
        let (world, key) = (group[1].world(), group[1].key());
        let made = GroupWindows::create(world, key, Geometry::of(3), LANES, b"settings");
        let (made, descriptor) = made.expect("there is memory for a test");
        for (at, value) in writes(bytes) {
            made.segments()[0].at::<AtomicU64>(place(at, CHECKED)).store(value, Ordering::Relaxed);
        }
        if let Ok(taken) = GroupWindows::attach(world, key, &descriptor) {
            let layout = Layout::new(taken.geometry(), taken.lanes()).expect("it was checked");
            assert_eq!(layout.total(), made.segments()[0].len());
            view_all(&taken);
            assert!(taken.settings().len() <= crate::windows::MAX_SETTINGS_BYTES);
        }
    });
}

fn writes(bytes: &[u8]) -> impl Iterator<Item = (u32, u64)> {
    bytes.as_chunks::<12>().0.iter().map(|write| {
        let (at, value) = write.split_at(4);
        let [at, value] =
            [at, value].map(|bytes| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
        (u32::try_from(at).expect("four bytes"), value)
    })
}

/// The place of a word among so many bytes.
fn place(at: u32, bytes: usize) -> usize {
    usize::try_from(at & i32::MAX.cast_unsigned()).expect("31 bits") % (bytes / 8) * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostile::drive;
    use types::Ending;

    fn write(at: u32, value: u64) -> Vec<u8> {
        [&at.to_le_bytes()[..], &value.to_le_bytes()].concat()
    }

    #[test]
    fn packets() {
        let seeds: Vec<_> = crate::wire::tests::samples().iter().map(Message::encode).collect();
        drive("packet", &seeds, packet);
    }

    #[test]
    fn launchers_and_their_ranks() {
        let seeds = [hello(Rank(3)).to_vec(), notice(Rank(1), Ending::Signalled(9)).to_vec()];
        drive("launch", &seeds, launch);
    }

    #[test]
    fn memory_that_a_peer_writes() {
        let group = members(3);
        let word = |offset: usize| u32::try_from(offset / 8).expect("a small segment");
        let layout = group[0].layout();
        let (abort, cause) = (word(layout.abort()), word(layout.cause(1)));
        let side = word(layout.side(Channel::Unnamed, 1));
        let first = (1 << 31) + word(4096);
        let seeds = [
            [write(abort, 2), write(cause, 1), write(cause + 1, 2)].concat(),
            [write(side, 56), write(side + 1, 0x0001_0b01), write(side, 300)].concat(),
            [write(word(layout.ordered()), u64::MAX), write(word(layout.announced(2)), 1 << 40)].concat(),
            [write(first, 7), write(first + 16, 2), write(first + 32, 1)].concat(),
        ];
        drive("memory", &seeds, memory);
    }

    #[test]
    fn memory_that_is_handed_over() {
        let seeds = [write(1, 1 << 20), [write(2, 4), write(6, 2)].concat(), write(7, 4000), write(0, 0)];
        drive("handed_over", &seeds, handed_over);
    }
}
