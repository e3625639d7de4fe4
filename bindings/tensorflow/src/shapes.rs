//! The shapes of outputs, as far as they are known when a graph is made.

use core::ffi::c_int;

use crate::api::{Api, RawShape, RawShapeContext, RawStatus, api};

/// Each output has its input's shape, unknown dimensions included.
///
/// # Safety
/// Only for TensorFlow: context and status are alive during the call.
pub(crate) unsafe extern "C" fn same(context: *mut RawShapeContext, status: *mut RawStatus) {
    let api = api();
    // SAFETY: the context is alive.
    let count = unsafe { (api.TF_ShapeInferenceContextNumInputs)(context) };
    // SAFETY: no preconditions.
    let shape = unsafe { (api.TF_NewShapeHandle)() };
    for index in 0..c_int::try_from(count).unwrap_or(0) {
        // SAFETY: context, shape and status are alive, and TensorFlow checks the index.
        unsafe { (api.TF_ShapeInferenceContextGetInput)(context, index, shape, status) };
        // SAFETY: the status is alive.
        if unsafe { (api.TF_GetCode)(status) } != 0 {
            if index > 0 {
                // Up to 2.6 TensorFlow gives no shape but the first input's. The outputs of a fused op feed Identity
                // ops whose shapes are known, so nothing is lost that was known when the graph was made.
                // SAFETY: the status is alive, the text a C string.
                unsafe { (api.TF_SetStatus)(status, 0, c"".as_ptr()) };
                // SAFETY: context and status are alive.
                unsafe { (api.TF_ShapeInferenceContextSetUnknownShape)(context, status) };
            }
            break;
        }
        // SAFETY: context, shape and status are alive, and the op has as many outputs as inputs; TensorFlow copies the
        // shape.
        unsafe { (api.TF_ShapeInferenceContextSetOutput)(context, index, shape, status) };
    }
    // SAFETY: this function made the shape and does not use it any more.
    unsafe { (api.TF_DeleteShapeHandle)(shape) };
}

/// The output has its input's shape, but for the first dimension, which nobody knows here: an attribute cannot be read in
/// a shape function of the C API. The Python face knows more, and says so where it makes the op.
///
/// # Safety
/// Only for TensorFlow: context and status are alive during the call.
pub(crate) unsafe extern "C" fn longer(context: *mut RawShapeContext, status: *mut RawStatus) {
    let api = api();
    // SAFETY: no preconditions.
    let [input, inner, output] = [(); 3].map(|()| unsafe { (api.TF_NewShapeHandle)() });
    // SAFETY: as the caller promises; the handles are alive.
    let known = unsafe { make_longer(api, context, [input, inner, output], status) };
    // SAFETY: the status is alive.
    if known.is_none() && unsafe { (api.TF_GetCode)(status) } == 0 {
        // SAFETY: context and status are alive.
        unsafe { (api.TF_ShapeInferenceContextSetUnknownShape)(context, status) };
    }
    for shape in [input, inner, output] {
        // SAFETY: this function made the shape and does not use it any more.
        unsafe { (api.TF_DeleteShapeHandle)(shape) };
    }
}

/// `None` if the shape is not known, or wrong: then the status says so.
///
/// # Safety
/// Context, handles and status are alive.
unsafe fn make_longer(
    api: &Api,
    context: *mut RawShapeContext,
    [input, inner, output]: [*mut RawShape; 3],
    status: *mut RawStatus,
) -> Option<()> {
    let (at_least, part) = (api.TF_ShapeInferenceContextWithRankAtLeast?, api.TF_ShapeInferenceContextSubshape?);
    let (vector, join) = (api.TF_ShapeInferenceContextVectorFromSize?, api.TF_ShapeInferenceContextConcatenateShapes?);
    // SAFETY: the status is alive.
    let well = || unsafe { (api.TF_GetCode)(status) } == 0;
    // SAFETY: all are alive, and the op has an input.
    unsafe { (api.TF_ShapeInferenceContextGetInput)(context, 0, input, status) };
    // SAFETY: as above.
    well().then(|| unsafe { at_least(context, input, 1, input, status) })?;
    // SAFETY: as above; from the second dimension to the last.
    well().then(|| unsafe { part(context, input, 1, i64::MAX, inner, status) })?;
    // SAFETY: the context is alive. The size that has all bits set is TensorFlow's unknown one.
    let first = unsafe { vector(context, usize::MAX) };
    // SAFETY: as above, and `first` is a handle that is ours.
    well().then(|| unsafe { join(context, first, inner, output, status) });
    // SAFETY: the handle came from TensorFlow and is not used any more.
    unsafe { (api.TF_DeleteShapeHandle)(first) };
    // SAFETY: as above, and the op has one output; TensorFlow copies the shape.
    well().then(|| unsafe { (api.TF_ShapeInferenceContextSetOutput)(context, 0, output, status) })
}
