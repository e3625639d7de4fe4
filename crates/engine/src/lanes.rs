//! Large calls are cut into lanes, so that a rank can work on one call with several threads.
//!
//! A lane is a call of its own, on a channel of its own: it has the plan for its part of the output, and meets nobody but the
//! same lane of the other ranks. What an element becomes does not depend on how a call is cut. The first lane is the
//! channel of all unnamed calls, or of all large named ones; the others are of unnamed or of named calls. These begin when the
//! headers of the first have met and agree: so a mismatch, or a rank that makes a small call, never leaves a lane waiting for
//! what will not come. From then on whatever fails ends the epoch: a call that is cut ends on all channels or on none.
//!
//! Who polls a lane does not matter: threads that take one each, or one thread that goes round. A call that the group's own
//! queues hold ([`UnnamedLane`](crate::UnnamedLane), [`NamedLane`](crate::NamedLane)) can be taken out of these as a [`Loan`] once its
//! headers have met: then several threads can work on it while others poll the queues.

use core::task::Poll;

use plan::Span;
use types::OpKind;
use types::error::Cause;
use types::transport::{Channel, Geometry, Peers};
use types::{Buffers, CallSite, Error, Result};

use crate::call::{Call, Task};
use crate::execution::{ChannelState, Execution};
use crate::work::Work;
use crate::{Ground, SharedWindows};

/// A lane has at least so many bytes, or waking a thread for it would cost more than it does: so calls of 1 MiB and more are cut.
const LEAST_LANE_BYTES: usize = 512 << 10;

/// Where chunks are small, fewer will do: so many chunks.
const LEAST_LANE_CHUNKS: usize = 8;

/// Into how many lanes a call is cut, in a group that has `lanes`.
pub(crate) fn cuts(work: &Work, lanes: usize, geometry: &Geometry) -> usize {
    // What runs beside large calls is never cut.
    if lanes == 1 || geometry.ranks == 1 || work.kind() == OpKind::Barrier || work.bytes() <= geometry.slot_bytes {
        return 1;
    }
    (work.bytes() / LEAST_LANE_BYTES.min(LEAST_LANE_CHUNKS * geometry.chunk_bytes)).clamp(1, lanes)
}

/// The bytes of each lane: whole chunks, as evenly as these allow.
pub(crate) fn spans(work: &Work, lanes: usize, geometry: &Geometry) -> Vec<Span> {
    even(work.bytes(), lanes, geometry.chunk_bytes)
}

/// `bytes` bytes in `parts` parts of whole `unit`s, the last one with what is left.
#[must_use]
pub fn even(bytes: usize, parts: usize, unit: usize) -> Vec<Span> {
    let units = bytes / unit;
    let start = |part: usize| if part == parts { bytes } else { units * part / parts * unit };
    (0..parts).map(|part| start(part)..start(part + 1)).collect()
}

/// Cuts buffers into parts of so many bytes of the input and of the output, which follow each other from the beginning.
#[must_use]
pub fn cut_buffers<'a>(buffers: Buffers<'a>, parts: impl IntoIterator<Item = (usize, usize)>) -> Vec<Buffers<'a>> {
    let mut rest = buffers;
    let mut cut = Vec::new();
    for (input, output) in parts {
        let (first, others) = rest.split(input, output);
        cut.push(first);
        rest = others;
    }
    cut
}

/// Where the channels of the lanes beside the first stand.
#[derive(Debug)]
pub struct Others {
    kind: Channel,
    states: Vec<ChannelState>,
}

impl Others {
    /// Those of calls of this kind, none of which has been used.
    #[must_use]
    pub const fn new(kind: Channel) -> Others {
        Others { kind, states: Vec::new() }
    }

    /// The first so many of them.
    fn states(&mut self, count: usize) -> &mut [ChannelState] {
        while self.states.len() < count {
            let lane = u8::try_from(self.states.len() + 1).expect("few lanes (Geometry::MAX_LANES)");
            self.states.push(ChannelState::new(self.kind.lane(lane)));
        }
        &mut self.states[..count]
    }

    /// All of them, for whoever brings them back.
    fn take(&mut self) -> Others {
        core::mem::replace(self, Others::new(self.kind))
    }
}

/// A call of a queue that is on its way.
#[derive(Debug)]
pub(crate) enum Running {
    Whole(Execution),
    Cut(Cut),
    /// It is [lent](Loan).
    Lent,
}

impl Running {
    /// Begins a call that gives the turn back after a bounded amount of work.
    #[inline]
    pub(crate) fn begin(state: &mut ChannelState, call: &Call) -> Running {
        match call.is_cut() {
            true => Running::Cut(Cut::begin(state, call).paced()),
            false => Running::Whole(Execution::begin(state).paced()),
        }
    }

    /// Goes as far as possible, but not longer than for some 256 KiB. Where the call is cut it says `Pending` once when all
    /// ranks have met, so that it can be lent before anything is done.
    #[inline]
    pub(crate) fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        (first, others): (&mut ChannelState, &mut Others),
        call: &mut Call,
        buffers: &mut Buffers<'_>,
        look: bool,
    ) -> Poll<Result<()>> {
        match self {
            Running::Whole(execution) => execution.poll(ground, first, call, buffers, look),
            Running::Cut(cut) => cut.poll(ground, first, others, buffers, look),
            Running::Lent => Poll::Pending,
        }
    }

    /// Whether the last poll ended so that others get their turn, and not because the call had to wait.
    pub(crate) fn has_paused(&self) -> bool {
        match self {
            Running::Whole(execution) => execution.has_paused(),
            Running::Cut(cut) => cut.has_paused(),
            Running::Lent => false,
        }
    }

    pub(crate) const fn is_lent(&self) -> bool {
        matches!(self, Running::Lent)
    }

    /// Whether it can be lent.
    pub(crate) fn is_lendable(&self) -> bool {
        matches!(self, Running::Cut(cut) if cut.has_met())
    }

    /// Whether a poll has something to do.
    pub(crate) fn can_go_on<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        (first, others): (&ChannelState, &Others),
        call: &Call,
    ) -> bool {
        match self {
            Running::Whole(execution) => execution.can_go_on(ground, first, call),
            Running::Cut(cut) => cut.can_go_on(ground, first, others),
            Running::Lent => false,
        }
    }

    /// The call, taken out, if it [can be lent](Self::is_lendable).
    pub(crate) fn lend(&mut self, first: &mut ChannelState, others: &mut Others) -> Option<Loan> {
        match core::mem::replace(self, Running::Lent) {
            Running::Cut(cut) if cut.has_met() => {
                Some(Loan { cut, first: first.lend(), others: others.take(), task: None })
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A call that is cut, taken out of its queue with all that its lanes need. Whoever has taken it runs the lanes to their ends,
/// and gives it back.
#[derive(Debug)]
pub struct Loan {
    cut: Cut,
    first: ChannelState,
    others: Others,
    /// What was submitted, unless the calling thread has the buffers.
    pub(crate) task: Option<Task>,
}

impl Loan {
    /// The first lane, as a call: it has the limits and the beginning of the whole.
    #[must_use]
    pub fn call(&self) -> Call {
        self.cut.runs[0].call.clone()
    }

    /// The call's place in messages.
    #[must_use]
    pub fn site_of(&self, view: &crate::View) -> CallSite {
        self.cut.site_of(view)
    }

    /// The lanes of a call whose buffers the calling thread has.
    pub fn lanes<'a>(&'a mut self, buffers: Buffers<'a>) -> Vec<Lane<'a>> {
        self.cut.lanes(&mut self.first, &mut self.others, buffers)
    }

    /// The lanes of a call that was submitted. (Of another one there are none.)
    pub fn submitted_lanes(&mut self) -> Vec<Lane<'_>> {
        let Loan { cut, first, others, task } = self;
        match task {
            Some(task) => cut.lanes(first, others, task.buffers.buffers()),
            None => Vec::new(),
        }
    }

    /// Brings the channels back to where they were taken from.
    pub(crate) fn settle(self, first: &mut ChannelState, others: &mut Others) -> Option<Task> {
        *first = self.first;
        *others = self.others;
        self.task
    }
}

/// A call on its way that is cut into lanes.
#[derive(Debug)]
pub struct Cut {
    /// The first one first.
    runs: Vec<Run>,
    paced: bool,
    /// Whether the last poll ended because all ranks had met.
    halted: bool,
}

/// One lane on its way.
#[derive(Debug)]
struct Run {
    call: Call,
    execution: Option<Execution>,
    ended: bool,
}

impl Cut {
    /// Begins a call [that is cut](Call::is_cut): its first lane.
    pub fn begin(first: &mut ChannelState, call: &Call) -> Cut {
        let mut runs: Vec<Run> = call.lanes().map(|call| Run { call, execution: None, ended: false }).collect();
        runs[0].execution = Some(Execution::begin(first).halting());
        Cut { runs, paced: false, halted: false }
    }

    /// The same call, [paced](Execution::paced): for a thread that has other calls to run.
    #[must_use]
    pub(crate) fn paced(mut self) -> Cut {
        self.paced = true;
        let Run { execution, .. } = &mut self.runs[0];
        *execution = execution.take().map(Execution::paced);
        self
    }

    /// Whether the last poll ended so that others get their turn, and not because all lanes had to wait.
    pub(crate) fn has_paused(&self) -> bool {
        self.halted || self.runs.iter().flat_map(|run| &run.execution).any(Execution::has_paused)
    }

    /// Whether the headers have [met](Self::meet).
    pub(crate) fn has_met(&self) -> bool {
        self.runs[0].execution.as_ref().is_some_and(Execution::has_met)
    }

    /// Lets the headers meet, on the first lane: `Ready(Ok)` when all ranks agree. Then it need not be called again.
    ///
    /// # Errors
    /// As [`Execution::poll`].
    pub fn meet<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        first: &mut ChannelState,
        buffers: &mut Buffers<'_>,
        look: bool,
    ) -> Poll<Result<()>> {
        let Run { call, execution: Some(execution), .. } = &mut self.runs[0] else { return Poll::Ready(Ok(())) };
        if execution.has_met() {
            return Poll::Ready(Ok(()));
        }
        let (mut own, _) = buffers.reborrow().split(call.prepared.input_bytes, call.prepared.span.len());
        match execution.poll(ground, first, call, &mut own, look) {
            Poll::Pending if execution.has_met() => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// Whether [`meet`](Self::meet) has something to do.
    pub fn can_meet<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, first: &ChannelState) -> bool {
        let Run { call, execution, .. } = &self.runs[0];
        execution.as_ref().is_none_or(|execution| execution.can_go_on(ground, first, call))
    }

    /// The lanes, once the headers have [met](Self::meet).
    pub fn lanes<'a>(
        &'a mut self,
        first: &'a mut ChannelState,
        others: &'a mut Others,
        buffers: Buffers<'a>,
    ) -> Vec<Lane<'a>> {
        // The deadline is that of the whole call.
        let started = self.runs[0].call.begun_at();
        for run in &mut self.runs[1..] {
            run.call.started = run.call.started.or(started);
        }
        let Cut { runs, paced, .. } = self;
        if let Some((Run { execution: Some(whole), .. }, rest)) = runs.split_first_mut() {
            let states = others.states(rest.len());
            for (run, state) in rest.iter_mut().zip(states) {
                run.execution.get_or_insert_with(|| {
                    let execution = Execution::begin(state).lane_of(whole);
                    if *paced { execution.paced() } else { execution }
                });
            }
        }
        let states = core::iter::once(first).chain(others.states(runs.len() - 1));
        let part = |run: &Run| (run.call.prepared.input_bytes, run.call.prepared.span.len());
        let buffers = cut_buffers(buffers, runs.iter().map(part));
        let lanes = runs.iter_mut().zip(states).zip(buffers);
        lanes.filter_map(|((run, state), buffers)| Lane::new(run, state, buffers)).collect()
    }

    /// Runs all lanes on the calling thread as far as possible; says `Pending` once when all ranks have met.
    ///
    /// # Errors
    /// As [`Execution::poll`].
    pub fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        first: &mut ChannelState,
        others: &mut Others,
        buffers: &mut Buffers<'_>,
        look: bool,
    ) -> Poll<Result<()>> {
        self.halted = false;
        if !self.has_met() {
            let met = self.meet(ground, first, buffers, look);
            self.halted = matches!(met, Poll::Ready(Ok(())));
            return if self.halted { Poll::Pending } else { met };
        }
        let mut all = Poll::Ready(Ok(()));
        for mut lane in self.lanes(first, others, buffers.reborrow()) {
            match lane.poll(ground, look) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    }

    /// Whether [`poll`](Self::poll) has something to do.
    fn can_go_on<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        first: &ChannelState,
        others: &Others,
    ) -> bool {
        let states = core::iter::once(first).map(Some).chain(others.states.iter().map(Some));
        let mut runs = self.runs.iter().zip(states.chain(core::iter::repeat(None))).filter(|(run, _)| !run.ended);
        runs.any(|(Run { call, execution, .. }, state)| match (execution, state) {
            (Some(execution), Some(state)) => execution.can_go_on(ground, state, call),
            // It begins when the first has met.
            _ => self.has_met(),
        })
    }

    /// The call's place in messages.
    pub fn site_of(&self, view: &crate::View) -> CallSite {
        let Run { call, execution, .. } = &self.runs[0];
        match execution {
            Some(execution) => execution.site_of(view, call),
            None => view.site(call.fingerprint().kind.name(), None),
        }
    }
}

/// One lane of a call, with its part of the buffers. It may be polled on any thread.
#[derive(Debug)]
pub struct Lane<'a> {
    call: &'a mut Call,
    execution: &'a mut Execution,
    ended: &'a mut bool,
    state: &'a mut ChannelState,
    buffers: Buffers<'a>,
}

impl<'a> Lane<'a> {
    /// `None` if it has not begun, which all have when they are asked for.
    fn new(run: &'a mut Run, state: &'a mut ChannelState, buffers: Buffers<'a>) -> Option<Lane<'a>> {
        let Run { call, execution, ended } = run;
        Some(Lane { call, execution: execution.as_mut()?, ended, state, buffers })
    }

    /// Whether it has run to its end.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        *self.ended
    }

    /// Whether the last poll ended so that others get their turn, and not because the lane had to wait.
    #[must_use]
    pub const fn has_paused(&self) -> bool {
        self.execution.has_paused()
    }

    /// Goes as far as possible.
    ///
    /// # Errors
    /// As [`Execution::poll`]; the epoch is over then.
    pub fn poll<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>, look: bool) -> Poll<Result<()>> {
        if *self.ended {
            return Poll::Ready(Ok(()));
        }
        let polled = self.execution.poll(ground, self.state, self.call, &mut self.buffers, look);
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                *self.ended = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.failed(ground, error))),
        }
    }

    /// The ranks agreed on the call in its first lane: if another one finds that they do not, somebody has written where he
    /// should not, and the channels of the group do not go together any more.
    fn failed<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, error: Error) -> Error {
        if matches!(error, Error::Mismatch(_)) {
            let cause = Cause::Failed { by: ground.view.rank };
            ground.windows.abort(&cause);
            ground.life.end(&ground.windows.aborted().unwrap_or(cause));
        }
        error
    }

    /// Whether [`poll`](Self::poll) has something to do.
    pub fn can_go_on<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>) -> bool {
        !*self.ended && self.execution.can_go_on(ground, self.state, self.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{DataType, Reduction};

    #[test]
    fn parts_are_even_whole_and_complete() {
        for (bytes, unit) in [(0, 4), (3, 4), (64, 64), (1000, 64), (4096, 64), (100_001, 128)] {
            for parts in 1..=7 {
                let spans = even(bytes, parts, unit);
                assert_eq!((spans.len(), spans[0].start, spans[parts - 1].end), (parts, 0, bytes));
                assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(spans.iter().all(|span| span.start.is_multiple_of(unit) && span.start <= span.end));
                let lengths = || spans.iter().map(|span| span.len());
                assert!(lengths().max().unwrap() - lengths().min().unwrap() < 2 * unit, "{spans:?}");
            }
        }
    }

    #[test]
    fn only_large_calls_are_cut() {
        let geometry = Geometry::of(2);
        let cut = |bytes, lanes| cuts(&Work::all_reduce(DataType::Float32, Reduction::Sum, bytes), lanes, &geometry);
        assert_eq!([cut(0, 4), cut(8, 4), cut((1 << 20) - 4, 4)], [1, 1, 1]);
        assert_eq!([cut(1 << 20, 1), cut(1 << 20, 2), cut(1 << 20, 16)], [1, 2, 2]);
        assert_eq!([cut(3 << 19, 16), cut(2 << 20, 16), cut(64 << 20, 16)], [3, 4, 16]);
        assert_eq!(cuts(&Work::barrier(), 4, &geometry), 1);
        assert_eq!(cuts(&Work::all_gather(DataType::Uint8, &[8 << 20; 2]), 4, &geometry), 4);
        assert_eq!(cuts(&Work::all_gather(DataType::Uint8, &[0, 1 << 20]), 4, &geometry), 2);
        assert_eq!(cuts(&Work::broadcast(DataType::Uint8, 8 << 20, 0, types::Rank(0)), 4, &geometry), 4);
        let slots = Geometry { slot_bytes: 2 << 20, ..geometry };
        assert_eq!(cuts(&Work::all_reduce(DataType::Uint8, Reduction::Sum, 2 << 20), 4, &slots), 1);
        let alone = Work::all_reduce(DataType::Uint8, Reduction::Max, 8 << 20);
        assert_eq!(cuts(&alone, 4, &Geometry::of(1)), 1);
    }
}
