use core::fmt;

use types::transport::Counter;

/// Bytes of the user's buffers: offsets into input and output.
pub type Span = core::ops::Range<usize>;

/// A piece of shared memory, as seen by the rank that writes it. Rounds count from 0 within the call; the engine adds
/// the channel's use count, which gives the `turn` of pair and gather buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The writer's own slot of this call.
    Slot,
    /// The hand-over buffer from the writer to `reader`.
    Pair {
        /// The one rank that reads it.
        reader: usize,
        /// Round of the call.
        round: u64,
    },
    /// The writer's gather buffer.
    Gather {
        /// Round of the call.
        round: u64,
    },
}

/// What a [`Step::Fold`] folds. The canonical tree over group ranks is the order, whatever the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sources {
    /// The own input alone: a group of one.
    Own,
    /// The own input, and every other rank's slot. The span is the whole payload.
    Slots,
    /// The own input, and the hand-over buffer from every other rank to this one.
    Pairs {
        /// Round of the call.
        round: u64,
    },
    /// The input of every rank, where it is: only of ranks that can read each other's buffers.
    Inputs,
}

/// One step of a rank's plan. Steps run in order; only [`Meet`](Step::Meet) and [`Await`](Step::Await) wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Copies `input[span]` to the beginning of a place. (Spans count from the beginning of the whole, also where the
    /// input is a piece of it.)
    Stage {
        /// What is copied.
        span: Span,
        /// Where to.
        to: Place,
    },
    /// Says in the own slot where this rank's buffers are and whether it can read those of all others. Once a call, before
    /// `Announce`; such a call has no other use for its slots.
    Offer,
    /// Publishes the header of this call: whoever sees it sees all that this rank wrote before.
    Announce,
    /// Waits for every rank's header of this call, and compares them; then, in a call with offers, reads them. Nothing counts
    /// before.
    Meet,
    /// Sets the own counter to `use count + round + 1`: whoever sees it sees all that this rank wrote before.
    Publish {
        /// Which counter.
        counter: Counter,
        /// Round of the call.
        round: u64,
    },
    /// Waits until that counter of every other rank is at least `use count + round + 1`.
    Await {
        /// Which counter.
        counter: Counter,
        /// Round of the call.
        round: u64,
    },
    /// `output[span]` = the canonical tree over all ranks' sources.
    Fold {
        /// What is written; each source holds it from its beginning.
        span: Span,
        /// What is folded.
        sources: Sources,
        /// A second place that receives the result, from its beginning.
        also: Option<Place>,
    },
    /// For two ranks: `output[span]` = the own input and the other rank's hand-over buffer of `round`; in the same
    /// loop, `input[stage.0]` goes to the own hand-over buffer of round `stage.1`.
    FoldAndStage {
        /// What is written.
        span: Span,
        /// Round of the hand-over buffer that is folded.
        round: u64,
        /// What is staged for a later round, if anything is left.
        stage: Option<(Span, u64)>,
    },
    /// `output[span]` = `input[span]`, byte for byte. In place there is nothing to do. (A fold of one source is not the
    /// same: it makes NaNs canonical.)
    Keep {
        /// What is copied.
        span: Span,
    },
    /// `output[span]` = the gather buffer of rank `from`.
    Collect {
        /// What is written.
        span: Span,
        /// Whose gather buffer.
        from: usize,
        /// Round of the call.
        round: u64,
    },
    /// `output[span]` = `output[span]` of rank `from`, which has it already.
    Take {
        /// What is written.
        span: Span,
        /// Whose output.
        from: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Slot => f.write_str("own slot"),
            Place::Pair { reader, round } => write!(f, "hand-over buffer to rank {reader}, round {round}"),
            Place::Gather { round } => write!(f, "own gather buffer, round {round}"),
        }
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sources::Own => f.write_str("own input"),
            Sources::Slots => f.write_str("own input and all slots"),
            Sources::Pairs { round } => write!(f, "own input and hand-over buffers, round {round}"),
            Sources::Inputs => f.write_str("all inputs where they are"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Stage { span, to } => write!(f, "Stage input {span:?} to {to}"),
            Step::Offer => f.write_str("Offer own buffers"),
            Step::Announce => f.write_str("Announce"),
            Step::Meet => f.write_str("Meet"),
            Step::Publish { counter, round } => write!(f, "Publish {counter:?} round {round}"),
            Step::Await { counter, round } => write!(f, "Await {counter:?} round {round}"),
            Step::Fold { span, sources, also: None } => write!(f, "Fold output {span:?} from {sources}"),
            Step::Fold { span, sources, also: Some(also) } => {
                write!(f, "Fold output {span:?} from {sources}; also to {also}")
            }
            Step::FoldAndStage { span, round, stage: None } => {
                write!(f, "Fold output {span:?} from own input and hand-over buffer, round {round}")
            }
            Step::FoldAndStage { span, round, stage: Some((staged, ahead)) } => write!(
                f,
                "Fold output {span:?} from own input and hand-over buffer, round {round}; stage input {staged:?} for \
                 round {ahead}"
            ),
            Step::Keep { span } => write!(f, "Keep input {span:?} as output"),
            Step::Collect { span, from, round } => {
                write!(f, "Collect output {span:?} from gather buffer of rank {from}, round {round}")
            }
            Step::Take { span, from } => write!(f, "Take output {span:?} from output of rank {from}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_cache_line() {
        assert!(size_of::<Step>() <= 64, "{} bytes: plans of large calls have 100,000s of steps", size_of::<Step>());
    }
}
