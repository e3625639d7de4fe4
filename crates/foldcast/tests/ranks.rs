//! Real processes that call the public API. A test starts this program again for each rank; the rank finds in its
//! environment that it is one, and runs the test's body.

mod support;

use std::process::ExitStatus;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallOptions, Cause, DataType, Ending, Error, Group, Rank, Reduction, Result, bytes_of_mut};
use support::{Owned, WATCHDOG, all_well, named, number, ranks, submit, sum, total, wait, within};

#[test]
fn sizes_and_ways_of_calling() {
    for size in [1, 2, 3, 5] {
        all_well(&ranks("sizes_and_ways_of_calling", size, |communicator| {
            let (group, size) = (communicator.world(), communicator.size());
            for count in [0, 1, 12, 13, 1000, 8192, 8193, 40_000, 300_001] {
                let input = vec![number(communicator); count];
                let want = vec![total(size); count];
                assert_eq!(sum(&group, &input, &CallOptions::default()), Ok(want.clone()), "sync {count}");
                assert_eq!(sum(&group, &input, &named("x")), Ok(want.clone()), "named {count}");
                let unnamed = submit(&group, input.clone(), &CallOptions::default()).expect("submitted");
                assert_eq!(wait(&unnamed), Ok(want.clone()), "async {count}");
                let async_named = submit(&group, input.clone(), &named("x")).expect("submitted");
                assert_eq!(wait(&async_named), Ok(want.clone()), "async named {count}");
                let mut both = input;
                group
                    .all_reduce(
                        DataType::Float32,
                        Reduction::Sum,
                        Buffers::InPlace(bytes_of_mut(&mut both)),
                        &CallOptions::default(),
                    )
                    .expect("in place");
                assert_eq!(both, want);
            }
            group.barrier(&CallOptions::default()).expect("a barrier");
        }));
    }
}

#[test]
fn named_calls_in_other_orders_and_calls_behind_submitted_ones() {
    all_well(&ranks("named_calls_in_other_orders_and_calls_behind_submitted_ones", 3, |communicator| {
        let group = communicator.world();
        let names: Vec<String> = (0..30).map(|name| format!("gradient {name}")).collect();
        let shift = communicator.rank().index() * 7;
        let order: Vec<usize> = (0..30).map(|at| (at * 11 + shift) % 30).collect();
        let submitted: Vec<_> = order
            .iter()
            .map(|at| {
                let value = number(communicator) + f32::from(u8::try_from(*at).expect("small"));
                submit(&group, vec![value; 100 + at], &named(&names[*at])).expect("submitted")
            })
            .collect();
        let unnamed = submit(&group, vec![1.0; 5], &CallOptions::default()).expect("submitted");
        assert_eq!(sum(&group, &[2.0], &CallOptions::default()), Ok(vec![6.0]), "behind the submitted one");
        assert_eq!(wait(&unnamed), Ok(vec![3.0; 5]));
        for (at, receiver) in order.iter().zip(&submitted) {
            let want = total(3) + 3.0 * f32::from(u8::try_from(*at).expect("small"));
            assert_eq!(wait(receiver), Ok(vec![want; 100 + at]));
        }
    }));
}

#[test]
fn groups_used_at_once_in_other_orders() {
    all_well(&ranks("groups_used_at_once_in_other_orders", 3, |communicator| {
        let rank = communicator.rank().index();
        let pairs = [[0, 1], [1, 2], [0, 2]];
        let groups: Vec<_> = pairs
            .iter()
            .enumerate()
            .filter(|(_, pair)| pair.contains(&rank))
            .map(|(at, pair)| {
                let members: Vec<Rank> = pair.iter().map(|rank| Rank::from_index(*rank)).collect();
                communicator.new_group(&members, Some(&format!("pair {at}"))).expect("a group")
            })
            .collect();
        for round in 0..50 {
            let mut order: Vec<&Group> = groups.iter().collect();
            if (rank + round) % 2 == 0 {
                order.reverse();
            }
            let ends: Vec<_> = order
                .iter()
                .map(|group| (group, submit(group, vec![number(communicator); 9], &CallOptions::default())))
                .collect();
            for (group, end) in ends {
                let members: u32 = group.ranks().iter().map(|rank| rank.0).sum();
                let want = f32::from(u16::try_from(members).expect("small"));
                assert_eq!(wait(&end.expect("submitted")), Ok(vec![want; 9]));
            }
        }
    }));
}

#[test]
fn a_mismatch_names_all_ranks_and_the_group_goes_on() {
    all_well(&ranks("a_mismatch_names_all_ranks_and_the_group_goes_on", 3, |communicator| {
        let group = communicator.world();
        for (common, odd) in [(4, 3), (4, 100_000), (100_000, 4), (100_000, 99_999)] {
            for other in 0..3 {
                let count = if communicator.rank().0 == other { odd } else { common };
                let error = sum(&group, &vec![1.0; count], &CallOptions::default()).expect_err("a mismatch");
                let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                assert_eq!((mismatch.field, mismatch.values.len()), ("count", 3), "{error}");
                assert!(error.to_string().contains(&format!("rank {other}")), "{error}");
                assert_eq!(sum(&group, &[1.0; 7], &CallOptions::default()), Ok(vec![3.0; 7]));
            }
        }
    }));
}

#[test]
fn a_killed_rank_is_named_to_those_inside_a_call() {
    for size in [2, 4] {
        let statuses = ranks("a_killed_rank_is_named_to_those_inside_a_call", size, |communicator| {
            let group = communicator.world();
            assert!(sum(&group, &[1.0], &CallOptions::default()).is_ok());
            if communicator.rank() == Rank(1) {
                std::thread::sleep(Duration::from_millis(200));
                std::process::abort();
            }
            let pending = submit(&group, vec![1.0; 10], &named("x")).expect("submitted");
            let error = sum(&group, &vec![1.0; 70_000], &CallOptions::default()).expect_err("rank 1 is gone");
            let Error::RankDied(died) = &error else { panic!("{error}") };
            assert_eq!(died.peer, Rank(1), "{error}");
            assert!(matches!(wait(&pending), Err(Error::RankDied(_))), "the pending call depended on it too");
            let later = sum(&group, &[1.0], &CallOptions::default()).expect_err("the epoch is over");
            assert!(
                matches!(&later, Error::GroupAborted(aborted)
                if matches!(aborted.cause, Cause::RankDied { peer: Rank(1), .. })),
                "{later}"
            );
            // The ranks that are left go on in a new group.
            let left: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).filter(|rank| rank.0 != 1).collect();
            let rest = communicator.new_group(&left, Some("rest")).expect("a group");
            let want = f32::from(u8::try_from(left.len()).expect("few"));
            assert_eq!(sum(&rest, &[1.0; 3], &CallOptions::default()), Ok(vec![want; 3]));
        });
        let failed: Vec<_> = statuses.iter().map(ExitStatus::success).collect();
        assert_eq!(failed, (0..size).map(|rank| rank != 1).collect::<Vec<_>>(), "{statuses:?}");
    }
}

#[test]
fn a_rank_that_leaves_in_order_fails_only_those_who_need_it() {
    all_well(&ranks("a_rank_that_leaves_in_order_fails_only_those_who_need_it", 3, |communicator| {
        let group = communicator.world();
        assert_eq!(sum(&group, &vec![1.0; 50_000], &CallOptions::default()), Ok(vec![3.0; 50_000]));
        if communicator.rank() == Rank(2) {
            return;
        }
        let error = sum(&group, &[1.0], &CallOptions::default()).expect_err("rank 2 has left");
        assert!(
            matches!(&error, Error::RankDied(died)
            if died.peer == Rank(2) && matches!(died.ending, Ending::Left(_))),
            "{error}"
        );
    }));
}

#[test]
fn deadlines_and_aborts_reach_all_members() {
    all_well(&ranks("deadlines_and_aborts_reach_all_members", 3, |communicator| {
        let all: Vec<Rank> = (0..3).map(Rank::from_index).collect();
        let late = communicator.new_group(&all, Some("late")).expect("a group");
        assert!(sum(&late, &[1.0], &CallOptions::default()).is_ok());
        let options = CallOptions { timeout: within(0.3), ..CallOptions::default() };
        match communicator.rank() {
            Rank(0) => {
                let error = sum(&late, &[1.0], &options).expect_err("nobody else calls in time");
                assert!(matches!(&error, Error::Deadline(e) if e.peers == [Rank(1), Rank(2)]), "{error}");
            }
            _ => {
                std::thread::sleep(Duration::from_millis(600));
                let error = sum(&late, &[1.0], &CallOptions::default()).expect_err("the epoch is over");
                assert!(
                    matches!(&error, Error::GroupAborted(e)
                    if matches!(e.cause, Cause::Deadline { by: Rank(0), .. })),
                    "{error}"
                );
            }
        }
        late.destroy().expect("destroyed");
        let again = communicator.new_group(&all, Some("late")).expect("the name is free again");
        assert_eq!(sum(&again, &[1.0], &CallOptions::default()), Ok(vec![3.0]));
        if communicator.rank() == Rank(1) {
            again.abort();
        }
        let error = sum(&again, &[1.0], &CallOptions::default()).expect_err("aborted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == Cause::Requested { by: Rank(1) }), "{error}");
        assert_eq!(sum(&communicator.world(), &[1.0], &CallOptions::default()), Ok(vec![3.0]), "other groups go on");
    }));
}

#[test]
fn two_threads_in_unnamed_calls_are_an_error_and_never_crossed() {
    all_well(&ranks("two_threads_in_unnamed_calls_are_an_error_and_never_crossed", 2, |communicator| {
        let group = communicator.world();
        if communicator.rank() == Rank(0) {
            let first = std::thread::spawn({
                let group = group.clone();
                move || sum(&group, &[1.0], &CallOptions::default())
            });
            // The other rank comes only after this thread has been refused: the first is inside until then.
            std::thread::sleep(Duration::from_millis(150));
            let error = sum(&group, &[5.0], &CallOptions::default()).expect_err("another thread is inside");
            assert!(matches!(&error, Error::InvalidArgument(e) if e.field == "name"), "{error}");
            let error = submit(&group, vec![5.0], &CallOptions::default()).map(drop).expect_err("the same");
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            assert_eq!(sum(&group, &[1.0], &named("go")), Ok(vec![2.0]), "named calls may");
            assert_eq!(first.join().expect("no panic"), Ok(vec![2.0]));
        } else {
            assert_eq!(sum(&group, &[1.0], &named("go")), Ok(vec![2.0]));
            assert_eq!(sum(&group, &[1.0], &CallOptions::default()), Ok(vec![2.0]));
        }
        assert_eq!(sum(&group, &[1.0], &CallOptions::default()), Ok(vec![2.0]));
    }));
}

#[test]
fn a_completion_may_call_and_submit() {
    all_well(&ranks("a_completion_may_call_and_submit", 2, |communicator| {
        let group = communicator.world();
        let (sender, receiver) = mpsc::channel();
        let inner = group.clone();
        let done = Box::new(move |result: Result<()>, _| {
            result.expect("the outer call");
            let inside = sum(&inner, &[3.0], &CallOptions::default());
            let behind = submit(&inner, vec![4.0], &CallOptions::default()).expect("submitted");
            sender.send((inside, behind)).expect("the test waits");
        });
        let buffers = Box::new(Owned { input: vec![1.0], output: vec![0.0] });
        let options = CallOptions::default();
        group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &options, done).expect("submitted");
        let (inside, behind) = receiver.recv_timeout(WATCHDOG).expect("the completion runs");
        assert_eq!(inside, Ok(vec![6.0]));
        assert_eq!(wait(&behind), Ok(vec![8.0]));
    }));
}

#[test]
fn shutdown_returns_whatever_the_peers_do() {
    all_well(&ranks("shutdown_returns_whatever_the_peers_do", 2, |communicator| {
        let group = communicator.world();
        assert!(sum(&group, &[1.0], &CallOptions::default()).is_ok());
        if communicator.rank() == Rank(0) {
            let waiting = std::thread::spawn({
                let group = group.clone();
                move || sum(&group, &[1.0], &CallOptions::default())
            });
            let submitted = submit(&group, vec![1.0], &named("x")).expect("submitted");
            std::thread::sleep(Duration::from_millis(100));
            communicator.shutdown();
            assert!(matches!(waiting.join().expect("no panic"), Err(Error::Closed { .. })));
            assert!(matches!(wait(&submitted), Err(Error::Closed { .. })));
            let error = sum(&group, &[1.0], &CallOptions::default()).expect_err("closed");
            assert!(matches!(error, Error::Closed { .. }), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(500));
        }
    }));
}

#[test]
fn a_wait_can_be_interrupted() {
    all_well(&ranks("a_wait_can_be_interrupted", 2, |communicator| {
        let group = communicator.world();
        assert!(sum(&group, &[1.0], &CallOptions::default()).is_ok());
        let cause = Cause::Interrupted { by: Rank(0) };
        let result = if communicator.rank() == Rank(0) {
            let start = Instant::now();
            let interrupt = || start.elapsed() > Duration::from_millis(100);
            sum(&group, &[1.0], &CallOptions { interrupt: Some(&interrupt), ..CallOptions::default() })
        } else {
            std::thread::sleep(Duration::from_millis(400));
            sum(&group, &[1.0], &CallOptions::default())
        };
        let error = result.expect_err("interrupted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == cause), "{error}");
    }));
}

#[test]
fn bad_calls_are_refused_and_lose_nothing() {
    all_well(&ranks("bad_calls_are_refused_and_lose_nothing", 2, |communicator| {
        let group = communicator.world();
        let invalid = |result: Result<()>, field: &str| match result {
            Err(Error::InvalidArgument(e)) if e.field == field => {}
            other => panic!("{field}: {other:?}"),
        };
        let call = |buffers: Buffers<'_>| {
            group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())
        };
        invalid(call(Buffers::InPlace(&mut [0; 6])), "input");
        invalid(call(Buffers::Separate { input: &[0; 8], output: &mut [0; 4] }), "output");
        invalid(communicator.new_group(&[Rank(0), Rank(0)], None).map(drop), "ranks");
        invalid(communicator.new_group(&[Rank(2)], None).map(drop), "ranks");
        invalid(communicator.new_group(&[], None).map(drop), "ranks");
        invalid(communicator.new_group(&[Rank(0)], Some("hccl_world_group")).map(drop), "group");
        invalid(communicator.new_group(&[Rank(0)], Some(&"x".repeat(128))).map(drop), "group");
        let other = 1 - communicator.rank().0;
        let foreign = communicator.new_group(&[Rank(other)], Some("other")).expect("anybody may make it");
        let error = sum(&foreign, &[1.0], &CallOptions::default()).expect_err("not a member");
        let wanted = format!("the group has rank {other}");
        assert!(matches!(error, Error::NotInGroup(_)) && error.to_string().contains(&wanted), "{error}");
        let error = communicator.group("nobody").map(drop).expect_err("unknown");
        assert!(error.to_string().contains("'hccl_world_group'"), "{error}");
        assert_eq!(sum(&group, &[1.0], &CallOptions::default()), Ok(vec![2.0]));
    }));
}
