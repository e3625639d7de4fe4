//! Sleeping and waking between processes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foldcast_shm::{JobKey, Meeting, Waiter, Woken, World};

use crate::harness::{Rank, world};

fn pair() -> Vec<Rank> {
    let mut ranks = world(2);
    for rank in &mut ranks {
        assert_eq!(rank.ask("ask g 0,1 0 s"), "asked");
    }
    for rank in &mut ranks {
        assert_eq!(rank.ask("take g"), "joined s");
    }
    ranks
}

/// Plays so many rounds; answers how often a rank slept.
fn play(ranks: &mut [Rank], rounds: u64, how: &str) -> u64 {
    for rank in &mut *ranks {
        rank.tell(&format!("play g {rounds} {how}"));
    }
    let said = ranks.iter_mut().map(Rank::hear);
    said.map(|said| said.strip_prefix("played ").expect("it plays").parse::<u64>().unwrap()).sum()
}

#[test]
fn no_wake_up_is_lost_when_both_sleep_at_once() {
    let mut ranks = pair();
    let sleeps = play(&mut ranks, 10_000, "sleep");
    assert!(sleeps > 100, "slept only {sleeps} times: nothing was tested");
}

#[test]
fn the_whole_policy_hands_over_and_back() {
    let mut ranks = pair();
    play(&mut ranks, 50_000, "policy");
}

#[test]
fn waiting_for_a_late_rank_burns_no_core() {
    let mut ranks = pair();
    ranks[0].tell("late g");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(ranks[1].ask("touch g 1"), "touched");
    let said = ranks[0].hear();
    let percent: f64 = said.strip_prefix("waited ").expect("it waited").parse().unwrap();
    assert!(percent < 10.0, "{percent} % of a core");
}

fn world_of_one() -> Arc<World> {
    let (world, _) = Meeting::new(&JobKey::new("alone"), types::Rank(0), 1, None).meet().unwrap();
    world
}

/// Pauses until the thread has slept; answers how the sleep ended.
fn sleep_once(world: &World, limit: Option<Duration>) -> Woken {
    let mut waiter = Waiter::new(world, &[]);
    loop {
        match waiter.pause(limit, &|| false) {
            Woken::Spun => {}
            woken => return woken,
        }
    }
}

#[test]
fn a_sleep_has_its_limit() {
    assert_eq!(sleep_once(&world_of_one(), Some(Duration::from_millis(20))), Woken::TimedOut);
}

#[test]
fn threads_of_one_process_wake_each_other() {
    let world = world_of_one();
    let sleeper = {
        let world = Arc::clone(&world);
        thread::spawn(move || sleep_once(&world, None))
    };
    while !sleeper.is_finished() {
        world.ring_own();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sleeper.join().unwrap(), Woken::Slept);
}

#[test]
#[allow(clippy::as_conversions, reason = "the C struct holds the handler's address as a number")]
fn a_signal_ends_a_sleep() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: of the fields of this C struct any bytes are a value, zero means no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, so it may run at any time.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) }, 0);
    let world = world_of_one();
    let (sender, receiver) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        // SAFETY: has no preconditions.
        sender.send(unsafe { libc::pthread_self() }).unwrap();
        sleep_once(&world, None)
    });
    let thread_id = receiver.recv().unwrap();
    while !sleeper.is_finished() {
        // SAFETY: the thread has not been joined yet, so its id is valid.
        unsafe { libc::pthread_kill(thread_id, libc::SIGUSR2) };
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sleeper.join().unwrap(), Woken::Interrupted);
}
