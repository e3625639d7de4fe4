//! The life of a group's epoch: live, then over, with the first cause.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use types::error::{Cause, GroupAborted, RankDied};
use types::{CallSite, Error};

/// Whether an epoch is live, shared by all calls of this process on that group.
#[derive(Debug, Default)]
pub struct Life {
    over: AtomicBool,
    closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cause: Option<Cause>,
    /// Whether a call of this rank has already raised the cause itself.
    reported: bool,
}

impl Life {
    /// Whether calls may go on.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    /// Ends the epoch in this process; the first cause stays, and what this process closed needs none.
    pub fn end(&self, cause: &Cause) {
        let mut state = self.lock();
        if state.cause.is_none() && !self.closed.load(Ordering::Acquire) {
            state.cause = Some(cause.clone());
        }
        self.over.store(true, Ordering::Release);
    }

    /// Closes the group in order: later and pending calls get [`Error::Closed`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.over.store(true, Ordering::Release);
    }

    /// Why the epoch ended, if it did by a failure.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.lock().cause.clone()
    }

    /// The error of a call that finds the epoch over.
    ///
    /// A death is raised as such by the calls that were pending when it became known, or else by the first call after
    /// it, since that call depended on the dead rank too; every later call says that the group was aborted.
    #[must_use]
    pub fn error(&self, site: CallSite, elapsed: Duration, pending: bool) -> Error {
        let mut state = self.lock();
        let Some(cause) = state.cause.clone() else {
            return Error::Closed { what: format!("{site}: the group") };
        };
        let first = pending || !state.reported;
        state.reported = true;
        match cause {
            Cause::RankDied { peer, ending } if first => {
                Error::RankDied(Box::new(RankDied { site, peer, ending, elapsed }))
            }
            cause => Error::GroupAborted(Box::new(GroupAborted { site, cause, elapsed })),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic while the lock was held cannot leave the two plain fields half-written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Ending, GroupName, Rank};

    fn site() -> CallSite {
        CallSite { rank: Rank(0), op: "allreduce", tag: None, group: GroupName::world() }
    }

    #[test]
    fn the_first_cause_stays_and_is_raised_once_as_itself() {
        let life = Life::default();
        assert!(life.is_live());
        life.end(&Cause::RankDied { peer: Rank(2), ending: Ending::Signalled(9) });
        life.end(&Cause::Requested { by: Rank(1) });
        assert!(!life.is_live());
        assert!(matches!(life.error(site(), Duration::ZERO, true), Error::RankDied(e) if e.peer == Rank(2)));
        assert!(matches!(life.error(site(), Duration::ZERO, true), Error::RankDied(_)));
        assert!(matches!(life.error(site(), Duration::ZERO, false), Error::GroupAborted(e)
            if matches!(e.cause, Cause::RankDied { peer: Rank(2), .. })));
    }

    #[test]
    fn the_first_call_after_a_death_raises_it() {
        let life = Life::default();
        life.end(&Cause::RankDied { peer: Rank(2), ending: Ending::Unknown });
        assert!(matches!(life.error(site(), Duration::ZERO, false), Error::RankDied(_)));
        assert!(matches!(life.error(site(), Duration::ZERO, false), Error::GroupAborted(_)));
    }

    #[test]
    fn a_closed_group_says_so() {
        let life = Life::default();
        life.close();
        life.end(&Cause::Requested { by: Rank(0) });
        assert!(!life.is_live());
        assert!(matches!(life.error(site(), Duration::ZERO, false), Error::Closed { .. }));
    }
}
