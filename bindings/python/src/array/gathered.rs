//! The arrays of an allgather, whose result is longer than its input.

use foldcast::{DataType, Error, MAX_INPUT, Result};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Exchange, as_array, check_input, check_result, convert, copy_into, data, empty, shape};

/// The checked contribution of this rank.
pub(crate) struct Input<'py> {
    /// What the caller gave.
    given: Bound<'py, PyUntypedArray>,
    /// The same, or a C-contiguous copy of it.
    array: Bound<'py, PyUntypedArray>,
    dtype: DataType,
    bytes: usize,
}

/// The checked arrays of one allgather.
pub(crate) struct Gathered<'py> {
    input: Bound<'py, PyUntypedArray>,
    output: Bound<'py, PyUntypedArray>,
    exchange: Exchange,
}

impl<'py> Input<'py> {
    /// Checks the array. The outer error is Python's own.
    pub(crate) fn new(py: Python<'py>, array: &Bound<'py, PyAny>) -> PyResult<Result<Input<'py>>> {
        let given = match as_array(py, array)? {
            Ok(given) => given,
            Err(error) => return Ok(Err(error)),
        };
        let (dtype, bytes) = match check_input(&given) {
            Ok(checked) => checked,
            Err(error) => return Ok(Err(error)),
        };
        if given.ndim() == 0 {
            let expected = "an array of at least one dimension (numpy.atleast_1d makes one of a number)";
            return Ok(Err(Error::invalid("array", expected, format!("a number of dtype {dtype}"))));
        }
        if given.is_c_contiguous() {
            return Ok(Ok(Input { array: given.clone(), given, dtype, bytes }));
        }
        let array = empty(py, &given.dtype(), given.shape())?;
        copy_into(py, &array, &given)?;
        Ok(Ok(Input { given, array, dtype, bytes }))
    }

    pub(crate) fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Length of the first dimension.
    pub(crate) fn rows(&self) -> usize {
        self.array.shape()[0]
    }

    /// Elements of one row.
    pub(crate) fn row(&self) -> usize {
        self.array.shape()[1..].iter().fold(1, |elements, extent| elements.saturating_mul(*extent))
    }

    /// With room for so many rows of all ranks together, of which this rank's begin at `first`: in `out`, if there is one.
    pub(crate) fn gathered(
        self,
        py: Python<'py>,
        rows: usize,
        first: usize,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Result<Gathered<'py>>> {
        let row_bytes = self.row().saturating_mul(self.dtype.size());
        let all = rows.saturating_mul(row_bytes);
        if u64::try_from(all).is_ok_and(|all| all > MAX_INPUT.0) {
            let expected = format!("at most {MAX_INPUT} of all ranks together ({} bytes)", MAX_INPUT.0);
            return Ok(Err(Error::invalid("array", expected, format!("{rows} rows of {row_bytes} bytes"))));
        }
        let mut extents = self.array.shape().to_vec();
        extents[0] = rows;
        let (output, in_place) = match out {
            None => (empty(py, &self.array.dtype(), &extents)?, false),
            Some(out) => match self.check_out(py, out, &extents, first.saturating_mul(row_bytes))? {
                Ok(checked) => checked,
                Err(error) => return Ok(Err(error)),
            },
        };
        let own = data(&self.array).cast_const();
        let exchange = Exchange { input: own, output: data(&output), bytes: self.bytes, output_bytes: all, in_place };
        Ok(Ok(Gathered { input: self.array, output, exchange }))
    }

    /// The array for the result, and whether the input is its part from the byte `first` on.
    fn check_out(
        &self,
        py: Python<'py>,
        out: &Bound<'py, PyAny>,
        extents: &[usize],
        first: usize,
    ) -> PyResult<Result<(Bound<'py, PyUntypedArray>, bool)>> {
        let output = match check_result(self.dtype, out) {
            Ok(output) => output,
            Err(error) => return Ok(Err(error)),
        };
        if output.shape() != extents {
            let expected = format!("shape {}, that of all contributions together", PyTuple::new(py, extents)?);
            return Ok(Err(Error::invalid("out", expected, shape(output))));
        }
        let in_place = self.given.is_c_contiguous() && data(&self.given) == data(output).wrapping_add(first);
        if !in_place && convert(py)?.call_method1("overlaps", (&self.given, output))?.extract()? {
            let expected = "memory that does not overlap with the input, or has it as this rank's part";
            return Ok(Err(Error::invalid("out", expected, "memory that overlaps with the input")));
        }
        Ok(Ok((output.clone(), in_place)))
    }
}

impl<'py> Gathered<'py> {
    /// The call's memory, the arrays that it belongs to, and the one that holds the result when the call has ended.
    pub(crate) fn into_parts(self) -> (Exchange, [Bound<'py, PyUntypedArray>; 2], Bound<'py, PyAny>) {
        let result = self.output.clone().into_any();
        (self.exchange, [self.input, self.output], result)
    }
}
