//! Large unnamed allreduces are cut into lanes, so that a rank can work on one call with several threads.
//!
//! A lane is a call of its own, on a channel of its own: it has the plan for its part of the bytes, and meets nobody but the
//! same lane of the other ranks. What an element becomes does not depend on how a call is cut. The first lane is the
//! channel of all unnamed calls. The others begin when the headers of the first have met and agree: so a mismatch, or a rank
//! that makes a small call, never leaves a lane waiting for what will not come. From then on whatever fails ends the
//! epoch: a call that is cut ends on all channels or on none.
//!
//! Who polls a lane does not matter: threads that take one each, or one thread that goes round.

use core::task::Poll;

use plan::Span;
use types::error::Cause;
use types::transport::{Channel, Geometry, Peers};
use types::{Buffers, CallSite, Error, Result};

use crate::call::Call;
use crate::execution::{ChannelState, Execution};
use crate::work::Work;
use crate::{Ground, SharedWindows};

/// A lane has at least so many bytes, or waking a thread for it would cost more than it does: so calls of 1 MiB and more are cut.
const LEAST_LANE_BYTES: usize = 512 << 10;

/// Where chunks are small, fewer will do: so many chunks.
const LEAST_LANE_CHUNKS: usize = 8;

/// Into how many lanes a call is cut, in a group that has `lanes`.
pub(crate) fn cuts(work: &Work, lanes: usize, geometry: &Geometry) -> usize {
    if lanes == 1 || geometry.ranks == 1 || !work.is_of_all() {
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

/// Cuts buffers at the ends of spans that follow each other from the beginning.
#[must_use]
pub fn cut_buffers<'a>(buffers: Buffers<'a>, spans: impl IntoIterator<Item = Span>) -> Vec<Buffers<'a>> {
    let mut rest = buffers;
    let mut cut = Vec::new();
    for span in spans {
        let (first, others) = rest.split_at(span.len());
        cut.push(first);
        rest = others;
    }
    cut
}

/// Where the channels of the lanes beside the first stand.
#[derive(Debug, Default)]
pub struct Others(Vec<ChannelState>);

impl Others {
    /// The first so many of them.
    fn states(&mut self, count: usize) -> &mut [ChannelState] {
        while self.0.len() < count {
            let lane = u8::try_from(self.0.len() + 1).expect("few lanes (Geometry::MAX_LANES)");
            self.0.push(ChannelState::new(Channel::Lane(lane)));
        }
        &mut self.0[..count]
    }
}

/// A call on its way that is cut into lanes.
#[derive(Debug)]
pub struct Cut {
    /// The first one first.
    runs: Vec<Run>,
    paced: bool,
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
        Cut { runs, paced: false }
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
        self.runs.iter().flat_map(|run| &run.execution).any(Execution::has_paused)
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
        let (mut own, _) = buffers.reborrow().split_at(call.prepared.span.len());
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
        let Cut { runs, paced } = self;
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
        let buffers = cut_buffers(buffers, runs.iter().map(|run| run.call.prepared.span.clone()));
        let lanes = runs.iter_mut().zip(states).zip(buffers);
        lanes.filter_map(|((run, state), buffers)| Lane::new(run, state, buffers)).collect()
    }

    /// Runs all lanes on the calling thread as far as possible.
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
        match self.meet(ground, first, buffers, look) {
            Poll::Ready(Ok(())) => {}
            other => return other,
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
    fn only_large_allreduces_are_cut() {
        let geometry = Geometry::of(2);
        let cut = |bytes, lanes| cuts(&Work::all_reduce(DataType::Float32, Reduction::Sum, bytes), lanes, &geometry);
        assert_eq!([cut(0, 4), cut(8, 4), cut((1 << 20) - 4, 4)], [1, 1, 1]);
        assert_eq!([cut(1 << 20, 1), cut(1 << 20, 2), cut(1 << 20, 16)], [1, 2, 2]);
        assert_eq!([cut(3 << 19, 16), cut(2 << 20, 16), cut(64 << 20, 16)], [3, 4, 16]);
        assert_eq!(cuts(&Work::barrier(), 4, &geometry), 1);
        assert_eq!(cuts(&Work::all_gather(DataType::Uint8, &[8 << 20; 2]), 4, &geometry), 1);
        let alone = Work::all_reduce(DataType::Uint8, Reduction::Max, 8 << 20);
        assert_eq!(cuts(&alone, 4, &Geometry::of(1)), 1);
    }
}
