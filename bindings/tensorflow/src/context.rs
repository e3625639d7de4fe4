//! TensorFlow's context of one call of a kernel.

use core::ffi::c_int;
use core::ptr::{self, NonNull};

use crate::api::{RawContext, api};
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

    /// The op's only input.
    pub(crate) fn input(&self, status: &Status) -> Result<Tensor, Failure> {
        let mut tensor = ptr::null_mut();
        // SAFETY: the context is alive, the op has an input 0, and the other two are places to write to.
        unsafe { (api().TF_GetInput)(self.raw, 0, &mut tensor, status.as_ptr()) };
        if let Some(error) = status.error() {
            return Err(Failure { code: StatusCode::Internal, message: format!("cannot take the input: {error}") });
        }
        let tensor = NonNull::new(tensor).ok_or_else(|| missing("TF_GetInput"))?;
        // SAFETY: TF_GetInput gives a new tensor object to its caller.
        Ok(unsafe { Tensor::from_raw(tensor) })
    }

    /// The op's only output, of this shape, and whether it is the input's memory. That happens if nobody else holds the
    /// input, so the caller must hold no [`Tensor`] of it.
    pub(crate) fn output(&self, dimensions: &[i64], status: &Status) -> Result<(Tensor, bool), Failure> {
        let candidates: [c_int; 1] = [0];
        let mut forwarded: c_int = -1;
        let rank = c_int::try_from(dimensions.len()).expect("a tensor has at most 254 dimensions");
        // SAFETY: the context is alive; one candidate and `rank` dimensions are readable; the op has an input 0 and an
        // output 0 of the same type; the last two are places to write to.
        let tensor = unsafe {
            (api().TF_ForwardInputOrAllocateOutput)(
                self.raw,
                candidates.as_ptr(),
                1,
                0,
                dimensions.as_ptr(),
                rank,
                &mut forwarded,
                status.as_ptr(),
            )
        };
        if let Some(error) = status.error() {
            let message = format!("cannot allocate the output: {error}");
            return Err(Failure { code: StatusCode::ResourceExhausted, message });
        }
        let tensor = NonNull::new(tensor).ok_or_else(|| missing("TF_ForwardInputOrAllocateOutput"))?;
        // SAFETY: the function gives a new tensor object to its caller.
        Ok((unsafe { Tensor::from_raw(tensor) }, forwarded == 0))
    }

    /// The loop frame, 0 outside of loops, and the iteration in it.
    pub(crate) fn frame_and_iteration(&self) -> (u64, u64) {
        // SAFETY: the context is alive.
        let frame = unsafe { (api().TF_GetFrameId)(self.raw) };
        // SAFETY: the context is alive.
        let iteration = unsafe { (api().TF_GetIterId)(self.raw) };
        (frame, iteration.cast_unsigned())
    }

    /// Makes the call fail.
    pub(crate) fn fail(&self, failure: &Failure) {
        let status = Status::of(failure);
        // SAFETY: context and status are alive; TensorFlow copies the status.
        unsafe { (api().TF_OpKernelContext_Failure)(self.raw, status.as_ptr()) };
    }
}

fn missing(function: &str) -> Failure {
    Failure { code: StatusCode::Internal, message: format!("{function} gave no tensor and no error") }
}
