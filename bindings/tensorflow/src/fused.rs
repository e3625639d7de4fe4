//! The kernel of a fused allreduce: its inputs go, one after the other, into one buffer, which is one call to the engine;
//! the result goes back into as many outputs. The engine folds each element by the same tree wherever it lies, so the
//! bits are those of single calls.

use core::ffi::c_void;
use core::ptr;
use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Arc, Mutex, PoisonError};

use table::{Call, Table};

use crate::api::{RawConstruction, RawContext, RawDone};
use crate::attach;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::counters::{self, add_one};
use crate::done::{Done, Signal};
use crate::kernel::{self, MAX_INPUT_BYTES, unattached};
use crate::status::{Failure, Status, StatusCode};
use crate::tensor::Tensor;

/// The kernel object.
struct Kernel {
    attributes: Arc<Attributes>,
    /// The last call's buffer. New memory has to be cleared page by page by the system, which takes longer than filling
    /// it; the next call of a training step is of the same size.
    spare: Mutex<Option<Aligned>>,
}

impl Kernel {
    fn buffer(&self, bytes: usize) -> Result<Aligned, Failure> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.filter(|spare| spare.fits(bytes)).map_or_else(|| Aligned::new(bytes), Ok)
    }
}

/// One call, from its start until the engine hands it back.
struct Job {
    context: Context,
    outputs: Vec<Tensor>,
    buffer: Aligned,
    kernel: Arc<Kernel>,
    done: Done,
}

/// Memory that starts at a cache line.
struct Aligned {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: memory that the value owns; nothing about it belongs to a thread.
unsafe impl Send for Aligned {}

impl Aligned {
    fn new(bytes: usize) -> Result<Aligned, Failure> {
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|_| no_memory(bytes))?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc(layout) };
        if start.is_null() { Err(no_memory(bytes)) } else { Ok(Aligned { start, layout }) }
    }
}

impl Aligned {
    /// Whether it has room, and not far too much of it.
    fn fits(&self, bytes: usize) -> bool {
        (bytes..=bytes.saturating_mul(2).max(64)).contains(&self.layout.size())
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not used any more.
        unsafe { dealloc(self.start, self.layout) };
    }
}

fn no_memory(bytes: usize) -> Failure {
    let message = format!("cannot allocate the buffer of a fused allreduce: {bytes} bytes");
    Failure { code: StatusCode::ResourceExhausted, message }
}

/// Makes the kernel object, or tells TensorFlow why not and returns null.
///
/// # Safety
/// Only for TensorFlow: `construction` is alive during the call.
pub(crate) unsafe extern "C" fn create(construction: *mut RawConstruction) -> *mut c_void {
    // SAFETY: as the caller promises.
    let Some(attributes) = (unsafe { kernel::attributes(construction) }) else { return ptr::null_mut() };
    add_one(&counters::KERNELS_CREATED);
    Arc::into_raw(Arc::new(Kernel { attributes, spare: Mutex::default() })).cast_mut().cast()
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
    // SAFETY: `create` made the pointer from an `Arc`, and TensorFlow deletes a kernel once.
    drop(unsafe { Arc::from_raw(kernel.cast_const().cast::<Kernel>()) });
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
    let kernel = kernel.cast_const().cast::<Kernel>();
    // SAFETY: `create` made the pointer from an `Arc` that lives until the kernel is deleted.
    unsafe { Arc::increment_strong_count(kernel) };
    // SAFETY: the line above counted this share.
    let kernel = unsafe { Arc::from_raw(kernel) };
    // SAFETY: TensorFlow's context is alive until `done` has run, and it is used only before.
    let context = unsafe { Context::new(context) };
    match gather(&context, &kernel) {
        Ok((table, outputs, buffer)) => {
            submit(table, Job { context, outputs, buffer, kernel: Arc::clone(&kernel), done }, &kernel.attributes);
        }
        Err(failure) => {
            context.fail(&failure.at(&kernel.attributes));
            drop(done);
        }
    }
}

/// The inputs in one buffer, and memory for the outputs.
fn gather(context: &Context, kernel: &Kernel) -> Result<(&'static Table, Vec<Tensor>, Aligned), Failure> {
    let table = attach::table().ok_or_else(unattached)?;
    let status = Status::new();
    let count = context.inputs();
    let sizes =
        (0..count).map(|index| Ok(context.input(index, &status)?.bytes())).collect::<Result<Vec<_>, Failure>>()?;
    let total: usize = sizes.iter().sum();
    if u64::try_from(total).is_ok_and(|bytes| bytes > MAX_INPUT_BYTES) {
        return Err(Failure::invalid(format!(
            "allreduce on group '{}': {count} fused tensors: expected at most {} GiB together, got {total} bytes; use \
             fusion=0, or FOLDCAST_TENSORFLOW_FUSION=0",
            kernel.attributes.group,
            MAX_INPUT_BYTES >> 30
        )));
    }
    let buffer = kernel.buffer(total)?;
    let mut outputs = Vec::with_capacity(count);
    let mut place = buffer.start;
    for (index, bytes) in sizes.into_iter().enumerate() {
        let input = context.input(index, &status)?;
        let dimensions = input.dimensions();
        if bytes > 0 {
            // SAFETY: the tensor has that many bytes, and the buffer has room for all tensors, one after the other.
            unsafe { ptr::copy_nonoverlapping(input.data().cast_const().cast::<u8>(), place, bytes) };
        }
        place = place.wrapping_add(bytes);
        drop(input); // TensorFlow gives the input's memory to the output only if nobody else holds it.
        outputs.push(context.output(index, &dimensions, bytes, &status)?.0);
    }
    Ok((table, outputs, buffer))
}

fn submit(table: &Table, job: Job, attributes: &Attributes) {
    let (frame, iteration) = job.context.frame_and_iteration();
    let tag = attributes.tag.at(frame, iteration);
    let start = job.buffer.start;
    let bytes: usize = job.outputs.iter().map(Tensor::bytes).sum();
    let call = Call {
        dtype: attributes.dtype,
        reduction: attributes.reduction,
        group: attributes.group.as_ptr(),
        group_len: attributes.group.len(),
        tag: tag.as_ptr(),
        tag_len: tag.len(),
        input: start.cast_const(),
        output: start,
        bytes: u64::try_from(bytes).expect("a size fits 64 bits"),
        user: Box::into_raw(Box::new(job)).cast(),
        done: finished,
    };
    add_one(&counters::CALLS_SUBMITTED);
    // SAFETY: group and tag live until this function returns; the job owns the buffer, which is input and output and
    // stays untouched until `finished` takes the job back. The job is not used here any more.
    unsafe { (table.submit)(&call) };
}

/// The engine has ended a call.
///
/// # Safety
/// Only for the engine: `user` is a call's, once, and `message` points to `message_len` readable bytes.
unsafe extern "C" fn finished(user: *mut c_void, code: u32, message: *const u8, message_len: usize) {
    // SAFETY: `submit` made the pointer from a box, and the engine ends a call once.
    let Job { context, outputs, buffer, kernel, done } = *unsafe { Box::from_raw(user.cast::<Job>()) };
    add_one(&counters::CALLS_FINISHED);
    // SAFETY: the engine promises readable bytes for the time of this call.
    match unsafe { Failure::of_call(code, message, message_len) } {
        Some(failure) => context.fail(&failure.at(&kernel.attributes)),
        None => scatter(&buffer, &outputs),
    }
    // Before TensorFlow goes on: the next call may start then.
    *kernel.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(buffer);
    drop((outputs, kernel));
    drop(done);
}

fn scatter(buffer: &Aligned, outputs: &[Tensor]) {
    let mut place = buffer.start.cast_const();
    for output in outputs {
        let bytes = output.bytes();
        if bytes > 0 {
            // SAFETY: output and input have the same size, and the buffer holds all of them, one after the other.
            unsafe { ptr::copy_nonoverlapping(place, output.data().cast::<u8>(), bytes) };
        }
        place = place.wrapping_add(bytes);
    }
}
