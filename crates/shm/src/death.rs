//! How a process ended, as its handle tells.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use types::{Ending, Error, Result};

use crate::wire::LifeKind;

/// What this process gives to others, so that they see its end.
#[derive(Debug)]
pub(crate) struct OwnLife {
    pub(crate) kind: LifeKind,
    /// For the others. Closed when all have it.
    pub(crate) token: OwnedFd,
    /// Where no process handles are to be had: the end of a pipe that the kernel closes when this process is gone.
    pub(crate) anchor: Option<OwnedFd>,
}

impl OwnLife {
    /// A handle of this process, or a pipe if `handles` are not wanted or not to be had.
    pub(crate) fn new(handles: bool) -> Result<OwnLife> {
        if handles {
            match pidfd_open(getpid(), PidfdFlags::empty()) {
                Ok(token) => return Ok(OwnLife { kind: LifeKind::Pidfd, token, anchor: None }),
                // Old kernels and some sandboxes do not have it.
                Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL) => {}
                Err(error) => return Err(no_descriptor(error)),
            }
        }
        let (token, anchor) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(no_descriptor)?;
        Ok(OwnLife { kind: LifeKind::Pipe, token, anchor: Some(anchor) })
    }
}

fn no_descriptor(error: Errno) -> Error {
    Error::resource("a handle of this process", error, "raise the limit on open files with `ulimit -n`")
}

/// The life of another process, as this one sees it: readable (or at its end) when that process is gone.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) kind: LifeKind,
    pub(crate) token: OwnedFd,
}

impl Life {
    /// Whether the process is gone.
    pub(crate) fn is_over(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.token, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1))
    }

    /// How the process ended, if the kernel tells now. It tells as long as nobody has reaped the process (its status is in
    /// /proc), and, from Linux 6.15 on, afterwards through the handle.
    ///
    /// Where /proc may not tell (the process had capabilities that this one has not), it says 0 instead: that is believed
    /// only if nothing better can be had, so the `patient` get `None`.
    pub(crate) fn ending(&self, patient: bool) -> Option<Ending> {
        if self.kind != LifeKind::Pidfd {
            return None;
        }
        let token = self.token.as_fd();
        let seen = status_of_zombie(token).filter(|status| !patient || *status != 0);
        seen.or_else(|| status_after_reaping(token)).map(ending_of_status)
    }
}

/// The process id behind a handle, if the process is not reaped yet and in sight.
fn process_id(handle: BorrowedFd<'_>) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // -1 once it is reaped, 0 if it is in a foreign namespace.
    id.trim().parse().ok().filter(|id| *id > 0)
}

fn status_of_zombie(handle: BorrowedFd<'_>) -> Option<i32> {
    let id = process_id(handle)?;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // If the handle's process is still not reaped, the id was its own when the file was read.
    (process_id(handle) == Some(id)).then(|| status_in(&stat)).flatten()
}

/// The wait status in /proc/PID/stat, whose second field is a name in parentheses that may hold anything.
fn status_in(stat: &str) -> Option<i32> {
    const AFTER_NAME: usize = 3;
    const STATUS: usize = 52;
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    if !matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    fields.get(STATUS - AFTER_NAME)?.parse().ok()
}

/// The first version of the kernel's `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

fn status_after_reaping(handle: BorrowedFd<'_>) -> Option<i32> {
    /// `_IOWR(0xFF, 11, struct pidfd_info)`.
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    const { assert!(size_of::<PidfdInfo>() == 64, "the size is part of the request") };
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // The request's type differs between C libraries.
    #[allow(clippy::useless_conversion, reason = "c_ulong for glibc, c_int for musl")]
    let request = PIDFD_GET_INFO.try_into().ok()?;
    // SAFETY: the request's size is that of `info`, of which any bytes are a value; other kinds of descriptors refuse it.
    let status = unsafe { libc::ioctl(handle.as_raw_fd(), request, &raw mut info) };
    (status == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

fn ending_of_status(status: i32) -> Ending {
    match status & 0x7f {
        0 => Ending::Exited(status >> 8 & 0xff),
        signal => Ending::Signalled(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn handle_of(child: &std::process::Child) -> Life {
        let id = rustix::process::Pid::from_child(child);
        Life { kind: LifeKind::Pidfd, token: pidfd_open(id, PidfdFlags::empty()).unwrap() }
    }

    fn wait_until_over(life: &Life) {
        while !life.is_over() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_that_nobody_reaped_tells_its_status() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let life = handle_of(&child);
        wait_until_over(&life);
        assert_eq!(life.ending(true), Some(Ending::Exited(7)));
        child.wait().unwrap();
    }

    #[test]
    fn a_status_of_0_is_for_those_who_can_wait_no_longer() {
        let mut child = Command::new("true").spawn().unwrap();
        let life = handle_of(&child);
        wait_until_over(&life);
        assert_eq!(life.ending(true), None);
        assert_eq!(life.ending(false), Some(Ending::Exited(0)));
        child.wait().unwrap();
    }

    #[test]
    fn a_running_process_has_no_status() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = handle_of(&child);
        assert!(!life.is_over());
        assert_eq!(life.ending(true), None);
        child.kill().unwrap();
        wait_until_over(&life);
        assert_eq!(life.ending(true), Some(Ending::Signalled(9)));
        child.wait().unwrap();
        // Linux 6.15 and later still know; others say nothing.
        assert!(matches!(life.ending(true), None | Some(Ending::Signalled(9))));
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (4..=51).map(|field| field.to_string()).collect();
        let stat = format!("12 (a) Z 1 (b)) Z {} 2304", fields.join(" "));
        assert_eq!(status_in(&stat), Some(2304));
        assert_eq!(ending_of_status(2304), Ending::Exited(9));
        assert_eq!(status_in(&stat.replace(") Z 4", ") S 4")), None);
    }

    #[test]
    fn a_pipe_stands_in_for_a_handle() {
        let own = OwnLife::new(false).unwrap();
        let life = Life { kind: own.kind, token: own.token };
        assert!(!life.is_over());
        drop(own.anchor);
        assert!(life.is_over());
    }
}
