//! The kernel: one call takes its input, finds memory for its output, goes to the engine, and ends when the engine says
//! so, on whatever thread that happens.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use table::{Call, Table};

use crate::api::{RawConstruction, RawContext, RawDone, api};
use crate::attach;
use crate::attributes::{Attributes, Raw};
use crate::context::Context;
use crate::counters::{self, add_one};
use crate::done::{Done, Signal};
use crate::status::{Failure, Status, StatusCode};
use crate::tag::Base;
use crate::tensor::Tensor;
use crate::unnamed::Turn;
use crate::{registration, turns};

/// The largest input of one call: 8 GiB.
pub(crate) const MAX_INPUT_BYTES: u64 = 8 << 30;

/// One call, from its start until the engine hands it back.
struct Job {
    context: Context,
    parts: Parts,
    attributes: Arc<Attributes>,
    done: Done,
}

/// What a call holds while it runs.
struct Parts {
    /// None if the output is the input's memory.
    input: Option<Tensor>,
    output: Tensor,
    /// Held until the end of the call; none if the call needs none.
    _turn: Option<Turn>,
}

/// Makes the kernel object, or tells TensorFlow why not and returns null.
///
/// # Safety
/// Only for TensorFlow: `construction` is alive during the call.
pub(crate) unsafe extern "C" fn create(construction: *mut RawConstruction) -> *mut c_void {
    // SAFETY: as the caller promises.
    let Some(attributes) = (unsafe { self::attributes(construction) }) else { return ptr::null_mut() };
    add_one(&counters::KERNELS_CREATED);
    if registration::is_synchronous() {
        turns::enter(&attributes.place);
    }
    Arc::into_raw(attributes).cast_mut().cast()
}

/// The checked attributes of the node whose kernel is being made; if there are none, TensorFlow has been told why.
///
/// # Safety
/// `construction` is alive during the call.
pub(crate) unsafe fn attributes(construction: *mut RawConstruction) -> Option<Arc<Attributes>> {
    // SAFETY: as the caller promises.
    let attributes = unsafe { Raw::read(construction) }.and_then(Raw::check);
    if let Err(failure) = &attributes {
        let status = Status::of(failure);
        // SAFETY: construction and status are alive; TensorFlow copies the status.
        unsafe { (api().TF_OpKernelConstruction_Failure)(construction, status.as_ptr()) };
    }
    attributes.ok()
}

/// Ends the kernel object.
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`] and is not used any more.
pub(crate) unsafe extern "C" fn delete(kernel: *mut c_void) {
    if kernel.is_null() {
        return; // Its making failed.
    }
    add_one(&counters::KERNELS_DELETED);
    // SAFETY: `create` made the pointer from an `Arc<Attributes>`, and TensorFlow deletes a kernel once.
    let attributes = unsafe { Arc::from_raw(kernel.cast_const().cast::<Attributes>()) };
    if registration::is_synchronous() {
        turns::leave(&attributes.place);
    }
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

/// Runs one call on this thread, which waits for its end: for a TensorFlow without asynchronous kernels.
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
    let kernel = kernel.cast_const().cast::<Attributes>();
    // The engine may end the call before `submit` returns, and TensorFlow the kernel then: hence a share of our own.
    // SAFETY: `create` made the pointer from an `Arc` that lives until `delete`.
    unsafe { Arc::increment_strong_count(kernel) };
    // SAFETY: the line above counted this share.
    let attributes = unsafe { Arc::from_raw(kernel) };
    // SAFETY: TensorFlow's context is alive until `done` has run, and it is used only before.
    let context = unsafe { Context::new(context) };
    match turn(&attributes).and_then(|()| prepare(&context, &attributes)) {
        Ok((table, parts)) => {
            submit(table, Job { context, parts, attributes: Arc::clone(&attributes), done }, &attributes);
        }
        Err(failure) => {
            context.fail(&failure.at(&attributes));
            drop(done);
        }
    }
}

/// Whether the call may wait. An eager one waits on a thread of the program's.
fn turn(attributes: &Attributes) -> Result<(), Failure> {
    let waits = registration::is_synchronous() && matches!(attributes.tag, Base::Named(_));
    if waits { turns::check(&attributes.place) } else { Ok(()) }
}

/// What the call needs before it can be submitted.
fn prepare(context: &Context, attributes: &Arc<Attributes>) -> Result<(&'static Table, Parts), Failure> {
    let table = attach::table().ok_or_else(unattached)?;
    let _turn = (attributes.tag == Base::Unnamed).then(|| Turn::enter(attributes)).transpose()?;
    let status = Status::new();
    let input = context.input(0, &status)?;
    let bytes = input.bytes();
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_INPUT_BYTES) {
        let limit = MAX_INPUT_BYTES >> 30;
        return Err(Failure::invalid(format!(
            "allreduce on group '{}': tensor: expected at most {limit} GiB, got {bytes} bytes",
            attributes.group
        )));
    }
    let dimensions = input.dimensions();
    drop(input); // TensorFlow gives the input's memory to the output only if nobody else holds it.
    let (output, forwarded) = context.output(0, &dimensions, bytes, &status)?;
    if forwarded {
        add_one(&counters::OUTPUTS_FORWARDED);
        return Ok((table, Parts { input: None, output, _turn }));
    }
    Ok((table, Parts { input: Some(context.input(0, &status)?), output, _turn }))
}

pub(crate) fn unattached() -> Failure {
    let message = "no engine is attached to the op library in this process: run `import foldcast.tensorflow` (or \
                   `from npu_bridge.hccl import hccl_ops`) before the graph runs";
    Failure { code: StatusCode::FailedPrecondition, message: message.into() }
}

fn submit(table: &Table, job: Job, attributes: &Attributes) {
    let (frame, iteration) = job.context.frame_and_iteration();
    let tag = attributes.tag.at(frame, iteration);
    let output = job.parts.output.data().cast::<u8>();
    let input = job.parts.input.as_ref().map_or(output.cast_const(), |input| input.data().cast_const().cast());
    let bytes = u64::try_from(job.parts.output.bytes()).expect("a size fits 64 bits");
    let call = Call {
        dtype: attributes.dtype,
        reduction: attributes.reduction,
        group: attributes.group.as_ptr(),
        group_len: attributes.group.len(),
        tag: tag.as_ptr(),
        tag_len: tag.len(),
        input,
        output,
        bytes,
        user: Box::into_raw(Box::new(job)).cast(),
        done: finished,
    };
    add_one(&counters::CALLS_SUBMITTED);
    // SAFETY: group and tag live until this function returns. The job owns both tensors, so input and output stay
    // valid and untouched until `finished` takes it back; they are the same memory, if TensorFlow forwarded it, or
    // belong to two live tensors, which do not overlap, and have the same size, the shapes being equal. The job is
    // not used here any more.
    unsafe { (table.submit)(&call) };
}

/// The engine has ended a call.
///
/// # Safety
/// Only for the engine: `user` is a call's, once, and `message` points to `message_len` readable bytes.
unsafe extern "C" fn finished(user: *mut c_void, code: u32, message: *const u8, message_len: usize) {
    // SAFETY: `submit` made the pointer from a box, and the engine ends a call once.
    let job = *unsafe { Box::from_raw(user.cast::<Job>()) };
    add_one(&counters::CALLS_FINISHED);
    // SAFETY: the engine promises readable bytes for the time of this call.
    if let Some(failure) = unsafe { Failure::of_call(code, message, message_len) } {
        job.context.fail(&failure.at(&job.attributes));
    }
    let Job { context: _, parts, attributes, done } = job;
    // Before TensorFlow goes on: the next call may start then, and memory can be reused only if no reference is left.
    drop((parts, attributes));
    drop(done);
}

impl Failure {
    /// What the engine says about a call that has failed; `None` if it has not.
    ///
    /// # Safety
    /// `message` is null or points to `message_len` readable bytes.
    pub(crate) unsafe fn of_call(code: u32, message: *const u8, message_len: usize) -> Option<Failure> {
        let code = StatusCode::of_call(code)?;
        if message.is_null() {
            return Some(Failure { code, message: String::new() });
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { core::slice::from_raw_parts(message, message_len) };
        Some(Failure { code, message: String::from_utf8_lossy(bytes).into_owned() })
    }

    /// The failure with the name of its node.
    pub(crate) fn at(self, attributes: &Attributes) -> Failure {
        let Failure { code, message } = self;
        Failure { code, message: format!("{message} [HcomAllReduce node '{}']", attributes.node) }
    }
}
