//! A process in the role of a rank: meets the others, then does what its standard input says.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::io::{BufRead, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foldcast_shm::launcher::Client;
use foldcast_shm::{GroupKey, GroupWindows, JobKey, Meeting, Request, Waiter, Woken, World};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use types::transport::{Channel, Counter, Fate, Windows};
use types::{GroupName, Rank};

use crate::harness::MARK;

fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").expect("the test listens");
    out.flush().expect("the test listens");
}

fn setting<T: FromStr>(name: &str) -> T {
    let value = std::env::var(format!("SHM_TEST_{name}")).expect("the harness sets it");
    value.parse().ok().expect("the harness sets what can be parsed")
}

/// A world with its monitor on a thread.
struct Stay {
    world: Arc<World>,
    monitor: JoinHandle<()>,
}

impl Stay {
    fn meet() -> types::Result<Stay> {
        let key = JobKey::new(setting::<String>("KEY"));
        let limit = Some(Duration::from_millis(setting("LIMIT_MS")));
        let mut meeting = Meeting::new(&key, Rank(setting("RANK")), setting("SIZE"), limit);
        meeting.process_handles = setting("HANDLES");
        meeting.launcher = Client::connect(Rank(setting("RANK")))?;
        let (world, monitor) = meeting.meet()?;
        Ok(Stay { world, monitor: thread::spawn(move || monitor.run()) })
    }

    fn end(self) {
        self.world.stop_monitor();
        self.monitor.join().expect("the monitor does not panic");
    }
}

pub(crate) fn main() {
    let inherited = inheritable();
    if let Ok(address) = std::env::var("SHM_TEST_KNOCK") {
        return knock_as_another_user(&address);
    }
    if let Ok(address) = std::env::var("SHM_TEST_SQUAT") {
        return listen_as_another_user(&address);
    }
    if let Ok(limit) = std::env::var("SHM_TEST_DESCRIPTORS") {
        limit_to(Resource::Nofile, limit.parse().expect("a number"));
    }
    let mut stay = match Stay::meet() {
        Ok(stay) => stay,
        Err(error) => return say(format!("error {error}")),
    };
    say("met");
    let mut groups: HashMap<String, GroupWindows> = HashMap::new();
    let mut requests: HashMap<String, Request> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the test writes text");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("the test writes a number");
        match words[0] {
            "fate" => say(format!("{:?}", stay.world.fate(rank(words[1])))),
            "await-gone" => say(await_gone(&stay.world, rank(words[1]))),
            "still-there" => say(still_there(&stay.world, rank(words[1]), Duration::from_millis(number(2)))),
            "leave" => {
                stay.world.leave(number(1));
                say("left");
            }
            "exit" => std::process::exit(i32::try_from(number(1)).expect("a small number")),
            "ask" => {
                requests.insert(words[1].into(), ask(&stay.world, &words));
                say("asked");
            }
            "take" => {
                let request = requests.remove(words[1]).expect("asked before");
                say(take(&stay.world, &request, words[1], &mut groups));
            }
            "drop" => {
                groups.remove(words[1]);
                say("dropped");
            }
            "touch" => touch(&groups[words[1]], number(2)),
            "read" => say(groups[words[1]].counter(Channel::Unnamed, index(words[2]), Counter::Folded)),
            "play" => say(play(&groups[words[1]], number(2), words[3] == "sleep")),
            "late" => say(wait_for_late(&groups[words[1]])),
            "fork" => say(fork_and_use(&stay.world, number(1))),
            "descriptors" => say(std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()),
            "limit-files" => {
                limit_to(Resource::Fsize, number(1));
                say("limited");
            }
            "inheritable" => say(format!("{:?}", inheritable().difference(&inherited).collect::<Vec<_>>())),
            "mappings" => say(shared_mappings()),
            "again" => {
                groups.clear();
                stay.end();
                stay = Stay::meet().expect("the same ranks meet again");
                say("met");
            }
            "quit" => break,
            other => panic!("no such command: {other}"),
        }
    }
    groups.clear();
    stay.end();
}

fn limit_to(resource: Resource, limit: u64) {
    let limits = Rlimit { current: Some(limit), ..getrlimit(resource) };
    setrlimit(resource, limits).expect("a lower limit may be set");
}

fn become_another_user() {
    const NOBODY: u32 = 65_534;
    // SAFETY: takes a number only, and this process has no other thread that relies on its user.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0, "only root can become another user");
}

/// Listens at an abstract address as a user that this is not, until it is told to end.
fn listen_as_another_user(address: &str) {
    become_another_user();
    let address = SocketAddrUnix::new_abstract_name(address.as_bytes()).expect("a short name");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::bind(&socket, &address).expect("nobody has it yet");
    rustix::net::listen(&socket, 8).expect("a bound socket");
    say("listens");
    let _ = std::io::stdin().lock().lines().next();
}

/// Connects to an abstract address as a user that this is not, and says what came back.
fn knock_as_another_user(address: &str) {
    become_another_user();
    let address = SocketAddrUnix::new_abstract_name(address.as_bytes()).expect("a short name");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::connect(&socket, &address).expect("the hub listens");
    let mut answer = [0; 4096];
    let (len, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).expect("an answer or the end");
    say(String::from_utf8_lossy(&answer[..len]).replace(|c: char| c.is_control(), "."));
}

fn rank(word: &str) -> Rank {
    Rank(word.parse().expect("the test writes a rank"))
}

fn index(word: &str) -> usize {
    word.parse().expect("the test writes an index")
}

fn await_gone(world: &World, peer: Rank) -> String {
    let awaited = [peer];
    let mut waiter = Waiter::new(world, &awaited);
    let gone = || world.fate(peer) != Fate::Alive;
    while !gone() {
        // Without a limit: only the monitor's ring can end the sleep.
        let _ = waiter.pause(None, &gone);
    }
    format!("{:?}", world.fate(peer))
}

/// Waits for so long, and then says what became of the peer until then.
fn still_there(world: &World, peer: Rank, limit: Duration) -> String {
    let awaited = [peer];
    let mut waiter = Waiter::new(world, &awaited);
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline && world.fate(peer) == Fate::Alive {
        let _ = waiter.pause(Some(deadline.saturating_duration_since(Instant::now())), &|| false);
    }
    format!("{:?}", world.fate(peer))
}

/// `ask NAME RANK,RANK,.. INCARNATION SETTINGS`
fn ask(world: &Arc<World>, words: &[&str]) -> Request {
    let ranks: Vec<Rank> = words[2].split(',').map(rank).collect();
    let name = GroupName::new(words[1]).expect("a good name");
    let key = GroupKey::new(name, ranks, words[3].parse().expect("a number"));
    world.request_group(key, 1, words[4].as_bytes())
}

fn take(world: &World, request: &Request, name: &str, groups: &mut HashMap<String, GroupWindows>) -> String {
    let mut waiter = Waiter::new(world, &[]);
    loop {
        match request.try_take() {
            Some(Ok(windows)) => {
                let settings = String::from_utf8_lossy(windows.settings()).into_owned();
                groups.insert(name.into(), windows);
                return format!("joined {settings}");
            }
            Some(Err(error)) => return format!("error {error}"),
            None => drop(waiter.pause(None, &|| request.is_done())),
        }
    }
}

fn touch(group: &GroupWindows, value: u64) {
    group.publish(Channel::Unnamed, Counter::Folded, value);
    group.wake();
    say("touched");
}

/// Two ranks take turns; with `sleep` they go to sleep at once instead of spinning first. Answers the sleeps.
fn play(group: &GroupWindows, rounds: u64, sleep: bool) -> String {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let awaited = [group.members()[peer]];
    let world = group.world();
    let mut sleeps = 0;
    for round in 1..=rounds {
        let here = || group.counter(Channel::Unnamed, peer, Counter::Staged) >= round;
        if own == 0 {
            group.publish(Channel::Unnamed, Counter::Staged, round);
            group.wake();
        }
        let mut waiter = Waiter::new(world, &awaited);
        while !here() {
            let woken = if sleep { world.door(world.rank()).sleep(None, &here) } else { waiter.pause(None, &here) };
            sleeps += u64::from(woken == Woken::Slept);
        }
        if own == 1 {
            group.publish(Channel::Unnamed, Counter::Staged, round);
            group.wake();
        }
    }
    format!("played {sleeps}")
}

/// Waits for the other rank to touch the group; answers the share of a core that this took, in percent.
fn wait_for_late(group: &GroupWindows) -> String {
    let peer = 1 - group.rank();
    let awaited = [group.members()[peer]];
    let here = || group.counter(Channel::Unnamed, peer, Counter::Folded) != 0;
    let (begin, used) = (Instant::now(), processor_time());
    let mut waiter = Waiter::new(group.world(), &awaited);
    while !here() {
        let _ = waiter.pause(Some(Duration::from_millis(50)), &here);
    }
    let share = (processor_time() - used).as_secs_f64() / begin.elapsed().as_secs_f64();
    format!("waited {:.2}", share * 100.0)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).expect("nanoseconds"))
}

/// The descriptors that a program started by this process would have.
fn inheritable() -> BTreeSet<String> {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let files = std::fs::read_dir("/proc/self/fdinfo").expect("/proc is there").flatten();
    let stays = |file: &std::fs::DirEntry| {
        let info = std::fs::read_to_string(file.path()).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("02000000");
        u32::from_str_radix(flags.trim(), 8).expect("the kernel writes octal") & CLOSE_ON_EXEC == 0
    };
    files.filter(stays).map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
    maps.lines().filter(|line| line.contains("memfd:foldcast")).count()
}

/// Uses the world in a forked child, which then exits with `status`. Answers what the child saw.
fn fork_and_use(world: &Arc<World>, status: u64) -> String {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child only uses what async-signal-safe code may in effect use here: no other thread of this process holds
    // a lock that it takes (allocator included: glibc resets it in the child).
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = world.home().check().is_err();
        world.leave(9);
        let request = world.request_group(GroupKey::new(GroupName::world(), vec![Rank(0), Rank(1)], 7), 1, b"");
        let request = request.try_take().expect("a refusal is there at once").is_err();
        let unmapped = shared_mappings() == 0;
        let _ = rustix::io::write(&writer, format!("{refused} {request} {unmapped}").as_bytes());
        // SAFETY: ends the process at once, without the handlers and destructors of the parent.
        unsafe { libc::_exit(i32::try_from(status).unwrap_or(1)) };
    }
    drop(writer);
    let mut said = [0; 64];
    let mut len = 0;
    while let Ok(read @ 1..) = rustix::io::read(&reader, &mut said[len..]) {
        len += read;
    }
    let mut ended = 0;
    // SAFETY: waits for the child made above; `ended` is an int.
    unsafe { libc::waitpid(child, &raw mut ended, 0) };
    format!("{} {}", String::from_utf8_lossy(&said[..len]), ended >> 8)
}
