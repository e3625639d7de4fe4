//! The processes of this host, as /proc shows them: who descends from the launcher, and how to signal exactly those.

use std::collections::HashSet;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process, told from later ones with the same number by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// In clock ticks since the host started.
    start: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        Process::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).filter(|process| process.pid == pid)
    }

    /// Fields by proc_pid_stat(5); `None` also for a process that has ended and only waits to be reaped.
    fn parse(stat: &str) -> Option<Process> {
        let (pid, rest) = stat.split_once(' ')?;
        // The name stands in parentheses and may hold any character.
        let (_, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        Some(Process {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// Sends `signal` to this process and no other, even if it has ended and its number is taken again.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) if Process::read(self.pid).is_some_and(|now| now.start == self.start) => {
                // Fails only if it has ended, or belongs to another user: then nothing can be done.
                let _ = pidfd_send_signal(&process, signal);
            }
            Ok(_) | Err(Errno::SRCH) => {}
            // Old or restricted kernels have no pidfd.
            Err(_) => {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Every process that /proc shows and that has not ended.
pub(super) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| Process::read(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// The children of `root`, their children and so on, without the `except` and theirs.
///
/// Complete if `root` is a child subreaper, for then orphans become its children.
pub(super) fn descendants(root: i32, except: &[i32]) -> Vec<Process> {
    select_descendants(&all(), root, except)
}

fn select_descendants(all: &[Process], root: i32, except: &[i32]) -> Vec<Process> {
    let mut known = HashSet::from([root]);
    let mut found = Vec::new();
    // Each pass goes one generation down.
    loop {
        let next: Vec<Process> = all
            .iter()
            .filter(|process| {
                known.contains(&process.parent) && !known.contains(&process.pid) && !except.contains(&process.pid)
            })
            .copied()
            .collect();
        if next.is_empty() {
            return found;
        }
        known.extend(next.iter().map(|process| process.pid));
        found.extend(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let tail = "S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 1 2 3";
        let expected = Process { pid: 42, parent: 7, group: 42, start: 987_654 };
        for name in ["sh", "a b", ") S 1 1 (", ""] {
            assert_eq!(Process::parse(&format!("42 ({name}) {tail}")), Some(expected), "{name}");
        }
        assert_eq!(Process::parse(&format!("42 (sh) {}", tail.replace('S', "Z"))), None);
        for broken in ["", "42", "42 (sh", "42 (sh)", "42 (sh) S 7", "x (sh) S"] {
            assert_eq!(Process::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_among_all_with_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let found = all().into_iter().find(|process| process.pid == own).unwrap();
        assert_eq!(found.parent, parent);
        assert!(descendants(parent, &[]).contains(&found));
        assert!(!descendants(parent, &[own]).contains(&found));
    }

    #[test]
    fn descendants_are_found_in_any_order_and_loops_end() {
        let process = |pid, parent| Process { pid, parent, group: 0, start: 0 };
        let all = [process(4, 3), process(3, 2), process(2, 1), process(9, 8), process(8, 9), process(5, 1)];
        let pids = |except: &[i32]| {
            let mut pids: Vec<i32> = select_descendants(&all, 1, except).iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(&[]), [2, 3, 4, 5]);
        assert_eq!(pids(&[3]), [2, 5]);
    }
}
