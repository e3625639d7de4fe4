//! Broadcast and allgather between real processes.

mod support;

use std::process::ExitStatus;
use std::sync::mpsc;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Cause, Communicator, DataType, Error, Group, OpKind, OwnedBuffers, Rank, Reduction, Result,
    Timeout,
};
use support::{WATCHDOG, all_well, named, ranks};

/// Bytes that tell the ranks, and what is in them, apart; as float32 many are NaNs with payloads.
fn bytes(rank: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| match at % 4 {
        3 => [0x7f, 0xff, 0x00, 0x80][(at / 4 + rank) % 4],
        2 => 0x80 | u8::try_from(at / 64 % 64).expect("below 128"),
        _ => u8::try_from((at * 31 + rank * 77) % 251).expect("below 256"),
    };
    (0..len).map(byte).collect()
}

fn own(communicator: &Communicator, len: usize) -> Vec<u8> {
    bytes(communicator.rank().index(), len)
}

fn broadcast(group: &Group, root: u32, mut both: Vec<u8>, options: &CallOptions<'_>) -> Result<Vec<u8>> {
    group.broadcast(DataType::Float32, Rank(root), Buffers::InPlace(&mut both), options)?;
    Ok(both)
}

/// An allgather of so many float32 of each rank.
fn gather(group: &Group, input: &[u8], counts: &[usize], options: &CallOptions<'_>) -> Result<Vec<u8>> {
    let mut output = vec![0xAA; counts.iter().sum::<usize>() * 4];
    let buffers = Buffers::Separate { input, output: &mut output };
    group.all_gather_unequal(DataType::Float32, counts, buffers, options)?;
    Ok(output)
}

fn joined(counts: &[usize]) -> Vec<u8> {
    counts.iter().enumerate().flat_map(|(rank, count)| bytes(rank, count * 4)).collect()
}

struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

fn boxed(input: Vec<u8>, output: Vec<u8>) -> Box<dyn OwnedBuffers> {
    Box::new(Owned { input, output })
}

type Received = mpsc::Receiver<Result<Vec<u8>>>;
type Done = Box<dyn FnOnce(Result<()>, Box<dyn OwnedBuffers>) + Send>;

fn receiver() -> (Received, Done) {
    let (sender, receiver) = mpsc::channel();
    let done = move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.output_len();
        sender.send(result.map(|()| buffers.output(all).to_vec())).expect("the test waits");
    };
    (receiver, Box::new(done))
}

fn wait(received: &Received) -> Result<Vec<u8>> {
    received.recv_timeout(WATCHDOG).expect("the call ends")
}

#[test]
fn every_rank_gets_what_the_root_has() {
    for size in [1, 2, 3, 5] {
        all_well(&ranks("every_rank_gets_what_the_root_has", size, |communicator| {
            let (group, size) = (communicator.world(), communicator.size());
            for count in [0, 1, 12, 13, 1000, 16_384, 16_385, 40_000, 300_001] {
                let root = u32::try_from(count % size).expect("few ranks");
                let want = bytes(count % size, count * 4);
                let mine = || own(communicator, count * 4);
                assert!(broadcast(&group, root, mine(), &CallOptions::default()) == Ok(want.clone()), "{count}");
                assert!(broadcast(&group, root, mine(), &named("x")) == Ok(want.clone()), "named {count}");
                for options in [CallOptions::default(), named("x")] {
                    let (received, done) = receiver();
                    let buffers = Box::new(Owned { input: mine(), output: vec![0xAA; count * 4] });
                    group.broadcast_async(DataType::Float32, Rank(root), buffers, &options, done).expect("submitted");
                    assert!(wait(&received) == Ok(want.clone()), "async {count}");
                }
            }
        }));
    }
}

#[test]
fn every_rank_gets_all_contributions_in_order() {
    for size in [1, 2, 3, 5] {
        all_well(&ranks("every_rank_gets_all_contributions_in_order", size, |communicator| {
            let (group, size, rank) = (communicator.world(), communicator.size(), communicator.rank().index());
            let unequal =
                |most: usize| (0..size).map(move |rank| (rank * 7919 + most) % (most + 1)).collect::<Vec<_>>();
            let mut lists: Vec<Vec<usize>> = [0, 1, 12, 1000, 16_384, 16_385, 50_000].map(|n| vec![n; size]).into();
            lists.extend([1, 5, 20_000, 120_000].map(unequal));
            for counts in lists {
                let (input, want) = (own(communicator, counts[rank] * 4), joined(&counts));
                assert!(gather(&group, &input, &counts, &CallOptions::default()) == Ok(want.clone()), "{counts:?}");
                assert!(gather(&group, &input, &counts, &named("x")) == Ok(want.clone()), "named {counts:?}");
                // In place: the own piece stands where it belongs, the rest is nothing yet.
                let mut both = vec![0xAA; want.len()];
                let start = counts[..rank].iter().sum::<usize>() * 4;
                both[start..start + input.len()].copy_from_slice(&input);
                let buffers = Buffers::InPlace(&mut both);
                let done = group.all_gather_unequal(DataType::Float32, &counts, buffers, &CallOptions::default());
                assert!(done == Ok(()) && both == want, "in place {counts:?}");
                let (received, done) = receiver();
                let buffers = Box::new(Owned { input: input.clone(), output: vec![0xAA; want.len()] });
                let options = CallOptions::default();
                group.all_gather_unequal_async(DataType::Float32, &counts, buffers, &options, done).expect("submitted");
                assert!(wait(&received) == Ok(want.clone()), "async {counts:?}");
                if counts.iter().all(|count| *count == counts[0]) {
                    let mut output = vec![0xAA; want.len()];
                    let buffers = Buffers::Separate { input: &input, output: &mut output };
                    group.all_gather(DataType::Float32, buffers, &CallOptions::default()).expect("equal");
                    assert!(output == want, "equal {counts:?}");
                    let (received, done) = receiver();
                    let buffers = Box::new(Owned { input, output });
                    group.all_gather_async(DataType::Float32, buffers, &named("y"), done).expect("submitted");
                    assert!(wait(&received) == Ok(want), "async equal {counts:?}");
                }
            }
        }));
    }
}

#[test]
fn a_list_of_several_types_is_one_broadcast() {
    for size in [1, 2, 3] {
        all_well(&ranks("a_list_of_several_types_is_one_broadcast", size, |communicator| {
            let (group, rank, root) = (communicator.world(), communicator.rank(), communicator.size() - 1);
            let mut lists: Vec<Vec<(DataType, usize)>> = vec![vec![], vec![(DataType::Float32, 0)]];
            // Many small ones, of one type and of several; and some that are launches of their own among them.
            lists.push((0..300).map(|at| (DataType::Int16, 2 * (at % 9))).collect());
            lists.push((0..300).map(|at| (DataType::ALL[at % 12], 8 * (at % 9))).collect());
            lists.push((0..40).map(|at| (DataType::ALL[at % 12], 1000 << (at % 9))).collect());
            for (number, list) in lists.iter().enumerate() {
                for options in [CallOptions::default(), named("x")] {
                    let owned = |rank: usize| {
                        list.iter().map(move |(dtype, len)| (*dtype, bytes(rank, *len))).collect::<Vec<_>>()
                    };
                    let buffers = owned(rank.index()).into_iter().map(|(dtype, input)| {
                        let output = vec![0xAA; input.len()];
                        (dtype, boxed(input, output))
                    });
                    let (sender, received) = mpsc::channel();
                    let done = move |result: Result<()>, buffers: Vec<Box<dyn OwnedBuffers>>| {
                        sender.send(result.map(|()| buffers)).expect("the test waits");
                    };
                    let root = Rank(u32::try_from(root).expect("few ranks"));
                    group.broadcast_many_async(root, buffers.collect(), &options, Box::new(done)).expect("submitted");
                    let mut back = received.recv_timeout(WATCHDOG).expect("it ends").expect("nothing is wrong");
                    assert_eq!(back.len(), list.len());
                    for (buffers, (_, want)) in back.iter_mut().zip(owned(root.index())) {
                        let mut buffers = buffers.buffers();
                        assert!(buffers.output(0..want.len()) == want, "list {number}");
                    }
                }
            }
            let wrong = vec![(DataType::Int16, boxed(vec![0; 3], vec![0; 3]))];
            let done = Box::new(|_, _| panic!("nothing was submitted"));
            let error =
                group.broadcast_many_async(Rank(0), wrong, &CallOptions::default(), done).expect_err("odd bytes");
            assert!(error.to_string().contains("input 0 of the list"), "{error}");
        }));
    }
}

#[test]
fn an_allgather_can_find_room_when_sizes_are_known() {
    for size in [1, 2, 4] {
        all_well(&ranks("an_allgather_can_find_room_when_sizes_are_known", size, |communicator| {
            let (group, rank) = (communicator.world(), communicator.rank().index());
            // Many of one name at once.
            let calls: Vec<_> = (0..50)
                .map(|call: usize| {
                    let counts: Vec<usize> = (0..communicator.size()).map(|rank| (rank + call) % 4 * call).collect();
                    let input = own(communicator, counts[rank] * 4);
                    let (want, own) = (counts.clone(), u64::try_from(counts[rank]).expect("small"));
                    let place = move |sizes: &[u64]| {
                        let sizes: Vec<_> = sizes.iter().map(|size| usize::try_from(*size).expect("small")).collect();
                        assert_eq!(sizes, want);
                        let output = vec![0xAA; sizes.iter().sum::<usize>() * 4];
                        Ok((sizes, boxed(input, output)))
                    };
                    let (sender, received) = mpsc::channel();
                    let done = move |outcome| drop(sender.send(outcome));
                    let (place, done) = (Box::new(place), Box::new(done));
                    group
                        .all_gather_exchanging_async(DataType::Float32, own, &named("x"), place, done)
                        .expect("submitted");
                    (counts, received)
                })
                .collect();
            for (counts, received) in calls {
                let outcome: Result<Box<dyn OwnedBuffers>> = received.recv_timeout(WATCHDOG).expect("it ends");
                let want = joined(&counts);
                let mut buffers = outcome.expect("nothing is wrong");
                assert!(buffers.buffers().output(0..want.len()) == want, "{counts:?}");
            }
            // A rank that finds no room says so; here all do.
            let (sender, received) = mpsc::channel();
            let done = Box::new(move |outcome: Result<_>| drop(sender.send(outcome.map(|_| ()))));
            let place = Box::new(|_: &[u64]| Err(Error::invalid("room", "some", "none")));
            group
                .all_gather_exchanging_async(DataType::Float32, 1, &CallOptions::default(), place, done)
                .expect("submitted");
            let outcome = received.recv_timeout(WATCHDOG).expect("it ends");
            assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{outcome:?}");
        }));
    }
}

#[test]
fn counts_are_found_by_an_exchange_of_sizes() {
    all_well(&ranks("counts_are_found_by_an_exchange_of_sizes", 3, |communicator| {
        let all: Vec<Rank> = [2, 1].map(Rank).into();
        let pair = communicator.new_group(&all, Some("pair")).expect("a group");
        let rank = communicator.rank().index();
        let sizes =
            communicator.world().all_gather_sizes(10 + u64::from(communicator.rank().0), &CallOptions::default());
        assert_eq!(sizes, Ok(vec![10, 11, 12]));
        let Some(index) = pair.rank() else { return };
        let own: u64 = [0, 5][index];
        let counts = pair.all_gather_sizes(own, &named("x")).expect("sizes");
        let counts: Vec<usize> = counts.into_iter().map(|count| usize::try_from(count).expect("small")).collect();
        assert_eq!(counts, [0, 5]);
        assert_eq!(gather(&pair, &bytes(rank, counts[index] * 4), &counts, &named("x")), Ok(bytes(2, 20)));
        // The root is a rank of the world, not an index of the group.
        assert_eq!(broadcast(&pair, 2, bytes(rank, 12), &CallOptions::default()), Ok(bytes(2, 12)));
    }));
}

#[test]
fn ranks_that_disagree_are_told_and_go_on() {
    all_well(&ranks("ranks_that_disagree_are_told_and_go_on", 3, |communicator| {
        let group = communicator.world();
        let rank = communicator.rank().0;
        let good = || {
            assert!(broadcast(&group, 1, own(communicator, 300_000), &CallOptions::default()) == Ok(bytes(1, 300_000)));
            let counts = [3, 0, 40_000];
            let input = own(communicator, counts[communicator.rank().index()] * 4);
            assert!(gather(&group, &input, &counts, &CallOptions::default()) == Ok(joined(&counts)));
        };
        let disagree = |result: Result<Vec<u8>>, field: &str, odd: u32| {
            let error = result.expect_err("a mismatch");
            let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
            assert_eq!((mismatch.field, mismatch.values.len()), (field, 3), "{error}");
            assert!(error.to_string().contains(&format!("rank {odd}")), "{error}");
            good();
        };
        for odd in 0..3 {
            let mine = |len| own(communicator, len);
            for len in [8, 400_000] {
                let root = if rank == odd { 2 } else { 1 };
                disagree(broadcast(&group, root, mine(len), &CallOptions::default()), "root", odd);
                let more = if rank == odd { len + 4 } else { len };
                disagree(broadcast(&group, 0, mine(more), &CallOptions::default()), "count", odd);
                let counts = if rank == odd { [1, len / 4, 2] } else { [2, len / 4, 2] };
                let input = mine(counts[communicator.rank().index()] * 4);
                disagree(gather(&group, &input, &counts, &CallOptions::default()), "count", odd);
                // The same whole, cut elsewhere.
                let counts = if rank == odd { [1, 30_000, 2] } else { [2, 29_999, 2] };
                let input = mine(counts[communicator.rank().index()] * 4);
                disagree(gather(&group, &input, &counts, &CallOptions::default()), "parts", odd);
            }
            let mut both = vec![0; 12];
            let result = if rank == odd {
                group.all_reduce(
                    DataType::Float32,
                    Reduction::Sum,
                    Buffers::InPlace(&mut both),
                    &CallOptions::default(),
                )
            } else {
                group.broadcast(DataType::Float32, Rank(0), Buffers::InPlace(&mut both), &CallOptions::default())
            };
            disagree(result.map(|()| both), "kind", odd);
        }
    }));
}

#[test]
fn a_killed_rank_is_named_to_those_who_need_it() {
    for size in [2, 4] {
        let statuses = ranks("a_killed_rank_is_named_to_those_who_need_it", size, |communicator| {
            let (group, size) = (communicator.world(), communicator.size());
            assert!(broadcast(&group, 0, own(communicator, 8), &CallOptions::default()).is_ok());
            if communicator.rank() == Rank(1) {
                std::thread::sleep(Duration::from_millis(200));
                std::process::abort();
            }
            let (received, done) = receiver();
            let buffers = Box::new(Owned { input: vec![1; 80], output: vec![0; 80] });
            group.broadcast_async(DataType::Int8, Rank(0), buffers, &named("x"), done).expect("submitted");
            let counts = vec![50_000; size];
            let error = gather(&group, &own(communicator, 200_000), &counts, &CallOptions::default());
            let error = error.expect_err("rank 1 is gone");
            assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(1)), "{error}");
            assert!(error.to_string().contains("allgather"), "{error}");
            assert!(matches!(wait(&received), Err(Error::RankDied(_))), "the pending call depended on it too");
            let later = broadcast(&group, 0, vec![0; 4], &CallOptions::default()).expect_err("the epoch is over");
            let dead = |cause: &Cause| matches!(cause, Cause::RankDied { peer: Rank(1), .. });
            assert!(matches!(&later, Error::GroupAborted(aborted) if dead(&aborted.cause)), "{later}");
        });
        let well: Vec<_> = statuses.iter().map(ExitStatus::success).collect();
        assert_eq!(well, (0..size).map(|rank| rank != 1).collect::<Vec<_>>(), "{statuses:?}");
    }
}

#[test]
fn a_root_that_does_not_come_is_named_at_the_deadline() {
    all_well(&ranks("a_root_that_does_not_come_is_named_at_the_deadline", 2, |communicator| {
        let group = communicator.world();
        assert!(broadcast(&group, 0, vec![0; 4], &CallOptions::default()).is_ok());
        if communicator.rank() == Rank(0) {
            std::thread::sleep(Duration::from_millis(500));
            assert!(broadcast(&group, 0, vec![0; 4], &CallOptions::default()).is_err());
            return;
        }
        let timeout = Timeout::from_seconds(Some(0.2)).expect("a time");
        let options = CallOptions { timeout, ..CallOptions::default() };
        let error = broadcast(&group, 0, vec![0; 4], &options).expect_err("nobody else calls in time");
        assert!(matches!(&error, Error::Deadline(late) if late.peers == [Rank(0)]), "{error}");
        assert!(error.to_string().contains("broadcast"), "{error}");
    }));
}

#[test]
fn bad_arguments_are_refused_and_lose_nothing() {
    all_well(&ranks("bad_arguments_are_refused_and_lose_nothing", 2, |communicator| {
        let group = communicator.world();
        let options = CallOptions::default();
        let invalid = |result: Result<()>, kind: OpKind, field: &str| match result {
            Err(Error::InvalidArgument(e)) if e.field == field => {
                assert_eq!(e.site.as_ref().map(|site| site.op), Some(kind.name()), "{e}");
            }
            other => panic!("{field}: {other:?}"),
        };
        let (cast, gather) = (OpKind::Broadcast, OpKind::AllGather);
        let call = |root, buffers: Buffers<'_>| group.broadcast(DataType::Float32, Rank(root), buffers, &options);
        invalid(call(2, Buffers::InPlace(&mut [0; 8])), cast, "root");
        invalid(call(0, Buffers::InPlace(&mut [0; 6])), cast, "input");
        invalid(call(0, Buffers::Separate { input: &[0; 8], output: &mut [0; 12] }), cast, "output");
        let call = |counts: &[usize], input: &[u8], output: &mut [u8]| {
            group.all_gather_unequal(DataType::Float32, counts, Buffers::Separate { input, output }, &options)
        };
        invalid(call(&[1], &[0; 4], &mut [0; 8]), gather, "counts");
        invalid(call(&[1, usize::MAX], &[0; 4], &mut [0; 8]), gather, "counts");
        invalid(call(&[1, usize::MAX / 2], &[0; 4], &mut [0; 8]), gather, "counts");
        invalid(call(&[0, (2 << 30) + 1], &[0; 4], &mut [0; 8]), gather, "counts");
        invalid(call(&[1, 1], &[0; 8], &mut [0; 8]), gather, "input");
        invalid(call(&[1, 1], &[0; 4], &mut [0; 12]), gather, "output");
        let call = |buffers: Buffers<'_>| group.all_gather(DataType::Float32, buffers, &options);
        invalid(call(Buffers::Separate { input: &[0; 6], output: &mut [0; 12] }), gather, "input");
        invalid(call(Buffers::Separate { input: &[0; 8], output: &mut [0; 12] }), gather, "output");
        invalid(call(Buffers::InPlace(&mut [0; 12])), gather, "output");
        let other = communicator.new_group(&[Rank(1 - communicator.rank().0)], Some("other")).expect("a group");
        let foreign = [
            other.broadcast(DataType::Int8, Rank(0), Buffers::InPlace(&mut []), &options),
            other.all_gather(DataType::Int8, Buffers::InPlace(&mut []), &options),
            other.all_gather_sizes(1, &options).map(drop),
        ];
        assert!(foreign.iter().all(|result| matches!(result, Err(Error::NotInGroup(_)))), "{foreign:?}");
        assert_eq!(broadcast(&group, 1, vec![u8::from(communicator.rank() == Rank(1)); 4], &options), Ok(vec![1; 4]));
    }));
}
