//! Signals to the launcher reach every rank, and a rank that ignores them does not live forever.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{FOLDCAST, Launch, Running, at_once, eventually, state};

const SOON: Duration = Duration::from_secs(8);

fn start(script: &str) -> Running {
    let run = Launch::shell(3, &[], script).start();
    run.await_lines(3, "ready");
    run
}

#[test]
fn signals_reach_every_rank_once() {
    let signals = [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    at_once(signals, |(signal, name)| {
        let script = format!(
            "count=0; trap 'echo got {name}; count=$((count+1))' {name}; echo ready
            while [ $count -lt 1 ]; do sleep 0.02; done; sleep 0.2; echo $count times; exit 0"
        );
        let run = start(&script);
        run.signal(signal);
        let run = run.finish();
        assert_eq!(run.code(), 0, "{name}: {}", run.err);
        for rank in 0..3 {
            assert_eq!(run.lines(rank), ["ready", &format!("got {name}"), "1 times"], "{name}");
        }
    });
}

#[test]
fn the_default_of_a_signal_ends_the_run_with_its_number() {
    for (signal, code, text) in [(Signal::INT, 130, "signal 2 (SIGINT)"), (Signal::TERM, 143, "signal 15 (SIGTERM)")] {
        let run = start("echo ready; exec sleep 1000");
        run.signal(signal);
        let run = run.finish();
        assert_eq!(run.code(), code);
        let last = run.last_error();
        assert!(last.starts_with(&format!("foldcast run: passed on {text}; rank ")), "{last}");
        assert!(last.ends_with(&format!("ended first: killed by {text}")), "{last}");
        assert!(run.left.is_empty(), "{:?}", run.left);
    }
}

#[test]
fn grandchildren_get_the_signal_too() {
    let run = start("sh -c 'trap \"echo child; exit 0\" INT; echo ready; while :; do sleep 0.02; done'; echo parent");
    run.signal(Signal::INT);
    let run = run.finish();
    assert_eq!(run.out.lines().filter(|line| line.ends_with("child")).count(), 3, "{}", run.out);
}

const STUBBORN: &str = "trap '' INT TERM HUP; echo ready; sleep 1000 & while :; do wait; done";

/// SIGINT to the launcher alone.
#[test]
fn prrte_943_sigint_ends_also_the_rank_that_ignores_it() {
    let script = "if [ $RANK = 2 ]; then trap '' INT TERM; fi; sleep 1000 & echo ready; while :; do wait; done";
    let run = Launch::shell(4, &[], script).start();
    run.await_lines(4, "ready");
    let start = Instant::now();
    run.signal(Signal::INT);
    let run = run.finish();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!((run.code(), run.left.as_slice()), (130, &[][..]), "{}", run.err);
}

#[test]
fn a_second_sigint_kills_ranks_that_ignore_the_first() {
    let run = start(STUBBORN);
    run.signal(Signal::INT);
    eventually("the hint", || {
        run.err().contains("still there after SIGINT: 3 of 3 ranks; a second one kills").then_some(())
    });
    assert!(run.others().len() > 3, "nobody is killed by the first");
    run.signal(Signal::INT);
    let run = run.finish();
    assert_eq!((run.code(), run.left.as_slice()), (130, &[][..]));
    assert!(run.last_error().contains("did not end by it and was killed"), "{}", run.err);
}

#[test]
fn one_request_that_is_delivered_twice_is_one() {
    // Two are one if less than 200 ms are between them: if the machine lets this test rest for too long, then again.
    let delivered = || {
        let run = start("trap 'sleep 0.5; echo saved; exit 0' INT; echo ready; while :; do sleep 0.02; done");
        let first = Instant::now();
        run.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
        run.signal(Signal::INT);
        (first.elapsed() < Duration::from_millis(60), run.finish())
    };
    let run = (0..20).map(|_| delivered()).find_map(|(soon, run)| soon.then_some(run)).expect("once in twenty times");
    assert_eq!(run.code(), 0, "{}", run.err);
    assert_eq!(run.out.lines().filter(|line| line.ends_with("saved")).count(), 3);
}

#[test]
fn sigterm_and_sighup_kill_ranks_that_ignore_them_after_a_while() {
    at_once([(Signal::TERM, 143), (Signal::HUP, 129)], |(signal, code)| {
        let run = start(STUBBORN);
        let start = Instant::now();
        run.signal(signal);
        let run = run.finish();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!((run.code(), run.left.as_slice()), (code, &[][..]));
    });
}

#[test]
fn sigterm_after_sigint_is_passed_on_and_not_taken_for_a_second_sigint() {
    let run = start("trap '' INT; trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done");
    run.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(400));
    run.signal(Signal::TERM);
    let run = run.finish();
    assert_eq!(run.code(), 0, "{}", run.err);
    assert_eq!(run.out.lines().filter(|line| line.ends_with("saved")).count(), 3);
}

#[test]
fn a_rank_that_ends_by_sigint_leaves_the_others_time_to_do_so() {
    let script = "if [ $RANK = 0 ]; then trap 'exit 1' INT; else trap 'sleep 0.2; echo saved; exit 0' INT; fi
        trap 'echo disturbed' TERM; echo ready; while :; do sleep 0.02; done";
    let run = start(script);
    run.signal(Signal::INT);
    let run = run.finish();
    assert_eq!(run.code(), 1);
    assert_eq!(run.out.lines().filter(|line| line.ends_with("saved")).count(), 2, "{}", run.out);
    assert!(!run.out.contains("disturbed"), "{}", run.out);
}

#[test]
fn signals_in_every_phase_end_the_run() {
    // From before the first rank is started to after the last one is; each time another moment.
    for delay_us in (0..40_000).step_by(1_000) {
        let run = Launch::new(&["-n", "8", "sleep", "1000"]).start();
        std::thread::sleep(Duration::from_micros(delay_us));
        run.signal(Signal::TERM);
        let mut run = run;
        let status = eventually("the end of foldcast", || run.child.try_wait().unwrap());
        // Before the launcher takes its signals it dies as any program does.
        let code = std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal).or(status.code());
        assert_eq!(code, Some(143), "after {delay_us} us");
        run.await_nothing_left();
    }
}

/// The ranks have ended, and what they left behind does not want to.
#[test]
fn signals_while_a_run_is_ending_end_it() {
    at_once([Signal::INT, Signal::TERM], |signal| {
        let run =
            start("trap '' INT TERM; setsid sh -c 'trap \"\" TERM; sleep 1000; :' & echo ready; sleep 0.3; exit 3");
        std::thread::sleep(Duration::from_millis(600));
        run.signal(signal);
        run.signal(signal);
        let run = run.finish();
        assert_eq!((run.code(), run.left.as_slice()), (3, &[][..]), "{}", run.err);
    });
}

#[test]
fn a_stopped_launcher_stops_its_ranks_and_goes_on_with_them() {
    let run = start("echo $$; echo ready; exec sleep 1000");
    let ranks: Vec<i32> = run.out().lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect();
    assert_eq!(ranks.len(), 3);
    let all = |wanted: char| [&ranks[..], &[run.pid()]].concat().iter().all(|&pid| state(pid) == Some(wanted));
    run.signal(Signal::TSTP);
    eventually("everything to stop", || all('T').then_some(()));
    run.signal(Signal::CONT);
    eventually("everything to go on", || all('S').then_some(()));
    run.signal(Signal::INT);
    assert_eq!(run.finish().code(), 130);
}

#[test]
fn stopped_ranks_are_ended_too() {
    let run = start("echo ready; if [ $RANK = 1 ]; then kill -STOP $$; fi; exec sleep 1000");
    run.signal(Signal::TERM);
    let run = run.finish();
    assert_eq!((run.code(), run.left.as_slice()), (143, &[][..]));
}

#[test]
fn under_nohup_sighup_is_ignored() {
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" run -n 3 sh -c 'echo ready; sleep 1; echo finished'";
    command.args(["-c", script, FOLDCAST]);
    let run = Launch::of(command).start();
    run.await_lines(3, "ready");
    run.signal(Signal::HUP);
    let run = run.finish();
    assert_eq!(run.code(), 0);
    assert_eq!(run.out.lines().filter(|line| line.ends_with("finished")).count(), 3);
}

#[test]
fn in_the_background_of_a_script_sigint_still_works_if_it_is_sent() {
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec \"$0\" run -n 3 sh -c 'echo ready; exec sleep 1000'";
    command.args(["-c", script, FOLDCAST]);
    let run = Launch::of(command).start();
    run.await_lines(3, "ready");
    run.signal(Signal::INT);
    assert_eq!(run.finish().code(), 130);
}
