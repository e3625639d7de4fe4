//! One call stepping through its plan.
//!
//! The header exchange comes before everything that counts: until a rank has seen the header of every rank it has
//! written nothing but its own staging buffers, and no counter. If the fingerprints differ, all ranks see it, since
//! each sees all headers; they then wait for each other (the verdict) so that nobody overwrites a description that
//! another still reads, and the use counts stay as they were: the next call finds everything as if nothing had been.

mod bytes;

use core::task::Poll;
use core::time::Duration;

use plan::Step;
use types::error::Cause;
use types::transport::{Channel, Counter, Peers};
use types::{Buffers, CallSite, Error, Fingerprint, Result, Tag};

use crate::call::{Call, Prepared};
use crate::late::{LONG, Late, MOST_MEMBERS};
use crate::offers::{Offer, Outcome, Places, Way, hear_all};
use crate::trouble::{Trouble, View, Waits, Watch, fail, find_trouble, mismatch_error, warn};
use crate::{Ground, SharedWindows};

/// Where a channel stands between calls.
#[derive(Debug)]
pub struct ChannelState {
    channel: Channel,
    /// Sequence of the last call begun; grows with every call.
    sequence: u64,
    /// Running use count of the buffers; grows with successful calls.
    uses: u64,
    /// Longer payloads in slots so far; grows with successful calls.
    slots: u64,
    /// Hash of the fingerprint that this rank described last.
    described: Option<u64>,
    /// Who comes late to its calls.
    late: Late,
}

impl ChannelState {
    /// A channel that no call has used.
    #[must_use]
    pub fn new(channel: Channel) -> ChannelState {
        ChannelState { channel, sequence: 0, uses: 0, slots: 0, described: None, late: Late::default() }
    }

    /// Number of calls begun.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.sequence
    }

    /// The channel's state, for a thread that brings it back. What stays says how many calls were begun, and no more.
    pub(crate) fn lend(&mut self) -> ChannelState {
        let stays = ChannelState { sequence: self.sequence, ..ChannelState::new(self.channel) };
        core::mem::replace(self, stays)
    }
}

/// How far one call has come.
#[derive(Debug)]
pub struct Execution {
    next_step: usize,
    /// Whose steps these are.
    way: Way,
    /// What this rank says of its buffers, decided once.
    offer: Offer,
    /// Where the buffers of all ranks are, in the direct way.
    places: Vec<Places>,
    sequence: u64,
    /// The number of the call in messages: of a lane that of the whole call.
    number: u64,
    /// The first member, by index, whose header has not been seen yet.
    unseen: usize,
    differs: bool,
    /// Whether peers may sleep on something that was published.
    wake_due: bool,
    /// Whether to stop when all headers have been seen and agree, until polled again.
    halts: bool,
    /// Whether to give the turn back after a bounded amount of work.
    paced: bool,
    /// Waits that have ended since the turn was given back last.
    awaited: u32,
    /// Whether the turn was given back though there was more to do.
    paused: bool,
    verdict: Option<Box<Error>>,
    watch: Watch,
    /// When the call first looked for what keeps it waiting.
    looked: Option<Duration>,
}

impl Execution {
    /// Begins a call on the channel.
    #[inline]
    pub fn begin(state: &mut ChannelState) -> Execution {
        state.sequence += 1;
        Execution {
            next_step: 0,
            way: Way::Staged,
            offer: Offer::Private,
            places: Vec::new(),
            sequence: state.sequence,
            number: state.sequence,
            unseen: 0,
            differs: false,
            wake_due: false,
            halts: false,
            paced: false,
            awaited: 0,
            paused: false,
            verdict: None,
            watch: Watch::default(),
            looked: None,
        }
    }

    /// Whether the call has waited for long enough to look for what it waits for.
    #[must_use]
    pub const fn has_looked(&self) -> bool {
        self.looked.is_some()
    }

    /// The same call, which says `Pending` once when all ranks have [met](Self::has_met), though it could go on.
    pub(crate) fn halting(self) -> Execution {
        Execution { halts: true, ..self }
    }

    /// The same, as a lane of the call that began with this one.
    pub(crate) fn lane_of(self, first: &Execution) -> Execution {
        Execution { number: first.number, ..self }
    }

    /// Whether a call that was to halt has seen every rank's header, and all agree.
    pub(crate) const fn has_met(&self) -> bool {
        !self.halts
    }

    /// The same call, which gives the turn back after every 256 KiB or so: it says `Pending`, and [has paused](Self::has_paused).
    #[must_use]
    pub fn paced(self) -> Execution {
        Execution { paced: true, ..self }
    }

    /// Whether the last poll ended so that others get their turn, and not because the call had to wait.
    #[must_use]
    pub const fn has_paused(&self) -> bool {
        self.paused
    }

    /// Whether it is time to give the turn back.
    fn pauses(&mut self, pace: u32) -> bool {
        self.awaited += 1;
        if self.awaited < pace {
            return false;
        }
        self.awaited = 0;
        self.paused = true;
        true
    }

    /// Goes as far as possible. With `look`, a call that cannot go on also looks for deaths, aborts and deadlines.
    ///
    /// # Errors
    /// `Ready(Err)` when the call has failed; the group's life has ended then, unless it was a mismatch.
    #[inline]
    pub fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &mut Call,
        buffers: &mut Buffers<'_>,
        look: bool,
    ) -> Poll<Result<()>> {
        let halting = self.halts;
        let first = self.run(ground, state, call, buffers);
        // A look would go beyond the headers, where a call that halts there must not be yet.
        if first.is_ready() || !look || (halting && !self.halts) {
            return first;
        }
        self.look(ground, state, call, buffers)
    }

    /// The steps, without a look at anything but the data.
    #[inline]
    fn run<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &mut Call,
        buffers: &mut Buffers<'_>,
    ) -> Poll<Result<()>> {
        if self.verdict.is_some() {
            return self.await_verdict(ground, state);
        }
        self.paused = false;
        let prepared = &*call.prepared;
        if self.next_step == 0 && prepared.ways.is_some() {
            self.offer = Offer::of(ground.windows, buffers);
            self.way = if matches!(self.offer, Offer::Ready(_)) { Way::Direct } else { Way::Staged };
        }
        let mut course = prepared.course(self.way);
        while let Some(step) = course.plan.steps.get(self.next_step) {
            match step {
                Step::Offer => {
                    self.offer.say(ground.windows, state.channel, self.sequence);
                }
                Step::Announce => {
                    self.announce(ground, state, call);
                }
                Step::Meet => {
                    if !self.meet(ground, state, call) {
                        return self.pending(ground);
                    }
                    if self.differs {
                        return self.mismatch(ground, state, call);
                    }
                    if prepared.ways.is_some() {
                        if let Err(by) = self.choose_way(ground, state, prepared) {
                            return Poll::Ready(Err(self.nonsense(ground, call, by)));
                        }
                        course = prepared.course(self.way);
                    }
                    if self.halts {
                        self.halts = false;
                        self.next_step += 1;
                        return self.pending(ground);
                    }
                }
                Step::Await { counter, round } => {
                    let due = state.uses + round + 1;
                    let channel = state.channel;
                    if ground.others().any(|other| ground.windows.counter(channel, other, *counter) < due) {
                        return self.pending(ground);
                    }
                    if self.paced && self.pauses(course.pace) {
                        self.next_step += 1;
                        return self.pending(ground);
                    }
                }
                Step::Publish { counter, round } => {
                    ground.windows.publish(state.channel, *counter, state.uses + round + 1);
                    ground.windows.wake();
                    self.wake_due = false;
                }
                _ => {
                    self.carry_out(ground, state, call, buffers, step);
                    if self.paced && course.is_coarse {
                        (self.paused, self.next_step) = (true, self.next_step + 1);
                        return self.pending(ground);
                    }
                }
            }
            self.next_step += 1;
        }
        if Self::streams(prepared, buffers) {
            kernels::finish_streaming();
        }
        state.uses += course.plan.rounds;
        state.slots += course.slots;
        self.flush(ground);
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn flush<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) {
        if self.wake_due {
            ground.windows.wake();
            self.wake_due = false;
        }
    }

    #[inline]
    fn pending<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) -> Poll<Result<()>> {
        // Peers are woken as late as possible, since that may be a system call; but before we wait for them.
        self.flush(ground);
        Poll::Pending
    }

    #[inline]
    fn announce<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &Call,
    ) {
        let hash = call.hash();
        if state.described != Some(hash) {
            ground.windows.describe(state.channel, call.fingerprint());
            state.described = Some(hash);
        }
        ground.windows.publish_header(state.channel, self.sequence, hash);
        // Behind the header: what it costs passes while the header is on its way.
        ground.windows.note_begun(state.channel, self.sequence, call.prepared.summary, call.ticket);
        self.wake_due = true;
    }

    /// Whether every other rank's header has been seen; notes whether one differs.
    #[inline]
    fn meet<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &Call,
    ) -> bool {
        let (own, ranks, hash) = (ground.windows.rank(), ground.windows.geometry().ranks, call.hash());
        while self.unseen < ranks {
            if self.unseen != own {
                let Some(other) = ground.windows.header(state.channel, self.unseen, self.sequence) else {
                    return false;
                };
                self.differs |= other != hash;
            }
            self.unseen += 1;
        }
        if let Some(since) = self.looked {
            self.note_arrivals(ground, state, call, since);
        }
        true
    }

    /// After `Meet`: hears the ranks' offers, and goes on in the way that follows from them on every rank. The error is the
    /// rank that has written nonsense.
    fn choose_way<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        prepared: &Prepared,
    ) -> core::result::Result<(), usize> {
        let Some(ways) = &prepared.ways else { return Ok(()) };
        let bytes = ways.direct.plan.shape.bytes;
        match hear_all(ground.windows, state.channel, self.sequence, self.offer, bytes) {
            Outcome::Nonsense(by) => Err(by),
            Outcome::Direct(places) => {
                self.places = places;
                Ok(())
            }
            Outcome::Go(way) => {
                if way == Way::Late {
                    // The loop goes one step further.
                    self.next_step = ways.late_step(self.way == Way::Staged) - 1;
                }
                self.way = way;
                Ok(())
            }
        }
    }

    /// Ends the epoch, since this member has written where it should not.
    #[cold]
    fn nonsense<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, call: &Call, by: usize) -> Error {
        let cause = Cause::Failed { by: ground.view.world(by) };
        ground.windows.abort(&cause);
        ground.life.end(&ground.windows.aborted().unwrap_or(cause));
        ground.life.error(self.site_of(ground.view, call), Duration::ZERO, true)
    }

    // ---- what happens when not all is well ----

    /// After a long wait for the headers: notes who came late. (Named calls have met when they were submitted.)
    #[cold]
    fn note_arrivals<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &Call,
        since: Duration,
    ) {
        let now = ground.clock.now();
        let members = ground.view.ranks.len();
        if state.channel != Channel::Unnamed || now.saturating_sub(since) < LONG || members > MOST_MEMBERS {
            return;
        }
        let arrival = |owner| ground.windows.arrival(state.channel, owner, self.sequence, call.ticket);
        let arrivals: Vec<_> = (0..members).map(arrival).collect();
        state.late.note(ground.view, self.sequence, &arrivals, now);
    }

    #[cold]
    fn mismatch<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &mut Call,
    ) -> Poll<Result<()>> {
        let elapsed = call.elapsed(ground.clock.now());
        let own = call.fingerprint();
        let described: Vec<Option<Fingerprint>> = (0..ground.view.ranks.len())
            .map(|index| {
                if index == ground.windows.rank() {
                    return Some(own.clone());
                }
                ground.windows.description(state.channel, index).ok()
            })
            .collect();
        let site = self.site_of(ground.view, call);
        self.verdict = Some(Box::new(mismatch_error(site, own, &described, ground.view, elapsed)));
        ground.windows.publish(state.channel, Counter::Verdict, self.sequence);
        ground.windows.wake();
        self.wake_due = false;
        self.await_verdict(ground, state)
    }

    fn await_verdict<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
    ) -> Poll<Result<()>> {
        let seen = |other| ground.windows.counter(state.channel, other, Counter::Verdict) >= self.sequence;
        if !ground.others().all(seen) {
            return Poll::Pending;
        }
        match self.verdict.take() {
            Some(error) => Poll::Ready(Err(*error)),
            None => Poll::Pending,
        }
    }

    #[cold]
    fn look<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        state: &mut ChannelState,
        call: &mut Call,
        buffers: &mut Buffers<'_>,
    ) -> Poll<Result<()>> {
        let now = ground.clock.now();
        let elapsed = call.elapsed(now);
        let waits = self.waits(ground, state, call);
        self.looked.get_or_insert(now);
        if !waits.missing.is_empty() {
            ground.windows.note_waiting(state.channel, call.ticket, &waits.missing);
        }
        let Some(trouble) = find_trouble(ground, &waits, call, elapsed) else {
            // A call that has given its turn back waits for nobody.
            if !waits.missing.is_empty() && self.watch.warning_due(elapsed, call.limits.first_warning) {
                let site = self.site_of(ground.view, call);
                warn(&site, ground.view, &waits.missing, self.awaited(ground.view.ranks.len()), elapsed);
            }
            return Poll::Pending;
        };
        // What a dead or aborting rank wrote before is visible now, and data goes before trouble.
        let mut again = self.run(ground, state, call, buffers);
        while self.paused {
            again = self.run(ground, state, call, buffers);
        }
        if again.is_ready() {
            return again;
        }
        let mut trouble = Some(trouble);
        if let Some(Trouble::Over(Cause::RankDied { .. }) | Trouble::Late { .. }) = trouble {
            // The rank that is gone may have done its part after all, or another one be late now.
            trouble = find_trouble(ground, &self.waits(ground, state, call), call, elapsed);
        }
        let Some(trouble) = trouble.and_then(|trouble| self.watch.settled(trouble, elapsed)) else {
            return Poll::Pending;
        };
        let site = self.site_of(ground.view, call);
        let error = fail(ground, call, trouble, site, self.awaited(ground.view.ranks.len()));
        // The ranks' disagreement is known and says more than what came after it.
        Poll::Ready(Err(self.verdict.take().map_or(error, |mismatch| *mismatch)))
    }

    /// Whether what the call waits for now must come from this member.
    pub fn awaits<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &Call,
        other: usize,
    ) -> bool {
        let (windows, channel) = (ground.windows, state.channel);
        if self.verdict.is_some() {
            return windows.counter(channel, other, Counter::Verdict) < self.sequence;
        }
        match call.prepared.course(self.way).plan.steps.get(self.next_step) {
            Some(Step::Await { counter, round }) => windows.counter(channel, other, *counter) < state.uses + round + 1,
            Some(Step::Meet) => windows.header(channel, other, self.sequence).is_none(),
            _ => false,
        }
    }

    /// Whom the call waits for.
    fn waits<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, state: &ChannelState, call: &Call) -> Waits {
        let (windows, channel) = (ground.windows, state.channel);
        let others = |wanted: &dyn Fn(usize) -> bool| ground.others().filter(|other| wanted(*other)).collect();
        let missing: Vec<_> = others(&|other| self.awaits(ground, state, call, other));
        if self.verdict.is_some() {
            return Waits { channel, needed: missing.clone(), missing };
        }
        let meeting = self.unseen < windows.geometry().ranks;
        let unfinished = |other: usize| {
            let mut awaits = call.prepared.course(self.way).last_awaits.iter();
            (meeting && windows.header(channel, other, self.sequence).is_none())
                || awaits.any(|(counter, round)| windows.counter(channel, other, *counter) < state.uses + round + 1)
        };
        Waits { channel, missing, needed: others(&unfinished) }
    }

    /// Whether there is something to do now: what the current step waits for is there, or something is wrong.
    pub fn can_go_on<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &Call,
    ) -> bool {
        let waits = self.waits(ground, state, call);
        waits.missing.is_empty()
            || !ground.life.is_live()
            || find_trouble(ground, &waits, call, Duration::ZERO).is_some()
    }

    /// The call's place in messages.
    pub fn site_of(&self, view: &View, call: &Call) -> CallSite {
        let fingerprint = call.fingerprint();
        let tag = match &call.named {
            Some(_) => Tag::Named(std::sync::Arc::clone(&fingerprint.name)),
            None => Tag::Unnamed(self.number),
        };
        view.site(fingerprint.kind.name(), Some(tag))
    }

    fn awaited(&self, ranks: usize) -> &'static str {
        if self.verdict.is_some() {
            "take note of the mismatch"
        } else if self.unseen < ranks {
            "enter the call"
        } else {
            "deliver its part of the data"
        }
    }
}
