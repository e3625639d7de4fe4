//! Deaths are noticed, with their reasons, and only deaths are.

use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

use types::Ending;

use crate::harness::{Launcher, Rank, Start, new_key, world, world_with};

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

#[test]
fn the_launcher_knows_what_the_kernel_does_not_say() {
    let launcher = Launcher::start(3);
    let key = new_key();
    let start = |rank| Start { handles: false, ..launcher.start_of(&key, rank, 3) };
    let mut ranks: Vec<Rank> = (0..3).map(|rank| start(rank).spawn()).collect();
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "met");
    }
    // The notice alone is no death: a shell may have ended that stood before the rank.
    launcher.announce(2, Ending::Exited(66));
    thread::sleep(Duration::from_millis(150));
    assert_eq!(ranks[0].ask("fate 2"), "Alive");
    ranks[2].kill();
    assert_eq!(ranks[0].ask("await-gone 2"), "Gone(Exited(66))");
    assert_eq!(ranks[1].ask("await-gone 2"), "Gone(Exited(66))");
}

#[test]
fn a_rank_that_never_came_is_known_by_the_launchers_word() {
    let launcher = Launcher::start(3);
    let key = new_key();
    let mut ranks = [launcher.start_of(&key, 0, 3).spawn(), launcher.start_of(&key, 2, 3).spawn()];
    launcher.announce(1, Ending::Exited(127));
    for rank in &mut ranks {
        let said = rank.hear();
        assert!(said.contains("rank 1 exited with status 127"), "{said}");
    }
}

#[test]
fn ranks_die_with_their_launcher() {
    const SIGKILL: i32 = 9;
    let launcher = Launcher::start(3);
    let key = new_key();
    let mut met: Vec<Rank> = (0..2).map(|rank| launcher.start_of(&key, rank, 2).spawn()).collect();
    for rank in &mut met {
        assert_eq!(rank.hear(), "met");
    }
    let mut meeting = launcher.start_of(&new_key(), 1, 3).spawn();
    // It has connected when a notice would reach it; a moment is enough for that, or else it ends otherwise below.
    thread::sleep(Duration::from_millis(700));
    drop(launcher);
    for rank in &mut met {
        assert_eq!(rank.wait().signal(), Some(SIGKILL));
    }
    assert_eq!(meeting.wait().signal(), Some(SIGKILL));
}
