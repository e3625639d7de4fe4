//! Waiting for peers: spin by time, then yield, then sleep; in one place.
//!
//! Spinning gives the lowest latency, and burns a core; yielding lets a peer run that shares the core; sleeping costs
//! a system call on both sides and some ten microseconds, and burns nothing. A waiter therefore goes from one to the
//! next, and skips the spinning when a peer that it waits for last ran on this very processor: that peer cannot do
//! anything while we spin.

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Spin,
    Yield,
    Sleep,
}

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

    /// Lets a moment pass: call it whenever a look was in vain, then look again.
    ///
    /// The first calls only count and pause. Later ones may sleep, at most for `limit`; `recheck` is asked once more
    /// before, and must look at everything that the caller waits for (it says `true` if there is something to do:
    /// what is awaited is there, or can no longer come). Whoever provides what is awaited must ring this process's door.
    #[inline]
    pub fn pause(&mut self, limit: Option<Duration>, recheck: &dyn Fn() -> bool) -> Woken {
        if self.pauses < FIRST_PAUSES {
            self.pauses += 1;
            spin_loop();
            return Woken::Spun;
        }
        self.pause_longer(limit, recheck)
    }

    #[cold]
    fn pause_longer(&mut self, limit: Option<Duration>, recheck: &dyn Fn() -> bool) -> Woken {
        match self.stage {
            Stage::Spin => self.spin(),
            Stage::Yield => {
                self.yields += 1;
                if self.yields >= YIELDS {
                    self.stage = Stage::Sleep;
                }
                rustix::thread::sched_yield();
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

    fn spin(&mut self) -> Woken {
        self.pauses += 1;
        match self.spinning_since {
            None => {
                self.spinning_since = Some(Instant::now());
                self.world.note_cpu();
                if self.world.shares_cpu(self.peers) {
                    self.stage = Stage::Yield;
                }
            }
            Some(since) if self.pauses.is_multiple_of(CLOCK_EVERY) && since.elapsed() >= SPIN => {
                self.stage = Stage::Yield
            }
            Some(_) => {}
        }
        spin_loop();
        Woken::Spun
    }
}
