//! The founding of the group whose memory this is; see [`crate::founding`].

use types::Cause;
use types::transport::Windows;

use super::{CAUSE_WORDS, GroupWindows, store_bytes};
use crate::founding::{self, Founding};
use crate::layout::count;
use crate::primitive::AtomicU64;

impl GroupWindows {
    /// Says that this rank takes part in this try to found the group, which may come to be at any moment from now on.
    pub fn arrive(&self, number: u64) {
        founding::arrive(self.word(self.layout.arrived(self.rank)), number);
        self.wake();
    }

    /// Whether the member of this index takes part in this try.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn has_arrived(&self, index: usize, number: u64) -> bool {
        founding::has_arrived(self.word(self.layout.arrived(self.bound(index))), number)
    }

    /// What came of the founding so far.
    #[must_use]
    pub fn founding(&self) -> Founding {
        founding::founding(self.word(self.layout.founding()))
    }

    /// Why the last try failed, if one has.
    #[must_use]
    pub fn why_not_founded(&self) -> Option<Cause> {
        let author = founding::author(self.word(self.layout.founding()))?;
        Some(self.cause_by(count(author) + 1))
    }

    /// Founds the group, if this try is still open. Only a member that has seen all members arrive in it may.
    pub fn found(&self, number: u64) -> Founding {
        let outcome = founding::found(self.word(self.layout.founding()), number);
        self.wake();
        outcome
    }

    /// Fails this try on all members, if it is still open. If the group was founded before, it stays, and so does this rank's
    /// part in it.
    ///
    /// One thread of a process at a time may call it, and none after the group was founded.
    pub fn give_up_founding(&self, number: u64, cause: &Cause) -> Founding {
        // The cause is complete before the word names its author. It is the line of what ends the group later: until the
        // group is founded nothing can.
        let line = self.layout.cause(self.rank);
        store_bytes(self.segment.at::<[AtomicU64; CAUSE_WORDS]>(line), &cause.encode());
        let outcome = founding::give_up(self.word(self.layout.founding()), number, self.rank);
        self.wake();
        outcome
    }
}
