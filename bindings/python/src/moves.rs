//! Broadcast and allgather of arrays.

use foldcast::{Error, Group, Rank, Result};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::array::{Input, Prepared};
use crate::call::{Site, released, written};
use crate::handle::{Handle, HeldArrays};

/// The arguments of a broadcast that are not about the group.
pub(crate) struct Sent<'a, 'py> {
    pub(crate) array: &'a Bound<'py, PyAny>,
    pub(crate) root: Option<&'a Bound<'py, PyAny>>,
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
}

/// The arguments of an allgather that are not about the group.
pub(crate) struct Given<'a, 'py> {
    pub(crate) array: &'a Bound<'py, PyAny>,
    pub(crate) equal: bool,
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
}

/// The rank of the world that is meant by a rank in the group; the first, if none is given.
fn root(group: &Group, argument: Option<&Bound<'_, PyAny>>) -> Result<Rank> {
    let ranks = group.ranks();
    let found = match argument {
        None => ranks.first(),
        Some(argument) if argument.is_instance_of::<PyBool>() => None,
        Some(argument) => argument.extract::<usize>().ok().and_then(|root| ranks.get(root)),
    };
    found.copied().ok_or_else(|| {
        let expected = format!("0 to {}, a rank in group '{}'", ranks.len().saturating_sub(1), group.name());
        Error::invalid("root", expected, argument.map_or_else(|| "None".into(), written))
    })
}

fn prepare_broadcast<'py>(py: Python<'py>, site: &Site, sent: &Sent<'_, 'py>) -> PyResult<(Rank, Prepared<'py>)> {
    let root = root(&site.group, sent.root).map_err(|error| site.refusal(py, error))?;
    let prepared = Prepared::new(py, sent.array, sent.out)?.map_err(|error| site.refusal(py, error))?;
    Ok((root, prepared))
}

/// Runs a broadcast to its end and gives the result.
pub(crate) fn run_broadcast<'py>(py: Python<'py>, site: &Site, sent: &Sent<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    let (root, prepared) = prepare_broadcast(py, site, sent)?;
    let (dtype, mut exchange) = (prepared.dtype(), prepared.exchange());
    released(py, |interrupts| {
        let hook = || interrupts.pending();
        // SAFETY: `prepared` keeps both arrays alive until this function ends, and numpy resizes no array that
        // somebody else holds. That no thread changes them meanwhile is what the documentation asks of the caller.
        let buffers = unsafe { exchange.buffers() };
        site.group.broadcast(dtype, root, buffers, &site.options(interrupts.hook(&hook)))
    })?;
    Ok(prepared.into_result())
}

/// Submits a broadcast and gives its handle.
pub(crate) fn submit_broadcast(py: Python<'_>, site: &Site, sent: &Sent<'_, '_>) -> PyResult<Handle> {
    let (root, prepared) = prepare_broadcast(py, site, sent)?;
    let dtype = prepared.dtype();
    let held = HeldArrays::new(prepared.exchange(), prepared.owners());
    let submit = |held, done| site.group.broadcast_async(dtype, root, held, &site.submitted(), done);
    Handle::submit(site, held, prepared.into_result(), submit).map_err(|error| site.refusal(py, error))
}

/// The rows of all ranks together, and those before this rank's.
fn rows_of_all(site: &Site, rows: usize) -> (usize, usize) {
    let before = site.group.rank().unwrap_or_default();
    (rows.saturating_mul(site.group.size()), rows.saturating_mul(before))
}

/// Runs an allgather to its end and gives the result.
pub(crate) fn run_allgather<'py>(py: Python<'py>, site: &Site, given: &Given<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    let refusal = |error| site.refusal(py, error);
    let input = Input::new(py, given.array)?.map_err(refusal)?;
    let (dtype, row) = (input.dtype(), input.row());
    let counts = if given.equal { None } else { Some(exchange_counts(py, site, &input, given.out)?) };
    let (all, first) = match &counts {
        None => rows_of_all(site, input.rows()),
        Some(rows) => (rows.iter().sum(), 0),
    };
    let gathered = input.gathered(py, all, first, given.out)?.map_err(refusal)?;
    let (mut exchange, _owners, result) = gathered.into_parts();
    let counts = counts.map(|rows| rows.iter().map(|rows| rows.saturating_mul(row)).collect::<Vec<_>>());
    released(py, |interrupts| {
        let hook = || interrupts.pending();
        let options = site.options(interrupts.hook(&hook));
        // SAFETY: `_owners` keeps both arrays alive until this function ends, and numpy resizes no array that somebody
        // else holds. That no thread changes them meanwhile is what the documentation asks of the caller.
        let buffers = unsafe { exchange.buffers() };
        match &counts {
            None => site.group.all_gather(dtype, buffers, &options),
            Some(counts) => site.group.all_gather_unequal(dtype, counts, buffers, &options),
        }
    })?;
    Ok(result)
}

/// Each rank's rows.
fn exchange_counts(
    py: Python<'_>,
    site: &Site,
    input: &Input<'_>,
    out: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<usize>> {
    if let Some(out) = out {
        let expected = "None with equal=False, since the result's shape is known only when the ranks have met";
        return Err(site.refusal(py, Error::invalid("out", expected, written(out))));
    }
    let rows = u64::try_from(input.rows()).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    let all = released(py, |interrupts| {
        let hook = || interrupts.pending();
        site.group.all_gather_sizes(rows, &site.options(interrupts.hook(&hook)))
    })?;
    let rows: Option<Vec<usize>> = all.iter().map(|rows| usize::try_from(*rows).ok()).collect();
    let fits = |rows: &Vec<usize>| rows.iter().try_fold(0_usize, |sum, rows| sum.checked_add(*rows)).is_some();
    rows.filter(fits).ok_or_else(|| {
        let expected = "first dimensions whose sum fits the address space";
        site.refusal(py, Error::invalid("array", expected, format!("{all:?}")))
    })
}

/// Submits an allgather of equal contributions and gives its handle.
pub(crate) fn submit_allgather(py: Python<'_>, site: &Site, given: &Given<'_, '_>) -> PyResult<Handle> {
    let refusal = |error| site.refusal(py, error);
    let input = Input::new(py, given.array)?.map_err(refusal)?;
    let dtype = input.dtype();
    let (all, first) = rows_of_all(site, input.rows());
    let (exchange, owners, result) = input.gathered(py, all, first, given.out)?.map_err(refusal)?.into_parts();
    let held = HeldArrays::new(exchange, owners);
    let submit = |held, done| site.group.all_gather_async(dtype, held, &site.submitted(), done);
    Handle::submit(site, held, result, submit).map_err(refusal)
}

/// Give every rank of a group what one of them has.
///
/// All ranks of the group call it with the same number of elements, dtype, root and name. Bits are moved and not
/// changed: NaNs keep their payloads.
///
/// Parameters
/// ----------
/// array : numpy.ndarray or array_like
///     On the root what is given, on the others an array of the same shape and dtype whose content is not read.
///     Otherwise as for ``allreduce``.
/// root : int
///     The rank in the group that gives: 0 is the first of its ranks. (Messages name it by its rank among all.)
/// out : numpy.ndarray, optional
///     Where the result goes, as for ``allreduce``: ``out=array`` fills ``array`` itself.
/// group, name, timeout
///     As for ``allreduce``.
///
/// Returns
/// -------
/// numpy.ndarray
///     ``out``, or a new array in C order, of the shape and dtype of ``array``.
///
/// Raises
/// ------
/// FoldcastError
///     As for ``allreduce``.
#[pyfunction]
#[pyo3(
    signature = (array, root=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(array, root=0, *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn broadcast<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    root: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let site = Site::new(py, "broadcast", group, name, timeout)?;
    run_broadcast(py, &site, &Sent { array, root, out })
}

/// Begin a broadcast and return at once.
///
/// The arguments are those of ``broadcast``; otherwise as ``allreduce_async``.
///
/// Returns
/// -------
/// Handle
///     With ``wait()`` for the result and ``done()``.
#[pyfunction]
#[pyo3(
    signature = (array, root=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(array, root=0, *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn broadcast_async<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    root: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Handle> {
    let site = Site::new(py, "broadcast", group, name, timeout)?;
    submit_broadcast(py, &site, &Sent { array, root, out })
}

/// Give every rank of a group the arrays of all of them, one behind the other along the first dimension.
///
/// The ranks' arrays stand in the order of the group. Bits are moved and not changed: NaNs keep their payloads.
///
/// Parameters
/// ----------
/// array : numpy.ndarray or array_like
///     This rank's contribution, of at least one dimension and of the same dtype on all ranks; otherwise as for
///     ``allreduce``. All contributions together have at most 8 GiB.
/// equal : bool
///     Whether all ranks give the same shape: if one does not, all of them get a ``MismatchError``. With ``False`` the
///     lengths of the first dimension may differ, and be 0; the ranks exchange them first, which is a call more.
/// out : numpy.ndarray, optional
///     Where the result goes: writeable, C-contiguous, of the result's shape and dtype. ``array`` may be this rank's part of
///     it (in place); any other overlap is refused. Not with ``equal=False``. After an error its content is undefined.
/// group, name, timeout
///     As for ``allreduce``.
///
/// Returns
/// -------
/// numpy.ndarray
///     ``out``, or a new array in C order: the shape of ``array`` with the sum of all first dimensions as the first.
///
/// Raises
/// ------
/// FoldcastError
///     As for ``allreduce``.
#[pyfunction]
#[pyo3(signature = (array, *, equal=true, out=None, group=None, name=None, timeout=None))]
pub(crate) fn allgather<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    equal: bool,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let site = Site::new(py, "allgather", group, name, timeout)?;
    run_allgather(py, &site, &Given { array, equal, out })
}

/// Begin an allgather of arrays of one shape and return at once.
///
/// The arguments are those of ``allgather``; otherwise as ``allreduce_async``.
///
/// Returns
/// -------
/// Handle
///     With ``wait()`` for the result and ``done()``.
#[pyfunction]
#[pyo3(signature = (array, *, out=None, group=None, name=None, timeout=None))]
pub(crate) fn allgather_async<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Handle> {
    let site = Site::new(py, "allgather", group, name, timeout)?;
    submit_allgather(py, &site, &Given { array, equal: true, out })
}
