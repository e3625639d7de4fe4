//! Large submitted and named calls, lists, broadcasts and allgathers on several threads of each rank: real processes.

mod support;

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallOptions, Communicator, DataType, Error, Group, OwnedBuffers, Rank, Reduction, Result};
use support::{Received, WATCHDOG, all_well, in_small_calls, named, noise, number, submit, sum, threads, wait, within};

const DEFAULT: CallOptions<'static> = CallOptions::DEFAULT;

/// Elements of a float32 call that is cut, and of one that takes a while.
const LARGE: usize = (1 << 18) + 12_345;
const LONG: usize = 3_000_003;

/// Buffers that note on which threads they are asked for.
struct Noted {
    input: Vec<u8>,
    output: Vec<u8>,
    threads: Arc<Mutex<Vec<String>>>,
}

impl OwnedBuffers for Noted {
    fn buffers(&mut self) -> Buffers<'_> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let mut threads = self.threads.lock().expect("nobody panics with it");
        if !threads.contains(&name) {
            threads.push(name);
        }
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

/// Runs a call that `submit` submits with these buffers and waits for its output.
fn submitted(
    input: &[u8],
    output: usize,
    threads: &Arc<Mutex<Vec<String>>>,
    submit: impl FnOnce(Box<dyn OwnedBuffers>, foldcast::Completion) -> Result<()>,
) -> Vec<u8> {
    let (sender, receiver) = mpsc::channel();
    let buffers = Noted { input: input.to_vec(), output: vec![0xAA; output], threads: Arc::clone(threads) };
    let done = move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.output_len();
        sender.send(result.map(|()| buffers.output(all).to_vec())).expect("the test waits");
    };
    submit(Box::new(buffers), Box::new(done)).expect("submitted");
    receiver.recv_timeout(WATCHDOG).expect("the call ends").expect("a good call")
}

fn reduced_in_every_way(communicator: &Communicator) {
    let group = communicator.world();
    let threads = Arc::<Mutex<Vec<String>>>::default();
    for (at, dtype) in DataType::ALL.into_iter().enumerate() {
        let reduction = Reduction::ALL[at % Reduction::ALL.len()];
        let bytes = (1 << 20) + dtype.size() * (1 + 1017 * at);
        let input = noise(bytes, u64::from(communicator.rank().0) + 1);
        let want = in_small_calls(&group, dtype, reduction, &input);
        for options in [DEFAULT, named("x")] {
            let mut output = vec![0xAA; bytes];
            let buffers = Buffers::Separate { input: &input, output: &mut output };
            group.all_reduce(dtype, reduction, buffers, &options).expect("a blocking call");
            assert!(output == want, "{dtype} {reduction}, {options:?}, blocking");
            let mut both = input.clone();
            group.all_reduce(dtype, reduction, Buffers::InPlace(&mut both), &options).expect("one in place");
            assert!(both == want, "{dtype} {reduction}, {options:?}, in place");
            let got = submitted(&input, bytes, &threads, |buffers, done| {
                group.all_reduce_async(dtype, reduction, buffers, &options, done)
            });
            assert!(got == want, "{dtype} {reduction}, {options:?}, submitted");
        }
    }
}

fn moved_in_every_way(communicator: &Communicator) {
    let (group, size) = (communicator.world(), communicator.size());
    let threads = Arc::<Mutex<Vec<String>>>::default();
    let bytes_of = |rank: usize, len: usize| noise(len, u64::try_from(rank).expect("few") + 77);
    let own = communicator.rank().index();
    let dtype = DataType::Float32;
    for options in [DEFAULT, named("moved")] {
        for root in 0..size {
            let len = (1 << 20) + 4 * 4321 * (root + 1);
            let (input, want, from) = (bytes_of(own, len), bytes_of(root, len), Rank::from_index(root));
            let mut output = vec![0xAA; len];
            let buffers = Buffers::Separate { input: &input, output: &mut output };
            group.broadcast(dtype, from, buffers, &options).expect("a broadcast");
            assert!(output == want, "from {root}, {options:?}");
            let mut both = input.clone();
            group.broadcast(dtype, from, Buffers::InPlace(&mut both), &options).expect("a broadcast in place");
            assert!(both == want, "from {root}, {options:?}, in place");
            let got = submitted(&input, len, &threads, |buffers, done| {
                group.broadcast_async(dtype, from, buffers, &options, done)
            });
            assert!(got == want, "from {root}, {options:?}, submitted");
        }
        // Equal pieces; one that is nearly all; one that is nothing.
        let equal = vec![(1 << 17) + 77; size];
        let (mut most, mut none) = (vec![3; size], vec![1 << 18; size]);
        (most[size - 1], none[0]) = (1 << 19, if size == 1 { 1 << 18 } else { 0 });
        for counts in [equal, most, none] {
            let total = 4 * counts.iter().sum::<usize>();
            let input = bytes_of(own, 4 * counts[own]);
            let pieces = counts.iter().enumerate();
            let want: Vec<u8> = pieces.flat_map(|(rank, count)| bytes_of(rank, 4 * count)).collect();
            let mut output = vec![0xAA; total];
            let buffers = Buffers::Separate { input: &input, output: &mut output };
            group.all_gather_unequal(dtype, &counts, buffers, &options).expect("an allgather");
            assert!(output == want, "{counts:?}, {options:?}");
            let mut both = vec![0xAA; total];
            let start = 4 * counts[..own].iter().sum::<usize>();
            both[start..start + input.len()].copy_from_slice(&input);
            let buffers = Buffers::InPlace(&mut both);
            group.all_gather_unequal(dtype, &counts, buffers, &options).expect("an allgather in place");
            assert!(both == want, "{counts:?}, {options:?}, in place");
            let got = submitted(&input, total, &threads, |buffers, done| {
                group.all_gather_unequal_async(dtype, &counts, buffers, &options, done)
            });
            assert!(got == want, "{counts:?}, {options:?}, submitted");
        }
    }
}

/// Elements of lists in which large arrays stand among small ones, one is cut and one is none.
const LISTS: [&[usize]; 3] = [&[5, LARGE, 0, 700, LARGE + 9, 1 << 14], &[LARGE; 3], &[900; 400]];

fn listed_in_every_way(communicator: &Communicator) {
    let group = communicator.world();
    let (dtype, reduction) = (DataType::Float32, Reduction::Sum);
    for (at, counts) in LISTS.into_iter().enumerate() {
        let seed = |index: usize| u64::try_from(index * 8 + communicator.rank().index() + 5).expect("few");
        let inputs: Vec<Vec<u8>> =
            counts.iter().enumerate().map(|(index, count)| noise(4 * count, seed(index))).collect();
        let want: Vec<_> = inputs.iter().map(|input| in_small_calls(&group, dtype, reduction, input)).collect();
        for options in [DEFAULT, named("list")] {
            let mut outputs: Vec<Vec<u8>> = inputs.iter().map(|input| vec![0xAA; input.len()]).collect();
            let pairs = inputs.iter().zip(&mut outputs);
            let mut buffers: Vec<_> = pairs.map(|(input, output)| Buffers::Separate { input, output }).collect();
            group.all_reduce_many(dtype, reduction, &mut buffers, &options).expect("a list");
            drop(buffers);
            assert!(outputs == want, "list {at}, {options:?}");
            let threads = Arc::<Mutex<Vec<String>>>::default();
            let noted = |input: &Vec<u8>| -> Box<dyn OwnedBuffers> {
                let output = vec![0xAA; input.len()];
                Box::new(Noted { input: input.clone(), output, threads: Arc::clone(&threads) })
            };
            let (sender, receiver) = mpsc::channel();
            let done = move |result: Result<()>, buffers: Vec<Box<dyn OwnedBuffers>>| {
                let output = |mut own: Box<dyn OwnedBuffers>| {
                    let mut buffers = own.buffers();
                    let all = 0..buffers.output_len();
                    buffers.output(all).to_vec()
                };
                let outputs: Vec<Vec<u8>> = buffers.into_iter().map(output).collect();
                sender.send(result.map(|()| outputs)).expect("the test waits");
            };
            let buffers = inputs.iter().map(noted).collect();
            group.all_reduce_many_async(dtype, reduction, buffers, &options, Box::new(done)).expect("submitted");
            let got = receiver.recv_timeout(WATCHDOG).expect("the list ends").expect("a good list");
            assert!(got == want, "list {at}, {options:?}, submitted");
        }
    }
}

/// One rank of two lanes, two ranks of two, and ranks of whom some have fewer threads than there are lanes.
fn everywhere(test: &str, body: fn(&Communicator)) {
    for each in [&["2"][..], &["2", "2"], &["2", "1"], &["3", "3", "1"]] {
        all_well(&threads(test, each, body));
    }
}

#[test]
fn reductions_have_the_same_bits_in_every_way_of_calling() {
    everywhere("reductions_have_the_same_bits_in_every_way_of_calling", reduced_in_every_way);
}

#[test]
fn what_is_moved_keeps_its_bits_in_every_way_of_calling() {
    everywhere("what_is_moved_keeps_its_bits_in_every_way_of_calling", moved_in_every_way);
}

#[test]
fn lists_have_the_same_bits_in_every_way_of_calling() {
    everywhere("lists_have_the_same_bits_in_every_way_of_calling", listed_in_every_way);
}

/// The thread whose buffers these are hands the lanes of a call out.
#[test]
fn helpers_lead_submitted_calls() {
    all_well(&threads("helpers_lead_submitted_calls", &["2"; 2], |communicator| {
        let group = communicator.world();
        let input = noise(4 * LONG, 3);
        for options in [DEFAULT, named("x")] {
            let threads = Arc::<Mutex<Vec<String>>>::default();
            let end = Instant::now() + WATCHDOG;
            let is_led =
                || threads.lock().expect("nobody panics").iter().any(|name| name.starts_with("foldcast-lane-"));
            // Both ranks make the same calls: each until both have seen it.
            loop {
                submitted(&input, input.len(), &threads, |buffers, done| {
                    group.all_reduce_async(DataType::Float32, Reduction::Max, buffers, &options, done)
                });
                let both = sum(&group, &[f32::from(u8::from(is_led()))], &DEFAULT).expect("a sum");
                if both == [2.0] {
                    break;
                }
                assert!(Instant::now() < end, "{options:?}: no helper has led a call");
            }
        }
    }));
}

#[test]
fn a_mismatch_in_named_and_submitted_calls_leaves_no_lane_behind() {
    all_well(&threads("a_mismatch_in_named_and_submitted_calls_leaves_no_lane_behind", &["2"; 3], |communicator| {
        let group = communicator.world();
        for (common, odd) in [(LARGE, LARGE + 1), (LARGE, 3), (3, LARGE), (LARGE, 9 * LARGE)] {
            for other in 0..3 {
                let count = if communicator.rank().0 == other { odd } else { common };
                let input = || vec![1.0; count];
                let ends = [
                    sum(&group, &input(), &named("x")),
                    wait(&submit(&group, input(), &named("x")).expect("submitted")),
                    wait(&submit(&group, input(), &DEFAULT).expect("submitted")),
                ];
                for end in ends {
                    let error = end.expect_err("a mismatch");
                    let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                    assert_eq!((mismatch.field, mismatch.values.len()), ("count", 3), "{error}");
                }
                for count in [LARGE, 7] {
                    let want = Ok(vec![3.0; count]);
                    assert!(sum(&group, &vec![1.0; count], &named("x")) == want, "{count} elements");
                    for options in [DEFAULT, named("y")] {
                        let pending = submit(&group, vec![1.0; count], &options).expect("submitted");
                        assert!(wait(&pending) == want, "{count} elements, {options:?}");
                    }
                }
            }
        }
    }));
}

#[test]
fn a_rank_killed_inside_named_and_submitted_lanes_is_named() {
    for size in [2, 3] {
        let statuses =
            threads("a_rank_killed_inside_named_and_submitted_lanes_is_named", &vec!["2"; size], |communicator| {
                let everybody: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).collect();
                let groups = ["blocking", "submitted", "unnamed"]
                    .map(|name| communicator.new_group(&everybody, Some(name)).expect("a group"));
                if communicator.rank() == Rank(1) {
                    // It is in the midst of calls then.
                    std::thread::spawn(|| {
                        std::thread::sleep(Duration::from_millis(300));
                        std::process::abort();
                    });
                }
                // All groups at once, each until it learns of the death.
                let (sender, receiver) = mpsc::channel();
                for (group, way) in groups.into_iter().zip(0..) {
                    let sender = sender.clone();
                    std::thread::spawn(move || {
                        let error = loop {
                            let input = vec![1.0; LONG];
                            let end = match way {
                                0 => sum(&group, &input, &named("x")),
                                1 => submit(&group, input, &named("x")).and_then(|pending| wait(&pending)),
                                _ => submit(&group, input, &DEFAULT).and_then(|pending| wait(&pending)),
                            };
                            if let Err(error) = end {
                                break error;
                            }
                        };
                        let later = sum(&group, &[1.0], &DEFAULT).expect_err("the epoch is over");
                        sender.send((error, later)).expect("the test waits");
                    });
                }
                for _ in 0..3 {
                    let (error, later) = receiver.recv_timeout(WATCHDOG).expect("each group learns of it");
                    let Error::RankDied(died) = &error else { panic!("{error}") };
                    assert_eq!(died.peer, Rank(1), "{error}");
                    assert!(matches!(later, Error::GroupAborted(_)), "{later}");
                }
            });
        let well: Vec<bool> = statuses.iter().map(ExitStatus::success).collect();
        assert_eq!(well, (0..size).map(|rank| rank != 1).collect::<Vec<_>>(), "{statuses:?}");
    }
}

/// Calls that are under way, on this rank or on both, when the group or the communicator ends.
#[test]
fn a_missing_rank_an_abort_and_an_end_in_order_end_submitted_calls() {
    all_well(&threads("a_missing_rank_an_abort_and_an_end_in_order_end_submitted_calls", &["2"; 2], |communicator| {
        let everybody = [Rank(0), Rank(1)];
        let group = |name| communicator.new_group(&everybody, Some(name)).expect("a group");
        let (late, aborted) = (group("late"), group("aborted"));
        let input = || vec![1.0; LONG];
        let world = communicator.world();
        for group in [&late, &aborted, &world] {
            assert!(wait(&submit(group, input(), &named("x")).expect("submitted")).is_ok());
        }
        if communicator.rank() == Rank(0) {
            let options = CallOptions { timeout: within(0.2), ..named("x") };
            let error = wait(&submit(&late, input(), &options).expect("submitted")).expect_err("nobody else comes");
            assert!(matches!(&error, Error::Deadline(e) if e.peers == [Rank(1)]), "{error}");
        }
        // Many at once, in the midst of which one rank ends them.
        let many = |group: &Group, options: CallOptions<'_>| -> Vec<Received> {
            // The other rank may have ended it before all are submitted.
            (0..8).filter_map(|_| submit(group, input(), &options).ok()).collect()
        };
        let mut pending = many(&aborted, named("y"));
        if communicator.rank() == Rank(1) {
            assert!(wait(&pending.remove(0)).is_ok());
            aborted.abort();
        }
        let ends: Vec<_> = pending.iter().map(wait).collect();
        for end in &ends {
            assert!(matches!(end, Ok(_) | Err(Error::GroupAborted(_))), "{:?}", end.as_ref().err());
        }
        assert!(submit(&aborted, input(), &named("y")).and_then(|pending| wait(&pending)).is_err());
        let mut pending = many(&world, DEFAULT);
        let mut ends = Vec::new();
        if communicator.rank() == Rank(1) {
            // Rank 0 may have left already.
            ends.push(wait(&pending.remove(0)));
        }
        communicator.shutdown();
        ends.extend(pending.iter().map(wait));
        for end in ends {
            assert!(matches!(end, Ok(_) | Err(Error::Closed { .. } | Error::RankDied(_) | Error::GroupAborted(_))));
        }
    }));
}

/// More large calls at once than helpers, of several groups and both kinds, with small ones among them.
#[test]
fn several_groups_and_kinds_at_once_get_on() {
    all_well(&threads("several_groups_and_kinds_at_once_get_on", &["2"; 2], |communicator| {
        let everybody = [Rank(0), Rank(1)];
        let groups = ["a", "b", "c"].map(|name| communicator.new_group(&everybody, Some(name)).expect("a group"));
        let own = number(communicator) + 1.0;
        let mut pending = Vec::new();
        for round in 0..4 {
            // The ranks submit in different orders.
            let turn = communicator.rank().index() * round;
            for at in 0..groups.len() {
                let group = &groups[(at + turn) % groups.len()];
                for (name, count) in [("large", LONG), ("small", 9), ("other", LARGE)] {
                    pending.push((count, submit(group, vec![own; count], &named(name)).expect("submitted")));
                }
                pending.push((LARGE, submit(group, vec![own; LARGE], &DEFAULT).expect("submitted")));
            }
            assert_eq!(sum(&groups[round % 3], &[own], &named("waits")), Ok(vec![3.0]));
        }
        for (count, pending) in &pending {
            assert!(wait(pending) == Ok(vec![3.0; *count]), "{count} elements");
        }
    }));
}

/// A completion that waits for another large call hands the progress over; what is led goes on.
#[test]
fn a_completion_may_wait_for_a_large_call() {
    all_well(&threads("a_completion_may_wait_for_a_large_call", &["2"; 2], |communicator| {
        let group = communicator.world();
        let (sender, receiver) = mpsc::channel();
        let first = submit(&group, vec![1.0; LONG], &named("first")).expect("submitted");
        let (inner, buffers) = (group.clone(), support::Owned { input: vec![1.0], output: vec![0.0] });
        let done = move |result: Result<()>, _: Box<dyn OwnedBuffers>| {
            result.expect("a good call");
            sender.send(sum(&inner, &vec![2.0; LARGE], &named("inner"))).expect("the test waits");
        };
        let options = named("small");
        group
            .all_reduce_async(DataType::Float32, Reduction::Sum, Box::new(buffers), &options, Box::new(done))
            .expect("submitted");
        assert!(receiver.recv_timeout(WATCHDOG).expect("it ends") == Ok(vec![4.0; LARGE]));
        assert!(wait(&first) == Ok(vec![2.0; LONG]));
    }));
}
