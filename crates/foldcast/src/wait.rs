//! How the calling threads wait.

use core::cell::Cell;
use core::time::Duration;

use shm::{Waiter, Woken};
use types::Rank;

use crate::world::World;

/// Asked during waits, when a signal ended a sleep and every 20 ms, whether the user wants out: `true` ends the wait.
pub type Interrupt<'a> = &'a dyn Fn() -> bool;

/// How long to sleep at most between two looks at interrupts, deadlines and warnings, which is how exact these are.
/// Whoever has other news rings before. Fifty looks a second cost nothing that can be measured.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Pauses before the first look, which also starts the clock of a call's deadline.
const PAUSES_BEFORE_LOOK: u32 = 16;

/// How a pause went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The wait is young: look at the data only.
    Spun,
    /// Look at everything.
    Look,
    /// The user wants out.
    Interrupted,
}

/// One wait of one thread for the ranks of a group.
pub(crate) struct Patience<'a> {
    waiter: Option<Waiter<'a>>,
    world: &'a World,
    interrupt: Option<Interrupt<'a>>,
    pauses: u32,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(world: &'a World, ranks: &'a [Rank], interrupt: Option<Interrupt<'a>>) -> Patience<'a> {
        Patience { waiter: world.host().map(|host| Waiter::new(host, ranks)), world, interrupt, pauses: 0 }
    }

    /// Lets a moment pass; `recheck` says whether there is something to do after all.
    pub(crate) fn pause(&mut self, recheck: &dyn Fn() -> bool) -> Pause {
        let Some(waiter) = &mut self.waiter else {
            std::thread::yield_now();
            return Pause::Look;
        };
        // A completion that waits does so on the thread that everything else depends on.
        let helps = self.world.is_progress_thread();
        // Whatever made the recheck say that there is something to do, only a look at everything is sure to find it.
        let asked = Cell::new(false);
        let woken = waiter.pause(Some(LOOK_EVERY), &|| {
            asked.set(true);
            (helps && self.world.progress(true).moved) || recheck()
        });
        if helps {
            self.world.progress(false);
        }
        match woken {
            Woken::Spun if !asked.get() => {
                self.pauses = self.pauses.saturating_add(1);
                if self.pauses == PAUSES_BEFORE_LOOK { Pause::Look } else { Pause::Spun }
            }
            Woken::Spun | Woken::Slept => Pause::Look,
            Woken::Interrupted | Woken::TimedOut => match self.interrupt {
                Some(interrupt) if interrupt() => Pause::Interrupted,
                _ => Pause::Look,
            },
        }
    }
}
