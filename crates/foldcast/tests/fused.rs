//! The allreduce of a list against calls one by one, between real processes.

mod support;

use std::process::ExitStatus;
use std::sync::mpsc;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, OwnedBuffers, Rank, Reduction, Result, Timeout,
    bytes_of, bytes_of_mut,
};
use support::{WATCHDOG, all_well, named, ranks};

/// Numbers of so many magnitudes that each order of summation has bits of its own.
fn numbers(rank: usize, salt: usize, count: usize) -> Vec<f32> {
    let number = |at: usize| {
        let hash = (at * 2_654_435_761 + rank * 40_503 + salt * 97).wrapping_mul(0x9e37_79b9) >> 7;
        let mantissa = f32::from(u16::try_from(hash & 0xffff).expect("16 bits")) - 30_000.0;
        mantissa * [1e-12, 1e-3, 1.0, 3e7][hash >> 16 & 3]
    };
    (0..count).map(number).collect()
}

/// Lists of lengths, in elements: many small, empty members, one of 4 bytes, around the sizes at which something changes.
fn lists() -> Vec<Vec<usize>> {
    let (large, stage) = ((32 << 10) / 4, (1 << 20) / 4);
    let mut lists = vec![
        vec![],
        vec![0],
        vec![0, 0, 0],
        vec![1],
        vec![1; 160],
        vec![5, 0, 7, 0, 0, 1],
        vec![large - 1, large, large + 1],
        vec![700_001],
        vec![1, 700_001, 1, 0, 3],
        vec![large - 1; 35],
        vec![511, 512, 513, 1],
        vec![511; 600],
        vec![stage / 64; 65],
    ];
    lists.extend([1000, 60_000].map(|most| (0..40).map(|at| (at * at * 7919 + 3) % most).collect::<Vec<_>>()));
    lists
}

fn members(rank: usize, list: &[usize]) -> Vec<Vec<f32>> {
    list.iter().enumerate().map(|(salt, count)| numbers(rank, salt, *count)).collect()
}

fn one_by_one(group: &Group, inputs: &[Vec<f32>]) -> Vec<Vec<u8>> {
    let one = |input: &Vec<f32>| {
        let mut output = vec![0.0f32; input.len()];
        let buffers = Buffers::Separate { input: bytes_of(input), output: bytes_of_mut(&mut output) };
        group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default()).expect("a good call");
        bytes_of(&output).to_vec()
    };
    inputs.iter().map(one).collect()
}

/// Every second member in place.
fn together(group: &Group, inputs: &[Vec<f32>], options: &CallOptions<'_>) -> Result<Vec<Vec<u8>>> {
    let mut outputs: Vec<Vec<f32>> = inputs.to_vec();
    let mut buffers: Vec<Buffers<'_>> = Vec::new();
    for (at, (input, output)) in inputs.iter().zip(&mut outputs).enumerate() {
        let output = bytes_of_mut(output);
        buffers.push(match at % 2 {
            0 => Buffers::Separate { input: bytes_of(input), output },
            _ => Buffers::InPlace(output),
        });
    }
    group.all_reduce_many(DataType::Float32, Reduction::Sum, &mut buffers, options)?;
    Ok(outputs.iter().map(|output| bytes_of(output).to_vec()).collect())
}

struct Owned(Vec<f32>, Vec<f32>);

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: bytes_of(&self.0), output: bytes_of_mut(&mut self.1) }
    }
}

type Received = mpsc::Receiver<(Result<()>, Vec<Vec<u8>>)>;

fn submit(group: &Group, inputs: &[Vec<f32>], options: &CallOptions<'_>) -> Result<Received> {
    let (sender, receiver) = mpsc::channel();
    let owned = |input: &Vec<f32>| -> Box<dyn OwnedBuffers> { Box::new(Owned(input.clone(), vec![0.0; input.len()])) };
    let done = move |result: Result<()>, mut buffers: Vec<Box<dyn OwnedBuffers>>| {
        let output = |buffers: &mut Box<dyn OwnedBuffers>| {
            let mut buffers = buffers.buffers();
            let all = 0..buffers.output_len();
            buffers.output(all).to_vec()
        };
        sender.send((result, buffers.iter_mut().map(output).collect())).expect("the test waits");
    };
    let buffers = inputs.iter().map(owned).collect();
    group.all_reduce_many_async(DataType::Float32, Reduction::Sum, buffers, options, Box::new(done))?;
    Ok(receiver)
}

#[test]
fn lists_have_the_bits_of_calls_one_by_one() {
    for size in [1, 2, 3, 5] {
        all_well(&ranks("lists_have_the_bits_of_calls_one_by_one", size, |communicator| {
            let group = communicator.world();
            for list in lists() {
                let inputs = members(communicator.rank().index(), &list);
                let want = one_by_one(&group, &inputs);
                assert!(together(&group, &inputs, &CallOptions::default()) == Ok(want.clone()), "{list:?}");
                assert!(together(&group, &inputs, &named("x")) == Ok(want.clone()), "named {list:?}");
                let submitted = [CallOptions::default(), named("x")].map(|options| submit(&group, &inputs, &options));
                // Some ranks wait and others submit: it is the same call.
                for options in [CallOptions::default(), named("x")] {
                    let ended = if communicator.rank().0 % 2 == 0 {
                        together(&group, &inputs, &options)
                    } else {
                        let received = submit(&group, &inputs, &options).expect("submitted");
                        let (result, outputs) = received.recv_timeout(WATCHDOG).expect("the list ends");
                        result.map(|()| outputs)
                    };
                    assert!(ended == Ok(want.clone()), "mixed {list:?}");
                }
                for received in submitted {
                    let ended = received.expect("submitted").recv_timeout(WATCHDOG).expect("the list ends");
                    assert!(ended == (Ok(()), want.clone()), "async {list:?}");
                }
            }
        }));
    }
}

#[test]
fn lists_that_differ_are_a_mismatch_before_anything_is_reduced() {
    all_well(&ranks("lists_that_differ_are_a_mismatch_before_anything_is_reduced", 3, |communicator| {
        let group = communicator.world();
        let good = vec![3, 0, 50_000, 1];
        let others = [
            (vec![3, 50_000, 0, 1], "parts"),
            (vec![2, 1, 50_000, 1], "parts"),
            (vec![3, 50_000, 1], "parts"),
            (vec![3, 0, 49_999, 2], "count"),
            (vec![], "count"),
            (vec![3, 0, 1], "count"),
        ];
        for (other, field) in others {
            for odd in 0..3 {
                let list = if communicator.rank().0 == odd { &other } else { &good };
                let inputs = members(communicator.rank().index(), list);
                let check = |error: Error| {
                    let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                    assert_eq!((mismatch.field, mismatch.values.len()), (field, 3), "{error}");
                    assert!(error.to_string().contains(&format!("rank {odd}")), "{error}");
                };
                for options in [CallOptions::default(), named("x")] {
                    check(together(&group, &inputs, &options).expect_err("a mismatch"));
                    let submitted = submit(&group, &inputs, &options).expect("submitted");
                    let (result, outputs) = submitted.recv_timeout(WATCHDOG).expect("the list ends");
                    check(result.expect_err("a mismatch"));
                    assert_eq!(outputs.len(), list.len(), "all buffers are back");
                }
                let inputs = members(communicator.rank().index(), &good);
                assert!(together(&group, &inputs, &CallOptions::default()) == Ok(one_by_one(&group, &inputs)));
            }
        }
        // A list of one is not a call of its own kind, but says how many it has.
        let inputs = vec![vec![1.0; 5]];
        let error = if communicator.rank() == Rank(0) {
            let mut alone = vec![1.0f32; 5];
            let buffers = Buffers::InPlace(bytes_of_mut(&mut alone));
            group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())
        } else {
            together(&group, &inputs, &CallOptions::default()).map(drop)
        };
        let error = error.expect_err("a mismatch").to_string();
        assert!(error.contains("rank 0: one buffer; rank 1, rank 2: 1 parts"), "{error}");
    }));
}

#[test]
fn bad_members_are_named_and_lists_lose_nothing() {
    all_well(&ranks("bad_members_are_named_and_lists_lose_nothing", 2, |communicator| {
        let group = communicator.world();
        let call = |buffers: &mut [Buffers<'_>]| {
            group.all_reduce_many(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())
        };
        let mut zeros = [[0; 8]; 3];
        let [first, second, third] = &mut zeros;
        let cut = call(&mut [Buffers::InPlace(first), Buffers::InPlace(&mut second[..6])]);
        assert!(matches!(&cut, Err(Error::InvalidArgument(e)) if e.field == "input 1 of the list"), "{cut:?}");
        let uneven = call(&mut [Buffers::Separate { input: &first[..4], output: third }]);
        assert!(matches!(&uneven, Err(Error::InvalidArgument(e)) if e.field == "output 0 of the list"), "{uneven:?}");
        let foreign = communicator.new_group(&[Rank(1 - communicator.rank().0)], Some("other")).expect("a group");
        let options = CallOptions::default();
        let empty = foreign.all_reduce_many(DataType::Float32, Reduction::Sum, &mut [], &options);
        assert!(matches!(empty, Err(Error::NotInGroup(_))), "{empty:?}");
        let inputs = members(communicator.rank().index(), &[4, 5]);
        assert!(together(&group, &inputs, &options) == Ok(one_by_one(&group, &inputs)));
    }));
}

#[test]
fn a_killed_rank_ends_a_list_for_all() {
    let statuses = ranks("a_killed_rank_ends_a_list_for_all", 3, |communicator| {
        let group = communicator.world();
        let inputs = members(communicator.rank().index(), &[700, 300_000, 0, 5]);
        assert!(together(&group, &inputs, &CallOptions::default()).is_ok());
        if communicator.rank() == Rank(1) {
            std::thread::sleep(Duration::from_millis(200));
            std::process::abort();
        }
        let pending = submit(&group, &inputs, &named("x")).expect("submitted");
        let error = together(&group, &inputs, &CallOptions::default()).expect_err("rank 1 is gone");
        assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(1)), "{error}");
        let (result, outputs) = pending.recv_timeout(WATCHDOG).expect("the list ends");
        assert!(matches!(&result, Err(Error::RankDied(_))), "{result:?}");
        assert_eq!(outputs.len(), 4, "all buffers are back");
    });
    let well: Vec<_> = statuses.iter().map(ExitStatus::success).collect();
    assert_eq!(well, [true, false, true], "{statuses:?}");
}

#[test]
fn a_list_has_one_deadline_and_one_place_among_the_calls() {
    all_well(&ranks("a_list_has_one_deadline_and_one_place_among_the_calls", 2, |communicator: &Communicator| {
        let group = communicator.world();
        let inputs = members(communicator.rank().index(), &[40_000; 6]);
        let want = one_by_one(&group, &inputs);
        // A call that is made behind a submitted list comes after all of its launches.
        let list = submit(&group, &inputs, &CallOptions::default()).expect("submitted");
        assert!(together(&group, &inputs, &CallOptions::default()) == Ok(want.clone()));
        assert!(list.recv_timeout(WATCHDOG).expect("the list ends") == (Ok(()), want));
        let timeout = Timeout::from_seconds(Some(0.3)).expect("a time");
        if communicator.rank() == Rank(0) {
            let options = CallOptions { timeout, ..CallOptions::default() };
            let error = together(&group, &inputs, &options).expect_err("nobody else calls in time");
            assert!(matches!(&error, Error::Deadline(late) if late.peers == [Rank(1)]), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(700));
            let error = together(&group, &inputs, &CallOptions::default()).expect_err("the epoch is over");
            assert!(matches!(&error, Error::GroupAborted(_)), "{error}");
        }
    }));
}

#[test]
fn a_list_whose_names_one_rank_never_tells_keeps_nobody_from_destroying_the_group() {
    all_well(&ranks(
        "a_list_whose_names_one_rank_never_tells_keeps_nobody_from_destroying_the_group",
        2,
        |communicator| {
            let all: Vec<Rank> = (0..2).map(Rank::from_index).collect();
            let group = communicator.new_group(&all, Some("names")).expect("a group");
            let (sender, receiver) = mpsc::channel();
            let done = Box::new(move |result: Result<()>, _: Vec<Box<dyn OwnedBuffers>>| {
                sender.send(result).expect("the test waits");
            });
            let buffers: Vec<Box<dyn OwnedBuffers>> = vec![Box::new(Owned(vec![1.0], vec![0.0]))];
            let options = CallOptions::default();
            // Rank 1 gives no names, and so takes no part when the others tell each other theirs.
            match communicator.rank() {
                Rank(0) => {
                    group.all_reduce_set_async(DataType::Float32, Reduction::Sum, buffers, "a".into(), &options, done)
                }
                _ => group.all_reduce_many_async(DataType::Float32, Reduction::Sum, buffers, &options, done),
            }
            .expect("submitted");
            let error = receiver.recv_timeout(WATCHDOG).expect("the call ends").expect_err("a mismatch");
            let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
            assert_eq!(mismatch.detail.contains("did not answer"), communicator.rank() == Rank(0), "{error}");
            communicator.world().barrier(&options).expect("the group of all goes on");
            group.destroy().expect("no call of the user is in flight");
        },
    ));
}
