//! How the members of a new epoch agree that it exists: one look of one of them, on nothing but facts.
//!
//! A founding is of a fixed list of members, those that one of them did not know to be gone. All of them must arrive; then
//! whoever sees it founds the group, by a word in its memory that is set once. Whoever cannot wait for that (a member is gone,
//! its time is up) sets the word to say so. A death makes the members begin again with a shorter list, anything else ends
//! the attempt on all. Why this agrees and ends: `README.md` of `foldcast-shm`.

use shm::{Founding, GroupWindows};
use types::transport::Windows;
use types::{Cause, Ending, Rank};

/// What the members of a founding share.
pub(crate) trait Place {
    /// Says that this member takes part: from now on the group may be founded.
    fn arrive(&self);

    /// Whether a member takes part.
    fn has_arrived(&self, index: usize) -> bool;

    /// What came of it so far.
    fn founding(&self) -> Founding;

    /// Founds the group, unless it was given up before.
    fn found(&self) -> Founding;

    /// Gives it up, unless the group was founded before.
    fn give_up(&self, cause: &Cause) -> Founding;

    /// Why a member gave it up before it had arrived.
    fn refusal(&self) -> Option<Cause>;
}

impl Place for GroupWindows {
    fn arrive(&self) {
        GroupWindows::arrive(self);
    }

    fn has_arrived(&self, index: usize) -> bool {
        GroupWindows::has_arrived(self, index)
    }

    fn founding(&self) -> Founding {
        GroupWindows::founding(self)
    }

    fn found(&self) -> Founding {
        GroupWindows::found(self)
    }

    fn give_up(&self, cause: &Cause) -> Founding {
        self.give_up_founding(cause)
    }

    fn refusal(&self) -> Option<Cause> {
        self.aborted()
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

/// What a look results in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Wait,
    /// The group exists, with all its members.
    Founded,
    /// It will never exist: begin again without those that are gone.
    Fewer,
    /// It will never exist, for this reason.
    Failed(Cause),
}

/// One look at a founding; `place` is `None` as long as its memory is not there. `arrived` is this member's memory of having
/// arrived: false before the first look.
pub(crate) fn look<P: Place>(place: Option<&P>, arrived: &mut bool, facts: &Facts) -> Step {
    let Some(place) = place else { return alone(facts) };
    if !*arrived {
        if facts.gone.is_some() {
            // Without this member it cannot have been founded, and never will be.
            return Step::Fewer;
        }
        place.arrive();
        *arrived = true;
    }
    let founding = match place.founding() {
        Founding::Open => decide(place, facts),
        made => made,
    };
    match founding {
        Founding::Open => Step::Wait,
        Founding::Founded => Step::Founded,
        // Facts reach all; to be told before is no reason to believe.
        Founding::Failed(Cause::RankDied { .. }) => alone(facts),
        Founding::Failed(cause) => Step::Failed(cause),
    }
}

/// What follows from this member's own facts, where the group cannot exist.
fn alone(facts: &Facts) -> Step {
    match (facts.gone, &facts.stop) {
        (Some(_), _) => Step::Fewer,
        (None, Some(cause)) => Step::Failed(cause.clone()),
        (None, None) => Step::Wait,
    }
}

fn decide<P: Place>(place: &P, facts: &Facts) -> Founding {
    let died = facts.gone.map(|(peer, ending)| Cause::RankDied { peer, ending });
    if let Some(cause) = place.refusal().or(died) {
        return place.give_up(&cause);
    }
    if (0..facts.size).all(|index| place.has_arrived(index)) {
        return place.found();
    }
    match &facts.stop {
        Some(cause) => place.give_up(cause),
        None => Founding::Open,
    }
}

#[cfg(test)]
mod tests;
