//! In containers: namespaces of processes with and without a /proc of their own, and the launcher as their first process.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{FOLDCAST, Launch, Running, eventually};

/// With /proc mounted anew, and without: then it shows the processes of the whole host, by other numbers.
const SPACES: [&[&str]; 2] = [&["--mount-proc"], &[]];

/// A shell script in a namespace of processes of its own, in which `$0` is foldcast; `None` where that is not allowed.
fn unshared(options: &[&str], script: &str) -> Option<Launch> {
    let unshare = |rest: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).args(options).args(rest);
        command
    };
    let allowed = unshare(&["true"]).output().is_ok_and(|output| output.status.success());
    allowed.then(|| Launch::of(unshare(&["sh", "-c", script, FOLDCAST])))
}

/// llm-d 352: the launcher is process 1 of a container.
#[test]
fn llm_d_352_the_first_process_of_a_namespace() {
    for options in SPACES {
        let script = "exec \"$0\" run -n 2 -- sh -c 'sleep 1000 & setsid sleep 1000 & exit 3'";
        let Some(launch) = unshared(options, script) else { return };
        let run = launch.finish();
        assert_eq!(run.code(), 3, "{options:?}: {}", run.err);
        assert_eq!(run.err.lines().count(), 1, "only what failed first is told, {options:?}: {}", run.err);
        assert!(run.last_error().starts_with("foldcast run: rank "), "{options:?}: {}", run.err);
        assert!(run.left.is_empty(), "{options:?}: {:?}", run.left);
    }
}

/// What a rank started is found by its number in /proc and signalled by its number here; nobody else is.
#[test]
fn grandchildren_in_a_namespace_are_ended_and_nobody_else() {
    for options in SPACES {
        let script = "sleep 1000 & bystander=$!
            \"$0\" run -n 2 -- sh -c 'setsid sleep 1000 & (setsid sleep 1000 &) ; exit 0'; echo status $?
            kill -0 $bystander && echo the bystander lives; kill -9 $bystander";
        let Some(launch) = unshared(options, script) else { return };
        let run = launch.finish();
        assert_eq!(run.out, "status 0\nthe bystander lives\n", "{options:?}: {}", run.err);
        assert!(run.err.is_empty() && run.left.is_empty(), "{options:?}: {:?}: {}", run.left, run.err);
    }
}

/// The processes of a test with their command lines.
fn commands(run: &Running) -> Vec<(i32, String)> {
    let command = |pid: i32| Some((pid, std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?));
    run.others().into_iter().filter_map(command).collect()
}

#[test]
fn a_launcher_killed_in_a_namespace_leaves_nothing() {
    for options in SPACES {
        let script = "\"$0\" run -n 2 -- sh -c 'setsid sleep 1000 & echo ready; wait'; exec sleep 2000";
        let Some(launch) = unshared(options, script) else { return };
        let run = launch.start();
        run.await_lines(2, "ready");
        let is_launcher = |command: &str| command.starts_with(FOLDCAST) && command.contains("\0run\0");
        let (launcher, _) = commands(&run).into_iter().find(|(_, command)| is_launcher(command)).unwrap();
        kill_process(Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
        eventually("the end of all but process 1", || {
            let left = commands(&run);
            (left.len() == 1 && left[0].1.contains("2000")).then_some(())
        });
    }
}
