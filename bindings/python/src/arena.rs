//! Arrays in memory that the other ranks can read where it is.

use foldcast::{DataType, Error, Result};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

use crate::array::{data_type, empty as private};
use crate::call::written;
use crate::{pool, raise, state};

/// The base of an array in such memory.
#[pyclass(frozen, module = "foldcast", name = "_Readable")]
struct Readable {
    _memory: foldcast::Memory,
}

/// An extent, or a sequence of them.
fn parse_shape(argument: &Bound<'_, PyAny>) -> Result<Vec<usize>> {
    let extents = argument.extract::<usize>().map(|extent| vec![extent]).or_else(|_| argument.extract::<Vec<usize>>());
    extents
        .map_err(|_| Error::invalid("shape", "a number of elements from 0, or a sequence of them", written(argument)))
}

fn parse_dtype<'py>(py: Python<'py>, argument: Option<&Bound<'py, PyAny>>) -> Result<Bound<'py, PyArrayDescr>> {
    let Some(argument) = argument else { return Ok(numpy::dtype::<f64>(py)) };
    let refused = || {
        let expected = format!("one of {}, in native byte order", DataType::ALL.map(DataType::name).join(", "));
        Error::invalid("dtype", expected, written(argument))
    };
    let descr = PyArrayDescr::new(py, argument).map_err(|_| refused())?;
    let is_ours = data_type(&descr).is_some() && descr.is_native_byteorder() != Some(false);
    if is_ours { Ok(descr) } else { Err(refused()) }
}

/// Bytes of an array, which must fit the address space.
fn bytes_of(shape: &Bound<'_, PyAny>, extents: &[usize], element: usize) -> Result<usize> {
    let bytes = extents.iter().try_fold(element, |product, extent| product.checked_mul(*extent));
    bytes
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::invalid("shape", format!("less than {} bytes in all", isize::MAX), written(shape)))
}

/// Make an array that the other ranks can read where it is.
///
/// An allreduce of 512 KiB or more is faster if the arrays and the ``out`` of all ranks were made by this function: nothing is
/// copied into buffers in between. In all else they are arrays like any other, in C order, beginning on a page. (The first
/// calls go the usual way, until all ranks see each other's memory.) Meant for arrays that are used many times: to make one
/// costs more than the allreduce saves. Views of such an array are as good as the array, copies are not.
///
/// Parameters
/// ----------
/// shape : int or sequence of int
///     The shape.
/// dtype : dtype_like, optional
///     One of those that ``allreduce`` takes; float64 by default.
///
/// Returns
/// -------
/// numpy.ndarray
///     Its elements may be anything. Its memory goes back to the system when it and its views have gone. In a world of one it is
///     an array of numpy's own. A forked child does not have the memory: it must not touch the array.
///
/// Raises
/// ------
/// ResourceError
///     So much memory cannot be had. ``FOLDCAST_ARENA_BYTES`` bounds all such arrays of a process together.
/// InvalidArgumentError
///     The shape or the dtype is wrong.
#[pyfunction]
#[pyo3(signature = (shape, dtype=None), text_signature = "(shape, dtype=\"float64\")")]
pub(crate) fn empty<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let parsed = parse_dtype(py, dtype).and_then(|descr| {
        let extents = parse_shape(shape)?;
        let bytes = bytes_of(shape, &extents, descr.itemsize())?;
        Ok((descr, extents, bytes))
    });
    let (descr, extents, bytes) = parsed.map_err(|error| raise::exception(py, &error))?;
    let state = state::ensure(py)?;
    let made = py.allow_threads(|| state.communicator.empty(bytes));
    let mut memory = made.map_err(|error| raise::exception(py, &error))?;
    if !memory.is_readable() {
        return Ok(private(py, &descr, &extents)?.into_any());
    }
    let start = memory.as_mut_ptr();
    let base = Bound::new(py, Readable { _memory: memory })?;
    // SAFETY: the memory has as many bytes as an array of these extents has, nobody else uses it, and the base keeps it.
    unsafe { pool::array_over(py, &descr, &extents, start, base.into_any()) }
}
