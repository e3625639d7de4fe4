//! How the calling threads wait.

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use shm::{Awaits, Waiter, Woken};
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
    world: &'a Arc<World>,
    interrupt: Option<Interrupt<'a>>,
    pauses: u32,
    asked: Option<Instant>,
    end: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(world: &'a Arc<World>, ranks: &'a [Rank], interrupt: Option<Interrupt<'a>>) -> Patience<'a> {
        let waiter = world.host().map(|host| Waiter::new(host, ranks));
        Patience { waiter, world, interrupt, pauses: 0, asked: None, end: None }
    }

    /// The same, which sleeps no longer than until then.
    pub(crate) fn until(self, end: Option<Instant>) -> Patience<'a> {
        Patience { end, ..self }
    }

    /// Whether no pause was made yet.
    pub(crate) const fn is_young(&self) -> bool {
        self.pauses == 0
    }

    /// Lets a moment pass; `recheck` says whether there is something to do after all.
    pub(crate) fn pause(&mut self, recheck: &dyn Fn() -> bool) -> Pause {
        self.pause_for(&|_| true, recheck)
    }

    /// The same where it is known from which of the ranks, by place in the list, something is awaited.
    pub(crate) fn pause_for(&mut self, awaits: Awaits<'_>, recheck: &dyn Fn() -> bool) -> Pause {
        let Some(waiter) = &mut self.waiter else {
            std::thread::yield_now();
            return Pause::Look;
        };
        let nap = self.end.map_or(LOOK_EVERY, |end| end.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
        // Whatever made the recheck say that there is something to do, only a look at everything is sure to find it.
        let rechecked = Cell::new(false);
        let woken = waiter.pause_for(Some(nap), awaits, &|| {
            rechecked.set(true);
            recheck()
        });
        if woken == Woken::Spun && !rechecked.get() {
            self.pauses = self.pauses.saturating_add(1);
            return if self.pauses == PAUSES_BEFORE_LOOK { self.first_look() } else { Pause::Spun };
        }
        match self.interrupt {
            // The question may cost more than a look, and other news may come without end.
            Some(interrupt) if woken == Woken::Interrupted || self.is_time_to_ask() => {
                self.asked = Some(Instant::now());
                if interrupt() { Pause::Interrupted } else { Pause::Look }
            }
            _ => Pause::Look,
        }
    }

    fn first_look(&mut self) -> Pause {
        self.asked = Some(Instant::now());
        // A completion that waits must not keep the progress thread from everything else.
        self.world.hand_progress_over();
        Pause::Look
    }

    fn is_time_to_ask(&self) -> bool {
        self.asked.is_none_or(|asked| asked.elapsed() >= LOOK_EVERY)
    }
}
