//! The lane of a group's named calls: they run one after the other in the published order.

use core::task::Poll;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use types::error::Cause;
use types::transport::{Channel, Peers};
use types::{Buffers, CallSite, Error, Result, Tag};

use crate::call::{Call, Preparer, Task, Terms};
use crate::execution::{ChannelState, Execution};
use crate::life::Life;
use crate::names::Names;
use crate::trouble::{View, Waits, Watch, fail, find_trouble, warn};
use crate::unnamed::Finished;
use crate::{Ground, SharedWindows};

/// What a rank that has not submitted a named call is waited for.
const SUBMIT: &str = "submit a call of that name";

/// The named calls of one group.
#[derive(Debug)]
pub struct NamedLane {
    state: ChannelState,
    /// Plans and fingerprints.
    pub preparer: Preparer,
    names: Names,
    pending: HashMap<u128, Pending>,
    current: Option<(u128, Execution)>,
}

#[derive(Debug)]
struct Pending {
    kind: Kind,
    watch: Watch,
}

#[derive(Debug)]
enum Kind {
    /// The lane has the buffers.
    Owned(Task),
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
}

impl NamedLane {
    /// An empty lane.
    #[must_use]
    pub fn new(preparer: Preparer) -> NamedLane {
        NamedLane {
            state: ChannelState::new(Channel::Named),
            preparer,
            names: Names::default(),
            pending: HashMap::new(),
            current: None,
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
    pub fn submit(&mut self, mut task: Task) {
        self.preparer.renew_task(&mut task);
        let name = Arc::clone(&task.call.fingerprint().name);
        self.add(&name, Kind::Owned(task));
    }

    /// Adds a call that the calling thread runs by polling with [`Borrowed`]; returns its identity.
    pub fn enter(&mut self, call: &Call) -> u128 {
        let name = Arc::clone(&call.fingerprint().name);
        self.add(&name, Kind::Borrowed)
    }

    fn add(&mut self, name: &str, kind: Kind) -> u128 {
        let identity = self.names.submit(name);
        self.pending.insert(identity, Pending { kind, watch: Watch::default() });
        identity
    }

    /// Takes out and ends one of the lane's own calls for which `judge` finds an error.
    pub fn fail_one(&mut self, judge: &mut dyn FnMut(&mut Call) -> Option<Error>) -> Option<Finished> {
        let found = self.pending.iter_mut().find_map(|(identity, pending)| match &mut pending.kind {
            Kind::Owned(task) => Some((*identity, judge(&mut task.call)?)),
            Kind::Borrowed => None,
        });
        let (identity, error) = found?;
        match self.pending.remove(&identity)?.kind {
            Kind::Owned(task) => Some(task.failed(error)),
            Kind::Borrowed => None,
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
        match &self.current {
            Some((current, execution)) if *current == identity => execution.can_go_on(ground, &self.state, call),
            Some(_) => false,
            None => {
                self.names.next(ground.windows).is_some()
                    || find_trouble(ground, &unordered(ground, identity), call, Duration::ZERO).is_some()
            }
        }
    }

    /// Runs the calls as far as possible.
    pub fn poll<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        mut borrowed: Option<Borrowed<'_, '_>>,
        look: bool,
    ) -> Progress {
        let mut progress = Progress::default();
        while !self.pending.is_empty() && ground.life.is_live() {
            progress.moved |= self.names.progress(ground.windows);
            if self.current.is_none() && !(ground.is_live() && self.take_next(ground)) {
                break;
            }
            if !self.run_current(ground, borrowed.as_mut(), look, &mut progress) {
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

    /// Takes the next call from the order; `false` if there is none.
    fn take_next<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) -> bool {
        let Some(identity) = self.names.next(ground.windows) else {
            return false;
        };
        self.names.take(ground.windows);
        if !self.pending.contains_key(&identity) {
            // Only what this rank has announced can be in the order: the shared memory is not to be trusted any more.
            let cause = Cause::Failed { by: ground.view.world(0) };
            ground.windows.abort(&cause);
            ground.life.end(&cause);
            return false;
        }
        self.current = Some((identity, Execution::begin(&mut self.state)));
        true
    }

    /// Polls the call whose turn it is; `true` if it ended.
    fn run_current<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        borrowed: Option<&mut Borrowed<'_, '_>>,
        look: bool,
        progress: &mut Progress,
    ) -> bool {
        let Some((identity, execution)) = &mut self.current else {
            return false;
        };
        let goes_on = borrowed.as_ref().is_some_and(|own| own.goes_on);
        let Some(pending) = self.pending.get_mut(identity) else {
            return false;
        };
        let polled = match (&mut pending.kind, borrowed) {
            (Kind::Owned(task), _) => {
                let mut buffers = task.buffers.buffers();
                execution.poll(ground, &mut self.state, &mut task.call, &mut buffers, look)
            }
            (Kind::Borrowed, Some(own)) if own.identity == *identity => {
                execution.poll(ground, &mut self.state, own.call, &mut own.buffers, look)
            }
            (Kind::Borrowed, _) => return false,
        };
        let Poll::Ready(result) = polled else {
            return false;
        };
        progress.moved = true;
        if result.is_ok() {
            // All ranks have this call as the current one, and go on with the next of its list.
            match &mut pending.kind {
                Kind::Owned(task) => {
                    if let Some(next) = task.next.take() {
                        *execution = Execution::begin(&mut self.state);
                        progress.finished.push((core::mem::replace(task, *next), result));
                        return true;
                    }
                }
                Kind::Borrowed if goes_on => {
                    *execution = Execution::begin(&mut self.state);
                    progress.borrowed = Some(result);
                    return false;
                }
                Kind::Borrowed => {}
            }
        }
        let ended = self.pending.remove(identity);
        self.current = None;
        match ended {
            Some(Pending { kind: Kind::Owned(task), .. }) => task.end(result, &mut progress.finished),
            _ => progress.borrowed = Some(result),
        }
        true
    }

    /// Looks after the calls that are not in the order yet: deaths, aborts, deadlines, warnings.
    fn look<W: SharedWindows, P: Peers>(
        &mut self,
        ground: Ground<'_, W, P>,
        mut borrowed: Option<&mut Borrowed<'_, '_>>,
        progress: &mut Progress,
    ) {
        let current = self.current.as_ref().map(|(identity, _)| *identity);
        let now = ground.clock.now();
        let mut failed = None;
        for (identity, pending) in &mut self.pending {
            if Some(*identity) == current || self.names.is_ordered(ground.windows, *identity) {
                continue;
            }
            let call = match (&mut pending.kind, &mut borrowed) {
                (Kind::Owned(task), _) => &mut task.call,
                (Kind::Borrowed, Some(own)) if own.identity == *identity => &mut *own.call,
                // Its own thread looks after it.
                (Kind::Borrowed, _) => continue,
            };
            if let Some(error) = look_at(ground, *identity, call, &mut pending.watch, now) {
                failed = Some((*identity, error));
                break;
            }
        }
        let Some((identity, error)) = failed else {
            return;
        };
        match self.pending.remove(&identity) {
            Some(Pending { kind: Kind::Owned(task), .. }) => task.end(Err(error), &mut progress.finished),
            _ => progress.borrowed = Some(Err(error)),
        }
    }

    /// Ends all calls after the group's life has ended. A borrowed call that is not given stays for its own thread.
    pub fn drain(
        &mut self,
        life: &Life,
        view: &View,
        now: Duration,
        borrowed: Option<Borrowed<'_, '_>>,
        progress: &mut Progress,
    ) {
        self.current = None;
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
                Kind::Borrowed => {
                    self.pending.insert(identity, pending);
                }
            }
        }
        if let Some(own) = borrowed
            && self.pending.remove(&own.identity).is_some()
        {
            progress.borrowed = Some(end(own.call));
        }
        progress.moved |= !self.pending.is_empty();
    }
}

fn site(view: &View, call: &Call) -> CallSite {
    let fingerprint = call.fingerprint();
    view.site(fingerprint.kind.name(), Some(Tag::Named(Arc::clone(&fingerprint.name))))
}

fn look_at<W: SharedWindows, P: Peers>(
    ground: Ground<'_, W, P>,
    identity: u128,
    call: &mut Call,
    watch: &mut Watch,
    now: Duration,
) -> Option<Error> {
    let elapsed = call.elapsed(now);
    let waits = unordered(ground, identity);
    let Some(trouble) = find_trouble(ground, &waits, call, elapsed) else {
        if watch.warning_due(elapsed, call.limits.first_warning) {
            warn(&site(ground.view, call), ground.view, &waits.missing, SUBMIT, elapsed);
        }
        return None;
    };
    let trouble = watch.settled(trouble, elapsed)?;
    let site = site(ground.view, call);
    Some(fail(ground, call, trouble, site, SUBMIT))
}

/// Whom a call waits for that is not in the order yet. It needs every member: to run it, each must come.
fn unordered<W: SharedWindows, P: Peers>(ground: Ground<'_, W, P>, identity: u128) -> Waits {
    let missing = Names::missing(ground.windows, identity);
    Waits { channel: Channel::Named, missing, needed: ground.others().collect() }
}
