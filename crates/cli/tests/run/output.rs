//! What comes out: prefixes, whole lines, raw streams, readers that go or do not read.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{FOLDCAST, Launch, at_once, eventually};

#[test]
fn lines_get_prefixes_and_the_streams_stay_apart() {
    let run = Launch::shell(2, &[], "echo out $RANK; echo err $RANK >&2; printf 'last %s' $RANK").finish();
    assert_eq!(run.code(), 0);
    for rank in 0..2 {
        assert_eq!(run.lines(rank), [format!("out {rank}"), format!("last {rank}")]);
    }
    let mut errors: Vec<&str> = run.err.lines().collect();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] err 0", "[1] err 1"]);
    assert!(run.out.ends_with('\n'), "the last line is completed");
}

#[test]
fn output_appears_before_the_rank_ends() {
    let run = Launch::shell(2, &[], "echo ready; exec sleep 1000").start();
    run.await_lines(2, "ready");
}

#[test]
fn lines_of_any_length_stay_whole_also_when_both_streams_go_to_one_pipe() {
    let script = "i=0; while [ $i -lt 40 ]; do
        for length in 1 100 5000 20000; do
            line=$(printf \"%${length}s\" '' | tr ' ' $RANK); echo \"<$line>\"; echo \"<$line>\" >&2
        done
        i=$((i+1)); done";
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" run -n 3 sh -c \"$1\" 2>&1", FOLDCAST, script]);
    let run = Launch::of(command).finish();
    assert_eq!(run.code(), 0);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for line in run.out.lines() {
        *counts.entry(line).or_default() += 1;
    }
    let mut expected = HashMap::new();
    let all: Vec<String> = (0..3)
        .flat_map(|rank| [1, 100, 5000, 20000].map(|length| format!("[{rank}] <{}>", rank.to_string().repeat(length))))
        .collect();
    for line in &all {
        expected.insert(line.as_str(), 80);
    }
    assert!(counts == expected, "some line is broken: {:?}", counts.keys().find(|line| !expected.contains_key(**line)));
}

#[test]
fn an_endless_line_is_broken_and_costs_little_memory() {
    // 32 MiB without an end of line; the launcher tells its own peak at the end by way of its rank.
    let script = "head -c 33554432 /dev/zero | tr '\\0' x; echo; grep VmHWM /proc/$PPID/status >&2";
    let run = Launch::shell(1, &[], script).finish();
    assert_eq!(run.code(), 0);
    let written: usize = run.lines(0).iter().map(|line| line.len()).sum();
    assert_eq!(written, 33_554_432);
    assert!(run.lines(0).iter().all(|line| line.len() <= 65536));
    let peak: u64 = run.err.split_ascii_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(peak < 16 * 1024, "{}", run.err);
}

#[test]
fn raw_output_is_untouched() {
    let run = Launch::shell(2, &["--raw"], "printf 'a\\0b'; printf 'c' >&2").finish();
    assert_eq!((run.code(), run.out.as_str(), run.err.as_str()), (0, "a\0ba\0b", "cc"));
}

#[test]
fn raw_ranks_have_the_launchers_own_streams() {
    let run = Launch::shell(2, &["--raw"], "readlink /proc/self/fd/1; readlink /proc/$PPID/fd/1").finish();
    let pipes: Vec<&str> = run.out.lines().collect();
    assert!(pipes.len() == 4 && pipes.iter().all(|pipe| *pipe == pipes[0] && pipe.starts_with("pipe:")), "{pipes:?}");
}

#[test]
fn a_reader_that_goes_ends_the_run() {
    for options in [&[][..], &["--keep-going"], &["--raw"]] {
        let mut launch = Launch::shell(2, options, "trap '' INT; while :; do echo text; done");
        launch.command.stdout(Stdio::piped());
        let mut child = launch.command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.ends_with("text\n"));
        drop(lines);
        let status = eventually("the end of foldcast", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(141), "{options:?}");
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(!error.contains("panicked"), "{error}");
        assert!(options.contains(&"--raw") || error.is_empty(), "{error}");
    }
}

#[test]
fn a_reader_that_does_not_read_does_not_keep_a_failed_run_alive() {
    let script = "if [ $RANK = 1 ]; then sleep 1; exit 3; fi
        while :; do echo some text that nobody reads; done";
    let mut launch = Launch::shell(2, &[], script);
    launch.command.stdout(Stdio::piped());
    let mut child = launch.command.spawn().unwrap();
    let mut unread = child.stdout.take().unwrap();
    let launcher = i32::try_from(child.id()).unwrap();
    eventually("both ranks", || (rank_count(launcher) >= 2).then_some(()));
    eventually("the end of both ranks", || (rank_count(launcher) == 0).then_some(()));
    assert_eq!(child.try_wait().unwrap(), None, "the launcher waits to deliver what the ranks wrote");
    std::io::copy(&mut unread, &mut std::io::sink()).unwrap();
    let status = eventually("the end of foldcast", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_slow_reader_gets_everything() {
    // Far more than the pipes and the launcher hold, read in two halves with pauses longer than any of its own limits.
    let script = "yes 0123456789 | head -n 100000; yes 0123456789 | head -n 100000 >&2";
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" run -n 2 sh -c \"$1\" 2>&1", FOLDCAST, script]);
    let mut launch = Launch::of(command);
    let mut child = launch.command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut text = vec![0; 3_000_000];
    for half in text.chunks_mut(1_500_000) {
        std::thread::sleep(Duration::from_millis(1500));
        output.read_exact(half).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1500));
    output.read_to_end(&mut text).unwrap();
    let status = eventually("the end of foldcast", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    let text = String::from_utf8(text).unwrap();
    for rank in 0..2 {
        let line = format!("[{rank}] 0123456789");
        assert_eq!(text.lines().filter(|other| *other == line).count(), 200_000);
    }
}

#[test]
fn what_is_written_last_is_not_lost() {
    // Long silence before, then output and the end at once; also from a process that the rank has left behind.
    let script = "sleep 0.8; (sleep 0.3; echo left) & echo written; exit 0";
    at_once(0..5, |_| {
        let run = Launch::shell(8, &[], script).finish();
        assert_eq!(run.code(), 0);
        for rank in 0..8 {
            assert_eq!(run.lines(rank), ["written", "left"]);
        }
    });
}

/// The living children of a launcher that are ranks.
fn rank_count(launcher: i32) -> usize {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
    let is_rank = |pid: &&str| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(b"LOCAL_RANK="))
    };
    children.split_ascii_whitespace().filter(is_rank).count()
}

#[test]
fn a_full_disk_is_told() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" run -n 2 sh -c 'echo text; exec sleep 1000' >/dev/full", FOLDCAST]);
    let run = Launch::of(command).finish();
    assert_eq!(run.code(), 125);
    assert!(run.last_error().contains("could not write"), "{}", run.err);
}
