//! The kernel of an allgather. Where the output's size depends on what the other ranks contribute, the engine asks for the
//! output when it knows: TensorFlow's thread does not wait for that.

use core::ffi::c_void;
use std::sync::Arc;

use table::{AllGather, Moves};

use crate::api::{RawConstruction, RawContext, RawDone};
use crate::attributes::{Attributes, Kind};
use crate::context::Context;
use crate::counters::{self, add_one};
use crate::done::{Done, Signal};
use crate::moves;
use crate::status::{Failure, Status, StatusCode};
use crate::tensor::Tensor;
use crate::unnamed::Turn;

/// One call, from its start until the engine hands it back.
struct Job {
    context: Context,
    contribution: Contribution,
    /// None until the engine has asked for it.
    output: Option<Tensor>,
    /// Why there is no output.
    failure: Option<Failure>,
    /// Held until the end of the call; none if the call needs none.
    turn: Option<Turn>,
    attributes: Arc<Attributes>,
    done: Done,
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

/// Makes the kernel object, or tells TensorFlow why not and returns null.
///
/// # Safety
/// Only for TensorFlow: `construction` is alive during the call.
pub(crate) unsafe extern "C" fn create(construction: *mut RawConstruction) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { moves::create(construction, Kind::AllGather) }
}

/// Starts one call. Never blocks.
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`]; `context` is alive until `done` has run.
pub(crate) unsafe extern "C" fn compute(kernel: *mut c_void, context: *mut RawContext, done: *mut RawDone) {
    // SAFETY: TensorFlow handed this callback to this very call.
    let done = unsafe { Done::take(done) };
    // SAFETY: as the caller promises.
    unsafe { start(kernel, context, done) };
}

/// Runs one call on this thread, which waits for its end.
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`]; `context` is alive.
pub(crate) unsafe extern "C" fn compute_sync(kernel: *mut c_void, context: *mut RawContext) {
    let signal = Arc::new(Signal::default());
    // SAFETY: as the caller promises; the call has ended before this returns.
    unsafe { start(kernel, context, Done::signal(&signal)) };
    signal.wait();
}

/// # Safety
/// As [`compute`] says.
unsafe fn start(kernel: *mut c_void, context: *mut RawContext, done: Done) {
    // SAFETY: `create` made the kernel, and TensorFlow deletes it when its calls have ended.
    let attributes = unsafe { moves::share(kernel) };
    // SAFETY: TensorFlow's context is alive until `done` has run, and it is used only before.
    let context = unsafe { Context::new(context) };
    match prepare(&context, &attributes) {
        Ok((table, contribution, turn)) => {
            let shared = Arc::clone(&attributes);
            let job = Job { context, contribution, output: None, failure: None, turn, attributes: shared, done };
            submit(table, job, &attributes);
        }
        Err(failure) => {
            context.fail(&failure.at(&attributes));
            drop(done);
        }
    }
}

type Ready = (&'static Moves, Contribution, Option<Turn>);

/// What the call needs before it can be submitted.
fn prepare(context: &Context, attributes: &Arc<Attributes>) -> Result<Ready, Failure> {
    let (table, turn) = moves::enter(attributes)?;
    let input = context.input(0, &Status::new())?;
    Ok((table, Contribution::of(input, attributes.dtype)?, turn))
}

fn submit(table: &Moves, job: Job, attributes: &Attributes) {
    let (frame, iteration) = job.context.frame_and_iteration();
    let tag = attributes.tag.at(frame, iteration);
    let Contribution { rows, row, .. } = job.contribution;
    let input = job.contribution.input.data().cast_const().cast();
    let user = Box::into_raw(Box::new(job)).cast();
    let call = AllGather {
        common: moves::common(attributes, &tag, user, finished),
        dtype: attributes.dtype,
        unequal: u32::from(attributes.unequal),
        ranks: attributes.ranks,
        rows,
        row,
        input,
        place,
    };
    add_one(&counters::CALLS_SUBMITTED);
    // SAFETY: group and tag live until this function returns. The job owns the input, which stays valid and untouched
    // until `finished` takes it back, and has as many bytes as its dimensions say. The job is not used here any more.
    unsafe { (table.all_gather)(&call) };
}

/// Makes the output, for so many rows of each rank.
///
/// # Safety
/// Only for the engine: `user` is that of a call that has not ended; `rows` are `ranks` readable numbers; `output` is a
/// place to write to.
unsafe extern "C" fn place(user: *mut c_void, rows: *const u64, ranks: usize, output: *mut *mut u8) -> bool {
    // SAFETY: `submit` made the pointer from a box that `finished` takes back, which the engine calls later; until then
    // nobody else uses the job.
    let job = unsafe { &mut *user.cast::<Job>() };
    // SAFETY: as the caller promises.
    let rows = unsafe { core::slice::from_raw_parts(rows, ranks) };
    match make_output(job, rows) {
        Ok(made) => {
            // SAFETY: as the caller promises.
            unsafe { output.write(made.data().cast()) };
            job.output = Some(made);
            true
        }
        Err(failure) => {
            job.failure = Some(failure);
            false
        }
    }
}

fn make_output(job: &Job, rows: &[u64]) -> Result<Tensor, Failure> {
    let contribution = &job.contribution;
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
    job.context.new_output(0, &dimensions, bytes, &Status::new())
}

/// The engine has ended a call.
///
/// # Safety
/// Only for the engine: `user` is a call's, once, and `message` points to `message_len` readable bytes.
unsafe extern "C" fn finished(user: *mut c_void, code: u32, message: *const u8, message_len: usize) {
    // SAFETY: `submit` made the pointer from a box, and the engine ends a call once.
    let job = *unsafe { Box::from_raw(user.cast::<Job>()) };
    let Job { context, contribution, output, failure, turn, attributes, done } = job;
    add_one(&counters::CALLS_FINISHED);
    // SAFETY: the engine promises readable bytes for the time of this call.
    if let Some(ended) = unsafe { Failure::of_call(code, message, message_len) } {
        context.fail(&failure.unwrap_or(ended).at(&attributes));
    }
    // Before TensorFlow goes on: the next call may start then, and memory can be reused only if no reference is left.
    drop((contribution, output, turn, attributes));
    drop(done);
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
