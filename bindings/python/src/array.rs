//! From what a caller gave to the buffers of a call, or to the reason why it is refused.

mod gathered;

pub(crate) use gathered::Input;

use std::sync::atomic::{AtomicI32, Ordering};

use foldcast::{Buffers, DataType, Error, MAX_INPUT, Result};
use numpy::npyffi::{self, PY_ARRAY_API};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::GILOnceCell;
use pyo3::types::PyTuple;

use crate::call::written;
use crate::pool;

/// numpy gives type numbers from here on to the types of other packages, such as bfloat16.
const FIRST_USER_TYPE: i32 = 256;

/// The number of the last type that was found to be bfloat16; 0 before.
static BFLOAT16: AtomicI32 = AtomicI32::new(0);

static CONVERT: GILOnceCell<Py<PyModule>> = GILOnceCell::new();

/// The checked arrays of one call whose output is like its input.
pub(crate) struct Prepared<'py> {
    /// C-contiguous; the same object as `output`, or memory that does not overlap with it, or its very memory.
    input: Bound<'py, PyUntypedArray>,
    /// C-contiguous, writeable, of the input's shape and dtype.
    output: Bound<'py, PyUntypedArray>,
    dtype: DataType,
    bytes: usize,
}

/// The memory of one call, without its owners.
pub(crate) struct Exchange {
    input: *const u8,
    output: *mut u8,
    bytes: usize,
    /// Differs from `bytes` in an allgather.
    output_bytes: usize,
    /// Where the input stands in the output, if it does.
    in_place: bool,
}

// SAFETY: the pointers are plain addresses; whoever forms slices of them does so by the unsafe `buffers`, which asks
// for what is needed on whichever thread.
unsafe impl Send for Exchange {}

impl Exchange {
    /// Size of the input, and of the output, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where input and output are.
    pub(crate) fn addresses(&self) -> (usize, usize) {
        (self.input.addr(), self.output.addr())
    }

    /// The buffers.
    ///
    /// # Safety
    /// The arrays that this was made of must be alive, and nobody else may write them, or read the output, while the
    /// buffers are in use.
    pub(crate) unsafe fn buffers(&mut self) -> Buffers<'_> {
        if self.output_bytes == 0 {
            return Buffers::InPlace(&mut []);
        }
        // SAFETY: numpy's data pointer of a live, C-contiguous array of this many bytes; exclusive as the caller
        // promises.
        let output = unsafe { std::slice::from_raw_parts_mut(self.output, self.output_bytes) };
        if self.in_place {
            return Buffers::InPlace(output);
        }
        if self.bytes == 0 {
            return Buffers::Separate { input: &[], output };
        }
        // SAFETY: as above, and `Prepared` refuses an input that overlaps with the output without being it.
        let input = unsafe { std::slice::from_raw_parts(self.input, self.bytes) };
        Buffers::Separate { input, output }
    }
}

impl<'py> Prepared<'py> {
    /// Checks the arguments, and makes the output if there is none. The outer error is Python's own, such as
    /// `MemoryError`.
    pub(crate) fn new(
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Result<Prepared<'py>>> {
        let input = match as_array(py, array)? {
            Ok(input) => input,
            Err(error) => return Ok(Err(error)),
        };
        let (dtype, bytes) = match check_input(&input) {
            Ok(checked) => checked,
            Err(error) => return Ok(Err(error)),
        };
        let output = match out {
            None => empty(py, &input.dtype(), input.shape())?,
            Some(out) => match check_output(py, &input, dtype, bytes, out)? {
                Ok(output) => output,
                Err(error) => return Ok(Err(error)),
            },
        };
        if input.is_c_contiguous() {
            return Ok(Ok(Prepared { input, output, dtype, bytes }));
        }
        copy_into(py, &output, &input)?;
        Ok(Ok(Prepared { input: output.clone(), output, dtype, bytes }))
    }

    pub(crate) fn dtype(&self) -> DataType {
        self.dtype
    }

    pub(crate) fn exchange(&self) -> Exchange {
        let (input, output, bytes) = (data(&self.input).cast_const(), data(&self.output), self.bytes);
        Exchange { input, output, bytes, output_bytes: bytes, in_place: std::ptr::eq(input, output) }
    }

    /// The arrays that the call's memory belongs to.
    pub(crate) fn owners(&self) -> [Bound<'py, PyUntypedArray>; 2] {
        [self.input.clone(), self.output.clone()]
    }

    /// The array that holds the result when the call has ended.
    pub(crate) fn into_result(self) -> Bound<'py, PyAny> {
        self.output.into_any()
    }
}

fn convert(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    Ok(CONVERT.get_or_try_init(py, || py.import("foldcast._convert").map(Bound::unbind))?.bind(py))
}

fn as_array<'py>(py: Python<'py>, array: &Bound<'py, PyAny>) -> PyResult<Result<Bound<'py, PyUntypedArray>>> {
    // SAFETY: the GIL is held and the pointer is that of a live object.
    let plain = unsafe { npyffi::PyArray_CheckExact(py, array.as_ptr()) } != 0;
    if plain {
        return Ok(Ok(array.downcast::<PyUntypedArray>()?.clone()));
    }
    let converted = convert(py)?.call_method1("as_array", (array,))?;
    if let Ok(refused) = converted.downcast::<PyTuple>() {
        let (expected, got): (String, String) = refused.extract()?;
        return Ok(Err(Error::invalid("array", expected, got)));
    }
    Ok(Ok(converted.downcast_into::<PyUntypedArray>()?))
}

/// The data type of an array, if it is one of ours.
pub(crate) fn data_type(descr: &Bound<'_, PyArrayDescr>) -> Option<DataType> {
    let number = descr.num();
    if number >= FIRST_USER_TYPE {
        return is_bfloat16(descr, number).then_some(DataType::Bfloat16);
    }
    match (descr.kind(), descr.itemsize()) {
        (b'i', 1) => Some(DataType::Int8),
        (b'i', 2) => Some(DataType::Int16),
        (b'i', 4) => Some(DataType::Int32),
        (b'i', 8) => Some(DataType::Int64),
        (b'u', 1) => Some(DataType::Uint8),
        (b'u', 2) => Some(DataType::Uint16),
        (b'u', 4) => Some(DataType::Uint32),
        (b'u', 8) => Some(DataType::Uint64),
        (b'f', 2) => Some(DataType::Float16),
        (b'f', 4) => Some(DataType::Float32),
        (b'f', 8) => Some(DataType::Float64),
        _ => None,
    }
}

fn is_bfloat16(descr: &Bound<'_, PyArrayDescr>, number: i32) -> bool {
    if number == BFLOAT16.load(Ordering::Relaxed) {
        return true;
    }
    // By name, so that the package that defines the type need not be imported, and need not be one of ours to know.
    let found = descr.itemsize() == 2 && descr.typeobj().name().is_ok_and(|name| name == "bfloat16");
    if found {
        BFLOAT16.store(number, Ordering::Relaxed);
    }
    found
}

fn check_input(input: &Bound<'_, PyUntypedArray>) -> Result<(DataType, usize)> {
    let descr = input.dtype();
    let dtype = data_type(&descr).ok_or_else(|| {
        let names = DataType::ALL.map(DataType::name).join(", ");
        Error::invalid("dtype", format!("one of {names}"), text(&descr))
    })?;
    if descr.is_native_byteorder() == Some(false) {
        let expected = "the byte order of this machine (array.astype(array.dtype.newbyteorder('=')))";
        return Err(Error::invalid("dtype", expected, text(&descr)));
    }
    // A view may repeat its elements, so the product may be larger than memory.
    let count = input.shape().iter().try_fold(dtype.size(), |product, extent| product.checked_mul(*extent));
    let bytes = if input.is_empty() { 0 } else { count.unwrap_or(usize::MAX) };
    match u64::try_from(bytes) {
        Ok(amount) if amount <= MAX_INPUT.0 => Ok((dtype, bytes)),
        _ => Err(Error::invalid(
            "array",
            format!("at most {MAX_INPUT} ({} bytes)", MAX_INPUT.0),
            format!("{bytes} bytes: {} of shape {}", dtype.name(), shape(input)),
        )),
    }
}

fn check_output<'py>(
    py: Python<'py>,
    input: &Bound<'py, PyUntypedArray>,
    dtype: DataType,
    bytes: usize,
    out: &Bound<'py, PyAny>,
) -> PyResult<Result<Bound<'py, PyUntypedArray>>> {
    let output = match check_result(dtype, out) {
        Ok(output) => output,
        Err(error) => return Ok(Err(error)),
    };
    let refused = |expected: String, got: String| Ok(Err(Error::invalid("out", expected, got)));
    if output.shape() != input.shape() {
        return refused(format!("shape {}, as the input has", shape(input)), shape(output));
    }
    if overlaps(py, input, output, bytes)? {
        let got = "memory that overlaps with the input".into();
        return refused("the input itself, or memory that does not overlap with it".into(), got);
    }
    Ok(Ok(output.clone()))
}

/// What every array that takes a result must be.
fn check_result<'a, 'py>(dtype: DataType, out: &'a Bound<'py, PyAny>) -> Result<&'a Bound<'py, PyUntypedArray>> {
    let refused = |expected: String, got: String| Err(Error::invalid("out", expected, got));
    let Ok(output) = out.downcast::<PyUntypedArray>() else {
        return refused("a numpy.ndarray".into(), written(out));
    };
    let descr = output.dtype();
    if data_type(&descr) != Some(dtype) || descr.is_native_byteorder() == Some(false) {
        return refused(format!("dtype {dtype}, as the input has"), text(&descr));
    }
    if !is_writeable(output) {
        return refused("a writeable array".into(), "a read-only one".into());
    }
    if !output.is_c_contiguous() {
        return refused("a C-contiguous array".into(), format!("strides {:?}", output.strides()));
    }
    Ok(output)
}

/// Whether two arrays share memory without being the same memory.
fn overlaps(
    py: Python<'_>,
    input: &Bound<'_, PyUntypedArray>,
    output: &Bound<'_, PyUntypedArray>,
    bytes: usize,
) -> PyResult<bool> {
    if input.is_c_contiguous() {
        let distance = data(input).addr().abs_diff(data(output).addr());
        return Ok(distance != 0 && distance < bytes);
    }
    convert(py)?.call_method1("overlaps", (input, output))?.extract()
}

fn data(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    // SAFETY: the array is alive, and its struct's first fields are the same in every numpy.
    unsafe { (*array.as_array_ptr()).data }.cast()
}

fn is_writeable(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: as in `data`.
    let flags = unsafe { (*array.as_array_ptr()).flags };
    flags & npyffi::NPY_ARRAY_WRITEABLE != 0
}

/// A new array in C order.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    dtype: &Bound<'py, PyArrayDescr>,
    extents: &[usize],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let bytes = extents.iter().try_fold(dtype.itemsize(), |product, extent| product.checked_mul(*extent));
    if let Some(bytes) = bytes.filter(|bytes| *bytes >= pool::LEAST_BYTES)
        && let Some(made) = pool::array(py, dtype, extents, bytes)?
    {
        return Ok(made.downcast_into::<PyUntypedArray>()?);
    }
    let ndim =
        i32::try_from(extents.len()).map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    let dims = extents.as_ptr().cast_mut().cast();
    let descr = dtype.clone().into_dtype_ptr();
    // SAFETY: `dims` are `ndim` extents that numpy only reads, and the reference to the dtype is ours to give away.
    let made = unsafe { PY_ARRAY_API.PyArray_Empty(py, ndim, dims, descr, 0) };
    // SAFETY: a new reference, or null with Python's error set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    Ok(made.downcast_into::<PyUntypedArray>()?)
}

fn copy_into(py: Python<'_>, to: &Bound<'_, PyUntypedArray>, from: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    // SAFETY: both are live arrays of one shape and dtype.
    let status = unsafe { PY_ARRAY_API.PyArray_CopyInto(py, to.as_array_ptr(), from.as_array_ptr()) };
    if status == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
}

fn text(descr: &Bound<'_, PyArrayDescr>) -> String {
    descr.str().map_or_else(|_| "an unknown dtype".into(), |text| text.to_string())
}

fn shape(array: &Bound<'_, PyUntypedArray>) -> String {
    array.as_any().getattr("shape").map_or_else(|_| format!("{:?}", array.shape()), |shape| shape.to_string())
}
