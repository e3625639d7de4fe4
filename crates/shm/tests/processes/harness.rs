//! Starts ranks as processes and talks with them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foldcast_shm::launcher::Server;

/// A guard against hanging, not a promise of speed.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What marks the lines of a rank among those of the test runner.
pub(crate) const MARK: &str = "@ ";

/// A key that no other test has.
pub(crate) fn new_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("shm-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How a rank is started.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) key: String,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) limit_ms: u64,
    pub(crate) handles: bool,
    /// More variables.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Start {
    pub(crate) fn new(key: &str, rank: usize, size: usize) -> Start {
        Start { key: key.into(), rank, size, limit_ms: 100_000, handles: true, variables: Vec::new() }
    }

    pub(crate) fn spawn(&self) -> Rank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank_process", "--nocapture", "--test-threads=1"]);
        let values = [
            ("SHM_TEST_KEY", self.key.clone()),
            ("SHM_TEST_RANK", self.rank.to_string()),
            ("SHM_TEST_SIZE", self.size.to_string()),
            ("SHM_TEST_LIMIT_MS", self.limit_ms.to_string()),
            ("SHM_TEST_HANDLES", self.handles.to_string()),
        ];
        command
            .env_remove("FOLDCAST_LAUNCHER")
            .envs(values)
            .envs(self.variables.clone())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test runner does not end its own line before the first one of a rank.
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = sender.send(said.to_string());
                }
            }
        });
        Rank { rank: self.rank, child, stdin: Some(stdin), lines }
    }
}

/// A process in the role of a rank. Killed when dropped.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Rank {
    /// Tells it to do something.
    pub(crate) fn tell(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("the rank has not been told to end");
        writeln!(stdin, "{command}").unwrap();
    }

    /// The next thing it says.
    pub(crate) fn hear(&mut self) -> String {
        match self.lines.recv_timeout(WATCHDOG) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("rank {} says nothing", self.rank),
            Err(RecvTimeoutError::Disconnected) => panic!("rank {} ended: {:?}", self.rank, self.child.wait()),
        }
    }

    /// Tells it to do something and hears what came of it.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A world of so many ranks that have met.
pub(crate) fn world(size: usize) -> Vec<Rank> {
    world_with(size, true)
}

/// A world with or without process handles.
pub(crate) fn world_with(size: usize, handles: bool) -> Vec<Rank> {
    let key = new_key();
    let mut ranks: Vec<Rank> =
        (0..size).map(|rank| Start { handles, ..Start::new(&key, rank, size) }.spawn()).collect();
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "met");
    }
    ranks
}

/// A launcher on a thread of this process. Ends when dropped.
pub(crate) struct Launcher {
    pub(crate) address: String,
    orders: Option<Sender<(types::Rank, types::Ending)>>,
    thread: Option<JoinHandle<()>>,
}

impl Launcher {
    pub(crate) fn start(size: usize) -> Launcher {
        let mut server = Server::listen(size).unwrap();
        let address = server.address().to_string();
        let (orders, ordered) = channel();
        let thread = thread::spawn(move || {
            loop {
                match ordered.try_recv() {
                    Ok((rank, ending)) => server.announce(rank, ending),
                    Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(1)),
                    Err(TryRecvError::Disconnected) => return,
                }
                server.serve();
            }
        });
        Launcher { address, orders: Some(orders), thread: Some(thread) }
    }

    /// Tells all ranks that one has ended.
    pub(crate) fn announce(&self, rank: u32, ending: types::Ending) {
        let orders = self.orders.as_ref().expect("it runs until it is dropped");
        orders.send((types::Rank(rank), ending)).unwrap();
    }

    /// A rank under this launcher.
    pub(crate) fn start_of(&self, key: &str, rank: usize, size: usize) -> Start {
        let variables = vec![("FOLDCAST_LAUNCHER", self.address.clone())];
        Start { variables, ..Start::new(key, rank, size) }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
