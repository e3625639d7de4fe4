//! The lane of a group's unnamed calls: one after the other, in the order of their numbers.

use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use types::transport::{Channel, Peers};
use types::{Error, Result, Tag};

use crate::call::{Call, Preparer, Task, Terms};
use crate::execution::{ChannelState, Execution};
use crate::lanes::{Cut, Others};
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
    current: Option<Current>,
    paused: bool,
}

/// The call at the front of the queue, on its way.
#[derive(Debug)]
enum Current {
    Whole(Execution),
    Cut(Cut),
}

impl UnnamedLane {
    /// An empty lane.
    #[must_use]
    pub fn new(preparer: Preparer) -> UnnamedLane {
        UnnamedLane {
            state: ChannelState::new(Channel::Unnamed),
            preparer,
            others: Others::default(),
            queue: VecDeque::new(),
            current: None,
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
        self.queue.is_empty()
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
        while let Some(task) = self.queue.front_mut() {
            let live = if self.current.is_some() { ground.life.is_live() } else { ground.is_live() };
            if !live {
                finished.extend(self.drain(ground.life, ground.view, ground.clock.now()));
                break;
            }
            let current = self.current.get_or_insert_with(|| {
                // It may have been made before the group's memory was there.
                self.preparer.recut(&mut task.call, ground.windows.lanes());
                match task.call.is_cut() {
                    true => Current::Cut(Cut::begin(&mut self.state, &task.call).paced()),
                    false => Current::Whole(Execution::begin(&mut self.state).paced()),
                }
            });
            let (mut buffers, state) = (task.buffers.buffers(), &mut self.state);
            let polled = match current {
                Current::Whole(execution) => execution.poll(ground, state, &mut task.call, &mut buffers, look),
                Current::Cut(cut) => cut.poll(ground, state, &mut self.others, &mut buffers, look),
            };
            let Poll::Ready(result) = polled else {
                self.paused = match current {
                    Current::Whole(execution) => execution.has_paused(),
                    Current::Cut(cut) => cut.has_paused(),
                };
                break;
            };
            self.current = None;
            if let Some(mut task) = self.queue.pop_front() {
                if result.is_ok()
                    && let Some(next) = task.next.take()
                {
                    self.queue.push_front(*next);
                }
                task.end(result, &mut finished);
            }
        }
        if look && ground.life.is_live() {
            finished.extend(self.overdue(ground).unwrap_or_default());
        }
        finished
    }

    /// Looks after the calls that wait behind the first: one whose time is up fails, and with it the epoch.
    fn overdue<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>) -> Option<Finished> {
        const AWAITED: &str = "finish the calls before this one";
        let now = ground.clock.now();
        let is_late = |task: &mut Task| {
            let limit = task.call.limits().deadline;
            limit.is_some_and(|limit| task.call.elapsed(now) >= limit)
        };
        let at = (1..self.queue.len()).find(|at| self.queue.get_mut(*at).is_some_and(is_late))?;
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
        self.state.calls() + u64::from(self.current.is_none())
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
        self.current = None;
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
