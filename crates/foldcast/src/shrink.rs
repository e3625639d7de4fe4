//! Going on after a failure: the members that are left become a group again.

mod agreement;

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, TryLockError, Weak};
use std::time::Instant;

use shm::{Founding, GroupWindows, MonotonicClock};
use types::error::{Cause, Deadline, GroupAborted, InvalidArgument};
use types::transport::{Channel, Clock, Counter, Fate, Windows};
use types::{CallSite, Ending, Error, Rank, Result};

use crate::group::{CallOptions, Group, GroupShared};
use crate::join::Joined;
use crate::shrink::agreement::{Facts, Seat, Step, look};
use crate::wait::{Patience, Pause};

const OP: &str = "shrink";
const AWAITED: &str = "call shrink";

/// Where the first member gave a founding up, how long the death for which it did may take to be seen here.
const SETTLING: Duration = Duration::from_secs(1);

/// What a group remembers of the foundings of its successor.
#[derive(Default)]
pub(crate) struct Shrinking {
    successor: Option<Weak<GroupShared>>,
    /// The founding that failed here last, other than by a death. Its memory tells those who come late why, and in it the
    /// members try again.
    failed: Option<(Group, Seat)>,
}

impl Shrinking {
    /// The founding with these members: the one that failed, or a new one.
    fn founding(&mut self, group: &GroupShared, members: &[Rank]) -> (Group, Seat) {
        if let Some((founding, seat)) = self.failed.take() {
            if founding.ranks() == members {
                founding.shared().joining.take_back();
                return (founding, seat);
            }
            founding.shared().joining.close();
        }
        let key = group.joining.key().successor(members);
        let fresh = Group::new(Arc::clone(&group.world), key.name().clone(), members.to_vec(), key.incarnation());
        fresh.shared().joining.set_founding(true);
        (fresh, Seat::default())
    }
}

impl Group {
    /// Makes a new epoch of the group, of the members that are left: those whose processes have not ended, and that have
    /// left neither the job nor the group in order. Its name is the same, its members are in the old order, its calls
    /// are numbered anew, and it takes this group's place: [`Communicator::group`](crate::Communicator::group) gives it from
    /// now on. This group's epoch ends when the first member calls, if it has not ended before; on handles of it nothing
    /// can be called any more, but this: it gives the successor again.
    ///
    /// All members that are left must call it, and it waits for them: nobody is left out for being slow or stopped.
    /// Either they all get the same group, or the call fails on all of them; it can be made again then. Whoever dies
    /// meanwhile is left out. Of `options` the name does nothing.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming those that have not called it, and on the others [`Error::GroupAborted`] with that cause;
    /// [`Error::GroupAborted`] too if a wait of a member was interrupted or it called [`abort`](Self::abort) meanwhile.
    /// [`Error::NotInGroup`]; [`Error::Closed`] if this process has destroyed the group; [`Error::InvalidArgument`] if another
    /// thread is in this call; [`Error::Resource`].
    pub fn shrink(&self, options: &CallOptions<'_>) -> Result<Group> {
        let shared = self.shared();
        let world = &shared.world;
        world.check_process()?;
        if shared.index.is_none() {
            return Err(shared.stranger(OP));
        }
        let mut memory = match shared.shrinking.try_lock() {
            Ok(memory) => memory,
            // What a panic leaves behind is a list of counts and handles, whole at any time.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(shared.shrinks_already()),
        };
        let closed = || Error::Closed { what: format!("{}: the group", shared.view.site(OP, None)) };
        if let Some(successor) = &memory.successor {
            return successor.upgrade().map(Group::of).ok_or_else(closed);
        }
        if !world.knows(self) {
            return Err(closed());
        }
        let shrink = Shrink {
            group: shared,
            options,
            begun: MonotonicClock.now(),
            limit: shared.limits(options.timeout).deadline,
            aborts: shared.aborts.load(Ordering::Acquire),
        };
        shared.end(&Cause::Shrunk { by: shared.view.rank });
        let successor = shrink.run(&mut memory)?;
        if !world.replace(self, &successor) {
            successor.shared().close();
            return Err(closed());
        }
        log::info!("{}: the group goes on with {:?}", shared.view.site(OP, None), successor.ranks());
        memory.successor = Some(Arc::downgrade(successor.shared()));
        Ok(successor)
    }
}

impl GroupShared {
    fn shrinks_already(&self) -> Error {
        Error::InvalidArgument(Box::new(InvalidArgument {
            site: Some(self.view.site(OP, None)),
            field: "group".into(),
            expected: "one thread at a time in shrink()".into(),
            got: "another thread of this process that is in it".into(),
        }))
    }

    /// How a member ended its part in the group, if it did.
    fn departure(&self, index: usize) -> Option<Ending> {
        let rank = self.view.ranks[index];
        if rank == self.view.rank {
            return None;
        }
        let fate = self.world.host().map(|host| host.fate(rank));
        if let Some(Fate::Gone(ending)) = fate {
            return Some(ending);
        }
        let Some(Joined { windows, .. }) = self.joining.get() else {
            // A first member whose process lives keeps the memory from the others only when it has destroyed the group.
            return (index == 0 && self.joining.is_withdrawn()).then_some(Ending::Left(0));
        };
        let left = |channel| windows.counter(channel, index, Counter::Left);
        let left = left(Channel::Unnamed).max(left(Channel::Named));
        left.checked_sub(1).map(Ending::Left)
    }
}

/// One call of [`Group::shrink`].
struct Shrink<'a> {
    /// The group whose epoch is over.
    group: &'a Arc<GroupShared>,
    options: &'a CallOptions<'a>,
    begun: Duration,
    limit: Option<Duration>,
    aborts: u32,
}

/// What may change while a founding is waited for.
#[derive(PartialEq, Eq)]
struct News {
    has_come: bool,
    arrived: usize,
    founding: Founding,
    departed: usize,
    is_unwanted: bool,
}

/// What a wait for a founding remembers.
#[derive(Default)]
struct Watch {
    stop: Option<Cause>,
    next_warning: Option<Duration>,
    refused_since: Option<Instant>,
}

impl Shrink<'_> {
    fn run(&self, memory: &mut Shrinking) -> Result<Group> {
        loop {
            // Each time around there is one less.
            let members = self.survivors();
            let (founding, mut seat) = memory.founding(self.group, &members);
            let joining = &founding.shared().joining;
            let founded = if members.len() == 1 { Ok(true) } else { self.found(founding.shared(), &mut seat) };
            match founded {
                Ok(true) => {
                    joining.set_founding(false);
                    founding.set_timeout(self.group.timeout());
                    return Ok(founding);
                }
                Ok(false) => joining.close(),
                Err(error) => {
                    if joining.failure().is_none() {
                        memory.failed = Some((founding, seat));
                    }
                    return Err(error);
                }
            }
        }
    }

    fn survivors(&self) -> Vec<Rank> {
        let ranks = self.group.view.ranks.iter().enumerate();
        ranks.filter(|(index, _)| self.group.departure(*index).is_none()).map(|(_, rank)| *rank).collect()
    }

    /// A member of the founding that is gone.
    fn gone(&self, fresh: &GroupShared) -> Option<(Rank, Ending)> {
        let old = &self.group.view.ranks;
        let departed = |(index, rank): (usize, &Rank)| {
            let ending = self.group.departure(index)?;
            fresh.view.ranks.contains(rank).then_some((*rank, ending))
        };
        old.iter().enumerate().find_map(departed)
    }

    /// Takes part in the founding of this group: whether it was founded, or a member is gone.
    fn found(&self, fresh: &Arc<GroupShared>, seat: &mut Seat) -> Result<bool> {
        let mut patience = Patience::new(&self.group.world, &fresh.view.ranks, self.options.interrupt);
        let mut watch = Watch::default();
        loop {
            // Before the look: what comes after it is news.
            let (seen, before) = (self.news(fresh, *seat), *seat);
            let joined = fresh.joining.poll(fresh);
            let facts = Facts { size: fresh.view.ranks.len(), gone: self.gone(fresh), stop: watch.stop.clone() };
            match look(joined.map(|joined| &joined.windows), seat, &facts) {
                Step::Founded => return Ok(true),
                Step::Fewer => return Ok(false),
                Step::Failed(cause) => {
                    if joined.is_none() {
                        // Nobody knows yet but the caller.
                        seat.known = 1;
                        fresh.joining.tell(fresh, &cause);
                    }
                    return Err(self.failure(cause, self.missing(fresh, joined, before)));
                }
                Step::Wait => self.check_memory(fresh, &mut watch)?,
            }
            let pause = patience.pause(&|| self.news(fresh, *seat) != seen);
            if pause != Pause::Spun && watch.stop.is_none() {
                watch.stop = self.reason_to_stop(fresh, *seat, pause, &mut watch);
            }
        }
    }

    fn news(&self, fresh: &GroupShared, seat: Seat) -> News {
        let windows = fresh.joining.get().map(|joined| &joined.windows);
        let arrived = |windows: &GroupWindows| {
            let number = seat.number.unwrap_or_default();
            (0..fresh.view.ranks.len()).filter(|index| windows.has_arrived(*index, number)).count()
        };
        News {
            has_come: fresh.joining.has_come(),
            arrived: windows.map_or(0, arrived),
            founding: windows.map_or(Founding::Open(0), GroupWindows::founding),
            departed: (0..self.group.view.ranks.len()).filter_map(|index| self.group.departure(index)).count(),
            is_unwanted: self.is_unwanted(),
        }
    }

    /// Whether another thread of this process has ended what this call is for.
    fn is_unwanted(&self) -> bool {
        self.group.world.is_shut_down() || self.group.aborts.load(Ordering::Acquire) != self.aborts
    }

    fn reason_to_stop(&self, fresh: &GroupShared, seat: Seat, pause: Pause, watch: &mut Watch) -> Option<Cause> {
        let by = self.group.view.rank;
        if pause == Pause::Interrupted {
            return Some(Cause::Interrupted { by });
        }
        if self.is_unwanted() {
            return Some(Cause::Requested { by });
        }
        let elapsed = self.elapsed();
        let missing = self.missing(fresh, fresh.joining.get(), seat);
        if self.limit.is_some_and(|limit| elapsed >= limit) {
            let peer = missing.first().copied().unwrap_or(by);
            return Some(Cause::Deadline { by, peer });
        }
        let due = *watch.next_warning.get_or_insert_with(|| self.group.limits(self.options.timeout).first_warning);
        if elapsed >= due {
            watch.next_warning = Some(elapsed.max(due) * 2);
            let (site, since) = (self.site(), elapsed.as_secs_f64());
            let names: Vec<_> = missing.iter().map(Rank::to_string).collect();
            log::warn!("{site}: waiting since {since:.1} s for {} to {AWAITED}", names.join(", "));
        }
        None
    }

    /// The members that are waited for, as far as this one can see.
    fn missing(&self, fresh: &GroupShared, joined: Option<&Joined>, seat: Seat) -> Vec<Rank> {
        let ranks = fresh.view.ranks.iter().copied().enumerate().filter(|(_, rank)| *rank != self.group.view.rank);
        match joined {
            Some(Joined { windows, .. }) => {
                let number = seat.number.unwrap_or_default();
                let late = ranks.clone().filter(|(index, _)| !windows.has_arrived(*index, number));
                let late: Vec<Rank> = late.map(|(_, rank)| rank).collect();
                // All are there, and one of them said that another is gone, of which nothing is known here.
                if late.is_empty() { ranks.map(|(_, rank)| rank).collect() } else { late }
            }
            // Who else has come is to be read in the memory that the first one makes.
            None => vec![fresh.view.world(0)],
        }
    }

    /// Fails if the memory of the founding cannot come, unless a death may still be the reason.
    fn check_memory(&self, fresh: &GroupShared, watch: &mut Watch) -> Result<()> {
        let Some(error) = fresh.joining.failure() else { return Ok(()) };
        if !fresh.joining.is_withdrawn() {
            return Err(error);
        }
        if watch.refused_since.get_or_insert_with(Instant::now).elapsed() < SETTLING {
            return Ok(());
        }
        Err(self.aborted(Cause::Requested { by: fresh.view.world(0) }))
    }

    /// The error of a try that failed for this reason.
    fn failure(&self, cause: Cause, missing: Vec<Rank>) -> Error {
        let by_this = |by: Rank| by == self.group.view.rank;
        match cause {
            Cause::Deadline { by, .. } if by_this(by) => Error::Deadline(Box::new(Deadline {
                site: self.site(),
                peers: missing,
                awaited: AWAITED.into(),
                limit: self.limit.unwrap_or_default(),
                elapsed: self.elapsed(),
                detail: String::new(),
            })),
            Cause::Requested { by } if by_this(by) && self.group.world.is_shut_down() => {
                Error::Closed { what: format!("{}: the communicator", self.site()) }
            }
            cause => self.aborted(cause),
        }
    }

    fn aborted(&self, cause: Cause) -> Error {
        Error::GroupAborted(Box::new(GroupAborted { site: self.site(), cause, elapsed: self.elapsed() }))
    }

    fn site(&self) -> CallSite {
        self.group.view.site(OP, None)
    }

    fn elapsed(&self) -> Duration {
        MonotonicClock.now().saturating_sub(self.begun)
    }
}
