//! How the members of a group meet: at first use, each gets the group's memory.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock};

use engine::{Call, SETTLING, Terms};
use shm::observe::Stage;
use shm::{GroupKey, GroupPeers, GroupWindows, Journal, MonotonicClock, Outcome, Request};
use types::error::{Cause, Deadline};
use types::transport::{Channel, Clock, Counter, Fate, Windows};
use types::{CallSite, Ending, Error, GroupName, Rank, Result, Summary, Ticket};

use crate::group::{GroupShared, lock};
use crate::settings::{handed_out, taken_over};

/// What the first member is waited for.
const AWAITED: &str = "enter the group, as its first member";

/// The memory of a group and the processes behind it.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) windows: GroupWindows,
    pub(crate) peers: GroupPeers,
    /// What the first member handed out with the memory.
    pub(crate) terms: Arc<Terms>,
}

impl Joined {
    fn new(windows: GroupWindows) -> Joined {
        let (geometry, lanes) = (windows.geometry(), windows.lanes());
        let terms = Arc::new(Terms { geometry, choice: taken_over(windows.settings()), lanes });
        let peers = windows.peers();
        Joined { windows, peers, terms }
    }
}

/// The way to a group's memory.
pub(crate) struct Joining {
    joined: OnceLock<Joined>,
    key: GroupKey,
    /// Whether the members have yet to agree that the group exists.
    is_founding: AtomicBool,
    state: Mutex<State>,
    journal: OnceLock<Arc<Journal>>,
}

#[derive(Default)]
struct State {
    request: Option<Request>,
    /// Why the memory cannot come.
    failed: Option<Error>,
    closed: bool,
    /// Why this process has ended the group's epoch, to be told to the members when the memory is there.
    cause: Option<Cause>,
    /// Whether this process has left the group without having joined it, which is told with the cause.
    left: bool,
    next_warning: Option<Duration>,
    left_since: Option<Duration>,
    /// Under what the wait for the memory is noted, once it takes long.
    ticket: Option<Ticket>,
}

impl Joining {
    pub(crate) fn new(name: GroupName, ranks: Vec<Rank>, incarnation: u64) -> Joining {
        let key = GroupKey::new(name, ranks, incarnation);
        Joining {
            joined: OnceLock::new(),
            key,
            is_founding: AtomicBool::new(false),
            state: Mutex::default(),
            journal: OnceLock::new(),
        }
    }

    /// From now on, or no more, the members have yet to agree that the group exists.
    pub(crate) fn set_founding(&self, is_founding: bool) {
        self.is_founding.store(is_founding, Ordering::Release);
    }

    fn say(&self, windows: &GroupWindows, cause: &Cause, left: bool) {
        if self.is_founding.load(Ordering::Acquire) {
            // What was to be said was of the first try.
            let _ = windows.give_up_founding(0, cause);
        } else {
            windows.abort(cause);
        }
        if left {
            // After the cause, which is what calls of the others fail with: `shrink` goes by this.
            for channel in [Channel::Unnamed, Channel::Named] {
                windows.publish(channel, Counter::Left, 1);
            }
            windows.wake();
        }
    }

    /// The memory, if it is there.
    #[inline]
    pub(crate) fn get(&self) -> Option<&Joined> {
        self.joined.get()
    }

    /// Where the calls on the group are noted; `None` if nobody else could read it.
    pub(crate) fn journal(&self, group: &GroupShared) -> Option<&Arc<Journal>> {
        let host = group.world.host()?;
        group.index?;
        Some(self.journal.get_or_init(|| host.journal(&self.key)))
    }

    fn note_end(&self, state: &mut State, outcome: Outcome) {
        if let (Some(ticket), Some(journal)) = (state.ticket.take(), self.journal.get()) {
            journal.finish(Some(ticket), outcome);
        }
    }

    /// Notes that the wait for the memory ends with this error.
    fn note_failure(&self, error: &Error) {
        self.note_end(&mut lock(&self.state), Outcome::Failed(types::failure_code(error)));
    }

    fn note_waiting(&self, group: &GroupShared, state: &mut State) {
        if let (None, Some(journal)) = (state.ticket, self.journal(group)) {
            state.ticket = journal.note(Stage::Submitted, Summary::JOIN, "");
            if state.ticket.is_some() {
                journal.waiting(state.ticket, &[0]);
            }
        }
    }

    /// The memory; asks for it if nobody has yet. If it cannot come, the group's life ends.
    pub(crate) fn poll(&self, group: &GroupShared) -> Option<&Joined> {
        if let Some(joined) = self.joined.get() {
            return Some(joined);
        }
        let mut state = lock(&self.state);
        // Another thread may have been faster: to ask once more would make, and drop, the memory a second time.
        if self.joined.get().is_some() || state.closed || state.failed.is_some() {
            return self.joined.get();
        }
        let host = group.world.host()?;
        let request = state.request.get_or_insert_with(|| {
            let threads = group.world.config().threads;
            let is_first = self.key.ranks()[0] == group.view.rank;
            let settings = if is_first { handed_out(group.world.choice()) } else { Vec::new() };
            host.request_group(self.key.clone(), threads, &settings)
        });
        match request.try_take()? {
            Ok(windows) => {
                state.request = None;
                self.note_end(&mut state, Outcome::Done);
                if let Some(cause) = state.cause.take() {
                    self.say(&windows, &cause, state.left);
                }
                Some(self.joined.get_or_init(|| Joined::new(windows)))
            }
            Err(error) => {
                let error = error.met_by(group.view.rank);
                state.request = None;
                state.cause = None;
                self.note_end(&mut state, Outcome::Failed(types::failure_code(&error)));
                group.life.end(&cause_of(group, &error));
                state.failed = Some(error);
                None
            }
        }
    }

    /// Whether a poll or a look has something to do.
    pub(crate) fn can_go_on(&self, group: &GroupShared) -> bool {
        let waits = lock(&self.state).request.as_ref().is_some_and(|request| !request.is_done());
        !waits || !group.life.is_live() || gone(group).is_some()
    }

    /// Tells the members why the epoch is over, now or as soon as the memory is there.
    pub(crate) fn tell(&self, group: &GroupShared, cause: &Cause) {
        if let Some(joined) = self.poll(group) {
            let left = lock(&self.state).left;
            return self.say(&joined.windows, cause, left);
        }
        let mut state = lock(&self.state);
        if let Some(joined) = self.joined.get() {
            return self.say(&joined.windows, cause, state.left);
        }
        if state.request.is_some() {
            state.cause.get_or_insert_with(|| cause.clone());
            drop(state);
            match group.world.ensure_progress_thread() {
                Ok(()) => group.activate(),
                Err(error) => log::error!("{}: the members cannot be told that {cause}: {error}", group.view.rank),
            }
        }
    }

    /// [Tells](Self::tell) the members that this process, which has not joined the memory, has left the group.
    pub(crate) fn leave(&self, group: &GroupShared, cause: &Cause) {
        lock(&self.state).left = true;
        self.tell(group, cause);
    }

    /// Whether the first member has refused the memory, which it does when it destroys the group, or is gone.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(lock(&self.state).failed, Some(Error::RankDied(_) | Error::Closed { .. }))
    }

    /// Refuses the memory to members that ask for it: its first member, this process, has not made it and never will.
    pub(crate) fn refuse(&self, group: &GroupShared) {
        self.close();
        if let Some(host) = group.world.host() {
            host.refuse_group(&self.key);
        }
    }

    /// Whether the progress thread must go on polling for [`tell`](Self::tell).
    pub(crate) fn has_something_to_say(&self) -> bool {
        self.joined.get().is_none() && lock(&self.state).cause.is_some()
    }

    /// Whether the memory was asked for and has not come.
    pub(crate) fn has_asked(&self) -> bool {
        lock(&self.state).request.is_some()
    }

    /// Which group it is.
    pub(crate) fn key(&self) -> &GroupKey {
        &self.key
    }

    /// Why the memory cannot come, if it cannot.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.state).failed.clone()
    }

    /// Whether the memory was asked for and is here, to be taken by [`poll`](Self::poll).
    pub(crate) fn has_come(&self) -> bool {
        lock(&self.state).request.as_ref().is_some_and(Request::is_done)
    }

    /// Takes back what was to be [told](Self::tell), if nobody has heard of it.
    pub(crate) fn take_back(&self) {
        lock(&self.state).cause = None;
    }

    /// Asks no more.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.request = None;
        state.cause = None;
        self.note_end(&mut state, Outcome::Failed(types::failure_code(&Error::Closed { what: String::new() })));
    }

    fn has_settled(&self, ending: Ending, elapsed: Duration) -> bool {
        let since = *lock(&self.state).left_since.get_or_insert(elapsed);
        !matches!(ending, Ending::Left(_)) || elapsed.saturating_sub(since) >= SETTLING
    }

    /// The error of a call that begins when the epoch is over, and the memory has never come.
    pub(crate) fn refusal(&self, group: &GroupShared, call: &Call) -> Option<Error> {
        if group.life.is_live() || self.joined.get().is_some() {
            return None;
        }
        match lock(&self.state).failed.clone() {
            None | Some(Error::RankDied(_) | Error::Closed { .. }) => {
                Some(group.life.error(site(group, call), Duration::ZERO, false))
            }
            // What this process could not have it has not either now.
            failed => failed,
        }
    }

    /// Looks for what keeps the memory from coming: fails the call, and the group, for it.
    pub(crate) fn look(&self, group: &GroupShared, call: &mut Call) -> Result<()> {
        self.look_for(group, call).inspect_err(|error| self.note_failure(error))
    }

    fn look_for(&self, group: &GroupShared, call: &mut Call) -> Result<()> {
        let elapsed = call.elapsed(MonotonicClock.now());
        let limits = call.limits();
        let first = group.view.world(0);
        if let Some(error) = lock(&self.state).failed.clone() {
            return Err(match error {
                Error::RankDied(_) | Error::Closed { .. } => group.life.error(site(group, call), elapsed, true),
                error => error,
            });
        }
        if let Some((peer, ending)) = gone(group).filter(|(_, ending)| self.has_settled(*ending, elapsed)) {
            // Without that member no call of the group can end.
            group.end(&Cause::RankDied { peer, ending });
            return Err(group.life.error(site(group, call), elapsed, true));
        }
        if !group.life.is_live() {
            return Ok(());
        }
        let site = site(group, call);
        if let Some(limit) = limits.deadline.filter(|limit| elapsed >= *limit) {
            group.end(&Cause::Deadline { by: group.view.rank, peer: first });
            let (peers, awaited, detail) = (vec![first], AWAITED.into(), String::new());
            return Err(Error::Deadline(Box::new(Deadline { site, peers, awaited, limit, elapsed, detail })));
        }
        let mut state = lock(&self.state);
        self.note_waiting(group, &mut state);
        let due = *state.next_warning.get_or_insert(limits.first_warning);
        if elapsed >= due {
            state.next_warning = Some(elapsed.max(due) * 2);
            log::warn!("{site}: waiting since {:.1} s for {first} to {AWAITED}", elapsed.as_secs_f64());
        }
        Ok(())
    }
}

/// Another member that is gone, if one is: rather one that died than one that ended or left because of it.
fn gone(group: &GroupShared) -> Option<(Rank, Ending)> {
    let host = group.world.host()?;
    let others = group.view.ranks.iter().filter(|rank| **rank != group.view.rank);
    let gone = others.filter_map(|rank| match host.fate(*rank) {
        Fate::Gone(ending) => Some((*rank, ending)),
        Fate::Alive => None,
    });
    gone.min_by_key(|(_, ending)| ending.remoteness())
}

/// What an error in getting the memory means for the group.
fn cause_of(group: &GroupShared, error: &Error) -> Cause {
    let first = group.view.world(0);
    match (error, gone(group)) {
        (_, Some((peer, ending))) => Cause::RankDied { peer, ending },
        // Its process lives: it has destroyed its part of the group.
        (Error::RankDied(_) | Error::Closed { .. }, None) => Cause::Requested { by: first },
        _ => Cause::Failed { by: group.view.rank },
    }
}

fn site(group: &GroupShared, call: &Call) -> CallSite {
    let fingerprint = call.fingerprint();
    let tag = call.is_named().then(|| types::Tag::Named(std::sync::Arc::clone(&fingerprint.name)));
    group.view.site(fingerprint.kind.name(), tag)
}
