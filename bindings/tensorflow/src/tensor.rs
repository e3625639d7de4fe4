//! TensorFlow's tensors.

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::api::{RawTensor, api};

/// An owned `TF_Tensor`: a reference to a tensor's buffer, with its shape.
pub(crate) struct Tensor {
    raw: NonNull<RawTensor>,
}

impl Tensor {
    /// Takes over a tensor.
    ///
    /// # Safety
    /// `raw` is a live tensor that the caller owns and gives away.
    pub(crate) unsafe fn from_raw(raw: NonNull<RawTensor>) -> Tensor {
        Tensor { raw }
    }

    /// The size of each dimension.
    pub(crate) fn dimensions(&self) -> Vec<i64> {
        // SAFETY: `raw` is a live tensor.
        let count = unsafe { (api().TF_NumDims)(self.raw.as_ptr()) };
        // SAFETY: `raw` is a live tensor, and the index runs below its number of dimensions.
        (0..count).map(|index| unsafe { (api().TF_Dim)(self.raw.as_ptr(), index) }).collect()
    }

    /// The size of its buffer in bytes.
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: `raw` is a live tensor.
        unsafe { (api().TF_TensorByteSize)(self.raw.as_ptr()) }
    }

    /// Its buffer; may be null if it has no bytes.
    pub(crate) fn data(&self) -> *mut c_void {
        // SAFETY: `raw` is a live tensor.
        unsafe { (api().TF_TensorData)(self.raw.as_ptr()) }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live tensor that this value owns, and nothing uses it afterwards.
        unsafe { (api().TF_DeleteTensor)(self.raw.as_ptr()) };
    }
}
