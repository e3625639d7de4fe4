//! Looking at the jobs of this user on this host from outside, without being part of them.
//!
//! Every process of a job listens, from before it meets the others to its end, at an abstract address that says whose it is
//! (`RankName`): so the kernel's list of sockets says who has come, also while nobody can answer. Who has met answers by its
//! monitor, whatever its other threads do, with the descriptor of the world's memory, in which all ranks' boxes lie; one rank that
//! answers is enough. If none does, all being stopped, the memory is taken from one of them by the kernel's word.
//!
//! Nothing here writes to a job's memory, and no job waits for whoever looks.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;
use types::{Ending, Error, Rank, Result};

pub use crate::blackbox::view::{Noted, Operation};
use crate::fork::Home;
use crate::meeting::JobKey;
pub use crate::record::Stage;
use crate::segment::Segment;
use crate::socket::{connect_to, listen_at, own_user, peer_of, receive, send};
use crate::wire::{Message, Shown};
use crate::world::{World, has_left, noted_in};

/// Beginning of the addresses of ranks.
const PREFIX: &str = "foldcast-rank";
/// The kernel's list of sockets.
const SOCKETS: &str = "/proc/net/unix";
/// Tries to find an address that nobody has.
const TRIES: usize = 8;
/// More sockets of jobs than this are not looked at.
const MAX_LISTENERS: usize = 1 << 14;

/// What the address of a rank's process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankName {
    user: u32,
    job: u64,
    size: u32,
    rank: u32,
    process: u32,
}

impl RankName {
    pub(crate) fn here(key: &JobKey, rank: Rank, size: usize) -> RankName {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        RankName { user: own_user(), job: key.address_hash(), size, rank: rank.0, process: std::process::id() }
    }

    /// A socket that listens at such an address. It ends with a random number: a process may be part of several worlds.
    pub(crate) fn listen(&self, backlog: usize) -> rustix::io::Result<OwnedFd> {
        let mut last = Errno::ADDRINUSE;
        for _ in 0..TRIES {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            match listen_at(Some(self.text(u64::from_ne_bytes(random)).as_bytes()), backlog) {
                Err(error @ Errno::ADDRINUSE) => last = error,
                listener => return listener,
            }
        }
        Err(last)
    }

    fn text(&self, random: u64) -> String {
        let RankName { user, job, size, rank, process } = self;
        format!("{PREFIX}-{user}-{job:016x}-{size}-{rank}-{process}-{random:016x}")
    }

    fn parse(text: &str) -> Option<RankName> {
        let mut parts = text.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
        let user = parts.next()?.parse().ok()?;
        let job = u64::from_str_radix(parts.next()?, 16).ok()?;
        let mut number = || parts.next()?.parse::<u32>().ok();
        let name = RankName { user, job, size: number()?, rank: number()?, process: number()? };
        let random = parts.next().filter(|random| random.len() == 16)?;
        (parts.next().is_none() && name.rank < name.size && u64::from_str_radix(random, 16).is_ok()).then_some(name)
    }
}

/// How a rank is, as far as it can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It has not come yet.
    Missing,
    /// It is there and has not met the others.
    Meeting,
    /// It takes part.
    Alive,
    /// It takes part, and its process is stopped (SIGSTOP, Ctrl-Z, a debugger).
    Stopped,
    /// It is gone.
    Gone(Ending),
}

/// A rank of a job.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which one.
    pub rank: Rank,
    /// Its process; 0 if that is not known.
    pub process: u32,
    /// How it is.
    pub condition: Condition,
    /// What it has noted, if it has met the others.
    pub noted: Option<Noted>,
}

/// A job of this user on this host.
#[derive(Clone, Debug)]
pub struct Job {
    /// What stands for its key in the addresses of its processes.
    pub hash: u64,
    /// Its key, if one of its ranks has said it.
    pub key: Option<String>,
    /// Which rank answered, if one did.
    pub answered_by: Option<Rank>,
    /// Whether its ranks have met.
    pub has_met: bool,
    /// All of its ranks.
    pub ranks: Vec<Seen>,
}

/// What stands for a job with this key, such as the value of `FOLDCAST_JOB`, in the addresses of its processes.
#[must_use]
pub fn hash_of(key: &str) -> u64 {
    JobKey::new(key).address_hash()
}

/// Now, by the clock of the times in [`Noted`].
#[must_use]
pub fn now_ns() -> u64 {
    crate::ticks::nanoseconds()
}

/// A process of a job, by its listening socket.
struct Listener {
    name: RankName,
    /// By the kernel's word; by its own if this process cannot see it.
    process: u32,
    socket: Option<OwnedFd>,
    claimed: bool,
}

/// The jobs of this user that can be seen. Waits for answers for at most `limit`.
///
/// # Errors
/// [`Error::Resource`] if the system does not say which sockets there are.
pub fn jobs(limit: Duration) -> Result<Vec<Job>> {
    let refused = |error: &dyn core::fmt::Display| {
        Error::resource(format!("the list of sockets in {SOCKETS}"), error, "see that /proc is mounted")
    };
    let list = std::fs::read(SOCKETS).map_err(|error| refused(&error))?;
    let home = Home::here()?;
    let mut listeners = listeners(&String::from_utf8_lossy(&list));
    let mut worlds = Vec::new();
    ask(&mut listeners, &mut worlds, limit, home);
    take_from_stopped(&mut listeners, &mut worlds, home);
    let mut jobs: Vec<Job> = worlds.iter().map(|world| world.job(&listeners)).collect();
    jobs.extend(meetings(&listeners));
    Ok(jobs)
}

/// The sockets of this user's ranks: connected, so that the kernel has said whose they are, and asked.
fn listeners(list: &str) -> Vec<Listener> {
    // The listening socket has the address, and so has its end of each connection: of a group of equal lines one is taken.
    let addresses = list.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let mut known: BTreeMap<&str, RankName> = BTreeMap::new();
    for address in addresses {
        if let Some(name) = RankName::parse(address).filter(|name| name.user == own_user()) {
            known.insert(address, name);
        }
    }
    let connect = |(address, name): (&str, RankName)| {
        let socket = match connect_to(address.as_bytes()) {
            Ok(socket) => Some(socket),
            // It has just gone.
            Err(Errno::CONNREFUSED) => return None,
            // Too many knock at once, or this process may open no more sockets: it is there.
            Err(_) => None,
        };
        let (mut process, mut is_ours) = (name.process, true);
        if let Some(socket) = &socket {
            let (user, seen) = peer_of(socket).ok()?;
            is_ours = user == own_user();
            process = if seen == 0 { process } else { seen };
            // Who is still meeting the others does not read it; it is gone with the connection.
            let _ = send(socket, &Message::Look.encode(), &[]);
        }
        is_ours.then_some(Listener { name, process, socket, claimed: false })
    };
    known.into_iter().take(MAX_LISTENERS).filter_map(connect).collect()
}

/// A world whose memory is here.
struct Found {
    /// The memory's number, which no other has.
    inode: u64,
    segment: Segment,
    size: usize,
    hash: u64,
    shown: Option<Shown>,
}

impl Found {
    fn map(memory: &OwnedFd, hash: u64, shown: Option<Shown>, home: Home) -> Option<Found> {
        let inode = fstat(memory).ok()?.st_ino;
        let segment = Segment::view(memory, home).ok()?;
        let size = World::ranks_of(&segment)?;
        Some(Found { inode, segment, size, hash, shown })
    }

    fn noted(&self, rank: u32) -> Option<Noted> {
        let is_there = usize::try_from(rank).is_ok_and(|rank| rank < self.size);
        is_there.then(|| noted_in(&self.segment, Rank(rank), self.size)).flatten()
    }

    /// Takes the processes that are this world's: those that its boxes name.
    fn claim(&self, listeners: &mut [Listener]) {
        let of_job = |listener: &&mut Listener| listener.name.job == self.hash && !listener.claimed;
        for listener in listeners.iter_mut().filter(of_job) {
            let noted = self.noted(listener.name.rank);
            listener.claimed = noted.is_some_and(|noted| noted.process == listener.name.process);
        }
    }

    fn job(&self, listeners: &[Listener]) -> Job {
        let gone = self.shown.as_ref().map(|shown| &shown.gone[..]).unwrap_or_default();
        let ranks = (0..self.size).map(Rank::from_index).map(|rank| {
            let noted = self.noted(rank.0);
            let by_its_word = noted.as_ref().map_or(0, |noted| noted.process);
            let is_its =
                |of: &&Listener| of.name.job == self.hash && of.name.rank == rank.0 && of.name.process == by_its_word;
            let listener = listeners.iter().filter(|listener| listener.claimed).find(is_its);
            let process = listener.map_or(by_its_word, |listener| listener.process);
            let ended = gone.iter().find(|(gone, _)| *gone == rank).map(|(_, ending)| *ending);
            let condition = match (has_left(&self.segment, rank).map(Ending::Left).or(ended), listener) {
                (Some(ending), _) => Condition::Gone(ending),
                (None, Some(_)) if is_stopped(process) => Condition::Stopped,
                (None, Some(_)) => Condition::Alive,
                // Its socket is gone, and nobody has seen yet how it ended.
                (None, None) => Condition::Gone(Ending::Unknown),
            };
            Seen { rank, process, condition, noted }
        });
        Job {
            hash: self.hash,
            key: self.shown.as_ref().map(|shown| shown.job.clone()),
            answered_by: self.shown.as_ref().map(|shown| Rank(shown.rank)),
            has_met: true,
            ranks: ranks.collect(),
        }
    }
}

/// Waits until every process has answered, or another one of its world for it.
fn ask(listeners: &mut [Listener], worlds: &mut Vec<Found>, limit: Duration, home: Home) {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let waited: Vec<usize> =
            (0..listeners.len()).filter(|at| !listeners[*at].claimed && listeners[*at].socket.is_some()).collect();
        if waited.is_empty() || left.is_zero() {
            return;
        }
        let sockets = waited.iter().filter_map(|at| listeners[*at].socket.as_ref());
        let mut fds: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        // Interrupted or not, they are looked at again.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        let ready: Vec<usize> =
            fds.iter().zip(&waited).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, at)| *at).collect();
        for at in ready {
            let Some(socket) = listeners[at].socket.take() else { continue };
            let Ok(packet) = receive(&socket) else { continue };
            let (Ok(Message::Shown(shown)), Some(memory)) =
                (Message::decode(&packet.bytes), packet.descriptors.first())
            else {
                continue;
            };
            add(worlds, Found::map(memory, listeners[at].name.job, Some(shown), home), listeners);
        }
    }
}

/// Adds a world that is not known yet.
fn add(worlds: &mut Vec<Found>, found: Option<Found>, listeners: &mut [Listener]) {
    if let Some(found) = found
        && worlds.iter().all(|known| known.inode != found.inode)
    {
        found.claim(listeners);
        worlds.push(found);
    }
}

/// Takes the memory of worlds whose processes are all stopped from one of these: the kernel lets a user do so.
fn take_from_stopped(listeners: &mut [Listener], worlds: &mut Vec<Found>, home: Home) {
    for at in 0..listeners.len() {
        let Listener { name, process, claimed, .. } = listeners[at];
        if claimed || !is_stopped(process) {
            continue;
        }
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let ours = open.filter(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains("memfd:foldcast"))
        });
        for entry in ours {
            let memory = rustix::fs::open(entry.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            let found = memory.ok().and_then(|memory| Found::map(&memory, name.job, None, home));
            add(worlds, found, listeners);
        }
    }
}

/// The jobs of the processes that are in no world: their ranks have not met.
fn meetings(listeners: &[Listener]) -> Vec<Job> {
    let mut jobs: BTreeMap<(u64, u32), Vec<&Listener>> = BTreeMap::new();
    for listener in listeners.iter().filter(|listener| !listener.claimed) {
        jobs.entry((listener.name.job, listener.name.size)).or_default().push(listener);
    }
    let job = |((hash, size), present): ((u64, u32), Vec<&Listener>)| {
        let seen = |rank| {
            let listener = present.iter().find(|listener| listener.name.rank == rank);
            let process = listener.map_or(0, |listener| listener.process);
            let condition = match listener {
                None => Condition::Missing,
                Some(_) if is_stopped(process) => Condition::Stopped,
                Some(_) => Condition::Meeting,
            };
            Seen { rank: Rank(rank), process, condition, noted: None }
        };
        Job { hash, key: None, answered_by: None, has_met: false, ranks: (0..size).map(seen).collect() }
    };
    // A size comes from a name that anybody of this user may have made up.
    let limit = u32::try_from(types::transport::Geometry::MAX_RANKS).unwrap_or(u32::MAX);
    jobs.into_iter().filter(|((_, size), _)| *size <= limit).map(job).collect()
}

/// Whether a process is stopped, by the kernel's word.
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before it, in parentheses, may hold anything.
    let state = stat.rfind(')').and_then(|at| stat[at + 1..].trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let name = RankName { user: u32::MAX, job: u64::MAX, size: 4096, rank: 4095, process: u32::MAX };
        let text = name.text(u64::MAX);
        assert!(text.len() <= 107, "it fits the address of a socket");
        assert_eq!(RankName::parse(&text), Some(name));
    }

    #[test]
    fn other_names_are_none() {
        let good = RankName { user: 0, job: 1, size: 2, rank: 1, process: 77 }.text(5);
        assert!(RankName::parse(&good).is_some());
        for end in 0..good.len() {
            assert_eq!(RankName::parse(&good[..end]), None, "{}", &good[..end]);
        }
        let others =
            ["foldcast-0-00000000000000ff", "foldcast-launcher-12", "foldcast-rank-0-1-2-2-77-0000000000000005"];
        for other in others.into_iter().map(str::to_owned).chain([format!("{good}-1"), good.replace("-77-", "-x-")]) {
            assert_eq!(RankName::parse(&other), None, "{other}");
        }
    }

    #[test]
    fn of_the_kernels_list_only_names_of_ranks_are_taken() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 0 5 1 12 @/tmp/x\n1: 2 0 0 5 1 13\n";
        assert!(listeners(list).is_empty());
    }

    #[test]
    fn this_process_is_not_stopped() {
        assert!(!is_stopped(std::process::id()) && !is_stopped(0));
    }
}
