//! Allreduces of arrays that all ranks read where they are: real processes.

mod support;

use std::process::ExitStatus;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, Memory, OwnedBuffers, Rank, Reduction, Result, digest,
};
use support::{all_well, ranks, ranks_with, within};

const DEFAULT: CallOptions<'static> = CallOptions::DEFAULT;

/// The least that goes this way, and sizes that cut chunks and pieces anywhere: in bytes, whole elements of every type.
const SIZES: [usize; 3] = [512 << 10, (1 << 20) + 8, 3_000_008];

/// KiB of other ranks' memory that this process has read where it is. Nothing else is mapped for reading alone.
fn read_of_others() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let (mut is_theirs, mut kib) = (false, 0);
    for line in text.lines() {
        if line.contains("memfd:foldcast") {
            is_theirs = line.contains(" r--s ");
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_theirs) {
            kib += rss.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
            is_theirs = false;
        }
    }
    kib
}

/// This rank's bytes: numbers of any kind, but for NaNs and such of the larger floats now and then.
fn fill(bytes: &mut [u8], rank: Rank, call: usize) {
    let seed = digest(u64::from(rank.0), &call.to_le_bytes());
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let noise = seed.wrapping_add(u64::try_from(at).expect("64 bits")).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&(noise ^ noise >> 29).to_le_bytes()[..word.len()]);
    }
}

/// Buffers of a call: private, or where others read them.
enum Bytes {
    Private(Vec<u8>),
    Readable(Memory),
}

impl Bytes {
    fn new(communicator: &Communicator, len: usize, readable: bool) -> Bytes {
        match readable {
            true => Bytes::Readable(communicator.empty(len).expect("memory")),
            false => Bytes::Private(vec![0; len]),
        }
    }

    fn all(&mut self) -> &mut [u8] {
        match self {
            Bytes::Private(bytes) => bytes,
            Bytes::Readable(memory) => memory,
        }
    }
}

/// The result of a call on private memory.
fn expected(group: &Group, dtype: DataType, reduction: Reduction, input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; input.len()];
    let buffers = Buffers::Separate { input, output: &mut output };
    group.all_reduce(dtype, reduction, buffers, &DEFAULT).expect("a reduction");
    output
}

/// Calls on these buffers until all ranks see each other's memory, which they do after a few.
fn warm_up(communicator: &Communicator, buffers: &mut [u8]) {
    let group = communicator.world();
    for _ in 0..1000 {
        let reads = [if read_of_others() > 0 { 1_u8 } else { 0 }];
        if expected(&group, DataType::Uint8, Reduction::Min, &reads) == [1] {
            return;
        }
        group.all_reduce(DataType::Uint8, Reduction::Max, Buffers::InPlace(buffers), &DEFAULT).expect("a reduction");
    }
    panic!("{}: no call reads the others' memory", communicator.rank());
}

fn every_type(communicator: &Communicator) {
    let group = communicator.world();
    let largest = SIZES[SIZES.len() - 1];
    let mut source = vec![0; largest];
    let [mut input, mut output] = [0; 2].map(|_| communicator.empty(largest).expect("memory"));
    assert!(input.is_readable() && output.iter().all(|byte| *byte == 0));
    assert_eq!(read_of_others(), 0);
    warm_up(communicator, &mut output);
    let mut call = 0;
    for dtype in DataType::ALL {
        for reduction in Reduction::ALL {
            let bytes = SIZES[call % SIZES.len()];
            call += 1;
            fill(&mut source[..bytes], communicator.rank(), call);
            let want = expected(&group, dtype, reduction, &source[..bytes]);
            // Not aligned to a line either.
            let from = call % 5 * dtype.size();
            if from + bytes <= largest {
                input[from..from + bytes].copy_from_slice(&source[..bytes]);
                output.fill(0xEE);
                let apart = Buffers::Separate { input: &input[from..from + bytes], output: &mut output[..bytes] };
                group.all_reduce(dtype, reduction, apart, &DEFAULT).expect("a reduction");
                assert!(output[..bytes] == want && input[from..from + bytes] == source[..bytes], "{dtype} {reduction}");
                assert!(
                    output[bytes..].iter().all(|byte| *byte == 0xEE),
                    "{dtype} {reduction}: written beyond its end"
                );
            }
            output[..bytes].copy_from_slice(&source[..bytes]);
            group.all_reduce(dtype, reduction, Buffers::InPlace(&mut output[..bytes]), &DEFAULT).expect("a reduction");
            assert!(output[..bytes] == want, "{dtype} {reduction} in place");
        }
    }
}

#[test]
fn every_type_has_the_bits_of_private_memory() {
    for size in 2..=5 {
        all_well(&ranks("every_type_has_the_bits_of_private_memory", size, every_type));
    }
}

#[test]
fn every_type_has_the_same_bits_in_lanes() {
    for size in [2, 3] {
        let variables = vec![[("FOLDCAST_THREADS", "2")]; size];
        all_well(&ranks_with("every_type_has_the_same_bits_in_lanes", &variables, every_type));
    }
}

#[test]
fn the_direct_plan_can_be_forced() {
    all_well(&ranks_with("the_direct_plan_can_be_forced", &[[("FOLDCAST_ALGO", "direct")]; 2], every_type));
}

#[test]
fn another_plan_can_be_forced() {
    all_well(&ranks_with("another_plan_can_be_forced", &[[("FOLDCAST_ALGO", "one_shot")]; 2], |communicator| {
        let mut both = communicator.empty(SIZES[1]).expect("memory");
        for call in 0..30 {
            fill(&mut both, communicator.rank(), call);
            let want = expected(&communicator.world(), DataType::Int32, Reduction::Sum, &both);
            let buffers = Buffers::InPlace(&mut both);
            communicator.world().all_reduce(DataType::Int32, Reduction::Sum, buffers, &DEFAULT).expect("a reduction");
            assert!(*both == want);
        }
        assert_eq!(read_of_others(), 0);
    }));
}

/// Ranks that have private memory, or such that others read, or some of both, now and again, made anew each time.
#[test]
fn ranks_with_any_memory_agree() {
    for size in 2..=5 {
        all_well(&ranks("ranks_with_any_memory_agree", size, |communicator| {
            let (group, rank) = (communicator.world(), communicator.rank());
            let mut most_read = 0;
            let random = |call: usize| digest(7 + u64::from(rank.0), &call.to_le_bytes());
            for call in 0..120 {
                let bytes = SIZES[call % SIZES.len()];
                let mut source = vec![0; bytes];
                fill(&mut source, rank, call);
                let want = expected(&group, DataType::Float32, Reduction::Sum, &source);
                let drawn = random(call);
                // Every third call all ranks have readable memory.
                let readable = |bit: u64| call % 3 == 0 || drawn >> bit & 1 == 1;
                let mut output = Bytes::new(communicator, bytes, readable(3));
                let mut input = Bytes::new(communicator, bytes, readable(9));
                let result = if drawn & 1 == 0 {
                    output.all().copy_from_slice(&source);
                    group.all_reduce(DataType::Float32, Reduction::Sum, Buffers::InPlace(output.all()), &DEFAULT)
                } else {
                    input.all().copy_from_slice(&source);
                    let buffers = Buffers::Separate { input: input.all(), output: output.all() };
                    group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &DEFAULT)
                };
                assert_eq!(result, Ok(()));
                assert!(output.all() == want, "call {call}");
                // Before the memory goes back.
                most_read = most_read.max(read_of_others());
            }
            assert!(most_read > 0, "some calls go the direct way");
        }));
    }
}

struct Submitted {
    input: Memory,
    output: Memory,
}

impl OwnedBuffers for Submitted {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

#[test]
fn named_and_submitted_calls_and_groups_go_the_same_way() {
    all_well(&ranks("named_and_submitted_calls_and_groups_go_the_same_way", 3, |communicator| {
        let rank = communicator.rank();
        let group = communicator.world();
        warm_up(communicator, &mut communicator.empty(1 << 20).expect("memory"));
        let (sender, receiver) = std::sync::mpsc::channel();
        let names = ["a", "b", "c", "d"];
        for turn in 0..3 {
            for at in 0..names.len() {
                // Each rank in an order of its own.
                let call = (at + rank.index()) % names.len();
                let [mut input, output] = [0; 2].map(|_| communicator.empty(SIZES[call % 3]).expect("memory"));
                fill(&mut input, rank, call);
                let options = CallOptions { name: Some(names[call]), ..DEFAULT };
                let sender = sender.clone();
                let done = move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
                    let mut buffers = buffers.buffers();
                    let all = 0..buffers.output_len();
                    sender.send((call, result, buffers.output(all).to_vec())).expect("the test waits");
                };
                let buffers = Box::new(Submitted { input, output });
                let submitted =
                    group.all_reduce_async(DataType::Int64, Reduction::Max, buffers, &options, Box::new(done));
                assert_eq!(submitted, Ok(()), "turn {turn}");
            }
            let mut results: Vec<_> =
                names.iter().map(|_| receiver.recv_timeout(support::WATCHDOG).expect("an end")).collect();
            results.sort_by_key(|(call, ..)| *call);
            for (call, result, output) in results {
                assert_eq!(result, Ok(()));
                let mut source = vec![0; output.len()];
                fill(&mut source, rank, call);
                assert!(expected(&group, DataType::Int64, Reduction::Max, &source) == output, "call {call}");
            }
        }
        if rank != Rank(1) {
            let pair = communicator.new_group(&[Rank(0), Rank(2)], Some("pair")).expect("a group");
            let mut both = communicator.empty(SIZES[2]).expect("memory");
            fill(&mut both, rank, 5);
            let want = expected(&pair, DataType::Bfloat16, Reduction::Sum, &both);
            let options = CallOptions { name: Some("x"), ..DEFAULT };
            pair.all_reduce(DataType::Bfloat16, Reduction::Sum, Buffers::InPlace(&mut both), &options).expect("a sum");
            assert!(*both == want);
        }
    }));
}

#[test]
fn a_mismatch_leaves_the_next_call_right() {
    all_well(&ranks("a_mismatch_leaves_the_next_call_right", 3, |communicator| {
        let (group, rank) = (communicator.world(), communicator.rank());
        let mut both = communicator.empty(SIZES[1]).expect("memory");
        warm_up(communicator, &mut both);
        for odd in 0..3 {
            for other in [SIZES[0], SIZES[1] - 8, 64] {
                let bytes = if rank.0 == odd { other } else { SIZES[1] };
                both.fill(9);
                let buffers = Buffers::InPlace(&mut both[..bytes]);
                let error =
                    group.all_reduce(DataType::Uint8, Reduction::Sum, buffers, &DEFAULT).expect_err("a mismatch");
                assert!(matches!(&error, Error::Mismatch(mismatch) if mismatch.field == "count"), "{error}");
                assert!(both.iter().all(|byte| *byte == 9), "nothing was written");
                fill(&mut both, rank, other);
                let want = expected(&group, DataType::Uint8, Reduction::Sum, &both);
                group
                    .all_reduce(DataType::Uint8, Reduction::Sum, Buffers::InPlace(&mut both), &DEFAULT)
                    .expect("a sum");
                assert!(*both == want);
            }
        }
    }));
}

/// Direct calls one after the other until one fails; all before it are right.
fn until_it_fails(communicator: &Communicator, group: &Group, options: &CallOptions<'_>) -> Error {
    let size = u32::try_from(group.size()).expect("few ranks");
    let mut both = communicator.empty(24 << 20).expect("memory");
    loop {
        both.fill(0);
        both[0] = 1;
        match group.all_reduce(DataType::Uint32, Reduction::Sum, Buffers::InPlace(&mut both), options) {
            Ok(()) => assert_eq!(both[..4], size.to_le_bytes()),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_rank_killed_in_the_midst_is_named_and_the_others_go_on() {
    for size in [2, 3, 4] {
        let name = "a_rank_killed_in_the_midst_is_named_and_the_others_go_on";
        let statuses = ranks(name, size, |communicator| {
            warm_up(communicator, &mut communicator.empty(1 << 20).expect("memory"));
            if communicator.rank() == Rank(1) {
                std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(150));
                    std::process::abort();
                });
            }
            let error = until_it_fails(communicator, &communicator.world(), &DEFAULT);
            let Error::RankDied(died) = &error else { panic!("{error}") };
            assert_eq!(died.peer, Rank(1), "{error}");
            let left: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).filter(|rank| rank.0 != 1).collect();
            let rest = communicator.new_group(&left, Some("rest")).expect("a group");
            let mut both = communicator.empty(SIZES[1]).expect("memory");
            for call in 0..20 {
                fill(&mut both, communicator.rank(), call);
                let want = expected(&rest, DataType::Float64, Reduction::Prod, &both);
                let buffers = Buffers::InPlace(&mut both);
                rest.all_reduce(DataType::Float64, Reduction::Prod, buffers, &DEFAULT).expect("the others go on");
                assert!(*both == want, "call {call}");
            }
        });
        let well: Vec<bool> = statuses.iter().map(ExitStatus::success).collect();
        assert_eq!(well, (0..size).map(|rank| rank != 1).collect::<Vec<_>>(), "{statuses:?}");
    }
}

#[test]
fn an_abort_a_late_rank_and_an_end_in_order_end_calls() {
    all_well(&ranks("an_abort_a_late_rank_and_an_end_in_order_end_calls", 2, |communicator| {
        let everybody = [Rank(0), Rank(1)];
        let group = |name| communicator.new_group(&everybody, Some(name)).expect("a group");
        let (aborted, late) = (group("aborted"), group("late"));
        let mut both = communicator.empty(4 << 20).expect("memory");
        warm_up(communicator, &mut both);
        let (first, other) = (communicator.rank() == Rank(0), aborted.clone());
        if !first {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                other.abort();
            });
        }
        let error = until_it_fails(communicator, &aborted, &DEFAULT);
        assert!(matches!(error, Error::GroupAborted(_)), "{error}");
        let mut sum = |group: &Group, options: &CallOptions<'_>| {
            group.all_reduce(DataType::Int8, Reduction::Sum, Buffers::InPlace(&mut both), options)
        };
        assert_eq!(sum(&late, &DEFAULT), Ok(()));
        if first {
            let error = sum(&late, &CallOptions { timeout: within(0.2), ..DEFAULT }).expect_err("nobody comes");
            assert!(matches!(&error, Error::Deadline(deadline) if deadline.peers == [Rank(1)]), "{error}");
            let error = until_it_fails(communicator, &communicator.world(), &DEFAULT);
            assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(1)), "{error}");
        } else {
            let mut both = communicator.empty(24 << 20).expect("memory");
            for _ in 0..3 {
                both.fill(0);
                both[0] = 1;
                let buffers = Buffers::InPlace(&mut both);
                let sum = communicator.world().all_reduce(DataType::Uint32, Reduction::Sum, buffers, &DEFAULT);
                assert_eq!(sum, Ok(()));
            }
        }
    }));
}

#[test]
fn memory_is_bounded_and_outlives_the_communicator() {
    let name = "memory_is_bounded_and_outlives_the_communicator";
    all_well(&ranks_with(name, &[[("FOLDCAST_ARENA_BYTES", "4194304")]; 2], |communicator| {
        let mut kept = communicator.empty(3 << 20).expect("memory");
        let error = communicator.empty(2 << 20).expect_err("more than the bound");
        assert!(matches!(&error, Error::Resource(_)) && error.to_string().contains("FOLDCAST_ARENA_BYTES"), "{error}");
        assert!(!communicator.empty(0).expect("nothing").is_readable());
        drop(communicator.empty(1 << 20).expect("as much as is left"));
        communicator.shutdown();
        kept.fill(7);
        let error = communicator.empty(1).expect_err("it is shut down");
        assert!(matches!(error, Error::Closed { .. }), "{error}");
    }));
}

#[test]
fn in_a_world_of_one_memory_is_private() {
    all_well(&ranks("in_a_world_of_one_memory_is_private", 1, |communicator| {
        let mut memory = communicator.empty(1 << 20).expect("memory");
        assert!(!memory.is_readable());
        memory.fill(3);
        let buffers = Buffers::InPlace(&mut memory);
        communicator.world().all_reduce(DataType::Float32, Reduction::Sum, buffers, &DEFAULT).expect("a copy");
        assert!(memory.iter().all(|byte| *byte == 3) && memory.as_ptr().addr().is_multiple_of(8));
    }));
}
