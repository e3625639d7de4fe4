//! Members of a group get its memory, in whatever order they ask.

use std::thread;
use std::time::Duration;

use crate::harness::world;

#[test]
fn members_get_the_memory_before_and_after_it_is_there() {
    let mut ranks = world(3);
    // Rank 2 asks long before rank 0 has made anything; rank 1 long after.
    assert_eq!(ranks[2].ask("ask g 0,1,2 0 of-rank-2"), "asked");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(ranks[0].ask("ask g 0,1,2 0 of-rank-0"), "asked");
    assert_eq!(ranks[0].ask("take g"), "joined of-rank-0");
    assert_eq!(ranks[2].ask("take g"), "joined of-rank-0");
    assert_eq!(ranks[1].ask("ask g 0,1,2 0 of-rank-1"), "asked");
    assert_eq!(ranks[1].ask("take g"), "joined of-rank-0");
    for (writer, value) in [(0, 10), (1, 11), (2, 12)] {
        assert_eq!(ranks[writer].ask(&format!("touch g {value}")), "touched");
        for rank in &mut ranks {
            assert_eq!(rank.ask(&format!("read g {writer}")), value.to_string());
        }
    }
}

#[test]
fn groups_of_equal_name_are_told_apart() {
    let mut ranks = world(4);
    // Disjoint members, and another incarnation of the same members.
    for (who, group) in [(1, "0,1 0"), (3, "2,3 0"), (0, "0,1 0"), (2, "2,3 0")] {
        assert_eq!(ranks[who].ask(&format!("ask g {group} from-{who}")), "asked");
    }
    for (who, first) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
        assert_eq!(ranks[who].ask("take g"), format!("joined from-{first}"));
    }
    assert_eq!(ranks[2].ask("touch g 5"), "touched");
    assert_eq!(ranks[1].ask("read g 0"), "0");
    for who in [1, 0] {
        assert_eq!(ranks[who].ask(&format!("ask g 0,1 1 again-{who}")), "asked");
    }
    assert_eq!(ranks[1].ask("take g"), "joined again-0");
}

#[test]
fn a_first_member_that_dies_ends_the_request() {
    let mut ranks = world(3);
    assert_eq!(ranks[2].ask("ask g 1,2 0 s"), "asked");
    ranks[2].tell("take g");
    thread::sleep(Duration::from_millis(100));
    ranks[1].kill();
    let said = ranks[2].hear();
    assert!(said.contains("rank 2: join on group 'g': rank 1 was killed by signal 9"), "{said}");
    // And so it is for requests that come later.
    assert_eq!(ranks[2].ask("ask h 1,2 0 s"), "asked");
    assert!(ranks[2].ask("take h").contains("rank 1 was killed by signal 9"));
}

#[test]
fn a_first_member_that_leaves_ends_the_request() {
    let mut ranks = world(2);
    assert_eq!(ranks[1].ask("ask g 0,1 0 s"), "asked");
    assert_eq!(ranks[0].ask("leave 7"), "left");
    let said = ranks[1].ask("take g");
    assert!(said.contains("rank 0 left in order after call 7"), "{said}");
}

#[test]
fn a_destroyed_group_refuses_late_members() {
    let mut ranks = world(3);
    for who in [0, 1] {
        assert_eq!(ranks[who].ask("ask g 0,1,2 0 s"), "asked");
        assert_eq!(ranks[who].ask("take g"), "joined s");
    }
    assert_eq!(ranks[0].ask("drop g"), "dropped");
    assert_eq!(ranks[2].ask("ask g 0,1,2 0 s"), "asked");
    let said = ranks[2].ask("take g");
    assert!(said.contains("rank 0 left in order"), "{said}");
    // Who has joined keeps the memory.
    assert_eq!(ranks[1].ask("touch g 5"), "touched");
}

#[test]
fn only_members_get_the_memory() {
    let mut ranks = world(3);
    assert_eq!(ranks[1].ask("ask g 0,2 0 s"), "asked");
    let said = ranks[1].ask("take g");
    assert!(said.contains("rank 1: join on group 'g': this rank is not a member"), "{said}");
    assert_eq!(ranks[1].ask("ask g 1,9 0 s"), "asked");
    assert!(ranks[1].ask("take g").contains("ranks below 3"));
}

#[test]
fn memory_that_cannot_be_had_is_a_clear_error_for_all() {
    let mut ranks = world(3);
    assert_eq!(ranks[1].ask("ask g 0,1,2 0 s"), "asked");
    assert_eq!(ranks[0].ask("limit-files 100000"), "limited");
    assert_eq!(ranks[0].ask("ask g 0,1,2 0 s"), "asked");
    assert_eq!(ranks[2].ask("ask g 0,1,2 0 s"), "asked");
    for rank in &mut ranks {
        let said = rank.ask("take g");
        assert!(said.contains("could not get") && said.contains("RLIMIT_FSIZE"), "{said}");
        assert!(said.contains("ulimit -f unlimited"), "{said}");
    }
    // The world goes on, with what still can be had.
    assert_eq!(ranks[0].ask("fate 1"), "Alive");
    assert_eq!(ranks[2].ask("ask h 1,2 0 s"), "asked");
    assert_eq!(ranks[1].ask("ask h 1,2 0 s"), "asked");
    assert_eq!(ranks[2].ask("take h"), "joined s");
}
