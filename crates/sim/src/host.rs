//! The processes of a simulated host: their time, and what is known of their ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use types::Ending;
use types::transport::Fate;

/// What happens to a process in the middle of what it does, when it has published so many things more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// It is gone: nothing that it does from then on is seen.
    Gone,
    /// It is stopped: what it does is seen when it is continued.
    Stopped,
}

/// The processes that the ranks of a world are, and the time.
#[derive(Debug)]
pub struct Host {
    now: Cell<Duration>,
    processes: Vec<Process>,
    /// Publications of all processes so far.
    activity: Cell<u64>,
}

#[derive(Debug, Default)]
struct Process {
    /// What this process's clock shows more than the world's.
    offset: Cell<Duration>,
    gone: Cell<bool>,
    stopped: Cell<bool>,
    fuse: Cell<Option<(u64, Fuse)>>,
    ending: Cell<Option<Ending>>,
    /// From when on each process knows of the end.
    known_at: RefCell<Vec<Duration>>,
}

impl Host {
    /// Processes that live, at time 0.
    #[must_use]
    pub fn new(processes: usize) -> Rc<Host> {
        let processes = (0..processes).map(|_| Process::default()).collect();
        Rc::new(Host { now: Cell::default(), processes, activity: Cell::default() })
    }

    /// The world's time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now.get()
    }

    /// Lets this time pass.
    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    /// Sets the world's time.
    pub fn set_now(&self, now: Duration) {
        self.now.set(now);
    }

    /// What the clock of a process shows.
    #[must_use]
    pub fn clock_of(&self, process: usize) -> Duration {
        self.now.get() + self.processes[process].offset.get()
    }

    /// Sets what a process's clock shows more than the world's.
    pub fn set_offset(&self, process: usize, offset: Duration) {
        self.processes[process].offset.set(offset);
    }

    /// Ends a process; each process knows it after its own delay.
    pub fn end(&self, process: usize, ending: Ending, delays: &[Duration]) {
        let own = &self.processes[process];
        own.gone.set(true);
        own.ending.set(Some(ending));
        *own.known_at.borrow_mut() = delays.iter().map(|delay| self.now.get() + *delay).collect();
    }

    /// Ends a process, which all know at once.
    pub fn kill(&self, process: usize, ending: Ending) {
        self.end(process, ending, &vec![Duration::ZERO; self.processes.len()]);
    }

    /// How a process has ended, whoever knows it.
    #[must_use]
    pub fn ending(&self, process: usize) -> Option<Ending> {
        self.processes[process].ending.get()
    }

    /// From when on one process knows that another has ended, if it has.
    #[must_use]
    pub fn known_at(&self, by: usize, process: usize) -> Option<Duration> {
        self.processes[process].known_at.borrow().get(by).copied()
    }

    /// What one process knows of another.
    #[must_use]
    pub fn fate(&self, by: usize, process: usize) -> Fate {
        match (self.known_at(by, process), self.ending(process)) {
            (Some(at), Some(ending)) if at <= self.now.get() => Fate::Gone(ending),
            _ => Fate::Alive,
        }
    }

    /// Lets something happen to a process when it has published so many things more.
    pub fn set_fuse(&self, process: usize, publications: u64, fuse: Fuse) {
        self.processes[process].fuse.set(Some((publications, fuse)));
    }

    /// Lets the fuse burn out now, if there is one.
    pub fn burn(&self, process: usize) {
        if let Some((_, fuse)) = self.processes[process].fuse.take() {
            self.trip(process, fuse);
        }
    }

    fn trip(&self, process: usize, fuse: Fuse) {
        match fuse {
            Fuse::Gone => self.processes[process].gone.set(true),
            Fuse::Stopped => self.processes[process].stopped.set(true),
        }
    }

    /// Whether the process does nothing any more, known or not.
    #[must_use]
    pub fn is_gone(&self, process: usize) -> bool {
        self.processes[process].gone.get()
    }

    /// Whether the process is stopped.
    #[must_use]
    pub fn is_stopped(&self, process: usize) -> bool {
        self.processes[process].stopped.get()
    }

    /// Lets a stopped process go on.
    pub fn resume(&self, process: usize) {
        self.processes[process].stopped.set(false);
    }

    /// Publications of all processes so far.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.activity.get()
    }

    /// A process publishes something: whether it still can.
    pub(crate) fn publishes(&self, process: usize) -> bool {
        let own = &self.processes[process];
        match own.fuse.get() {
            Some((0, fuse)) => {
                own.fuse.set(None);
                self.trip(process, fuse);
            }
            Some((left, fuse)) => own.fuse.set(Some((left - 1, fuse))),
            None => {}
        }
        self.activity.set(self.activity.get() + 1);
        !own.gone.get()
    }
}
