//! How the calling threads wait.

use core::time::Duration;

use shm::{Waiter, Woken};
use types::Rank;

use crate::world::World;

/// Asked during waits whether the user wants out: `true` ends the wait.
pub type Interrupt<'a> = &'a dyn Fn() -> bool;

/// How often a sleeping wait asks [`Interrupt`], should no signal reach its thread.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long to sleep at most between two looks at deaths, deadlines and warnings; whoever has news rings before.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);

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
}

impl<'a> Patience<'a> {
    pub(crate) fn new(world: &'a World, ranks: &'a [Rank], interrupt: Option<Interrupt<'a>>) -> Patience<'a> {
        Patience { waiter: world.host().map(|host| Waiter::new(host, ranks)), world, interrupt }
    }

    /// Lets a moment pass; `recheck` says whether there is something to do after all.
    pub(crate) fn pause(&mut self, recheck: &dyn Fn() -> bool) -> Pause {
        let Some(waiter) = &mut self.waiter else {
            std::thread::yield_now();
            return Pause::Look;
        };
        let helps = self.world.is_progress_thread();
        let limit = if helps { Some(Duration::ZERO) } else { Some(self.interrupt.map_or(LOOK_EVERY, |_| ASK_EVERY)) };
        let woken = waiter.pause(limit, recheck);
        if helps {
            // A completion waits here, on the thread that everything else depends on.
            self.world.progress(false);
        }
        match woken {
            Woken::Spun => Pause::Spun,
            Woken::Slept => Pause::Look,
            Woken::Interrupted | Woken::TimedOut => match self.interrupt {
                Some(interrupt) if interrupt() => Pause::Interrupted,
                _ => Pause::Look,
            },
        }
    }
}
