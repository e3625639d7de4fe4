//! Calls that the calling thread runs itself, and waits for.

use core::sync::atomic::Ordering;
use core::time::Duration;

use engine::named::Borrowed;
use engine::{Call, Execution, Poll, UnnamedLane, Work};
use shm::observe::Stage;
use shm::{MonotonicClock, Outcome};
use types::error::{Cause, Deadline};
use types::transport::Clock;
use types::{Buffers, CallSite, Error, OpKind, Rank, Result, Tag};

use crate::group::{CallOptions, GroupShared, INSIDE, Turn, lock};
use crate::join::Joined;
use crate::lanes::{LARGE_BYTES, LOOK_AFTER_TURNS};
use crate::wait::{Patience, Pause};

/// The end of a call of so many bytes is noted with its time. Smaller ones that nobody waited for have no time for that.
const TIMED_BYTES: usize = 16 << 10;

impl GroupShared {
    /// Runs a call on the calling thread.
    #[inline]
    pub(crate) fn run(&self, work: &Work, mut buffers: Buffers<'_>, options: &CallOptions<'_>) -> Result<()> {
        if self.view.ranks.len() == 1 {
            return self.run_alone(work, &mut buffers);
        }
        match options.name {
            None => {
                let (_inside, begun) = self.enter(work.kind(), options)?;
                self.run_unnamed(work, &mut buffers, options, begun)
            }
            Some(name) => self.run_named(work, &mut NamedCall::of(name), buffers, options, None),
        }
    }

    pub(crate) fn run_alone(&self, work: &Work, buffers: &mut Buffers<'_>) -> Result<()> {
        if !self.life.is_live() {
            return Err(self.life.error(self.view.site(work.kind().name(), None), Duration::ZERO, false));
        }
        if work.bytes() >= LARGE_BYTES && self.world.config().threads > 1 {
            self.run_alone_in_parts(work, buffers);
        } else if !buffers.is_empty() {
            work.alone(buffers);
        }
        Ok(())
    }

    /// Runs an unnamed call, for which the caller has [entered](Self::enter). `begun`: when, if not now.
    #[inline]
    pub(crate) fn run_unnamed(
        &self,
        work: &Work,
        buffers: &mut Buffers<'_>,
        options: &CallOptions<'_>,
        begun: Option<Duration>,
    ) -> Result<()> {
        self.run_unnamed_call(work, buffers, options, begun).map_err(|error| self.failed(error))
    }

    #[inline]
    fn run_unnamed_call(
        &self,
        work: &Work,
        buffers: &mut Buffers<'_>,
        options: &CallOptions<'_>,
        begun: Option<Duration>,
    ) -> Result<()> {
        let mut lane = lock(&self.unnamed);
        let lane = &mut *lane;
        let preparer = lane.preparer.with_settings(self.world.settings());
        let limits = self.limits(options.timeout);
        let (joined, begun) = match self.joining.get() {
            Some(joined) => (joined, begun),
            None => {
                let mut call = preparer.call(work, limits).begun(begun);
                let joined = self.join(&mut call, options)?;
                (joined, call.begun_at())
            }
        };
        lane.agree(&joined.terms);
        let mut call = lane.preparer.lend(work, limits).begun(begun);
        let ground = self.ground(joined);
        if !ground.is_live() {
            let tag = Tag::Unnamed(lane.state.calls() + 1);
            return Err(self.life.error(self.view.site(work.kind().name(), Some(tag)), Duration::ZERO, false));
        }
        let (number, journal) = (lane.state.calls() + 1, joined.windows.journal());
        if call.is_cut() {
            let result = self.run_cut(lane, call, buffers, options, joined);
            journal.ended(number, Outcome::of(&result));
            return result;
        }
        let mut execution = Execution::begin(&mut lane.state);
        let result = match execution.poll(ground, &mut lane.state, &mut call, buffers, false) {
            Poll::Ready(result) => result,
            Poll::Pending => self.wait_for(&mut execution, lane, &mut call, buffers, options, joined),
        };
        match &result {
            Ok(()) if work.bytes() < TIMED_BYTES && !execution.has_looked() => journal.done(number),
            result => journal.ended(number, Outcome::of(result)),
        }
        lane.preparer.give_back(call);
        result
    }

    /// Waits for an unnamed call that could not go on at once.
    fn wait_for(
        &self,
        execution: &mut Execution,
        lane: &mut UnnamedLane,
        call: &mut Call,
        buffers: &mut Buffers<'_>,
        options: &CallOptions<'_>,
        joined: &Joined,
    ) -> Result<()> {
        let ground = self.ground(joined);
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        loop {
            let (awaits, recheck) = (
                |other| execution.awaits(ground, &lane.state, call, other),
                || execution.can_go_on(ground, &lane.state, call),
            );
            let pause = patience.pause_for(&awaits, &recheck);
            let look = pause != Pause::Spun;
            match execution.poll(ground, &mut lane.state, call, buffers, look) {
                Poll::Ready(result) => return result,
                Poll::Pending if look => {
                    let site = execution.site_of(&self.view, call);
                    self.still_wanted(pause, call, site)?;
                }
                Poll::Pending => {}
            }
        }
    }

    /// Fails a wait that was interrupted, or whose group was closed or aborted by another thread of this process.
    pub(crate) fn still_wanted(&self, pause: Pause, call: &mut Call, site: CallSite) -> Result<()> {
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
    pub(crate) fn enter(&self, kind: OpKind, options: &CallOptions<'_>) -> Result<(Inside<'_>, Option<Duration>)> {
        match self.turn.compare_exchange(0, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok((Inside(&self.turn), None)),
            Err(_) => self.enter_behind(kind, options).map_err(|error| self.failed(error)),
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
                    detail: String::new(),
                })));
            }
        }
    }

    /// The other members.
    fn others(&self) -> Vec<Rank> {
        self.view.ranks.iter().copied().filter(|rank| *rank != self.view.rank).collect()
    }

    pub(crate) fn two_threads(&self, kind: OpKind) -> Error {
        let expected = "a name for each call, so that calls of several threads are matched by name and not by number";
        let got = "an unnamed call while an unnamed call of another thread on this group has not ended";
        self.invalid(kind, "name", expected.into(), got.into())
    }

    /// Waits for the group's memory.
    #[cold]
    fn join(&self, call: &mut Call, options: &CallOptions<'_>) -> Result<&Joined> {
        if let Some(error) = self.joining.refusal(self, call) {
            return Err(error);
        }
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

    /// Runs a named call, or the next one of a named list. `begun`: when it began, if not now.
    pub(crate) fn run_named(
        &self,
        work: &Work,
        named: &mut NamedCall<'_>,
        buffers: Buffers<'_>,
        options: &CallOptions<'_>,
        begun: Option<Duration>,
    ) -> Result<()> {
        let limits = self.limits(options.timeout);
        let ticket = self.note(Stage::Submitted, work, options.name);
        let (mut call, identity) = {
            let mut lane = lock(&self.named);
            // Calls of the same name keep the order in which this process made them.
            self.empty_inbox(&mut lane, &mut None);
            let preparer = lane.preparer.with_settings(self.world.settings());
            let call = preparer.call(work, limits).begun(begun).named(named.name).noted(ticket);
            let identity = *named.identity.get_or_insert_with(|| {
                let identity = lane.enter(&call, named.goes_on);
                self.identify(ticket, identity);
                identity
            });
            (call, identity)
        };
        let entered = self.run_entered(identity, &mut call, buffers, named.goes_on, options);
        self.note_end(ticket, &entered);
        if entered.is_err() {
            lock(&self.named).forget(identity);
        }
        entered.map_err(|error| self.failed(error))
    }

    fn run_entered(
        &self,
        identity: u128,
        call: &mut Call,
        mut buffers: Buffers<'_>,
        goes_on: bool,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let joined = match self.joining.get() {
            Some(joined) => joined,
            None => self.join(call, options)?,
        };
        if !call.is_by(&joined.terms) {
            let mut lane = lock(&self.named);
            lane.agree(&joined.terms);
            lane.preparer.renew(call);
        }
        let ground = self.ground(joined);
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        let (mut look, mut turns) = (false, 0_u32);
        loop {
            let own = Borrowed { identity, call: &mut *call, buffers: buffers.reborrow(), goes_on };
            let progress = lock(&self.named).poll(ground, Some(own), look);
            let done = progress.borrowed;
            self.conclude(progress.moved, progress.finished, 0);
            self.answer(progress.contradictions);
            if let Some(result) = done {
                return result;
            }
            let loan = if call.is_cut() { lock(&self.named).lend(Some(identity)) } else { None };
            if let Some(loan) = loan {
                return self.run_lent(loan, buffers, goes_on, options, joined);
            }
            if progress.paused {
                // A large call goes on, after a moment for threads that wait for the lock with small ones.
                std::thread::yield_now();
                turns += 1;
                look = turns % LOOK_AFTER_TURNS == 0;
                if look && options.interrupt.is_some_and(|interrupt| interrupt()) {
                    self.end(&Cause::Interrupted { by: self.view.rank });
                }
                continue;
            }
            let pause = patience.pause(&|| lock(&self.named).can_go_on(ground, identity, call));
            look = pause != Pause::Spun;
            if pause == Pause::Interrupted {
                self.end(&Cause::Interrupted { by: self.view.rank });
            }
        }
    }
}

/// A named call, or the call of a named list that is next.
pub(crate) struct NamedCall<'a> {
    pub(crate) name: &'a str,
    /// Once it has entered.
    pub(crate) identity: Option<u128>,
    /// Whether another one of the list follows.
    pub(crate) goes_on: bool,
}

impl NamedCall<'_> {
    pub(crate) fn of(name: &str) -> NamedCall<'_> {
        NamedCall { name, identity: None, goes_on: false }
    }
}

/// The turn to make unnamed calls, given back when dropped.
pub(crate) struct Inside<'a>(&'a Turn);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
