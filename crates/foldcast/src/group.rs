//! A group of ranks and its calls.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::ThreadId;

use engine::{
    Choice, Claims, Completion, Ground, Life, Limits, NamedLane, OwnedBuffers, Preparer, Task, Terms, UnnamedLane,
    View, Work,
};
use shm::{GroupPeers, GroupWindows, MonotonicClock};
use types::error::Cause;
use types::transport::{Channel, Counter, Geometry, Windows};
use types::{Buffers, DataType, Error, GroupName, Rank, Reduction, Result};

use crate::attended::Prospects;
use crate::config::Timeout;
use crate::join::{Joined, Joining};
use crate::lanes::Post;
use crate::shrink::Shrinking;
use crate::wait::Interrupt;
use crate::world::World;

/// What a call can be given beside its data.
#[derive(Clone, Copy)]
pub struct CallOptions<'a> {
    /// Matches the call by name instead of by number: the ranks may then submit their calls in different orders. Uses of a
    /// name are counted for the life of the group: let names recur, with no step number in them.
    pub name: Option<&'a str>,
    /// How long the call may take.
    pub timeout: Timeout,
    /// Asked when a signal ended a sleep, and every 20 ms of waiting: `true` ends the wait, and with it the epoch.
    pub interrupt: Option<Interrupt<'a>>,
    /// For the allreduce of a list: a digest of something more that the ranks must agree on, such as what each buffer is
    /// called; 0 for nothing.
    pub agreed: u64,
    /// For the named allreduce of a list: the names under which another rank may make one call for each of its buffers.
    pub claims: Option<&'a Arc<Claims>>,
    /// For a submitted call: whether its completion only takes note of the end, waits for nothing and submits nothing. Such a
    /// one may run on any thread of the process that makes calls go on, at once.
    pub light_completion: bool,
    /// For a submitted call: whether the submitting thread looks after it for a moment, some 40 us at most, and runs its
    /// completion if it has ended by then: before the submission returns. That saves switches to the progress thread and
    /// back. It is done for small calls only, while nothing else is under way, and rarely where the last ones took longer.
    pub attended: bool,
}

impl CallOptions<'_> {
    /// An unnamed call, with the group's timeout.
    pub const DEFAULT: CallOptions<'static> = CallOptions {
        name: None,
        timeout: Timeout::Default,
        interrupt: None,
        agreed: 0,
        claims: None,
        light_completion: false,
        attended: false,
    };
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        CallOptions::DEFAULT
    }
}

impl core::fmt::Debug for CallOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CallOptions").field("name", &self.name).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A group of ranks. Clones are handles of the same group.
#[derive(Clone)]
pub struct Group {
    shared: Arc<GroupShared>,
}

impl core::fmt::Debug for Group {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group").field("name", self.name()).field("ranks", &self.ranks()).finish_non_exhaustive()
    }
}

/// State of the turn to make unnamed calls: 0 nobody, odd: a thread is inside a call, else twice the number of
/// submitted calls that have not ended.
pub(crate) type Turn = AtomicU32;
pub(crate) const INSIDE: u32 = 1;
pub(crate) const SUBMITTED: u32 = 2;

/// A group as all its handles, and the progress thread, share it.
pub(crate) struct GroupShared {
    /// For the progress thread's list.
    pub(crate) me: Weak<GroupShared>,
    pub(crate) world: Arc<World>,
    pub(crate) view: View,
    /// This process's index; `None` if it is not a member.
    pub(crate) index: Option<usize>,
    pub(crate) life: Life,
    pub(crate) joining: Joining,
    pub(crate) turn: Turn,
    /// The thread whose unnamed calls are submitted; it alone may make more until they have ended.
    pub(crate) owner: Mutex<Option<ThreadId>>,
    /// Calls submitted and not ended.
    pub(crate) submitted: AtomicUsize,
    /// Those of them in which ranks tell each other what their lists hold, after a mismatch: one that a rank never joins ends
    /// with the group.
    pub(crate) exchanges: AtomicUsize,
    pub(crate) inbox: Mutex<VecDeque<Task>>,
    /// Plans for submissions, apart from the lanes, whose locks may be held for as long as a fold takes.
    pub(crate) submissions: Mutex<Preparer>,
    pub(crate) unnamed: Mutex<UnnamedLane>,
    pub(crate) named: Mutex<NamedLane>,
    /// Whether submitted calls are worth looking after.
    pub(crate) prospects: Prospects,
    /// Who is to lead submitted calls on several threads: named ones, unnamed ones.
    pub(crate) posts: [Post; 2],
    /// The timeout of calls that are given none, encoded.
    timeout: AtomicU64,
    /// How often this process has aborted the group.
    pub(crate) aborts: AtomicU32,
    pub(crate) shrinking: Mutex<Shrinking>,
}

impl core::fmt::Debug for GroupShared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GroupShared").field("view", &self.view).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A completion or an assertion that panicked in another thread must not take the whole group down with it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, if nobody has it now.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Group {
    pub(crate) fn new(world: Arc<World>, name: GroupName, ranks: Vec<Rank>, incarnation: u64) -> Group {
        let index = ranks.iter().position(|rank| *rank == world.rank());
        // Until the first member's are there.
        let terms = Arc::new(Terms { geometry: Geometry::of(ranks.len()), choice: Choice::default(), lanes: 1 });
        let settings = world.settings();
        let preparer = || Preparer::new(Arc::clone(&terms), index.unwrap_or(0), incarnation, settings);
        let joining = Joining::new(name.clone(), ranks.clone(), incarnation);
        let view = View { rank: world.rank(), ranks, group: name };
        Group {
            shared: Arc::new_cyclic(|me| GroupShared {
                me: Weak::clone(me),
                world,
                view,
                index,
                life: Life::default(),
                joining,
                turn: Turn::new(0),
                owner: Mutex::default(),
                submitted: AtomicUsize::new(0),
                exchanges: AtomicUsize::new(0),
                inbox: Mutex::default(),
                submissions: Mutex::new(preparer()),
                unnamed: Mutex::new(UnnamedLane::new(preparer())),
                named: Mutex::new(NamedLane::new(preparer())),
                prospects: Prospects::default(),
                posts: Default::default(),
                timeout: AtomicU64::new(Timeout::Default.encode()),
                aborts: AtomicU32::new(0),
                shrinking: Mutex::default(),
            }),
        }
    }

    pub(crate) fn of(shared: Arc<GroupShared>) -> Group {
        Group { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<GroupShared> {
        &self.shared
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &GroupName {
        &self.shared.view.group
    }

    /// The members: ranks of the world, ascending.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.shared.view.ranks
    }

    /// Number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ranks().len()
    }

    /// This process's index among the members; `None` if it is not one.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.shared.index
    }

    /// How long a call of this process on this group may take that is given no timeout itself.
    #[must_use]
    pub fn timeout(&self) -> Timeout {
        self.shared.timeout()
    }

    /// Sets [`timeout`](Self::timeout), for calls that begin from now on. Nobody else is asked: each member has its own.
    pub fn set_timeout(&self, timeout: Timeout) {
        self.shared.timeout.store(timeout.encode(), Ordering::Relaxed);
    }

    /// Why the group's epoch ended, as far as this process knows; `None` while it lives, and where this process itself has
    /// closed it in order. Never waits.
    #[must_use]
    pub fn ended(&self) -> Option<Cause> {
        let shared = &self.shared;
        if shared.world.check_process().is_ok()
            && let Some(cause) = shared.joining.get().and_then(|joined| joined.windows.aborted())
        {
            shared.life.end(&cause);
        }
        shared.life.cause()
    }

    /// What decides between algorithms, as the first member handed it out; `None` until the members have met, which they
    /// do in the first call.
    #[must_use]
    pub fn choice(&self) -> Option<&Choice> {
        self.shared.joining.get().map(|joined| &joined.terms.choice)
    }

    /// Reduces over all members: every member's output becomes the canonical tree of all inputs, bit for bit the same
    /// on all of them. Blocks until the result is there. The work is done by the calling thread.
    ///
    /// # Errors
    /// Every [`Error`]. After an error the output's content is undefined; the input is never written, unless it is the
    /// output.
    #[inline]
    pub fn all_reduce(
        &self,
        dtype: DataType,
        reduction: Reduction,
        buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let work = Work::all_reduce(dtype, reduction, buffers.len());
        self.shared.check(&work, &buffers)?;
        self.shared.run(&work, buffers, options)
    }

    /// Submits [`all_reduce`](Self::all_reduce); never blocks, but for the moment that [`CallOptions::attended`] asks for.
    /// `done` runs exactly once, on any thread, with no lock held, and gets the buffers back; it may submit again.
    ///
    /// # Errors
    /// What can be refused at once, such as a bad argument: nothing was submitted then and `done` is dropped.
    pub fn all_reduce_async(
        &self,
        dtype: DataType,
        reduction: Reduction,
        mut buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        let work = Work::all_reduce(dtype, reduction, buffers.buffers().len());
        self.shared.check(&work, &buffers.buffers())?;
        GroupShared::submit(&self.shared, work, buffers, options, done)
    }

    /// Makes submitted calls go on, on the calling thread, until `is_over`: the way to wait for one. It is asked again after
    /// whatever happens, and should look at a flag that the call's completion sets. If that is a
    /// [light one](CallOptions::light_completion), no switch to another thread is needed. `false` if `limit` has passed before, or
    /// `interrupt`, asked as in a [call](CallOptions::interrupt), wanted it: the calls go on.
    pub fn progress_until(
        &self,
        is_over: &dyn Fn() -> bool,
        limit: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> bool {
        self.shared.world.progress_until(self.ranks(), is_over, limit, interrupt)
    }

    /// Returns when every member has entered.
    ///
    /// # Errors
    /// Every [`Error`].
    pub fn barrier(&self, options: &CallOptions<'_>) -> Result<()> {
        let work = Work::barrier();
        self.shared.check(&work, &Buffers::InPlace(&mut []))?;
        self.shared.run(&work, Buffers::InPlace(&mut []), options)
    }

    /// Ends the group's epoch on all members: pending and later calls fail with [`Error::GroupAborted`]. Returns at
    /// once. A [`shrink`](Self::shrink) of the group in which this process is fails too, on all members.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Closes this process's part of the group: its later calls fail with [`Error::Closed`]. Members whose calls still
    /// need something from it are told at once. The name can be used again. Of calls that other threads begin at the same
    /// time each ends, with a result or with that error.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the group of all ranks, and while calls of this process on it have not ended, unless
    /// its epoch is over: nothing has changed then.
    pub fn destroy(&self) -> Result<()> {
        let (rank, name) = (self.shared.view.rank, self.name());
        if name.is_world() {
            return Err(Error::invalid("group", "a group that was made", format!("{rank}: the group of all ranks")));
        }
        let in_flight = if self.shared.life.is_live() { self.shared.in_flight() } else { 0 };
        if in_flight > 0 {
            let expected =
                "a group whose calls have ended: wait for them, or abort() the group, before it is destroyed";
            let calls = if in_flight == 1 { "call" } else { "calls" };
            return Err(Error::invalid(
                "group",
                expected,
                format!("{rank}: '{name}' with {in_flight} {calls} in flight"),
            ));
        }
        self.shared.world.forget(self);
        self.shared.leave();
        Ok(())
    }
}

impl GroupShared {
    pub(crate) fn limits(&self, timeout: Timeout) -> Limits {
        let config = self.world.config();
        let default = self.timeout().limit(config.timeout);
        Limits { deadline: timeout.limit(default), first_warning: config.warn_after }
    }

    #[inline]
    pub(crate) fn timeout(&self) -> Timeout {
        // Relaxed: a number that stands for itself.
        Timeout::decode(self.timeout.load(Ordering::Relaxed))
    }

    pub(crate) fn ground<'a>(&'a self, joined: &'a Joined) -> Ground<'a, GroupWindows, GroupPeers> {
        let Joined { windows, peers, .. } = joined;
        Ground { windows, peers, life: &self.life, view: &self.view, clock: &MonotonicClock }
    }

    /// Ends the epoch in this process and on all members; those whose memory this process has not joined yet are told as
    /// soon as it has. If another rank was first, its cause stays, for this rank's calls too.
    pub(crate) fn end(&self, cause: &Cause) {
        let joined = self.joining.get().filter(|_| self.world.is_home());
        let first = joined.and_then(|joined| {
            joined.windows.abort(cause);
            joined.windows.aborted()
        });
        self.life.end(first.as_ref().unwrap_or(cause));
        if joined.is_none() && self.meets() {
            self.joining.tell(self, cause);
        }
        self.world.ring_own();
    }

    /// Whether it has memory that its members share, this process among them.
    fn meets(&self) -> bool {
        self.index.is_some() && self.view.ranks.len() > 1
    }

    pub(crate) fn abort(&self) {
        self.aborts.fetch_add(1, Ordering::AcqRel);
        self.end(&Cause::Requested { by: self.view.rank });
    }

    /// Closes this process's part of a group that goes on without it.
    fn leave(&self) {
        if self.joining.get().is_some() || !self.meets() {
            return self.close();
        }
        // Members that call would wait for this one for ever, whether it has called or not: they must be told.
        self.life.close();
        if self.index == Some(0) && !self.has_begun() {
            self.joining.refuse(self);
        } else {
            self.joining.leave(self, &Cause::Requested { by: self.view.rank });
        }
        self.world.ring_own();
    }

    /// Calls of this process that have begun and not ended, but for those that the user knows nothing of.
    fn in_flight(&self) -> usize {
        let blocking = usize::from(self.turn.load(Ordering::Acquire) & INSIDE != 0) + lock(&self.named).borrowed();
        let submitted = self.submitted.load(Ordering::Acquire).saturating_sub(self.exchanges.load(Ordering::Acquire));
        submitted + blocking
    }

    /// Whether a call was begun that has not met the other members.
    fn has_begun(&self) -> bool {
        let waits = self.submitted.load(Ordering::Acquire) > 0 || self.turn.load(Ordering::Acquire) != 0;
        self.meets() && (waits || self.joining.has_asked())
    }

    /// Closes this process's part in order: members that still need it learn that it left.
    pub(crate) fn close(&self) {
        self.life.close();
        self.posts.iter().for_each(Post::dismiss);
        if let Some(joined) = self.joining.get() {
            let calls = self.calls();
            for channel in [Channel::Unnamed, Channel::Named] {
                joined.windows.publish(channel, Counter::Left, calls + 1);
            }
            joined.windows.wake();
        }
        self.joining.close();
        self.world.ring_own();
    }

    /// Number of unnamed calls begun; 0 while one is running.
    pub(crate) fn calls(&self) -> u64 {
        self.unnamed.try_lock().map_or(0, |lane| lane.state.calls())
    }
}
