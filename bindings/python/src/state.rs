//! The communicator of the process: made by `init` or the first use, ended by `shutdown` or the interpreter's exit.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use foldcast::{Communicator, Error, Group, InitOptions, Result, Timeout, WORLD_GROUP, error::NotInGroup};
use pyo3::prelude::*;

use crate::call::{self, Interrupts};
use crate::{logger, pool, product, raise};

/// What the process has while it is initialised.
pub(crate) struct State {
    pub(crate) communicator: Communicator,
    /// The process that made it: a forked child is another one.
    process: u32,
    closed: AtomicBool,
}

/// The current state, or null. A state is never freed: a process makes one, seldom more, and so a thread can read
/// it without a lock, also in a forked child (where a lock could be held for ever by a thread that is not there) and
/// while the interpreter ends.
static CURRENT: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

/// The process that is making a communicator just now; 0 if none is.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// Whether the interpreter is ending.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Python's name for its main thread, the only one that it gives signals to.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Remembers which thread is Python's main thread.
pub(crate) fn note_main_thread(py: Python<'_>) -> PyResult<()> {
    let main = py.import("threading")?.call_method0("main_thread")?.getattr("ident")?;
    MAIN_THREAD.store(main.extract()?, Ordering::Relaxed);
    Ok(())
}

/// Whether the calling thread is Python's main thread.
#[allow(clippy::as_conversions, reason = "the same cast by which Python makes thread idents")]
pub(crate) fn on_main_thread() -> bool {
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    this as usize == MAIN_THREAD.load(Ordering::Relaxed)
}

/// Whether the interpreter has begun to end.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// The state of the process, if it was initialised, also when it is shut down or belongs to the parent of a fork:
/// the engine refuses calls then, and says why.
pub(crate) fn current() -> Option<&'static State> {
    let state = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from Box::into_raw in `make`, was published with release order, and is
    // never freed; nobody forms a mutable reference to a published state.
    unsafe { state.as_ref() }
}

/// The state of the process; initialises it if this is the first use.
pub(crate) fn ensure(py: Python<'_>) -> PyResult<&'static State> {
    match current() {
        Some(state) => Ok(state),
        None => make(py, Timeout::Default),
    }
}

/// The state of the process, which is no forked child; initialises it if this is the first use.
fn ensure_here(py: Python<'_>) -> PyResult<&'static State> {
    let state = ensure(py)?;
    state.communicator.check_process().map_err(|error| raise::exception(py, &error))?;
    Ok(state)
}

/// Refuses forked children of a process that was initialised.
pub(crate) fn check_process(py: Python<'_>) -> PyResult<()> {
    let checked = current().map_or(Ok(()), |state| state.communicator.check_process());
    checked.map_err(|error| raise::exception(py, &error))
}

fn make(py: Python<'_>, timeout: Timeout) -> PyResult<&'static State> {
    logger::install().map_err(|error| raise::exception(py, &error))?;
    let process = std::process::id();
    let made = call::released(py, |interrupts| {
        if !begin_making(process, interrupts) {
            return Ok(None);
        }
        let made = match current() {
            // Another thread was faster.
            Some(state) if state.is_open() => Ok(state),
            _ => meet(timeout, process, interrupts),
        };
        MAKING.store(0, Ordering::Release);
        made.map(Some)
    })?;
    made.ok_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()))
}

/// Waits until no other thread of this process makes a communicator; `false` if interrupted.
fn begin_making(process: u32, interrupts: &Interrupts) -> bool {
    loop {
        // What a forked child finds here from its parent's threads does not count: they are not in the child.
        let found = MAKING.load(Ordering::Relaxed);
        let free = if found == process { 0 } else { found };
        if MAKING.compare_exchange(free, process, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return true;
        }
        if interrupts.pending() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn meet(timeout: Timeout, process: u32, interrupts: &Interrupts) -> Result<&'static State> {
    let hook = || interrupts.pending();
    let communicator = Communicator::init(InitOptions { timeout, interrupt: interrupts.hook(&hook) })?;
    if let Some(product) = product::chosen() {
        communicator.set_product(product);
    }
    pool::set_limit(communicator.config().pool_bytes);
    let state = Box::new(State { communicator, process, closed: AtomicBool::new(false) });
    let state: &'static State = Box::leak(state);
    CURRENT.store(ptr::from_ref(state).cast_mut(), Ordering::Release);
    if let Some(product) = product::chosen() {
        // Once more, now that whoever chooses another one finds the state.
        state.communicator.set_product(product);
    }
    Ok(state)
}

impl State {
    /// Whether this process made it and did not shut it down.
    fn is_open(&self) -> bool {
        self.process == std::process::id() && !self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        if self.process == std::process::id() && !self.closed.swap(true, Ordering::AcqRel) {
            pool::set_limit(0);
            self.communicator.shutdown();
        }
    }

    /// The group of this name, for a call of `op`.
    pub(crate) fn group(&self, name: &str, op: &'static str) -> Result<Group> {
        if name == WORLD_GROUP {
            return Ok(self.communicator.world());
        }
        self.communicator.group(name).map_err(|error| match error {
            Error::NotInGroup(content) => Error::NotInGroup(Box::new(NotInGroup { op, ..*content })),
            error => error,
        })
    }
}

/// Meet the other ranks of the job.
///
/// Every function that needs the ranks does this at its first use, so calling it is only needed to choose the
/// moment or the timeout. A second call does nothing. After ``shutdown()`` it meets them anew.
///
/// Parameters
/// ----------
/// timeout : float, optional
///     Seconds to wait for the other ranks: 120 by default, ``inf`` for no limit.
///
/// Raises
/// ------
/// DeadlineError
///     A rank did not come in time.
/// InvalidArgumentError
///     The timeout, or a variable of the environment, is wrong.
/// ForkedProcessError
///     The process was forked from one that is initialised.
#[pyfunction]
#[pyo3(signature = (timeout=None))]
pub(crate) fn init(py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    let timeout = call::timeout(timeout.as_ref()).map_err(|error| raise::exception(py, &error))?;
    match current() {
        Some(state) if state.is_open() => Ok(()),
        Some(state) if state.process != std::process::id() => {
            let error = Error::ForkedProcess { parent: state.process, child: std::process::id() };
            Err(raise::exception(py, &error))
        }
        _ => make(py, timeout).map(|_| ()),
    }
}

/// Whether this process has met the other ranks and was not shut down since. Never waits.
#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    current().is_some_and(State::is_open)
}

/// The rank of this process among all, from 0. Initialises at first use.
#[pyfunction]
pub(crate) fn rank(py: Python<'_>) -> PyResult<u32> {
    Ok(ensure_here(py)?.communicator.rank().0)
}

/// The number of ranks. Initialises at first use.
#[pyfunction]
pub(crate) fn size(py: Python<'_>) -> PyResult<usize> {
    Ok(ensure_here(py)?.communicator.size())
}

/// The rank of this process among those of its host, from 0. Initialises at first use.
#[pyfunction]
pub(crate) fn local_rank(py: Python<'_>) -> PyResult<usize> {
    Ok(ensure_here(py)?.communicator.local_rank())
}

/// The number of ranks on this host. Initialises at first use.
#[pyfunction]
pub(crate) fn local_size(py: Python<'_>) -> PyResult<usize> {
    Ok(ensure_here(py)?.communicator.local_size())
}

/// End every group on all ranks.
///
/// Pending and later calls on them raise ``GroupAbortedError`` on every rank. Returns within a second, whatever the
/// other ranks do. Does nothing before ``init()``.
#[pyfunction]
pub(crate) fn abort(py: Python<'_>) {
    if let Some(state) = current().filter(|state| state.is_open()) {
        py.allow_threads(|| state.communicator.abort());
    }
}

/// Leave the job in order.
///
/// Ranks that have what they need from this one go on; later calls here raise ``ClosedError``. Returns within a
/// second, whatever the other ranks do. The exit of the interpreter does it too. A second call does nothing.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    if let Some(state) = current() {
        py.allow_threads(|| state.close());
    }
}

/// What the interpreter calls when it ends: leaves the job in order and silently.
#[pyfunction]
#[pyo3(name = "_at_exit")]
pub(crate) fn at_exit(py: Python<'_>) {
    ENDING.store(true, Ordering::Release);
    shutdown(py);
}
