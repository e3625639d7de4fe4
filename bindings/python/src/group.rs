//! Groups.

use foldcast::{Error, Rank, Result, Timeout};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyTuple};

use crate::call::{self, Operands, Site, written};
use crate::handle::Handle;
use crate::moves::{self, Given, Sent};
use crate::{many, raise, state};

/// Ranks that call together, from ``new_group``.
#[pyclass(frozen, module = "foldcast")]
pub(crate) struct Group {
    pub(crate) inner: foldcast::Group,
}

/// Make a group of some ranks.
///
/// Never waits: the members meet in their first call. They must have made the group alike; the others need not make
/// it, and may.
///
/// Parameters
/// ----------
/// ranks : iterable of int
///     The members, as ranks among all, in any order. Their ranks in the group are their places in the sorted list.
/// name : str, optional
///     1 to 127 bytes of UTF-8, the same on all members. By default one that follows from the members and how often
///     a group of them was made.
/// timeout : float, optional
///     Seconds that a call of this rank on the group may take that is given no timeout itself, ``inf`` for no limit. By
///     default what holds for all calls.
///
/// Returns
/// -------
/// Group
///
/// Raises
/// ------
/// InvalidArgumentError
///     A rank does not exist or comes twice, there is none, the name is wrong or taken, or the timeout is wrong.
#[pyfunction]
#[pyo3(signature = (ranks, name=None, timeout=None))]
pub(crate) fn new_group(
    py: Python<'_>,
    ranks: &Bound<'_, PyAny>,
    name: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Group> {
    let state = state::ensure(py)?;
    let made = parse_ranks(ranks).and_then(|ranks| {
        let name =
            name.map(|name| name.extract::<String>().map_err(|_| Error::invalid("name", "a string", written(name))));
        let timeout = call::timeout(timeout)?;
        let group = state.communicator.new_group(&ranks, name.transpose()?.as_deref())?;
        group.set_timeout(timeout);
        Ok(group)
    });
    made.map(|inner| Group { inner }).map_err(|error| raise::exception(py, &error))
}

/// The group of this name that exists in this process, the world group included. Never waits.
///
/// Parameters
/// ----------
/// name : str
///     A group's name.
///
/// Returns
/// -------
/// Group
///
/// Raises
/// ------
/// NotInGroupError
///     There is none.
/// InvalidArgumentError
///     The name is not a string.
#[pyfunction]
pub(crate) fn group(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Group> {
    let state = state::ensure(py)?;
    let found = call::text("name", name).and_then(|name| state.group(&name, "group"));
    found.map(|inner| Group { inner }).map_err(|error| raise::exception(py, &error))
}

/// Make a group of the members of a group that are left, after a failure or before one.
///
/// All members that are left call it, and it waits for them: those whose processes have not ended, and that have left
/// neither the job nor the group in order. None is left out for being slow or stopped. Either all of them get the same
/// group, or the call fails on all of them and can be made again. Who dies meanwhile is left out.
///
/// The group has the same name and takes the old one's place: calls with that name, or on all ranks by default, are on it
/// from now on. Its members are in the old order. On the old one nothing can be called any more; if it lived, its pending
/// calls raise ``GroupAbortedError``. ``rank()`` and ``size()`` stay what they were when the ranks met: this rank's place
/// among those that are left is the group's ``rank``, their number its ``size``.
///
/// Parameters
/// ----------
/// group : str or Group, optional
///     The group: that of all ranks by default.
/// timeout : float, optional
///     Seconds to wait for the other ranks: 1800 by default, ``inf`` for no limit.
///
/// Returns
/// -------
/// Group
///
/// Raises
/// ------
/// DeadlineError
///     A rank that is left did not call it in time. It is named here and, in a ``GroupAbortedError``, on the others.
/// GroupAbortedError
///     A rank gave up: its time was up, it was interrupted, or called ``abort``.
/// NotInGroupError, ClosedError, InvalidArgumentError
///     This rank is no member, it has destroyed the group, or another thread is in this call.
/// KeyboardInterrupt
///     Ctrl-C in the wait.
#[pyfunction]
#[pyo3(signature = (group=None, timeout=None))]
pub(crate) fn shrink(
    py: Python<'_>,
    group: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Group> {
    run_shrink(py, &Site::new(py, "shrink", group, None, timeout)?)
}

fn run_shrink(py: Python<'_>, site: &Site) -> PyResult<Group> {
    let shrunk = call::released(py, |interrupts| {
        let hook = || interrupts.pending();
        site.group.shrink(&site.options(interrupts.hook(&hook)))
    });
    shrunk.map(|inner| Group { inner })
}

fn parse_ranks(argument: &Bound<'_, PyAny>) -> Result<Vec<Rank>> {
    let refused = |got: &Bound<'_, PyAny>| Error::invalid("ranks", "whole numbers from 0 on", written(got));
    let items = argument.try_iter().map_err(|_| refused(argument))?;
    items
        .map(|item| {
            let item = item.map_err(|_| refused(argument))?;
            if item.is_instance_of::<PyBool>() {
                return Err(refused(&item));
            }
            item.extract::<u32>().map(Rank).map_err(|_| refused(&item))
        })
        .collect()
}

#[pymethods]
impl Group {
    /// int : The rank of this process in the group, from 0; -1 if it is not a member.
    #[getter]
    fn rank(&self) -> PyResult<i64> {
        self.inner
            .rank()
            .map_or(Ok(-1), |rank| i64::try_from(rank).map_err(|error| PyOverflowError::new_err(error.to_string())))
    }

    /// int : The number of members.
    #[getter]
    fn size(&self) -> usize {
        self.inner.size()
    }

    /// tuple of int : The members as ranks among all, ascending.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.ranks().iter().map(|rank| rank.0))
    }

    /// str : The name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name().as_str()
    }

    /// ``foldcast.allreduce`` on this group.
    #[pyo3(
        signature = (array, reduction=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, array, reduction=\"sum\", *, out=None, name=None, timeout=None)"
    )]
    fn allreduce<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        reduction: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let site = Site::on(py, "allreduce", &self.inner, name, timeout)?;
        call::run_allreduce(py, &site, &Operands { array, reduction, out })
    }

    /// ``foldcast.allreduce_async`` on this group.
    #[pyo3(
        signature = (array, reduction=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, array, reduction=\"sum\", *, out=None, name=None, timeout=None)"
    )]
    fn allreduce_async<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        reduction: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Handle> {
        let site = Site::on(py, "allreduce", &self.inner, name, timeout)?;
        call::submit_allreduce(py, &site, &Operands { array, reduction, out })
    }

    /// ``foldcast.allreduce_fused`` on this group.
    #[pyo3(
        signature = (arrays, reduction=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, arrays, reduction=\"sum\", *, out=None, name=None, timeout=None)"
    )]
    fn allreduce_fused<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyAny>,
        reduction: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let site = Site::on(py, "allreduce", &self.inner, name, timeout)?;
        many::run(py, &site, &many::Operands { arrays, reduction, out })
    }

    /// ``foldcast.allreduce_fused_async`` on this group.
    #[pyo3(
        signature = (arrays, reduction=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, arrays, reduction=\"sum\", *, out=None, name=None, timeout=None)"
    )]
    fn allreduce_fused_async<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyAny>,
        reduction: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Handle> {
        let site = Site::on(py, "allreduce", &self.inner, name, timeout)?;
        many::submit(py, &site, &many::Operands { arrays, reduction, out })
    }

    /// ``foldcast.broadcast`` on this group.
    #[pyo3(
        signature = (array, root=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, array, root=0, *, out=None, name=None, timeout=None)"
    )]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        root: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let site = Site::on(py, "broadcast", &self.inner, name, timeout)?;
        moves::run_broadcast(py, &site, &Sent { array, root, out })
    }

    /// ``foldcast.broadcast_async`` on this group.
    #[pyo3(
        signature = (array, root=None, *, out=None, name=None, timeout=None),
        text_signature = "($self, array, root=0, *, out=None, name=None, timeout=None)"
    )]
    fn broadcast_async<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        root: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Handle> {
        let site = Site::on(py, "broadcast", &self.inner, name, timeout)?;
        moves::submit_broadcast(py, &site, &Sent { array, root, out })
    }

    /// ``foldcast.allgather`` on this group.
    #[pyo3(signature = (array, *, equal=true, out=None, name=None, timeout=None))]
    fn allgather<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        equal: bool,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let site = Site::on(py, "allgather", &self.inner, name, timeout)?;
        moves::run_allgather(py, &site, &Given { array, equal, out })
    }

    /// ``foldcast.allgather_async`` on this group.
    #[pyo3(signature = (array, *, out=None, name=None, timeout=None))]
    fn allgather_async<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        name: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Handle> {
        let site = Site::on(py, "allgather", &self.inner, name, timeout)?;
        moves::submit_allgather(py, &site, &Given { array, equal: true, out })
    }

    /// ``foldcast.barrier`` on this group.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        call::run_barrier(py, &Site::on(py, "barrier", &self.inner, None, timeout)?)
    }

    /// ``foldcast.shrink`` of this group.
    #[pyo3(signature = (timeout=None))]
    fn shrink(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Group> {
        run_shrink(py, &Site::on(py, "shrink", &self.inner, None, timeout)?)
    }

    /// float or None : Seconds that a call of this rank on the group may take that is given no timeout itself; ``inf`` for no
    /// limit, None for what holds for all calls.
    #[getter]
    fn timeout(&self) -> Option<f64> {
        match self.inner.timeout() {
            Timeout::Default => None,
            Timeout::Never => Some(f64::INFINITY),
            Timeout::After(limit) => Some(limit.as_secs_f64()),
        }
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        let timeout =
            call::timeout((!timeout.is_none()).then_some(timeout)).map_err(|error| raise::exception(py, &error))?;
        self.inner.set_timeout(timeout);
        Ok(())
    }

    /// str or None : Why the group is over, as far as this rank knows; None while it lives.
    #[getter]
    fn ended(&self) -> Option<String> {
        self.inner.ended().map(|cause| cause.to_string())
    }

    /// End the group on all its ranks: pending and later calls raise ``GroupAbortedError``. Returns within a second.
    fn abort(&self, py: Python<'_>) {
        py.allow_threads(|| self.inner.abort());
    }

    /// Forget the group on this rank. Its name is free again; later calls raise ``ClosedError``. Refused while calls of
    /// this rank on it have not ended: wait for them, or `abort` the group first.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        py.allow_threads(|| self.inner.destroy()).map_err(|error| raise::exception(py, &error))
    }

    fn __repr__(&self) -> String {
        let ranks: Vec<_> = self.inner.ranks().iter().map(|rank| rank.0).collect();
        format!("<foldcast.Group '{}': ranks {ranks:?}>", self.inner.name())
    }
}
