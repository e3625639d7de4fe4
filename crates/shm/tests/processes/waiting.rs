//! Sleeping and waking between processes.

use std::thread;
use std::time::Duration;

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
