//! How the members of a new epoch agree that it exists: one look of one of them, on nothing but facts.
//!
//! A founding is of a fixed list of members, those that one of them did not know to be gone. All must arrive in one try; then
//! whoever sees it founds the group, by a word in its memory. Whoever cannot wait for that (a member is gone, its time is
//! up) fails the try in that word. A death makes the members begin again with a shorter list; anything else is the error of
//! all, who may then try again. Why this agrees and ends: `README.md` of `foldcast-shm`.

use shm::{Founding, GroupWindows};
use types::{Cause, Ending, Rank};

/// What the members of a founding share.
pub(crate) trait Place {
    /// Says that this member takes part in this try: from now on the group may be founded.
    fn arrive(&self, number: u64);

    /// Whether a member takes part in this try.
    fn has_arrived(&self, index: usize, number: u64) -> bool;

    /// What came of it so far.
    fn founding(&self) -> Founding;

    /// Why the last try failed, if one has.
    fn why_not(&self) -> Option<Cause>;

    /// Founds the group, if this try is still open.
    fn found(&self, number: u64) -> Founding;

    /// Fails this try, if it is still open.
    fn give_up(&self, number: u64, cause: &Cause) -> Founding;
}

impl Place for GroupWindows {
    fn arrive(&self, number: u64) {
        GroupWindows::arrive(self, number);
    }

    fn has_arrived(&self, index: usize, number: u64) -> bool {
        GroupWindows::has_arrived(self, index, number)
    }

    fn founding(&self) -> Founding {
        GroupWindows::founding(self)
    }

    fn why_not(&self) -> Option<Cause> {
        self.why_not_founded()
    }

    fn found(&self, number: u64) -> Founding {
        GroupWindows::found(self, number)
    }

    fn give_up(&self, number: u64, cause: &Cause) -> Founding {
        self.give_up_founding(number, cause)
    }
}

/// What this member knows besides.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Number of members.
    pub(crate) size: usize,
    /// A member that is gone.
    pub(crate) gone: Option<(Rank, Ending)>,
    /// Why this member waits no longer.
    pub(crate) stop: Option<Cause>,
}

/// What this member remembers of a founding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    /// The failures of which its caller was told; those that come after are news.
    pub(crate) known: u64,
    /// The try in which it has arrived.
    pub(crate) number: Option<u64>,
}

/// What a look results in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Wait,
    /// The group exists, with all its members.
    Founded,
    /// It will never exist: begin again without those that are gone.
    Fewer,
    /// This try has failed, for this reason.
    Failed(Cause),
}

/// One look at a founding; `place` is `None` as long as its memory is not there.
pub(crate) fn look<P: Place>(place: Option<&P>, seat: &mut Seat, facts: &Facts) -> Step {
    let Some(place) = place else { return alone(facts) };
    let Founding::Open(failures) = place.founding() else { return Step::Founded };
    let number = match seat.number {
        Some(number) => number,
        // Without this member it cannot have been founded, and never will be.
        None if facts.gone.is_some() => return Step::Fewer,
        None => {
            let others_try = (0..facts.size).any(|index| place.has_arrived(index, failures));
            if failures > seat.known && !others_try {
                return failed(place, seat, facts, failures);
            }
            place.arrive(failures);
            *seat.number.insert(failures)
        }
    };
    let founding = if failures == number { decide(place, facts, number) } else { Founding::Open(failures) };
    match founding {
        Founding::Founded => Step::Founded,
        Founding::Open(failures) if failures == number => Step::Wait,
        Founding::Open(failures) => failed(place, seat, facts, failures),
    }
}

/// What follows from this member's own facts, where it can do nothing about the group.
fn alone(facts: &Facts) -> Step {
    match (facts.gone, &facts.stop) {
        (Some(_), _) => Step::Fewer,
        (None, Some(cause)) => Step::Failed(cause.clone()),
        (None, None) => Step::Wait,
    }
}

fn failed<P: Place>(place: &P, seat: &mut Seat, facts: &Facts, failures: u64) -> Step {
    match place.why_not() {
        // Facts reach all; to be told before is no reason to believe.
        Some(Cause::RankDied { .. }) => alone(facts),
        Some(cause) => {
            *seat = Seat { known: failures, number: None };
            Step::Failed(cause)
        }
        None => Step::Wait,
    }
}

fn decide<P: Place>(place: &P, facts: &Facts, number: u64) -> Founding {
    if let Some((peer, ending)) = facts.gone {
        return place.give_up(number, &Cause::RankDied { peer, ending });
    }
    if (0..facts.size).all(|index| place.has_arrived(index, number)) {
        return place.found(number);
    }
    match &facts.stop {
        Some(cause) => place.give_up(number, cause),
        None => Founding::Open(number),
    }
}

#[cfg(test)]
mod tests;
