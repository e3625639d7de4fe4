//! The plugin of TensorFlow's graph optimiser: it fuses allreduces in each graph that TensorFlow compiles.
//!
//! TensorFlow looks for plugins of its optimiser in the libraries of devices, and asks for the functions `TF_InitGraph`
//! and, in 2.6, `TF_InitKernel`. A plugin for the device type CPU works on graphs that have no other device.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::api::{RawStatus, api};
use crate::status::Status;
use crate::{attach, cxx_grappler, report, rewrite};

/// `TF_Buffer`
#[repr(C)]
pub(crate) struct Buffer {
    data: *const c_void,
    length: usize,
    free: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TP_Optimizer`
#[repr(C)]
pub(crate) struct Optimizer {
    struct_size: usize,
    ext: *mut c_void,
    create: Option<unsafe extern "C" fn() -> *mut c_void>,
    optimize: Option<Optimize>,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// Optimiser, graph, item, rewritten graph, status.
type Optimize = unsafe extern "C" fn(*mut c_void, *const Buffer, *const c_void, *mut Buffer, *mut RawStatus);

/// `TP_OptimizerRegistrationParams`, up to what is used here.
#[repr(C)]
pub(crate) struct Registration {
    struct_size: usize,
    ext: *mut c_void,
    version: [i32; 3],
    device_type: *const c_char,
    configs: *mut c_void,
    optimizer: *mut Optimizer,
}

static ON: AtomicBool = AtomicBool::new(true);

/// Whether graphs that are compiled from now on are rewritten: not 0 for yes, as it is at first.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub extern "C" fn foldcast_tensorflow_set_fusion(on: u32) {
    ON.store(on != 0, Relaxed);
}

/// Only for TensorFlow: 2.6 demands the function of every such library.
// SAFETY: TensorFlow looks for this name in each plugin on its own; nothing links to it.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "TensorFlow's name")]
pub(crate) extern "C" fn TF_InitKernel() {}

/// Only for TensorFlow: tells it about the plugin.
///
/// # Safety
/// `registration` and `status` are TensorFlow's, alive during the call.
// SAFETY: TensorFlow looks for this name in each plugin on its own; nothing links to it.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "TensorFlow's name")]
pub(crate) unsafe extern "C" fn TF_InitGraph(registration: *mut Registration, status: *mut RawStatus) {
    // The other passes' settings, in `configs`, stay at their defaults, and every size as TensorFlow has set it.
    // SAFETY: TensorFlow gives its struct, which begins like ours in every release since 2.5.
    let registration = unsafe { &mut *registration };
    registration.device_type = c"CPU".as_ptr();
    // SAFETY: TensorFlow gives a struct of its own there.
    let optimizer = unsafe { &mut *registration.optimizer };
    optimizer.create = Some(create);
    optimizer.optimize = Some(optimize);
    optimizer.destroy = Some(destroy);
    succeed(status);
}

fn succeed(status: *mut RawStatus) {
    // SAFETY: the status is alive during the call that gave it, the text a C string.
    unsafe { (api().TF_SetStatus)(status, 0, c"".as_ptr()) };
}

/// There is no state; the address must not be null.
unsafe extern "C" fn create() -> *mut c_void {
    ptr::dangling_mut::<usize>().cast()
}

unsafe extern "C" fn destroy(_: *mut c_void) {}

/// Rewrites one graph. A graph that cannot be read, or has nothing to fuse, is given back as it came.
///
/// # Safety
/// Only for TensorFlow: the buffers and the status are alive during the call.
unsafe extern "C" fn optimize(
    _: *mut c_void,
    graph: *const Buffer,
    _: *const c_void,
    out: *mut Buffer,
    status: *mut RawStatus,
) {
    // SAFETY: TensorFlow's buffer is alive.
    let graph = unsafe { &*graph };
    let bytes = if graph.data.is_null() {
        &[][..]
    } else {
        // SAFETY: the buffer has as many bytes as it says.
        unsafe { core::slice::from_raw_parts(graph.data.cast::<u8>(), graph.length) }
    };
    let result = Box::leak(fuse(bytes).unwrap_or_else(|| bytes.to_vec()).into_boxed_slice());
    let buffer = Buffer { data: result.as_ptr().cast(), length: result.len(), free: Some(free) };
    // SAFETY: TensorFlow gives an empty buffer of its own.
    unsafe { out.write(buffer) };
    succeed(status);
}

/// The encoded graph with its allreduces fused, which are reported; `None` if it stays as it is.
pub(crate) fn fuse(bytes: &[u8]) -> Option<Vec<u8>> {
    let rewrite = || if ON.load(Relaxed) { rewrite::rewrite(bytes, &split) } else { Ok(None) };
    let rewritten = std::panic::catch_unwind(rewrite).ok().and_then(Result::ok).flatten()?;
    log(&rewritten.launches);
    report::add(rewritten.launches);
    Some(rewritten.graph)
}

unsafe extern "C" fn free(data: *mut c_void, length: usize) {
    let slice = ptr::slice_from_raw_parts_mut(data.cast::<u8>(), length);
    // SAFETY: `optimize` leaked a box of this slice, and TensorFlow frees a buffer once.
    drop(unsafe { Box::from_raw(slice) });
}

/// By the strategy of the group, which the engine knows; nothing is to be fused where there is no engine.
pub(crate) fn split(group: &str, sizes: &[u64]) -> Vec<usize> {
    let Some(table) = attach::table() else { return Vec::new() };
    let mut ends = [0_usize; table::MAX_SEGMENTS];
    // SAFETY: group and sizes are readable, the ends writable, for as long as the call lasts.
    let count = unsafe {
        (table.split)(group.as_ptr(), group.len(), sizes.as_ptr(), sizes.len(), ends.as_mut_ptr(), ends.len())
    };
    let ends = ends.get(..count).unwrap_or_default();
    if ends.last() == Some(&sizes.len()) && ends.is_sorted() {
        return ends.to_vec();
    }
    Vec::new()
}

/// The level of messages on standard error: a compiled graph is worth a line from `info` on.
const LOG: &str = "FOLDCAST_LOG";

fn log(launches: &[rewrite::Launch]) {
    if std::env::var_os(LOG).is_some_and(|level| level == "info" || level == "debug" || level == "trace") {
        let members: usize = launches.iter().map(|launch| launch.members.len()).sum();
        let bytes: u64 = launches.iter().map(|launch| launch.bytes).sum();
        eprintln!("foldcast: compiled a graph: {members} allreduces became {}, {bytes} bytes", launches.len());
    }
}

/// Registers the plugin: 0 if it is there, 1 if this TensorFlow has no plugins, 2 if it refused, 3 if it is there by the
/// way of 1.15, where each session's configuration must name it. Only once in a process: TensorFlow ends the process that
/// registers a second plugin for CPUs.
///
/// # Safety
/// `path` is the C string of this library's path.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foldcast_tensorflow_enable_fusion(path: *const c_char) -> c_int {
    let Ok(api) = crate::api::load() else { return 1 };
    let Some(load) = api.TF_LoadPluggableDeviceLibrary else { return if cxx_grappler::register() { 3 } else { 1 } };
    let status = Status::new();
    // SAFETY: the path is a C string; TensorFlow's handle is not needed, and stays open.
    unsafe { load(path, status.as_ptr()) };
    c_int::from(status.error().is_some()) * 2
}
