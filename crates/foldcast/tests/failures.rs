//! What goes wrong between real processes at awkward moments: before a group is joined, behind other calls, beside a
//! third rank that is late, in completions.

mod support;

use std::process::ExitStatus;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use foldcast::{CallOptions, Cause, Communicator, DataType, Ending, Error, OwnedBuffers, Rank, Reduction, Result};
use support::{Owned, WATCHDOG, all_well, named, ranks, submit, sum, wait, within};

const DEFAULT: CallOptions<'static> = CallOptions::DEFAULT;

fn everybody(communicator: &Communicator) -> Vec<Rank> {
    (0..communicator.size()).map(Rank::from_index).collect()
}

#[test]
fn a_submitted_call_is_never_forgotten() {
    all_well(&ranks("a_submitted_call_is_never_forgotten", 2, |communicator| {
        let group = communicator.world();
        for round in 0..200 {
            let a = submit(&group, vec![1.0], &named("a")).expect("submitted");
            assert_eq!(wait(&a), Ok(vec![2.0]), "round {round}");
            if communicator.rank() == Rank(0) {
                let b = submit(&group, vec![2.0], &named("b")).expect("submitted");
                assert_eq!(sum(&group, &[3.0], &named("c")), Ok(vec![6.0]), "round {round}");
                assert_eq!(wait(&b), Ok(vec![4.0]), "round {round}");
            } else {
                assert_eq!(sum(&group, &[3.0], &named("c")), Ok(vec![6.0]), "round {round}");
                let b = submit(&group, vec![2.0], &named("b")).expect("submitted");
                assert_eq!(wait(&b), Ok(vec![4.0]), "round {round}");
            }
        }
    }));
}

/// Rank 2 dies in a call that rank 3 has not entered yet: nobody waits for rank 3 to learn that.
fn death_beside_a_late_rank(communicator: &Communicator, options: &CallOptions<'_>) {
    const LATE: Duration = Duration::from_secs(3);
    let group = communicator.world();
    let input = vec![1.0; 1 << 20];
    assert!(sum(&group, &[1.0], &DEFAULT).is_ok());
    let start = Instant::now();
    match communicator.rank() {
        Rank(2) => {
            let pending = submit(&group, input, options).expect("submitted");
            std::thread::sleep(Duration::from_millis(300));
            drop(pending);
            std::process::abort();
        }
        Rank(3) => std::thread::sleep(LATE),
        _ => {}
    }
    let error = sum(&group, &input, options).expect_err("rank 2 is gone");
    assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(2)), "{error}");
    assert!(communicator.rank() == Rank(3) || start.elapsed() < LATE, "told only when the late rank came");
}

fn all_but_rank_2(statuses: &[ExitStatus]) {
    let well: Vec<bool> = statuses.iter().map(ExitStatus::success).collect();
    assert_eq!(well, [true, true, false, true], "{statuses:?}");
}

#[test]
fn a_death_beside_a_late_rank_is_noticed() {
    all_but_rank_2(&ranks("a_death_beside_a_late_rank_is_noticed", 4, |communicator| {
        death_beside_a_late_rank(communicator, &DEFAULT);
    }));
}

#[test]
fn a_death_beside_a_late_rank_is_noticed_by_name() {
    all_but_rank_2(&ranks("a_death_beside_a_late_rank_is_noticed_by_name", 4, |communicator| {
        death_beside_a_late_rank(communicator, &named("x"));
    }));
}

#[test]
fn a_death_before_the_group_is_joined_is_noticed() {
    all_but_rank_2(&ranks("a_death_before_the_group_is_joined_is_noticed", 4, |communicator| {
        const LATE: Duration = Duration::from_secs(3);
        assert!(sum(&communicator.world(), &[1.0], &DEFAULT).is_ok());
        let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
        let start = Instant::now();
        match communicator.rank() {
            Rank(0) => std::thread::sleep(LATE),
            Rank(2) => std::process::abort(),
            _ => {}
        }
        let error = sum(&group, &[1.0], &DEFAULT).expect_err("rank 2 is gone");
        assert!(matches!(&error, Error::RankDied(died) if died.peer == Rank(2)), "{error}");
        assert!(communicator.rank() == Rank(0) || start.elapsed() < LATE, "told only when the first member came");
        let again = sum(&group, &[1.0], &DEFAULT).expect_err("the epoch is over");
        assert!(
            matches!(&again, Error::GroupAborted(e) if matches!(e.cause, Cause::RankDied { peer: Rank(2), .. })),
            "{again}"
        );
    }));
}

#[test]
fn an_ending_before_the_group_is_joined_reaches_the_members() {
    all_well(&ranks("an_ending_before_the_group_is_joined_reaches_the_members", 3, |communicator| {
        let aborted = communicator.new_group(&everybody(communicator), Some("aborted")).expect("a group");
        let late = communicator.new_group(&everybody(communicator), Some("late")).expect("a group");
        if communicator.rank() == Rank(1) {
            aborted.abort();
            let options = CallOptions { timeout: within(0.2), ..DEFAULT };
            let error = sum(&late, &[1.0], &options).expect_err("nobody else is there");
            assert!(matches!(&error, Error::Deadline(_)), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(500));
            let error = sum(&late, &[1.0], &DEFAULT).expect_err("the deadline of rank 1");
            assert!(
                matches!(&error, Error::GroupAborted(e) if matches!(e.cause, Cause::Deadline { by: Rank(1), .. })),
                "{error}"
            );
        }
        let error = sum(&aborted, &[1.0], &DEFAULT).expect_err("aborted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == Cause::Requested { by: Rank(1) }), "{error}");
        assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![3.0]));
    }));
}

#[test]
fn the_first_submitted_call_has_a_deadline_of_its_own() {
    all_well(&ranks("the_first_submitted_call_has_a_deadline_of_its_own", 2, |communicator| {
        let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
        if communicator.rank() == Rank(1) {
            let options = CallOptions { timeout: within(0.2), ..DEFAULT };
            let first = submit(&group, vec![1.0], &options).expect("submitted");
            let second = submit(&group, vec![1.0], &named("x")).expect("submitted");
            let error = wait(&first).expect_err("the deadline");
            assert!(matches!(&error, Error::Deadline(e) if e.peers == [Rank(0)]), "{error}");
            assert!(matches!(wait(&second), Err(Error::GroupAborted(_))));
        }
        assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![2.0]));
    }));
}

#[test]
fn calls_behind_others_have_deadlines() {
    all_well(&ranks("calls_behind_others_have_deadlines", 2, |communicator| {
        let endless = CallOptions { timeout: foldcast::Timeout::Never, ..DEFAULT };
        let short = CallOptions { timeout: within(0.3), ..DEFAULT };
        for behind in ["submitted", "blocking"] {
            let group = communicator.new_group(&everybody(communicator), Some(behind)).expect("a group");
            assert!(sum(&group, &[1.0], &DEFAULT).is_ok());
            if communicator.rank() == Rank(1) {
                let first = submit(&group, vec![1.0], &endless).expect("submitted");
                let result = match behind {
                    "submitted" => wait(&submit(&group, vec![1.0], &short).expect("submitted")),
                    _ => sum(&group, &[1.0], &short),
                };
                let error = result.expect_err("the deadline");
                assert!(matches!(&error, Error::Deadline(_)), "{behind}: {error}");
                assert!(matches!(wait(&first), Err(Error::GroupAborted(_))), "{behind}");
            }
            assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![2.0]));
        }
    }));
}

#[test]
fn submissions_of_two_threads_are_an_error_and_never_crossed() {
    all_well(&ranks("submissions_of_two_threads_are_an_error_and_never_crossed", 2, |communicator| {
        let group = communicator.world();
        assert!(sum(&group, &[1.0], &DEFAULT).is_ok());
        if communicator.rank() == Rank(0) {
            let first = submit(&group, vec![1.0], &DEFAULT).expect("submitted");
            let refused = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let submitted = submit(&group, vec![100.0], &DEFAULT).map(drop);
                    (submitted, sum(&group, &[100.0], &DEFAULT))
                });
                other.join().expect("no panic")
            });
            for error in [refused.0.expect_err("refused"), refused.1.map(drop).expect_err("refused")] {
                assert!(matches!(&error, Error::InvalidArgument(e) if e.field == "name"), "{error}");
            }
            let second = submit(&group, vec![2.0], &DEFAULT).expect("this thread may");
            assert_eq!(sum(&group, &[1.0], &named("go")), Ok(vec![2.0]));
            assert_eq!((wait(&first), wait(&second)), (Ok(vec![2.0]), Ok(vec![4.0])));
        } else {
            assert_eq!(sum(&group, &[1.0], &named("go")), Ok(vec![2.0]));
            assert_eq!(sum(&group, &[1.0], &DEFAULT), Ok(vec![2.0]));
            assert_eq!(sum(&group, &[2.0], &DEFAULT), Ok(vec![4.0]));
        }
    }));
}

#[test]
fn destroying_a_group_fails_only_those_who_need_the_member() {
    all_well(&ranks("destroying_a_group_fails_only_those_who_need_the_member", 3, |communicator| {
        for round in 0..20 {
            let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
            assert_eq!(sum(&group, &vec![1.0; 50_000], &DEFAULT), Ok(vec![3.0; 50_000]), "round {round}");
            if communicator.rank() != Rank(1) && round == 19 {
                let error = sum(&group, &[1.0], &DEFAULT).expect_err("rank 1 has destroyed it");
                assert!(
                    matches!(&error, Error::RankDied(e) if e.peer == Rank(1) && e.ending == Ending::Left(1)),
                    "{error}"
                );
            }
            group.destroy().expect("destroyed");
        }
        assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![3.0]));
    }));
}

#[test]
fn a_group_that_one_destroys_before_it_called_anything_is_over_for_the_others_at_once() {
    all_well(&ranks(
        "a_group_that_one_destroys_before_it_called_anything_is_over_for_the_others_at_once",
        3,
        |communicator| {
            // A deadline, so that who is not told fails the test by another error.
            let options = CallOptions { timeout: within(60.0), ..CallOptions::default() };
            for quitter in everybody(communicator) {
                for calls_first in [false, true] {
                    let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
                    let is_quitter = communicator.rank() == quitter;
                    let call = || {
                        let error = sum(&group, &[1.0], &options).expect_err("one has destroyed it");
                        assert!(
                            matches!(&error, Error::GroupAborted(e) if e.cause == Cause::Requested { by: quitter }),
                            "{error}"
                        );
                    };
                    if calls_first && is_quitter {
                        // The others are waiting by now, most likely.
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    if !is_quitter && calls_first {
                        call();
                    }
                    if is_quitter {
                        group.destroy().expect("destroyed");
                    }
                    communicator.world().barrier(&DEFAULT).expect("the group of all goes on");
                    if !is_quitter {
                        if !calls_first {
                            call();
                        }
                        group.destroy().expect("destroyed");
                    }
                }
            }
            assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![3.0]));
        },
    ));
}

fn submit_with(communicator: &Communicator, done: impl FnOnce() + Send + 'static) {
    let done = Box::new(move |result: Result<()>, _: Box<dyn OwnedBuffers>| {
        result.expect("the submitted call");
        done();
    });
    let buffers = Box::new(Owned { input: vec![1.0], output: vec![0.0] });
    let group = communicator.world();
    group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &DEFAULT, done).expect("submitted");
}

#[test]
fn completions_that_wait_hold_up_nobody() {
    all_well(&ranks("completions_that_wait_hold_up_nobody", 2, |communicator| {
        let (sender, receiver) = mpsc::channel();
        let names = if communicator.rank() == Rank(0) { ["x", "y"] } else { ["y", "x"] };
        for name in names {
            let (sender, group) = (sender.clone(), communicator.world());
            submit_with(communicator, move || {
                sender.send(sum(&group, &[5.0], &named(name))).expect("the test waits");
            });
        }
        for _ in names {
            assert_eq!(receiver.recv_timeout(WATCHDOG).expect("both end"), Ok(vec![10.0]));
        }
    }));
}

#[test]
fn a_completion_that_panics_takes_nobody_with_it() {
    all_well(&ranks("a_completion_that_panics_takes_nobody_with_it", 2, |communicator| {
        submit_with(communicator, || panic!("as the test wants it"));
        let next = submit(&communicator.world(), vec![1.0], &named("next")).expect("submitted");
        assert_eq!(wait(&next), Ok(vec![2.0]));
    }));
}

#[test]
fn every_submitted_call_ends_at_shutdown() {
    all_well(&ranks("every_submitted_call_ends_at_shutdown", 2, |communicator| {
        let group = communicator.world();
        assert!(sum(&group, &[1.0], &DEFAULT).is_ok());
        let submitting = std::thread::spawn({
            let group = group.clone();
            move || {
                let mut pending = Vec::new();
                while let Ok(end) = submit(&group, vec![1.0], &named("x")) {
                    pending.push(end);
                }
                pending
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        communicator.shutdown();
        for end in submitting.join().expect("no panic") {
            match wait(&end) {
                Ok(sum) => assert_eq!(sum, [2.0]),
                Err(Error::Closed { .. } | Error::RankDied(_) | Error::GroupAborted(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }));
}
