//! The steps of a call that move or fold bytes.

use kernels::{Hints, SharedBytes, Source};
use plan::{Place, Sources, Span, Step};
use types::Buffers;
use types::transport::{Peers, SLOT_INLINE_BYTES};

use super::{ChannelState, Execution};
use crate::call::{Call, Prepared};
use crate::{Ground, SharedWindows};

impl Execution {
    /// A step that moves or folds bytes, and never waits.
    #[inline]
    pub(super) fn carry_out<W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'_, W, P>,
        state: &ChannelState,
        call: &Call,
        buffers: &mut Buffers<'_>,
        step: &Step,
    ) {
        let prepared = &*call.prepared;
        match step {
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
                Self::collect(prepared, buffers, span, place);
            }
            Step::Take { span, from } => {
                let hints = Hints { streaming: Self::streams(prepared, buffers), take_ownership: false };
                let source = self.foreign(ground, *from, self.places[*from].output, span);
                kernels::take(buffers.output(span.clone()), source, hints);
            }
            Step::Offer | Step::Announce | Step::Meet | Step::Publish { .. } | Step::Await { .. } => {}
        }
    }

    fn collect(prepared: &Prepared, buffers: &mut Buffers<'_>, span: &Span, place: SharedBytes<'_>) {
        let hints = Hints { streaming: Self::streams(prepared, buffers), take_ownership: false };
        kernels::copy_out_with(buffers.output(span.clone()), place, hints);
    }

    #[inline]
    pub(super) fn streams(prepared: &Prepared, buffers: &Buffers<'_>) -> bool {
        prepared.leaves_caches && !buffers.is_in_place()
    }

    /// The turn in which this call's slot with so long a payload is written.
    #[inline]
    const fn slot_turn(&self, state: &ChannelState, len: usize) -> u64 {
        if len <= SLOT_INLINE_BYTES { self.sequence } else { state.slots }
    }

    fn place<'w, W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'w, W, P>,
        state: &ChannelState,
        place: &Place,
        len: usize,
    ) -> SharedBytes<'w> {
        let (windows, own) = (ground.windows, ground.windows.rank());
        match place {
            Place::Slot => windows.slot(state.channel, own, self.slot_turn(state, len), len),
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
        let other = |index: usize| match sources {
            Sources::Pairs { round } => {
                Source::Shared(windows.pair(state.channel, index, own, state.uses + round, len))
            }
            Sources::Inputs => Source::Foreign(self.foreign(ground, index, self.places[index].input, span)),
            Sources::Own | Sources::Slots => {
                Source::Shared(windows.slot(state.channel, index, self.slot_turn(state, len), len))
            }
        };
        let hints = Hints {
            // What others take from here must not leave the cache.
            streaming: *sources != Sources::Inputs && Self::streams(&call.prepared, buffers),
            take_ownership: match sources {
                Sources::Own | Sources::Inputs => false,
                Sources::Slots => ranks == 2,
                Sources::Pairs { .. } => true,
            },
        };
        let fold = call.prepared.fold;
        match (sources, ranks) {
            (Sources::Own, _) => fold.fold(buffers, span.clone(), &[Source::Own], also, hints),
            (_, 2) => {
                let other = other(1 - own);
                let sources = if own == 0 { [Source::Own, other] } else { [other, Source::Own] };
                fold.fold(buffers, span.clone(), &sources, also, hints);
            }
            _ => {
                let source = |index| if index == own { Source::Own } else { other(index) };
                let sources: Vec<_> = (0..ranks).map(source).collect();
                fold.fold(buffers, span.clone(), &sources, also, hints);
            }
        }
    }

    /// A span of a buffer of another rank, which begins at this place of its arena.
    fn foreign<'w, W: SharedWindows, P: Peers>(
        &self,
        ground: Ground<'w, W, P>,
        owner: usize,
        place: u64,
        span: &Span,
    ) -> kernels::ForeignBytes<'w> {
        let start = u64::try_from(span.start).expect("a length in memory fits 64 bits");
        let found = ground.windows.foreign(owner, place + start, span.len());
        found.expect("the whole buffer was found to be there when the offers were heard, and what is mapped stays")
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
}
