//! The allreduce of a list of arrays.

use std::sync::Arc;

use foldcast::{Buffers, CallOptions, CompletionMany, DataType, Error, OwnedBuffers, Reduction, Result};
use foldcast::{digest, error::InvalidArgument};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::array::{Exchange, Prepared};
use crate::call::{self, Site, written};
use crate::handle::{Handle, HeldArrays, Shared};

/// The arguments of a call that are not about the group.
pub(crate) struct Operands<'a, 'py> {
    pub(crate) arrays: &'a Bound<'py, PyAny>,
    pub(crate) reduction: Option<&'a Bound<'py, PyAny>>,
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
}

/// The checked lists of one call.
struct Lists<'py> {
    reduction: Reduction,
    members: Vec<Prepared<'py>>,
    /// Indices of the members of each type, the types in the order in which they first occur; one type if there are none.
    by_type: Vec<(DataType, Vec<usize>)>,
    /// Digest of all types and sizes: a list of several types is several calls, and ranks whose lists differ must find it in
    /// the first.
    agreed: u64,
}

fn items<'py>(field: &str, argument: &Bound<'py, PyAny>) -> Result<Vec<Bound<'py, PyAny>>> {
    let refused = || Error::invalid(field, "a list of arrays", written(argument));
    let is_one = argument.downcast::<PyUntypedArray>().is_ok() || argument.downcast::<PyString>().is_ok();
    if is_one || argument.downcast::<PyDict>().is_ok() {
        return Err(refused());
    }
    argument.try_iter().map_err(|_| refused())?.collect::<PyResult<_>>().map_err(|_| refused())
}

fn prepare<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<Lists<'py>> {
    let refuse = |error| site.refusal(py, error);
    let reduction = call::parse_reduction(operands.reduction).map_err(refuse)?;
    let arrays = items("arrays", operands.arrays).map_err(refuse)?;
    let outs = operands.out.map(|out| items("out", out)).transpose().map_err(refuse)?;
    if let Some(outs) = outs.as_ref().filter(|outs| outs.len() != arrays.len()) {
        let expected = format!("{} arrays, as many as the input", arrays.len());
        return Err(refuse(Error::invalid("out", expected, format!("{} arrays", outs.len()))));
    }
    let mut members = Vec::with_capacity(arrays.len());
    for (at, array) in arrays.iter().enumerate() {
        let out = outs.as_ref().map(|outs| &outs[at]);
        // Prepared alone, it would be copied into its output, which may be another member's input.
        let scattered = array.downcast::<PyUntypedArray>().is_ok_and(|array| !array.is_c_contiguous());
        let array = &if out.is_some() && scattered { array.call_method1("copy", ("C",))? } else { array.clone() };
        members.push(Prepared::new(py, array, out)?.map_err(|error| refuse(of_member(error, at)))?);
    }
    if outs.is_some() {
        check_apart(&members).map_err(refuse)?;
    }
    let mut by_type: Vec<(DataType, Vec<usize>)> = Vec::new();
    let mut agreed = 0;
    for (at, member) in members.iter().enumerate() {
        let (dtype, exchange) = (member.dtype(), member.exchange());
        agreed = digest(agreed, &[&[dtype.code()][..], &exchange.bytes().to_le_bytes()].concat());
        match by_type.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, places)) => places.push(at),
            None => by_type.push((dtype, vec![at])),
        }
    }
    if by_type.is_empty() {
        by_type.push((DataType::Float32, Vec::new()));
    }
    Ok(Lists { reduction, members, by_type, agreed })
}

/// Says which of the arrays is wrong.
fn of_member(error: Error, at: usize) -> Error {
    match error {
        Error::InvalidArgument(invalid) => {
            let field = format!("{} {at} of the list", invalid.field);
            Error::InvalidArgument(Box::new(InvalidArgument { field, ..*invalid }))
        }
        other => other,
    }
}

/// Refuses outputs that overlap with each other or with another array's input.
fn check_apart(members: &[Prepared<'_>]) -> Result<()> {
    let range = |start: usize, exchange: &Exchange| start..start + exchange.bytes();
    let exchanges: Vec<Exchange> = members.iter().map(Prepared::exchange).collect();
    let used = || exchanges.iter().enumerate().filter(|(_, exchange)| exchange.bytes() > 0);
    let mut outputs: Vec<_> = used().map(|(at, exchange)| (range(exchange.addresses().1, exchange), at)).collect();
    outputs.sort_by_key(|(range, _)| range.start);
    let refused = |output: usize, other: String| {
        let expected = "memory that no other array of the lists has".to_owned();
        Err(Error::invalid(format!("out {output} of the list"), expected, format!("memory that overlaps with {other}")))
    };
    for pair in outputs.windows(2) {
        if pair[0].0.end > pair[1].0.start {
            return refused(pair[1].1, format!("out {}", pair[0].1));
        }
    }
    for (at, exchange) in used() {
        let input = range(exchange.addresses().0, exchange);
        // Outputs do not overlap, so they end in the order in which they start.
        let first = outputs.partition_point(|(output, _)| output.end <= input.start);
        let meets = outputs[first..].iter().take_while(|(output, _)| output.start < input.end);
        if let Some((_, output)) = meets.into_iter().find(|(_, output)| *output != at) {
            return refused(*output, format!("array {at}"));
        }
    }
    Ok(())
}

impl<'py> Lists<'py> {
    fn into_result(self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.members.into_iter().map(Prepared::into_result))
    }
}

/// Runs the call to its end and gives the results.
pub(crate) fn run<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<Bound<'py, PyList>> {
    let lists = prepare(py, site, operands)?;
    let Lists { reduction, agreed, .. } = lists;
    let mut work: Vec<(DataType, Vec<Exchange>)> = Vec::with_capacity(lists.by_type.len());
    for (dtype, places) in &lists.by_type {
        work.push((*dtype, places.iter().map(|at| lists.members[*at].exchange()).collect()));
    }
    call::released(py, move |interrupts| {
        let hook = || interrupts.pending();
        let mut lists: Vec<(DataType, Vec<Buffers<'_>>)> = Vec::with_capacity(work.len());
        for (dtype, exchanges) in &mut work {
            let mut buffers: Vec<Buffers<'_>> = Vec::with_capacity(exchanges.len());
            for exchange in exchanges {
                // SAFETY: `lists` keeps all arrays alive until `run` ends, and numpy resizes no array that somebody else
                // holds; no output overlaps with another array (`check_apart`, or it is new). That no thread changes them
                // meanwhile is what the documentation asks of the caller.
                buffers.push(unsafe { exchange.buffers() });
            }
            lists.push((*dtype, buffers));
        }
        let options = CallOptions { agreed, ..site.options(interrupts.hook(&hook)) };
        site.group.all_reduce_lists(reduction, &mut lists, &options)
    })?;
    lists.into_result(py)
}

/// Submits the call and gives its handle.
pub(crate) fn submit(py: Python<'_>, site: &Site, operands: &Operands<'_, '_>) -> PyResult<Handle> {
    let lists = prepare(py, site, operands)?;
    let shared = Arc::new(Shared::default());
    let options = CallOptions { agreed: lists.agreed, ..site.submitted() };
    let mut buffers = Vec::with_capacity(lists.by_type.len());
    for (dtype, places) in &lists.by_type {
        let held = |at: &usize| -> Box<dyn OwnedBuffers> {
            let member = &lists.members[*at];
            Box::new(HeldArrays::new(member.exchange(), member.owners()))
        };
        buffers.push((*dtype, places.iter().map(held).collect()));
    }
    let ended = Arc::clone(&shared);
    let done: CompletionMany = Box::new(move |outcome, held| {
        // First, so that whoever wakes finds the arrays given back.
        drop(held);
        ended.end(outcome);
    });
    let submitted = site.group.all_reduce_lists_async(lists.reduction, buffers, &options, done);
    submitted.map_err(|error| site.refusal(py, error))?;
    let result = lists.into_result(py)?.into_any();
    Ok(Handle::of(shared, result, site))
}

/// Reduce a list of arrays over the ranks of a group, in few calls; every rank gets the results.
///
/// It is ``allreduce`` of each array, with the same bits, but small arrays travel together and large ones are reduced from
/// where they are. All ranks of the group call it with the same number of arrays, which have the same numbers of elements
/// and dtypes in the same order. Arrays of several dtypes are one call for each dtype.
///
/// Parameters
/// ----------
/// arrays : list of numpy.ndarray or array_like
///     This rank's contributions, as for ``allreduce``. It may be empty, and so may arrays.
/// reduction : {"sum", "max", "min", "prod"}
///     How the ranks' elements are combined.
/// out : list of numpy.ndarray, optional
///     Where the results go: an array for each of ``arrays``, as for ``allreduce``; it may be ``arrays`` itself (in place).
///     No two of them may overlap. After an error their content is undefined.
/// group, name, timeout
///     As for ``allreduce``. The timeout is for each dtype.
///
/// Returns
/// -------
/// list of numpy.ndarray
///     The arrays of ``out``, or new ones in C order.
///
/// Raises
/// ------
/// FoldcastError
///     As for ``allreduce``; ``MismatchError`` if the ranks' lists differ.
#[pyfunction]
#[pyo3(
    signature = (arrays, reduction=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(arrays, reduction=\"sum\", *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn allreduce_fused<'py>(
    py: Python<'py>,
    arrays: &Bound<'py, PyAny>,
    reduction: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let site = Site::new(py, "allreduce", group, name, timeout)?;
    run(py, &site, &Operands { arrays, reduction, out })
}

/// Begin an allreduce of a list of arrays and return at once.
///
/// The arguments are those of ``allreduce_fused``; the rest is as for ``allreduce_async``.
///
/// Returns
/// -------
/// Handle
///     Its ``wait()`` returns the list of results.
///
/// Raises
/// ------
/// InvalidArgumentError, NotInGroupError, ClosedError, GroupAbortedError
///     The call was refused. What goes wrong later is raised by ``wait()``.
#[pyfunction]
#[pyo3(
    signature = (arrays, reduction=None, *, out=None, group=None, name=None, timeout=None),
    text_signature = "(arrays, reduction=\"sum\", *, out=None, group=None, name=None, timeout=None)"
)]
pub(crate) fn allreduce_fused_async<'py>(
    py: Python<'py>,
    arrays: &Bound<'py, PyAny>,
    reduction: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Handle> {
    let site = Site::new(py, "allreduce", group, name, timeout)?;
    submit(py, &site, &Operands { arrays, reduction, out })
}
