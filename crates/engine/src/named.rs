//! The lane of a group's named calls: they run in the published order, small ones beside large ones.
//!
//! There are two tracks, each with a channel of its own, on which calls run one after the other: the order says for each call
//! which is its, as group rank 0 sees it. Where ranks disagree on the size of a call it runs where rank 0 says, and is a
//! mismatch like any other. A large call gives the turn back after every 256 KiB or so, and the small ones that are due come
//! first; or it is [lent](NamedLane::lend) to threads of its own.

use core::task::Poll;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use types::error::Cause;
use types::transport::{Channel, Peers};
use types::{Buffers, Error, Result, Ticket};

use crate::call::{Call, Preparer, Task, Terms};
use crate::claims::{Claims, Contradiction, Doubt};
use crate::execution::ChannelState;
use crate::lanes::{Loan, Others, Running};
use crate::late::Late;
use crate::life::Life;
use crate::names::Names;
use crate::trouble::{View, Watch, find_trouble};
use crate::unnamed::Finished;
use crate::{Ground, SharedWindows};

mod looks;

use looks::{look_at, note_arrivals, site, unordered};

/// Small calls that may run before a large one goes on.
const SMALL_IN_A_ROW: usize = 16;

/// The named calls of one group.
#[derive(Debug)]
pub struct NamedLane {
    small: Track,
    large: Track,
    /// Plans and fingerprints.
    pub preparer: Preparer,
    names: Names,
    /// By identity: in an order, so that of several calls that fail at once it is always the same that is first.
    pending: BTreeMap<u128, Pending>,
    /// Who submits late.
    late: Late,
}

/// Calls of the order that run one after the other.
#[derive(Debug)]
struct Track {
    state: ChannelState,
    /// The channels of further lanes, for calls that are cut. Of small ones none is.
    others: Others,
    queue: VecDeque<u128>,
    current: Option<(u128, Running)>,
}

impl Track {
    fn new(channel: Channel) -> Track {
        let (state, others) = (ChannelState::new(channel), Others::new(channel));
        Track { state, others, queue: VecDeque::new(), current: None }
    }

    /// The identity of the call whose turn it is, if there is one.
    fn due<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>) -> Option<u128> {
        match &self.current {
            Some((identity, running)) => Some(*identity).filter(|_| !running.is_lent()),
            None => self.queue.front().copied().filter(|_| ground.is_live()),
        }
    }

    /// Polls the call whose turn it is, and begins it if need be.
    fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        identity: u128,
        call: &mut Call,
        buffers: &mut Buffers<'_>,
        look: bool,
    ) -> Poll<Result<()>> {
        let Track { state, others, queue, current } = self;
        let (_, running) = current.get_or_insert_with(|| {
            queue.pop_front();
            (identity, Running::begin(state, call))
        });
        running.poll(ground, (state, others), call, buffers, look)
    }

    /// Whether the last poll ended so that others get their turn, and not because the call had to wait.
    fn has_paused(&self) -> bool {
        self.current.as_ref().is_some_and(|(_, running)| running.has_paused())
    }

    /// Whether the call under way can be lent.
    fn can_lend(&self) -> bool {
        self.current.as_ref().is_some_and(|(_, running)| running.is_lendable())
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.current.take_if(|(_, running)| !running.is_lent());
    }
}

#[derive(Debug)]
struct Pending {
    kind: Kind,
    watch: Watch,
    /// Bytes of its output.
    bytes: usize,
    /// Whether others follow it, as one call with it.
    is_list: bool,
    /// Whether it is in the order, so that its turn will come.
    is_ordered: bool,
    /// Under what it is noted.
    ticket: Option<Ticket>,
    /// When it was first looked for what keeps it out of the order.
    looked: Option<Duration>,
    /// How often this rank had used its name before.
    uses: u64,
    /// What it has seen of the names that it claims.
    doubt: Doubt,
}

#[derive(Debug)]
enum Kind {
    /// The lane has the buffers.
    Owned(Task),
    /// Whoever works on it has them, and the call.
    Lent,
    /// The thread that waits for it has them.
    Borrowed,
}

/// A named call whose buffers the polling thread holds.
#[derive(Debug)]
pub struct Borrowed<'c, 'b> {
    /// Which one, from [`NamedLane::enter`].
    pub identity: u128,
    /// The call.
    pub call: &'c mut Call,
    /// Its buffers.
    pub buffers: Buffers<'b>,
    /// Whether, if it succeeds, the thread goes on directly with another call in its place (see [`Task::next`]).
    pub goes_on: bool,
}

/// What a poll brought about.
#[derive(Debug, Default)]
pub struct Progress {
    /// Calls that have ended.
    pub finished: Finished,
    /// The end of the borrowed call.
    pub borrowed: Option<Result<()>>,
    /// Whether another local thread may be able to go on now.
    pub moved: bool,
    /// Whether a call gave the turn back though there was more to do.
    pub paused: bool,
    /// Names that other ranks have submitted alone and that waiting calls claim.
    pub contradictions: Vec<Contradiction>,
}

impl NamedLane {
    /// An empty lane.
    #[must_use]
    pub fn new(preparer: Preparer) -> NamedLane {
        NamedLane {
            small: Track::new(Channel::Small),
            large: Track::new(Channel::Named),
            preparer,
            names: Names::default(),
            pending: BTreeMap::new(),
            late: Late::default(),
        }
    }

    /// Makes all plans by these terms, those of the lane's own calls included. To be done before the first poll.
    #[inline]
    pub fn agree(&mut self, terms: &Arc<Terms>) {
        if !self.preparer.changes_to(terms) {
            return;
        }
        for pending in self.pending.values_mut() {
            if let Kind::Owned(task) = &mut pending.kind {
                self.preparer.renew_task(task);
            }
        }
    }

    /// Adds a call that the lane runs.
    pub fn submit(&mut self, task: Task) {
        let _ = self.enter_task(task);
    }

    /// The same; returns the call's identity.
    pub fn enter_task(&mut self, mut task: Task) -> u128 {
        self.preparer.renew_task(&mut task);
        let name = Arc::clone(&task.call.fingerprint().name);
        let (bytes, is_list, ticket) = (task.call.bytes(), task.next.is_some(), task.call.ticket);
        self.add(&name, Kind::Owned(task), (bytes, is_list), ticket)
    }

    /// [Adds](Self::enter_task) a call in place of the one that this rank will not make by this name, if it has used the name
    /// so often and no more: else it has made that call, and the task is given back.
    ///
    /// # Errors
    /// The task, if it was not added.
    pub fn enter_instead(&mut self, task: Task, uses: u64) -> Result<u128, Box<Task>> {
        if self.names.uses(&task.call.fingerprint().name) == uses {
            Ok(self.enter_task(task))
        } else {
            Err(Box::new(task))
        }
    }

    /// Adds a call that the calling thread runs by polling with [`Borrowed`]; returns its identity. `goes_on`: whether it is
    /// the first of several, as there.
    pub fn enter(&mut self, call: &Call, goes_on: bool) -> u128 {
        let name = Arc::clone(&call.fingerprint().name);
        self.add(&name, Kind::Borrowed, (call.bytes(), goes_on), call.ticket)
    }

    fn add(&mut self, name: &str, kind: Kind, (bytes, is_list): (usize, bool), ticket: Option<Ticket>) -> u128 {
        let (identity, uses) = self.names.submit(name);
        let (watch, doubt) = (Watch::default(), Doubt::default());
        let pending = Pending { kind, watch, bytes, is_list, is_ordered: false, ticket, looked: None, uses, doubt };
        self.pending.insert(identity, pending);
        identity
    }

    /// Takes out and ends one of the lane's own calls for which `judge` finds an error.
    pub fn fail_one(&mut self, judge: &mut dyn FnMut(&mut Call) -> Option<Error>) -> Option<Finished> {
        let found = self.pending.iter_mut().find_map(|(identity, pending)| match &mut pending.kind {
            Kind::Owned(task) => Some((*identity, judge(&mut task.call)?)),
            Kind::Lent | Kind::Borrowed => None,
        });
        let (identity, error) = found?;
        match self.pending.remove(&identity)?.kind {
            Kind::Owned(task) => Some(task.failed(error)),
            Kind::Lent | Kind::Borrowed => None,
        }
    }

    /// Calls that threads run themselves and that have not ended.
    #[must_use]
    pub fn borrowed(&self) -> usize {
        self.pending.values().filter(|pending| matches!(pending.kind, Kind::Borrowed)).count()
    }

    /// Drops a borrowed call whose thread has given up, after the group's life has ended.
    pub fn forget(&mut self, identity: u128) {
        self.pending.remove(&identity);
    }

    /// Whether a poll for this borrowed call, or on behalf of the others of its lane, has something to do.
    pub fn can_go_on<W: SharedWindows, P: Peers>(&self, ground: Ground<'_, W, P>, identity: u128, call: &Call) -> bool {
        if !ground.life.is_live() || self.names.can_go_on(ground.windows) {
            return true;
        }
        if self.names.next(ground.windows).is_some() {
            return true;
        }
        for Track { state, others, queue, current } in [&self.small, &self.large] {
            match current {
                Some((current, running)) if *current == identity => {
                    return running.can_go_on(ground, (state, others), call);
                }
                Some(_) => {}
                // What another thread waits for, that one begins.
                None if queue.front().is_some_and(|due| *due == identity || self.is_own(*due)) => return true,
                None => {}
            }
        }
        let is_ordered = self.pending.get(&identity).is_none_or(|pending| pending.is_ordered);
        !is_ordered && find_trouble(ground, &unordered(ground, identity), call, Duration::ZERO).is_some()
    }

    /// Whether the lane itself runs this call.
    fn is_own(&self, identity: u128) -> bool {
        self.pending.get(&identity).is_some_and(|pending| matches!(pending.kind, Kind::Owned(_)))
    }

    /// Runs the calls as far as possible, but not longer than for some 256 KiB of a large one.
    pub fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        mut borrowed: Option<Borrowed<'_, '_>>,
        look: bool,
    ) -> Progress {
        let mut progress = Progress::default();
        while !self.pending.is_empty() && ground.life.is_live() {
            let slot_bytes = ground.windows.geometry().slot_bytes;
            let fits = |pending: &Pending| pending.bytes <= slot_bytes && !pending.is_list;
            let is_small = |identity: u128| self.pending.get(&identity).is_some_and(fits);
            progress.moved |= self.names.progress(ground.windows, &is_small);
            self.take_over(ground);
            let mut ended = 0;
            while ended < SMALL_IN_A_ROW && self.run_current(true, ground, borrowed.as_mut(), look, &mut progress) {
                ended += 1;
            }
            if progress.borrowed.is_some() {
                // Its thread has what it came for; the large call goes on with the next one that polls.
                progress.moved = true;
                break;
            }
            ended += usize::from(self.run_current(false, ground, borrowed.as_mut(), look, &mut progress));
            if ended == 0 || progress.paused {
                break;
            }
        }
        if look && ground.life.is_live() {
            self.look(ground, borrowed.as_mut(), &mut progress);
        }
        if !ground.life.is_live() {
            self.drain(ground.life, ground.view, ground.clock.now(), borrowed, &mut progress);
        }
        progress
    }

    /// Takes over what is new in the order.
    fn take_over<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) {
        while let Some((identity, is_small)) = self.names.next(ground.windows) {
            let Some(pending) = self.pending.get_mut(&identity).filter(|pending| !pending.is_ordered) else {
                // Only what this rank has announced can be in the order, and once: the shared memory is not to be trusted.
                let cause = Cause::Failed { by: ground.view.world(0) };
                ground.windows.abort(&cause);
                ground.life.end(&cause);
                return;
            };
            pending.is_ordered = true;
            self.names.take(ground.windows);
            if let Some(since) = pending.looked {
                note_arrivals(ground, &mut self.late, self.names.taken(), pending.ticket, since);
            }
            let track = if is_small { &mut self.small } else { &mut self.large };
            track.queue.push_back(identity);
        }
    }

    /// Polls the call whose turn it is on one of the tracks; `true` if it ended.
    fn run_current<W: SharedWindows, P: Peers>(
        &mut self,
        small: bool,
        ground: Ground<'_, W, P>,
        borrowed: Option<&mut Borrowed<'_, '_>>,
        look: bool,
        progress: &mut Progress,
    ) -> bool {
        let track = if small { &mut self.small } else { &mut self.large };
        if !ground.life.is_live() {
            return false;
        }
        let Some(identity) = track.due(ground) else { return false };
        // Once it has ended, the thread must come with the next one.
        let borrowed = borrowed.filter(|_| progress.borrowed.is_none());
        let goes_on = borrowed.as_ref().is_some_and(|own| own.goes_on);
        let Some(pending) = self.pending.get_mut(&identity) else { return false };
        let (polled, is_cut) = match (&mut pending.kind, borrowed) {
            (Kind::Owned(task), _) => {
                let mut buffers = task.buffers.buffers();
                (track.poll(ground, identity, &mut task.call, &mut buffers, look), task.call.is_cut())
            }
            (Kind::Borrowed, Some(own)) if own.identity == identity => {
                (track.poll(ground, identity, own.call, &mut own.buffers, look), own.call.is_cut())
            }
            (Kind::Lent | Kind::Borrowed, _) => return false,
        };
        if small && is_cut && track.can_lend() {
            // All ranks agree on it, and only group rank 0 says that it fits a slot: it has written what it should not.
            let cause = Cause::Failed { by: ground.view.world(0) };
            ground.windows.abort(&cause);
            ground.life.end(&ground.windows.aborted().unwrap_or(cause));
            return false;
        }
        let Poll::Ready(result) = polled else {
            progress.paused |= track.has_paused();
            return false;
        };
        progress.moved = true;
        self.end(small, identity, None, result, goes_on, progress)
    }

    /// Ends the current call of a track, or goes on with the next one of its list; whether another call may have its turn at
    /// once. `lent`: what was submitted, if it was lent.
    fn end(
        &mut self,
        small: bool,
        identity: u128,
        lent: Option<Task>,
        result: Result<()>,
        goes_on: bool,
        progress: &mut Progress,
    ) -> bool {
        let track = if small { &mut self.small } else { &mut self.large };
        track.current = None;
        let Some(mut pending) = self.pending.remove(&identity) else { return false };
        if let Some(task) = lent {
            pending.kind = Kind::Owned(task);
        }
        match &mut pending.kind {
            Kind::Owned(task) => {
                // All ranks have this call as the current one, and go on with the next of its list.
                if result.is_ok()
                    && let Some(next) = task.next.take()
                {
                    progress.finished.push((core::mem::replace(task, *next), result));
                    track.queue.push_front(identity);
                    self.pending.insert(identity, pending);
                    return true;
                }
            }
            Kind::Borrowed if goes_on && result.is_ok() => {
                progress.borrowed = Some(result);
                track.queue.push_front(identity);
                self.pending.insert(identity, pending);
                return false;
            }
            Kind::Lent | Kind::Borrowed => {}
        }
        match pending.kind {
            Kind::Owned(task) => task.end(result, &mut progress.finished),
            Kind::Lent | Kind::Borrowed => progress.borrowed = Some(result),
        }
        true
    }

    /// Whether the large call under way can be [lent](Self::lend): one of the lane's own, or the borrowed one of this
    /// identity.
    #[must_use]
    pub fn can_lend(&self, borrowed: Option<u128>) -> bool {
        let Some((identity, running)) = &self.large.current else { return false };
        let is_meant = |pending: &Pending| match pending.kind {
            Kind::Owned(_) => borrowed.is_none(),
            Kind::Borrowed => borrowed == Some(*identity),
            Kind::Lent => false,
        };
        running.is_lendable() && self.pending.get(identity).is_some_and(is_meant)
    }

    /// Takes the large call under way out, so that several threads can work on it, if it [can be](Self::can_lend): it is
    /// cut, and all ranks have met in it. The lane goes on with small ones meanwhile. It is to be [given back](Self::settle).
    pub fn lend(&mut self, borrowed: Option<u128>) -> Option<Loan> {
        if !self.can_lend(borrowed) {
            return None;
        }
        let Track { state, others, current, .. } = &mut self.large;
        let (identity, running) = current.as_mut()?;
        let mut loan = running.lend(state, others)?;
        let pending = self.pending.get_mut(identity)?;
        if borrowed.is_none()
            && let Kind::Owned(task) = core::mem::replace(&mut pending.kind, Kind::Lent)
        {
            loan.task = Some(task);
        }
        Some(loan)
    }

    /// Takes a call back that has ended. `goes_on`: of a borrowed call, as in [`Borrowed`].
    pub fn settle(&mut self, loan: Loan, result: Result<()>, goes_on: bool) -> Progress {
        let mut progress = Progress { moved: true, ..Progress::default() };
        let task = loan.settle(&mut self.large.state, &mut self.large.others);
        if let Some((identity, _)) = self.large.current.as_ref() {
            self.end(false, *identity, task, result, goes_on, &mut progress);
        }
        progress
    }

    /// Looks after the calls that are not in the order yet: deaths, aborts, deadlines, warnings.
    fn look<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        mut borrowed: Option<&mut Borrowed<'_, '_>>,
        progress: &mut Progress,
    ) {
        let now = ground.clock.now();
        let (mut failed, mut found) = (None, Vec::new());
        for (identity, pending) in &mut self.pending {
            if pending.is_ordered || self.names.is_ordered(ground.windows, *identity) {
                continue;
            }
            let call = match (&mut pending.kind, &mut borrowed) {
                (Kind::Owned(task), _) => &mut task.call,
                (Kind::Borrowed, Some(own)) if own.identity == *identity => &mut *own.call,
                // Its own thread looks after it.
                (Kind::Lent | Kind::Borrowed, _) => continue,
            };
            pending.looked.get_or_insert(now);
            if let Some(error) = look_at(ground, *identity, call, &mut pending.watch, now) {
                failed = Some((*identity, error));
                break;
            }
            if let Some(claims) = call.claims.clone().filter(|_| pending.doubt.is_due(now)) {
                let missing = Names::missing(ground.windows, *identity);
                let elsewhere = self.names.elsewhere(ground.windows, &claims, &missing);
                if pending.doubt.is_settled(!elsewhere.is_empty(), now) {
                    found.push((claims, elsewhere));
                }
            }
        }
        for (claims, elsewhere) in found {
            let calls = self.claiming(&claims);
            let contradiction =
                |(name, uses)| Contradiction { name, uses, claims: Arc::clone(&claims), calls: calls.clone() };
            progress.contradictions.extend(elsewhere.into_iter().map(contradiction));
        }
        let Some((identity, error)) = failed else {
            return;
        };
        match self.pending.remove(&identity) {
            Some(Pending { kind: Kind::Owned(task), .. }) => task.end(Err(error), &mut progress.finished),
            _ => progress.borrowed = Some(Err(error)),
        }
    }

    /// Which of these names other ranks have submitted, for the use that this rank has next.
    #[must_use]
    pub fn elsewhere<W: SharedWindows>(&self, windows: &W, claims: &Arc<Claims>) -> Vec<Contradiction> {
        let owners: Vec<usize> = (0..windows.geometry().ranks).collect();
        let found = self.names.elsewhere(windows, claims, &owners).into_iter();
        found.map(|(name, uses)| Contradiction { name, uses, claims: Arc::clone(claims), calls: Vec::new() }).collect()
    }

    /// The waiting calls with these claims, each with how often its name had been used before.
    #[must_use]
    pub fn claiming(&self, claims: &Claims) -> Vec<(Arc<str>, u64)> {
        let call = |pending: &Pending| match &pending.kind {
            Kind::Owned(task) if !pending.is_ordered && task.call.claims.as_deref() == Some(claims) => {
                Some((Arc::clone(&task.call.fingerprint().name), pending.uses))
            }
            _ => None,
        };
        self.pending.values().filter_map(call).collect()
    }

    /// Ends all calls after the group's life has ended. A borrowed call that is not given stays for its own thread, and one that
    /// is lent for those who work on it.
    pub fn drain(
        &mut self,
        life: &Life,
        view: &View,
        now: Duration,
        borrowed: Option<Borrowed<'_, '_>>,
        progress: &mut Progress,
    ) {
        self.small.clear();
        self.large.clear();
        let end = |call: &mut Call| {
            let elapsed = call.elapsed(now);
            Err(life.error(site(view, call), elapsed, true))
        };
        for (identity, pending) in std::mem::take(&mut self.pending) {
            match pending.kind {
                Kind::Owned(mut task) => {
                    let result = end(&mut task.call);
                    task.end(result, &mut progress.finished);
                }
                Kind::Lent | Kind::Borrowed => {
                    self.pending.insert(identity, pending);
                }
            }
        }
        if let Some(own) = borrowed
            && self.pending.remove(&own.identity).is_some()
        {
            progress.borrowed = Some(end(own.call));
        }
        // Their threads must look; who works on a lent one does.
        progress.moved |= self.pending.values().any(|pending| matches!(pending.kind, Kind::Borrowed));
    }
}
