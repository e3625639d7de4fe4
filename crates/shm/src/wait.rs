//! Waiting for peers: spin by time, then yield, then sleep; in one place.
//!
//! Spinning gives the lowest latency, and burns a core; yielding lets a peer run that shares the core; sleeping costs
//! a system call on both sides and some ten microseconds, and burns nothing. A waiter therefore goes from one to the
//! next, and skips the spinning when a peer that it waits for last ran on this very processor: that peer cannot do
//! anything while we spin. It goes on spinning when only peers are there that have done their part: to let these run would
//! cost two switches for nothing. Where a wait has met peers on its processor, the next one looks for them at once.

use core::hint::spin_loop;
use core::time::Duration;
use std::time::Instant;

pub use crate::door::Woken;
use crate::world::World;
use types::Rank;

/// Pauses before anything else is looked at: the time of an exchange of lines between two cores, a few times over.
const FIRST_PAUSES: u32 = 16;
/// Pauses between two looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// How long to spin: about what a sleep and a wake-up cost.
const SPIN: Duration = Duration::from_micros(40);
/// How often to offer the processor to others before sleeping.
const YIELDS: u32 = 100;
/// How often after spinning in vain: nobody who is awaited was here, and each costs half a microsecond.
const YIELDS_AFTER_SPINNING: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Spin,
    Yield,
    Sleep,
}

/// Asked whether something is still awaited from the peer with this place in the list of peers.
pub type Awaits<'a> = &'a dyn Fn(usize) -> bool;

/// One wait of one thread. Make it when the first look was in vain; drop it when what was awaited is there.
#[derive(Debug)]
pub struct Waiter<'a> {
    pauses: u32,
    world: &'a World,
    peers: &'a [Rank],
    stage: Stage,
    yields: u32,
    spinning_since: Option<Instant>,
}

impl<'a> Waiter<'a> {
    /// A wait for one of these ranks to do something.
    #[inline]
    #[must_use]
    pub fn new(world: &'a World, peers: &'a [Rank]) -> Waiter<'a> {
        Waiter { pauses: 0, world, peers, stage: Stage::Spin, yields: 0, spinning_since: None }
    }

    /// Whether every pause so far was a spin: none has let another thread have the processor, as where an awaited peer shares
    /// it, and the next one will not sleep.
    #[must_use]
    pub fn only_spins(&self) -> bool {
        self.stage == Stage::Spin && self.yields == 0
    }

    /// Lets a moment pass: call it whenever a look was in vain, then look again.
    ///
    /// The first calls only count and pause. Later ones may sleep, at most for `limit`; `recheck` is asked once more
    /// before, and must look at everything that the caller waits for (it says `true` if there is something to do:
    /// what is awaited is there, or can no longer come). Whoever provides what is awaited must ring this process's door.
    #[inline]
    pub fn pause(&mut self, limit: Option<Duration>, recheck: &dyn Fn() -> bool) -> Woken {
        self.pause_for(limit, &|_| true, recheck)
    }

    /// The same for a caller that knows from whom something is still awaited.
    #[inline]
    pub fn pause_for(&mut self, limit: Option<Duration>, awaits: Awaits<'_>, recheck: &dyn Fn() -> bool) -> Woken {
        if self.pauses < FIRST_PAUSES && (self.stage == Stage::Sleep || !self.world.is_crowded()) {
            self.pauses += 1;
            spin_loop();
            return Woken::Spun;
        }
        self.pause_longer(limit, awaits, recheck)
    }

    #[cold]
    fn pause_longer(&mut self, limit: Option<Duration>, awaits: Awaits<'_>, recheck: &dyn Fn() -> bool) -> Woken {
        match self.stage {
            Stage::Spin => {
                if self.spin(awaits) {
                    spin_loop();
                } else {
                    self.give_way();
                }
                Woken::Spun
            }
            Stage::Yield => {
                self.give_way();
                Woken::Spun
            }
            Stage::Sleep => {
                let woken = self.world.door(self.world.rank()).sleep(limit, recheck);
                self.world.note_cpu();
                // What comes next often comes at once: a short spin before the next sleep.
                self.pauses = 0;
                woken
            }
        }
    }

    fn give_way(&mut self) {
        self.yields += 1;
        if self.yields >= YIELDS {
            self.stage = Stage::Sleep;
        }
        rustix::thread::sched_yield();
    }

    /// Whether to spin on.
    fn spin(&mut self, awaits: Awaits<'_>) -> bool {
        self.pauses += 1;
        let on_time = self.pauses.is_multiple_of(CLOCK_EVERY);
        match self.spinning_since {
            None => {
                self.spinning_since = Some(Instant::now());
                self.world.note_cpu();
            }
            Some(since) if on_time && since.elapsed() >= SPIN => {
                self.stage = Stage::Yield;
                self.yields = self.yields.max(YIELDS - YIELDS_AFTER_SPINNING);
                return false;
            }
            Some(_) if !on_time && !self.world.is_crowded() => return true,
            Some(_) => {}
        }
        !self.world.is_awaited_here(self.peers, awaits)
    }
}
