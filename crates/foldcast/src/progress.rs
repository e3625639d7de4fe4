//! Who makes submitted calls go on: the progress thread, or a thread that waits for one of them.

use core::cell::Cell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use engine::{Completion, OwnedBuffers, Task};
use shm::{Mask, Waiter, Woken};
use types::{Rank, Result};

use crate::group::{GroupShared, lock};
use crate::wait::{Interrupt, LOOK_EVERY, Patience, Pause};
use crate::world::World;

/// The progress thread's state.
pub(crate) struct Progress {
    started: Mutex<bool>,
    /// Whose turn it is: a thread that waits in a completion hands it to the next.
    turn: AtomicU64,
    /// Threads that make progress in its place while they wait.
    substitutes: AtomicUsize,
    rest: Rest,
    /// Groups with calls that must go on.
    active: Mutex<Vec<Arc<GroupShared>>>,
    /// Ended calls whose completions have not run.
    ended: Mutex<VecDeque<Ending>>,
}

/// A call that has ended, and its completion.
pub(crate) struct Ending {
    pub(crate) done: Completion,
    pub(crate) result: Result<()>,
    pub(crate) buffers: Box<dyn OwnedBuffers>,
}

impl Ending {
    fn of((task, result): (Task, Result<()>)) -> Ending {
        Ending { done: task.done, result, buffers: task.buffers }
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            started: Mutex::default(),
            turn: AtomicU64::new(1),
            substitutes: AtomicUsize::new(0),
            rest: Rest::default(),
            active: Mutex::default(),
            ended: Mutex::default(),
        }
    }
}

thread_local! {
    /// The turn for which this thread was made to make progress; 0 on all other threads.
    static PROGRESS_TURN: Cell<u64> = const { Cell::new(0) };
}

/// Whether the calling thread was made to make progress.
pub(crate) fn is_progress_thread() -> bool {
    PROGRESS_TURN.get() != 0
}

/// A thread stands in for the progress thread while this lives.
struct Substitute<'a>(&'a World);

impl Substitute<'_> {
    fn step_in(world: &World) -> Substitute<'_> {
        world.progress.substitutes.fetch_add(1, Ordering::SeqCst);
        Substitute(world)
    }

    fn step_out(world: &World) {
        world.progress.substitutes.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if world.is_active() || world.is_shut_down() {
            world.progress.rest.wake();
        }
    }
}

impl Drop for Substitute<'_> {
    fn drop(&mut self) {
        Substitute::step_out(self.0);
    }
}

/// A substitute does something else while this lives.
struct SteppedOut<'a>(&'a World);

impl SteppedOut<'_> {
    fn of(world: &World) -> SteppedOut<'_> {
        Substitute::step_out(world);
        SteppedOut(world)
    }
}

impl Drop for SteppedOut<'_> {
    fn drop(&mut self) {
        self.0.progress.substitutes.fetch_add(1, Ordering::SeqCst);
    }
}

/// Where the progress thread is while there is nothing for it to do.
#[derive(Default)]
struct Rest {
    is_due: AtomicBool,
    is_asleep: Mutex<bool>,
    woken: Condvar,
}

impl Rest {
    /// How long it stays awake: what comes next often comes at once.
    const AWAKE: Duration = Duration::from_micros(40);
    /// How often, where it has no core to itself, it lets other threads run meanwhile.
    const YIELDS: u32 = 100;

    /// Ends the rest, or the next one. Cheap if the thread is awake.
    fn wake(&self) {
        self.is_due.store(true, Ordering::Release);
        if *lock(&self.is_asleep) {
            self.woken.notify_one();
        }
    }

    /// Rests until woken. `shares`: whether this process has no other core for the thread that would wake this one.
    fn until_woken(&self, shares: bool) {
        let (mut looks, begun) = (0, Instant::now());
        while !self.is_due.swap(false, Ordering::Acquire) {
            looks += 1;
            if shares && looks <= Rest::YIELDS {
                std::thread::yield_now();
            } else if !shares && (looks % 64 != 0 || begun.elapsed() < Rest::AWAKE) {
                spin_loop();
            } else {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        let mut asleep = lock(&self.is_asleep);
        while !self.is_due.load(Ordering::Acquire) {
            *asleep = true;
            asleep = self.woken.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
        *asleep = false;
    }
}

impl World {
    /// Starts the progress thread if there is none yet.
    ///
    /// # Errors
    /// [`Error::Resource`](types::Error::Resource) if there is no thread to be had.
    pub(crate) fn ensure_progress_thread(self: &Arc<World>) -> Result<()> {
        let mut started = lock(&self.progress.started);
        if !*started {
            self.start_progress_thread(self.progress.turn.load(Ordering::Acquire))?;
            *started = true;
        }
        Ok(())
    }

    fn start_progress_thread(self: &Arc<World>, turn: u64) -> Result<()> {
        let world = Arc::clone(self);
        self.spawn("foldcast-progress", move |users| {
            PROGRESS_TURN.set(turn);
            world.run_progress(turn, &users);
        })
    }

    /// Puts a group on the progress thread's list.
    pub(crate) fn activate(&self, group: &Arc<GroupShared>) {
        let mut active = lock(&self.progress.active);
        if !active.iter().any(|known| Arc::ptr_eq(known, group)) {
            active.push(Arc::clone(group));
        }
        drop(active);
        // Whoever stands in and leaves fences, too, and then looks whether there is something on the list.
        fence(Ordering::SeqCst);
        if self.progress.substitutes.load(Ordering::Relaxed) == 0 {
            self.progress.rest.wake();
        }
        self.ring_own();
    }

    /// Makes progress on the calling thread until `is_over`, in the place of the progress thread: that saves two switches
    /// of threads, and where a process has one core, what the other thread would take from this one. `false` if `limit` passed,
    /// or the user wants out.
    pub(crate) fn progress_until(
        self: &Arc<World>,
        ranks: &[Rank],
        is_over: &dyn Fn() -> bool,
        limit: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> bool {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let _standing_in = Substitute::step_in(self);
        // Whoever is asked may wait for something else meanwhile.
        let ask = || {
            let _out = SteppedOut::of(self);
            interrupt.is_some_and(|interrupt| interrupt())
        };
        let asked: Option<Interrupt<'_>> = if interrupt.is_some() { Some(&ask) } else { None };
        let new_patience = || Patience::new(self, ranks, asked).until(end);
        let (mut patience, mut look, mut looked) = (new_patience(), false, Instant::now());
        loop {
            if is_over() {
                return true;
            }
            if look {
                looked = Instant::now();
            }
            if self.make_progress(look) {
                // While a large call goes on and on, the rest is looked after all the same.
                look = looked.elapsed() >= LOOK_EVERY;
                if look {
                    // A completion that waits here must not keep the progress thread from all others.
                    self.hand_progress_over();
                }
                let is_late = || end.is_some_and(|end| Instant::now() >= end);
                if is_late() || (look && asked.is_some_and(|asked| asked())) {
                    return is_over();
                }
                if !patience.is_young() {
                    patience = new_patience();
                }
                continue;
            }
            let pause = patience.pause(&|| is_over() || self.make_progress(true));
            if pause == Pause::Interrupted || (pause == Pause::Look && end.is_some_and(|end| Instant::now() >= end)) {
                return is_over();
            }
            look = pause == Pause::Look;
        }
    }

    /// One round over all active groups; returns whether anything moved.
    fn make_progress(&self, look: bool) -> bool {
        let active = self.active_groups();
        let mut moved = false;
        for group in &active {
            moved |= group.progress(look);
        }
        moved |= self.helpers().visit();
        // Whoever submits counts first and then takes this lock.
        lock(&self.progress.active).retain(|group| group.needs_progress());
        moved
    }

    /// Takes over ended calls. Light completions run here and now, all others on the progress thread.
    pub(crate) fn complete(&self, ended: Vec<(Task, Result<()>)>) {
        let (light, other): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(task, _)| task.call.is_light());
        light.into_iter().for_each(|ended| self.run_completion(Ending::of(ended)));
        if !other.is_empty() {
            self.complete_later(other.into_iter().map(Ending::of));
        }
    }

    /// Has completions run by the progress thread.
    pub(crate) fn complete_later(&self, ended: impl IntoIterator<Item = Ending>) {
        lock(&self.progress.ended).extend(ended);
        self.progress.rest.wake();
        self.ring_own();
    }

    /// Runs a completion on the calling thread.
    pub(crate) fn run_completion(&self, Ending { done, result, buffers }: Ending) {
        // One user's mistake must not take everybody's progress with it.
        if std::panic::catch_unwind(AssertUnwindSafe(|| done(result, buffers))).is_err() {
            log::error!("{}: a completion panicked; the calls go on", self.rank());
        }
    }

    fn has_completions(&self) -> bool {
        !lock(&self.progress.ended).is_empty()
    }

    /// Runs the completions of ended calls; returns whether there were any.
    pub(crate) fn run_completions(&self) -> bool {
        let mut ran = false;
        loop {
            let next = lock(&self.progress.ended).pop_front();
            let Some(ending) = next else { return ran };
            ran = true;
            self.run_completion(ending);
            if self.progress.substitutes.load(Ordering::SeqCst) > 0 {
                // It may be what they wait for.
                self.ring_own();
            }
            let turn = PROGRESS_TURN.get();
            if turn != 0 && turn != self.progress.turn.load(Ordering::Acquire) {
                // That completion waited, and another thread has taken over.
                return ran;
            }
        }
    }

    /// If this is the progress thread, about to wait in a completion: lets a new thread go on with the progress.
    pub(crate) fn hand_progress_over(self: &Arc<World>) {
        let turn = PROGRESS_TURN.get();
        if turn == 0 || turn != self.progress.turn.load(Ordering::Acquire) {
            return;
        }
        self.progress.turn.store(turn + 1, Ordering::Release);
        if let Err(error) = self.start_progress_thread(turn + 1) {
            log::error!("{}: a completion waits, and nothing else goes on meanwhile: {error}", self.rank());
            self.progress.turn.store(turn, Ordering::Release);
        }
    }

    fn run_progress(&self, turn: u64, users: &Mask) {
        let Some(host) = self.host() else { return };
        let ranks: Vec<_> = (0..host.size()).map(Rank::from_index).collect();
        let mut waiter = Waiter::new(host, &ranks);
        let (mut look, mut looked) = (false, Instant::now());
        loop {
            if look {
                looked = Instant::now();
            }
            let moved = self.make_progress(look);
            let moved = moved | (self.has_completions() && users.within(|| self.run_completions()));
            if self.progress.turn.load(Ordering::Acquire) != turn {
                return;
            }
            let busy = self.is_active();
            if self.is_shut_down() && !busy {
                return;
            }
            if moved {
                waiter = Waiter::new(host, &ranks);
                // While one call goes on and on, the others are looked after all the same.
                look = looked.elapsed() >= LOOK_EVERY;
                continue;
            }
            if !busy || self.progress.substitutes.load(Ordering::SeqCst) > 0 {
                // Those who have something for this thread are of this process: at its door every peer would wake it.
                self.progress.rest.until_woken(self.config().threads == 1);
                (waiter, look) = (Waiter::new(host, &ranks), true);
                continue;
            }
            let rechecked = Cell::new(false);
            let woken = waiter.pause(Some(LOOK_EVERY), &|| {
                rechecked.set(true);
                self.make_progress(true) || self.has_completions() || self.is_shut_down()
            });
            look = rechecked.get() || woken != Woken::Spun;
        }
    }

    /// Whether there are calls that the progress thread must run.
    pub(crate) fn is_active(&self) -> bool {
        !lock(&self.progress.active).is_empty()
    }

    /// Groups with calls that the progress thread must run.
    pub(crate) fn active_groups(&self) -> Vec<Arc<GroupShared>> {
        lock(&self.progress.active).clone()
    }

    /// Lets the progress thread see that the world stops.
    pub(crate) fn end_rest(&self) {
        self.progress.rest.wake();
    }
}
