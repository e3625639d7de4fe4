//! A rank that dies at a chosen moment, or tells when it hears of such a death. `ci/chaos.sh` and `ci/leaks.sh` start it.
//!
//! ```sh
//! foldcast run -n 3 --keep-going -- target/release/examples/chaos \
//!     victim=1 how=kill after_us=5000 bytes=65536 way=blocking seed=1
//! ```
//!
//! * `how`: `kill`, `segv`, `abort` (signals), `exit` (status 7 from another thread), `panic` (status 101, in the main thread),
//!   `unborn` (status 7 before it meets the others).
//! * `after_us`: from the start of the process, so that the moment may lie anywhere: before, in and after the meeting.
//! * `way`: `blocking` and `submitted` calls without end; `idle` sleeps between them.
//!
//! Without a victim the ranks call until somebody kills them; `children=1` gives each a process of its own beside it.
//!
//! It says in lines, with times in nanoseconds of the monotonic clock: `dies AT`; `told AT CALLED KIND TEXT`, where CALLED is
//! when the call that failed began; `again KIND TEXT` for the call after that.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, InitOptions, OwnedBuffers, Reduction, Result,
};
use rustix::process::{Signal, getpid, kill_process};
use shm::MonotonicClock;
use types::transport::Clock;

/// Calls of an idle rank before it sleeps for the first time.
const WARM_UP: u32 = 3;
/// The longest sleep of an idle rank.
const LONGEST_SLEEP_US: u64 = 60_000;
const STATUS: i32 = 7;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Signal(Signal),
    Exit,
    Panic,
    Unborn,
}

impl FromStr for How {
    type Err = String;

    fn from_str(word: &str) -> core::result::Result<How, String> {
        Ok(match word {
            "kill" => How::Signal(Signal::KILL),
            "segv" => How::Signal(Signal::SEGV),
            "abort" => How::Signal(Signal::ABORT),
            "exit" => How::Exit,
            "panic" => How::Panic,
            "unborn" => How::Unborn,
            other => return Err(format!("how={other}")),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Blocking,
    Submitted,
    Idle,
}

impl FromStr for Way {
    type Err = String;

    fn from_str(word: &str) -> core::result::Result<Way, String> {
        Ok(match word {
            "blocking" => Way::Blocking,
            "submitted" => Way::Submitted,
            "idle" => Way::Idle,
            other => return Err(format!("way={other}")),
        })
    }
}

struct Plan {
    victim: Option<usize>,
    how: How,
    after: Duration,
    bytes: usize,
    way: Way,
    seed: u64,
    children: bool,
}

/// The value of `name=value` among the arguments.
fn argument<T: FromStr>(name: &str, default: T) -> core::result::Result<T, String> {
    let given = std::env::args().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    given.map_or(Ok(default), |text| text.parse().map_err(|_| format!("{name}={text}")))
}

impl Plan {
    fn read() -> core::result::Result<Plan, String> {
        let none = usize::MAX;
        Ok(Plan {
            victim: Some(argument("victim", none)?).filter(|victim| *victim != none),
            how: argument("how", How::Signal(Signal::KILL))?,
            after: Duration::from_micros(argument("after_us", 0)?),
            bytes: argument("bytes", 8)?,
            way: argument("way", Way::Blocking)?,
            seed: argument("seed", 1)?,
            children: argument("children", 0)? != 0,
        })
    }
}

/// A line at once, whole.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody may be listening any more.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn now_ns() -> u128 {
    MonotonicClock.now().as_nanos()
}

/// Ends this process in its way, at once.
fn die(how: How) -> ! {
    say(&format!("dies {}", now_ns()));
    match how {
        How::Signal(signal) => loop {
            // A process may always signal itself.
            let _ = kill_process(getpid(), signal);
        },
        How::Exit | How::Unborn => std::process::exit(STATUS),
        How::Panic => panic!("as the script wants it"),
    }
}

struct Memory(Vec<u8>);

impl OwnedBuffers for Memory {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(&mut self.0)
    }
}

struct Caller {
    group: Group,
    rank: u64,
    plan: Plan,
    memory: Vec<u8>,
    calls: u32,
}

impl Caller {
    fn call(&mut self) -> Result<()> {
        self.calls += 1;
        match self.plan.way {
            Way::Blocking | Way::Idle => {
                let options = CallOptions::default();
                self.group.all_reduce(DataType::Uint8, Reduction::Max, Buffers::InPlace(&mut self.memory), &options)
            }
            Way::Submitted => self.submit(),
        }
    }

    /// Every other call has a name.
    fn submit(&mut self) -> Result<()> {
        let name = self.calls.is_multiple_of(2).then_some("x");
        let options = CallOptions { name, ..CallOptions::default() };
        let (sender, ended) = mpsc::channel();
        let done = move |result: Result<()>, _: Box<dyn OwnedBuffers>| {
            // The main thread waits for it.
            let _ = sender.send(result);
        };
        let memory = Box::new(Memory(vec![1; self.plan.bytes]));
        self.group.all_reduce_async(DataType::Uint8, Reduction::Max, memory, &options, Box::new(done))?;
        ended.recv().expect("the completion runs exactly once")
    }

    /// An idle rank sleeps for some time that is its own.
    fn rest(&self) {
        if self.plan.way == Way::Idle && self.calls > WARM_UP {
            let mixed = self.plan.seed.wrapping_add(self.rank << 32).wrapping_add(self.calls.into());
            let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            std::thread::sleep(Duration::from_micros(mixed % LONGEST_SLEEP_US));
        }
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::RankDied(_) => "RankDied",
        Error::GroupAborted(_) => "GroupAborted",
        Error::Deadline(_) => "Deadline",
        Error::Resource(_) => "Resource",
        _ => "other",
    }
}

fn told(called: u128, error: &Error) {
    say(&format!("told {} {called} {} {error}", now_ns(), kind(error)));
}

fn run(plan: Plan, start: Instant) -> core::result::Result<(), String> {
    let own = std::env::var("RANK").ok().and_then(|rank| rank.parse::<usize>().ok());
    let dying = own.is_some() && own == plan.victim;
    if plan.children {
        let sleeper = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn();
        sleeper.map_err(|error| format!("sleep: {error}"))?;
    }
    let (how, after) = (plan.how, plan.after);
    if dying && how == How::Unborn {
        std::thread::sleep(after);
        die(how);
    }
    if dying && how != How::Panic {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            die(how);
        });
    }
    let called = now_ns();
    let communicator = match Communicator::init(InitOptions::default()) {
        Ok(communicator) => communicator,
        Err(error) => {
            told(called, &error);
            return Ok(());
        }
    };
    say("ready");
    let rank = u64::from(communicator.rank().0);
    let memory = vec![1; plan.bytes];
    let mut caller = Caller { group: communicator.world(), rank, plan, memory, calls: 0 };
    loop {
        if dying && how == How::Panic && start.elapsed() >= after {
            die(how);
        }
        caller.rest();
        let called = now_ns();
        if let Err(error) = caller.call() {
            told(called, &error);
            if let Err(again) = caller.call() {
                say(&format!("again {} {again}", kind(&again)));
            }
            return Ok(());
        }
    }
}

fn main() -> ExitCode {
    let start = Instant::now();
    match Plan::read().and_then(|plan| run(plan, start)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("chaos: {why}");
            ExitCode::from(2)
        }
    }
}
