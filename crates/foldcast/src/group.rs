//! A group of ranks and its calls.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use engine::named::{Borrowed, Progress};
use engine::unnamed::Finished;
use engine::{
    Completion, Execution, Ground, Life, Limits, NamedLane, OwnedBuffers, Poll, Preparer, Task, UnnamedLane, View,
};
use shm::{GroupPeers, GroupWindows, MonotonicClock};
use types::error::{Cause, Deadline, InvalidArgument, NotInGroup};
use types::transport::{Channel, Clock, Counter, Geometry, Windows};
use types::{Buffers, CallSite, DataType, Error, GroupName, MAX_INPUT, OpKind, Rank, Reduction, Result, Tag, digest};

use crate::config::Timeout;
use crate::join::{Joined, Joining};
use crate::wait::{Interrupt, Patience, Pause};
use crate::world::World;

/// What a call can be given beside its data.
#[derive(Clone, Copy, Default)]
pub struct CallOptions<'a> {
    /// Matches the call by name instead of by number: the ranks may then submit their calls in different orders.
    pub name: Option<&'a str>,
    /// How long the call may take.
    pub timeout: Timeout,
    /// Asked when a signal ended a sleep, and every 20 ms of waiting: `true` ends the wait, and with it the epoch.
    pub interrupt: Option<Interrupt<'a>>,
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
type Turn = AtomicU32;
const INSIDE: u32 = 1;
const SUBMITTED: u32 = 2;

/// A group as all its handles, and the progress thread, share it.
pub(crate) struct GroupShared {
    /// For the progress thread's list.
    me: Weak<GroupShared>,
    pub(crate) world: Arc<World>,
    pub(crate) view: View,
    /// This process's index; `None` if it is not a member.
    index: Option<usize>,
    pub(crate) life: Life,
    pub(crate) joining: Joining,
    turn: Turn,
    /// The thread whose unnamed calls are submitted; it alone may make more until they have ended.
    owner: Mutex<Option<ThreadId>>,
    /// Calls submitted and not ended.
    submitted: AtomicUsize,
    inbox: Mutex<VecDeque<Task>>,
    /// Plans for submissions, apart from the lanes, whose locks may be held for as long as a fold takes.
    submissions: Mutex<Preparer>,
    unnamed: Mutex<UnnamedLane>,
    named: Mutex<NamedLane>,
}

impl core::fmt::Debug for GroupShared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GroupShared").field("view", &self.view).finish_non_exhaustive()
    }
}

/// Digest of what all ranks of a group must have in common beside the call: the version that writes the memory.
fn settings() -> u64 {
    digest(1, env!("CARGO_PKG_VERSION").as_bytes())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A completion or an assertion that panicked in another thread must not take the whole group down with it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    pub(crate) fn new(world: Arc<World>, name: GroupName, ranks: Vec<Rank>, incarnation: u64) -> Group {
        let index = ranks.iter().position(|rank| *rank == world.rank());
        let geometry = Geometry::of(ranks.len());
        let preparer = || Preparer::new(geometry, index.unwrap_or(0), incarnation, settings());
        let joining = Joining::new(name.clone(), ranks.clone(), incarnation, settings());
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
                inbox: Mutex::default(),
                submissions: Mutex::new(preparer()),
                unnamed: Mutex::new(UnnamedLane::new(preparer())),
                named: Mutex::new(NamedLane::new(preparer())),
            }),
        }
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
        self.shared.check(OpKind::AllReduce, dtype, &buffers)?;
        self.shared.run(OpKind::AllReduce, dtype, reduction, buffers, options)
    }

    /// Submits [`all_reduce`](Self::all_reduce); never blocks. `done` runs exactly once, on any thread, with no lock
    /// held, and gets the buffers back; it may submit again.
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
        self.shared.check(OpKind::AllReduce, dtype, &buffers.buffers())?;
        GroupShared::submit(&self.shared, (OpKind::AllReduce, dtype, reduction), buffers, options, done)
    }

    /// Returns when every member has entered.
    ///
    /// # Errors
    /// Every [`Error`].
    pub fn barrier(&self, options: &CallOptions<'_>) -> Result<()> {
        let (dtype, reduction) = (DataType::Int8, Reduction::Sum);
        self.shared.check(OpKind::Barrier, dtype, &Buffers::InPlace(&mut []))?;
        self.shared.run(OpKind::Barrier, dtype, reduction, Buffers::InPlace(&mut []), options)
    }

    /// Ends the group's epoch on all members: pending and later calls fail with [`Error::GroupAborted`]. Returns at
    /// once.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Closes this process's part of the group: its pending and later calls fail with [`Error::Closed`]. The name can
    /// be used again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the group of all ranks.
    pub fn destroy(&self) -> Result<()> {
        if self.name().is_world() {
            return Err(Error::invalid("group", "a group that was made", "the group of all ranks"));
        }
        self.shared.world.forget(self);
        self.shared.close();
        Ok(())
    }
}

impl GroupShared {
    /// What can be known to be wrong before anything is done.
    #[inline]
    fn check(&self, kind: OpKind, dtype: DataType, buffers: &Buffers<'_>) -> Result<()> {
        self.world.check_process()?;
        let bytes = buffers.len();
        let same = match buffers {
            Buffers::Separate { input, output } => input.len() == output.len(),
            Buffers::InPlace(_) => true,
        };
        if self.index.is_none() || !bytes.is_multiple_of(dtype.size()) || !same || bytes > MAX_BYTES {
            return Err(self.refusal(kind, dtype, buffers));
        }
        Ok(())
    }

    #[cold]
    fn refusal(&self, kind: OpKind, dtype: DataType, buffers: &Buffers<'_>) -> Error {
        let invalid = |field: &str, expected: String, got: String| {
            let site = Some(self.view.site(kind.name(), None));
            Error::InvalidArgument(Box::new(InvalidArgument { site, field: field.into(), expected, got }))
        };
        let bytes = buffers.len();
        if self.index.is_none() {
            return Error::NotInGroup(Box::new(NotInGroup {
                rank: self.view.rank,
                op: kind.name(),
                group: self.view.group.clone(),
                members: Some(self.view.ranks.clone()),
                known: self.world.group_names(),
            }));
        }
        if bytes > MAX_BYTES {
            let got = format!("{bytes} bytes");
            return invalid("input", format!("at most {MAX_INPUT} ({MAX_BYTES} bytes)"), got);
        }
        if let Buffers::Separate { input, output } = buffers
            && input.len() != output.len()
        {
            return invalid("output", format!("{} bytes as the input", input.len()), format!("{} bytes", output.len()));
        }
        invalid("input", format!("a multiple of {} bytes, the size of {dtype}", dtype.size()), format!("{bytes} bytes"))
    }

    fn limits(&self, timeout: Timeout) -> Limits {
        let config = self.world.config();
        Limits { deadline: timeout.limit(config.timeout), first_warning: config.warn_after }
    }

    fn ground<'a>(&'a self, joined: &'a Joined) -> Ground<'a, GroupWindows, GroupPeers> {
        let Joined { windows, peers } = joined;
        Ground { windows, peers, life: &self.life, view: &self.view, clock: &MonotonicClock }
    }

    /// Runs a call on the calling thread.
    #[inline]
    fn run(
        &self,
        kind: OpKind,
        dtype: DataType,
        reduction: Reduction,
        mut buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        if self.view.ranks.len() == 1 {
            return self.run_alone(kind, dtype, reduction, &mut buffers);
        }
        match options.name {
            None => self.run_unnamed((kind, dtype, reduction), &mut buffers, options),
            Some(name) => self.run_named((kind, dtype, reduction), name, buffers, options),
        }
    }

    fn run_alone(&self, kind: OpKind, dtype: DataType, reduction: Reduction, buffers: &mut Buffers<'_>) -> Result<()> {
        if !self.life.is_live() {
            return Err(self.life.error(self.view.site(kind.name(), None), Duration::ZERO, false));
        }
        if !buffers.is_empty() {
            engine::alone(dtype, reduction, buffers);
        }
        Ok(())
    }

    #[inline]
    fn run_unnamed(
        &self,
        (kind, dtype, reduction): Arguments,
        buffers: &mut Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let (_inside, started) = self.enter(kind, options)?;
        let mut lane = lock(&self.unnamed);
        let lane = &mut *lane;
        let mut call = lane.preparer.call(kind, dtype, reduction, buffers.len(), self.limits(options.timeout));
        if let Some(started) = started {
            call = call.started(started);
        }
        let joined = match self.joining.get() {
            Some(joined) => joined,
            None => self.join(&mut call, options)?,
        };
        let ground = self.ground(joined);
        if !ground.is_live() {
            let tag = Tag::Unnamed(lane.state.calls() + 1);
            return Err(self.life.error(self.view.site(kind.name(), Some(tag)), Duration::ZERO, false));
        }
        let mut execution = Execution::begin(&mut lane.state);
        match execution.poll(ground, &mut lane.state, &mut call, buffers, false) {
            Poll::Ready(result) => return result,
            Poll::Pending => {}
        }
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        loop {
            let pause = patience.pause(&|| execution.can_go_on(ground, &lane.state, &call));
            let look = pause != Pause::Spun;
            match execution.poll(ground, &mut lane.state, &mut call, buffers, look) {
                Poll::Ready(result) => return result,
                Poll::Pending if look => {
                    let site = execution.site_of(&self.view, &call);
                    self.still_wanted(pause, &mut call, site)?;
                }
                Poll::Pending => {}
            }
        }
    }

    /// Fails a wait that was interrupted, or whose group was closed or aborted by another thread of this process.
    fn still_wanted(&self, pause: Pause, call: &mut engine::Call, site: CallSite) -> Result<()> {
        if pause == Pause::Interrupted {
            self.end(&Cause::Interrupted { by: self.view.rank });
        }
        if self.life.is_live() {
            return Ok(());
        }
        Err(self.life.error(site, call.elapsed(MonotonicClock.now()), true))
    }

    /// Takes the turn to make an unnamed call, after those that were submitted before. If that took a wait, says since
    /// when.
    #[inline]
    fn enter(&self, kind: OpKind, options: &CallOptions<'_>) -> Result<(Inside<'_>, Option<Duration>)> {
        match self.turn.compare_exchange(0, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok((Inside(&self.turn), None)),
            Err(_) => self.enter_behind(kind, options),
        }
    }

    #[cold]
    fn enter_behind(&self, kind: OpKind, options: &CallOptions<'_>) -> Result<(Inside<'_>, Option<Duration>)> {
        const AWAITED: &str = "finish the calls before this one";
        let started = MonotonicClock.now();
        let limit = self.limits(options.timeout).deadline;
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        loop {
            match self.turn.compare_exchange(0, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok((Inside(&self.turn), Some(started))),
                Err(state) if state & INSIDE != 0 => return Err(self.two_threads(kind)),
                Err(_) => {}
            }
            if *lock(&self.owner) != Some(std::thread::current().id()) && self.turn.load(Ordering::Relaxed) != 0 {
                return Err(self.two_threads(kind));
            }
            let pause = patience.pause(&|| self.turn.load(Ordering::Relaxed) == 0);
            if pause == Pause::Spun {
                continue;
            }
            let (site, elapsed) = (self.view.site(kind.name(), None), MonotonicClock.now().saturating_sub(started));
            if pause == Pause::Interrupted {
                self.end(&Cause::Interrupted { by: self.view.rank });
            }
            if !self.life.is_live() {
                return Err(self.life.error(site, elapsed, true));
            }
            if let Some(limit) = limit.filter(|limit| elapsed >= *limit) {
                let peers = self.others();
                let peer = peers.first().copied().unwrap_or(self.view.rank);
                self.end(&Cause::Deadline { by: self.view.rank, peer });
                return Err(Error::Deadline(Box::new(Deadline {
                    site,
                    peers,
                    awaited: AWAITED.into(),
                    limit,
                    elapsed,
                })));
            }
        }
    }

    /// The other members.
    fn others(&self) -> Vec<Rank> {
        self.view.ranks.iter().copied().filter(|rank| *rank != self.view.rank).collect()
    }

    fn two_threads(&self, kind: OpKind) -> Error {
        Error::InvalidArgument(Box::new(InvalidArgument {
            site: Some(self.view.site(kind.name(), None)),
            field: "name".into(),
            expected: "a name for each call, so that calls of several threads are matched by name and not by number"
                .into(),
            got: "an unnamed call while an unnamed call of another thread on this group has not ended".into(),
        }))
    }

    /// Waits for the group's memory.
    #[cold]
    fn join(&self, call: &mut engine::Call, options: &CallOptions<'_>) -> Result<&Joined> {
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        let (mut pause, mut look) = (Pause::Spun, false);
        loop {
            if let Some(joined) = self.joining.poll(self) {
                return Ok(joined);
            }
            if look {
                self.joining.look(self, call)?;
                let site = self.view.site(call.fingerprint().kind.name(), None);
                self.still_wanted(pause, call, site)?;
            }
            pause = patience.pause(&|| self.joining.can_go_on(self));
            look = pause != Pause::Spun;
        }
    }

    fn run_named(
        &self,
        (kind, dtype, reduction): Arguments,
        name: &str,
        buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let limits = self.limits(options.timeout);
        let (mut call, identity) = {
            let mut lane = lock(&self.named);
            // Calls of the same name keep the order in which this process made them.
            self.empty_inbox(&mut lane, &mut None);
            let call = lane.preparer.call(kind, dtype, reduction, buffers.len(), limits).named(name);
            let identity = lane.enter(&call);
            (call, identity)
        };
        let entered = self.run_entered(identity, &mut call, buffers, options);
        if entered.is_err() {
            lock(&self.named).forget(identity);
        }
        entered
    }

    fn run_entered(
        &self,
        identity: u128,
        call: &mut engine::Call,
        mut buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let joined = match self.joining.get() {
            Some(joined) => joined,
            None => self.join(call, options)?,
        };
        let ground = self.ground(joined);
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        let mut look = false;
        loop {
            let own = Borrowed { identity, call: &mut *call, buffers: buffers.reborrow() };
            let progress = lock(&self.named).poll(ground, Some(own), look);
            let done = progress.borrowed;
            self.conclude(progress.moved, progress.finished, 0);
            if let Some(result) = done {
                return result;
            }
            let pause = patience.pause(&|| lock(&self.named).can_go_on(ground, identity, call));
            look = pause != Pause::Spun;
            if pause == Pause::Interrupted {
                self.end(&Cause::Interrupted { by: self.view.rank });
            }
        }
    }

    /// Hands a call to the progress thread.
    fn submit(
        shared: &Arc<GroupShared>,
        (kind, dtype, reduction): Arguments,
        mut buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        if shared.view.ranks.len() == 1 {
            let result = shared.run_alone(kind, dtype, reduction, &mut buffers.buffers());
            done(result, buffers);
            return Ok(());
        }
        if !shared.life.is_live() {
            let tag = options.name.map(|name| Tag::Named(name.into()));
            return Err(shared.life.error(shared.view.site(kind.name(), tag), Duration::ZERO, false));
        }
        shared.world.ensure_progress_thread()?;
        let bytes = buffers.buffers().len();
        let limits = shared.limits(options.timeout);
        let call = lock(&shared.submissions).call(kind, dtype, reduction, bytes, limits).started(MonotonicClock.now());
        let call = match options.name {
            Some(name) => call.named(name),
            None => call,
        };
        let task = Task { call, buffers, done };
        match options.name {
            Some(_) => shared.push(task),
            None => shared.push_unnamed(kind, task)?,
        }
        shared.world.activate(shared);
        if shared.world.is_shut_down() {
            // The progress thread may have gone already: end the call here.
            shared.progress(true);
            shared.world.run_completions();
        }
        Ok(())
    }

    fn push(&self, task: Task) {
        // Counted first: a group with calls counted stays on the progress thread's list.
        self.submitted.fetch_add(1, Ordering::AcqRel);
        lock(&self.inbox).push_back(task);
    }

    fn push_unnamed(&self, kind: OpKind, task: Task) -> Result<()> {
        let mut owner = lock(&self.owner);
        let me = Some(std::thread::current().id());
        let taken = self.turn.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            (state == 0 || (state & INSIDE == 0 && *owner == me)).then_some(state + SUBMITTED)
        });
        if taken.is_err() {
            return Err(self.two_threads(kind));
        }
        *owner = me;
        self.push(task);
        Ok(())
    }

    /// Puts the group on the progress thread's list, for as long as [`needs_progress`](Self::needs_progress).
    pub(crate) fn activate(&self) {
        if let Some(me) = self.me.upgrade() {
            self.world.activate(&me);
        }
    }

    /// Whether calls are submitted that have not ended, or an ending that the members must still be told.
    pub(crate) fn needs_progress(&self) -> bool {
        self.submitted.load(Ordering::Acquire) > 0 || self.joining.has_something_to_say()
    }

    fn empty_inbox(&self, named: &mut NamedLane, unnamed: &mut Option<MutexGuard<'_, UnnamedLane>>) {
        let mut inbox = lock(&self.inbox);
        let mut kept = VecDeque::new();
        for task in inbox.drain(..) {
            match (task.call.is_named(), &mut *unnamed) {
                (true, _) => named.submit(task),
                (false, Some(lane)) => lane.submit(task),
                (false, None) => kept.push_back(task),
            }
        }
        *inbox = kept;
    }

    /// One round of the progress thread; returns whether anything moved.
    pub(crate) fn progress(&self, look: bool) -> bool {
        let joined = self.joining.poll(self);
        let mut progress = Progress::default();
        let mut ended_unnamed = Finished::new();
        {
            let mut named = lock(&self.named);
            let mut unnamed = (self.turn.load(Ordering::Acquire) >= SUBMITTED).then(|| lock(&self.unnamed));
            self.empty_inbox(&mut named, &mut unnamed);
            match joined {
                Some(joined) => {
                    let ground = self.ground(joined);
                    progress = named.poll(ground, None, look);
                    if let Some(lane) = &mut unnamed {
                        ended_unnamed = lane.poll(ground, look);
                    }
                }
                None => {
                    if look && self.life.is_live() {
                        let mut judge = |call: &mut engine::Call| self.joining.look(self, call).err();
                        progress.finished.extend(named.fail_one(&mut judge));
                        ended_unnamed.extend(unnamed.as_mut().and_then(|lane| lane.fail_one(&mut judge)));
                    }
                    if !self.life.is_live() {
                        let now = MonotonicClock.now();
                        named.drain(&self.life, &self.view, now, None, &mut progress);
                        if let Some(lane) = &mut unnamed {
                            ended_unnamed.extend(lane.drain(&self.life, &self.view, now));
                        }
                    }
                }
            }
        }
        let moved = progress.moved || !progress.finished.is_empty() || !ended_unnamed.is_empty();
        let unnamed = u32::try_from(ended_unnamed.len()).unwrap_or(u32::MAX);
        let mut finished = progress.finished;
        finished.extend(ended_unnamed);
        self.conclude(moved, finished, unnamed);
        moved
    }

    /// Gives the turn on and hands ended calls to the progress thread, which runs their completions with no lock held.
    fn conclude(&self, moved: bool, finished: Finished, unnamed: u32) {
        if unnamed > 0 {
            self.turn.fetch_sub(unnamed * SUBMITTED, Ordering::Release);
        }
        if !finished.is_empty() {
            self.submitted.fetch_sub(finished.len(), Ordering::AcqRel);
            self.world.complete(finished);
        }
        if moved {
            self.world.ring_own();
        }
    }

    /// Ends the epoch in this process and on all members; those whose memory this process has not joined yet are told as
    /// soon as it has.
    pub(crate) fn end(&self, cause: &Cause) {
        self.life.end(cause);
        if self.index.is_some() && self.view.ranks.len() > 1 {
            self.joining.tell(self, cause);
        }
        self.world.ring_own();
    }

    pub(crate) fn abort(&self) {
        self.end(&Cause::Requested { by: self.view.rank });
    }

    /// Closes this process's part in order: members that still need it learn that it left.
    pub(crate) fn close(&self) {
        self.life.close();
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

/// What a call is asked to do.
type Arguments = (OpKind, DataType, Reduction);

/// The turn to make unnamed calls, given back when dropped.
struct Inside<'a>(&'a Turn);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The largest input, as a length in memory.
const MAX_BYTES: usize = 8 << 30;
