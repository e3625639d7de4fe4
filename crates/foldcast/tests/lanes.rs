//! Large calls on several threads of each rank: real processes.

mod support;

use std::process::ExitStatus;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallOptions, Communicator, DataType, Error, Group, Rank, Reduction, Result};
use support::{WATCHDOG, all_well, in_small_calls, named, noise, number, submit, sum, threads, total, wait, within};

const DEFAULT: CallOptions<'static> = CallOptions::DEFAULT;

/// Elements of a float32 call of two lanes and of more, not whole numbers of lines.
const COUNTS: [usize; 4] = [(1 << 18) + 1, (1 << 18) + 12_345, 1 << 19, 3_000_003];

/// The helpers that this process has.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("foldcast-lane-")).count()
}

fn same_bits(communicator: &Communicator) {
    let group = communicator.world();
    let seed = u64::from(communicator.rank().0) + 1;
    for (at, dtype) in DataType::ALL.into_iter().enumerate() {
        for (way, reduction) in Reduction::ALL.into_iter().enumerate() {
            let bytes = (1 << 20) + dtype.size() * (1 + 17 * at + 301 * way);
            // Every alignment that elements may have, and those that they should not have.
            let (shift, before) = ((at * 4 + way) % 67, (at + way) % 9);
            let memory = noise(bytes + shift, seed);
            let input = &memory[shift..];
            let want = in_small_calls(&group, dtype, reduction, input);
            let mut output = vec![0xAA; before + bytes];
            let buffers = Buffers::Separate { input, output: &mut output[before..] };
            group.all_reduce(dtype, reduction, buffers, &DEFAULT).expect("a large call");
            assert!(output[before..] == want, "{dtype} {reduction}, {bytes} bytes");
            let mut both = memory;
            let buffers = Buffers::InPlace(&mut both[shift..]);
            group.all_reduce(dtype, reduction, buffers, &DEFAULT).expect("a large call in place");
            assert!(both[shift..] == want, "{dtype} {reduction}, {bytes} bytes in place");
        }
    }
    assert!(communicator.rank() != Rank(0) || helpers() > 0, "nothing was cut");
}

#[test]
fn two_ranks_of_two_lanes_give_the_same_bits() {
    all_well(&threads("two_ranks_of_two_lanes_give_the_same_bits", &["2"; 2], same_bits));
}

#[test]
fn three_ranks_of_two_lanes_give_the_same_bits() {
    all_well(&threads("three_ranks_of_two_lanes_give_the_same_bits", &["2"; 3], same_bits));
}

#[test]
fn a_rank_of_its_own_gives_the_same_bits() {
    all_well(&threads("a_rank_of_its_own_gives_the_same_bits", &["2"], same_bits));
}

fn all_ways_of_calling(communicator: &Communicator) {
    // The first call of a group is made before its number of lanes is known.
    for first in ["blocking", "submitted", "mixed"] {
        let everybody: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).collect();
        let group = communicator.new_group(&everybody, Some(first)).expect("a group");
        for (round, count) in COUNTS.into_iter().chain([5]).chain(COUNTS).enumerate() {
            let input = vec![number(communicator) + 1.0; count];
            let want = vec![total(communicator.size()) + number_of(communicator.size()); count];
            let submits = match first {
                "blocking" => false,
                "submitted" => true,
                _ => (communicator.rank().index() + round).is_multiple_of(2),
            };
            let got = match submits {
                true => wait(&submit(&group, input.clone(), &DEFAULT).expect("submitted")),
                false => sum(&group, &input, &DEFAULT),
            };
            assert!(got.expect("a sum") == want, "{first}, {count} elements");
            assert!(sum(&group, &input, &named("x")).expect("a named sum") == want, "{first}, {count} elements named");
        }
    }
}

fn number_of(size: usize) -> f32 {
    f32::from(u16::try_from(size).expect("few ranks"))
}

#[test]
fn settings_of_the_first_rank_hold_for_all() {
    for each in [["2", "1"], ["1", "2"], ["3", "2"], ["16", "1"]] {
        all_well(&threads("settings_of_the_first_rank_hold_for_all", &each, all_ways_of_calling));
    }
    all_well(&threads("settings_of_the_first_rank_hold_for_all", &["2", "1", "4"], all_ways_of_calling));
}

#[test]
fn a_mismatch_leaves_no_lane_behind() {
    all_well(&threads("a_mismatch_leaves_no_lane_behind", &["2"; 3], |communicator| {
        let group = communicator.world();
        let large = COUNTS[0];
        for (common, odd) in [(large, large + 1), (large, 3), (3, large), (large, 9 * large), (1000, large)] {
            for other in 0..3 {
                let count = if communicator.rank().0 == other { odd } else { common };
                let error = sum(&group, &vec![1.0; count], &DEFAULT).expect_err("a mismatch");
                let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                assert_eq!((mismatch.field, mismatch.values.len()), ("count", 3), "{error}");
                for count in [large, 7, 2 * large] {
                    let got = sum(&group, &vec![1.0; count], &DEFAULT).expect("the next call is right");
                    assert!(got == vec![3.0; count], "{count} elements");
                }
            }
        }
    }));
}

#[test]
fn a_rank_killed_inside_lanes_is_named() {
    for size in [2, 3] {
        let statuses = threads("a_rank_killed_inside_lanes_is_named", &vec!["2"; size], |communicator| {
            let group = communicator.world();
            let input = vec![1.0; COUNTS[3]];
            if communicator.rank() == Rank(1) {
                // It is in the midst of calls then.
                std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    std::process::abort();
                });
            }
            let error = loop {
                if let Err(error) = sum(&group, &input, &DEFAULT) {
                    break error;
                }
            };
            let Error::RankDied(died) = &error else { panic!("{error}") };
            assert_eq!(died.peer, Rank(1), "{error}");
            let later = sum(&group, &input, &DEFAULT).expect_err("the epoch is over");
            assert!(matches!(later, Error::GroupAborted(_)), "{later}");
            let left: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).filter(|rank| rank.0 != 1).collect();
            let rest = communicator.new_group(&left, Some("rest")).expect("a group");
            let got = sum(&rest, &input, &DEFAULT).expect("the others go on");
            assert!(got == vec![number_of(left.len()); input.len()]);
        });
        let well: Vec<bool> = statuses.iter().map(ExitStatus::success).collect();
        assert_eq!(well, (0..size).map(|rank| rank != 1).collect::<Vec<_>>(), "{statuses:?}");
    }
}

#[test]
fn a_missing_rank_an_abort_and_an_end_in_order_end_large_calls() {
    all_well(&threads("a_missing_rank_an_abort_and_an_end_in_order_end_large_calls", &["2"; 2], |communicator| {
        let everybody = [Rank(0), Rank(1)];
        let input = vec![1.0; COUNTS[2]];
        let group = |name| communicator.new_group(&everybody, Some(name)).expect("a group");
        let (late, aborted) = (group("late"), group("aborted"));
        for group in [&late, &aborted] {
            assert!(sum(group, &input, &DEFAULT).is_ok());
        }
        let world = communicator.world();
        if communicator.rank() == Rank(0) {
            let options = CallOptions { timeout: within(0.2), ..DEFAULT };
            let error = sum(&late, &input, &options).expect_err("nobody else comes");
            assert!(matches!(&error, Error::Deadline(e) if e.peers == [Rank(1)]), "{error}");
            assert_eq!(sum(&world, &[1.0], &DEFAULT), Ok(vec![2.0]));
            let error = sum(&aborted, &input, &DEFAULT).expect_err("rank 1 aborts");
            assert!(matches!(&error, Error::GroupAborted(_)), "{error}");
            let error = sum(&world, &input, &DEFAULT).expect_err("rank 1 leaves");
            assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(1)), "{error}");
        } else {
            assert_eq!(sum(&world, &[1.0], &DEFAULT), Ok(vec![2.0]), "when the deadline of rank 0 has passed");
            std::thread::sleep(Duration::from_millis(200));
            aborted.abort();
        }
        communicator.shutdown();
        let end = Instant::now() + WATCHDOG;
        while helpers() > 0 {
            assert!(Instant::now() < end, "helpers outlive the communicator");
            std::thread::sleep(Duration::from_millis(2));
        }
    }));
}

/// Two calls of two threads want the helper at once: who does not get it goes on alone.
#[test]
fn groups_that_share_helpers_do_not_wait_for_each_other() {
    all_well(&threads("groups_that_share_helpers_do_not_wait_for_each_other", &["2"; 2], |communicator| {
        let everybody = [Rank(0), Rank(1)];
        let groups = ["a", "b"].map(|name| communicator.new_group(&everybody, Some(name)).expect("a group"));
        let run = |group: &Group| -> Result<()> {
            for round in 0..10 {
                let count = COUNTS[round % 3];
                assert!(sum(group, &vec![1.0; count], &DEFAULT)? == vec![2.0; count]);
            }
            Ok(())
        };
        if communicator.rank() == Rank(0) {
            let (sender, receiver) = mpsc::channel();
            for group in groups {
                let sender = sender.clone();
                std::thread::spawn(move || sender.send(run(&group)).expect("the test waits"));
            }
            for _ in 0..2 {
                receiver.recv_timeout(WATCHDOG).expect("both end").expect("right sums");
            }
        } else {
            for group in groups {
                run(&group).expect("right sums");
            }
        }
    }));
}
