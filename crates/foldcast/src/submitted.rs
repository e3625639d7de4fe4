//! Calls that are handed over, and run by the progress thread, by one that waits for them or, at first, by the submitting one.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};

use engine::named::Progress;
use engine::unnamed::Finished;
use engine::{Completion, NamedLane, OwnedBuffers, Task, UnnamedLane, Work};
use shm::MonotonicClock;
use shm::observe::Stage;
use types::transport::Clock;
use types::{Buffers, OpKind, Result, Tag};

use crate::attended::Attended;
use crate::config::Timeout;
use crate::group::{CallOptions, GroupShared, INSIDE, SUBMITTED, lock, try_lock};
use crate::lanes::Post;

impl GroupShared {
    /// Hands a call to the progress thread, or [looks after it](CallOptions::attended) first.
    pub(crate) fn submit(
        shared: &Arc<GroupShared>,
        work: Work,
        buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        GroupShared::submit_list(shared, [Submission { work, buffers, done }], options)
    }

    /// Hands a list of calls to the progress thread: they run directly one behind the other, as one call to all others. If it
    /// is one call only, it may be [looked after](CallOptions::attended) first.
    /// On an error none of them was submitted.
    pub(crate) fn submit_list(
        shared: &Arc<GroupShared>,
        submissions: impl IntoIterator<Item = Submission>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let mut submissions = submissions.into_iter().peekable();
        let Some(kind) = submissions.peek().map(|first| first.work.kind()) else { return Ok(()) };
        if shared.view.ranks.len() == 1 {
            for Submission { work, mut buffers, done } in submissions {
                let result = shared.run_alone(&work, &mut buffers.buffers());
                done(result, buffers);
            }
            return Ok(());
        }
        if !shared.life.is_live() {
            let tag = options.name.map(|name| Tag::Named(name.into()));
            return Err(shared.life.error(shared.view.site(kind.name(), tag), Duration::ZERO, false));
        }
        shared.world.ensure_progress_thread()?;
        let has_ended = match (submissions.next(), submissions.peek()) {
            (Some(only), None) if shared.attends(&only.work, options) => {
                let (noted, attended) = Attended::attend(shared, only);
                let options = CallOptions { light_completion: true, ..*options };
                shared.enter_submissions(kind, [noted], &options)?;
                shared.look_after(&attended)
            }
            (first, _) => {
                shared.enter_submissions(kind, first.into_iter().chain(submissions), options)?;
                false
            }
        };
        if !has_ended {
            shared.world.activate(shared);
            shared.end_if_shut_down();
        }
        Ok(())
    }

    /// Queues a list of calls for whoever will make them go on. On an error none of them was.
    fn enter_submissions(
        &self,
        kind: OpKind,
        submissions: impl IntoIterator<Item = Submission>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let (limits, now) = (self.limits(options.timeout), MonotonicClock.now());
        let mut preparer = lock(&self.submissions);
        preparer.with_settings(self.world.settings());
        if let Some(joined) = self.joining.get() {
            preparer.with_terms(&joined.terms);
        }
        let mut tickets = Vec::new();
        let task = |Submission { work, buffers, done }| {
            let ticket = self.note(Stage::Submitted, &work, options.name);
            tickets.push(ticket);
            let call = preparer.call(&work, limits).started(now).noted(ticket).claiming(options.claims.cloned());
            let call = call.light(options.light_completion);
            let call = match options.name {
                Some(name) => call.named(name),
                None => call,
            };
            Task { call, buffers, done, next: None }
        };
        let tasks: Vec<Task> = submissions.into_iter().map(task).collect();
        drop(preparer);
        let number = tasks.len();
        let chain = tasks.into_iter().rev().reduce(|next, task| Task { next: Some(Box::new(next)), ..task });
        let Some(first) = chain else { return Ok(()) };
        match options.name {
            Some(_) => self.push(first, number),
            None => self.push_unnamed(kind, first, number).inspect_err(|error| self.note_refused(&tickets, error))?,
        }
        Ok(())
    }

    /// Ends what was submitted if the progress thread may have gone already.
    fn end_if_shut_down(&self) {
        if self.world.is_shut_down() {
            self.progress(true);
            self.world.run_completions();
        }
    }

    /// Queues a call, with those that are to follow it: so many together.
    fn push(&self, task: Task, number: usize) {
        // Counted first: a group with calls counted stays on the progress thread's list.
        self.submitted.fetch_add(number, Ordering::AcqRel);
        lock(&self.inbox).push_back(task);
    }

    fn push_unnamed(&self, kind: OpKind, task: Task, number: usize) -> Result<()> {
        let mut owner = lock(&self.owner);
        let me = Some(std::thread::current().id());
        let more = u32::try_from(number).unwrap_or(u32::MAX).saturating_mul(SUBMITTED);
        let taken = self.turn.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            (state == 0 || (state & INSIDE == 0 && *owner == me)).then(|| state.saturating_add(more))
        });
        if taken.is_err() {
            return Err(self.two_threads(kind));
        }
        *owner = me;
        self.push(task, number);
        Ok(())
    }

    /// Puts the group on the progress thread's list, for as long as [`needs_progress`](Self::needs_progress).
    pub(crate) fn activate(&self) {
        if let Some(me) = self.me.upgrade() {
            self.world.activate(&me);
        }
    }

    /// Whether calls are submitted that have not ended, an ending that the members must still be told, or a helper that waits
    /// for a call.
    pub(crate) fn needs_progress(&self) -> bool {
        self.submitted.load(Ordering::Acquire) > 0
            || self.joining.has_something_to_say()
            || self.posts.iter().any(Post::is_taken)
    }

    pub(crate) fn empty_inbox(&self, named: &mut NamedLane, unnamed: &mut Option<MutexGuard<'_, UnnamedLane>>) {
        let mut inbox = lock(&self.inbox);
        let mut kept = VecDeque::new();
        for task in inbox.drain(..) {
            match (task.call.is_named(), &mut *unnamed) {
                (true, _) => {
                    let ticket = task.call.ticket();
                    self.identify(ticket, named.enter_task(task));
                }
                (false, Some(lane)) => lane.submit(task),
                (false, None) => kept.push_back(task),
            }
        }
        *inbox = kept;
    }

    /// One round of the progress thread; returns whether anything moved, or could go on at once.
    pub(crate) fn progress(&self, look: bool) -> bool {
        let joined = self.joining.poll(self);
        let mut progress = Progress::default();
        let mut ended_unnamed = Finished::new();
        let mut paused = false;
        {
            let mut named = lock(&self.named);
            let are_unnamed = self.turn.load(Ordering::Acquire) >= SUBMITTED;
            // Whoever has it polls it; or is a blocking call that has begun since, and keeps it for as long as that takes.
            let mut unnamed = if are_unnamed { try_lock(&self.unnamed) } else { None };
            let is_known = unnamed.is_some() || !are_unnamed;
            self.empty_inbox(&mut named, &mut unnamed);
            match joined {
                Some(joined) => {
                    named.agree(&joined.terms);
                    let ground = self.ground(joined);
                    progress = named.poll(ground, None, look);
                    let [of_named, of_unnamed] = &self.posts;
                    self.fill(of_named, named.can_lend(None), || named.lend(None));
                    // Threads with named calls need not wait for the unnamed ones.
                    drop(named);
                    if let Some(lane) = &mut unnamed {
                        lane.agree(&joined.terms);
                        ended_unnamed = lane.poll(ground, look);
                        paused = lane.has_paused();
                    }
                    if is_known {
                        let can_lend = unnamed.as_ref().is_some_and(|lane| lane.can_lend());
                        self.fill(of_unnamed, can_lend, || unnamed.as_mut()?.lend());
                    }
                    paused |= progress.paused;
                }
                None => {
                    if look && self.life.is_live() {
                        let mut judge = |call: &mut engine::Call| self.joining.look(self, call).err();
                        progress.finished.extend(named.fail_one(&mut judge).unwrap_or_default());
                        ended_unnamed
                            .extend(unnamed.as_mut().and_then(|lane| lane.fail_one(&mut judge)).unwrap_or_default());
                    }
                    if !self.life.is_live() {
                        let now = MonotonicClock.now();
                        named.drain(&self.life, &self.view, now, None, &mut progress);
                        if let Some(lane) = &mut unnamed {
                            ended_unnamed.extend(lane.drain(&self.life, &self.view, now));
                        }
                    }
                }
            }
        }
        self.answer(core::mem::take(&mut progress.contradictions));
        let moved = progress.moved || !progress.finished.is_empty() || !ended_unnamed.is_empty();
        let unnamed = u32::try_from(ended_unnamed.len()).unwrap_or(u32::MAX);
        let mut finished = progress.finished;
        finished.extend(ended_unnamed);
        self.conclude(moved, finished, unnamed);
        moved || paused
    }

    /// Hands over a call of no bytes in place of the one that this process will not make by this name; not if it has used the
    /// name more often. Gives `done` back then.
    pub(crate) fn submit_instead(
        shared: &Arc<GroupShared>,
        work: &Work,
        name: &str,
        uses: u64,
        done: Completion,
    ) -> core::result::Result<(), Completion> {
        let limits = shared.limits(Timeout::Never);
        let mut lane = lock(&shared.named);
        // What this process has submitted comes first.
        shared.empty_inbox(&mut lane, &mut None);
        let preparer = lane.preparer.with_settings(shared.world.settings());
        let call = preparer.call(work, limits).started(MonotonicClock.now()).named(name);
        let task = Task { call, buffers: Box::new(Nothing), done, next: None };
        lane.enter_instead(task, uses).map_err(|task| task.done)?;
        // It is none of the user's calls.
        shared.exchanges.fetch_add(1, Ordering::AcqRel);
        shared.submitted.fetch_add(1, Ordering::AcqRel);
        drop(lane);
        shared.activate();
        shared.end_if_shut_down();
        Ok(())
    }

    /// Gives the turn on and runs the completions of ended calls, with no lock held: light ones here, others on the progress thread.
    pub(crate) fn conclude(&self, moved: bool, mut finished: Finished, unnamed: u32) {
        for (task, result) in &mut finished {
            match task.call.ticket() {
                None if !task.call.is_named() => self.note_latest_end(result),
                ticket => self.note_end(ticket, result),
            }
            if let Err(error) = result {
                *error = self.failed(error.clone());
            }
        }
        if unnamed > 0 {
            self.turn.fetch_sub(unnamed * SUBMITTED, Ordering::Release);
        }
        let have_ended = !finished.is_empty();
        if have_ended {
            self.submitted.fetch_sub(finished.len(), Ordering::AcqRel);
            self.world.complete(finished);
        }
        if moved || have_ended {
            self.world.ring_own();
        }
    }
}

/// No bytes.
struct Nothing;

impl OwnedBuffers for Nothing {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(&mut [])
    }
}

/// A call to be submitted.
pub(crate) struct Submission {
    pub(crate) work: Work,
    pub(crate) buffers: Box<dyn OwnedBuffers>,
    pub(crate) done: Completion,
}
