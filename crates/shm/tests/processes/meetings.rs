//! Ranks meet, or say why not.

use std::thread;
use std::time::Duration;

use foldcast_shm::{JobKey, Meeting};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use types::{Cause, Error};

use crate::harness::{Rank, Start, new_key, world};

fn all_meet(starts: &[Start], gap: Duration) {
    let mut ranks: Vec<Rank> = Vec::new();
    for start in starts {
        ranks.push(start.spawn());
        thread::sleep(gap);
    }
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "met");
    }
    for rank in &mut ranks {
        rank.tell("quit");
        assert!(rank.wait().success());
    }
}

#[test]
fn ranks_meet_in_any_order_of_starting() {
    for (size, gap_ms) in [(1, 0), (2, 60), (5, 0), (5, 20)] {
        let gap = Duration::from_millis(gap_ms);
        let starts = |key: String| (0..size).map(|rank| Start::new(&key, rank, size)).collect::<Vec<_>>();
        all_meet(&starts(new_key()), gap);
        let mut reversed = starts(new_key());
        reversed.reverse();
        all_meet(&reversed, gap);
    }
}

#[test]
fn sixteen_ranks_meet() {
    let key = new_key();
    let starts: Vec<Start> = (0..16).map(|at| Start::new(&key, (at * 7 + 3) % 16, 16)).collect();
    all_meet(&starts, Duration::ZERO);
}

#[test]
fn a_job_can_meet_under_the_key_of_one_that_runs() {
    let key = new_key();
    let mut first: Vec<Rank> = (0..2).map(|rank| Start::new(&key, rank, 2).spawn()).collect();
    for rank in &mut first {
        assert_eq!(rank.hear(), "met");
    }
    let mut second: Vec<Rank> = (0..2).map(|rank| Start::new(&key, rank, 2).spawn()).collect();
    for rank in &mut second {
        assert_eq!(rank.hear(), "met");
    }
    assert_eq!(first[1].ask("fate 0"), "Alive");
}

#[test]
fn a_rank_that_two_processes_claim_is_an_error_for_all() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 3).spawn();
    let mut first = Start::new(&key, 1, 3).spawn();
    let mut second = Start::new(&key, 1, 3).spawn();
    let twice = |said: &str| said.contains("each rank of job") && said.contains("got rank 1 twice: processes");
    let said = hub.hear();
    assert!(twice(&said), "{said}");
    // The one that came later is told that its rank is taken; the one before, that there were two.
    let said = [first.hear(), second.hear()];
    let taken = |said: &String| said.contains("a rank that no other process of job") && said.contains("which process");
    assert!(said.iter().any(taken) && said.iter().any(|said| twice(said)), "{said:?}");
}

#[test]
fn ranks_that_disagree_in_size_both_say_so() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    let mut other = Start::new(&key, 1, 3).spawn();
    let said = hub.hear();
    assert!(said.contains("size: expected 2 ranks on all ranks") && said.contains("got 3, which rank 1"), "{said}");
    let said = other.hear();
    assert!(said.contains("size: expected 2 ranks, as rank 0 says, got 3"), "{said}");
}

#[test]
fn who_is_missing_is_named() {
    let key = new_key();
    let limited = |rank, limit_ms| Start { limit_ms, ..Start::new(&key, rank, 4) }.spawn();
    let mut present = [limited(0, 1_500), limited(1, 100_000), limited(3, 100_000)];
    for rank in &mut present {
        let said = rank.hear();
        assert!(said.contains("waited for rank 2 to join job"), "{said}");
    }
}

#[test]
fn a_job_without_rank_0_is_named() {
    let key = new_key();
    let said = Start { limit_ms: 300, ..Start::new(&key, 1, 2) }.spawn().hear();
    assert!(said.contains("waited for rank 0 to open job") && said.contains(&key), "{said}");
    assert!(said.contains("nobody listens there"), "{said}");
}

#[test]
fn two_hubs_do_not_mix() {
    let key = new_key();
    let _first = Start::new(&key, 0, 2).spawn();
    await_connections(&key, 0);
    let said = Start { limit_ms: 1_000, ..Start::new(&key, 0, 2) }.spawn().hear();
    assert!(said.contains("are two jobs meeting under one key?"), "{said}");
}

/// The name of the abstract address at which the hub of this job listens.
pub(crate) fn hub_name(key: &str) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("foldcast-{user}-{:016x}", types::digest(1, key.as_bytes()))
}

pub(crate) fn hub_address(key: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(hub_name(key).as_bytes()).unwrap()
}

#[test]
fn garbage_is_ignored() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    let mut sent = 0;
    for round in 0..40 {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut connected = false;
        for _ in 0..2_000 {
            connected = rustix::net::connect(&socket, &hub_address(&key)).is_ok();
            if connected {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        assert!(connected, "the hub listens");
        let noise: Vec<u8> = (0..round * 600_usize).map(|at| u8::try_from((at * round) % 251).unwrap()).collect();
        let magic = [b"FCST".as_slice(), &2u32.to_le_bytes(), &1u32.to_le_bytes(), &noise].concat();
        let bytes = if round % 2 == 0 { noise } else { magic };
        sent += usize::from(rustix::net::send(&socket, &bytes, SendFlags::NOSIGNAL).is_ok());
    }
    assert_eq!(sent, 40);
    let mut other = Start::new(&key, 1, 2).spawn();
    assert_eq!(other.hear(), "met");
    assert_eq!(hub.hear(), "met");
}

#[test]
fn a_rank_of_another_version_is_refused_by_both() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    while rustix::net::connect(&socket, &hub_address(&key)).is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    let hello = [b"FCST".as_slice(), &77u32.to_le_bytes(), &[0; 32]].concat();
    rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL).unwrap();
    let said = hub.hear();
    assert!(said.contains("version: expected protocol") && said.contains("got protocol 77"), "{said}");
    let mut answer = [0; 64];
    let (len, _) = rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
    assert!(len > 8 && answer.starts_with(b"FCST"));
}

/// Waits until so many ranks are connected with the hub of this job.
pub(crate) fn await_connections(key: &str, count: usize) {
    let name = hub_name(key);
    for _ in 0..20_000 {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        // The listening socket has the name, and so has the hub's end of each connection.
        if sockets.lines().filter(|line| line.ends_with(&name)).count() > count {
            // They have said hello when they connected, or do so now.
            return thread::sleep(Duration::from_millis(300));
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{count} ranks do not come");
}

#[test]
fn a_rank_that_dies_before_all_are_there_ends_the_meeting() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 4).spawn();
    let mut victim = Start::new(&key, 1, 4).spawn();
    let mut bystander = Start::new(&key, 2, 4).spawn();
    await_connections(&key, 2);
    victim.kill();
    for rank in [&mut hub, &mut bystander] {
        let said = rank.hear();
        assert!(said.contains("rank 1 was killed by signal 9 (SIGKILL)"), "{said}");
    }
}

#[test]
fn a_hub_that_dies_ends_the_meeting() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 3).spawn();
    let mut waiting = Start::new(&key, 1, 3).spawn();
    await_connections(&key, 1);
    hub.kill();
    let said = waiting.hear();
    assert!(said.contains("rank 0 was killed by signal 9 (SIGKILL)"), "{said}");
}

#[test]
fn a_world_of_one_needs_nobody() {
    let mut alone = world(1);
    assert_eq!(alone[0].ask("fate 0"), "Alive");
    assert_eq!(alone[0].ask("ask solo 0 0 settings"), "asked");
    assert_eq!(alone[0].ask("take solo"), "joined settings");
}

#[test]
fn processes_of_other_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can become another user.
    }
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    await_connections(&key, 0);
    let variables = vec![("SHM_TEST_KNOCK", hub_name(&key))];
    let said = Start { variables, ..Start::new(&key, 1, 2) }.spawn().hear();
    assert!(said.contains("rank 0 belongs to user 0, not to user 65534"), "{said}");
    // The right one still comes in.
    assert_eq!(Start::new(&key, 1, 2).spawn().hear(), "met");
    assert_eq!(hub.hear(), "met");
}

#[test]
fn too_few_descriptors_are_a_clear_error() {
    let key = new_key();
    let variables = vec![("SHM_TEST_DESCRIPTORS", "16".to_string())];
    let mut ranks: Vec<Rank> = (0..15).map(|rank| Start::new(&key, rank, 16).spawn()).collect();
    let said = Start { variables, ..Start::new(&key, 15, 16) }.spawn().hear();
    assert!(said.contains("could not get") && said.contains("ulimit -n"), "{said}");
    // For the others the world is complete: they see that this rank has left it.
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "met");
    }
    assert_eq!(ranks[3].ask("await-gone 15"), "Gone(Left(0))");
}

#[test]
fn a_hub_with_too_few_descriptors_says_so() {
    let key = new_key();
    let variables = vec![("SHM_TEST_DESCRIPTORS", "16".to_string())];
    let mut hub = Start { variables, ..Start::new(&key, 0, 16) }.spawn();
    let _others: Vec<Rank> = (1..16).map(|rank| Start::new(&key, rank, 16).spawn()).collect();
    let said = hub.hear();
    assert!(said.contains("could not get") && said.contains("ulimit -n"), "{said}");
}

#[test]
fn a_meeting_can_be_interrupted() {
    for rank in [0, 1] {
        let key = JobKey::new(new_key());
        let mut meeting = Meeting::new(&key, types::Rank(rank), 2, None);
        let asked = std::cell::Cell::new(0);
        let interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() > 3
        };
        meeting.interrupted = Some(&interrupted);
        let error = meeting.meet().map(|_| ()).unwrap_err();
        let Error::GroupAborted(aborted) = error else { panic!("{error}") };
        assert_eq!(aborted.cause, Cause::Interrupted { by: types::Rank(rank) });
    }
}

#[test]
fn a_rank_outside_the_size_is_refused() {
    let key = JobKey::new(new_key());
    let error = Meeting::new(&key, types::Rank(2), 2, None).meet().map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
}
