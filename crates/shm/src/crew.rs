//! Threads that help a caller with one piece of work at a time, and sleep in between.
//!
//! A caller splits its work into parts and hands them out with [`Crew::with`], then works itself. Helpers that sleep take a
//! part each; a part that none has taken by then is the caller's to do, so no work ever waits for a helper: neither when
//! all are busy for another caller, who may be waiting for this one's peers, nor when there is no thread to be had.

use core::fmt;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What helpers are given: the number of a part, and whether the caller wants no more of it.
type Work<'a> = dyn Fn(usize, &AtomicBool) + Sync + 'a;

/// The work of a caller that waits in [`Crew::with`] until nobody knows it any more.
#[derive(Clone, Copy)]
struct Lent(*const Work<'static>);

// SAFETY: what is behind it is `Sync`, so it may be called from any thread.
unsafe impl Send for Lent {}

/// A part that no helper has taken yet.
struct Job {
    work: Lent,
    part: usize,
    call: Arc<Call>,
}

/// One call of [`Crew::with`].
#[derive(Default)]
struct Call {
    over: AtomicBool,
    /// Helpers that are at it.
    busy: Mutex<usize>,
    /// Rings when one of them is done.
    done: Condvar,
    panicked: AtomicBool,
}

#[derive(Default)]
struct Desk {
    jobs: VecDeque<Job>,
    /// Helpers that sleep.
    idle: usize,
    stopping: bool,
}

/// The helpers of a process. They are threads that run [`serve`](Self::serve).
#[derive(Default)]
pub struct Crew {
    desk: Mutex<Desk>,
    /// Rings when there are jobs, or none any more for ever.
    hiring: Condvar,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("idle", &lock(&self.desk).idle).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs under these locks can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// Runs `own` on the calling thread while helpers that are free run `work(part, over)` for parts from 1 to `parts`: one
    /// helper a part, and perhaps none for some or all. Returns what `own` does when no helper is at it any more. `over` is
    /// set when `own` has ended: helpers see it and return soon.
    ///
    /// # Panics
    /// If `own` does, or `work` did on a helper.
    pub fn with<R>(&self, parts: usize, work: &Work<'_>, own: impl FnOnce() -> R) -> R {
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime changes. `Recall` ends, also when `own` panics, before this call does, and so within
        // the lifetime of what `work` borrows; no helper uses the pointer after that.
        let work = Lent(unsafe { core::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) });
        let recall = Recall { crew: self, call: Arc::default() };
        {
            let mut desk = lock(&self.desk);
            // No more than can begin at once: a part never waits for a helper of somebody else.
            let free = desk.idle.saturating_sub(desk.jobs.len());
            for part in (1..=parts).take(free) {
                desk.jobs.push_back(Job { work, part, call: Arc::clone(&recall.call) });
                self.hiring.notify_one();
            }
        }
        let result = own();
        let call = Arc::clone(&recall.call);
        drop(recall);
        assert!(!call.panicked.load(Ordering::Acquire), "a helper panicked: see above");
        result
    }

    /// What a helper's thread runs: parts of others' work, until the crew is [stopped](Self::stop).
    pub fn serve(&self) {
        let mut desk = lock(&self.desk);
        loop {
            let Some(Job { work, part, call }) = desk.jobs.pop_front() else {
                if desk.stopping {
                    return;
                }
                desk.idle += 1;
                desk = self.hiring.wait(desk).unwrap_or_else(PoisonError::into_inner);
                desk.idle -= 1;
                continue;
            };
            // Under the desk's lock: a caller that finds no job of its own finds this count.
            *lock(&call.busy) += 1;
            drop(desk);
            // SAFETY: the caller of this job waits in `Recall::drop` while `busy` is not 0.
            let work = unsafe { &*work.0 };
            if catch_unwind(AssertUnwindSafe(|| work(part, &call.over))).is_err() {
                call.panicked.store(true, Ordering::Release);
            }
            *lock(&call.busy) -= 1;
            call.done.notify_all();
            desk = lock(&self.desk);
        }
    }

    /// Lets the helpers' threads end.
    pub fn stop(&self) {
        lock(&self.desk).stopping = true;
        self.hiring.notify_all();
    }
}

/// Takes back the parts that no helper has begun, and waits for those that one has.
struct Recall<'a> {
    crew: &'a Crew,
    call: Arc<Call>,
}

impl Drop for Recall<'_> {
    fn drop(&mut self) {
        self.call.over.store(true, Ordering::Release);
        lock(&self.crew.desk).jobs.retain(|job| !Arc::ptr_eq(&job.call, &self.call));
        let mut busy = lock(&self.call.busy);
        while *busy > 0 {
            busy = self.call.done.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};

    struct Helpers {
        crew: Arc<Crew>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Helpers {
        fn new(count: usize) -> Helpers {
            let crew = Arc::new(Crew::default());
            let serve = |_| {
                let crew = Arc::clone(&crew);
                thread::spawn(move || crew.serve())
            };
            let threads = (0..count).map(serve).collect();
            let helpers = Helpers { crew, threads };
            helpers.await_idle(count);
            helpers
        }

        fn await_idle(&self, count: usize) {
            while lock(&self.crew.desk).idle < count {
                thread::yield_now();
            }
        }

        fn end(self) {
            self.crew.stop();
            for thread in self.threads {
                thread.join().expect("a helper outlives what it runs");
            }
        }
    }

    /// Runs until the caller wants no more; says when it has begun.
    fn until_over(begun: &AtomicUsize, over: &AtomicBool) {
        begun.fetch_add(1, Ordering::AcqRel);
        while !over.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn await_begun(begun: &AtomicUsize, count: usize) {
        while begun.load(Ordering::Acquire) < count {
            thread::yield_now();
        }
    }

    #[test]
    fn each_part_is_taken_at_most_once_and_all_end_before_the_call() {
        let helpers = Helpers::new(3);
        for round in 0..500 {
            let (parts, taken, running) = (1 + round % 5, Mutex::new(Vec::new()), AtomicUsize::new(0));
            let work = |part: usize, _: &AtomicBool| {
                running.fetch_add(1, Ordering::AcqRel);
                lock(&taken).push(part);
                thread::yield_now();
                running.fetch_sub(1, Ordering::AcqRel);
            };
            assert_eq!(helpers.crew.with(parts, &work, || 7), 7);
            assert_eq!(running.load(Ordering::Acquire), 0, "a helper is still at it");
            let mut taken = taken.into_inner().unwrap();
            taken.sort_unstable();
            assert!(taken.is_sorted_by(|a, b| a < b), "a part was taken twice: {taken:?}");
            assert!(taken.iter().all(|part| (1..=parts).contains(part)), "{taken:?}");
        }
        helpers.end();
    }

    #[test]
    fn sleeping_helpers_take_a_part_each() {
        let helpers = Helpers::new(2);
        for _ in 0..50 {
            helpers.await_idle(2);
            let begun = AtomicUsize::new(0);
            let work = |_: usize, over: &AtomicBool| until_over(&begun, over);
            helpers.crew.with(2, &work, || await_begun(&begun, 2));
        }
        helpers.end();
    }

    #[test]
    fn busy_helpers_hold_up_nobody() {
        let helpers = Helpers::new(1);
        let (begun, crew) = (AtomicUsize::new(0), &*helpers.crew);
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                let work = |_: usize, over: &AtomicBool| until_over(begun, over);
                crew.with(1, &work, || is_done.recv().expect("the other call ends"));
            });
            await_begun(begun, 1);
            crew.with(4, &|_, _| panic!("nobody is free"), || ());
            done.send(()).expect("the first call waits");
        });
        helpers.end();
    }

    #[test]
    fn without_helpers_the_caller_is_alone() {
        assert_eq!(Crew::default().with(3, &|_, _| panic!("nobody is there"), || 1), 1);
        let helpers = Helpers::new(1);
        let crew = Arc::clone(&helpers.crew);
        helpers.end();
        assert_eq!(crew.with(3, &|_, _| panic!("nobody is left"), || 2), 2);
    }

    #[test]
    fn a_panic_waits_for_the_helpers_too() {
        let helpers = Helpers::new(1);
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_: usize, over: &AtomicBool| {
            until_over(&begun, over);
            ended.fetch_add(1, Ordering::AcqRel);
        };
        let own = || -> () {
            await_begun(&begun, 1);
            panic!("as the test wants it");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| helpers.crew.with(1, &work, own))).is_err());
        assert_eq!(ended.load(Ordering::Acquire), 1);
        helpers.await_idle(1);
        let begun = AtomicUsize::new(0);
        let work = |_: usize, _: &AtomicBool| {
            begun.fetch_add(1, Ordering::AcqRel);
            panic!("as the test wants it");
        };
        let own = || await_begun(&begun, 1);
        assert!(catch_unwind(AssertUnwindSafe(|| helpers.crew.with(1, &work, own))).is_err(), "it is passed on");
        helpers.await_idle(1);
        helpers.end();
    }
}
