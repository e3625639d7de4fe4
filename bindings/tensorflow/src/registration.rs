//! Registers the op and its kernel while TensorFlow opens this library.

use core::ffi::{CStr, c_char};
use core::ptr;
use std::ffi::CString;
use std::sync::OnceLock;

use crate::api::{self, Api, ComputeSyncFn, ShapeFn};
use crate::attributes::{self, DATA_TYPES, Kind, REDUCTIONS};
use crate::broadcast::Tensors;
use crate::call;
use crate::cxx::{self, Functions};
use crate::fused::List;
use crate::gather::Gather;
use crate::kernel::Single;
use crate::shapes;
use crate::status::{Status, c_string};

const DEVICE: &CStr = c"CPU";

/// The variable that asks for synchronous kernels where asynchronous ones would be possible.
const SYNCHRONOUS: &str = "FOLDCAST_TENSORFLOW_SYNCHRONOUS";

/// What makes an op.
struct Op {
    kind: Kind,
    name: &'static CStr,
    kernel: &'static CStr,
    input: &'static CStr,
    output: &'static CStr,
    /// Attributes that only this op has.
    attributes: &'static [&'static CStr],
    infer_shape: ShapeFn,
    functions: Functions,
    compute_sync: ComputeSyncFn,
}

/// One allreduce, as the Python face makes it; its name is part of the interface: scripts use it in
/// `gradient_override_map`. Its size in bytes, if it is known when it is made, is for fusion.
const SINGLE: Op = Op {
    kind: Kind::AllReduce,
    name: c"HcomAllReduce",
    kernel: c"HcomAllReduceKernel",
    input: c"tensor: T",
    output: c"output: T",
    attributes: &[c"bytes: int = -1"],
    infer_shape: shapes::same,
    functions: call::functions::<Single>(),
    compute_sync: call::compute_sync::<Single>,
};

/// What fusion makes of several, and the Python face of a list. In a graph that was rewritten it is matched by its `key`, and
/// its `members` have names, one a line.
const FUSED: Op = Op {
    kind: Kind::Fused,
    name: c"HcomAllReduceFused",
    kernel: c"HcomAllReduceFusedKernel",
    input: c"tensors: N * T",
    output: c"outputs: N * T",
    attributes: &[c"N: int >= 1", c"key: string = ''", c"members: string = ''", c"alone: string = ''"],
    infer_shape: shapes::same,
    functions: call::functions::<List>(),
    compute_sync: call::compute_sync::<List>,
};

/// A broadcast of a list of tensors.
const BROADCAST: Op = Op {
    kind: Kind::Broadcast,
    name: c"HcomBroadcast",
    kernel: c"HcomBroadcastKernel",
    input: c"tensors: T",
    output: c"outputs: T",
    attributes: &[c"root_rank: int >= 0"],
    infer_shape: shapes::same,
    functions: call::functions::<Tensors>(),
    compute_sync: call::compute_sync::<Tensors>,
};

/// One allgather. A `rank_size` of 0 takes the group's size, whatever it is; with `unequal=1` the first dimensions may
/// differ between ranks.
const GATHER: Op = Op {
    kind: Kind::AllGather,
    name: c"HcomAllGather",
    kernel: c"HcomAllGatherKernel",
    input: c"tensor: T",
    output: c"output: T",
    attributes: &[c"rank_size: int >= 0", c"unequal: int = 0"],
    infer_shape: shapes::longer,
    functions: call::functions::<Gather>(),
    compute_sync: call::compute_sync::<Gather>,
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
    for op in [&SINGLE, &FUSED, &BROADCAST, &GATHER] {
        let name = op.name.to_string_lossy();
        register_op(api, op).map_err(|error| format!("TensorFlow refused the op {name}: {error}"))?;
        let way = register_kernel(api, op).map_err(|error| format!("TensorFlow refused the kernel of {name}: {error}"));
        ways.push(way?);
    }
    let way = ways[0];
    WAY.get_or_init(|| way);
    Ok(())
}

/// The attributes that several ops have, as the definition of this one says them.
fn attribute_texts(kind: Kind) -> Vec<CString> {
    let types: Vec<_> = DATA_TYPES.iter().map(|(_, name, _)| *name).collect();
    let types = types.join(", ");
    let reductions: Vec<_> = REDUCTIONS.iter().map(|(name, _)| format!("'{name}'")).collect();
    let (types, fusion, fusion_id) = match kind {
        Kind::AllReduce | Kind::Fused => (format!("T: {{{types}}}"), 1, -1),
        Kind::Broadcast => (format!("T: list({{{types}}}) >= 1"), 2, 0),
        Kind::AllGather => (format!("T: {{{types}}}"), 0, -1),
    };
    let reduction =
        matches!(kind, Kind::AllReduce | Kind::Fused).then(|| format!("reduction: {{{}}}", reductions.join(", ")));
    let others = [
        format!("fusion: int = {fusion}"),
        format!("fusion_id: int = {fusion_id}"),
        "group: string = 'hccl_world_group'".into(),
        "tag: string = ''".into(),
        // For synchronous kernels: see `turns`.
        "turn: string = ''".into(),
    ];
    [types].iter().chain(&reduction).chain(&others).map(|text| c_string(text)).collect()
}

fn register_op(api: &'static Api, op: &Op) -> Result<(), String> {
    // SAFETY: the name is a C string.
    let builder = unsafe { (api.TF_NewOpDefinitionBuilder)(op.name.as_ptr()) };
    let own = op.attributes.iter().map(|text| CString::from(*text));
    for attribute in attribute_texts(op.kind).into_iter().chain(own) {
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
    unsafe { (api.TF_OpDefinitionBuilderSetShapeInferenceFunction)(builder, op.infer_shape) };
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
        let attributes: Vec<_> =
            attribute_texts(Kind::AllReduce).iter().map(|text| text.to_string_lossy().into_owned()).collect();
        assert_eq!(
            attributes[0],
            "T: {int8, int16, int32, int64, uint8, uint16, uint32, uint64, half, bfloat16, float, double}"
        );
        assert_eq!(attributes[1], "reduction: {'sum', 'max', 'min', 'prod'}");
        assert_eq!(attributes[4], "group: string = 'hccl_world_group'");
        let attributes = attribute_texts(Kind::Broadcast);
        assert!(attributes[0].to_string_lossy().starts_with("T: list({int8, "));
        assert_eq!(attributes[1].as_c_str(), c"fusion: int = 2");
        assert_eq!(attributes[2].as_c_str(), c"fusion_id: int = 0");
    }
}
