//! What can go wrong, with everything a user needs to act: who, what, where, how long, expected and got.

use core::fmt;
use core::time::Duration;

use crate::call::CallSite;
use crate::rank::{GroupName, Rank};

/// Result of Foldcast calls.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Every error of Foldcast.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument, a setting or the way of calling is wrong. Nothing was done.
    InvalidArgument(Box<InvalidArgument>),
    /// The calling rank is not a member of the group, or the group is unknown here.
    NotInGroup(Box<NotInGroup>),
    /// The ranks of a group called with different things. All of them get this; the group stays usable.
    Mismatch(Box<Mismatch>),
    /// A rank that the call depended on died or left. The group's epoch is over.
    RankDied(Box<RankDied>),
    /// A wait reached its deadline. The group's epoch is over.
    Deadline(Box<Deadline>),
    /// The group's epoch was over before or while this call ran.
    GroupAborted(Box<GroupAborted>),
    /// A process made by fork used its parent's communicator.
    ForkedProcess {
        /// The process that made the communicator.
        parent: u32,
        /// The calling process.
        child: u32,
    },
    /// The communicator or group was shut down or destroyed by this process.
    Closed {
        /// What is closed.
        what: String,
    },
    /// The operating system refused something.
    Resource(Box<Resource>),
}

/// Content of [`Error::InvalidArgument`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidArgument {
    /// The call, where there is one.
    pub site: Option<CallSite>,
    /// The argument or variable.
    pub field: String,
    /// What is allowed.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// Content of [`Error::NotInGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInGroup {
    /// The calling rank.
    pub rank: Rank,
    /// What it wanted to do, such as `allreduce`.
    pub op: &'static str,
    /// The group.
    pub group: GroupName,
    /// The group's members, if this process knows them.
    pub members: Option<Vec<Rank>>,
    /// The groups that this process knows.
    pub known: Vec<GroupName>,
}

/// Content of [`Error::Mismatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The call.
    pub site: CallSite,
    /// The first field that differs, such as `count`.
    pub field: &'static str,
    /// The first rank whose value differs from this rank's.
    pub peer: Rank,
    /// This rank's value.
    pub expected: String,
    /// That rank's value.
    pub got: String,
    /// The field's value on every rank of the group.
    pub values: Vec<(Rank, String)>,
    /// What else is known of the difference, in words; empty if nothing.
    pub detail: String,
    /// Time since the call began.
    pub elapsed: Duration,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ended with this exit status.
    Exited(i32),
    /// This signal killed it.
    Signalled(i32),
    /// It left in order (shutdown, exit, or destroying the group) after this many unnamed calls: on the group in question,
    /// or on the group of all ranks where it had not joined that group.
    Left(u64),
    /// It is gone; how is not known.
    Unknown,
}

impl Ending {
    /// How far an end may be from the cause, where several are seen at once; the least is the one to tell of. A program that
    /// is told of another rank's end may exit with an error, with 0, or leave in order, and launchers send the signals that ask for
    /// an end; what remains of signals is nobody's answer.
    #[must_use]
    pub const fn remoteness(self) -> u8 {
        const SIGHUP: i32 = 1;
        const SIGINT: i32 = 2;
        const SIGTERM: i32 = 15;
        match self {
            Ending::Signalled(SIGHUP | SIGINT | SIGTERM) => 2,
            Ending::Signalled(_) => 0,
            Ending::Unknown => 1,
            Ending::Exited(0) => 3,
            Ending::Exited(_) => 2,
            Ending::Left(_) => 4,
        }
    }
}

/// Content of [`Error::RankDied`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDied {
    /// The call that depended on it.
    pub site: CallSite,
    /// The rank that is gone.
    pub peer: Rank,
    /// How it ended.
    pub ending: Ending,
    /// Time since the call began.
    pub elapsed: Duration,
}

/// Content of [`Error::Deadline`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The call.
    pub site: CallSite,
    /// The ranks that did not come.
    pub peers: Vec<Rank>,
    /// What they were to do, such as `enter the call`.
    pub awaited: String,
    /// The time allowed.
    pub limit: Duration,
    /// Time since the call began.
    pub elapsed: Duration,
    /// What the ranks of the group did last, in words; empty if that is not known.
    pub detail: String,
}

/// Content of [`Error::GroupAborted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAborted {
    /// The call that found it.
    pub site: CallSite,
    /// Why the group's epoch ended.
    pub cause: Cause,
    /// Time since the call began.
    pub elapsed: Duration,
}

/// Content of [`Error::Resource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The rank, as far as it is known already.
    pub rank: Option<Rank>,
    /// What was wanted, with its size.
    pub wanted: String,
    /// What the operating system said.
    pub got: String,
    /// What the user can do.
    pub hint: String,
}

/// The first reason for which a group's epoch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A rank died or left while a call depended on it.
    RankDied {
        /// The rank that is gone.
        peer: Rank,
        /// How it ended.
        ending: Ending,
    },
    /// A rank's call reached its deadline.
    Deadline {
        /// The rank whose call it was.
        by: Rank,
        /// A rank that it waited for.
        peer: Rank,
    },
    /// A rank's wait was interrupted (Ctrl-C).
    Interrupted {
        /// The rank that was interrupted.
        by: Rank,
    },
    /// A rank called `abort()`, or destroyed the group before this rank had joined it.
    Requested {
        /// The rank that called it.
        by: Rank,
    },
    /// A rank met a failure of its own, such as memory that could not be had.
    Failed {
        /// The rank that failed.
        by: Rank,
    },
    /// A rank left the epoch to go on in a new one, by `shrink()`.
    Shrunk {
        /// The rank that called it.
        by: Rank,
    },
}

impl Error {
    /// An [`Error::InvalidArgument`] that belongs to no call.
    pub fn invalid(field: impl Into<String>, expected: impl Into<String>, got: impl Into<String>) -> Error {
        Error::InvalidArgument(Box::new(InvalidArgument {
            site: None,
            field: field.into(),
            expected: expected.into(),
            got: got.into(),
        }))
    }

    /// An [`Error::Resource`].
    pub fn resource(wanted: impl Into<String>, got: impl fmt::Display, hint: impl Into<String>) -> Error {
        Error::Resource(Box::new(Resource {
            rank: None,
            wanted: wanted.into(),
            got: got.to_string(),
            hint: hint.into(),
        }))
    }
}

impl Error {
    /// The error of this rank: one of the operating system says so, if it does not name a rank already.
    #[must_use]
    pub fn met_by(mut self, rank: Rank) -> Error {
        if let Error::Resource(resource) = &mut self {
            resource.rank.get_or_insert(rank);
        }
        self
    }
}

fn join(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

fn after(f: &mut fmt::Formatter<'_>, elapsed: Duration) -> fmt::Result {
    write!(f, " (after {:.3} s)", elapsed.as_secs_f64())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument(e) => e.fmt(f),
            Error::NotInGroup(e) => e.fmt(f),
            Error::Mismatch(e) => e.fmt(f),
            Error::RankDied(e) => e.fmt(f),
            Error::Deadline(e) => e.fmt(f),
            Error::GroupAborted(e) => e.fmt(f),
            Error::ForkedProcess { parent, child } => write!(
                f,
                "process {child} was forked from process {parent} and cannot use its communicator: start workers with \
                 'spawn', or make the communicator after the fork"
            ),
            Error::Closed { what } => write!(f, "{what} is closed: it was shut down or destroyed by this process"),
            Error::Resource(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for InvalidArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(site) = &self.site {
            write!(f, "{site}: ")?;
        }
        write!(f, "{}: expected {}, got {}", self.field, self.expected, self.got)
    }
}

impl fmt::Display for NotInGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} on group '{}': ", self.rank, self.op, self.group)?;
        if let Some(members) = &self.members {
            return write!(f, "this rank is not a member; the group has {}", join(members));
        }
        let known: Vec<_> = self.known.iter().map(|name| format!("'{name}'")).collect();
        write!(f, "this rank is in no group of that name; it is in {}", known.join(", "))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the ranks disagree in {}:", self.site, self.field)?;
        let mut rest: Vec<_> = self.values.iter().collect();
        let mut separator = "";
        while let Some((_, value)) = rest.first().copied() {
            let same: Vec<Rank> = rest.iter().filter(|(_, v)| v == value).map(|(rank, _)| *rank).collect();
            rest.retain(|(_, v)| v != value);
            write!(f, "{separator} {}: {value}", join(&same))?;
            separator = ";";
        }
        after(f, self.elapsed)?;
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        f.write_str("; nothing was done and the group stays usable: make the ranks call with the same arguments")
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited(status) => write!(f, "exited with status {status}"),
            Ending::Signalled(signal) => write!(f, "was killed by {}", signal_name(*signal)),
            Ending::Left(calls) => write!(f, "left in order after call {calls}"),
            Ending::Unknown => f.write_str("died"),
        }
    }
}

/// A signal as people write it, such as `signal 9 (SIGKILL)`.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 16] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (10, "SIGUSR1"),
        (11, "SIGSEGV"),
        (12, "SIGUSR2"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
        (31, "SIGSYS"),
    ];
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

impl fmt::Display for RankDied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {} and can no longer take part", self.site, self.peer, self.ending)?;
        after(f, self.elapsed)?;
        f.write_str("; this group's epoch is over: go on with shrink(), or a new group of the ranks that are left")
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: waited for {} to {}", self.site, join(&self.peers), self.awaited)?;
        after(f, self.elapsed)?;
        write!(
            f,
            "; the limit was {:.3} s: see what holds {} up, or give a longer timeout",
            self.limit.as_secs_f64(),
            join(&self.peers)
        )?;
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::RankDied { peer, ending } => write!(f, "{peer} {ending}"),
            Cause::Deadline { by, peer } => {
                write!(f, "a call of {by} reached its deadline waiting for {peer}")
            }
            Cause::Interrupted { by } => write!(f, "a wait of {by} was interrupted"),
            Cause::Requested { by } => write!(f, "{by} aborted or destroyed it"),
            Cause::Failed { by } => write!(f, "{by} failed: see its own error"),
            Cause::Shrunk { by } => write!(f, "{by} shrinks the group"),
        }
    }
}

impl fmt::Display for GroupAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the group's epoch is over: {}", self.site, self.cause)?;
        after(f, self.elapsed)?;
        f.write_str("; go on with shrink(), or a new group of the ranks that are left")
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "{rank}: ")?;
        }
        write!(f, "could not get {}: {}; {}", self.wanted, self.got, self.hint)
    }
}

impl Cause {
    /// Room that [`encode`](Self::encode) needs.
    pub const ENCODED_BYTES: usize = 24;

    /// The cause as bytes for other ranks.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let (kind, first, second, ending): (u32, Rank, Rank, (u32, u64)) = match *self {
            Cause::RankDied { peer, ending } => (1, peer, peer, ending.encode()),
            Cause::Deadline { by, peer } => (2, by, peer, (0, 0)),
            Cause::Interrupted { by } => (3, by, by, (0, 0)),
            Cause::Requested { by } => (4, by, by, (0, 0)),
            Cause::Failed { by } => (5, by, by, (0, 0)),
            Cause::Shrunk { by } => (6, by, by, (0, 0)),
        };
        let mut bytes = [0; Self::ENCODED_BYTES];
        for (at, word) in [kind, first.0, second.0, ending.0].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..].copy_from_slice(&ending.1.to_le_bytes());
        bytes
    }

    /// The cause that another rank wrote; `None` if the bytes are none.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Option<Cause> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at * 4..at * 4 + 4]);
            u32::from_le_bytes(word)
        };
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[16..]);
        let (by, peer) = (Rank(word(1)), Rank(word(2)));
        Some(match word(0) {
            1 => Cause::RankDied { peer, ending: Ending::decode(word(3), u64::from_le_bytes(value)) },
            2 => Cause::Deadline { by, peer },
            3 => Cause::Interrupted { by },
            4 => Cause::Requested { by },
            5 => Cause::Failed { by },
            6 => Cause::Shrunk { by },
            _ => return None,
        })
    }
}

impl Ending {
    fn encode(self) -> (u32, u64) {
        match self {
            Ending::Exited(status) => (1, u64::from(status.cast_unsigned())),
            Ending::Signalled(signal) => (2, u64::from(signal.cast_unsigned())),
            Ending::Left(calls) => (3, calls),
            Ending::Unknown => (0, 0),
        }
    }

    fn decode(kind: u32, value: u64) -> Ending {
        let number = u32::try_from(value).unwrap_or(0).cast_signed();
        match kind {
            1 => Ending::Exited(number),
            2 => Ending::Signalled(number),
            3 => Ending::Left(value),
            _ => Ending::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
