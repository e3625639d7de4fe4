//! The atomics that the protocol is written over: the standard ones, or loom's, which try all interleavings.
//!
//! Nothing else in this crate names `core::sync::atomic` for memory that ranks share.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use core::time::Duration;

/// How a [`Futex::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexWake {
    /// Woken, or the word had already changed, or for no reason at all.
    Woken,
    /// A signal was delivered to this thread.
    Interrupted,
    /// The time is up.
    TimedOut,
}

/// A word that threads of several processes sleep on.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    queue: loom::sync::Mutex<()>,
    #[cfg(loom)]
    wakes: loom::sync::Condvar,
}

impl Futex {
    /// The word now; whoever sees an [`advance`](Self::advance) sees what its caller wrote before.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word, so that whoever saw the former value does not fall asleep on it.
    pub fn advance(&self) {
        self.word.fetch_add(1, Ordering::Release);
    }
}

#[cfg(not(loom))]
impl Futex {
    /// Sleeps while the word is `seen`, at most for `limit`.
    #[must_use]
    pub fn wait(&self, seen: u32, limit: Option<Duration>) -> FutexWake {
        use rustix::io::Errno;
        use rustix::thread::futex::{Flags, Timespec, wait};
        // A limit beyond what the system call takes is no limit.
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Not PRIVATE: the sleepers and wakers are different processes.
        match wait(&self.word, Flags::empty(), seen, timeout.as_ref()) {
            Err(Errno::INTR) => FutexWake::Interrupted,
            Err(Errno::TIMEDOUT) => FutexWake::TimedOut,
            // AGAIN says that the word had changed. Nothing else can come from an aligned, mapped word; if it did,
            // the caller would look again and come back.
            Ok(()) | Err(_) => FutexWake::Woken,
        }
    }

    /// Wakes all that sleep on the word.
    pub fn wake_all(&self) {
        use rustix::thread::futex::{Flags, wake};
        const ALL: u32 = i32::MAX.cast_unsigned();
        // The only possible errors are about the address, which is a reference here.
        let _ = wake(&self.word, Flags::empty(), ALL);
    }
}

/// The kernel compares the word and queues the sleeper under the lock that the waker takes: so does this.
#[cfg(loom)]
impl Futex {
    /// Sleeps while the word is `seen`; without a limit, so that a lost wake-up is a deadlock that loom reports.
    #[must_use]
    pub fn wait(&self, seen: u32, _limit: Option<Duration>) -> FutexWake {
        let guard = self.queue.lock().expect("no holder panics");
        if self.word.load(Ordering::SeqCst) == seen {
            drop(self.wakes.wait(guard).expect("no holder panics"));
        }
        FutexWake::Woken
    }

    /// Wakes all that sleep on the word.
    pub fn wake_all(&self) {
        let _guard = self.queue.lock().expect("no holder panics");
        self.wakes.notify_all();
    }
}
