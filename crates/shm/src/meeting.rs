//! How the ranks of one host meet: all connect to rank 0, the hub, at an abstract address made from the job's key.
//!
//! The address exists only while the ranks meet, so that a later job with the same key can meet as well. See the
//! crate's README for the packets.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use types::error::{Deadline, GroupAborted, InvalidArgument, RankDied};
use types::{CallSite, Cause, Ending, Error, GroupName, Rank, Result, digest};

use crate::death::{Life, OwnLife};
use crate::fork::Home;
use crate::launcher::{Client, die_with_launcher};
use crate::monitor::{Monitor, Parts};
use crate::observe::RankName;
use crate::segment::Segment;
use crate::socket::{own_name, own_user};
use crate::wire::Address;
use crate::world::World;

mod guest;
mod hub;

/// The longest wait before the hooks are asked again.
const SLICE: Duration = Duration::from_millis(50);
/// How long the reason of a death may take to become known.
const REASON_LIMIT: Duration = Duration::from_millis(30);

/// What the ranks of a job have in common and no other job of this user has at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobKey(String);

impl JobKey {
    /// A key from any text, such as the value of `FOLDCAST_JOB`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> JobKey {
        JobKey(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> u64 {
        digest(2, self.0.as_bytes())
    }

    /// What stands for the job in the addresses of its processes.
    pub(crate) fn address_hash(&self) -> u64 {
        digest(1, self.0.as_bytes())
    }

    /// The abstract address of the hub: it holds the user, so that users do not get in each other's way.
    fn address(&self) -> Vec<u8> {
        format!("foldcast-{}-{:016x}", own_user(), self.address_hash()).into_bytes()
    }
}

/// Who wants to meet whom, and for how long at most.
pub struct Meeting<'a> {
    /// The job.
    pub key: &'a JobKey,
    /// This process's rank.
    pub rank: Rank,
    /// Ranks of the job on this host.
    pub size: usize,
    /// The time allowed; `None` for as long as it takes.
    pub limit: Option<Duration>,
    /// Asked at least every 50 ms: `true` ends the meeting.
    pub interrupted: Option<&'a dyn Fn() -> bool>,
    /// The connection to the launcher, if there is one. It becomes part of the [`Monitor`].
    pub launcher: Option<Client>,
    /// Whether to use process handles (pidfd) where the kernel has them, as is best. Without them a pipe stands in, and the
    /// exit status of a dead rank is known only from its launcher.
    pub process_handles: bool,
}

impl core::fmt::Debug for Meeting<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Meeting")
            .field("key", self.key)
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl<'a> Meeting<'a> {
    /// A meeting without launcher and hooks.
    #[must_use]
    pub fn new(key: &'a JobKey, rank: Rank, size: usize, limit: Option<Duration>) -> Meeting<'a> {
        Meeting { key, rank, size, limit, interrupted: None, launcher: None, process_handles: true }
    }

    /// Meets the other ranks. Blocks until all are there. The monitor must then be run on a thread of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the ranks disagree in size or version, two have the same rank, or the rank is not below
    /// the size; [`Error::Deadline`] if the time is up, naming who is missing; [`Error::RankDied`] if a rank ended that
    /// had come, or by the launcher's word; [`Error::GroupAborted`] if interrupted; [`Error::Resource`] if memory,
    /// descriptors or sockets cannot be had.
    pub fn meet(self) -> Result<(Arc<World>, Monitor)> {
        if self.rank.index() >= self.size {
            return Err(Error::invalid(
                "rank",
                format!("a rank below the size, {}", self.size),
                self.rank.0.to_string(),
            ));
        }
        let mut watch = Watch::new(&self);
        watch.launcher = self.launcher;
        let home = Home::here()?;
        if self.size == 1 {
            return alone(watch, home);
        }
        let own_life = OwnLife::new(self.process_handles)?;
        let name = RankName::here(self.key, self.rank, self.size);
        let listener = name.listen(self.size * 4).map_err(no_socket)?;
        let address = Address(own_name(&listener).map_err(no_socket)?);
        let place = Place { key: self.key, rank: self.rank, size: self.size, life: &own_life, address };
        let Company { segment, memory, addresses, lives } = match self.rank {
            Rank(0) => hub::gather(&place, &mut watch, home)?,
            _ => guest::join(&place, &mut watch, home)?,
        };
        let world = Arc::new(World::enter(segment, self.rank, addresses, home)?);
        world.show(self.key.as_str(), memory);
        let OwnLife { kind, token, anchor } = own_life;
        drop(token);
        log::debug!("{} of {} has met the others ({kind:?})", self.rank, self.size);
        let parts = Parts { listener: Some(listener), lives, anchor, launcher: watch.launcher };
        // The others have met this rank: if it cannot go on, they must not wait for it.
        let monitor = Monitor::new(Arc::clone(&world), parts).inspect_err(|_| world.leave(0))?;
        Ok((world, monitor))
    }
}

fn alone(watch: Watch<'_>, home: Home) -> Result<(Arc<World>, Monitor)> {
    let (segment, _) = World::create_segment(1, home)?;
    let world = Arc::new(World::enter(segment, Rank(0), Box::new([Address::default()]), home)?);
    let parts = Parts { listener: None, lives: vec![None], anchor: None, launcher: watch.launcher };
    let monitor = Monitor::new(Arc::clone(&world), parts)?;
    Ok((world, monitor))
}

fn no_socket(error: Errno) -> Error {
    Error::resource(
        "a socket to meet the other ranks",
        error,
        "allow unix sockets, and raise the limit on open files (`ulimit -n`)",
    )
}

/// This rank's part in a meeting.
struct Place<'a> {
    key: &'a JobKey,
    rank: Rank,
    size: usize,
    life: &'a OwnLife,
    address: Address,
}

/// What a meeting results in.
struct Company {
    segment: Segment,
    /// The segment's descriptor.
    memory: OwnedFd,
    addresses: Box<[Address]>,
    lives: Vec<Option<Life>>,
}

/// What may end a meeting from outside, and the errors that say so.
struct Watch<'a> {
    rank: Rank,
    size: usize,
    start: Instant,
    limit: Option<Duration>,
    interrupted: Option<&'a dyn Fn() -> bool>,
    launcher: Option<Client>,
}

impl<'a> Watch<'a> {
    fn new(meeting: &Meeting<'a>) -> Watch<'a> {
        let Meeting { rank, size, limit, interrupted, .. } = *meeting;
        Watch { rank, size, start: Instant::now(), limit, interrupted, launcher: None }
    }

    fn site(&self) -> CallSite {
        CallSite { rank: self.rank, op: "init", tag: None, group: GroupName::world() }
    }

    fn time_is_up(&self) -> bool {
        self.limit.is_some_and(|limit| self.start.elapsed() >= limit)
    }

    /// The time until the hooks or the deadline must be looked at again.
    fn slice(&self) -> Duration {
        let left = self.limit.map_or(SLICE, |limit| limit.saturating_sub(self.start.elapsed()));
        left.min(SLICE)
    }

    /// Asks the hooks, and hears what the launcher says of the others.
    fn check(&mut self) -> Result<()> {
        if self.interrupted.is_some_and(|interrupted| interrupted()) {
            let cause = Cause::Interrupted { by: self.rank };
            return Err(Error::GroupAborted(Box::new(GroupAborted {
                site: self.site(),
                cause,
                elapsed: self.start.elapsed(),
            })));
        }
        let Some(launcher) = &mut self.launcher else { return Ok(()) };
        let heard = launcher.read_notices();
        if heard.launcher_gone {
            die_with_launcher();
        }
        match heard.ended.into_iter().find(|(rank, _)| *rank != self.rank && rank.index() < self.size) {
            Some((rank, ending)) => Err(self.died(rank, ending)),
            None => Ok(()),
        }
    }

    /// Waits until one of the descriptors is ready, a moment at most.
    fn wait(&self, fds: &mut [PollFd<'_>], at_most: Duration) {
        let slice = self.slice().min(at_most);
        let timeout = Timespec::try_from(slice).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        // Interrupted or not, the caller looks again.
        let _ = poll(fds, Some(&timeout));
    }

    /// Passes a moment: between two tries.
    fn pause(&self, moment: Duration) {
        self.wait(&mut [], moment);
    }

    fn died(&self, peer: Rank, ending: Ending) -> Error {
        Error::RankDied(Box::new(RankDied { site: self.site(), peer, ending, elapsed: self.start.elapsed() }))
    }

    fn deadline(&self, peers: Vec<Rank>, awaited: String) -> Error {
        let elapsed = self.start.elapsed();
        let limit = self.limit.unwrap_or(elapsed);
        let (site, detail) = (self.site(), String::new());
        Error::Deadline(Box::new(Deadline { site, peers, awaited, limit, elapsed, detail }))
    }

    fn invalid(&self, field: &str, expected: String, got: String) -> Error {
        let field = field.to_string();
        Error::InvalidArgument(Box::new(InvalidArgument { site: Some(self.site()), field, expected, got }))
    }

    /// The error that a rank is gone, waiting a moment for the reason to become known. If the launcher tells of another one
    /// meanwhile, that one was first.
    fn death_of(&mut self, rank: Rank, life: Option<&Life>) -> Error {
        let since = Instant::now();
        while since.elapsed() < REASON_LIMIT {
            if let Err(error @ Error::RankDied(_)) = self.check() {
                return error;
            }
            if let Some(ending) = life.and_then(|life| life.ending(true)) {
                return self.died(rank, ending);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let ending = life.and_then(|life| life.ending(false)).unwrap_or(Ending::Unknown);
        self.died(rank, ending)
    }
}

fn poll_in(fd: &OwnedFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}
