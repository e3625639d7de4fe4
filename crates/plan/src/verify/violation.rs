use core::fmt;

use types::transport::Counter;

use crate::step::{Span, Step};

/// What is wrong with a sequence of calls, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which call of the sequence, from 0.
    pub call: usize,
    /// Whose plan.
    pub rank: usize,
    /// Which step of the plan, if it is about one.
    pub step: Option<(usize, Step)>,
    /// What is wrong.
    pub fault: Fault,
}

/// A piece of shared memory, physically: places that share bytes are the same area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// The header of a slot cell.
    Header {
        /// The rank that owns the cell; 0 for two ranks, which share both cells.
        owner: usize,
        /// Which of two cells.
        cell: u64,
    },
    /// The payload beside the header of a slot cell.
    Beside {
        /// As for the header.
        owner: usize,
        /// Which of two cells.
        cell: u64,
    },
    /// The longer payload of a slot cell.
    Slot {
        /// As for the header.
        owner: usize,
        /// Which of two cells.
        cell: u64,
    },
    /// A hand-over buffer between two ranks.
    Pair {
        /// The lower of the two ranks.
        low: usize,
        /// The higher.
        high: usize,
        /// Which of the buffers used in turn.
        index: u64,
        /// Which side of it.
        side: u64,
    },
    /// A gather buffer.
    Gather {
        /// The rank that owns it.
        owner: usize,
        /// Which of two.
        index: u64,
    },
    /// The buffers of a rank, which others read where they are. Input and output are taken for one, as they are in place:
    /// apart, there is less that could go wrong.
    Buffers {
        /// The rank that they belong to.
        owner: usize,
    },
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// What a rank waits for that never comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The header of another rank.
    Header {
        /// The other rank.
        from: usize,
    },
    /// A value of another rank's counter.
    Counter {
        /// The other rank.
        from: usize,
        /// Which counter.
        counter: Counter,
        /// The value that it does not reach.
        value: u64,
    },
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The shape makes no sense, or is not one for this group.
    Shape(&'static str),
    /// The plans of two ranks differ in what must be equal.
    Disagreement {
        /// The other rank.
        other: usize,
        /// Which field.
        field: &'static str,
    },
    /// A span is empty, or not within the user's buffers.
    Span {
        /// Size of the user's buffers.
        bytes: usize,
    },
    /// A rank reads input that is not its to give.
    NotItsShare {
        /// What it gives.
        share: Span,
    },
    /// The step is not for calls of this kind: what is reduced is folded, what is only moved stays as it is.
    NotForKind,
    /// A span begins or ends inside an element.
    CutElement {
        /// Bytes of an element.
        element: usize,
    },
    /// The rank named in a step is not another rank of the group.
    NotAPeer {
        /// That rank.
        named: usize,
    },
    /// The round is not one of the call's.
    Round {
        /// The round.
        round: u64,
        /// How many the call has.
        rounds: u64,
    },
    /// More is put into a place than it holds.
    Room {
        /// How much is put there.
        bytes: usize,
        /// How much fits.
        room: usize,
    },
    /// Slots hold whole payloads: where they lie depends on their length.
    PartOfSlot,
    /// A step that is made for two ranks, in a group of another size.
    NotTwoRanks,
    /// Other ranks' buffers are read that were not offered, or are not readable.
    NotOffered,
    /// There are two offers, or the slot that holds one is used for something else.
    OffersCollide,
    /// A plan publishes or awaits a counter that is not for plans.
    ForeignCounter(Counter),
    /// Not exactly one `Announce` and then one `Meet` (none at all for one rank).
    Headers,
    /// A counter, a wait or an output before `Meet`.
    BeforeMeet,
    /// A counter is set to no more than it was.
    CounterBackwards {
        /// Which counter.
        counter: Counter,
        /// Its value.
        from: u64,
        /// The value to be set.
        to: u64,
    },
    /// The rank waits for ever.
    Deadlock(Missing),
    /// One step reads and writes the same area, or the same bytes of the user's buffers at different places.
    Aliased,
    /// Bytes are read that nobody wrote.
    Unwritten {
        /// Where.
        area: Area,
        /// Which bytes of it.
        bytes: Span,
    },
    /// Two ranks touch the same bytes, one of them writing, and nothing orders them.
    Race {
        /// Where.
        area: Area,
        /// Which bytes of it.
        bytes: Span,
        /// What this step does.
        access: Access,
        /// What the other does.
        other_access: Access,
        /// The other rank.
        other: usize,
        /// The other's call.
        other_call: usize,
        /// The other's step.
        other_step: usize,
    },
    /// An element is used at a place that is not its own.
    Misplaced {
        /// Where in the user's buffers it is used.
        span: Span,
        /// Where it comes from.
        from: usize,
    },
    /// The output is not what the call is to give: the canonical tree over all ranks' inputs of this call, or the input
    /// of the one rank that gives these bytes.
    WrongTree {
        /// Where in the output.
        span: Span,
        /// What it would be.
        got: String,
        /// What it must be.
        expected: String,
    },
    /// Input is read where the output has been written: wrong if the two are one buffer.
    InputOverwritten {
        /// Where.
        span: Span,
    },
    /// Output is written again.
    OutputTwice {
        /// Where.
        span: Span,
    },
    /// Output is not written.
    OutputMissing {
        /// Where.
        span: Span,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, rank {}", self.call, self.rank)?;
        if let Some((index, step)) = &self.step {
            write!(f, ", step {index} ({step})")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl core::error::Error for Violation {}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Area::Header { owner, cell } => write!(f, "header {cell} of rank {owner}"),
            Area::Beside { owner, cell } => write!(f, "payload beside header {cell} of rank {owner}"),
            Area::Slot { owner, cell } => write!(f, "slot {cell} of rank {owner}"),
            Area::Pair { low, high, index, side } => {
                write!(f, "side {side} of pair buffer {index} of rank {low} and rank {high}")
            }
            Area::Gather { owner, index } => write!(f, "gather buffer {index} of rank {owner}"),
            Area::Buffers { owner } => write!(f, "the buffers of rank {owner}"),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Access::Read { "read" } else { "write" })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Header { from } => write!(f, "the header of rank {from}"),
            Missing::Counter { from, counter, value } => write!(f, "{counter:?} of rank {from} to reach {value}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Shape(what) => write!(f, "bad shape: {what}"),
            Fault::Disagreement { other, field } => write!(f, "its {field} differs from that of rank {other}"),
            Fault::Span { bytes } => write!(f, "the span is empty or not within the {bytes} bytes of the buffers"),
            Fault::NotItsShare { share } => write!(f, "the rank gives {share:?} of the whole and nothing else"),
            Fault::NotForKind => f.write_str("the step is not for calls of this kind"),
            Fault::CutElement { element } => write!(f, "the span cuts an element of {element} bytes"),
            Fault::NotAPeer { named } => write!(f, "rank {named} is not another rank of the group"),
            Fault::Round { round, rounds } => write!(f, "round {round} of a call of {rounds} rounds"),
            Fault::Room { bytes, room } => write!(f, "{bytes} bytes in a place that holds {room}"),
            Fault::PartOfSlot => f.write_str("a slot holds the whole payload, never a part"),
            Fault::NotTwoRanks => f.write_str("the step is for groups of two ranks"),
            Fault::NotOffered => f.write_str("it reads buffers of other ranks that they have not offered"),
            Fault::OffersCollide => f.write_str("the slot holds an offer, and is used a second time"),
            Fault::ForeignCounter(counter) => write!(f, "{counter:?} is not a counter for plans"),
            Fault::Headers => f.write_str("a plan of several ranks has one Announce and later one Meet, of one none"),
            Fault::BeforeMeet => f.write_str("it counts before Meet, where only staging and the header may stand"),
            Fault::CounterBackwards { counter, from, to } => write!(f, "{counter:?} is set from {from} to {to}"),
            Fault::Deadlock(missing) => write!(f, "waits for ever for {missing}"),
            Fault::Aliased => f.write_str("the step reads and writes the same memory"),
            Fault::Unwritten { area, bytes } => write!(f, "reads bytes {bytes:?} of {area}, which nobody wrote"),
            Fault::Race { area, bytes, access, other_access, other, other_call, other_step } => write!(
                f,
                "{access} of bytes {bytes:?} of {area}, unordered with the {other_access} by rank {other} in step \
                 {other_step} of call {other_call}"
            ),
            Fault::Misplaced { span, from } => write!(f, "output {span:?} is made of elements at {from}"),
            Fault::WrongTree { span, got, expected } => write!(f, "output {span:?} is {got} instead of {expected}"),
            Fault::InputOverwritten { span } => write!(f, "input {span:?} is read after output was written there"),
            Fault::OutputTwice { span } => write!(f, "output {span:?} is written twice"),
            Fault::OutputMissing { span } => write!(f, "output {span:?} is never written"),
        }
    }
}
