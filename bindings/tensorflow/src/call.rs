//! One call of an op, from TensorFlow's compute function until the engine says that it has ended: what the ops have in
//! common. What they take and hand over is their own ([`Operation`]).

use core::ffi::c_void;
use core::ptr;
use std::borrow::Cow;
use std::sync::Arc;

use table::{Common, Table};

use crate::api::{RawConstruction, RawContext, RawDone, api};
use crate::attach;
use crate::attributes::{Attributes, Kind, Raw};
use crate::context::Context;
use crate::counters::{self, add_one};
use crate::cxx::Functions;
use crate::done::{Done, Signal};
use crate::status::{Failure, Status, StatusCode};
use crate::tag::Base;
use crate::tensor::Tensor;
use crate::unnamed::Turn;
use crate::{registration, turns};

/// The largest input of one call: 8 GiB.
pub(crate) const MAX_INPUT_BYTES: u64 = 8 << 30;

/// How a call tells that it has ended: see [`table::Common::done`].
pub(crate) type Finished = unsafe extern "C" fn(*mut c_void, u32, *const u8, usize);

/// What an op holds while a call of it runs.
pub(crate) trait Operation: Sized + 'static {
    /// What the op does.
    const KIND: Kind;

    /// Takes the inputs and finds memory for the outputs.
    fn prepare(context: &Context, attributes: &Attributes) -> Result<Self, Failure>;

    /// Where its tensors are.
    type Memory;

    /// See [`Memory`](Self::Memory).
    fn memory(&self) -> Self::Memory;

    /// Hands the call to the engine, which ends it by `finished(user, ...)`, perhaps before this returns.
    ///
    /// # Safety
    /// The operation that this is the memory of lives, untouched, until `finished` is called.
    unsafe fn submit(memory: Self::Memory, to: &Submission<'_>);

    /// Why it failed, if it knows better than the engine.
    fn failure(&mut self) -> Option<Failure> {
        None
    }

    /// What else a message should say about a call that failed.
    fn advice(_code: StatusCode) -> &'static str {
        ""
    }
}

/// Where a call goes, and how it comes back.
pub(crate) struct Submission<'a> {
    pub(crate) table: &'a Table,
    pub(crate) attributes: &'a Attributes,
    pub(crate) tag: &'a str,
    pub(crate) user: *mut c_void,
    pub(crate) finished: Finished,
}

impl Submission<'_> {
    /// The part that all calls have; valid while group and tag are.
    pub(crate) fn common(&self) -> Common {
        Common {
            group: self.attributes.group.as_ptr(),
            group_len: self.attributes.group.len(),
            tag: self.tag.as_ptr(),
            tag_len: self.tag.len(),
            user: self.user,
            done: self.finished,
        }
    }
}

/// An input and the output in its place.
pub(crate) struct Pair {
    /// None if the output is the input's memory.
    input: Option<Tensor>,
    output: Tensor,
}

impl Pair {
    /// The input of this index, and memory for the output of that index.
    pub(crate) fn new(
        context: &Context,
        attributes: &Attributes,
        index: usize,
        status: &Status,
    ) -> Result<Pair, Failure> {
        let input = context.input(index, status)?;
        let bytes = input.bytes();
        if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_INPUT_BYTES) {
            let limit = MAX_INPUT_BYTES >> 30;
            return Err(Failure::invalid(format!(
                "{} on group '{}': tensor: expected at most {limit} GiB, got {bytes} bytes",
                attributes.kind.verb(),
                attributes.group
            )));
        }
        let dimensions = input.dimensions();
        drop(input); // TensorFlow gives the input's memory to the output only if nobody else holds it.
        let (output, forwarded) = context.output(index, &dimensions, bytes, status)?;
        if forwarded {
            add_one(&counters::OUTPUTS_FORWARDED);
            return Ok(Pair { input: None, output });
        }
        Ok(Pair { input: Some(context.input(index, status)?), output })
    }

    /// Where the input is, where the result goes, and how many bytes each has. The two are the same memory, if TensorFlow
    /// forwarded it, or belong to two live tensors, which do not overlap, and have the same size, the shapes being equal.
    pub(crate) fn memory(&self) -> (*const u8, *mut u8, u64) {
        let output = self.output.data().cast::<u8>();
        let input = self.input.as_ref().map_or(output.cast_const(), |input| input.data().cast_const().cast());
        (input, output, u64::try_from(self.output.bytes()).expect("a size fits 64 bits"))
    }
}

/// One call, from its start until the engine hands it back.
pub(crate) struct Job<O> {
    pub(crate) context: Context,
    pub(crate) operation: O,
    attributes: Arc<Attributes>,
    done: Done,
    /// Held until the end of the call; none if the call needs none.
    _turn: Option<Turn>,
}

/// The functions that TensorFlow calls for an op.
pub(crate) const fn functions<O: Operation>() -> Functions {
    Functions { create: create::<O>, compute: compute::<O>, delete }
}

/// Makes the kernel object, or tells TensorFlow why not and returns null.
///
/// # Safety
/// Only for TensorFlow: `construction` is alive during the call.
unsafe extern "C" fn create<O: Operation>(construction: *mut RawConstruction) -> *mut c_void {
    // SAFETY: as the caller promises.
    let attributes = unsafe { Raw::read(construction, O::KIND) }.and_then(Raw::check);
    match attributes {
        Ok(attributes) => {
            add_one(&counters::KERNELS_CREATED);
            if registration::is_synchronous() {
                turns::enter(&attributes.place);
            }
            Arc::into_raw(attributes).cast_mut().cast()
        }
        Err(failure) => {
            let status = Status::of(&failure);
            // SAFETY: construction and status are alive; TensorFlow copies the status.
            unsafe { (api().TF_OpKernelConstruction_Failure)(construction, status.as_ptr()) };
            ptr::null_mut()
        }
    }
}

/// Ends the kernel object.
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`] and is not used any more.
unsafe extern "C" fn delete(kernel: *mut c_void) {
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

/// Starts one call. Waits for no more than a moment (see [`Table::submit`]).
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`]; `context` is alive until `done` has run.
unsafe extern "C" fn compute<O: Operation>(kernel: *mut c_void, context: *mut RawContext, done: *mut RawDone) {
    // SAFETY: TensorFlow handed this callback to this very call.
    let done = unsafe { Done::take(done) };
    // SAFETY: as the caller promises.
    unsafe { start::<O>(kernel, context, done) };
}

/// Runs one call on this thread, which waits for its end: for a TensorFlow without asynchronous kernels.
///
/// # Safety
/// Only for TensorFlow: `kernel` came from [`create`]; `context` is alive.
pub(crate) unsafe extern "C" fn compute_sync<O: Operation>(kernel: *mut c_void, context: *mut RawContext) {
    let signal = Arc::new(Signal::default());
    // SAFETY: as the caller promises; the call has ended before this returns.
    unsafe { start::<O>(kernel, context, Done::signal(&signal)) };
    signal.wait();
}

/// # Safety
/// As [`compute`] says.
unsafe fn start<O: Operation>(kernel: *mut c_void, context: *mut RawContext, done: Done) {
    let kernel = kernel.cast_const().cast::<Attributes>();
    // The engine may end the call before it is submitted here, and TensorFlow the kernel then: hence a share of our own.
    // SAFETY: `create` made the pointer from an `Arc` that lives until `delete`.
    unsafe { Arc::increment_strong_count(kernel) };
    // SAFETY: the line above counted this share.
    let attributes = unsafe { Arc::from_raw(kernel) };
    // SAFETY: TensorFlow's context is alive until `done` has run, and it is used only before.
    let context = unsafe { Context::new(context) };
    match prepare::<O>(&context, &attributes) {
        Ok((table, operation, _turn)) => {
            let job = Job { context, operation, attributes: Arc::clone(&attributes), done, _turn };
            submit(table, job, &attributes);
        }
        Err(failure) => {
            context.fail(&failure.at(&attributes));
            drop(done);
        }
    }
}

/// What the call needs before it can be submitted.
fn prepare<O: Operation>(
    context: &Context,
    attributes: &Arc<Attributes>,
) -> Result<(&'static Table, O, Option<Turn>), Failure> {
    let table = attach::table().ok_or_else(unattached)?;
    // An eager call waits on a thread of the program's.
    if registration::is_synchronous() && matches!(attributes.tag, Base::Named(_)) {
        turns::check(&attributes.place)?;
    }
    let turn = (attributes.tag == Base::Unnamed).then(|| Turn::enter(attributes)).transpose()?;
    Ok((table, O::prepare(context, attributes)?, turn))
}

fn unattached() -> Failure {
    let message = "no engine is attached to the op library in this process: run `import foldcast.tensorflow` (or \
                   `from npu_bridge.hccl import hccl_ops`) before the graph runs";
    Failure { code: StatusCode::FailedPrecondition, message: message.into() }
}

fn submit<O: Operation>(table: &Table, job: Job<O>, attributes: &Attributes) {
    let (frame, iteration) = job.context.frame_and_iteration();
    let tag: Cow<'_, str> = attributes.tag.at(frame, iteration);
    let memory = job.operation.memory();
    let user = Box::into_raw(Box::new(job)).cast();
    add_one(&counters::CALLS_SUBMITTED);
    let to = Submission { table, attributes, tag: &tag, user, finished: finished::<O> };
    // SAFETY: the job owns the operation until `finished` takes it back, and is not used here any more.
    unsafe { O::submit(memory, &to) };
}

/// The engine has ended a call.
///
/// # Safety
/// Only for the engine: `user` is a call's, once, and `message` points to `message_len` readable bytes.
unsafe extern "C" fn finished<O: Operation>(user: *mut c_void, code: u32, message: *const u8, message_len: usize) {
    // SAFETY: `submit` made the pointer from a box, and the engine ends a call once.
    let mut job = *unsafe { Box::from_raw(user.cast::<Job<O>>()) };
    add_one(&counters::CALLS_FINISHED);
    // SAFETY: the engine promises readable bytes for the time of this call.
    if let Some(failure) = unsafe { Failure::of_call(code, message, message_len) } {
        let failure = job.operation.failure().unwrap_or(failure);
        let Failure { code, message } = failure.at(&job.attributes);
        job.context.fail(&Failure { code, message: message + O::advice(code) });
    }
    let Job { context: _, operation, attributes, done, _turn } = job;
    // Before TensorFlow goes on: the next call may start then, and memory can be reused only if no reference is left.
    drop((operation, attributes, _turn));
    drop(done);
}

impl Failure {
    /// What the engine says about a call that has failed; `None` if it has not.
    ///
    /// # Safety
    /// `message` is null or points to `message_len` readable bytes.
    unsafe fn of_call(code: u32, message: *const u8, message_len: usize) -> Option<Failure> {
        let code = StatusCode::of_call(code)?;
        if message.is_null() {
            return Some(Failure { code, message: String::new() });
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { core::slice::from_raw_parts(message, message_len) };
        Some(Failure { code, message: String::from_utf8_lossy(bytes).into_owned() })
    }

    /// The failure with the name of its node.
    fn at(self, attributes: &Attributes) -> Failure {
        let Failure { code, message } = self;
        Failure { code, message: format!("{message} [{} node '{}']", attributes.kind.op(), attributes.node) }
    }
}
