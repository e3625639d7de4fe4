//! How the members of a group meet: at first use, each gets the group's memory.

use core::time::Duration;
use std::sync::{Mutex, OnceLock};

use engine::Call;
use shm::{GroupKey, GroupPeers, GroupWindows, MonotonicClock, Request};
use types::error::{Cause, Deadline};
use types::transport::{Clock, Fate};
use types::{CallSite, Error, GroupName, Rank, Result};

use crate::group::{GroupShared, lock};

/// What the first member is waited for.
const AWAITED: &str = "enter the group, as its first member";

/// The memory of a group and the processes behind it.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) windows: GroupWindows,
    pub(crate) peers: GroupPeers,
}

/// The way to a group's memory.
pub(crate) struct Joining {
    joined: OnceLock<Joined>,
    key: GroupKey,
    settings: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    request: Option<Request>,
    closed: bool,
    next_warning: Option<Duration>,
}

impl Joining {
    pub(crate) fn new(name: GroupName, ranks: Vec<Rank>, incarnation: u64, settings: u64) -> Joining {
        let key = GroupKey::new(name, ranks, incarnation);
        Joining { joined: OnceLock::new(), key, settings, state: Mutex::default() }
    }

    /// The memory, if it is there.
    #[inline]
    pub(crate) fn get(&self) -> Option<&Joined> {
        self.joined.get()
    }

    /// Goes on as far as possible. With a call, also looks for what keeps the memory from coming, and fails the call
    /// and the group for it.
    pub(crate) fn poll(&self, group: &GroupShared, call: Option<&mut Call>) -> Result<Option<&Joined>> {
        let mut state = lock(&self.state);
        if let Some(joined) = self.joined.get() {
            return Ok(Some(joined));
        }
        if state.closed {
            return Ok(None);
        }
        let Some(host) = group.world.host() else { return Ok(None) };
        let request =
            state.request.get_or_insert_with(|| host.request_group(self.key.clone(), &self.settings.to_le_bytes()));
        match request.try_take() {
            Some(Ok(windows)) => {
                state.request = None;
                let peers = windows.peers();
                return Ok(Some(self.joined.get_or_init(|| Joined { windows, peers })));
            }
            Some(Err(error)) => {
                state.request = None;
                state.closed = true;
                return Err(self.failed(group, call, error));
            }
            None => {}
        }
        match call {
            Some(call) => self.look(group, call, &mut state).map(|()| None),
            None => Ok(None),
        }
    }

    /// Whether [`poll`](Self::poll) has something to do.
    pub(crate) fn can_go_on(&self) -> bool {
        lock(&self.state).request.as_ref().is_none_or(Request::is_done)
    }

    /// Asks no more.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.request = None;
    }

    /// The memory cannot come: the group's life ends.
    fn failed(&self, group: &GroupShared, call: Option<&mut Call>, error: Error) -> Error {
        let first = group.view.world(0);
        let cause = match (&error, group.world.host().map(|host| host.fate(first))) {
            (Error::RankDied(died), _) => Cause::RankDied { peer: died.peer, ending: died.ending },
            (_, Some(Fate::Gone(ending))) => Cause::RankDied { peer: first, ending },
            (Error::Closed { .. }, _) => Cause::Requested { by: first },
            _ => Cause::Failed { by: group.view.rank },
        };
        group.life.end(&cause);
        match (error, call) {
            (Error::RankDied(_) | Error::Closed { .. }, Some(call)) => {
                let elapsed = call.elapsed(MonotonicClock.now());
                group.life.error(site(group, call), elapsed, true)
            }
            (error, _) => error,
        }
    }

    fn look(&self, group: &GroupShared, call: &mut Call, state: &mut State) -> Result<()> {
        let elapsed = call.elapsed(MonotonicClock.now());
        let limits = call.limits();
        let site = site(group, call);
        let first = group.view.world(0);
        if let Some(limit) = limits.deadline.filter(|limit| elapsed >= *limit) {
            state.closed = true;
            state.request = None;
            group.life.end(&Cause::Deadline { by: group.view.rank, peer: first });
            let peers = vec![first];
            return Err(Error::Deadline(Box::new(Deadline { site, peers, awaited: AWAITED.into(), limit, elapsed })));
        }
        let due = *state.next_warning.get_or_insert(limits.first_warning);
        if elapsed >= due {
            state.next_warning = Some(elapsed.max(due) * 2);
            log::warn!("{site}: waiting since {:.1} s for {first} to {AWAITED}", elapsed.as_secs_f64());
        }
        Ok(())
    }
}

fn site(group: &GroupShared, call: &Call) -> CallSite {
    let fingerprint = call.fingerprint();
    let tag = call.is_named().then(|| types::Tag::Named(std::sync::Arc::clone(&fingerprint.name)));
    group.view.site(fingerprint.kind.name(), tag)
}
