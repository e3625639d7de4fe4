//! Starting `foldcast`, watching it, and finding what it leaves.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

pub(crate) const FOLDCAST: &str = env!("CARGO_BIN_EXE_foldcast");

/// A guard against hanging.
const WATCHDOG: Duration = Duration::from_secs(60);

const MARK: &str = "FOLDCAST_TEST_MARK";

/// Repeats `step` until it gives something.
pub(crate) fn eventually<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(start.elapsed() < WATCHDOG, "never came: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Checks all cases at the same time: they wait for most of it.
pub(crate) fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    let check = &check;
    thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(move || check(case)))));
}

type Text = Arc<Mutex<Vec<u8>>>;

fn collect(mut stream: impl Read + Send + 'static) -> (Text, JoinHandle<()>) {
    let text = Text::default();
    let shared = Arc::clone(&text);
    let thread = thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            shared.lock().unwrap().extend_from_slice(&buffer[..length]);
        }
    });
    (text, thread)
}

/// A command that will run `foldcast`, directly or further down.
pub(crate) struct Launch {
    pub(crate) command: Command,
    mark: String,
}

impl Launch {
    /// `foldcast run` with these arguments.
    pub(crate) fn new(args: &[&str]) -> Launch {
        let mut command = Command::new(FOLDCAST);
        command.arg("run").args(args);
        Launch::of(command)
    }

    /// `foldcast run -n ranks options sh -c script`.
    pub(crate) fn shell(ranks: u32, options: &[&str], script: &str) -> Launch {
        let ranks = ranks.to_string();
        Launch::new(&[&["-n", &ranks], options, &["--", "sh", "-c", script]].concat())
    }

    pub(crate) fn of(mut command: Command) -> Launch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        command.env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Launch { command, mark }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Launch {
        self.command.env(name, value);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let mut child = self.command.spawn().unwrap();
        let (out, out_thread) = child.stdout.take().map(collect).unzip();
        let (err, err_thread) = child.stderr.take().map(collect).unzip();
        let threads = out_thread.into_iter().chain(err_thread).collect();
        Running { child, out: out.unwrap_or_default(), err: err.unwrap_or_default(), threads, mark: self.mark }
    }

    pub(crate) fn finish(self) -> Finished {
        self.start().finish()
    }
}

pub(crate) struct Running {
    pub(crate) child: Child,
    out: Text,
    err: Text,
    threads: Vec<JoinHandle<()>>,
    mark: String,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.out.lock().unwrap()).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.err.lock().unwrap()).into_owned()
    }

    /// Waits until standard output holds `count` lines that end so.
    pub(crate) fn await_lines(&self, count: usize, end: &str) {
        eventually(&format!("{count} lines '{end}'"), || {
            (self.out().lines().filter(|line| line.ends_with(end)).count() >= count).then_some(())
        });
    }

    /// The processes of this test that are alive, without the launcher.
    pub(crate) fn others(&self) -> Vec<i32> {
        let mut others = marked(&self.mark);
        others.retain(|&pid| pid != self.pid());
        others
    }

    pub(crate) fn await_nothing_left(&self) {
        eventually("the end of every process", || marked(&self.mark).is_empty().then_some(()));
    }

    pub(crate) fn finish(mut self) -> Finished {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > WATCHDOG {
                let _ = self.child.kill();
                panic!("foldcast hangs; it wrote:\n{}\n{}", self.out(), self.err());
            }
            thread::sleep(Duration::from_millis(2));
        };
        let left = self.others();
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        Finished { status, out: self.out(), err: self.err(), left }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
    /// What was alive when the launcher had ended.
    pub(crate) left: Vec<i32>,
}

impl Finished {
    pub(crate) fn code(&self) -> i32 {
        assert_eq!(self.status.signal(), None, "{}", self.err);
        self.status.code().unwrap()
    }

    /// The launcher's last word.
    pub(crate) fn last_error(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }

    /// The lines of one rank, without the prefix.
    pub(crate) fn lines(&self, rank: u32) -> Vec<&str> {
        let prefix = format!("[{rank}] ");
        self.out.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
    }
}

/// The processes that carry a mark and are not only waiting to be reaped.
fn marked(mark: &str) -> Vec<i32> {
    let variable = format!("{MARK}={mark}");
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|other| other == variable.as_bytes()) && state(*pid) != Some('Z')
    })
    .collect()
}

fn stat(pid: i32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(')')?.1.trim_start().to_owned())
}

/// R, S, T, Z and so on, by proc_pid_stat(5).
pub(crate) fn state(pid: i32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// The children of a process in this state.
pub(crate) fn children_in_state(parent: i32, wanted: char) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| {
        let stat = stat(pid).unwrap_or_default();
        let mut fields = stat.split_ascii_whitespace();
        fields.next().is_some_and(|state| state.starts_with(wanted)) && fields.next() == Some(&parent.to_string())
    })
    .collect()
}
