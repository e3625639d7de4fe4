//! Starts ranks as processes, talks with them, and asks `foldcast` about them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FOLDCAST: &str = env!("CARGO_BIN_EXE_foldcast");

/// A guard against hanging.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What marks the lines of a rank among those of the test runner.
pub(crate) const MARK: &str = "@ ";

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A job whose ranks are started one by one. They are killed when it is dropped.
pub(crate) struct Job {
    pub(crate) key: String,
    size: usize,
    pub(crate) ranks: Vec<Option<Rank>>,
    variables: Vec<(&'static str, String)>,
}

/// A process in the role of a rank.
pub(crate) struct Rank {
    number: usize,
    pub(crate) child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// What it logged.
    pub(crate) logged: Vec<String>,
}

impl Job {
    /// A job of which no rank has come.
    pub(crate) fn empty(size: usize, variables: &[(&'static str, &str)]) -> Job {
        let key = format!("blackbox-{}-{}", std::process::id(), next());
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Job { key, size, ranks: (0..size).map(|_| None).collect(), variables }
    }

    /// A job whose ranks have met.
    pub(crate) fn met(size: usize, variables: &[(&'static str, &str)]) -> Job {
        let mut job = Job::empty(size, variables);
        (0..size).for_each(|rank| job.start(rank));
        (0..size).for_each(|rank| assert_eq!(job.rank(rank).hear(), "met"));
        job
    }

    pub(crate) fn start(&mut self, number: usize) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank_process", "--nocapture", "--test-threads=1"]);
        for name in ["FOLDCAST_LAUNCHER", "FOLDCAST_DUMP_DIR", "RANK", "WORLD_SIZE"] {
            command.env_remove(name);
        }
        let mut child = command
            .env("FOLDCAST_RANK", number.to_string())
            .env("FOLDCAST_WORLD_SIZE", self.size.to_string())
            .env("FOLDCAST_JOB", &self.key)
            .envs(self.variables.clone())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test runner does not end its own line before the first one of a rank.
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = sender.send(said.to_string());
                }
            }
        });
        self.ranks[number] = Some(Rank { number, child, stdin, lines, logged: Vec::new() });
    }

    pub(crate) fn rank(&mut self, number: usize) -> &mut Rank {
        self.ranks[number].as_mut().expect("started")
    }

    /// Tells these ranks the same.
    pub(crate) fn tell(&mut self, ranks: &[usize], command: &str) {
        ranks.iter().for_each(|rank| self.rank(*rank).tell(command));
    }

    /// Tells all ranks the same, and hears that it is done.
    pub(crate) fn all_do(&mut self, command: &str) {
        let all: Vec<usize> = (0..self.size).collect();
        self.tell(&all, command);
        all.iter().for_each(|rank| assert_eq!(self.rank(*rank).hear(), "done", "rank {rank}"));
    }

    /// What `foldcast status --json` says of this job; `None` if it knows none.
    pub(crate) fn try_status(&self) -> Option<Value> {
        let (code, out) = foldcast(&["status", "--json", "--job", &self.key]);
        let jobs = serde_json::from_str::<Value>(&out).unwrap()["jobs"].take();
        let jobs = jobs.as_array().unwrap();
        assert_eq!(code, i32::from(jobs.is_empty()), "{out}");
        assert!(jobs.len() <= 1, "{out}");
        jobs.first().cloned()
    }

    /// Asks until what is said is as wanted.
    pub(crate) fn await_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let said = self.try_status();
            if let Some(status) = said.as_ref().filter(|status| wanted(status)) {
                return status.clone();
            }
            assert!(start.elapsed() < WATCHDOG, "never came: {what}: {said:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What `foldcast status` says to people.
    pub(crate) fn status_text(&self) -> String {
        foldcast(&["status", "--job", &self.key]).1
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in self.ranks.iter_mut().flatten() {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

impl Rank {
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    /// The next thing it says; what it logs is put aside.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => match line.strip_prefix("log ") {
                    Some(logged) => self.logged.push(logged.to_owned()),
                    None => return line,
                },
                Err(RecvTimeoutError::Timeout) => panic!("rank {} says nothing", self.number),
                Err(RecvTimeoutError::Disconnected) => panic!("rank {} ended: {:?}", self.number, self.child.wait()),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it and waits until it is.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
        };
        while !state() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs `foldcast`: its exit code and standard output.
pub(crate) fn foldcast(args: &[&str]) -> (i32, String) {
    let output = Command::new(FOLDCAST).args(args).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// A directory that only this test has; removed when dropped.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dumps-{}-{}", std::process::id(), next()));
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The names of its files, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The numbers in a JSON list.
pub(crate) fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}
