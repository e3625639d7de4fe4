//! The op `HcomAllGather`. Where the output's size depends on what the other ranks contribute, the engine asks for the
//! output when it knows: TensorFlow's thread does not wait for that.

use core::ffi::c_void;

use table::AllGather;

use crate::attributes::{Attributes, Kind};
use crate::call::{Job, Operation, Submission};
use crate::context::Context;
use crate::status::{Failure, Status, StatusCode};
use crate::tensor::Tensor;

pub(crate) struct Gather {
    contribution: Contribution,
    /// None until the engine has asked for it.
    output: Option<Tensor>,
    /// Why there is no output.
    failure: Option<Failure>,
}

struct Contribution {
    input: Tensor,
    /// At least one.
    dimensions: Vec<i64>,
    rows: u64,
    /// Elements of a row.
    row: u64,
    /// Bytes of a row.
    row_bytes: u64,
}

impl Contribution {
    fn of(input: Tensor, dtype: u32) -> Result<Contribution, Failure> {
        let dimensions = input.dimensions();
        let [rows, inner @ ..] = &dimensions[..] else {
            let message =
                "tensor: expected at least one dimension, got a scalar: tf.expand_dims(tensor, 0) gives it one";
            return Err(Failure::invalid(message.into()));
        };
        let too_large = || Failure::invalid(format!("tensor: expected fewer elements, got shape {dimensions:?}"));
        let rows = u64::try_from(*rows).map_err(|_| too_large())?;
        let mut extents = inner.iter().map(|extent| u64::try_from(*extent).ok());
        let row = extents.try_fold(1_u64, |elements, extent| elements.checked_mul(extent?)).ok_or_else(too_large)?;
        let row_bytes = row.checked_mul(element_bytes(dtype)).ok_or_else(too_large)?;
        Ok(Contribution { input, rows, row, row_bytes, dimensions })
    }
}

/// The size of an element, by the table's code of its type.
fn element_bytes(dtype: u32) -> u64 {
    match dtype {
        1 | 5 => 1,
        2 | 6 | 9 | 10 => 2,
        3 | 7 | 11 => 4,
        _ => 8,
    }
}

impl Operation for Gather {
    const KIND: Kind = Kind::AllGather;

    fn prepare(context: &Context, attributes: &Attributes) -> Result<Gather, Failure> {
        let input = context.input(0, &Status::new())?;
        Ok(Gather { contribution: Contribution::of(input, attributes.dtype)?, output: None, failure: None })
    }

    /// The input, its rows, and the elements of a row.
    type Memory = (*const u8, u64, u64);

    fn memory(&self) -> Self::Memory {
        let Contribution { input, rows, row, .. } = &self.contribution;
        (input.data().cast_const().cast(), *rows, *row)
    }

    unsafe fn submit((input, rows, row): Self::Memory, to: &Submission<'_>) {
        let call = AllGather {
            common: to.common(),
            dtype: to.attributes.dtype,
            unequal: u32::from(to.attributes.unequal),
            ranks: to.attributes.ranks,
            rows,
            row,
            input,
            place,
        };
        // SAFETY: group and tag live until this function returns; the input, as the caller promises, until the call has
        // ended, and it has as many bytes as its dimensions say.
        unsafe { (to.table.moves.all_gather)(&call) };
    }

    fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

/// Makes the output, for so many rows of each rank.
///
/// # Safety
/// Only for the engine: `user` is that of a call that has not ended; `rows` are `ranks` readable numbers; `output` is a
/// place to write to.
unsafe extern "C" fn place(user: *mut c_void, rows: *const u64, ranks: usize, output: *mut *mut u8) -> bool {
    // SAFETY: the call's owner made the pointer from a box that is taken back when the call has ended, which the engine calls later; until then
    // nobody else uses the job.
    let job = unsafe { &mut *user.cast::<Job<Gather>>() };
    // SAFETY: as the caller promises.
    let rows = unsafe { core::slice::from_raw_parts(rows, ranks) };
    match make_output(&job.context, &job.operation.contribution, rows) {
        Ok(made) => {
            // SAFETY: as the caller promises.
            unsafe { output.write(made.data().cast()) };
            job.operation.output = Some(made);
            true
        }
        Err(failure) => {
            job.operation.failure = Some(failure);
            false
        }
    }
}

fn make_output(context: &Context, contribution: &Contribution, rows: &[u64]) -> Result<Tensor, Failure> {
    let all = rows.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
    let bytes = all.and_then(|all| all.checked_mul(contribution.row_bytes));
    let (Some(first), Some(bytes)) =
        (all.and_then(|all| i64::try_from(all).ok()), bytes.and_then(|bytes| usize::try_from(bytes).ok()))
    else {
        let message = format!("cannot allocate the output: {rows:?} rows of {} bytes", contribution.row_bytes);
        return Err(Failure { code: StatusCode::ResourceExhausted, message });
    };
    let mut dimensions = contribution.dimensions.clone();
    dimensions[0] = first;
    context.new_output(0, &dimensions, bytes, &Status::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_engine() {
        for dtype in types::DataType::ALL {
            let size = u64::try_from(dtype.size()).expect("small");
            assert_eq!(element_bytes(u32::from(dtype.code())), size, "{dtype}");
        }
    }
}
