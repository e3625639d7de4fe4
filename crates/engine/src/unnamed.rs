//! The lane of a group's unnamed calls: one after the other, in the order of their numbers.

use core::task::Poll;
use core::time::Duration;
use std::collections::VecDeque;

use types::transport::{Channel, Peers};
use types::{Result, Tag};

use crate::call::{Call, Preparer, Task};
use crate::execution::{ChannelState, Execution};
use crate::life::Life;
use crate::trouble::View;
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
    queue: VecDeque<Task>,
    current: Option<Execution>,
}

impl UnnamedLane {
    /// An empty lane.
    #[must_use]
    pub fn new(preparer: Preparer) -> UnnamedLane {
        UnnamedLane { state: ChannelState::new(Channel::Unnamed), preparer, queue: VecDeque::new(), current: None }
    }

    /// Adds a call behind those that wait.
    pub fn submit(&mut self, task: Task) {
        self.queue.push_back(task);
    }

    /// The call that has waited longest.
    pub fn first(&mut self) -> Option<&mut Call> {
        self.queue.front_mut().map(|task| &mut task.call)
    }

    /// Whether no call waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Runs the waiting calls as far as possible; returns those that ended.
    pub fn poll<W: SharedWindows, P: Peers>(&mut self, ground: Ground<'_, W, P>, look: bool) -> Finished {
        let mut finished = Vec::new();
        while let Some(task) = self.queue.front_mut() {
            let live = if self.current.is_some() { ground.life.is_live() } else { ground.is_live() };
            if !live {
                finished.extend(self.drain(ground.life, ground.view, ground.clock.now()));
                break;
            }
            let execution = self.current.get_or_insert_with(|| Execution::begin(&mut self.state));
            let mut buffers = task.buffers.buffers();
            let polled = execution.poll(ground, &mut self.state, &mut task.call, &mut buffers, look);
            let Poll::Ready(result) = polled else { break };
            self.current = None;
            if let Some(task) = self.queue.pop_front() {
                finished.push((task, result));
            }
        }
        finished
    }

    /// Ends all waiting calls after the group's life has ended.
    pub fn drain(&mut self, life: &Life, view: &View, now: Duration) -> Finished {
        self.current = None;
        let calls = self.state.calls();
        let ended = self.queue.drain(..).zip(calls..).map(|(mut task, number)| {
            let elapsed = task.call.elapsed(now);
            let site = view.site(task.call.fingerprint().kind.name(), Some(Tag::Unnamed(number)));
            let error = life.error(site, elapsed, true);
            (task, Err(error))
        });
        ended.collect()
    }
}
