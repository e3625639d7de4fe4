//! Nothing is left behind.

use std::time::Duration;

use crate::harness::{Rank, world};

fn shared_memory_files() -> Vec<std::ffi::OsString> {
    let names = std::fs::read_dir("/dev/shm").map(|files| files.flatten().map(|file| file.file_name()).collect());
    names.unwrap_or_default()
}

fn life_in_the_world(ranks: &mut [Rank]) {
    for rank in &mut *ranks {
        assert_eq!(rank.ask("ask g 0,1 0 s"), "asked");
    }
    for rank in &mut *ranks {
        assert_eq!(rank.ask("take g"), "joined s");
    }
}

#[test]
fn worlds_and_groups_give_everything_back() {
    let mut ranks = world(2);
    life_in_the_world(&mut ranks);
    let counts = |ranks: &mut [Rank]| -> Vec<(String, String)> {
        ranks.iter_mut().map(|rank| (rank.ask("descriptors"), rank.ask("mappings"))).collect()
    };
    let mut before = Vec::new();
    for round in 0..100 {
        for rank in &mut ranks {
            rank.tell("again");
        }
        for rank in &mut ranks {
            assert_eq!(rank.hear(), "met");
        }
        life_in_the_world(&mut ranks);
        // The first member closes what it has handed over a moment after the others have it.
        std::thread::sleep(Duration::from_millis(if round == 0 { 500 } else { 0 }));
        let mut now = counts(&mut ranks);
        if round == 0 {
            before.clone_from(&now);
        }
        for _ in 0..3_000 {
            if now == before {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            now = counts(&mut ranks);
        }
        assert_eq!(now, before, "after {round} rounds");
    }
}

#[test]
fn a_killed_world_leaves_no_file() {
    let before = shared_memory_files();
    let mut ranks = world(3);
    for rank in &mut ranks {
        assert_eq!(rank.ask("ask g 0,1,2 0 s"), "asked");
        assert_eq!(rank.ask("take g"), "joined s");
        assert_eq!(rank.ask("touch g 1"), "touched");
    }
    for rank in &mut ranks {
        rank.kill();
        rank.wait();
    }
    let ours = |name: &std::ffi::OsString| name.to_string_lossy().contains("foldcast") && !before.contains(name);
    let left: Vec<_> = shared_memory_files().into_iter().filter(ours).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn descriptors_are_not_inherited_by_programs() {
    let mut ranks = world(2);
    life_in_the_world(&mut ranks);
    for rank in &mut ranks {
        assert_eq!(rank.ask("inheritable"), "[]");
    }
}
