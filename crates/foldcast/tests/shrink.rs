//! Groups that go on after failures: real processes that die, stop, leave and come late.

mod support;

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use foldcast::{CallOptions, Cause, Communicator, Error, Group, Rank, Result};
use support::{WATCHDOG, all_well, named, number, ranks, submit, sum, wait, within};

const DEFAULT: CallOptions<'static> = CallOptions::DEFAULT;

fn everybody(communicator: &Communicator) -> Vec<Rank> {
    (0..communicator.size()).map(Rank::from_index).collect()
}

fn limited(seconds: f64) -> CallOptions<'static> {
    CallOptions { timeout: within(seconds), ..DEFAULT }
}

fn sum_of_numbers(group: &Group, communicator: &Communicator) -> Result<Vec<f32>> {
    sum(group, &[number(communicator)], &DEFAULT)
}

/// What the members of a group contribute in [`sum_of_numbers`].
fn expected(group: &Group) -> Vec<f32> {
    vec![group.ranks().iter().map(|rank| f32::from(u16::try_from(rank.0).expect("few ranks"))).sum()]
}

fn check_works(group: &Group, communicator: &Communicator) {
    let large = vec![1.0; 100_000];
    let size = f32::from(u16::try_from(group.size()).expect("few ranks"));
    assert_eq!(sum(group, &large, &named("large")), Ok(vec![size; large.len()]));
    // Small calls last: once one member has finished such a call, all can, whatever happens to it then.
    for _ in 0..3 {
        assert_eq!(sum_of_numbers(group, communicator), Ok(expected(group)));
    }
    assert_eq!(group.ranks()[group.rank().expect("a member")], communicator.rank());
}

fn only_these_died(statuses: &[ExitStatus], died: &[usize]) {
    let dead: Vec<usize> = (0..statuses.len()).filter(|rank| !statuses[*rank].success()).collect();
    let mut died = died.to_vec();
    died.sort_unstable();
    assert_eq!(dead, died, "{statuses:?}");
}

#[test]
#[allow(clippy::print_stdout, reason = "a figure for whoever asks")]
fn six_ranks_shrink_to_one_death_by_death() {
    const DEATHS: [u32; 5] = [3, 0, 5, 1, 4];
    let statuses = ranks("six_ranks_shrink_to_one_death_by_death", 6, |communicator| {
        let mut group = communicator.world();
        for dying in DEATHS {
            check_works(&group, communicator);
            let before = Instant::now();
            if communicator.rank() == Rank(dying) {
                std::process::abort();
            }
            let error = sum_of_numbers(&group, communicator).expect_err("one is dead");
            let (Error::RankDied(_) | Error::GroupAborted(_)) = error else { panic!("{error}") };
            let left = group.size() - 1;
            let fresh = group.shrink(&DEFAULT).expect("the others are there");
            assert_eq!(sum_of_numbers(&fresh, communicator), Ok(expected(&fresh)));
            println!("{left} left: {} works {:?} after the last call before", communicator.rank(), before.elapsed());
            assert_eq!((fresh.size(), fresh.name()), (left, group.name()));
            assert!(!fresh.ranks().contains(&Rank(dying)) && fresh.ranks().is_sorted());
            assert_eq!(communicator.world().ranks(), fresh.ranks());
            assert!(matches!(sum_of_numbers(&group, communicator), Err(Error::GroupAborted(_))), "the old one is over");
            group = fresh;
        }
        assert_eq!((group.size(), group.rank()), (1, Some(0)));
        assert_eq!((communicator.rank(), communicator.size()), (Rank(2), 6), "numbers of the world stay");
        check_works(&group, communicator);
    });
    only_these_died(&statuses, &[0, 1, 3, 4, 5]);
}

/// Descriptors, mappings, threads, and KiB of memory of this process.
fn holdings() -> [usize; 4] {
    // The monitors may still have a request open.
    std::thread::sleep(Duration::from_millis(200));
    let count = |path: &str| std::fs::read_dir(path).expect("/proc is there").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    let resident = resident.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number of KiB");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there").lines().count();
    [count("/proc/self/fd"), maps, count("/proc/self/task"), resident]
}

#[test]
#[allow(clippy::print_stdout, reason = "a figure for whoever asks")]
fn a_hundred_epochs_leave_nothing_behind() {
    all_well(&ranks("a_hundred_epochs_leave_nothing_behind", 3, |communicator| {
        let mut group = communicator.world();
        let mut round = |number: u32| {
            check_works(&group, communicator);
            if communicator.rank() == Rank(number % 3) {
                group.abort();
            }
            group = group.shrink(&DEFAULT).expect("all are there");
            check_works(&group, communicator);
        };
        (0..20).for_each(&mut round);
        let before = holdings();
        (20..120).for_each(&mut round);
        let after = holdings();
        println!("{}: descriptors, mappings, threads, KiB: {before:?}, {after:?}", communicator.rank());
        assert!(after[0] <= before[0] && after[2] <= before[2], "{before:?} {after:?}");
        // The allocator may map an arena more. A group's memory would be a mapping an epoch, and half a MiB that was touched.
        assert!(after[1] <= before[1] + 5 && after[3] <= before[3] + 4096, "{before:?} {after:?}");
    }));
}

fn check_names(error: &Error, late: Rank, own: Rank) {
    match error {
        Error::Deadline(deadline) => assert!(own != late && deadline.peers == [late], "{own}: {error}"),
        Error::GroupAborted(e) => {
            assert!(matches!(e.cause, Cause::Deadline { peer, .. } if peer == late), "{own}: {error}")
        }
        _ => panic!("{own}: {error}"),
    }
}

/// Without the late one nothing is founded, and it is told; with it, in the next try, it is.
fn late_member(communicator: &Communicator, late: Rank) {
    let group = communicator.world();
    check_works(&group, communicator);
    let begun = Instant::now();
    if communicator.rank() == late {
        std::thread::sleep(Duration::from_millis(1200));
    }
    let error = group.shrink(&limited(0.4)).expect_err("one is late");
    check_names(&error, late, communicator.rank());
    assert!(begun.elapsed() >= Duration::from_millis(395), "{:?}", begun.elapsed());
    assert!(error.to_string().contains(&late.to_string()), "{error}");
    // Whoever tries again before the late one comes meets it then.
    std::thread::sleep(Duration::from_millis(2500).saturating_sub(begun.elapsed()));
    let fresh = group.shrink(&DEFAULT).expect("all are there now");
    assert_eq!(fresh.ranks(), everybody(communicator));
    check_works(&fresh, communicator);
}

#[test]
fn a_member_that_is_late_is_named_and_not_left_out() {
    all_well(&ranks("a_member_that_is_late_is_named_and_not_left_out", 3, |communicator| {
        late_member(communicator, Rank(2));
    }));
}

#[test]
fn a_first_member_that_is_late_is_named_and_not_left_out() {
    all_well(&ranks("a_first_member_that_is_late_is_named_and_not_left_out", 3, |communicator| {
        late_member(communicator, Rank(0));
    }));
}

#[test]
fn whoever_tries_again_meets_the_late_one() {
    all_well(&ranks("whoever_tries_again_meets_the_late_one", 3, |communicator| {
        let mut group = communicator.world();
        for late in everybody(communicator) {
            check_works(&group, communicator);
            if communicator.rank() == late {
                std::thread::sleep(Duration::from_millis(500));
            }
            // Between two tries others may miss this one too.
            let fresh = (0..60).find_map(|_| match group.shrink(&limited(0.05)) {
                Ok(fresh) => Some(fresh),
                Err(Error::Deadline(_) | Error::GroupAborted(_)) => None,
                Err(error) => panic!("{error}"),
            });
            group = fresh.expect("it comes after half a second");
        }
        check_works(&group, communicator);
    }));
}

#[test]
fn a_stopped_member_is_waited_for() {
    all_well(&ranks("a_stopped_member_is_waited_for", 3, |communicator| {
        const STOPPED: Duration = Duration::from_millis(700);
        let group = communicator.world();
        check_works(&group, communicator);
        let begun = Instant::now();
        if communicator.rank() == Rank(1) {
            let own = std::process::id();
            let script = format!("kill -STOP {own}; sleep {}; kill -CONT {own}", STOPPED.as_secs_f64());
            let mut other = Command::new("sh").args(["-c", &script]).spawn().expect("a shell");
            assert!(other.wait().expect("a child of ours").success());
        }
        let fresh = group.shrink(&DEFAULT).expect("all come in the end");
        assert_eq!(fresh.ranks(), everybody(communicator));
        assert!(begun.elapsed() >= STOPPED, "without the stopped one");
        check_works(&fresh, communicator);
    }));
}

#[test]
fn who_left_in_order_is_no_member_any_more() {
    all_well(&ranks("who_left_in_order_is_no_member_any_more", 4, |communicator| {
        let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
        check_works(&group, communicator);
        check_works(&communicator.world(), communicator);
        match communicator.rank() {
            Rank(1) => return communicator.shutdown(),
            Rank(3) => group.destroy().expect("nothing is in flight"),
            _ => {
                let fresh = group.shrink(&DEFAULT).expect("the two that are left");
                assert_eq!(fresh.ranks(), [Rank(0), Rank(2)]);
                check_works(&fresh, communicator);
            }
        }
        let world = communicator.world().shrink(&DEFAULT).expect("the three that are left");
        assert_eq!(world.ranks(), [Rank(0), Rank(2), Rank(3)]);
        check_works(&world, communicator);
    }));
}

#[test]
fn a_member_that_dies_instead_of_coming_is_left_out() {
    let statuses = ranks("a_member_that_dies_instead_of_coming_is_left_out", 4, |communicator| {
        let group = communicator.world();
        check_works(&group, communicator);
        // The first member, whose memory all wait for, and one beside it.
        match communicator.rank() {
            Rank(0) => std::thread::sleep(Duration::from_millis(300)),
            Rank(2) => std::thread::sleep(Duration::from_millis(600)),
            _ => {
                let fresh = group.shrink(&DEFAULT).expect("the two that are left");
                assert_eq!(fresh.ranks(), [Rank(1), Rank(3)]);
                return check_works(&fresh, communicator);
            }
        }
        std::process::abort();
    });
    only_these_died(&statuses, &[0, 2]);
}

/// The victim dies so long after it began to shrink: it may be in the new group then, or not, but all agree.
fn death_in_a_shrink(communicator: &Communicator) {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok()).expect("set below");
    let (victim, after) = (setting("TEST_VICTIM"), Duration::from_micros(setting("TEST_AFTER_US")));
    let mut group = communicator.world();
    check_works(&group, communicator);
    if u64::from(communicator.rank().0) == victim {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            std::process::abort();
        });
        let _ = group.shrink(&DEFAULT);
        std::thread::sleep(WATCHDOG);
    }
    loop {
        group = group.shrink(&DEFAULT).expect("the others are there");
        match sum_of_numbers(&group, communicator) {
            Ok(sum) => assert_eq!(sum, expected(&group)),
            Err(Error::RankDied(_) | Error::GroupAborted(_)) => continue,
            Err(error) => panic!("{error}"),
        }
        if group.size() == communicator.size() - 1 {
            return check_works(&group, communicator);
        }
    }
}

#[test]
fn a_member_may_die_at_any_moment_of_a_shrink() {
    const NAME: &str = "a_member_may_die_at_any_moment_of_a_shrink";
    for (victim, after_us) in [(0, 0), (3, 50), (1, 100), (0, 200), (2, 400), (0, 800), (3, 1500), (0, 3000)] {
        let (victim_text, after) = (format!("{victim}"), format!("{after_us}"));
        let variables = [("TEST_VICTIM", &*victim_text), ("TEST_AFTER_US", &*after)];
        let statuses = support::ranks_with(NAME, &[variables; 4], death_in_a_shrink);
        only_these_died(&statuses, &[victim]);
    }
}

#[test]
fn a_group_that_lives_ends_with_its_pending_calls() {
    all_well(&ranks("a_group_that_lives_ends_with_its_pending_calls", 3, |communicator| {
        let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
        group.set_timeout(within(100.0));
        check_works(&group, communicator);
        let pending = submit(&group, vec![1.0], &named(&communicator.rank().to_string())).expect("submitted");
        let fresh = group.shrink(&DEFAULT).expect("all are there");
        let error = wait(&pending).expect_err("nobody else called it");
        assert!(matches!(&error, Error::GroupAborted(e) if matches!(e.cause, Cause::Shrunk { .. })), "{error}");
        assert_eq!((fresh.ranks(), fresh.timeout()), (&everybody(communicator)[..], within(100.0)));
        check_works(&fresh, communicator);
        // Whoever still has the old one gets there too.
        let again = group.shrink(&DEFAULT).expect("the same");
        assert_eq!(sum(&again, &[1.0], &DEFAULT), Ok(vec![3.0]));
        assert_eq!(communicator.group("g").map(|group| group.ranks().to_vec()), Ok(everybody(communicator)));
        fresh.destroy().expect("nothing is in flight");
        drop((fresh, again));
        assert!(matches!(group.shrink(&DEFAULT), Err(Error::Closed { .. })));
        let made = communicator.new_group(&everybody(communicator), Some("g")).expect("the name is free");
        check_works(&made, communicator);
        assert_eq!(sum(&communicator.world(), &[1.0], &DEFAULT), Ok(vec![3.0]), "other groups go on");
    }));
}

#[test]
fn an_abort_ends_a_shrink_on_all() {
    all_well(&ranks("an_abort_ends_a_shrink_on_all", 3, |communicator| {
        let group = communicator.new_group(&everybody(communicator), Some("g")).expect("a group");
        check_works(&group, communicator);
        let begun = Instant::now();
        if communicator.rank() == Rank(2) {
            std::thread::sleep(Duration::from_millis(800));
        }
        let aborting = group.clone();
        let thread = (communicator.rank() == Rank(1)).then(|| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                aborting.abort();
            })
        });
        let error = group.shrink(&DEFAULT).expect_err("aborted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == Cause::Requested { by: Rank(1) }), "{error}");
        if let Some(thread) = thread {
            thread.join().expect("no panic");
        }
        std::thread::sleep(Duration::from_millis(1500).saturating_sub(begun.elapsed()));
        check_works(&group.shrink(&DEFAULT).expect("all are there"), communicator);
    }));
}

#[test]
fn a_shutdown_ends_a_shrink() {
    all_well(&ranks("a_shutdown_ends_a_shrink", 3, |communicator| {
        let group = communicator.world();
        check_works(&group, communicator);
        if communicator.rank() == Rank(0) {
            let other = communicator.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                other.shutdown();
            });
            let error = group.shrink(&DEFAULT).expect_err("shut down");
            assert!(matches!(&error, Error::Closed { .. }), "{error}");
            return thread.join().expect("no panic");
        }
        std::thread::sleep(Duration::from_millis(500));
        let fresh = group.shrink(&DEFAULT).expect("the two that are left");
        assert_eq!(fresh.ranks(), [Rank(1), Rank(2)]);
        check_works(&fresh, communicator);
    }));
}

#[test]
fn who_may_not_shrink_is_told() {
    all_well(&ranks("who_may_not_shrink_is_told", 2, |communicator| {
        let stranger = communicator.new_group(&[Rank(0)], Some("g")).expect("a group");
        if communicator.rank() == Rank(1) {
            let error = stranger.shrink(&DEFAULT).expect_err("no member");
            assert!(matches!(&error, Error::NotInGroup(e) if e.op == "shrink"), "{error}");
        } else {
            check_works(&stranger.shrink(&DEFAULT).expect("a group of one"), communicator);
        }
        let group = communicator.new_group(&everybody(communicator), Some("h")).expect("a group");
        check_works(&group, communicator);
        group.destroy().expect("nothing is in flight");
        assert!(matches!(group.shrink(&DEFAULT), Err(Error::Closed { .. })));
    }));
}

#[test]
fn who_destroyed_a_group_that_it_never_used_is_not_waited_for() {
    all_well(&ranks("who_destroyed_a_group_that_it_never_used_is_not_waited_for", 3, |communicator| {
        let own = communicator.rank();
        // One after the other is the one that never calls: as the first member it would make the memory.
        for leaving in everybody(communicator) {
            for others_have_called in [false, true] {
                let group = communicator.new_group(&everybody(communicator), None).expect("all are members");
                if own == leaving {
                    group.destroy().expect("it has no call in flight");
                } else {
                    if others_have_called {
                        let error = sum_of_numbers(&group, communicator).expect_err("one never comes");
                        let Error::GroupAborted(aborted) = &error else { panic!("{error}") };
                        assert_eq!(aborted.cause, Cause::Requested { by: leaving }, "{error}");
                    }
                    let fresh = group.shrink(&DEFAULT).expect("the others are there");
                    assert!(fresh.size() == 2 && !fresh.ranks().contains(&leaving), "{:?}", fresh.ranks());
                    assert_eq!(sum_of_numbers(&fresh, communicator), Ok(expected(&fresh)));
                    fresh.destroy().expect("it has no call in flight");
                }
                communicator.world().barrier(&DEFAULT).expect("all are there");
            }
        }
    }));
}
