//! The processes of this host, as /proc shows them: who descends from the launcher, and how to signal exactly those.

use std::collections::HashSet;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process, told from later ones with the same number by its start. Numbers are those of /proc: see [`Numbers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// In clock ticks since the host started.
    start: u64,
}

/// How the numbers in /proc become those by which this process can name others. They differ where this process was put into
/// a new namespace of processes and /proc was not mounted anew (`unshare --pid --fork` without `--mount-proc`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// This process's number in /proc.
    own: i32,
    /// How many namespaces lie between that of /proc and this process's.
    depth: usize,
}

impl Numbers {
    pub(super) fn here() -> Numbers {
        let own = std::process::id().try_into().unwrap_or(0);
        let link = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
        let depth = in_namespaces("self").map_or(0, |numbers| numbers.len().saturating_sub(1));
        Numbers { own: link.unwrap_or(own), depth }
    }

    /// This process's number in /proc.
    pub(super) const fn own(self) -> i32 {
        self.own
    }

    pub(super) const fn are_foreign(self) -> bool {
        self.depth > 0
    }

    /// The number by which this process can name the one that /proc shows as `shown`; only for those of this process's
    /// namespace and of ones within it.
    pub(super) fn here_of(self, shown: i32) -> Option<i32> {
        match self.depth {
            0 => Some(shown),
            depth => in_namespaces(&shown.to_string())?.get(depth).copied(),
        }
    }
}

/// A process's numbers, from the namespace of /proc inwards.
fn in_namespaces(shown: &str) -> Option<Vec<i32>> {
    let status = fs::read_to_string(format!("/proc/{shown}/status")).ok()?;
    // Kernels without namespaces of processes have no such line.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

impl Process {
    fn read(shown: i32) -> Option<Process> {
        Process::parse(&fs::read_to_string(format!("/proc/{shown}/stat")).ok()?).filter(|process| process.pid == shown)
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
    pub(super) fn signal(&self, signal: Signal, numbers: Numbers) {
        let Some(pid) = numbers.here_of(self.pid).and_then(Pid::from_raw) else { return };
        let is_the_same = || Process::read(self.pid).is_some_and(|now| now.start == self.start);
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) if is_the_same() => pidfd_send_signal(&process, signal),
            Ok(_) => return,
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => {}
            // Old kernels have no handles of processes, and a filter of system calls may forbid either call. If it is another
            // user's process, nothing can be done.
            Err(_) if is_the_same() => drop(kill_process(pid, signal)),
            Err(_) => {}
        }
    }
}

/// Every process that /proc shows and that has not ended.
pub(super) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| Process::read(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// The children of `root`, their children and so on, without those that `except` names and theirs; all by their numbers in
/// /proc.
///
/// Complete if `root` is a child subreaper, for then orphans become its children.
pub(super) fn descendants(root: i32, except: &dyn Fn(i32) -> bool) -> Vec<Process> {
    select_descendants(&all(), root, except)
}

fn select_descendants(all: &[Process], root: i32, except: &dyn Fn(i32) -> bool) -> Vec<Process> {
    let mut known = HashSet::from([root]);
    let mut found = Vec::new();
    // Each pass goes one generation down.
    loop {
        let next: Vec<Process> = all
            .iter()
            .filter(|process| known.contains(&process.parent) && !known.contains(&process.pid) && !except(process.pid))
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
    fn numbers_of_the_same_namespace_are_equal() {
        let numbers = Numbers::here();
        assert_eq!(numbers.here_of(numbers.own()), i32::try_from(std::process::id()).ok());
        assert!(in_namespaces("self").is_some_and(|all| all.first() == Some(&numbers.own())));
    }

    #[test]
    fn this_process_is_among_all_with_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let found = all().into_iter().find(|process| process.pid == own).unwrap();
        assert_eq!(found.parent, parent);
        assert!(descendants(parent, &|_| false).contains(&found));
        assert!(!descendants(parent, &|pid| pid == own).contains(&found));
    }

    #[test]
    fn descendants_are_found_in_any_order_and_loops_end() {
        let process = |pid, parent| Process { pid, parent, group: 0, start: 0 };
        let all = [process(4, 3), process(3, 2), process(2, 1), process(9, 8), process(8, 9), process(5, 1)];
        let pids = |except: &[i32]| {
            let found = select_descendants(&all, 1, &|pid| except.contains(&pid));
            let mut pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(&[]), [2, 3, 4, 5]);
        assert_eq!(pids(&[3]), [2, 5]);
    }
}
