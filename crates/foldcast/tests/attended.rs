//! Submitted calls that the submitting thread looks after for a moment.

mod support;

use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, OwnedBuffers, Rank, Reduction, Result, bytes_of,
    bytes_of_mut,
};
use support::{Owned, WATCHDOG, all_well, named, number, ranks, submit, sum, total, wait};

fn attended(name: &str) -> CallOptions<'_> {
    CallOptions { attended: true, ..named(name) }
}

/// Lets the ranks meet, without which no call is looked after.
fn meet(communicator: &Communicator) {
    communicator.world().barrier(&CallOptions::DEFAULT).expect("all are there");
}

#[test]
fn a_call_can_end_before_its_submission_returns() {
    let body = |communicator: &Communicator| {
        let world = communicator.world();
        meet(communicator);
        let begun = Instant::now();
        loop {
            let received = submit(&world, vec![number(communicator)], &attended("soon")).expect("submitted");
            let has_ended = received.try_recv();
            let result = has_ended.clone().unwrap_or_else(|_| wait(&received));
            assert_eq!(result, Ok(vec![total(communicator.size())]));
            let seen = sum(&world, &[f32::from(u8::from(has_ended.is_ok()))], &CallOptions::DEFAULT);
            if seen.expect("all are there") > vec![0.0] {
                return;
            }
            // With one processor no rank would gain by it.
            if std::thread::available_parallelism().is_ok_and(|number| number.get() < 2) {
                return;
            }
            assert!(begun.elapsed() < WATCHDOG / 2, "no call ended while its thread looked after it");
        }
    };
    all_well(&ranks("a_call_can_end_before_its_submission_returns", 2, body));
}

#[test]
fn a_rank_that_comes_late_does_not_keep_the_thread() {
    let body = |communicator: &Communicator| {
        let world = communicator.world();
        for round in 0..20 {
            meet(communicator);
            let is_late = communicator.rank().index() == round % communicator.size();
            let submit = || submit(&world, vec![number(communicator)], &attended("late")).expect("submitted");
            let early = (!is_late).then(submit);
            // Nobody comes through before all who are not late have submitted: if that took the late one, for ever.
            meet(communicator);
            let received = early.unwrap_or_else(submit);
            assert_eq!(wait(&received), Ok(vec![total(communicator.size())]));
        }
    };
    for size in [2, 3] {
        all_well(&ranks("a_rank_that_comes_late_does_not_keep_the_thread", size, body));
    }
}

#[test]
fn threads_meet_by_name_whatever_their_order() {
    let body = |communicator: &Communicator| {
        let world = communicator.world();
        meet(communicator);
        std::thread::scope(|scope| {
            for thread in 0_u8..3 {
                let world = &world;
                scope.spawn(move || {
                    // Each rank begins with other names.
                    let names = ["a", "b", "c", "d"].map(|name| format!("{name}{thread}"));
                    for _ in 0..150 {
                        let call = |at: usize| {
                            let name = &names[(at + communicator.rank().index()) % names.len()];
                            submit(world, vec![f32::from(thread)], &attended(name)).expect("submitted")
                        };
                        let received: Vec<_> = (0..names.len()).map(call).collect();
                        let as_expected = |received| wait(received) == Ok(vec![f32::from(thread) * 2.0]);
                        assert!(received.iter().all(as_expected));
                    }
                });
            }
        });
        meet(communicator);
    };
    all_well(&ranks("threads_meet_by_name_whatever_their_order", 2, body));
}

const CHAIN: usize = 20_000;

/// A call whose completion submits the next one.
fn go_on(group: &Group, left: usize, end: Sender<Result<()>>) {
    let own = group.clone();
    let done = move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        assert_eq!(buffers.output(0..4), bytes_of(&[2.0_f32]));
        match result {
            Ok(()) if left > 0 => go_on(&own, left - 1, end),
            result => end.send(result).expect("the test waits"),
        }
    };
    let buffers = Box::new(Owned { input: vec![1.0], output: vec![0.0] });
    let submitted =
        group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &attended("chain"), Box::new(done));
    submitted.expect("nothing is wrong");
}

#[test]
fn completions_that_submit_the_next_call_need_little_stack() {
    let body = |communicator: &Communicator| {
        meet(communicator);
        let (sender, receiver) = mpsc::channel();
        let world = communicator.world();
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || go_on(&world, CHAIN, sender));
        thread.expect("a thread").join().expect("the stack suffices");
        assert_eq!(receiver.recv_timeout(WATCHDOG), Ok(Ok(())));
    };
    all_well(&ranks("completions_that_submit_the_next_call_need_little_stack", 2, body));
}

#[test]
fn the_end_of_the_group_is_the_end_of_a_call_looked_after() {
    let body = |communicator: &Communicator| {
        let both = communicator.new_group(&[Rank(0), Rank(1)], Some("both")).expect("a group");
        for _ in 0..10 {
            let received = submit(&both, vec![1.0], &attended("before")).expect("submitted");
            assert_eq!(wait(&received), Ok(vec![2.0]));
        }
        meet(communicator);
        if communicator.rank().index() == 1 {
            both.abort();
        } else if let Ok(received) = submit(&both, vec![1.0], &attended("in vain")) {
            let result = wait(&received);
            assert!(matches!(result, Err(Error::GroupAborted(_))), "{result:?}");
        }
        meet(communicator);
    };
    all_well(&ranks("the_end_of_the_group_is_the_end_of_a_call_looked_after", 2, body));
}

#[test]
fn a_mismatch_is_told_to_the_submitting_thread_too() {
    let body = |communicator: &Communicator| {
        let world = communicator.world();
        meet(communicator);
        for round in 0..50_usize {
            let count = 1 + (round + communicator.rank().index()) % 2;
            let received = submit(&world, vec![1.0; count], &attended("unlike")).expect("submitted");
            assert!(matches!(wait(&received), Err(Error::Mismatch(_))));
            let (input, mut output) = ([1.0_f32], [0.0_f32]);
            let buffers = Buffers::Separate { input: bytes_of(&input), output: bytes_of_mut(&mut output) };
            assert_eq!(world.all_reduce(DataType::Float32, Reduction::Sum, buffers, &named("like")), Ok(()));
            assert_eq!(output, [2.0]);
        }
    };
    all_well(&ranks("a_mismatch_is_told_to_the_submitting_thread_too", 2, body));
}
