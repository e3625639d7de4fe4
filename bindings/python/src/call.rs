//! Blocking calls: arguments, the GIL, Ctrl-C.

use std::cell::RefCell;
use std::time::Duration;

use foldcast::{CallOptions, CallSite, Error, Group, Reduction, Result, Tag, Timeout, error::InvalidArgument};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::array::{Exchange, Prepared};
use crate::group::Group as PyGroup;
use crate::handle::{Handle, HeldArrays};
use crate::raise;
use crate::state::{self, State};

/// How long a daemon thread stays out of an interpreter that is ending.
const GRACE_AT_EXIT: Duration = Duration::from_secs(1);

/// Lets a wait without the GIL look for signals, and keeps the exception that a signal handler raised.
pub(crate) struct Interrupts {
    raised: RefCell<Option<PyErr>>,
    /// Python runs signal handlers on its main thread only: other threads have nothing to look for.
    looks: bool,
}

impl Interrupts {
    /// Whether a signal handler raised an exception, such as Ctrl-C's.
    pub(crate) fn pending(&self) -> bool {
        if !self.looks {
            return false;
        }
        if self.raised.borrow().is_some() {
            return true;
        }
        let found = Python::with_gil(|py| py.check_signals().err());
        let interrupted = found.is_some();
        *self.raised.borrow_mut() = found;
        interrupted
    }

    /// `hook` where a look makes sense.
    pub(crate) fn hook<'a>(&self, hook: &'a dyn Fn() -> bool) -> Option<&'a dyn Fn() -> bool> {
        self.looks.then_some(hook)
    }
}

/// Runs something that waits without the GIL. A signal handler's exception wins over the error it led to.
pub(crate) fn released<T: Send>(py: Python<'_>, wait: impl FnOnce(&Interrupts) -> Result<T> + Send) -> PyResult<T> {
    let (outcome, raised) = py.allow_threads(|| {
        let interrupts = Interrupts { raised: RefCell::new(None), looks: state::on_main_thread() };
        let outcome = wait(&interrupts);
        if state::is_ending() && !interrupts.looks {
            // A daemon thread whose call the end of the interpreter ended. The process is about to be gone, and an
            // exception would only be noise on its way. Should somebody wait for the thread, it goes on in the end.
            std::thread::sleep(GRACE_AT_EXIT);
            // If Python is gone, this never returns; to go on would make Python end the thread inside of frames that
            // cannot be unwound.
            Python::with_gil(|_| ());
        }
        (outcome, interrupts.raised.into_inner())
    });
    match (raised, outcome) {
        (Some(raised), outcome) => {
            if let Err(error) = outcome {
                raised.set_cause(py, Some(raise::exception(py, &error)));
            }
            Err(raised)
        }
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(raise::exception(py, &error)),
    }
}

/// A timeout argument: None, or a number of seconds above zero, infinity included.
pub(crate) fn timeout(argument: Option<&Bound<'_, PyAny>>) -> Result<Timeout> {
    let Some(argument) = argument else { return Ok(Timeout::Default) };
    match argument.extract::<f64>() {
        Ok(seconds) => Timeout::from_seconds(Some(seconds)),
        Err(_) => Err(Error::invalid("timeout", "a number of seconds above 0, inf or None", written(argument))),
    }
}

/// An argument as a message shows it.
pub(crate) fn written(argument: &Bound<'_, PyAny>) -> String {
    const MAX_CHARS: usize = 80;
    let text = match argument.repr() {
        Ok(text) => text.to_string(),
        Err(_) => format!("an object of type {}", argument.get_type()),
    };
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The text of an argument that must be a string.
pub(crate) fn text(field: &str, argument: &Bound<'_, PyAny>) -> Result<String> {
    let refused = || Error::invalid(field, "a string", written(argument));
    argument.downcast::<PyString>().map_err(|_| refused())?.extract().map_err(|_| refused())
}

/// The arguments that all calls on a group have.
pub(crate) struct Site {
    pub(crate) group: Group,
    op: &'static str,
    name: Option<String>,
    timeout: Timeout,
    state: &'static State,
}

impl Site {
    pub(crate) fn new(
        py: Python<'_>,
        op: &'static str,
        group: Option<&Bound<'_, PyAny>>,
        name: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Site> {
        let state = state::ensure(py)?;
        let mut site = Site { group: state.communicator.world(), op, name: None, timeout: Timeout::Default, state };
        if let Some(group) = group {
            site.group = site.find_group(group).map_err(|error| site.refusal(py, error))?;
        }
        site.with_options(py, name, timeout)
    }

    /// A call on a group that the caller holds.
    pub(crate) fn on(
        py: Python<'_>,
        op: &'static str,
        group: &Group,
        name: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Site> {
        let state = state::ensure(py)?;
        let site = Site { group: group.clone(), op, name: None, timeout: Timeout::Default, state };
        site.with_options(py, name, timeout)
    }

    fn with_options(
        mut self,
        py: Python<'_>,
        name: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Site> {
        match self.set_options(name, timeout) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.refusal(py, error)),
        }
    }

    fn set_options(&mut self, name: Option<&Bound<'_, PyAny>>, timeout: Option<&Bound<'_, PyAny>>) -> Result<()> {
        if let Some(name) = name {
            let name = text("name", name)?;
            if name.is_empty() {
                return Err(Error::invalid("name", "a string of at least one character, or None", "''"));
            }
            self.name = Some(name);
        }
        self.timeout = self::timeout(timeout)?;
        Ok(())
    }

    fn find_group(&self, argument: &Bound<'_, PyAny>) -> Result<Group> {
        if let Ok(group) = argument.downcast::<PyGroup>() {
            return Ok(group.get().inner.clone());
        }
        if argument.downcast::<PyString>().is_err() {
            return Err(Error::invalid("group", "None, the name of a group, or a Group", written(argument)));
        }
        self.state.group(&text("group", argument)?, self.op)
    }

    /// The exception for an error of this call; a refused argument gets to know the call.
    pub(crate) fn refusal(&self, py: Python<'_>, error: Error) -> PyErr {
        let Error::InvalidArgument(content) = error else { return raise::exception(py, &error) };
        let content = InvalidArgument { site: content.site.or_else(|| Some(self.call())), ..*content };
        raise::exception(py, &Error::InvalidArgument(Box::new(content)))
    }

    /// Who is in which call. The number of an unnamed call is the engine's to give.
    pub(crate) fn call(&self) -> CallSite {
        let tag = self.name.as_deref().map(|name| Tag::Named(name.into()));
        CallSite { rank: self.state.communicator.rank(), op: self.op, tag, group: self.group.name().clone() }
    }

    pub(crate) fn options<'a>(&'a self, interrupt: Option<&'a dyn Fn() -> bool>) -> CallOptions<'a> {
        let (name, timeout) = (self.name.as_deref(), self.timeout);
        CallOptions { name, timeout, interrupt, ..CallOptions::default() }
    }

    /// The options of a call that a handle waits for.
    pub(crate) fn submitted(&self) -> CallOptions<'_> {
        CallOptions { light_completion: true, ..self.options(None) }
    }
}

pub(crate) fn parse_reduction(argument: Option<&Bound<'_, PyAny>>) -> Result<Reduction> {
    let Some(argument) = argument else { return Ok(Reduction::Sum) };
    let found = argument.downcast::<PyString>().ok().and_then(|text| text.extract::<String>().ok());
    found.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let names = Reduction::ALL.map(Reduction::name).join(", ");
        Error::invalid("reduction", format!("one of {names}"), written(argument))
    })
}

/// The arguments of an allreduce that are not about the group.
pub(crate) struct Operands<'a, 'py> {
    pub(crate) array: &'a Bound<'py, PyAny>,
    pub(crate) reduction: Option<&'a Bound<'py, PyAny>>,
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
}

fn prepare<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<(Reduction, Prepared<'py>)> {
    let reduction = parse_reduction(operands.reduction).map_err(|error| site.refusal(py, error))?;
    let prepared = Prepared::new(py, operands.array, operands.out)?.map_err(|error| site.refusal(py, error))?;
    Ok((reduction, prepared))
}

/// Runs an allreduce to its end and gives the result.
pub(crate) fn run_allreduce<'py>(
    py: Python<'py>,
    site: &Site,
    operands: &Operands<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let (reduction, prepared) = prepare(py, site, operands)?;
    let (dtype, mut exchange): (_, Exchange) = (prepared.dtype(), prepared.exchange());
    released(py, |interrupts| {
        let hook = || interrupts.pending();
        // SAFETY: `prepared` keeps both arrays alive until this function ends, and numpy resizes no array that
        // somebody else holds. That no thread changes them meanwhile is what the documentation asks of the caller.
        let buffers = unsafe { exchange.buffers() };
        site.group.all_reduce(dtype, reduction, buffers, &site.options(interrupts.hook(&hook)))
    })?;
    Ok(prepared.into_result())
}

/// Submits an allreduce and gives its handle.
pub(crate) fn submit_allreduce(py: Python<'_>, site: &Site, operands: &Operands<'_, '_>) -> PyResult<Handle> {
    let (reduction, prepared) = prepare(py, site, operands)?;
    let (dtype, exchange) = (prepared.dtype(), prepared.exchange());
    let held = HeldArrays::new(exchange, prepared.owners());
    let submit = |held, done| site.group.all_reduce_async(dtype, reduction, held, &site.submitted(), done);
    Handle::submit(site, held, prepared.into_result(), submit).map_err(|error| site.refusal(py, error))
}

/// Returns when every rank of the group has entered.
pub(crate) fn run_barrier(py: Python<'_>, site: &Site) -> PyResult<()> {
    released(py, |interrupts| {
        let hook = || interrupts.pending();
        site.group.barrier(&site.options(interrupts.hook(&hook)))
    })
}

/// Reduce an array element by element over the ranks of a group; every rank gets the result.
///
/// All ranks of the group call it with the same number of elements, dtype, reduction and name. Every rank gets the
/// same bits, which depend on the ranks' inputs only: integers wrap; float16 and bfloat16 are added in float32 and
/// rounded once; max and min propagate NaN.
///
/// Parameters
/// ----------
/// array : numpy.ndarray or array_like
///     This rank's contribution: int8 to int64, uint8 to uint64, float16, bfloat16 (``ml_dtypes.bfloat16``), float32
///     or float64, in native byte order, of any shape, at most 8 GiB. It is never written, unless it is ``out`` too.
///     What is no array goes through ``numpy.asarray`` or ``numpy.from_dlpack``; a list of arrays is refused.
/// reduction : {"sum", "max", "min", "prod"}
///     How the ranks' elements are combined.
/// out : numpy.ndarray, optional
///     Where the result goes: writeable, C-contiguous, of the shape and dtype of ``array``. It may be ``array``
///     itself (in place); any other overlap is refused. After an error its content is undefined.
/// group : str or Group, optional
///     The ranks that take part: all of them by default.
/// name : str, optional
///     Calls with a name meet the calls of that name, whatever the order in which the ranks make them. Calls without
///     one meet in their order, so two threads must not be inside of unnamed calls of a group at once.
/// timeout : float, optional
///     Seconds to wait for the other ranks: 1800 by default, ``inf`` for no limit.
///
/// Returns
/// -------
/// numpy.ndarray
///     ``out``, or a new array in C order, of the shape and dtype of ``array``. A large one may be over memory of an
///     earlier result that nobody holds any more.
///
/// Raises
/// ------
/// InvalidArgumentError
///     An argument is wrong. Nothing was done.
/// NotInGroupError
///     This rank is not in the group.
/// MismatchError
///     The ranks disagree in what they call. All of them get this, and the next call works.
/// RankDiedError, DeadlineError, GroupAbortedError
///     A rank died, did not come in time, or ended the group: the group is over.
/// KeyboardInterrupt
///     Ctrl-C in the wait: the group is over.
#[pyfunction]
#[pyo3(
    signature = (array, reduction=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(array, reduction=\"sum\", *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn allreduce<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    reduction: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let site = Site::new(py, "allreduce", group, name, timeout)?;
    run_allreduce(py, &site, &Operands { array, reduction, out })
}

/// Begin an allreduce and return at once.
///
/// The arguments are those of ``allreduce``. ``array`` and ``out`` must not be changed, nor ``out`` read, before
/// the call has ended. (An ``array`` that is not C-contiguous is copied first.) The call runs to its end whether its
/// handle is kept or not. ``timeout`` bounds the call, not the wait for it.
///
/// Returns
/// -------
/// Handle
///     With ``wait()`` for the result and ``done()``.
///
/// Raises
/// ------
/// InvalidArgumentError, NotInGroupError, ClosedError, GroupAbortedError
///     The call was refused. What goes wrong later is raised by ``wait()``.
#[pyfunction]
#[pyo3(
    signature = (array, reduction=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(array, reduction=\"sum\", *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn allreduce_async<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    reduction: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Handle> {
    let site = Site::new(py, "allreduce", group, name, timeout)?;
    submit_allreduce(py, &site, &Operands { array, reduction, out })
}

/// Return when every rank of a group has entered.
///
/// Parameters
/// ----------
/// group : str or Group, optional
///     The ranks that take part: all of them by default.
/// timeout : float, optional
///     Seconds to wait for the other ranks: 1800 by default, ``inf`` for no limit.
///
/// Raises
/// ------
/// FoldcastError
///     As for ``allreduce``.
#[pyfunction]
#[pyo3(signature = (group=None, timeout=None))]
pub(crate) fn barrier(
    py: Python<'_>,
    group: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    run_barrier(py, &Site::new(py, "barrier", group, None, timeout)?)
}
