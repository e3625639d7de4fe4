//! What TensorFlow's C API did not offer before 2.15, by the C++ functions that its libraries export.
//!
//! Releases before 2.15 have no asynchronous kernels in their C API, and 1.15 cannot read a node's strings. Their C++
//! classes can do both, and the libraries export the functions of these classes under their mangled names. This module
//! calls them as a compiler would: by the Itanium C++ ABI, which gcc and clang share on Linux. What is taken for granted
//! about the layout of classes is listed at the place, and checked where that can be; a symbol that is missing, or a
//! check that fails, gives `None`, and this library does without.
//!
//! * An asynchronous kernel is an object of the class `AsyncOpKernel`: its memory is ours, its base is made by the
//!   exported constructor of `OpKernel`, and its virtual functions are a copy of the exported table of
//!   `AsyncOpKernel` with our destructors and our `ComputeAsync`, which is the only pure virtual function in there.
//! * A node's definition is a message object that can write itself into a buffer, in the encoding that `wire` reads.
//! * Frame and iteration are members of the parameters of a kernel's call; where, is known for 1.15 and 2.6.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::OnceLock;

use crate::api::{ComputeFn, CreateFn, DeleteFn, RawConstruction, RawContext, RawDone, api, libraries};

/// The address of a C++ function or object; 0 bytes are appended here.
fn symbol(name: &str) -> Option<*mut c_void> {
    libraries().find(&format!("{name}\0")).map(core::ptr::NonNull::as_ptr)
}

/// The functions of one op's kernel, as the C API takes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) create: CreateFn,
    pub(crate) compute: ComputeFn,
    pub(crate) delete: DeleteFn,
}

/// Bytes of a kernel object: more than an `OpKernel` of any release has, which are some 300. Our part lies at the end.
const KERNEL_BYTES: usize = 4096;
const KERNEL_LAYOUT: Layout = match Layout::from_size_align(KERNEL_BYTES, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two, and the size a multiple of it"),
};

/// The object that TensorFlow takes for an `AsyncOpKernel`.
#[repr(C, align(64))]
struct Kernel {
    virtuals: *const *const c_void,
    base: [u8; KERNEL_BYTES - 5 * 8],
    functions: Functions,
    /// What `functions.create` made; may be null.
    kernel: *mut c_void,
}

const _: () = assert!(size_of::<Kernel>() == KERNEL_BYTES && align_of::<Kernel>() == 64);

/// What it takes to make asynchronous kernels.
struct AsyncClass {
    /// `OpKernel::OpKernel(OpKernelConstruction*)`
    construct: unsafe extern "C" fn(*mut c_void, *mut RawConstruction),
    /// `OpKernel::~OpKernel()`
    destruct: unsafe extern "C" fn(*mut c_void),
    /// The virtual functions: our copy of the table of `AsyncOpKernel`, from its first function on.
    virtuals: &'static [usize],
}

/// Slots of the longest table that is looked at: it has 7 or 8.
const MAX_SLOTS: usize = 32;

fn async_class() -> Option<&'static AsyncClass> {
    static CLASS: OnceLock<Option<AsyncClass>> = OnceLock::new();
    CLASS.get_or_init(find_async_class).as_ref()
}

fn find_async_class() -> Option<AsyncClass> {
    let table = symbol("_ZTVN10tensorflow13AsyncOpKernelE")?.cast::<usize>();
    let pure = symbol("__cxa_pure_virtual")?.addr();
    let construct = symbol("_ZN10tensorflow8OpKernelC2EPNS_20OpKernelConstructionE")?;
    let destruct = symbol("_ZN10tensorflow8OpKernelD2Ev")?;
    // A table is: the offset to the top of the object, 0 for a class without other bases; the type's description; the
    // two destructors; the other functions.
    // SAFETY: a table of virtual functions has these two words before its functions.
    let [top, description] = unsafe { table.cast::<[usize; 2]>().read() };
    if top != 0 || description == 0 {
        return None;
    }
    let mut slots = Vec::new();
    loop {
        // SAFETY: the words up to the pure virtual function belong to the table: the class is abstract, so it has one,
        // and but for the destructors, which an abstract class may lack, no function's address is 0; the loop ends at
        // either.
        let slot = unsafe { table.wrapping_add(2 + slots.len()).read() };
        if (slot == 0 && slots.len() >= 2) || slots.len() == MAX_SLOTS {
            return None;
        }
        slots.push(slot);
        if slot == pure {
            break;
        }
    }
    let last = slots.len() - 1;
    if last < 3 {
        return None;
    }
    #[allow(clippy::as_conversions, reason = "addresses of functions, as the table holds them")]
    {
        slots[0] = destroy as *const () as usize;
        slots[1] = destroy_and_free as *const () as usize;
        slots[last] = compute_async as *const () as usize;
    }
    // SAFETY: the base constructor's C++ signature; it returns nothing.
    let construct =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut RawConstruction)>(construct) };
    // SAFETY: the base destructor's C++ signature; it returns nothing.
    let destruct = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(destruct) };
    Some(AsyncClass { construct, destruct, virtuals: slots.leak() })
}

/// `AsyncOpKernel::ComputeAsync(OpKernelContext*, DoneCallback)`. The callback, a class with a destructor, comes as the
/// address of an object of the caller's: what `crate::done` expects. A `TF_OpKernelContext` is an `OpKernelContext`.
unsafe extern "C" fn compute_async(this: *mut Kernel, context: *mut RawContext, done: *mut RawDone) {
    // SAFETY: TensorFlow calls this on the objects that `make` made, while they live.
    let Functions { compute, .. } = unsafe { (*this).functions };
    // SAFETY: as above.
    let kernel = unsafe { (*this).kernel };
    // SAFETY: the functions belong together; context and callback are those of a call that begins.
    unsafe { compute(kernel, context, done) };
}

unsafe extern "C" fn destroy(this: *mut Kernel) {
    // SAFETY: TensorFlow destroys an object that `make` made, once.
    let Functions { delete, .. } = unsafe { (*this).functions };
    // SAFETY: as above.
    let kernel = unsafe { (*this).kernel };
    // SAFETY: the functions belong together, and no call of the kernel is running any more.
    unsafe { delete(kernel) };
    let class = async_class().expect("the object was made with it");
    // SAFETY: the base was made by the constructor that belongs to this destructor.
    unsafe { (class.destruct)(this.cast()) };
}

unsafe extern "C" fn destroy_and_free(this: *mut Kernel) {
    // SAFETY: as there.
    unsafe { destroy(this) };
    // SAFETY: `make` allocated the object with this layout.
    unsafe { dealloc(this.cast(), KERNEL_LAYOUT) };
}

/// The object that TensorFlow takes for an `OpKernelFactory`, which has two words of virtual functions after `Create`.
#[repr(C)]
struct Factory {
    virtuals: &'static FactoryFunctions,
    functions: Functions,
}

#[repr(C)]
struct FactoryFunctions {
    create: unsafe extern "C" fn(*const Factory, *mut RawConstruction) -> *mut Kernel,
    /// Factories live as long as the process.
    destructors: [unsafe extern "C" fn(*mut Factory); 2],
}

static FACTORY_FUNCTIONS: FactoryFunctions = FactoryFunctions { create: make, destructors: [keep, keep] };

unsafe extern "C" fn keep(_: *mut Factory) {}

/// `OpKernelFactory::Create(OpKernelConstruction*)`
unsafe extern "C" fn make(factory: *const Factory, construction: *mut RawConstruction) -> *mut Kernel {
    let class = async_class().expect("the factory was registered with it");
    // SAFETY: the layout has a size.
    let kernel = unsafe { alloc_zeroed(KERNEL_LAYOUT) }.cast::<Kernel>();
    if kernel.is_null() {
        std::alloc::handle_alloc_error(KERNEL_LAYOUT);
    }
    // SAFETY: the memory is larger than the base and aligned for anything in it.
    unsafe { (class.construct)(kernel.cast(), construction) };
    // SAFETY: factories live as long as the process.
    let functions = unsafe { (*factory).functions };
    // SAFETY: the construction is alive during this call.
    let made = unsafe { (functions.create)(construction) };
    let place = kernel.wrapping_byte_add(core::mem::offset_of!(Kernel, functions)).cast::<Functions>();
    // SAFETY: the object is ours alone so far, and zero bytes are a value of everything in it but the functions.
    unsafe { place.write(functions) };
    // SAFETY: every part of the object has a value now.
    let object = unsafe { &mut *kernel };
    object.virtuals = class.virtuals.as_ptr().cast();
    object.kernel = made;
    kernel
}

/// The function that registers kernels takes the name of their class as a `string_view`, whose own mangled name tells
/// the release: absl's up to 2.10 (its inline namespace, if it has one), then the standard library's. Second: the
/// number of the last template argument's back reference, which counts the names before it.
const STRING_VIEWS: [(&str, char); 6] = [
    ("N4absl11string_viewE", '8'),
    ("N4absl12lts_2021032411string_viewE", '9'),
    ("N4absl12lts_2021110211string_viewE", '9'),
    ("N4absl12lts_2022062311string_viewE", '9'),
    ("N4absl12lts_2023012511string_viewE", '9'),
    ("St17basic_string_viewIcSt11char_traitsIcEE", 'A'),
];

/// `OpKernelRegistrar::InitInternal(KernelDef const*, string_view, unique_ptr<OpKernelFactory>)`: a class without a
/// destructor comes as its two words, one with a destructor as an address.
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize, *mut *const Factory);

/// Registers an asynchronous kernel for an op on this device; false if this TensorFlow lacks what that takes.
pub(crate) fn register_async(op: &CStr, device: &CStr, class_name: &'static CStr, functions: Functions) -> bool {
    try_register_async(op, device, class_name, functions).is_some()
}

fn try_register_async(op: &CStr, device: &CStr, class_name: &'static CStr, functions: Functions) -> Option<()> {
    async_class()?;
    let (register, standard) = STRING_VIEWS.iter().find_map(|(view, reference)| {
        let name = format!(
            "_ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternalEPKNS_9KernelDefE{view}St10unique_ptrINS0_\
             15OpKernelFactoryESt14default_deleteIS{reference}_EE"
        );
        symbol(&name).map(|address| (address, view.starts_with("St")))
    })?;
    let construct = symbol("_ZN10tensorflow16KernelDefBuilderC1EPKc")?;
    let set_device = symbol("_ZN10tensorflow16KernelDefBuilder6DeviceEPKc")?;
    let build = symbol("_ZN10tensorflow16KernelDefBuilder5BuildEv")?;
    // SAFETY: the C++ signatures: `this` first, references and pointers as addresses.
    let construct = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_char)>(construct) };
    // SAFETY: as above.
    let set_device = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void>(set_device)
    };
    // SAFETY: as above.
    let build = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> *mut c_void>(build) };
    // SAFETY: as above.
    let register = unsafe { transmute::<*mut c_void, Register>(register) };

    // The builder is one pointer, the registrar is empty; both get room to spare.
    let mut builder = [0_usize; 16];
    let mut registrar = [0_usize; 2];
    let builder: *mut c_void = builder.as_mut_ptr().cast();
    // SAFETY: the builder has room, the name is a C string.
    unsafe { construct(builder, op.as_ptr()) };
    // SAFETY: the builder was made, the name is a C string.
    unsafe { set_device(builder, device.as_ptr()) };
    // SAFETY: the builder was made; it gives its definition away, and its destructor would then do nothing.
    let definition = unsafe { build(builder) };
    let factory: *const Factory = Box::leak(Box::new(Factory { virtuals: &FACTORY_FUNCTIONS, functions }));
    let mut factory = factory;
    let (start, length) = (class_name.as_ptr().addr(), class_name.count_bytes());
    // libstdc++ has the length first, absl the start.
    let (first, second) = if standard { (length, start) } else { (start, length) };
    // SAFETY: the definition and the factory go over to TensorFlow, the name lives as long as the process.
    unsafe { register(registrar.as_mut_ptr().cast(), definition, first, second, &mut factory) };
    Some(())
}

/// The functions by which a message object writes itself.
struct NodeDefs {
    /// What the first word of every `NodeDef` is.
    virtuals: usize,
    size: unsafe extern "C" fn(*const c_void) -> usize,
    write: unsafe extern "C" fn(*const c_void, *mut c_void, c_int) -> bool,
}

fn node_defs() -> Option<&'static NodeDefs> {
    static FOUND: OnceLock<Option<NodeDefs>> = OnceLock::new();
    let find = || {
        let virtuals = symbol("_ZTVN10tensorflow7NodeDefE")?.addr() + 2 * size_of::<usize>();
        let size = symbol("_ZNK10tensorflow7NodeDef12ByteSizeLongEv")?;
        let write = symbol("_ZNK6google8protobuf11MessageLite16SerializeToArrayEPvi")?;
        // SAFETY: the C++ signatures of the two constant members.
        let size = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> usize>(size) };
        // SAFETY: as above.
        let write =
            unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, *mut c_void, c_int) -> bool>(write) };
        Some(NodeDefs { virtuals, size, write })
    };
    FOUND.get_or_init(find).as_ref()
}

/// Whether [`node_def`] can work.
pub(crate) fn can_read_node_defs() -> bool {
    node_defs().is_some()
}

/// Which word of an `OpKernelConstruction` of 1.15 is the address of its `NodeDef`: after the device's type, the device,
/// and the allocator.
const NODE_DEF_WORD: usize = 3;

/// The encoded definition of the node whose kernel is being made, for 1.15.
///
/// # Safety
/// `construction` is alive.
pub(crate) unsafe fn node_def(construction: *mut RawConstruction) -> Option<Vec<u8>> {
    let functions = node_defs()?;
    let word = construction.cast_const().cast::<*const usize>().wrapping_add(NODE_DEF_WORD);
    // SAFETY: the object is alive and has more words than that, all addresses.
    let node = unsafe { word.read() };
    // SAFETY: every member up to this word is the address of something that is alive.
    if node.is_null() || unsafe { node.read() } != functions.virtuals {
        return None;
    }
    // SAFETY: the first word says that it is a `NodeDef`.
    let size = unsafe { (functions.size)(node.cast()) };
    let mut bytes = vec![0_u8; size];
    let room = c_int::try_from(size).ok()?;
    // SAFETY: as above; the buffer has as much room as is said.
    let written = unsafe { (functions.write)(node.cast(), bytes.as_mut_ptr().cast(), room) };
    written.then_some(bytes)
}

/// In which word of `OpKernelContext::Params` frame and iteration start, by the release's version.
const FRAME_WORDS: [(&str, usize); 2] = [("1.15.", 22), ("2.6.", 19)];

/// Which word of an `OpKernelContext` is the address of its `Params`, in the same releases.
const PARAMS_WORD: usize = 2;

/// Where [`frame_and_iteration`] has to look; `None` if this release's layout is not known.
fn frame_word() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let version = api().TF_Version?;
        // SAFETY: the function has no preconditions and gives a C string of the library's own.
        let version = unsafe { version() };
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
        FRAME_WORDS.iter().find(|(known, _)| version.starts_with(known)).map(|(_, word)| *word)
    })
}

/// Whether [`frame_and_iteration`] can work.
pub(crate) fn can_tell_iterations() -> bool {
    frame_word().is_some()
}

/// Frame and iteration of a call, for releases whose C API does not tell them.
///
/// # Safety
/// `context` is alive.
pub(crate) unsafe fn frame_and_iteration(context: *mut RawContext) -> Option<(u64, u64)> {
    let word = frame_word()?;
    let parameters = context.cast_const().cast::<*const u64>().wrapping_add(PARAMS_WORD);
    // SAFETY: the object is alive and has this word in the releases that `frame_word` knows.
    let parameters = unsafe { parameters.read() };
    // SAFETY: the context is alive.
    let step = unsafe { (api().TF_StepId)(context) };
    // SAFETY: the parameters live as long as the context, and their first member is the number of the step.
    if parameters.is_null() || unsafe { parameters.read() } != step.cast_unsigned() {
        return None;
    }
    // SAFETY: in this release the parameters have these two members there, and are longer.
    let [frame, iteration] = unsafe { parameters.wrapping_add(word).cast::<[u64; 2]>().read() };
    Some((frame, iteration))
}
