//! The founding of the group whose memory this is; see [`crate::founding`].

use std::sync::atomic::Ordering as LocalOrdering;

use types::Cause;
use types::transport::Windows;

use super::{CAUSE_WORDS, GroupWindows, store_bytes};
use crate::founding::{self, Decision, Founding};
use crate::layout::count;
use crate::primitive::AtomicU64;

impl GroupWindows {
    /// Says that this rank takes part in the founding: from now on the group may come to be at any moment.
    pub fn arrive(&self) {
        founding::arrive(self.word(self.layout.arrived(self.rank)));
        self.wake();
    }

    /// Whether the member of this index takes part.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn has_arrived(&self, index: usize) -> bool {
        founding::has_arrived(self.word(self.layout.arrived(self.bound(index))))
    }

    /// What came of the founding so far.
    #[must_use]
    pub fn founding(&self) -> Founding {
        founding::decision(self.word(self.layout.founding())).map_or(Founding::Open, |made| self.outcome(made))
    }

    /// Founds the group, unless it was given up before. Only a member that has seen all members arrive may.
    pub fn found(&self) -> Founding {
        self.decide(Decision::Founded)
    }

    /// Gives the founding up on all members, unless the group was founded before: then it stays, and so does this rank's
    /// part in it.
    pub fn give_up_founding(&self, cause: &Cause) -> Founding {
        let spoke = self.has_spoken.swap(true, LocalOrdering::Relaxed);
        if !spoke {
            // The cause is complete before the decision names its author.
            let line = self.layout.cause(self.rank);
            store_bytes(self.segment.at::<[AtomicU64; CAUSE_WORDS]>(line), &cause.encode());
        }
        let outcome = self.decide(Decision::Failed(self.rank));
        if outcome == Founding::Founded && !spoke {
            // Nobody was told: the line is free for what ends the group later.
            self.has_spoken.store(false, LocalOrdering::Relaxed);
        }
        outcome
    }

    fn decide(&self, wanted: Decision) -> Founding {
        let made = founding::decide(self.word(self.layout.founding()), wanted);
        self.wake();
        self.outcome(made)
    }

    fn outcome(&self, made: Decision) -> Founding {
        match made {
            Decision::Founded => Founding::Founded,
            Decision::Failed(author) => Founding::Failed(self.cause_by(count(author).saturating_add(1))),
        }
    }
}
