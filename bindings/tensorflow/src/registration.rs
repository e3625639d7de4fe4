//! Registers the op and its kernel while TensorFlow opens this library.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use std::ffi::CString;
use std::sync::OnceLock;

use crate::api::{self, Api, ComputeSyncFn, RawShapeContext, RawStatus};
use crate::attributes::{self, DATA_TYPES, REDUCTIONS};
use crate::cxx::{self, Functions};
use crate::status::{Status, c_string};
use crate::{fused, kernel};

const DEVICE: &CStr = c"CPU";

/// The variable that asks for synchronous kernels where asynchronous ones would be possible.
const SYNCHRONOUS: &str = "FOLDCAST_TENSORFLOW_SYNCHRONOUS";

/// What makes an op.
struct Op {
    name: &'static CStr,
    kernel: &'static CStr,
    input: &'static CStr,
    output: &'static CStr,
    /// Attributes that only this op has.
    attributes: &'static [&'static CStr],
    functions: Functions,
    compute_sync: ComputeSyncFn,
}

/// One allreduce, as the Python face makes it; its name is part of the interface: scripts use it in
/// `gradient_override_map`. Its size in bytes, if it is known when it is made, is for fusion;
/// its turn, for synchronous kernels (see `turns`).
const SINGLE: Op = Op {
    name: c"HcomAllReduce",
    kernel: c"HcomAllReduceKernel",
    input: c"tensor: T",
    output: c"output: T",
    attributes: &[c"bytes: int = -1", c"turn: string = ''"],
    functions: Functions { create: kernel::create, compute: kernel::compute, delete: kernel::delete },
    compute_sync: kernel::compute_sync,
};

/// What fusion makes of several.
const FUSED: Op = Op {
    name: c"HcomAllReduceFused",
    kernel: c"HcomAllReduceFusedKernel",
    input: c"tensors: N * T",
    output: c"outputs: N * T",
    attributes: &[c"N: int >= 1"],
    functions: Functions { create: fused::create, compute: fused::compute, delete: fused::delete },
    compute_sync: fused::compute_sync,
};

static OUTCOME: OnceLock<Result<(), CString>> = OnceLock::new();

/// Why nothing was registered, as a C string that lives as long as the process; null if the op is there.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub extern "C" fn foldcast_tensorflow_problem() -> *const c_char {
    match OUTCOME.get() {
        Some(Ok(())) => ptr::null(),
        Some(Err(problem)) => problem.as_ptr(),
        None => c"the library's initialiser has not run".as_ptr(),
    }
}

/// Runs when the library is opened.
extern "C" fn initialise() {
    OUTCOME.get_or_init(|| api::load().map_err(str::to_owned).and_then(register).map_err(|text| c_string(&text)));
}

// SAFETY: the section holds addresses of functions that the loader calls, with arguments that a C function may ignore,
// after this library's relocations and those of the libraries that it needs are done.
#[unsafe(link_section = ".init_array")]
#[used]
static INITIALISER: extern "C" fn() = initialise;

/// How the kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A call in progress keeps no thread of TensorFlow's.
    Asynchronous,
    /// A call keeps a thread of TensorFlow's until it ends, because this TensorFlow offers nothing better.
    Synchronous,
}

static WAY: OnceLock<Way> = OnceLock::new();

/// Whether a call keeps a thread of TensorFlow's.
pub(crate) fn is_synchronous() -> bool {
    WAY.get() == Some(&Way::Synchronous)
}

/// What this TensorFlow cannot do, as bits: 1, the kernels are synchronous; 2, overlapping iterations of a loop cannot
/// be told apart.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub extern "C" fn foldcast_tensorflow_lacks() -> u32 {
    let Ok(api) = api::load() else { return 0 };
    let tells = api.TF_GetFrameId.is_some() && api.TF_GetIterId.is_some() || cxx::can_tell_iterations();
    u32::from(is_synchronous()) | u32::from(!tells) << 1
}

fn register(api: &'static Api) -> Result<(), String> {
    if !attributes::has_reader(api) && !cxx::can_read_node_defs() {
        return Err("it offers no way to read the attributes of a node".into());
    }
    let mut ways = Vec::new();
    for op in [&SINGLE, &FUSED] {
        let name = op.name.to_string_lossy();
        register_op(api, op).map_err(|error| format!("TensorFlow refused the op {name}: {error}"))?;
        let way = register_kernel(api, op).map_err(|error| format!("TensorFlow refused the kernel of {name}: {error}"));
        ways.push(way?);
    }
    let way = ways[0];
    WAY.get_or_init(|| way);
    Ok(())
}

fn attribute_texts() -> Vec<CString> {
    let types: Vec<_> = DATA_TYPES.iter().map(|(_, name, _)| *name).collect();
    let reductions: Vec<_> = REDUCTIONS.iter().map(|(name, _)| format!("'{name}'")).collect();
    [
        format!("T: {{{}}}", types.join(", ")),
        format!("reduction: {{{}}}", reductions.join(", ")),
        "fusion: int = 1".into(),
        "fusion_id: int = -1".into(),
        "group: string = 'hccl_world_group'".into(),
        "tag: string = ''".into(),
    ]
    .iter()
    .map(|text: &String| c_string(text))
    .collect()
}

fn register_op(api: &'static Api, op: &Op) -> Result<(), String> {
    // SAFETY: the name is a C string.
    let builder = unsafe { (api.TF_NewOpDefinitionBuilder)(op.name.as_ptr()) };
    let own = op.attributes.iter().map(|text| CString::from(*text));
    for attribute in attribute_texts().into_iter().chain(own) {
        // SAFETY: the builder is alive until it is registered; the text is a C string, which TensorFlow copies.
        unsafe { (api.TF_OpDefinitionBuilderAddAttr)(builder, attribute.as_ptr()) };
    }
    // SAFETY: as above.
    unsafe { (api.TF_OpDefinitionBuilderAddInput)(builder, op.input.as_ptr()) };
    // SAFETY: as above.
    unsafe { (api.TF_OpDefinitionBuilderAddOutput)(builder, op.output.as_ptr()) };
    // Without this, TensorFlow's optimiser folds an allreduce of a constant and merges equal ones.
    // SAFETY: as above.
    unsafe { (api.TF_OpDefinitionBuilderSetIsStateful)(builder, true) };
    // SAFETY: as above; the function has the type that TensorFlow calls.
    unsafe { (api.TF_OpDefinitionBuilderSetShapeInferenceFunction)(builder, infer_shape) };
    let status = Status::new();
    // SAFETY: the builder is alive and goes over to TensorFlow; the status is a place to write to.
    unsafe { (api.TF_RegisterOpDefinition)(builder, status.as_ptr()) };
    status.error().map_or(Ok(()), |error| Err(error.into_owned()))
}

fn register_kernel(api: &'static Api, op: &Op) -> Result<Way, String> {
    let Op { name, kernel, functions, compute_sync, .. } = *op;
    let synchronous = std::env::var_os(SYNCHRONOUS).is_some_and(|value| value == "1");
    let (builder, way) = match api.TF_NewAsyncKernelBuilder {
        Some(new_builder) if !synchronous => {
            let Functions { create, compute, delete } = functions;
            // SAFETY: the names are C strings, and the functions have the types that TensorFlow calls.
            let builder = unsafe { new_builder(name.as_ptr(), DEVICE.as_ptr(), Some(create), compute, Some(delete)) };
            (builder, Way::Asynchronous)
        }
        None if !synchronous && cxx::register_async(name, DEVICE, kernel, functions) => return Ok(Way::Asynchronous),
        _ => {
            let Functions { create, delete, .. } = functions;
            // SAFETY: the names are C strings, and the functions have the types that TensorFlow calls.
            let builder = unsafe {
                (api.TF_NewKernelBuilder)(name.as_ptr(), DEVICE.as_ptr(), Some(create), compute_sync, Some(delete))
            };
            (builder, Way::Synchronous)
        }
    };
    let status = Status::new();
    // SAFETY: the builder is alive and goes over to TensorFlow; the status is a place to write to.
    unsafe { (api.TF_RegisterKernelBuilder)(kernel.as_ptr(), builder, status.as_ptr()) };
    status.error().map_or(Ok(way), |error| Err(error.into_owned()))
}

/// Each output has its input's shape, unknown dimensions included.
///
/// # Safety
/// Only for TensorFlow: context and status are alive during the call.
unsafe extern "C" fn infer_shape(context: *mut RawShapeContext, status: *mut RawStatus) {
    let api = api::api();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tensorflow_the_library_loads_and_says_why_it_has_no_op() {
        let problem = foldcast_tensorflow_problem();
        assert!(!problem.is_null());
        // SAFETY: the function gives a C string that lives as long as the process.
        let problem = unsafe { CStr::from_ptr(problem) }.to_string_lossy();
        assert!(problem.contains("not loaded"), "{problem}");
    }

    #[test]
    fn the_attributes_are_the_interface() {
        let attributes: Vec<_> = attribute_texts().iter().map(|text| text.to_string_lossy().into_owned()).collect();
        assert_eq!(
            attributes[0],
            "T: {int8, int16, int32, int64, uint8, uint16, uint32, uint64, half, bfloat16, float, double}"
        );
        assert_eq!(attributes[1], "reduction: {'sum', 'max', 'min', 'prod'}");
        assert_eq!(attributes[4], "group: string = 'hccl_world_group'");
    }
}
