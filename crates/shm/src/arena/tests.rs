use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::*;
use crate::meeting::{JobKey, Meeting};

/// Ranks that are threads of this process, with their monitors.
fn world(name: &str, size: usize) -> Vec<Arc<World>> {
    let key = JobKey::new(format!("arena-{name}-{}", std::process::id()));
    let meet = |rank| {
        let limit = Some(Duration::from_secs(60));
        let (world, monitor) = Meeting::new(&key, Rank::from_index(rank), size, limit).meet().unwrap();
        std::thread::spawn(move || monitor.run());
        world
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || meet(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn blocks(world: &World) -> i64 {
    fstat(&world.arenas().own.get().unwrap().file).unwrap().st_blocks
}

#[test]
fn pieces_are_apart_zero_and_go_back() {
    let worlds = world("pieces", 2);
    let world = &worlds[0];
    let piece = |bytes| world.piece(bytes, Some(64 << 20)).unwrap();
    let (mut first, second) = (piece(5000), piece(1));
    first.fill(7);
    assert_eq!((first.len(), second.len(), second[0]), (5000, 1, 0));
    let place = |piece: &Piece| world.arenas().place_of(piece).unwrap();
    assert_eq!((place(&first), place(&second)), (0, 8192));
    assert_eq!(world.arenas().place_of(&first[4999..]), Some(4999));
    assert_eq!(world.arenas().place_of(&[0; 8]), None);
    assert_eq!(blocks(world), 3 * 8, "three pages of 512-byte blocks");
    drop(first);
    assert_eq!(blocks(world), 8);
    let again = piece(8192);
    assert_eq!((place(&again), again.iter().all(|byte| *byte == 0)), (0, true));
    let third = piece(4096);
    drop(second);
    drop(third);
    drop(again);
    assert_eq!((blocks(world), &*world.arenas().own.get().unwrap().free()), (0, &BTreeMap::from([(0, 64 << 20)])));
    // What is given out outlives the world.
    let mut last = piece(10);
    worlds.iter().for_each(|world| world.stop_monitor());
    drop(worlds);
    last.fill(1);
}

#[test]
fn what_cannot_be_had_is_refused_and_leaves_nothing() {
    let worlds = world("refused", 2);
    let world = &worlds[0];
    let refused = |bytes| world.piece(bytes, Some(1 << 20)).expect_err("too much").to_string();
    for bytes in [(1 << 20) + 1, usize::MAX, usize::MAX - 4096] {
        assert!(refused(bytes).contains("1 MiB in one piece, of 1 MiB in all"), "{}", refused(bytes));
    }
    let all = world.piece(1 << 20, None).unwrap();
    assert!(refused(1).contains("0 bytes in one piece"), "{}", refused(1));
    drop(all);
    // More than the machine has: an arena of that size can be made, its memory not.
    let more = worlds[1].piece(1 << 40, Some(1 << 41)).expect_err("too much").to_string();
    assert!(more.contains("the system has left") && more.contains("1024 GiB") | more.contains("1 TiB"), "{more}");
    assert_eq!(blocks(&worlds[1]), 0);
    worlds.iter().for_each(|world| world.stop_monitor());
}

#[test]
fn others_read_and_cannot_write() {
    let worlds = world("read", 3);
    let mut piece = worlds[0].piece(10_000, Some(1 << 20)).unwrap();
    piece.fill(3);
    let (of, arenas) = (Rank(0), worlds[2].arenas());
    assert!(!arenas.can_read(of) && arenas.foreign(of, 0, 1).is_none());
    for _ in 0..3 {
        worlds[2].ask_for_arena(of);
    }
    // Nobody answers before there is an arena.
    worlds[2].ask_for_arena(Rank(1));
    until("it is mapped", || arenas.can_read(of));
    let read = |place, len| {
        let mut bytes = vec![0; len];
        kernels::take(&mut bytes, arenas.foreign(of, place, len)?, kernels::Hints::default());
        Some(bytes)
    };
    assert_eq!(read(100, 9000), Some(vec![3; 9000]));
    piece[500] = 4;
    assert_eq!(read(500, 2), Some(vec![4, 3]));
    for (place, len) in [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX, 1), (1, usize::MAX), (u64::MAX, usize::MAX)] {
        assert!(arenas.foreign(of, place, len).is_none(), "{len} bytes at {place}");
    }
    assert_eq!(arenas.foreign(of, 1 << 20, 0).map(|none| none.len()), Some(0));
    assert!(!arenas.can_read(Rank(1)));
    let _late = worlds[1].piece(1, Some(1 << 20)).unwrap();
    until("it is mapped, too", || arenas.can_read(Rank(1)));
    // What is handed out is good for reading only.
    let readable = for_reading(&worlds[0].arenas().own.get().unwrap().file).unwrap();
    let (none, both) = (core::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe { mmap(none, 4096, both, MapFlags::SHARED, &readable, 0) };
    assert_eq!(mapped.err(), Some(Errno::ACCESS));
    worlds.iter().for_each(|world| world.stop_monitor());
}

#[test]
fn memory_is_read_from_what_the_kernel_says() {
    let text = "MemTotal:       24689764 kB\nMemFree:  1 kB\nMemAvailable:   23012345 kB\n";
    assert_eq!(parse_meminfo(text, "MemAvailable:"), Some(23_012_345 * 1024));
    for text in ["", "MemFree: 3 kB", "MemTotal: many kB", "MemTotal: 3"] {
        assert_eq!(parse_meminfo(text, "MemTotal:"), None);
    }
    assert!(default_bytes(1) > 0 && default_bytes(1 << 20) <= MOST_ADDRESSES >> 20);
}
