//! Asynchronous calls: what keeps their arrays alive, and how Python waits for them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallSite, Completion, Group, OwnedBuffers, Result, Timeout};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::array::Exchange;
use crate::call::{self, Interrupts, Site};
use crate::{raise, state};

/// The arrays of a running call. Their references may be dropped on any thread, with or without the GIL and even
/// after the interpreter's end: pyo3 then only notes them, and releases what it noted when it next takes the GIL.
pub(crate) struct HeldArrays {
    exchange: Exchange,
    _owners: [Py<PyUntypedArray>; 2],
}

impl HeldArrays {
    pub(crate) fn new(exchange: Exchange, owners: [Bound<'_, PyUntypedArray>; 2]) -> HeldArrays {
        HeldArrays { exchange, _owners: owners.map(Bound::unbind) }
    }
}

impl OwnedBuffers for HeldArrays {
    fn buffers(&mut self) -> Buffers<'_> {
        // SAFETY: `_owners` keeps the arrays alive, and numpy resizes no array that somebody else holds. That nobody
        // changes them before the call has ended is what the documentation asks of the caller.
        unsafe { self.exchange.buffers() }
    }
}

/// How a call ended, once it has.
#[derive(Default)]
pub(crate) struct Shared {
    outcome: OnceLock<Result<()>>,
}

impl Shared {
    pub(crate) fn end(&self, outcome: Result<()>) {
        let told = self.outcome.set(outcome);
        debug_assert!(told.is_ok(), "a call ends once");
    }

    /// Waits for the end of the group's call; `None` if the limit passed or a signal handler raised.
    fn wait(&self, group: &Group, limit: Option<Duration>, interrupts: &Interrupts) -> Option<Result<()>> {
        let hook = || interrupts.pending();
        group.progress_until(&|| self.outcome.get().is_some(), limit, interrupts.hook(&hook));
        self.outcome.get().cloned()
    }
}

/// A running call, from ``allreduce_async`` and the like.
///
/// The call runs to its end whether the handle is kept or not.
#[pyclass(frozen, module = "foldcast")]
pub(crate) struct Handle {
    shared: Arc<Shared>,
    group: Group,
    result: Py<PyAny>,
    call: CallSite,
    begun: Instant,
}

impl Handle {
    /// The handle of a call that was submitted just now.
    pub(crate) fn of(shared: Arc<Shared>, result: Bound<'_, PyAny>, site: &Site) -> Handle {
        Handle { shared, group: site.group.clone(), result: result.unbind(), call: site.call(), begun: Instant::now() }
    }

    /// Submits a call by `submit`, whose result will be in this array.
    pub(crate) fn submit(
        site: &Site,
        held: HeldArrays,
        result: Bound<'_, PyAny>,
        submit: impl FnOnce(Box<dyn OwnedBuffers>, Completion) -> Result<()>,
    ) -> Result<Handle> {
        let shared = Arc::new(Shared::default());
        let ended = Arc::clone(&shared);
        let done = move |outcome, held| {
            // First, so that whoever wakes finds the arrays given back.
            drop(held);
            ended.end(outcome);
        };
        submit(Box::new(held), Box::new(done))?;
        Ok(Handle::of(shared, result, site))
    }
}

#[pymethods]
impl Handle {
    /// Wait for the end of the call and return its result.
    ///
    /// May be called again, and by several threads: each gets the same array.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds to wait. By default, and with ``inf``, as long as the call may take.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray, or a list of them
    ///     ``out`` of the call, or what is new.
    ///
    /// Raises
    /// ------
    /// DeadlineError
    ///     The call has not ended in time. It goes on, and may be waited for again. (Also what a call raises that
    ///     reached its own deadline; ``done()`` is true then.)
    /// FoldcastError
    ///     What went wrong in the call, as for ``allreduce``.
    /// KeyboardInterrupt
    ///     Ctrl-C. The call goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let limit = match call::timeout(timeout.as_ref()).map_err(|error| raise::exception(py, &error))? {
            Timeout::After(limit) => Some(limit),
            _ => None,
        };
        // The thread that would end the call is not in a forked child.
        state::check_process(py)?;
        let outcome = match self.shared.outcome.get() {
            Some(outcome) => Some(outcome.clone()),
            None => call::released(py, |interrupts| Ok(self.shared.wait(&self.group, limit, interrupts)))?,
        };
        match outcome {
            Some(Ok(())) => Ok(self.result.bind(py).clone()),
            Some(Err(error)) => Err(raise::exception(py, &error)),
            None => Err(raise::still_running(py, &self.call, self.begun.elapsed(), limit.unwrap_or_default())),
        }
    }

    /// Whether the call has ended, well or not. Never waits.
    ///
    /// Raises
    /// ------
    /// ForkedProcessError
    ///     The process was forked from the one that submitted the call.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        state::check_process(py)?;
        Ok(self.shared.outcome.get().is_some())
    }

    fn __repr__(&self) -> String {
        let state = if self.shared.outcome.get().is_some() { "ended" } else { "running" };
        format!("<foldcast.Handle: {}, {state}>", self.call)
    }
}
