//! `foldcast bench` with real ranks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod files;
mod refusals;
mod results;

use std::path::PathBuf;
use std::process::{Command, Output};

const FOLDCAST: &str = env!("CARGO_BIN_EXE_foldcast");

/// Short, so that tests are: what is tested here are results and not times.
const QUICK: [&str; 4] = ["--case-ms", "2", "--samples", "3"];

struct Finished {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Finished {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Finished { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// `foldcast` with a guard against hanging, and without what the test's own environment says about benchmarks and ranks.
fn foldcast(args: &[&str]) -> Command {
    let mut command = Command::new(FOLDCAST);
    command.args(args).env("FOLDCAST_TIMEOUT", "60").env("FOLDCAST_INIT_TIMEOUT", "60");
    for name in ["BENCH_CASE_MS", "BENCH_SAMPLES", "BENCH_DIRTY", "RANK", "WORLD_SIZE", "RANK_ID", "RANK_SIZE"] {
        command.env_remove(name);
    }
    command
}

/// How many cores this process may use: by its affinity, whatever share of their time it is given.
fn cores() -> u32 {
    rustix::thread::sched_getaffinity(None).unwrap().count()
}

fn run(command: &mut Command) -> Finished {
    command.output().unwrap().into()
}

/// `foldcast bench` with these arguments, short.
fn bench(args: &[&str]) -> Finished {
    run(&mut foldcast(&[&["bench"], args, &QUICK].concat()))
}

/// A path for a file of a test, where no file is yet.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}
