//! The kernel of a broadcast: a list of tensors goes to the engine as one call, whatever their types. The engine packs the
//! small ones.

use core::ffi::c_void;
use std::sync::Arc;

use table::{Broadcast, Buffer, Moves};

use crate::api::{RawConstruction, RawContext, RawDone};
use crate::attributes::{Attributes, Kind, data_type_code};
use crate::context::Context;
use crate::counters::{self, add_one};
use crate::done::{Done, Signal};
use crate::moves;
use crate::status::{Failure, Status};
use crate::tensor::Tensor;
use crate::unnamed::Turn;

/// One call, from its start until the engine hands it back.
struct Job {
    context: Context,
    tensors: Vec<Member>,
    /// Held until the end of the call; none if the call needs none.
    turn: Option<Turn>,
    attributes: Arc<Attributes>,
    done: Done,
}

/// One tensor of the list.
struct Member {
    /// None if the output is the input's memory.
    input: Option<Tensor>,
    output: Tensor,
    /// The table's code of the data type.
    dtype: u32,
}

impl Member {
    fn buffer(&self) -> Buffer {
        let output = self.output.data().cast::<u8>();
        let input = self.input.as_ref().map_or(output.cast_const(), |input| input.data().cast_const().cast());
        let bytes = u64::try_from(self.output.bytes()).expect("a size fits 64 bits");
        Buffer { dtype: self.dtype, input, output, bytes }
    }
}

/// Makes the kernel object, or tells TensorFlow why not and returns null.
///
/// # Safety
/// Only for TensorFlow: `construction` is alive during the call.
pub(crate) unsafe extern "C" fn create(construction: *mut RawConstruction) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { moves::create(construction, Kind::Broadcast) }
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
        Ok((table, tensors, turn)) => {
            let job = Job { context, tensors, turn, attributes: Arc::clone(&attributes), done };
            submit(table, job, &attributes);
        }
        Err(failure) => {
            context.fail(&failure.at(&attributes));
            drop(done);
        }
    }
}

type Ready = (&'static Moves, Vec<Member>, Option<Turn>);

/// What the call needs before it can be submitted.
fn prepare(context: &Context, attributes: &Arc<Attributes>) -> Result<Ready, Failure> {
    let (table, turn) = moves::enter(attributes)?;
    let status = Status::new();
    let tensors = (0..context.inputs()).map(|index| member(context, index, &status)).collect::<Result<_, _>>()?;
    Ok((table, tensors, turn))
}

fn member(context: &Context, index: usize, status: &Status) -> Result<Member, Failure> {
    let number = context.output_type(index);
    let dtype = data_type_code(number).ok_or_else(|| {
        Failure::invalid(format!("tensor {index}: TensorFlow's data type number {number} is not supported"))
    })?;
    let input = context.input(index, status)?;
    let (dimensions, bytes) = (input.dimensions(), input.bytes());
    drop(input); // TensorFlow gives the input's memory to the output only if nobody else holds it.
    let (output, forwarded) = context.output(index, &dimensions, bytes, status)?;
    if forwarded {
        add_one(&counters::OUTPUTS_FORWARDED);
    }
    let input = if forwarded { None } else { Some(context.input(index, status)?) };
    Ok(Member { input, output, dtype })
}

fn submit(table: &Moves, job: Job, attributes: &Attributes) {
    let (frame, iteration) = job.context.frame_and_iteration();
    let tag = attributes.tag.at(frame, iteration);
    let buffers: Vec<Buffer> = job.tensors.iter().map(Member::buffer).collect();
    let user = Box::into_raw(Box::new(job)).cast();
    let call = Broadcast {
        common: moves::common(attributes, &tag, user, finished),
        root: attributes.root,
        buffers: buffers.as_ptr(),
        count: buffers.len(),
    };
    add_one(&counters::CALLS_SUBMITTED);
    // SAFETY: group, tag and list live until this function returns. The job owns all tensors, so inputs and outputs stay
    // valid and untouched until `finished` takes it back; each pair is the same memory, if TensorFlow forwarded it, or
    // belongs to two live tensors, which do not overlap, and has the same size, the shapes being equal. The job is not used
    // here any more.
    unsafe { (table.broadcast)(&call) };
}

/// The engine has ended a call.
///
/// # Safety
/// Only for the engine: `user` is a call's, once, and `message` points to `message_len` readable bytes.
unsafe extern "C" fn finished(user: *mut c_void, code: u32, message: *const u8, message_len: usize) {
    // SAFETY: `submit` made the pointer from a box, and the engine ends a call once.
    let Job { context, tensors, turn, attributes, done } = *unsafe { Box::from_raw(user.cast::<Job>()) };
    add_one(&counters::CALLS_FINISHED);
    // SAFETY: the engine promises readable bytes for the time of this call.
    if let Some(failure) = unsafe { Failure::of_call(code, message, message_len) } {
        context.fail(&failure.at(&attributes));
    }
    // Before TensorFlow goes on: the next call may start then, and memory can be reused only if no reference is left.
    drop((tensors, turn, attributes));
    drop(done);
}
