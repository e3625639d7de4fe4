//! TensorFlow's context of one call of a kernel.

use core::ffi::c_int;
use core::ptr::{self, NonNull};

use crate::api::{RawContext, api};
use crate::cxx;
use crate::status::{Failure, Status, StatusCode};
use crate::tensor::Tensor;

/// A `TF_OpKernelContext`: alive until the call's completion callback has run.
pub(crate) struct Context {
    raw: *mut RawContext,
}

// SAFETY: TensorFlow lets an asynchronous kernel use its context on any thread until the completion callback has run,
// one thread at a time, and this handle is neither copied nor shared.
unsafe impl Send for Context {}

impl Context {
    /// # Safety
    /// `raw` is a context of a call that has not ended, and no method is called after it has.
    pub(crate) unsafe fn new(raw: *mut RawContext) -> Context {
        Context { raw }
    }

    /// How many inputs the op has.
    pub(crate) fn inputs(&self) -> usize {
        // SAFETY: the context is alive.
        usize::try_from(unsafe { (api().TF_NumInputs)(self.raw) }).unwrap_or(0)
    }

    /// One of the op's inputs.
    pub(crate) fn input(&self, index: usize, status: &Status) -> Result<Tensor, Failure> {
        let mut tensor = ptr::null_mut();
        let number = number(index);
        // SAFETY: the context is alive, TensorFlow checks the index, and the other two are places to write to.
        unsafe { (api().TF_GetInput)(self.raw, number, &mut tensor, status.as_ptr()) };
        if let Some(error) = status.error() {
            let message = format!("cannot take input {index}: {error}");
            return Err(Failure { code: StatusCode::Internal, message });
        }
        let tensor = NonNull::new(tensor).ok_or_else(|| missing("TF_GetInput"))?;
        // SAFETY: TF_GetInput gives a new tensor object to its caller.
        Ok(unsafe { Tensor::from_raw(tensor) })
    }

    /// The output of the same index as an input, of this shape and size, and whether it is that input's memory. That
    /// happens if nobody else holds the input, so the caller must hold no [`Tensor`] of it.
    pub(crate) fn output(
        &self,
        index: usize,
        dimensions: &[i64],
        bytes: usize,
        status: &Status,
    ) -> Result<(Tensor, bool), Failure> {
        let Some(forward_or_allocate) = api().TF_ForwardInputOrAllocateOutput else {
            return Ok((self.new_output(index, dimensions, bytes, status)?, false));
        };
        let candidates: [c_int; 1] = [number(index)];
        let mut forwarded: c_int = -1;
        // SAFETY: the context is alive; one candidate and as many dimensions as said are readable; the op has an input
        // and an output of this index, of the same type; the last two are places to write to.
        let tensor = unsafe {
            forward_or_allocate(
                self.raw,
                candidates.as_ptr(),
                1,
                candidates[0],
                dimensions.as_ptr(),
                number(dimensions.len()),
                &mut forwarded,
                status.as_ptr(),
            )
        };
        refuse_output(status)?;
        let tensor = NonNull::new(tensor).ok_or_else(|| missing("TF_ForwardInputOrAllocateOutput"))?;
        // SAFETY: the function gives a new tensor object to its caller.
        Ok((unsafe { Tensor::from_raw(tensor) }, forwarded == candidates[0]))
    }

    /// TensorFlow's number of the data type of an output.
    pub(crate) fn output_type(&self, index: usize) -> c_int {
        // SAFETY: the context is alive and the op has an output of this index.
        unsafe { (api().TF_ExpectedOutputDataType)(self.raw, number(index)) }
    }

    /// An output in memory of its own: 1.15 has no function that could reuse an input's.
    pub(crate) fn new_output(
        &self,
        index: usize,
        dimensions: &[i64],
        bytes: usize,
        status: &Status,
    ) -> Result<Tensor, Failure> {
        let (dtype, index) = (self.output_type(index), number(index));
        // SAFETY: as many dimensions as said are readable, and their product is the size.
        let tensor = unsafe { (api().TF_AllocateTensor)(dtype, dimensions.as_ptr(), number(dimensions.len()), bytes) };
        let tensor = NonNull::new(tensor).ok_or_else(|| Failure {
            code: StatusCode::ResourceExhausted,
            message: format!("cannot allocate the output: {bytes} bytes"),
        })?;
        // SAFETY: the function gives a new tensor object to its caller.
        let output = unsafe { Tensor::from_raw(tensor) };
        if bytes > 0 && output.data().is_null() {
            // TensorFlow makes a tensor also where it got no memory for it.
            let message = format!("cannot allocate the output: {bytes} bytes");
            return Err(Failure { code: StatusCode::ResourceExhausted, message });
        }
        // SAFETY: context, tensor and status are alive; TensorFlow takes a reference of its own.
        unsafe { (api().TF_SetOutput)(self.raw, index, tensor.as_ptr(), status.as_ptr()) };
        refuse_output(status)?;
        Ok(output)
    }

    /// The loop frame, 0 outside of loops, and the iteration in it; (0, 0) everywhere if this TensorFlow does not tell.
    pub(crate) fn frame_and_iteration(&self) -> (u64, u64) {
        let (Some(frame), Some(iteration)) = (api().TF_GetFrameId, api().TF_GetIterId) else {
            // SAFETY: the context is alive.
            return unsafe { cxx::frame_and_iteration(self.raw) }.unwrap_or_default();
        };
        // SAFETY: the context is alive.
        let frame = unsafe { frame(self.raw) };
        // SAFETY: the context is alive.
        let iteration = unsafe { iteration(self.raw) };
        (frame, iteration.cast_unsigned())
    }

    /// Makes the call fail.
    pub(crate) fn fail(&self, failure: &Failure) {
        let status = Status::of(failure);
        // SAFETY: context and status are alive; TensorFlow copies the status.
        unsafe { (api().TF_OpKernelContext_Failure)(self.raw, status.as_ptr()) };
    }
}

/// TensorFlow counts in ints.
fn number(count: usize) -> c_int {
    c_int::try_from(count).expect("nodes have far fewer inputs, and tensors far fewer dimensions")
}

fn refuse_output(status: &Status) -> Result<(), Failure> {
    let Some(error) = status.error() else { return Ok(()) };
    let message = format!("cannot allocate the output: {error}");
    Err(Failure { code: StatusCode::ResourceExhausted, message })
}

fn missing(function: &str) -> Failure {
    Failure { code: StatusCode::Internal, message: format!("{function} gave no tensor and no error") }
}
