//! Large calls on several threads: the calling one, and helpers that sleep between calls.
//!
//! The calling thread lets the headers meet; then it hands out the lanes of the call (see [`engine::lanes`]) and goes round
//! all that no helper has taken. So a call needs no helper to get on: they may be busy with a call of another group, or not
//! to be had. A group of one has nobody to meet; its copy is cut in the same way.
//!
//! The progress thread has other calls to run. So it hires a helper as the one that leads a submitted call. Until that one is
//! there, or if none is free, it runs the lanes itself; from then on it comes as a guest, for a turn between others.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use engine::lanes::{cut_buffers, even};
use engine::{Call, Cut, Lane, Loan, Poll, UnnamedLane, Work};
use shm::{Crew, MonotonicClock};
use types::error::Cause;
use types::transport::{Clock, Geometry};
use types::{Buffers, CallSite, Error, Result};

use crate::group::{CallOptions, GroupShared, lock, try_lock};
use crate::join::Joined;
use crate::wait::{Patience, Pause};
use crate::world::World;

/// A group of one copies results of so many bytes with several threads.
pub(crate) const LARGE_BYTES: usize = 1 << 20;

/// A call that is never waited for is looked after all the same: every 16 MiB or so.
pub(crate) const LOOK_AFTER_TURNS: u32 = 64;

/// A helper that was hired offers its processor to others so often before it sleeps until there is something for it.
const YIELDS: u32 = 1000;

/// Parts of such a copy are whole multiples of this: of elements, cache lines and pages.
const PART_BYTES: usize = 4096;

/// The threads of a process that help with large calls.
pub(crate) struct Helpers {
    crew: Arc<Crew>,
    started: Once,
}

impl Default for Helpers {
    fn default() -> Helpers {
        Helpers { crew: Arc::default(), started: Once::new() }
    }
}

impl Helpers {
    /// The helpers, which are made when they are first asked for: as many as threads are allowed beside the calling one.
    /// If one cannot be had, those that can must do.
    pub(crate) fn crew(&self, world: &World) -> &Crew {
        self.started.call_once(|| {
            for number in 1..world.config().threads.min(Geometry::MAX_LANES) {
                let crew = Arc::clone(&self.crew);
                if let Err(error) = world.spawn(&format!("foldcast-lane-{number}"), move |_| crew.serve()) {
                    log::warn!("{}: large calls have {} helpers: {error}", world.rank(), number - 1);
                    break;
                }
            }
        });
        &self.crew
    }

    /// Gives each call that is led by a helper a turn; whether there was something to do.
    pub(crate) fn visit(&self) -> bool {
        self.crew.visit()
    }

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.crew.stop();
    }
}

/// The helper that is to lead the submitted calls of a group, of one kind, if one was hired.
#[derive(Default)]
pub(crate) struct Post {
    is_taken: AtomicBool,
    hired: Mutex<Option<Hired>>,
}

/// A helper that was hired, and leads no call yet.
struct Hired {
    /// Whether it has come.
    is_there: Arc<AtomicBool>,
    /// What it is given; if this is dropped, it goes.
    loans: Sender<Loan>,
}

impl Post {
    /// Whether somebody was hired who still waits.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    /// Lets whoever was hired and still waits go.
    pub(crate) fn dismiss(&self) {
        let mut hired = lock(&self.hired);
        *hired = None;
        self.is_taken.store(false, Ordering::Release);
    }
}

/// What a helper that was hired is given to do, if there is still something.
fn await_loan(loans: &Receiver<Loan>) -> Option<Loan> {
    for _ in 0..YIELDS {
        match loans.try_recv() {
            Ok(loan) => return Some(loan),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
    loans.recv().ok()
}

impl GroupShared {
    /// Sees to it that a helper leads a submitted call that is cut, if there is one that `can` be lent: hires one, or gives
    /// it the call if it has come.
    pub(crate) fn fill(&self, post: &Post, can: bool, lend: impl FnOnce() -> Option<Loan>) {
        if !can && !post.is_taken() {
            return;
        }
        let mut hired = lock(&post.hired);
        match &*hired {
            // What it was hired for has ended.
            Some(_) if !can => *hired = None,
            Some(leader) if leader.is_there.load(Ordering::Acquire) => {
                if let Some(loan) = lend() {
                    leader.loans.send(loan).expect("who has come listens until this end is dropped");
                }
                *hired = None;
            }
            None if can && self.world.crew().has_free() => *hired = self.hire(),
            _ => {}
        }
        post.is_taken.store(hired.is_some(), Ordering::Release);
    }

    fn hire(&self) -> Option<Hired> {
        let group = self.me.upgrade()?;
        let (loans, given) = mpsc::channel();
        let is_there = Arc::new(AtomicBool::new(false));
        let comes = Arc::clone(&is_there);
        let work = move || {
            comes.store(true, Ordering::Release);
            group.world.ring_own();
            if let Some(loan) = await_loan(&given) {
                group.run_submitted(loan);
            }
        };
        self.world.crew().hire(Box::new(work)).then_some(Hired { is_there, loans })
    }

    /// Runs a submitted call that was lent, on a helper.
    fn run_submitted(&self, mut loan: Loan) {
        let (mut call, site) = (loan.call(), loan.site_of(&self.view));
        let lead = || match self.joining.get() {
            Some(joined) => {
                let options = CallOptions::default();
                self.lead(joined, loan.submitted_lanes(), &mut call, site.clone(), &options, true)
            }
            None => Err(self.life.error(site.clone(), core::time::Duration::ZERO, true)),
        };
        let result = catch_unwind(AssertUnwindSafe(lead)).unwrap_or_else(|_| {
            self.end(&Cause::Failed { by: self.view.rank });
            Err(self.life.error(site, call.elapsed(MonotonicClock.now()), true))
        });
        if call.is_named() {
            let progress = lock(&self.named).settle(loan, result, false);
            self.conclude(true, progress.finished, 0);
        } else {
            let finished = lock(&self.unnamed).settle(loan, result);
            let ended = u32::try_from(finished.len()).unwrap_or(u32::MAX);
            self.conclude(true, finished, ended);
        }
    }

    /// Runs a named call that was lent to the calling thread, which waits for it. `goes_on`: whether it is of a list, and not
    /// its last.
    #[cold]
    pub(crate) fn run_lent(
        &self,
        mut loan: Loan,
        buffers: Buffers<'_>,
        goes_on: bool,
        options: &CallOptions<'_>,
        joined: &Joined,
    ) -> Result<()> {
        let (mut call, site) = (loan.call(), loan.site_of(&self.view));
        let result = self.lead(joined, loan.lanes(buffers), &mut call, site, options, false);
        let progress = lock(&self.named).settle(loan, result.clone(), goes_on);
        self.conclude(progress.moved, progress.finished, 0);
        progress.borrowed.unwrap_or(result)
    }

    /// Runs lanes to their ends, on the calling thread and on helpers that are free. `guests`: whether other threads may come
    /// for a turn.
    fn lead(
        &self,
        joined: &Joined,
        lanes: Vec<Lane<'_>>,
        call: &mut Call,
        site: CallSite,
        options: &CallOptions<'_>,
        guests: bool,
    ) -> Result<()> {
        let shared = Lanes::new(self, joined, lanes);
        let help = |lane: usize, over: &AtomicBool| shared.help(lane, over);
        let (parts, crew) = (shared.lanes.len().saturating_sub(1), self.world.crew());
        let own = || shared.lead(call, site, options);
        let result = match guests {
            true => crew.with_guests(parts, &help, &|| shared.visit(), own),
            false => crew.with(parts, &help, own),
        };
        match shared.error.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => result,
        }
    }

    /// Runs a large call of a group of one.
    #[cold]
    pub(crate) fn run_alone_in_parts(&self, work: &Work, buffers: &mut Buffers<'_>) {
        let number = self.world.config().threads.min(work.bytes() / (LARGE_BYTES / 2));
        let spans = even(work.bytes(), number, PART_BYTES);
        let parts = cut_buffers(buffers.reborrow(), spans.iter().map(|span| (span.len(), span.len())));
        let parts: Vec<_> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
        let run = |part: &Mutex<Option<Buffers<'_>>>| {
            let taken = lock(part).take();
            if let Some(mut buffers) = taken {
                work.alone(&mut buffers);
            }
        };
        let help = |part: usize, _: &AtomicBool| run(&parts[part]);
        self.world.crew().with(number - 1, &help, || parts.iter().for_each(run));
    }

    /// Runs an unnamed call [that is cut](Call::is_cut) into lanes.
    #[cold]
    pub(crate) fn run_cut(
        &self,
        lane: &mut UnnamedLane,
        mut call: Call,
        buffers: &mut Buffers<'_>,
        options: &CallOptions<'_>,
        joined: &Joined,
    ) -> Result<()> {
        let ground = self.ground(joined);
        let UnnamedLane { state, others, .. } = lane;
        let mut cut = Cut::begin(state, &call);
        let site = cut.site_of(&self.view);
        let mut patience = Patience::new(&self.world, &self.view.ranks, options.interrupt);
        let mut look = false;
        loop {
            match cut.meet(ground, state, buffers, look) {
                Poll::Ready(Ok(())) => break,
                Poll::Ready(failed) => return failed,
                Poll::Pending => {}
            }
            let pause = patience.pause(&|| cut.can_meet(ground, state));
            look = pause != Pause::Spun;
            if look {
                self.still_wanted(pause, &mut call, site.clone())?;
            }
        }
        let lanes = cut.lanes(state, others, buffers.reborrow());
        self.lead(joined, lanes, &mut call, site, options, false)
    }
}

/// How far a lane has come with a poll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polled {
    /// To its end.
    Ended,
    /// It can go on, when others had their turn.
    Paused,
    Waits,
}

/// The lanes of a call, as the threads that work on them share them.
struct Lanes<'a> {
    group: &'a GroupShared,
    joined: &'a Joined,
    lanes: Vec<Mutex<Lane<'a>>>,
    /// Which lanes a helper has taken.
    taken: Vec<AtomicBool>,
    /// Lanes that have not run to their end.
    left: AtomicUsize,
    failed: AtomicBool,
    /// The first error of a lane that says why.
    error: Mutex<Option<Error>>,
}

impl<'a> Lanes<'a> {
    fn new(group: &'a GroupShared, joined: &'a Joined, lanes: Vec<Lane<'a>>) -> Lanes<'a> {
        Lanes {
            group,
            joined,
            taken: lanes.iter().map(|_| AtomicBool::new(false)).collect(),
            // Before it was lent some may have run to their ends.
            left: AtomicUsize::new(lanes.iter().filter(|lane| !lane.has_ended()).count()),
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            failed: AtomicBool::new(false),
            error: Mutex::default(),
        }
    }

    /// What a thread that panics was at will not end: neither here nor on the other ranks.
    fn fail_if_panicking(&self) {
        if std::thread::panicking() {
            self.group.end(&Cause::Failed { by: self.group.view.rank });
            self.failed.store(true, Ordering::Release);
        }
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }

    /// Runs a lane as far as possible, or for a turn.
    fn poll(&self, lane: &mut Lane<'_>, look: bool) -> Polled {
        if lane.has_ended() {
            return Polled::Ended;
        }
        let Poll::Ready(result) = lane.poll(self.group.ground(self.joined), look) else {
            return if lane.has_paused() { Polled::Paused } else { Polled::Waits };
        };
        match result {
            Ok(()) => {
                self.left.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) => {
                let mut first = lock(&self.error);
                // The lane that ended the epoch knows more than one that found it over.
                if first.as_ref().is_none_or(|first| matches!(first, Error::GroupAborted(_))) {
                    *first = Some(error);
                }
                drop(first);
                self.failed.store(true, Ordering::Release);
            }
        }
        Polled::Ended
    }

    /// A helper's part: this lane, until it has ended or the call is over.
    fn help(&self, number: usize, over: &AtomicBool) {
        self.taken[number].store(true, Ordering::Release);
        let _news = News(self);
        let mut lane = lock(&self.lanes[number]);
        let ground = self.group.ground(self.joined);
        let mut patience = Patience::new(&self.group.world, &self.group.view.ranks, None);
        let mut look = false;
        loop {
            let polled = self.poll(&mut lane, look);
            if polled == Polled::Ended || over.load(Ordering::Acquire) {
                return;
            }
            if polled == Polled::Paused {
                continue;
            }
            let pause = patience.pause(&|| over.load(Ordering::Acquire) || lane.can_go_on(ground));
            look = pause != Pause::Spun;
        }
    }

    /// A guest's part: a turn of a lane that nobody is at. Whether there was something to do.
    fn visit(&self) -> bool {
        let _guest = Guest(self);
        let ground = self.group.ground(self.joined);
        // From the other end than the leader.
        for mut lane in self.own().rev() {
            if lane.has_ended() || self.is_over() {
                continue;
            }
            let goes_on = self.poll(&mut lane, false) != Polled::Waits || lane.can_go_on(ground);
            drop(lane);
            if goes_on {
                // The leader may have gone to sleep since it could not have this lane.
                self.group.world.ring_own();
                return true;
            }
        }
        false
    }

    /// The lanes that no helper has taken, for the calling thread.
    fn own(&self) -> impl DoubleEndedIterator<Item = MutexGuard<'_, Lane<'a>>> {
        let free = self.lanes.iter().zip(&self.taken).filter(|(_, taken)| !taken.load(Ordering::Acquire));
        // None if a helper or a guest has just come.
        free.filter_map(|(lane, _)| try_lock(lane))
    }

    /// The calling thread's part: all lanes that no helper has taken, until all have ended or one has failed.
    fn lead(&self, call: &mut Call, site: CallSite, options: &CallOptions<'_>) -> Result<()> {
        let _news = News(self);
        let ground = self.group.ground(self.joined);
        let mut patience = Patience::new(&self.group.world, &self.group.view.ranks, options.interrupt);
        let (mut look, mut turns) = (false, 0_u32);
        loop {
            let mut paused = false;
            for mut lane in self.own() {
                paused |= self.poll(&mut lane, look) == Polled::Paused;
            }
            if self.is_over() {
                return Ok(());
            }
            if paused {
                turns += 1;
                look = turns % LOOK_AFTER_TURNS == 0;
                if look {
                    let is_interrupted = options.interrupt.is_some_and(|interrupt| interrupt());
                    let pause = if is_interrupted { Pause::Interrupted } else { Pause::Look };
                    self.group.still_wanted(pause, call, site.clone())?;
                }
                continue;
            }
            let pause = patience.pause(&|| self.is_over() || self.own().any(|lane| lane.can_go_on(ground)));
            look = pause != Pause::Spun;
            if look {
                self.group.still_wanted(pause, call, site.clone())?;
            }
        }
    }
}

/// Tells the other threads of the call, when this one is through with its part, also by a panic.
struct News<'l, 'a>(&'l Lanes<'a>);

impl Drop for News<'_, '_> {
    fn drop(&mut self) {
        self.0.fail_if_panicking();
        self.0.group.world.ring_own();
    }
}

/// A turn of a guest: like [`News`], but nobody waits for its end.
struct Guest<'l, 'a>(&'l Lanes<'a>);

impl Drop for Guest<'_, '_> {
    fn drop(&mut self) {
        self.0.fail_if_panicking();
    }
}
