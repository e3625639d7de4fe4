//! A second process that cleans up if the launcher is killed by SIGKILL.
//!
//! The kernel then kills the ranks, but not what they started. The guard holds the reading end of a pipe whose other
//! end only the launcher has; when that end is closed, the launcher is gone, and the guard kills what is left of the
//! job: the ranks' process groups, and every process that has the job's id in its environment. A launcher that comes to
//! its own end has cleaned up already and kills the guard.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::launch;
use super::tree;

/// How long it tries to kill what does not die, such as a process that hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(5);

/// Kill what is left of a job when standard input ends
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The job's id
    job: String,
}

/// The launcher's side.
#[derive(Debug)]
pub(super) struct Guard {
    pid: Pid,
    pipe: ChildStdin,
}

impl Guard {
    pub(super) fn start(job: &str) -> std::io::Result<Guard> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("foldcast")
            .args(["guard", job])
            // Or the guard of a job around this one would take it for a part of that job.
            .env_remove(launch::JOB_VARIABLE)
            .env_remove(launch::LAUNCHER_VARIABLE)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match (pid, child.stdin.take()) {
            (Some(pid), Some(pipe)) => Ok(Guard { pid, pipe }),
            _ => Err(std::io::Error::other("a child without a number or a pipe")),
        }
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// `rank` has begun to lead the process group of its number.
    pub(super) fn add(&mut self, rank: Pid) {
        self.tell('+', rank);
    }

    /// `rank` is reaped: its number may be another's from now on.
    pub(super) fn remove(&mut self, rank: Pid) {
        self.tell('-', rank);
    }

    fn tell(&mut self, sign: char, rank: Pid) {
        // The pipe has room for every message of a job; without a guard nobody needs to be told.
        let _ = self.pipe.write_all(format!("{sign}{}\n", rank.as_raw_nonzero()).as_bytes());
    }

    /// Ends the guard; to be called only while it has not been reaped.
    pub(super) fn end(self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// The guard's side: the command `foldcast guard`.
pub(crate) fn watch(args: &Args) -> ExitCode {
    let mut told = Vec::new();
    // An error is an end too.
    let _ = std::io::stdin().read_to_end(&mut told);
    let groups = groups(&String::from_utf8_lossy(&told));
    let mark = format!("{}={}", launch::JOB_VARIABLE, args.job);
    let numbers = tree::Numbers::here();
    // Groups are told by this namespace's numbers.
    let is_in_group = |process: &tree::Process| !numbers.are_foreign() && groups.contains(&process.group);
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let left: Vec<tree::Process> = tree::all()
            .into_iter()
            .filter(|process| process.pid != numbers.own())
            .filter(|process| is_in_group(process) || is_marked(process.pid, &mark))
            .collect();
        if left.is_empty() {
            return ExitCode::SUCCESS;
        }
        for process in left {
            process.signal(Signal::KILL, numbers);
        }
        thread::sleep(Duration::from_millis(5));
    }
    ExitCode::FAILURE
}

/// The process groups that were added and not removed.
fn groups(told: &str) -> Vec<i32> {
    let mut groups = Vec::new();
    for line in told.lines() {
        match (line.get(..1), line.get(1..).and_then(|pid| pid.parse::<i32>().ok())) {
            (Some("+"), Some(pid)) if pid > 1 => groups.push(pid),
            (Some("-"), Some(pid)) => groups.retain(|&group| group != pid),
            _ => {}
        }
    }
    groups
}

fn is_marked(pid: i32, mark: &str) -> bool {
    // Unreadable for processes of other users.
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_added_and_not_removed() {
        assert_eq!(groups("+12\n+13\n-12\n+14\n"), [13, 14]);
        assert_eq!(groups("+1\n+0\n+-1\n+x\nx\n\n\u{e9}\n-5\n"), [0_i32; 0]);
    }

    #[test]
    fn marks_are_whole_variables() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (name, value) = std::env::vars().find(|(_, value)| value.len() > 1).unwrap();
        assert!(is_marked(own, &format!("{name}={value}")));
        assert!(!is_marked(own, &format!("{name}={}", &value[..1])));
        assert!(!is_marked(-1, ""));
    }
}
