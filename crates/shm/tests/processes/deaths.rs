//! Deaths are noticed, with their reasons, and only deaths are.

use std::thread;
use std::time::Duration;

use crate::harness::{world, world_with};

#[test]
fn a_killed_rank_is_noticed_by_all_that_sleep() {
    let mut ranks = world(4);
    let mut victim = ranks.remove(2);
    for rank in &mut ranks {
        rank.tell("await-gone 2");
    }
    thread::sleep(Duration::from_millis(200));
    victim.kill();
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "Gone(Signalled(9))");
        assert_eq!(rank.ask("fate 1"), "Alive");
    }
}

#[test]
fn a_rank_that_exits_is_noticed_with_its_status() {
    let mut ranks = world(3);
    ranks[1].tell("await-gone 0");
    ranks[2].tell("await-gone 0");
    ranks[0].tell("exit 3");
    assert_eq!(ranks[1].hear(), "Gone(Exited(3))");
    assert_eq!(ranks[2].hear(), "Gone(Exited(3))");
}

#[test]
fn a_rank_that_left_in_order_is_told_from_the_dead() {
    let mut ranks = world(3);
    ranks[2].tell("await-gone 1");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(ranks[1].ask("leave 41"), "left");
    // Known while the process is still there,
    assert_eq!(ranks[2].hear(), "Gone(Left(41))");
    ranks[1].tell("quit");
    assert!(ranks[1].wait().success());
    thread::sleep(Duration::from_millis(100));
    // and afterwards.
    assert_eq!(ranks[0].ask("fate 1"), "Gone(Left(41))");
    assert_eq!(ranks[2].ask("fate 1"), "Gone(Left(41))");
}

#[test]
fn without_process_handles_a_pipe_tells_of_deaths() {
    let mut ranks = world_with(3, false);
    ranks[0].tell("await-gone 2");
    ranks[1].tell("await-gone 2");
    ranks[2].kill();
    assert_eq!(ranks[0].hear(), "Gone(Unknown)");
    assert_eq!(ranks[1].hear(), "Gone(Unknown)");
    ranks[0].kill();
    assert_eq!(ranks[1].ask("await-gone 0"), "Gone(Unknown)");
}

#[test]
fn many_deaths_at_once_are_all_noticed() {
    let mut ranks = world(8);
    for rank in &mut ranks[1..] {
        rank.kill();
    }
    for victim in 1..8 {
        assert_eq!(ranks[0].ask(&format!("await-gone {victim}")), "Gone(Signalled(9))");
    }
}

#[test]
fn a_forked_child_is_refused_and_its_exit_says_nothing() {
    let mut ranks = world(2);
    for handles in [true, false] {
        if !handles {
            ranks = world_with(2, false);
        }
        assert_eq!(ranks[1].ask("fork 5"), "true true true 5");
        thread::sleep(Duration::from_millis(150));
        assert_eq!(ranks[0].ask("fate 1"), "Alive");
        assert_eq!(ranks[1].ask("fate 0"), "Alive");
        // The parent goes on as if nothing had happened.
        for rank in &mut ranks {
            assert_eq!(rank.ask("ask g 0,1 0 s"), "asked");
        }
        for rank in &mut ranks {
            assert_eq!(rank.ask("take g"), "joined s");
        }
    }
}
