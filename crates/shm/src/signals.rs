//! Which signals a thread takes. The library installs no handler; its own threads take no signal of the process either, or
//! one would get there what the program waits for elsewhere (`sigwait`, `signalfd`), or die of it.

use core::mem::MaybeUninit;
use std::io;

/// What the kernel raises in the thread that caused it: blocked, it would kill without the handler that reports it.
const CAUSED_HERE: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// While it lives, the calling thread takes no signal but those that it causes itself, and neither do threads that it makes:
/// they go on so when it is dropped.
#[derive(Debug)]
pub struct Shield {
    before: Option<SignalSet>,
}

impl Shield {
    /// Blocks the signals.
    #[must_use]
    pub fn raise() -> Shield {
        let mut set = SignalSet::full();
        // Fails only for numbers that are no signals.
        let whole = CAUSED_HERE.iter().all(|signal| set.remove(*signal).is_ok());
        Shield { before: if whole { set.block().ok() } else { None } }
    }

    /// What the thread took before, to give it back to the user's code on threads of ours.
    #[must_use]
    pub const fn before(&self) -> Mask {
        Mask(self.before)
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Fails only for sets that are none.
            let _ = before.install();
        }
    }
}

/// The signals that some thread did not take.
#[derive(Clone, Copy, Debug)]
pub struct Mask(Option<SignalSet>);

impl Mask {
    /// Runs the user's code with this mask, so that what it starts inherits it. Two system calls.
    pub fn within<T>(&self, body: impl FnOnce() -> T) -> T {
        let _restored = Shield { before: self.0.and_then(|mask| mask.replace().ok()) };
        body()
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct SignalSet(libc::sigset_t);

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalSet")
    }
}

impl SignalSet {
    pub(crate) fn empty() -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `set` has room for a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset has initialised it; it fails only for null.
        SignalSet(unsafe { set.assume_init() })
    }

    fn full() -> SignalSet {
        let mut set = SignalSet::empty();
        // SAFETY: the set is initialised.
        unsafe { libc::sigfillset(&raw mut set.0) };
        set
    }

    pub(crate) fn add(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: the set is initialised.
        match unsafe { libc::sigaddset(&raw mut self.0, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn remove(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: the set is initialised.
        match unsafe { libc::sigdelset(&raw mut self.0, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Blocks these signals in the calling thread; returns the mask from before.
    pub(crate) fn block(&self) -> io::Result<SignalSet> {
        self.change(libc::SIG_BLOCK)
    }

    /// Makes this the calling thread's mask; returns the one from before.
    fn replace(&self) -> io::Result<SignalSet> {
        self.change(libc::SIG_SETMASK)
    }

    fn change(&self, how: i32) -> io::Result<SignalSet> {
        let mut before = SignalSet::empty();
        // SAFETY: both sets are initialised and live through the call.
        match unsafe { libc::pthread_sigmask(how, &raw const self.0, &raw mut before.0) } {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Makes this the calling thread's mask.
    pub(crate) fn install(&self) -> io::Result<()> {
        // SAFETY: the set is initialised; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// For a system call that takes a set.
    pub(crate) const fn as_ptr(&self) -> *const libc::sigset_t {
        &raw const self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocked signals of the calling thread, as the kernel tells.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn threads_made_behind_a_shield_take_no_signal_and_users_code_on_them_does() {
        let before = blocked();
        let shield = Shield::raise();
        let mask = shield.before();
        let thread = std::thread::spawn(move || (blocked(), mask.within(blocked), blocked()));
        drop(shield);
        assert_eq!(blocked(), before);
        let (own, users, after) = thread.join().unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGPROF] {
            assert_ne!(own & bit(signal), 0, "signal {signal}");
        }
        assert!(CAUSED_HERE.iter().all(|signal| own & bit(*signal) == before & bit(*signal)));
        assert_eq!((users, after), (before, own));
    }
}
