use std::sync::Barrier;
use std::thread;

use kernels::copy_in;
use types::{DataType, Elements, OpKind, Parts, Reduction};

use super::*;
use crate::founding::Founding;
use crate::hostile::{CHANNELS, COUNTERS, LANES, members, read, read_all};

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 251 + seed * 13) % 256).unwrap()).collect()
}

fn fingerprint(name: &str) -> Fingerprint {
    Fingerprint {
        kind: OpKind::AllReduce,
        dtype: DataType::Float32,
        reduction: Reduction::Sum,
        count: Elements(4),
        root: None,
        parts: Parts::default(),
        epoch: 2,
        plan: 77,
        settings: 5,
        name: name.into(),
    }
}

#[test]
fn everybody_sees_what_the_owner_wrote() {
    for size in [1, 2, 3, 5] {
        let group = members(size);
        let Geometry { slot_bytes, chunk_bytes, .. } = group[0].geometry();
        for channel in CHANNELS {
            for (owner, own) in group.iter().enumerate() {
                for (sequence, len) in [(1, 0), (2, 1), (3, 48), (4, 49), (5, slot_bytes)] {
                    let sent = pattern(len, owner);
                    copy_in(own.slot(channel, owner, sequence, len), &sent);
                    own.publish_header(channel, sequence, sequence ^ 99);
                    for peer in &group {
                        assert_eq!(peer.header(channel, owner, sequence), Some(sequence ^ 99));
                        assert_eq!(peer.header(channel, owner, sequence + 2), None);
                        assert_eq!(read(peer.slot(channel, owner, sequence, len)), sent);
                    }
                }
                let sent = pattern(chunk_bytes, owner);
                copy_in(own.gather(channel, owner, 3, chunk_bytes), &sent);
                for peer in &group {
                    assert_eq!(read(peer.gather(channel, owner, 3, chunk_bytes)), sent);
                }
            }
        }
    }
}

#[test]
fn pair_buffers_reach_their_reader_and_change_hands() {
    for size in [2, 3, 5] {
        let group = members(size);
        let Geometry { chunk_bytes, pair_depth, .. } = group[0].geometry();
        for turn in 0..4 * count(pair_depth) {
            let seed = |writer: usize, reader: usize| writer * 17 + reader + index(turn);
            let pairs = (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| a != b);
            for (writer, reader) in pairs.clone() {
                let view = group[writer].pair(Channel::Named, writer, reader, turn, chunk_bytes);
                copy_in(view, &pattern(chunk_bytes, seed(writer, reader)));
            }
            for (writer, reader) in pairs {
                let view = group[reader].pair(Channel::Named, writer, reader, turn, chunk_bytes);
                assert_eq!(read(view), pattern(chunk_bytes, seed(writer, reader)));
                // The same place, the next time it is used: what was read becomes the reader's to write.
                let later = group[reader].layout.pair(Channel::Named, reader, writer, turn + count(pair_depth));
                assert_eq!(later, group[reader].layout.pair(Channel::Named, writer, reader, turn));
            }
        }
    }
}

#[test]
fn counters_are_the_owners_and_may_be_set_back() {
    let group = members(3);
    for channel in CHANNELS {
        for (at, counter) in COUNTERS.into_iter().enumerate() {
            for (owner, own) in group.iter().enumerate() {
                own.publish(channel, counter, count(at * 10 + owner));
            }
        }
        for (at, counter) in COUNTERS.into_iter().enumerate() {
            for owner in 0..3 {
                assert_eq!(group[(owner + 1) % 3].counter(channel, owner, counter), count(at * 10 + owner));
            }
        }
        group[2].publish(channel, Counter::Staged, 1);
        assert_eq!(group[0].counter(channel, 2, Counter::Staged), 1);
    }
}

#[test]
fn descriptions_are_whole_also_after_longer_ones() {
    let group = members(2);
    assert_eq!(group[0].description(Channel::Named, 1), Err(DecodeError));
    for name in ["", "grad", &"n".repeat(200), "short"] {
        group[1].describe(Channel::Named, &fingerprint(name));
        assert_eq!(group[0].description(Channel::Named, 1), Ok(fingerprint(name)));
    }
    assert_eq!(group[0].description(Channel::Unnamed, 1), Err(DecodeError));
}

#[test]
fn announcements_come_in_order_and_wait_for_room() {
    let group = members(2);
    let identity = |at: u64| u128::from(at) << 70 | u128::from(at);
    let entries = count(RING_ENTRIES);
    let mut announced = 0;
    for read in (0..5 * entries).step_by(100) {
        while group[1].announce(Announcement { identity: identity(announced) }) {
            announced += 1;
        }
        assert_eq!(group[0].announced(1), announced);
        assert_eq!(announced - read, entries);
        for at in read..announced {
            assert_eq!(group[0].announcement(1, at), Some(Announcement { identity: identity(at) }));
        }
        assert_eq!(group[0].announcement(1, announced), None);
        if read > 0 {
            assert_eq!(group[0].announcement(1, read - 1), None);
        }
        group[0].release_announcements(1, read + 100);
    }
    assert_eq!(group[0].announced(0), 0);
}

#[test]
fn the_order_waits_for_the_slowest() {
    let group = members(3);
    let entries = count(RING_ENTRIES);
    let mut ordered = 0;
    for slowest in (0..3 * entries).step_by(512) {
        while group[0].append_order(u128::from(ordered)) {
            ordered += 1;
        }
        assert_eq!(ordered - slowest, entries);
        for peer in &group {
            assert_eq!(peer.ordered(), ordered);
            assert_eq!(peer.order(slowest), Some(u128::from(slowest)));
            assert_eq!(peer.order(ordered - 1), Some(u128::from(ordered - 1)));
            assert_eq!(peer.order(ordered), None);
        }
        group[0].publish(Channel::Named, Counter::Taken, ordered);
        group[1].publish(Channel::Named, Counter::Taken, ordered);
        assert!(!group[0].append_order(0), "rank 2 has not taken any");
        group[2].publish(Channel::Named, Counter::Taken, slowest + 512);
    }
}

#[test]
fn the_first_cause_stays() {
    let group = members(3);
    assert!(group.iter().all(|peer| peer.aborted().is_none()));
    let first = Cause::RankDied { peer: Rank(2), ending: types::Ending::Signalled(9) };
    group[1].abort(&first);
    group[0].abort(&Cause::Requested { by: Rank(0) });
    group[1].abort(&Cause::Requested { by: Rank(1) });
    assert!(group.iter().all(|peer| peer.aborted() == Some(first.clone())));
}

#[test]
fn of_causes_at_once_one_is_seen_by_all() {
    for _ in 0..50 {
        let group = members(4);
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for own in &group {
                scope.spawn(|| {
                    start.wait();
                    own.abort(&Cause::Requested { by: own.members()[own.rank()] });
                });
            }
        });
        let seen: Vec<_> = group.iter().map(GroupWindows::aborted).collect();
        assert!(matches!(seen[0], Some(Cause::Requested { .. })));
        assert!(seen.iter().all(|cause| *cause == seen[0]), "{seen:?}");
    }
}

#[test]
fn settings_travel_with_the_memory() {
    let group = members(2);
    assert_eq!(group[1].settings(), b"settings");
    assert!(group.iter().all(|member| member.lanes() == LANES));
    let long = GroupWindows::create(group[0].world(), group[0].key(), Geometry::of(2), 1, &[0; MAX_SETTINGS_BYTES + 1]);
    assert!(matches!(long, Err(Error::InvalidArgument(_))));
}

#[test]
#[should_panic(expected = "do not fit a slot")]
fn a_slot_has_its_bound() {
    let _ = members(2)[0].slot(Channel::Unnamed, 0, 1, (32 << 10) + 1);
}

#[test]
#[should_panic(expected = "no index 2")]
fn an_index_outside_the_group_reaches_no_memory() {
    let _ = members(2)[0].counter(Channel::Unnamed, 2, Counter::Staged);
}

/// A small generator of nonsense (xorshift, after Marsaglia, 2003).
struct Nonsense(u64);

impl Nonsense {
    fn next(&mut self) -> u64 {
        for (left, by) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << by } else { self.0 >> by };
        }
        self.0
    }

    fn scribble(&mut self, segment: &Segment, from: usize, to: usize) {
        for at in (from..to).step_by(8) {
            // Small numbers, all ones and noise are the values that bounds get wrong.
            let value = match self.next() % 4 {
                0 => self.next() % 4096,
                1 => u64::MAX - self.next() % 3,
                2 => 0,
                _ => self.next(),
            };
            segment.at::<AtomicU64>(at).store(value, Ordering::Relaxed);
        }
    }
}

#[test]
fn nonsense_from_a_peer_is_no_more_than_wrong_values() {
    let group = members(3);
    let mut nonsense = Nonsense(0x9e37_79b9);
    let control_end = group[0].control_bytes();
    for _ in 0..40 {
        nonsense.scribble(&group[1].segment, 0, control_end);
        group.iter().for_each(read_all);
    }
}

#[test]
fn memory_that_is_no_groups_is_refused() {
    let group = members(3);
    let (world, key) = (group[0].world(), group[0].key());
    let mut nonsense = Nonsense(77);
    for round in 0..500 {
        let (made, fd) = GroupWindows::create(world, key, Geometry::of(3), 2, b"").unwrap();
        let word = made.segment.at::<AtomicU64>(index(nonsense.next() % 7) * 8);
        let before = word.swap(nonsense.next() >> (round % 64), Ordering::Relaxed);
        let attached = GroupWindows::attach(world, key, &fd);
        if word.load(Ordering::Relaxed) != before {
            assert!(attached.is_err(), "accepted {:?}", made.segment.at::<Prologue>(0));
        }
    }
    let (_, tiny) = Segment::create("test", 100, world.home()).unwrap();
    assert!(GroupWindows::attach(world, key, &tiny).is_err());
    let (_, other) = GroupWindows::create(world, key, Geometry::of(2), 1, b"").unwrap();
    assert!(GroupWindows::attach(world, key, &other).is_err(), "a segment for two ranks");
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(GroupWindows::attach(world, key, &pipe).is_err());
}

#[test]
fn the_first_decision_of_a_try_stays_for_all() {
    let late = Cause::Deadline { by: Rank(1), peer: Rank(2) };
    let all = members(3);
    assert!(all.iter().all(|member| member.founding() == Founding::Open(0) && !member.has_arrived(1, 0)));
    assert_eq!(all[1].give_up_founding(0, &late), Founding::Open(1));
    assert_eq!(all[2].give_up_founding(0, &Cause::Requested { by: Rank(2) }), Founding::Open(1));
    assert!(all.iter().all(|member| member.found(0) == Founding::Open(1)));
    assert!(all.iter().all(|member| member.why_not_founded() == Some(late.clone())));

    all.iter().for_each(|member| member.arrive(1));
    assert!((0..3).all(|index| all[2].has_arrived(index, 1) && !all[2].has_arrived(index, 0)));
    assert_eq!(all[0].found(1), Founding::Founded);
    assert_eq!(all[1].give_up_founding(1, &late), Founding::Founded);
    assert!(all.iter().all(|member| member.founding() == Founding::Founded && member.aborted().is_none()));
    let later = Cause::Requested { by: Rank(1) };
    all[1].abort(&later);
    assert_eq!(all[2].aborted(), Some(later));
}
