//! Doors: where the threads of a process sleep until a peer has something for them.
//!
//! The one rule that no wake-up is lost: whoever publishes fences and then looks whether somebody sleeps; whoever
//! goes to sleep says so, fences, and then looks whether something was published. One of the two sees the other.

use core::time::Duration;

use crate::primitive::{AtomicU32, Futex, FutexWake, Ordering, fence};

/// How a wait for a peer went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The thread did not sleep.
    Spun,
    /// It slept and was woken, perhaps for something else.
    Slept,
    /// A signal ended the sleep.
    Interrupted,
    /// The sleep reached its limit.
    TimedOut,
}

/// A process's door, in shared memory, on a line of its own. All threads of the process sleep at the same door.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Door {
    sleepers: AtomicU32,
    word: Futex,
}

impl Door {
    /// Wakes whoever sleeps here. What the caller published must have been followed by [`publish_fence`].
    #[inline]
    pub fn ring(&self) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.ring_sleepers();
        }
    }

    #[cold]
    fn ring_sleepers(&self) {
        self.word.advance();
        self.word.wake_all();
    }

    /// Sleeps until the door rings, at most for `limit`; not at all if `recheck` finds that there is something to do.
    pub fn sleep(&self, limit: Option<Duration>, recheck: &dyn Fn() -> bool) -> Woken {
        let seen = self.word.value();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let woken = if recheck() {
            Woken::Spun
        } else {
            match self.word.wait(seen, limit) {
                FutexWake::Woken => Woken::Slept,
                FutexWake::Interrupted => Woken::Interrupted,
                FutexWake::TimedOut => Woken::TimedOut,
            }
        };
        self.sleepers.fetch_sub(1, Ordering::Release);
        woken
    }
}

/// Stands between publishing something and looking whether somebody sleeps.
#[inline]
pub fn publish_fence() {
    fence(Ordering::SeqCst);
}
