//! The parts of starting and watching processes that no safe interface offers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::Signal;

use crate::signals::SignalSet;

/// Signals that arrive at a descriptor instead of interrupting the process.
///
/// For the one thread of a launcher: blocked signals are a property of a thread.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    mask_before: SignalSet,
    ignored: Vec<i32>,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it, such as for Ctrl-C: then every process of the terminal's foreground group got it.
    pub from_kernel: bool,
    /// Whoever started this process wanted the signal to be ignored (`nohup`, background jobs of scripts).
    pub was_ignored: bool,
}

impl Signals {
    /// Blocks `signals` and SIGCHLD in the calling thread and takes them by descriptor from now on. A SIGCHLD that was
    /// ignored no longer is, so that children can be waited for.
    ///
    /// # Errors
    /// What the system says if it refuses a signalfd.
    pub fn take(signals: &[Signal]) -> io::Result<Signals> {
        let mut set = SignalSet::empty();
        let mut ignored = Vec::new();
        for signal in signals.iter().map(|signal| signal.as_raw()).chain([libc::SIGCHLD]) {
            set.add(signal)?;
            if is_ignored(signal)? {
                ignored.push(signal);
            }
        }
        if ignored.contains(&libc::SIGCHLD) {
            restore_default(libc::SIGCHLD);
        }
        let mask_before = set.block()?;
        // SAFETY: `set` is an initialised set; -1 asks for a new descriptor.
        let descriptor = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            let error = io::Error::last_os_error();
            mask_before.install()?;
            return Err(error);
        }
        // SAFETY: signalfd has just made this descriptor and nobody else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Signals { descriptor, mask_before, ignored })
    }

    /// The next signal that has arrived, if any. Never blocks.
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        // Layout by signalfd(2): 128 bytes, of which ssi_signo (u32), ssi_errno and ssi_code (i32) come first.
        let mut info = [0_u8; 128];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.descriptor, &mut info)).ok()?;
        if length != info.len() {
            return None;
        }
        let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let (signal, code) = (word(0), word(8));
        // Codes above zero are the kernel's, by sigaction(2).
        Some(Arrival { signal, from_kernel: code > 0, was_ignored: self.ignored.contains(&signal) })
    }
}

impl AsFd for Signals {
    /// To poll for readability.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Starts a process that dies with the calling thread.
///
/// The kernel kills it by SIGKILL when the **thread** that called this ends, so a launcher calls it from its main
/// thread. It gets the signal mask from before [`Signals::take`]. With `own_group` it becomes the leader of a process
/// group, and SIGINT and SIGQUIT do in it what they do by default: in a group of its own no terminal sends them, only
/// the launcher does, so there is no reason to inherit that they are ignored.
///
/// # Errors
/// Why the system could not start it: `NotFound` and `PermissionDenied` speak of the program.
pub fn spawn(mut command: Command, own_group: bool, signals: &Signals) -> io::Result<Child> {
    if own_group {
        command.process_group(0);
    }
    let mask = signals.mask_before;
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before the line above sends nothing any more.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if own_group {
            restore_default(libc::SIGINT);
            restore_default(libc::SIGQUIT);
        }
        mask.install()
    };
    // SAFETY: between fork and exec, `prepare` only makes system calls on values that it owns (prctl, getppid,
    // rt_sigaction, rt_sigprocmask); it allocates nothing, takes no lock, and its errors are plain numbers.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; `action` has room for the current one.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a valid sigaction, and the call above filled it.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

fn restore_default(signal: i32) {
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
