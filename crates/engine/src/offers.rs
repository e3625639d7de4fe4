//! What ranks say in their slots about their buffers, and which way a call goes by that.
//!
//! A rank may read another's arrays where they are if these lie in that one's arena, and it has mapped this. Both are known to
//! one rank alone. So in a call that is worth it each rank says in its slot, behind the header's line and covered by it, what
//! holds for it; after `Meet` every rank reads the same offers and so goes on in the same way:
//!
//! * all are ready: the direct way;
//! * none is: the staged way, with first data staged before the header, as in a call without offers;
//! * some are: the late way, since those have staged nothing.
//!
//! A rank that could give but cannot read asks for the arenas of those who give. The answer comes to another thread, some
//! calls later: only what a rank has said in this very call counts.

use kernels::SharedBytes;
use plan::{Offering, Plan, Step};
use types::Buffers;
use types::transport::{Channel, Counter};

use crate::SharedWindows;

/// One way to do a call, with what follows from its plan.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) plan: Plan,
    /// How many longer payloads it has in slots.
    pub(crate) slots: u64,
    /// The last round of each counter that the plan waits for: who has published these has done its part.
    pub(crate) last_awaits: Vec<(Counter, u64)>,
    /// A paced call gives the turn back after so many waits that have ended.
    pub(crate) pace: u32,
    /// It does so after each step too, since more than it should do at a time lies between two waits.
    pub(crate) is_coarse: bool,
}

/// How much a paced call does before it gives the turn back, in bytes of its output.
const TURN_BYTES: usize = 256 << 10;

impl Course {
    /// This plan, for one of so many lanes.
    pub(crate) fn new(plan: Plan, lanes: usize) -> Course {
        let pace = pace(&plan) / lanes;
        Course {
            slots: plan.slots(),
            last_awaits: last_awaits(&plan),
            pace: u32::try_from(pace).unwrap_or(u32::MAX).max(1),
            is_coarse: pace == 0 && plan.shape.bytes > TURN_BYTES,
            plan,
        }
    }
}

/// How many waits of a plan lie between so many bytes.
fn pace(plan: &Plan) -> usize {
    let waits = plan.steps.iter().filter(|step| matches!(step, Step::Await { .. })).count();
    waits.saturating_mul(TURN_BYTES) / plan.shape.bytes.max(1)
}

fn last_awaits(plan: &Plan) -> Vec<(Counter, u64)> {
    let last = |wanted: Counter| {
        let rounds = plan.steps.iter().filter_map(|step| match step {
            Step::Await { counter, round } if *counter == wanted => Some(*round),
            _ => None,
        });
        rounds.max().map(|round| (wanted, round))
    };
    [Counter::Staged, Counter::Folded].into_iter().filter_map(last).collect()
}

/// The ways of a call with offers, beside the staged one.
#[derive(Debug)]
pub(crate) struct Others {
    pub(crate) late: Course,
    pub(crate) direct: Course,
    /// The step of the late plan after `Meet`.
    late_start: usize,
    /// How many steps from there on stage what the staged plan does before its header.
    staged_before: usize,
}

impl Others {
    /// The staged course, and the others.
    pub(crate) fn split(offering: Offering, lanes: usize) -> (Course, Others) {
        let staged_before = offering.staged_before();
        let Offering { staged, late, direct } = offering;
        let late_start = late.steps.iter().position(|step| *step == Step::Meet).map_or(0, |meet| meet + 1);
        let [staged, late, direct] = [staged, late, direct].map(|plan| Course::new(plan, lanes));
        (staged, Others { late, direct, late_start, staged_before })
    }

    /// Where a rank goes on after `Meet` in the late way.
    pub(crate) fn late_step(&self, has_staged: bool) -> usize {
        self.late_start + if has_staged { self.staged_before } else { 0 }
    }

    pub(crate) fn steps(&self) -> usize {
        self.late.plan.steps.len() + self.direct.plan.steps.len()
    }
}

/// Which of the plans of a call a rank is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Staged,
    Late,
    Direct,
}

/// What a rank says of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Nobody else can read them.
    Private,
    /// Others can read them, but it cannot read those of all others.
    Blind,
    /// It can read all others' arenas, and the buffers are at these places of its own.
    Ready(Places),
}

/// Where a rank's buffers are in its arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// Bytes of an offer: they fit the header's own line.
const OFFER_BYTES: usize = 24;

impl Offer {
    /// What this rank has to say of these buffers.
    pub(crate) fn of<W: SharedWindows>(windows: &W, buffers: &Buffers<'_>) -> Offer {
        let places = match buffers {
            Buffers::Separate { input, output } => (windows.place_of(input), windows.place_of(output)),
            Buffers::InPlace(both) => (windows.place_of(both), windows.place_of(both)),
        };
        match places {
            (Some(input), Some(output)) if windows.reads_all() => Offer::Ready(Places { input, output }),
            (Some(_), Some(_)) => Offer::Blind,
            _ => Offer::Private,
        }
    }

    /// Says it, in the slot of this rank.
    pub(crate) fn say<W: SharedWindows>(self, windows: &W, channel: Channel, sequence: u64) {
        kernels::copy_in(windows.slot(channel, windows.rank(), sequence, OFFER_BYTES), &self.encode());
    }

    /// What rank `owner` has said; `None` if it makes no sense.
    pub(crate) fn hear<W: SharedWindows>(windows: &W, channel: Channel, owner: usize, sequence: u64) -> Option<Offer> {
        let mut bytes = [0; OFFER_BYTES];
        let slot: SharedBytes<'_> = windows.slot(channel, owner, sequence, OFFER_BYTES);
        kernels::copy_out(&mut bytes, slot);
        Offer::decode(&bytes)
    }

    fn encode(self) -> [u8; OFFER_BYTES] {
        let words = match self {
            Offer::Private => [0, 0, 0],
            Offer::Blind => [1, 0, 0],
            Offer::Ready(Places { input, output }) => [2, input, output],
        };
        let mut bytes = [0; OFFER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&u64::to_le_bytes(word));
        }
        bytes
    }

    fn decode(bytes: &[u8; OFFER_BYTES]) -> Option<Offer> {
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        match (words.next()?, words.next()?, words.next()?) {
            (0, ..) => Some(Offer::Private),
            (1, ..) => Some(Offer::Blind),
            (2, input, output) => Some(Offer::Ready(Places { input, output })),
            _ => None,
        }
    }
}

/// What all ranks have said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All go this way.
    Go(Way),
    /// All can read all buffers, which are at these places.
    Direct(Vec<Places>),
    /// This rank has written nonsense.
    Nonsense(usize),
}

/// Hears all offers of a call of so many bytes, of which this rank's own is `own`; asks for arenas that this rank needs.
pub(crate) fn hear_all<W: SharedWindows>(
    windows: &W,
    channel: Channel,
    sequence: u64,
    own: Offer,
    bytes: usize,
) -> Outcome {
    let (rank, ranks) = (windows.rank(), windows.geometry().ranks);
    let mut places = Vec::with_capacity(ranks);
    for index in 0..ranks {
        let heard = if index == rank { Some(own) } else { Offer::hear(windows, channel, index, sequence) };
        match heard {
            None => return Outcome::Nonsense(index),
            Some(Offer::Ready(at)) => places.push(at),
            Some(_) => {}
        }
        if own == Offer::Blind && index != rank && heard != Some(Offer::Private) {
            windows.ask_to_read(index);
        }
    }
    if places.is_empty() {
        return Outcome::Go(Way::Staged);
    }
    if places.len() < ranks {
        return Outcome::Go(Way::Late);
    }
    // Each has promised that it lies in its arena; who does not keep it has written where he should not.
    let is_there = |index: usize, place: u64| index == rank || windows.foreign(index, place, bytes).is_some();
    let is_right = |(index, at): &(usize, &Places)| is_there(*index, at.input) && is_there(*index, at.output);
    match places.iter().enumerate().find(|placed| !is_right(placed)) {
        Some((index, _)) => Outcome::Nonsense(index),
        None => Outcome::Direct(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_round_trip_and_nonsense_is_known() {
        let ready = Offer::Ready(Places { input: 4096, output: u64::MAX });
        for offer in [Offer::Private, Offer::Blind, ready] {
            assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        }
        assert_eq!(Offer::decode(&[0xff; OFFER_BYTES]), None);
        assert_eq!(Offer::decode(&[0; OFFER_BYTES]), Some(Offer::Private));
    }
}
