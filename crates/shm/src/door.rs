//! Doors: where the threads of a process sleep until a peer has something for them.
//!
//! The one rule that no wake-up is lost: whoever publishes fences and then looks whether somebody sleeps; whoever
//! goes to sleep says so, fences, and then looks whether something was published. One of the two sees the other.
//!
//! There are many publications and few sleeps, and a fence waits until what was published has reached the other core. So, where
//! the kernel can do it, whoever goes to sleep fences for all: see [`Publisher`].

use core::time::Duration;

use std::sync::atomic::{AtomicU8, Ordering as LocalOrdering, compiler_fence};

use crate::primitive::{AtomicU32, Futex, FutexWake, Ordering, fence, fence_all};

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

/// How long to sleep where a wake-up may be missed.
const BLIND: Duration = Duration::from_millis(1);

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
        // If that should fail though it did not when the process said that it could, a wake-up may be missed.
        let limit = if fence_all() { limit } else { Some(limit.map_or(BLIND, |limit| limit.min(BLIND))) };
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

/// Whether a process fences others before it sleeps, as it says to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// It has not said so yet.
    Unknown,
    /// It fences all that accept it.
    All,
    /// It can only fence itself.
    Itself,
}

/// One who publishes for the same processes again and again, and whose fence they may make for it.
#[derive(Debug, Default)]
pub struct Publisher(AtomicU8);

impl Publisher {
    const UNKNOWN: u8 = 0;
    const FENCED: u8 = 1;
    const FENCES: u8 = 2;

    /// Stands between publishing something and looking whether somebody sleeps. `others` are asked until all have said it what the
    /// others and this process do before they sleep.
    #[inline]
    pub fn fence(&self, others: impl Fn() -> Fences) {
        if self.0.load(LocalOrdering::Relaxed) == Publisher::FENCED {
            // The look may come before the publication is seen elsewhere, but not when a sleeper fences this thread between
            // them: it sees then what was published before, or is seen.
            compiler_fence(LocalOrdering::SeqCst);
        } else {
            self.fence_itself(others);
        }
    }

    #[cold]
    fn fence_itself(&self, others: impl Fn() -> Fences) {
        publish_fence();
        if self.0.load(LocalOrdering::Relaxed) == Publisher::UNKNOWN {
            let known = match others() {
                Fences::Unknown => Publisher::UNKNOWN,
                Fences::All => Publisher::FENCED,
                Fences::Itself => Publisher::FENCES,
            };
            self.0.store(known, LocalOrdering::Relaxed);
        }
    }
}
