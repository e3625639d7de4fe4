use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use types::GroupName;

use super::*;
use crate::groups::{GroupKey, Request};
use crate::meeting::{JobKey, Meeting};
use crate::segment::Segment;
use crate::wire::Address;

/// Ranks that are threads of this process, with their monitors.
fn world(size: usize) -> Vec<Arc<World>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let key = JobKey::new(format!("monitor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let meet = |rank| {
        let limit = Some(Duration::from_secs(60));
        let (world, monitor) = Meeting::new(&key, Rank::from_index(rank), size, limit).meet().unwrap();
        thread::spawn(move || monitor.run());
        world
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || meet(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn key(size: usize) -> GroupKey {
    let ranks: Vec<Rank> = (0..size).map(Rank::from_index).collect();
    GroupKey::new(GroupName::new("g").unwrap(), ranks, 0)
}

fn take(request: &Request) -> Result<GroupWindows> {
    loop {
        if let Some(result) = request.try_take() {
            return result;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn strangers_do_not_disturb_the_serving_of_memory() {
    let worlds = world(2);
    let address = &worlds[0].addresses[0].0;
    let mut held = Vec::new();
    for round in 0..200_usize {
        // All that may be held are held; the rest are turned away.
        let Ok(socket) = connect_to(address) else { continue };
        let noise: Vec<u8> = (0..round * 40).map(|at| u8::try_from(at * round % 251).unwrap()).collect();
        if round % 2 == 0 {
            let _ = send(&socket, &noise, &[]);
        }
        held.push(socket);
    }
    drop(held);
    let late = worlds[1].request_group(key(2), 1, b"");
    let first = worlds[0].request_group(key(2), 1, b"");
    let first = take(&first).unwrap();
    let late = take(&late).unwrap();
    assert_eq!((first.members(), late.members()), (key(2).ranks(), key(2).ranks()));
    worlds.iter().for_each(|world| world.stop_monitor());
}

#[test]
fn what_is_no_memory_is_an_error() {
    let worlds = world(2);
    let key = key(2);
    let ask = |answer: Message, with: Option<&OwnedFd>| {
        let request = worlds[1].request_group(key.clone(), 1, b"");
        drop(request);
        let packet = Packet {
            bytes: answer.encode(),
            descriptors: with.map(|fd| fd.try_clone().unwrap()).into_iter().collect(),
            lost_descriptors: false,
        };
        read_answer(&worlds[1], &Ask::for_test(key.clone()), packet)
    };
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(matches!(ask(Message::Granted, None), Err(Error::Resource(_))));
    assert!(matches!(ask(Message::Granted, Some(&pipe)), Err(Error::Resource(_))));
    assert!(matches!(ask(Message::Welcome(2), Some(&pipe)), Err(Error::Resource(_))));
    assert!(matches!(ask(Message::Withdrawn("no memory".into()), None), Err(Error::Resource(_))));
    assert!(matches!(ask(Message::Withdrawn(String::new()), None), Err(Error::RankDied(_))));
    worlds.iter().for_each(|world| world.stop_monitor());
}

#[test]
fn a_stopped_monitor_closes_what_is_on_its_way() {
    let worlds = world(2);
    let request = worlds[1].request_group(key(2), 1, b"");
    worlds[1].stop_monitor();
    assert!(matches!(take(&request), Err(Error::Closed { .. })));
    worlds[0].stop_monitor();
}

#[test]
fn a_death_comes_before_those_who_left_because_of_it() {
    let home = crate::fork::Home::here().unwrap();
    let (segment, fd) = World::create_segment(3, home).unwrap();
    let enter = |segment, rank| World::enter(segment, Rank(rank), vec![Address::default(); 3].into(), home).unwrap();
    let other = Segment::attach("test", &fd, World::segment_bytes(3), home).unwrap();
    // Without monitors, which would tell of what is said here.
    let (world, other) = (enter(segment, 0), enter(other, 2));
    let fates = || [1, 2].map(|rank| world.fate(Rank(rank)));
    // Rank 1 is seen to be gone; before it is known how, rank 2 leaves.
    world.set_dying(1);
    other.leave(7);
    assert_eq!(fates(), [Fate::Alive, Fate::Alive]);
    world.record(Rank(1), Ending::Signalled(6));
    world.set_dying(0);
    assert_eq!(fates(), [Fate::Gone(Ending::Signalled(6)), Fate::Gone(Ending::Left(7))]);
}

#[test]
fn deaths_are_told_in_the_order_in_which_they_were_seen() {
    let now = Instant::now();
    let long_ago = now.checked_sub(2 * REASON_LIMIT).unwrap();
    let seen = |ranks: &[(u32, Instant)]| -> Vec<Dying> {
        ranks.iter().map(|(rank, since)| Dying { rank: Rank(*rank), since: *since, ending: None }).collect()
    };
    let known = |dying: &mut Vec<Dying>, told: &[(u32, Ending)]| {
        let ending = |rank: Rank, _| told.iter().find(|(each, _)| *each == rank.0).map(|(_, ending)| *ending);
        take_known(dying, ending).into_iter().map(|(rank, ending)| (rank.0, ending)).collect::<Vec<_>>()
    };
    let (killed, exited) = ((2, Ending::Signalled(9)), (0, Ending::Exited(0)));
    // Rank 0 ended because rank 2 did, and is known first; later nobody could say any more how.
    let mut dying = seen(&[(2, now), (0, now)]);
    assert_eq!(known(&mut dying, &[exited]), []);
    assert_eq!(known(&mut dying, &[killed]), [killed, exited]);
    assert!(dying.is_empty());
    // The later one is still waited for.
    let mut dying = seen(&[(2, now), (0, now)]);
    assert_eq!(known(&mut dying, &[killed]), [killed]);
    assert_eq!(dying.len(), 1);
    // Nobody waits for a reason for long.
    assert_eq!(known(&mut seen(&[(2, long_ago), (0, now)]), &[exited]), [(2, Ending::Unknown), exited]);
}
