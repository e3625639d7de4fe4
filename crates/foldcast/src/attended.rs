//! Submitted calls that the submitting thread looks after for a moment, before it leaves them to the progress thread.
//!
//! A small call whose peers come at the same time takes a microsecond, and a switch to the progress thread and back many. So
//! the submitting thread makes the call go on itself, for about as long as a sleep and a wake-up would take, and runs its
//! completion if it has ended by then. It does so only where the last ones ended as soon: where the peers use to come later, each
//! such moment is lost to whatever else the thread could do.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine::{Completion, OwnedBuffers, Work};
use shm::Waiter;
use types::Result;

use crate::group::{CallOptions, GroupShared, lock};
use crate::progress::{Ending, is_progress_thread};
use crate::submitted::Submission;

/// A call of more bytes takes so long that a switch of threads does not matter, and the thread may have better to do.
const MOST_BYTES: usize = 64 << 10;
/// How long a call is looked after.
const MOMENT: Duration = Duration::from_micros(40);
/// How many completions may run one within the other: each may submit the next call, from within the last one's.
const MOST_NESTED: u32 = 4;
/// After so many in vain, one behind the other, only one of 2^this many calls is looked after: what that loses is then some 3 us
/// a call.
const MOST_IN_VAIN: u32 = 4;

thread_local! {
    /// Completions of calls looked after that are running on this thread.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// Whether it is worth while to look after a group's calls, by how the last ones went.
#[derive(Debug, Default)]
pub(crate) struct Prospects {
    in_vain: AtomicU32,
    skip: AtomicU32,
}

impl Prospects {
    /// Whether to look after this call. All counts are guesses: threads that count at once lose nothing by it.
    fn are_good(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    fn note(&self, has_ended: bool) {
        let in_vain = if has_ended { 0 } else { (self.in_vain.load(Ordering::Relaxed) + 1).min(MOST_IN_VAIN) };
        self.in_vain.store(in_vain, Ordering::Relaxed);
        self.skip.store((1 << in_vain) - 1, Ordering::Relaxed);
    }
}

/// A call that the submitting thread looks after, as that thread and whoever ends the call share it.
pub(crate) struct Attended {
    stage: Mutex<Stage>,
    has_ended: AtomicBool,
}

enum Stage {
    /// The thread looks after the call.
    Attended(Completion),
    /// The call has ended meanwhile: the thread will run the completion.
    Ended(Ending),
    /// The thread has left before: the completion is the progress thread's.
    Left(Completion),
    Over,
}

impl Attended {
    /// Puts itself between a call and its completion.
    pub(crate) fn attend(group: &Arc<GroupShared>, submission: Submission) -> (Submission, Arc<Attended>) {
        let Submission { work, buffers, done } = submission;
        let stage = Mutex::new(Stage::Attended(done));
        let attended = Arc::new(Attended { stage, has_ended: AtomicBool::new(false) });
        let (world, ended) = (Arc::clone(&group.world), Arc::clone(&attended));
        let note = move |result: Result<()>, buffers| {
            if let Some(left) = ended.end(result, buffers) {
                world.complete_later([left]);
            }
        };
        (Submission { work, buffers, done: Box::new(note) }, attended)
    }

    /// Takes note of the end; gives the completion back if nobody is there to run it.
    fn end(&self, result: Result<()>, buffers: Box<dyn OwnedBuffers>) -> Option<Ending> {
        let mut stage = lock(&self.stage);
        match core::mem::replace(&mut *stage, Stage::Over) {
            Stage::Attended(done) => {
                *stage = Stage::Ended(Ending { done, result, buffers });
                self.has_ended.store(true, Ordering::Release);
                None
            }
            Stage::Left(done) => Some(Ending { done, result, buffers }),
            Stage::Ended(_) | Stage::Over => None,
        }
    }

    /// Leaves the call; gives the completion back if it has ended.
    fn leave(&self) -> Option<Ending> {
        let mut stage = lock(&self.stage);
        match core::mem::replace(&mut *stage, Stage::Over) {
            Stage::Attended(done) => {
                *stage = Stage::Left(done);
                None
            }
            Stage::Ended(ending) => Some(ending),
            Stage::Left(_) | Stage::Over => None,
        }
    }
}

impl GroupShared {
    /// Whether the calling thread looks after a call that it is about to submit.
    pub(crate) fn attends(&self, work: &Work, options: &CallOptions<'_>) -> bool {
        options.attended
            && work.bytes() <= MOST_BYTES
            && self.joining.get().is_some()
            && self.submitted.load(Ordering::Acquire) == 0
            && NESTED.get() < MOST_NESTED
            // It has all others to look after.
            && !is_progress_thread()
            && self.world.host().is_some_and(|host| !host.is_crowded())
            && !self.world.is_active()
            && self.prospects.are_good()
    }

    /// Looks after a call that was submitted just now; whether it has ended, and its completion has run.
    pub(crate) fn look_after(&self, attended: &Attended) -> bool {
        let has_ended = self.wait_a_moment(attended);
        self.prospects.note(has_ended);
        let Some(ending) = attended.leave() else { return false };
        NESTED.set(NESTED.get() + 1);
        self.world.run_completion(ending);
        NESTED.set(NESTED.get() - 1);
        true
    }

    fn wait_a_moment(&self, attended: &Attended) -> bool {
        let Some(host) = self.world.host() else { return false };
        let mut waiter = Waiter::new(host, &self.view.ranks);
        let begun = Instant::now();
        loop {
            self.progress(false);
            if attended.has_ended.load(Ordering::Acquire) {
                return true;
            }
            if begun.elapsed() >= MOMENT || !waiter.only_spins() {
                return false;
            }
            waiter.pause(None, &|| true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Buffers;

    struct None;

    impl OwnedBuffers for None {
        fn buffers(&mut self) -> Buffers<'_> {
            Buffers::InPlace(&mut [])
        }
    }

    fn attended() -> Attended {
        Attended { stage: Mutex::new(Stage::Attended(Box::new(|_, _| {}))), has_ended: AtomicBool::new(false) }
    }

    #[test]
    fn whoever_comes_last_has_the_completion() {
        let ended_first = attended();
        assert!(ended_first.end(Ok(()), Box::new(None)).is_none());
        assert!(ended_first.has_ended.load(Ordering::Acquire));
        assert!(ended_first.leave().is_some());
        let left_first = attended();
        assert!(left_first.leave().is_none());
        assert!(left_first.end(Ok(()), Box::new(None)).is_some());
        assert!(!left_first.has_ended.load(Ordering::Acquire));
    }

    #[test]
    fn where_peers_come_late_few_calls_are_looked_after() {
        let prospects = Prospects::default();
        let skipped = || (0..1_000).take_while(|_| !prospects.are_good()).count();
        for expected in [0, 1, 3, 7, 15, 15, 15] {
            assert_eq!(skipped(), expected);
            prospects.note(false);
        }
        assert_eq!(skipped(), 15);
        prospects.note(true);
        assert_eq!(skipped(), 0);
        assert_eq!(skipped(), 0);
    }
}
