//! What ranks get: variables, cores, standard input; and what bad input gets.

use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{FOLDCAST, Launch};

#[test]
fn the_version_is_told() {
    let output = Command::new(FOLDCAST).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("foldcast {}\n", env!("CARGO_PKG_VERSION")));
}

/// What is in it: see also the Python test of the same name.
#[test]
fn horovod_2353_the_command_tells_how_it_was_built() {
    let output = Command::new(FOLDCAST).arg("info").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |head: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(head));
        found.unwrap_or_else(|| panic!("no {head} in\n{text}")).trim().to_owned()
    };
    assert_eq!(line("foldcast"), env!("CARGO_PKG_VERSION"));
    // Tests are built with assertions; the revision is told by releases only.
    assert_eq!(line("revision"), option_env!("FOLDCAST_REVISION").unwrap_or("not known: not a release"));
    let target = format!("{}-linux-", std::env::consts::ARCH);
    let profile = if cfg!(debug_assertions) { ", debug" } else { ", release" };
    assert!(line("built for").starts_with(&target) && line("built for").ends_with(profile), "{text}");
    let kernels = line("kernels");
    let (built, here) = kernels.split_once("; here ").unwrap();
    assert!(built.starts_with("portable") && built.split(' ').any(|level| level == here), "{text}");
    assert_eq!(line("collectives"), "allreduce barrier allgather broadcast");
    assert!(line("algorithms").split(' ').any(|name| name == "one_shot"), "{text}");
}

#[test]
fn every_rank_finds_its_place_in_its_environment() {
    let run = Launch::new(&["-n", "3", "env"])
        .env("OMP_NUM_THREADS", "7")
        .env("MASTER_ADDR", "localhost")
        .env("RANK", "99")
        .env("RANK_TABLE_FILE", "/nowhere")
        .env("CM_WORKER_SIZE", "8")
        .env("OMPI_COMM_WORLD_RANK", "5")
        .env("TORCHELASTIC_RUN_ID", "x")
        .finish();
    assert_eq!(run.code(), 0);
    let mut jobs = HashSet::new();
    for rank in 0..3 {
        let variables: Vec<(&str, &str)> = run.lines(rank).iter().filter_map(|line| line.split_once('=')).collect();
        let values = |name: &str| -> Vec<&str> {
            variables.iter().filter(|(other, _)| *other == name).map(|(_, value)| *value).collect()
        };
        let own = rank.to_string();
        for name in ["RANK", "LOCAL_RANK", "RANK_ID", "DEVICE_ID"] {
            assert_eq!(values(name), [&own], "{name}");
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK_SIZE"] {
            assert_eq!(values(name), ["3"], "{name}");
        }
        let cores = std::thread::available_parallelism().expect("Linux").get();
        assert_eq!(values("FOLDCAST_CORES"), [(cores / 3).max(1).to_string()]);
        let kept = [("PYTHONUNBUFFERED", "1"), ("OMP_NUM_THREADS", "7"), ("MASTER_ADDR", "localhost")];
        for (name, value) in kept {
            assert_eq!(values(name), [value], "{name}");
        }
        for name in ["RANK_TABLE_FILE", "CM_WORKER_SIZE", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID"] {
            assert!(values(name).is_empty(), "{name}");
        }
        assert_eq!(values("FOLDCAST_JOB")[0].len(), 32);
        jobs.insert([values("FOLDCAST_JOB"), values("FOLDCAST_LAUNCHER")].concat());
    }
    assert_eq!(jobs.len(), 1, "one job has one id and one launcher: {jobs:?}");
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let run = Launch::new(&["-n", "1", "printf", "%s.", "--raw", "-n", "a b", "", "--", "*"]).finish();
    assert_eq!((run.code(), run.out.as_str()), (0, "[0] --raw.-n.a b..--.*.\n"));
}

#[test]
fn standard_input_goes_to_rank_0_only() {
    let mut launch = Launch::new(&["-n", "3", "cat"]);
    launch.command.stdin(Stdio::piped());
    let mut run = launch.start();
    run.stdin().write_all(b"text").unwrap();
    let run = run.finish();
    assert_eq!((run.code(), run.out.as_str()), (0, "[0] text\n"));
}

/// The cores that a list such as `0-2,5` names.
fn cores(list: &str) -> Vec<usize> {
    let number = |text: &str| text.parse::<usize>().unwrap();
    list.split(',')
        .flat_map(|range| match range.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(range)..=number(range),
        })
        .collect()
}

fn own_cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    cores(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim())
}

const SHOW_CORES: &str = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";

#[test]
fn ranks_share_the_allowed_cores() {
    let allowed = own_cores();
    for ranks in [1, 2, 3, 5] {
        let run = Launch::shell(ranks, &[], SHOW_CORES).finish();
        let shares: Vec<Vec<usize>> = (0..ranks).map(|rank| cores(run.lines(rank)[0])).collect();
        if usize::try_from(ranks).unwrap() <= allowed.len() {
            assert_eq!(shares.concat(), allowed, "{ranks} ranks");
        } else {
            let expected: Vec<Vec<usize>> = allowed.iter().map(|&core| vec![core]).collect();
            let expected: Vec<_> = expected.iter().cycle().take(shares.len()).cloned().collect();
            assert_eq!(shares, expected, "{ranks} ranks");
        }
    }
}

#[test]
fn only_the_allowed_cores_are_shared() {
    let last = *own_cores().last().unwrap();
    let mut command = Command::new("taskset");
    command.args(["-c", &last.to_string(), FOLDCAST, "run", "-n", "2", "sh", "-c", SHOW_CORES]);
    let run = Launch::of(command).finish();
    for rank in 0..2 {
        assert_eq!(cores(run.lines(rank)[0]), [last]);
    }
}

#[test]
fn without_pinning_every_rank_may_use_every_core() {
    let run = Launch::shell(2, &["--no-pin"], SHOW_CORES).finish();
    for rank in 0..2 {
        assert_eq!(cores(run.lines(rank)[0]), own_cores());
    }
}

#[test]
fn sixty_four_ranks_run() {
    let run = Launch::shell(64, &[], "echo rank $RANK; echo error >&2").finish();
    assert_eq!(run.code(), 0);
    assert_eq!(run.err.lines().count(), 64);
    for rank in 0..64 {
        assert_eq!(run.lines(rank), [format!("rank {rank}")]);
    }
    assert!(run.left.is_empty(), "{:?}", run.left);
}

#[test]
fn bad_input_is_refused_with_what_is_allowed() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&["-n", "0", "true"], 2, "from 1 to 1024"),
        (&["-n", "-1", "true"], 2, "from 1 to 1024"),
        (&["-n", "1025", "true"], 2, "from 1 to 1024"),
        (&["-n", "99999999999999999999", "true"], 2, "from 1 to 1024"),
        (&["-n", "two", "true"], 2, "from 1 to 1024"),
        (&["true"], 2, "<N>"),
        (&["-n", "2"], 2, "<PROGRAM>"),
        (&["-n", "2", "--no-such-option", "true"], 2, "--no-such-option"),
    ];
    for (args, code, text) in cases {
        let run = Launch::new(args).finish();
        assert_eq!(run.code(), code, "{args:?}");
        assert!(run.err.contains(text), "{args:?}: {}", run.err);
    }
}

#[test]
fn programs_that_cannot_run_are_told_apart() {
    let directory = std::env::temp_dir().join(format!("foldcast-test-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let file = |name: &str, text: &[u8], mode: u32| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let cases = [
        ("no-such-program".to_owned(), 127, "no such program"),
        (file("no-interpreter", b"#!/no/such/interpreter\n", 0o755), 127, "interpreter"),
        (file("not-executable", b"#!/bin/sh\n", 0o644), 126, "chmod +x"),
        (directory.clone().into_os_string().into_string().unwrap(), 126, "not an executable file"),
    ];
    for (program, code, text) in cases {
        let run = Launch::new(&["-n", "2", &program]).finish();
        assert_eq!(run.code(), code, "{program}: {}", run.err);
        assert!(run.err.contains(&program) && run.err.contains(text), "{program}: {}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
        assert!(run.left.is_empty(), "{:?}", run.left);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn too_few_file_descriptors_are_an_error_that_says_how_many() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$0\" run -n 64 true", FOLDCAST]);
    let run = Launch::of(command).finish();
    assert_eq!(run.code(), 125);
    assert!(run.err.contains("64 ranks") && run.err.contains("200") && run.err.contains("ulimit -n"), "{}", run.err);
}
