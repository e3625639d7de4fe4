//! One call stepping through its plan.
//!
//! The header exchange comes before everything that counts: until a rank has seen the header of every rank it has
//! written nothing but its own staging buffers, and no counter. If the fingerprints differ, all ranks see it, since
//! each sees all headers; they then wait for each other (the verdict) so that nobody overwrites a description that
//! another still reads, and the use counts stay as they were: the next call finds everything as if nothing had been.

use core::task::Poll;
use core::time::Duration;

use kernels::{Hints, Source};
use plan::{Place, Sources, Span, Step};
use types::error::Cause;
use types::transport::{Channel, Counter, Peers};
use types::{Buffers, CallSite, Error, Fingerprint, Result, Tag};

use crate::call::{Call, Prepared};
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
    /// Hash of the fingerprint that this rank described last.
    described: Option<u64>,
}

impl ChannelState {
    /// A channel that no call has used.
    #[must_use]
    pub const fn new(channel: Channel) -> ChannelState {
        ChannelState { channel, sequence: 0, uses: 0, described: None }
    }

    /// Number of calls begun.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.sequence
    }
}

/// How far one call has come.
#[derive(Debug)]
pub struct Execution {
    next_step: usize,
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
}

/// Out of place, results of more bytes than this leave the cache anyway: they are stored past it.
/// (Where a non-temporal store begins to pay, alone and with a reader behind it, is a property of the last-level cache.)
const STREAMING_BYTES: usize = 24 << 20;

impl Execution {
    /// Begins a call on the channel.
    #[inline]
    pub fn begin(state: &mut ChannelState) -> Execution {
        state.sequence += 1;
        Execution {
            next_step: 0,
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
        }
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
        while let Some(step) = prepared.plan.steps.get(self.next_step) {
            match step {
                Step::Announce => {
                    self.announce(ground, state, call);
                }
                Step::Meet => {
                    if !self.meet(ground, state, call.hash()) {
                        return self.pending(ground);
                    }
                    if self.differs {
                        return self.mismatch(ground, state, call);
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
                    if self.paced && self.pauses(prepared.pace) {
                        self.next_step += 1;
                        return self.pending(ground);
                    }
                }
                Step::Publish { counter, round } => {
                    ground.windows.publish(state.channel, *counter, state.uses + round + 1);
                    ground.windows.wake();
                    self.wake_due = false;
                }
                Step::Stage { span, to } => {
                    let place = self.place(ground, state, to, span.len());
                    let from = prepared.in_input(span, buffers.is_in_place());
                    kernels::copy_in(place, &buffers.input()[from]);
                }
                Step::Fold { span, sources, also } => {
                    self.fold(ground, state, call, buffers, (span, sources, also.as_ref()));
                }
                Step::FoldAndStage { span, round, stage } => {
                    self.fold_and_stage(ground, state, call, buffers, (span, *round, stage.as_ref()));
                }
                Step::Keep { span } => {
                    let from = prepared.in_input(span, buffers.is_in_place());
                    if let Buffers::Separate { input, output } = buffers {
                        output[span.clone()].copy_from_slice(&input[from]);
                    }
                }
                Step::Collect { span, from, round } => {
                    let place = ground.windows.gather(state.channel, *from, state.uses + round, span.len());
                    kernels::copy_out(buffers.output(span.clone()), place);
                }
            }
            self.next_step += 1;
        }
        if Self::streams(prepared, buffers) {
            kernels::finish_streaming();
        }
        state.uses += prepared.plan.rounds;
        self.flush(ground);
        Poll::Ready(Ok(()))
    }

    fn streams(prepared: &Prepared, buffers: &Buffers<'_>) -> bool {
        !buffers.is_in_place() && prepared.whole() > STREAMING_BYTES
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
        self.wake_due = true;
    }

    /// Whether every other rank's header has been seen; notes whether one differs.
    #[inline]
    fn meet<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>, state: &ChannelState, hash: u64) -> bool {
        let (own, ranks) = (ground.windows.rank(), ground.windows.geometry().ranks);
        while self.unseen < ranks {
            if self.unseen != own {
                let Some(other) = ground.windows.header(state.channel, self.unseen, self.sequence) else {
                    return false;
                };
                self.differs |= other != hash;
            }
            self.unseen += 1;
        }
        true
    }

    fn place<'w, W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'w, W, P>,
        state: &ChannelState,
        place: &Place,
        len: usize,
    ) -> kernels::SharedBytes<'w> {
        let (windows, own) = (ground.windows, ground.windows.rank());
        match place {
            Place::Slot => windows.slot(state.channel, own, self.sequence, len),
            Place::Pair { reader, round } => windows.pair(state.channel, own, *reader, state.uses + round, len),
            Place::Gather { round } => windows.gather(state.channel, own, state.uses + round, len),
        }
    }

    #[inline]
    fn fold<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &Call,
        buffers: &mut Buffers<'_>,
        (span, sources, also): (&Span, &Sources, Option<&Place>),
    ) {
        let (windows, own, ranks) = (ground.windows, ground.windows.rank(), ground.windows.geometry().ranks);
        let len = span.len();
        let also = also.map(|place| self.place(ground, state, place, len));
        let (changes_hands, from) = match sources {
            Sources::Own => (false, None),
            Sources::Slots => (ranks == 2, None),
            Sources::Pairs { round } => (true, Some(state.uses + round)),
        };
        let source = |index: usize| {
            if index == own {
                return Source::Own;
            }
            Source::Shared(match from {
                Some(turn) => windows.pair(state.channel, index, own, turn, len),
                None => windows.slot(state.channel, index, self.sequence, len),
            })
        };
        let hints = Hints { streaming: Self::streams(&call.prepared, buffers), take_ownership: changes_hands };
        let fold = call.prepared.fold;
        match (sources, ranks) {
            (Sources::Own, _) => fold.fold(buffers, span.clone(), &[Source::Own], also, hints),
            (_, 2) => fold.fold(buffers, span.clone(), &[source(0), source(1)], also, hints),
            _ => {
                let sources: Vec<_> = (0..ranks).map(source).collect();
                fold.fold(buffers, span.clone(), &sources, also, hints);
            }
        }
    }

    fn fold_and_stage<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &Call,
        buffers: &mut Buffers<'_>,
        (span, round, stage): (&Span, u64, Option<&(Span, u64)>),
    ) {
        let (windows, own) = (ground.windows, ground.windows.rank());
        let peer = windows.pair(state.channel, 1 - own, own, state.uses + round, span.len());
        let stage = stage.map(|(span, round)| {
            (span.clone(), windows.pair(state.channel, own, 1 - own, state.uses + round, span.len()))
        });
        let hints = Hints { streaming: Self::streams(&call.prepared, buffers), take_ownership: true };
        call.prepared.fold.fold_and_stage(buffers, span.clone(), peer, own == 0, stage, hints);
    }

    // ---- what happens when not all is well ----

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

    /// Whom the call waits for.
    fn waits<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, state: &ChannelState, call: &Call) -> Waits {
        let (windows, channel) = (ground.windows, state.channel);
        let below = |other: usize, counter: Counter, due: u64| windows.counter(channel, other, counter) < due;
        let others = |wanted: &dyn Fn(usize) -> bool| ground.others().filter(|other| wanted(*other)).collect();
        if self.verdict.is_some() {
            let missing: Vec<_> = others(&|other| below(other, Counter::Verdict, self.sequence));
            return Waits { channel, needed: missing.clone(), missing };
        }
        let headerless = |other: usize| windows.header(channel, other, self.sequence).is_none();
        let meeting = self.unseen < windows.geometry().ranks;
        let unfinished = |other: usize| {
            let mut awaits = call.prepared.last_awaits.iter();
            (meeting && headerless(other))
                || awaits.any(|(counter, round)| below(other, *counter, state.uses + round + 1))
        };
        let missing = match call.prepared.plan.steps.get(self.next_step) {
            Some(Step::Await { counter, round }) => others(&|other| below(other, *counter, state.uses + round + 1)),
            Some(Step::Meet) => others(&headerless),
            _ => Vec::new(),
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
