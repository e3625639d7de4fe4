//! Threads that help a caller with one piece of work at a time, and sleep in between.
//!
//! A caller splits its work into parts and hands them out with [`Crew::with`], then works itself. Helpers that sleep take a
//! part each; a part that none has taken by then is the caller's to do, so no work ever waits for a helper: neither when
//! all are busy for another caller, who may be waiting for this one's peers, nor when there is no thread to be had.
//!
//! A thread that has other things to do can hire a helper as such a caller ([`Crew::hire`]), and look in on callers' work in
//! between ([`Crew::visit`]), if these [welcome](Crew::with_guests) guests.

use core::fmt;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What helpers are given: the number of a part, and whether the caller wants no more of it.
type Work<'a> = dyn Fn(usize, &AtomicBool) + Sync + 'a;

/// What guests are given; whether they did something.
type Visit<'a> = dyn Fn() -> bool + Sync + 'a;

/// The work of a caller that waits in [`Crew::with`] until nobody knows it any more.
#[derive(Clone, Copy)]
struct Lent(*const Work<'static>);

// SAFETY: what is behind it is `Sync`, so it may be called from any thread.
unsafe impl Send for Lent {}

/// What a caller that waits in [`Crew::with_guests`] has for guests, until nobody knows it any more.
#[derive(Clone, Copy)]
struct Open(*const Visit<'static>);

// SAFETY: what is behind it is `Sync`, so it may be called from any thread.
unsafe impl Send for Open {}

/// What no helper has begun yet.
enum Job {
    /// A part of a caller's work.
    Part { work: Lent, part: usize, call: Arc<Call> },
    /// Work that nobody waits for.
    Whole(Box<dyn FnOnce() + Send>),
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
    /// Callers that welcome guests.
    open: VecDeque<(Open, Arc<Call>)>,
    /// Helpers that sleep.
    idle: usize,
    stopping: bool,
}

impl Desk {
    /// Whether a helper sleeps for whom there is no job.
    fn has_free(&self) -> bool {
        self.idle > self.jobs.len()
    }
}

/// The helpers of a process. They are threads that run [`serve`](Self::serve).
#[derive(Default)]
pub struct Crew {
    desk: Mutex<Desk>,
    /// Rings when there are jobs, or none any more for ever.
    hiring: Condvar,
    /// How many callers welcome guests.
    open: AtomicUsize,
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
        self.run(parts, work, None, own)
    }

    /// The same, where any thread may come for a moment with [`visit`](Self::visit) to run `guest()`, while `own` runs.
    ///
    /// # Panics
    /// As [`with`](Self::with), and if `guest` did.
    pub fn with_guests<R>(&self, parts: usize, work: &Work<'_>, guest: &Visit<'_>, own: impl FnOnce() -> R) -> R {
        self.run(parts, work, Some(guest), own)
    }

    fn run<R>(&self, parts: usize, work: &Work<'_>, guest: Option<&Visit<'_>>, own: impl FnOnce() -> R) -> R {
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime changes. `Recall` ends, also when `own` panics, before this call does, and so within
        // the lifetime of what `work` borrows; no helper uses the pointer after that.
        let work = Lent(unsafe { core::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) });
        let open = guest.map(|guest| {
            let guest: *const Visit<'_> = guest;
            // SAFETY: as for `work`.
            Open(unsafe { core::mem::transmute::<*const Visit<'_>, *const Visit<'static>>(guest) })
        });
        let recall = Recall { crew: self, call: Arc::default() };
        {
            let mut desk = lock(&self.desk);
            // No more than can begin at once: a part never waits for a helper of somebody else.
            let free = desk.idle.saturating_sub(desk.jobs.len());
            for part in (1..=parts).take(free) {
                desk.jobs.push_back(Job::Part { work, part, call: Arc::clone(&recall.call) });
                self.hiring.notify_one();
            }
            if let Some(open) = open {
                desk.open.push_back((open, Arc::clone(&recall.call)));
                self.open.fetch_add(1, Ordering::AcqRel);
            }
        }
        let result = own();
        let call = Arc::clone(&recall.call);
        drop(recall);
        assert!(!call.panicked.load(Ordering::Acquire), "a helper panicked: see above");
        result
    }

    /// Has a helper that is free run this, and nobody wait for it; `false` if none is.
    pub fn hire(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        let mut desk = lock(&self.desk);
        let is_free = desk.has_free();
        if is_free {
            desk.jobs.push_back(Job::Whole(job));
            self.hiring.notify_one();
        }
        is_free
    }

    /// Whether a helper is free now.
    #[must_use]
    pub fn has_free(&self) -> bool {
        lock(&self.desk).has_free()
    }

    /// Looks in on each caller that welcomes guests; whether there was something to do.
    pub fn visit(&self) -> bool {
        let mut did = false;
        for _ in 0..self.open.load(Ordering::Acquire) {
            let mut desk = lock(&self.desk);
            let Some((open, call)) = desk.open.pop_front() else { break };
            desk.open.push_back((open, Arc::clone(&call)));
            // Under the desk's lock: a caller that has closed finds this count.
            *lock(&call.busy) += 1;
            drop(desk);
            // SAFETY: the caller waits in `Recall::drop` while `busy` is not 0.
            let visit = unsafe { &*open.0 };
            match catch_unwind(AssertUnwindSafe(visit)) {
                Ok(something) => did |= something,
                Err(_) => call.panicked.store(true, Ordering::Release),
            }
            *lock(&call.busy) -= 1;
            call.done.notify_all();
        }
        did
    }

    /// What a helper's thread runs: parts of others' work, until the crew is [stopped](Self::stop).
    pub fn serve(&self) {
        let mut desk = lock(&self.desk);
        loop {
            let Some(job) = desk.jobs.pop_front() else {
                if desk.stopping {
                    return;
                }
                desk.idle += 1;
                desk = self.hiring.wait(desk).unwrap_or_else(PoisonError::into_inner);
                desk.idle -= 1;
                continue;
            };
            let (work, part, call) = match job {
                Job::Part { work, part, call } => (work, part, call),
                Job::Whole(work) => {
                    drop(desk);
                    // Its panic is its own; this thread helps others still.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                    desk = lock(&self.desk);
                    continue;
                }
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

/// Takes back the parts that no helper has begun, lets no more guests in, and waits for those who are at it.
struct Recall<'a> {
    crew: &'a Crew,
    call: Arc<Call>,
}

impl Drop for Recall<'_> {
    fn drop(&mut self) {
        self.call.over.store(true, Ordering::Release);
        {
            let mut desk = lock(&self.crew.desk);
            desk.jobs.retain(|job| !matches!(job, Job::Part { call, .. } if Arc::ptr_eq(call, &self.call)));
            let before = desk.open.len();
            desk.open.retain(|(_, call)| !Arc::ptr_eq(call, &self.call));
            self.crew.open.fetch_sub(before - desk.open.len(), Ordering::AcqRel);
        }
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
    fn a_helper_that_is_hired_may_call_others_and_nobody_waits_for_it() {
        let helpers = Helpers::new(2);
        for _ in 0..50 {
            helpers.await_idle(2);
            let (ended, has_ended) = mpsc::channel();
            let crew = Arc::clone(&helpers.crew);
            let hired = helpers.crew.hire(Box::new(move || {
                let begun = AtomicUsize::new(0);
                let work = |_: usize, over: &AtomicBool| until_over(&begun, over);
                crew.with(1, &work, || await_begun(&begun, 1));
                ended.send(()).expect("the test waits");
            }));
            assert!(hired, "two were free");
            has_ended.recv().expect("it ends");
        }
        helpers.await_idle(2);
        let (end, has_to_end) = mpsc::channel::<()>();
        let until_dropped = move || assert!(has_to_end.recv().is_err());
        assert!(helpers.crew.hire(Box::new(until_dropped)));
        assert!(helpers.crew.hire(Box::new(|| panic!("as the test wants it"))));
        while !helpers.crew.has_free() {
            thread::yield_now();
        }
        let begun = AtomicUsize::new(0);
        let work = |_: usize, over: &AtomicBool| until_over(&begun, over);
        helpers.crew.with(3, &work, || await_begun(&begun, 1));
        drop(end);
        helpers.await_idle(2);
        let crew = Arc::clone(&helpers.crew);
        helpers.end();
        assert!(!crew.hire(Box::new(|| panic!("nobody is left"))));
    }

    #[test]
    fn guests_come_while_they_are_welcome_and_are_waited_for() {
        let crew = Crew::default();
        assert!(!crew.visit(), "nobody is there");
        let (visits, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let guests = [0, 1].map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Acquire) {
                        crew.visit();
                    }
                })
            });
            for round in 0..200 {
                let before = visits.load(Ordering::Acquire);
                let guest = || {
                    inside.fetch_add(1, Ordering::AcqRel);
                    visits.fetch_add(1, Ordering::AcqRel);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::AcqRel);
                    round % 2 == 0
                };
                crew.with_guests(1, &|_, _| panic!("nobody is free"), &guest, || await_begun(&visits, before + 1));
                assert_eq!(inside.load(Ordering::Acquire), 0, "a guest is still there");
            }
            stop.store(true, Ordering::Release);
            for guest in guests {
                guest.join().expect("guests outlive what they visit");
            }
        });
        let (asks, asked) = mpsc::channel();
        thread::scope(|scope| {
            let crew = &crew;
            scope.spawn(move || {
                for answer in [true, false] {
                    let own = || asked.recv().expect("the test has come");
                    crew.with_guests(0, &|_, _| (), &|| answer, own);
                }
            });
            for answer in [true, false] {
                while crew.open.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                assert_eq!(crew.visit(), answer);
                asks.send(()).expect("the caller waits");
                while answer && crew.visit() {}
            }
        });
        assert!(!crew.visit(), "nobody is there any more");
    }

    #[test]
    fn a_guest_that_panics_fails_the_caller_and_not_the_guest() {
        let crew = Crew::default();
        let visited = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (crew, visited) = (&crew, &visited);
            let caller = scope.spawn(move || {
                let guest = || -> bool {
                    visited.fetch_add(1, Ordering::AcqRel);
                    panic!("as the test wants it");
                };
                crew.with_guests(0, &|_, _| (), &guest, || await_begun(visited, 1));
            });
            while visited.load(Ordering::Acquire) == 0 {
                crew.visit();
            }
            assert!(caller.join().is_err(), "it is passed on");
        });
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
