//! Fusion on TensorFlow 1.15, whose C API knows no plugins of the graph optimiser.
//!
//! Its C++ classes do: whoever derives a class from `CustomGraphOptimizer` and registers a function that makes its
//! objects has them called for each graph of a session whose configuration names them. As in `cxx`, the class is made by
//! hand here, by the Itanium C++ ABI: an object is the address of a table of virtual functions and one number of the
//! base class. What is taken for granted about layouts is checked before it is used:
//!
//! * The table's order is that of a class of TensorFlow's own of the same base, `ImplementationSelector`: each of its
//!   slots must be the exported function that is expected there. The mangled names carry the arguments' types.
//! * The graph in a `GrapplerItem` is known by the table of virtual functions of `GraphDef` in its first word.
//! * Strings are those of before C++11, one word: the mangled name of the function that registers says so.
//!
//! A function that returns an object with a destructor, a status or a string, takes the address of its place as a hidden
//! first argument on x86-64. Other machines hand it over otherwise, and wheels of 1.15 exist for this one only.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use std::sync::OnceLock;

use crate::api::libraries;
use crate::plugin;

/// The name by which a session's configuration asks for the optimiser; the Python face has it too.
const NAME: &CStr = c"FoldcastFusion";

/// `tensorflow::Status`: one pointer, null for success.
type RawStatus = usize;

/// `std::string` of before C++11.
type RawString = usize;

/// `tensorflow::grappler::CustomGraphOptimizer`
#[repr(C)]
struct Optimizer {
    virtuals: *const Virtuals,
    deadline_us: u64,
}

/// The table of virtual functions, from where objects point to.
#[repr(C)]
struct Virtuals {
    destructors: [unsafe extern "C" fn(*mut Optimizer); 2],
    name: unsafe extern "C" fn(*mut RawString, *const Optimizer) -> *mut RawString,
    uses_function_library: unsafe extern "C" fn(*const Optimizer) -> bool,
    optimize:
        unsafe extern "C" fn(*mut RawStatus, *mut Optimizer, *mut c_void, *const c_void, *mut c_void) -> *mut RawStatus,
    feedback: unsafe extern "C" fn(*mut Optimizer, *mut c_void, *const c_void, *const c_void, f64),
    init: unsafe extern "C" fn(*mut RawStatus, *mut Optimizer, *const c_void) -> *mut RawStatus,
}

/// The table with what comes before its first function: the offset to the top of the object, and the class's description,
/// for which that of the base does.
#[repr(C)]
struct Table {
    top: usize,
    description: *const c_void,
    virtuals: Virtuals,
}

// SAFETY: plain addresses that never change.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// `std::function<CustomGraphOptimizer*()>` of libstdc++ (see `done`).
#[repr(C)]
struct Creator {
    storage: [usize; 2],
    manager: unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> bool,
    invoker: unsafe extern "C" fn(*const c_void) -> *mut Optimizer,
}

/// TensorFlow's functions and tables that this takes.
struct Class {
    table: Table,
    /// What the first word of a `GraphDef` may be: two libraries of 1.15 have the table.
    graph_virtuals: Vec<usize>,
    /// `std::string::string(char const*, std::allocator<char> const&)`
    new_string: unsafe extern "C" fn(*mut RawString, *const c_char, *const u8),
    size: unsafe extern "C" fn(*const c_void) -> usize,
    write: unsafe extern "C" fn(*const c_void, *mut c_void, c_int) -> bool,
    read: unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> bool,
    /// `Status::Status(error::Code, absl::string_view)`
    new_status: NewStatus,
}

/// The view, a class without a destructor, comes as its two words, of which absl has the start first.
type NewStatus = unsafe extern "C" fn(*mut RawStatus, c_int, *const u8, usize);

/// The code by which an optimiser says that it leaves the graph as it is.
const ABORTED: c_int = 10;

fn symbol(name: &CStr) -> Option<*mut c_void> {
    libraries().find_all(name).next()
}

fn class() -> Option<&'static Class> {
    static CLASS: OnceLock<Option<Class>> = OnceLock::new();
    CLASS.get_or_init(find_class).as_ref()
}

fn find_class() -> Option<Class> {
    if !cfg!(target_arch = "x86_64") || !the_order_is_known() {
        return None;
    }
    let first_function = |table: *mut c_void| table.addr() + 2 * size_of::<usize>();
    let graph_virtuals: Vec<_> = libraries().find_all(c"_ZTVN10tensorflow8GraphDefE").map(first_function).collect();
    let description = symbol(c"_ZTIN10tensorflow8grappler20CustomGraphOptimizerE")?;
    let new_string = symbol(c"_ZNSsC1EPKcRKSaIcE")?;
    let size = symbol(c"_ZNK10tensorflow8GraphDef12ByteSizeLongEv")?;
    let write = symbol(c"_ZNK6google8protobuf11MessageLite16SerializeToArrayEPvi")?;
    let read = symbol(c"_ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi")?;
    let new_status = symbol(c"_ZN10tensorflow6StatusC1ENS_5error4CodeEN4absl11string_viewE")?;
    let virtuals =
        Virtuals { destructors: [destroy, destroy_and_free], name, uses_function_library, optimize, feedback, init };
    Some(Class {
        table: Table { top: 0, description, virtuals },
        graph_virtuals,
        // SAFETY: the C++ signature: `this` first, references as addresses; an allocator has no members.
        new_string: unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(*mut RawString, *const c_char, *const u8)>(new_string)
        },
        // SAFETY: as above.
        size: unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> usize>(size) },
        // SAFETY: as above.
        write: unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, *mut c_void, c_int) -> bool>(write)
        },
        // SAFETY: as above.
        read: unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> bool>(read)
        },
        // SAFETY: as above.
        new_status: unsafe { transmute::<*mut c_void, NewStatus>(new_status) },
    })
}

/// TensorFlow's own optimiser of the same base: its table, and what must be in it.
const KNOWN_TABLE: &CStr = c"_ZTVN10tensorflow8grappler22ImplementationSelectorE";
const KNOWN_ORDER: [&CStr; 7] = [
    c"_ZN10tensorflow8grappler22ImplementationSelectorD1Ev",
    c"_ZN10tensorflow8grappler22ImplementationSelectorD0Ev",
    c"_ZNK10tensorflow8grappler22ImplementationSelector4nameEv",
    c"_ZNK10tensorflow8grappler22ImplementationSelector19UsesFunctionLibraryEv",
    c"_ZN10tensorflow8grappler22ImplementationSelector8OptimizeEPNS0_7ClusterERKNS0_12GrapplerItemEPNS_8GraphDefE",
    c"_ZN10tensorflow8grappler22ImplementationSelector8FeedbackEPNS0_7ClusterERKNS0_12GrapplerItemERKNS_8GraphDefEd",
    c"_ZN10tensorflow8grappler22ImplementationSelector4InitEPKNS_35RewriterConfig_CustomGraphOptimizerE",
];

/// Whether the virtual functions of `CustomGraphOptimizer` come in the order of [`Virtuals`].
fn the_order_is_known() -> bool {
    let Some(table) = symbol(KNOWN_TABLE) else { return false };
    KNOWN_ORDER.iter().enumerate().all(|(index, name)| {
        // SAFETY: each of these functions that is exported is virtual, so the table has at least as many slots after its
        // first two words, unless an earlier one was missing, which ends the loop.
        let slot = unsafe { table.cast::<usize>().wrapping_add(2 + index).read() };
        libraries().find_all(name).any(|function| function.addr() == slot)
    })
}

/// Registers the optimiser, once in a process; whether it is there.
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| try_register().is_some())
}

fn try_register() -> Option<()> {
    let class = class()?;
    let register = symbol(
        c"_ZN10tensorflow8grappler28CustomGraphOptimizerRegistry22RegisterOptimizerOrDieERKSt8functionIFPNS0_20CustomGraphOptimizerEvEERKSs",
    )?;
    // SAFETY: the C++ signature: two references.
    let register =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const Creator, *const RawString)>(register) };
    let mut name = 0;
    // SAFETY: a string has room there, and the text is a C string, which is copied. The string is never destroyed: it is
    // made once in a process.
    unsafe { (class.new_string)(&mut name, NAME.as_ptr(), &0) };
    let creator = Creator { storage: [0; 2], manager: manage, invoker: make };
    // SAFETY: TensorFlow copies both. It would end the process if the name were taken: nobody else has it, and this runs
    // once.
    unsafe { register(&creator, &name) };
    Some(())
}

/// Copies and destroys the callable, which has no state.
unsafe extern "C" fn manage(_: *mut c_void, _: *const c_void, _: c_int) -> bool {
    false
}

unsafe extern "C" fn make(_: *const c_void) -> *mut Optimizer {
    let class = class().expect("it was registered with it");
    Box::into_raw(Box::new(Optimizer { virtuals: &class.table.virtuals, deadline_us: 0 }))
}

unsafe extern "C" fn destroy(_: *mut Optimizer) {}

unsafe extern "C" fn destroy_and_free(this: *mut Optimizer) {
    // SAFETY: `make` made the box, and TensorFlow destroys an object once.
    drop(unsafe { Box::from_raw(this) });
}

unsafe extern "C" fn name(place: *mut RawString, _: *const Optimizer) -> *mut RawString {
    let class = class().expect("the object was made with it");
    // SAFETY: the caller gives room for a string, and the text is a C string.
    unsafe { (class.new_string)(place, NAME.as_ptr(), &0) };
    place
}

/// Functions are graphs of their own, which come here too.
unsafe extern "C" fn uses_function_library(_: *const Optimizer) -> bool {
    false
}

unsafe extern "C" fn feedback(_: *mut Optimizer, _: *mut c_void, _: *const c_void, _: *const c_void, _: f64) {}

unsafe extern "C" fn init(place: *mut RawStatus, _: *mut Optimizer, _: *const c_void) -> *mut RawStatus {
    // SAFETY: the caller gives room for a status.
    unsafe { place.write(0) };
    place
}

/// In which word of a `GrapplerItem` its graph starts: after its virtual functions and its name.
const GRAPH_WORD: usize = 2;

/// Rewrites one graph. One that cannot be read, or has nothing to fuse, stays as it is.
///
/// # Safety
/// Only for TensorFlow: the item and the graph are alive during the call, and `place` has room for a status.
unsafe extern "C" fn optimize(
    place: *mut RawStatus,
    _: *mut Optimizer,
    _: *mut c_void,
    item: *const c_void,
    out: *mut c_void,
) -> *mut RawStatus {
    let class = class().expect("the object was made with it");
    // SAFETY: as the caller promises.
    if unsafe { rewrite(class, item, out) }.is_some() {
        // SAFETY: the caller gives room for a status.
        unsafe { place.write(0) };
    } else {
        let text = b"nothing to fuse";
        // SAFETY: the caller gives room for a status, and the text has this length.
        unsafe { (class.new_status)(place, ABORTED, text.as_ptr(), text.len()) };
    }
    place
}

/// Writes the rewritten graph, if there is one.
///
/// # Safety
/// Item and graph are alive.
unsafe fn rewrite(class: &Class, item: *const c_void, out: *mut c_void) -> Option<()> {
    let graph = item.cast::<usize>().wrapping_add(GRAPH_WORD);
    // SAFETY: an item is longer than that.
    let first = unsafe { graph.read() };
    if !class.graph_virtuals.contains(&first) {
        return None;
    }
    // SAFETY: the first word says that it is a `GraphDef`.
    let written = unsafe { encode(class, graph.cast()) }?;
    let rewritten = plugin::fuse(&written)?;
    let length = c_int::try_from(rewritten.len()).ok()?;
    // SAFETY: `out` is a graph, and there are as many bytes as is said.
    unsafe { (class.read)(out, rewritten.as_ptr().cast(), length) }.then_some(())
}

/// The encoded graph; `None` if it is larger than 2 GiB, which no encoding may be.
///
/// # Safety
/// `graph` is a graph.
unsafe fn encode(class: &Class, graph: *const c_void) -> Option<Vec<u8>> {
    // SAFETY: as the caller promises.
    let size = unsafe { (class.size)(graph) };
    let length = c_int::try_from(size).ok()?;
    let mut bytes = vec![0_u8; size];
    // SAFETY: as above; the buffer has as much room as is said.
    let written = unsafe { (class.write)(graph, bytes.as_mut_ptr().cast(), length) };
    written.then_some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn without_tensorflow_there_is_nothing_to_register_with() {
        assert!(!super::register());
    }
}
