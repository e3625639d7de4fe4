//! Threads and groups at once.

use std::sync::Barrier;
use std::thread;

use foldcast::{CallOptions, Error, Rank};

use crate::support::{named, sum, worlds};

#[test]
fn ompi_2427_eight_threads_on_one_group() {
    worlds(&[2], |communicator| {
        let group = communicator.world();
        let value = |thread: u16, rank: u32| f32::from(thread) * 10.0 + f32::from(u16::try_from(rank).unwrap());
        // With names each gets its own sum.
        thread::scope(|scope| {
            for thread in 0..8 {
                let group = &group;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let input = vec![value(thread, group.rank().unwrap().try_into().unwrap()); 700];
                        let want = vec![value(thread, 0) + value(thread, 1); 700];
                        assert_eq!(sum(group, &input, &named(&format!("thread {thread}"))), Ok(want));
                    }
                });
            }
        });
        // Without, one at a time: whoever comes while another is inside is refused, and nothing is crossed.
        let (mut well, mut refused) = (0, 0);
        let results: Vec<_> = thread::scope(|scope| {
            let call = || sum(&group, &[1.0; 300], &CallOptions { timeout: within(0.5), ..CallOptions::default() });
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for result in results {
            match result {
                Ok(output) => {
                    assert_eq!(output, [2.0; 300]);
                    well += 1;
                }
                Err(Error::InvalidArgument(error)) => {
                    assert!(error.to_string().contains("name"), "{error}");
                    refused += 1;
                }
                // The other rank's threads were refused more often than this one's.
                Err(Error::Deadline(_) | Error::GroupAborted(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert!(well + refused > 0);
    });
}

fn within(seconds: f64) -> foldcast::Timeout {
    foldcast::Timeout::from_seconds(Some(seconds)).unwrap()
}

#[test]
fn nccl_195_two_groups_in_opposite_order() {
    worlds(&[2, 3], |communicator| {
        let all: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).collect();
        let groups = ["first", "second"].map(|name| communicator.new_group(&all, Some(name)).unwrap());
        let want = f32::from(u16::try_from(all.len()).unwrap());
        // In each round the threads wait for each other: one that ran ahead to its end would leave the other ones, of all ranks,
        // waiting in different groups.
        let round = Barrier::new(2);
        let rounds = |order: [usize; 2]| {
            for _ in 0..1000 / 4 {
                let sums = order.map(|at| sum(&groups[at], &[1.0; 20], &named("both")));
                round.wait();
                assert_eq!(sums, [Ok(vec![want; 20]), Ok(vec![want; 20])]);
            }
        };
        // Two threads, one after the other way round; the ranks begin with different ones.
        thread::scope(|scope| {
            let turned = communicator.rank().index() % 2;
            scope.spawn(move || rounds([turned, 1 - turned]));
            rounds([1 - turned, turned]);
        });
        // Without names: a thread for each group.
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(move || {
                    for _ in 0..250 {
                        assert_eq!(sum(group, &[1.0; 20], &CallOptions::default()), Ok(vec![want; 20]));
                    }
                });
            }
        });
    });
}
