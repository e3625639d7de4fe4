//! The lane of a group's unnamed calls: one after the other, in the order of their numbers.

use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use types::transport::{Channel, Peers};
use types::{Error, Result, Tag};

use crate::call::{Call, Preparer, Task, Terms};
use crate::execution::ChannelState;
use crate::lanes::{Loan, Others, Running};
use crate::life::Life;
use crate::trouble::{Trouble, View, fail};
use crate::{Ground, SharedWindows};

/// Calls that have ended, to be finished when no lock is held.
pub type Finished = Vec<(Task, Result<()>)>;

/// The unnamed calls of one group.
#[derive(Debug)]
pub struct UnnamedLane {
    /// The channel, for calls that the caller's thread runs itself.
    pub state: ChannelState,
    /// Plans and fingerprints.
    pub preparer: Preparer,
    /// The channels of further lanes, for calls that are cut.
    pub others: Others,
    queue: VecDeque<Task>,
    /// The call at the front of the queue, on its way; or one that is lent, and is not in the queue.
    current: Option<Running>,
    /// How many calls the one is that is lent.
    lent: u64,
    paused: bool,
}

impl UnnamedLane {
    /// An empty lane.
    #[must_use]
    pub fn new(preparer: Preparer) -> UnnamedLane {
        UnnamedLane {
            state: ChannelState::new(Channel::Unnamed),
            preparer,
            others: Others::new(Channel::Unnamed),
            queue: VecDeque::new(),
            current: None,
            lent: 0,
            paused: false,
        }
    }

    /// Makes all plans by these terms, those of the calls that wait included. To be done before the first poll.
    #[inline]
    pub fn agree(&mut self, terms: &Arc<Terms>) {
        if !self.preparer.changes_to(terms) {
            return;
        }
        for task in &mut self.queue {
            self.preparer.renew_task(task);
        }
    }

    /// Adds a call behind those that wait.
    pub fn submit(&mut self, mut task: Task) {
        self.preparer.renew_task(&mut task);
        self.queue.push_back(task);
    }

    /// Whether no call waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_lent()
    }

    /// Whether the last poll ended so that others get their turn, and not because the call had to wait.
    #[must_use]
    pub const fn has_paused(&self) -> bool {
        self.paused
    }

    /// Runs the waiting calls as far as possible, but not longer than for some 256 KiB of a large one; returns those that
    /// ended.
    pub fn poll<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>, look: bool) -> Finished {
        let mut finished = Vec::new();
        self.paused = false;
        while !self.queue.is_empty() {
            let live = if self.current.is_some() { ground.life.is_live() } else { ground.is_live() };
            if !live {
                finished.extend(self.drain(ground.life, ground.view, ground.clock.now()));
                break;
            }
            let Some(task) = self.queue.front_mut().filter(|_| self.lent == 0) else { break };
            let current = self.current.get_or_insert_with(|| Running::begin(&mut self.state, &task.call));
            let (mut buffers, states) = (task.buffers.buffers(), (&mut self.state, &mut self.others));
            let Poll::Ready(result) = current.poll(ground, states, &mut task.call, &mut buffers, look) else {
                self.paused = current.has_paused();
                break;
            };
            self.current = None;
            if let Some(task) = self.queue.pop_front() {
                self.end(task, result, &mut finished);
            }
        }
        if look && ground.life.is_live() {
            finished.extend(self.overdue(ground).unwrap_or_default());
        }
        finished
    }

    /// Ends a call; if it was right, the next one of its list is at the front of the queue.
    fn end(&mut self, mut task: Task, result: Result<()>, finished: &mut Finished) {
        if result.is_ok()
            && let Some(next) = task.next.take()
        {
            self.queue.push_front(*next);
        }
        task.end(result, finished);
    }

    /// Whether the call under way can be [lent](Self::lend).
    #[must_use]
    pub fn can_lend(&self) -> bool {
        self.current.as_ref().is_some_and(Running::is_lendable)
    }

    /// Takes the call under way out, so that several threads can work on it, if it is cut and all ranks have met in it. It is
    /// to be [given back](Self::settle).
    pub fn lend(&mut self) -> Option<Loan> {
        let mut loan = self.current.as_mut()?.lend(&mut self.state, &mut self.others)?;
        loan.task = self.queue.pop_front();
        self.lent = loan.task.as_ref().map_or(1, Task::length);
        Some(loan)
    }

    /// Takes a call back that has ended.
    pub fn settle(&mut self, loan: Loan, result: Result<()>) -> Finished {
        let mut finished = Finished::new();
        (self.current, self.lent) = (None, 0);
        if let Some(task) = loan.settle(&mut self.state, &mut self.others) {
            self.end(task, result, &mut finished);
        }
        finished
    }

    fn is_lent(&self) -> bool {
        self.lent > 0
    }

    /// Looks after the calls that wait behind the first: one whose time is up fails, and with it the epoch.
    fn overdue<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) -> Option<Finished> {
        const AWAITED: &str = "finish the calls before this one";
        let now = ground.clock.now();
        let is_late = |task: &mut Task| {
            let limit = task.call.limits().deadline;
            limit.is_some_and(|limit| task.call.elapsed(now) >= limit)
        };
        let first = usize::from(!self.is_lent());
        let at = (first..self.queue.len()).find(|at| self.queue.get_mut(*at).is_some_and(is_late))?;
        let mut task = self.queue.remove(at)?;
        let number = self.number_of_first() + self.queue.iter().take(at).map(Task::length).sum::<u64>();
        let site = ground.view.site(task.call.fingerprint().kind.name(), Some(Tag::Unnamed(number)));
        let elapsed = task.call.elapsed(now);
        let trouble = Trouble::Late { peers: ground.others().collect(), elapsed };
        let error = fail(ground, &mut task.call, trouble, site, AWAITED);
        Some(task.failed(error))
    }

    /// The number of the call at the front of the queue.
    fn number_of_first(&self) -> u64 {
        match self.lent {
            0 => self.state.calls() + u64::from(self.current.is_none()),
            lent => self.state.calls() + lent,
        }
    }

    /// Takes out and ends the first waiting call for which `judge` finds an error.
    pub fn fail_one(&mut self, judge: &mut dyn FnMut(&mut Call) -> Option<Error>) -> Option<Finished> {
        let found = self.queue.iter_mut().enumerate().find_map(|(at, task)| Some((at, judge(&mut task.call)?)));
        let (at, error) = found?;
        Some(self.queue.remove(at)?.failed(error))
    }

    /// Ends all waiting calls after the group's life has ended.
    pub fn drain(&mut self, life: &Life, view: &View, now: Duration) -> Finished {
        let mut number = self.number_of_first();
        if !self.is_lent() {
            self.current = None;
        }
        let mut ended = Finished::new();
        for mut task in self.queue.drain(..) {
            let length = task.length();
            let elapsed = task.call.elapsed(now);
            let site = view.site(task.call.fingerprint().kind.name(), Some(Tag::Unnamed(number)));
            task.end(Err(life.error(site, elapsed, true)), &mut ended);
            number += length;
        }
        ended
    }
}
