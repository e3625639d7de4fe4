//! Large calls on several threads: the calling one, and helpers that sleep between calls.
//!
//! The calling thread lets the headers meet; then it hands out the lanes of the call (see [`engine::lanes`]) and goes round
//! all that no helper has taken. So a call needs no helper to get on: they may be busy with a call of another group, or not
//! to be had. A group of one has nobody to meet; its copy is cut in the same way.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError};

use engine::lanes::{cut_buffers, even};
use engine::{Call, Cut, Lane, Poll, UnnamedLane, Work};
use shm::Crew;
use types::error::Cause;
use types::transport::Geometry;
use types::{Buffers, CallSite, Error, Result};

use crate::group::{CallOptions, GroupShared, lock};
use crate::join::Joined;
use crate::wait::{Patience, Pause};
use crate::world::World;

/// A group of one copies results of so many bytes with several threads.
pub(crate) const LARGE_BYTES: usize = 1 << 20;

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

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.crew.stop();
    }
}

impl GroupShared {
    /// Runs a large call of a group of one.
    #[cold]
    pub(crate) fn run_alone_in_parts(&self, work: &Work, buffers: &mut Buffers<'_>) {
        let number = self.world.config().threads.min(work.bytes() / (LARGE_BYTES / 2));
        let spans = even(work.bytes(), number, PART_BYTES);
        let parts: Vec<_> =
            cut_buffers(buffers.reborrow(), spans).into_iter().map(|part| Mutex::new(Some(part))).collect();
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
        let shared = Lanes::new(self, joined, lanes);
        let help = |lane: usize, over: &AtomicBool| shared.help(lane, over);
        let last = shared.lanes.len() - 1;
        let result = self.world.crew().with(last, &help, || shared.lead(&mut call, site, options));
        match shared.error.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => result,
        }
    }
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
            left: AtomicUsize::new(lanes.len()),
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            failed: AtomicBool::new(false),
            error: Mutex::default(),
        }
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }

    /// Runs a lane as far as possible; whether it has ended.
    fn poll(&self, lane: &mut Lane<'_>, look: bool) -> bool {
        if lane.has_ended() {
            return true;
        }
        let Poll::Ready(result) = lane.poll(self.group.ground(self.joined), look) else { return false };
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
        true
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
            if self.poll(&mut lane, look) || over.load(Ordering::Acquire) {
                return;
            }
            let pause = patience.pause(&|| over.load(Ordering::Acquire) || lane.can_go_on(ground));
            look = pause != Pause::Spun;
        }
    }

    /// The lanes that no helper has taken, for the calling thread.
    fn own(&self) -> impl Iterator<Item = MutexGuard<'_, Lane<'a>>> {
        let free = self.lanes.iter().zip(&self.taken).filter(|(_, taken)| !taken.load(Ordering::Acquire));
        free.filter_map(|(lane, _)| match lane.try_lock() {
            Ok(lane) => Some(lane),
            Err(TryLockError::Poisoned(lane)) => Some(lane.into_inner()),
            // A helper has just come.
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// The calling thread's part: all lanes that no helper has taken, until all have ended or one has failed.
    fn lead(&self, call: &mut Call, site: CallSite, options: &CallOptions<'_>) -> Result<()> {
        let _news = News(self);
        let ground = self.group.ground(self.joined);
        let mut patience = Patience::new(&self.group.world, &self.group.view.ranks, options.interrupt);
        let mut look = false;
        loop {
            for mut lane in self.own() {
                self.poll(&mut lane, look);
            }
            if self.is_over() {
                return Ok(());
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
        if std::thread::panicking() {
            // What it was at will not end: neither here nor on the other ranks.
            self.0.group.end(&Cause::Failed { by: self.0.group.view.rank });
            self.0.failed.store(true, Ordering::Release);
        }
        self.0.group.world.ring_own();
    }
}
