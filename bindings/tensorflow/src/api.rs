//! TensorFlow's C API, looked up in the libraries that the process has already loaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Objects of TensorFlow, known by address only.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub(crate) struct $name { _private: [u8; 0] })*
    };
}

opaque! {
    /// `TF_Status`
    RawStatus;
    /// `TF_Tensor`
    RawTensor;
    /// `TF_OpKernelContext`
    RawContext;
    /// `TF_OpKernelConstruction`
    RawConstruction;
    /// `TF_AsyncOpKernelDoneCallback`
    RawDone;
    /// `TF_OpDefinitionBuilder`
    RawOpBuilder;
    /// `TF_KernelBuilder`
    RawKernelBuilder;
    /// `TF_ShapeInferenceContext`
    RawShapeContext;
    /// `TF_ShapeHandle`
    RawShape;
}

/// `TF_StringView`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct StringView {
    pub(crate) data: *const c_char,
    pub(crate) len: usize,
}

/// Makes the kernel object.
pub(crate) type CreateFn = unsafe extern "C" fn(*mut RawConstruction) -> *mut c_void;
/// Starts one call of the kernel.
pub(crate) type ComputeFn = unsafe extern "C" fn(*mut c_void, *mut RawContext, *mut RawDone);
/// Runs one call of a synchronous kernel.
pub(crate) type ComputeSyncFn = unsafe extern "C" fn(*mut c_void, *mut RawContext);
/// Ends the kernel object.
pub(crate) type DeleteFn = unsafe extern "C" fn(*mut c_void);
/// Infers the output's shape.
pub(crate) type ShapeFn = unsafe extern "C" fn(*mut RawShapeContext, *mut RawStatus);

macro_rules! functions {
    (
        required { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $(fn $newer:ident($($newer_argument:ty),*) $(-> $newer_result:ty)?;)* }
    ) => {
        /// The functions that this library needs, under TensorFlow's own names; those that old releases lack are options.
        #[allow(non_snake_case, reason = "TensorFlow's own names")]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(crate) $newer: Option<unsafe extern "C" fn($($newer_argument),*) $(-> $newer_result)?>,)*
        }

        impl Api {
            /// Looks up every function; the names of those that are missing otherwise.
            fn load(libraries: &Libraries) -> Result<Api, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    #[allow(non_snake_case, reason = "TensorFlow's own names")]
                    let $name = libraries.find(concat!(stringify!($name), "\0"));
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok(Api {
                    $($name: {
                        let address = $name.expect("every address was found: none is missing");
                        // SAFETY: the address is that of TensorFlow's function of this name, whose C declaration has
                        // had this very signature in every release since it appeared; function pointers and
                        // addresses have the same size on every target.
                        unsafe {
                            core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                    $($newer: libraries.find(concat!(stringify!($newer), "\0")).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($newer_argument),*) $(-> $newer_result)?,
                            >(address.as_ptr())
                        }
                    }),)*
                })
            }
        }
    };
}

functions! {
    required {
        fn TF_NewStatus() -> *mut RawStatus;
        fn TF_DeleteStatus(*mut RawStatus);
        fn TF_SetStatus(*mut RawStatus, c_int, *const c_char);
        fn TF_GetCode(*const RawStatus) -> c_int;
        fn TF_Message(*const RawStatus) -> *const c_char;

        fn TF_NewOpDefinitionBuilder(*const c_char) -> *mut RawOpBuilder;
        fn TF_OpDefinitionBuilderAddAttr(*mut RawOpBuilder, *const c_char);
        fn TF_OpDefinitionBuilderAddInput(*mut RawOpBuilder, *const c_char);
        fn TF_OpDefinitionBuilderAddOutput(*mut RawOpBuilder, *const c_char);
        fn TF_OpDefinitionBuilderSetIsStateful(*mut RawOpBuilder, bool);
        fn TF_OpDefinitionBuilderSetShapeInferenceFunction(*mut RawOpBuilder, ShapeFn);
        fn TF_RegisterOpDefinition(*mut RawOpBuilder, *mut RawStatus);
        fn TF_NewShapeHandle() -> *mut RawShape;
        fn TF_DeleteShapeHandle(*mut RawShape);
        fn TF_ShapeInferenceContextGetInput(*mut RawShapeContext, c_int, *mut RawShape, *mut RawStatus);
        fn TF_ShapeInferenceContextNumInputs(*mut RawShapeContext) -> i64;
        fn TF_ShapeInferenceContextSetUnknownShape(*mut RawShapeContext, *mut RawStatus);
        fn TF_ShapeInferenceContextSetOutput(*mut RawShapeContext, c_int, *mut RawShape, *mut RawStatus);

        fn TF_NewKernelBuilder(
            *const c_char, *const c_char, Option<CreateFn>, ComputeSyncFn, Option<DeleteFn>) -> *mut RawKernelBuilder;
        fn TF_RegisterKernelBuilder(*const c_char, *mut RawKernelBuilder, *mut RawStatus);
        fn TF_OpKernelConstruction_Failure(*mut RawConstruction, *mut RawStatus);
        fn TF_OpKernelConstruction_GetAttrType(*mut RawConstruction, *const c_char, *mut c_int, *mut RawStatus);

        fn TF_OpKernelContext_Failure(*mut RawContext, *mut RawStatus);
        fn TF_StepId(*mut RawContext) -> i64;
        fn TF_NumInputs(*mut RawContext) -> c_int;
        fn TF_GetInput(*mut RawContext, c_int, *mut *mut RawTensor, *mut RawStatus);
        fn TF_SetOutput(*mut RawContext, c_int, *const RawTensor, *mut RawStatus);
        fn TF_ExpectedOutputDataType(*mut RawContext, c_int) -> c_int;
        fn TF_AllocateTensor(c_int, *const i64, c_int, usize) -> *mut RawTensor;
        fn TF_DeleteTensor(*mut RawTensor);
        fn TF_NumDims(*const RawTensor) -> c_int;
        fn TF_Dim(*const RawTensor, c_int) -> i64;
        fn TF_TensorByteSize(*const RawTensor) -> usize;
        fn TF_TensorData(*const RawTensor) -> *mut c_void;
    }
    optional {
        fn TF_Version() -> *const c_char;
        // Since 2.2, 2.4 and the like: not in 1.15.
        fn TF_OpKernelConstruction_GetName(*mut RawConstruction) -> StringView;
        fn TF_OpKernelConstruction_GetAttrInt64(*mut RawConstruction, *const c_char, *mut i64, *mut RawStatus);
        fn TF_OpKernelConstruction_GetAttrSize(
            *mut RawConstruction, *const c_char, *mut i32, *mut i32, *mut RawStatus);
        fn TF_OpKernelConstruction_GetAttrString(
            *mut RawConstruction, *const c_char, *mut c_char, usize, *mut RawStatus);
        fn TF_ForwardInputOrAllocateOutput(
            *mut RawContext, *const c_int, c_int, c_int, *const i64, c_int, *mut c_int, *mut RawStatus)
            -> *mut RawTensor;
        fn TF_ShapeInferenceContextWithRankAtLeast(
            *mut RawShapeContext, *mut RawShape, i64, *mut RawShape, *mut RawStatus);
        fn TF_ShapeInferenceContextSubshape(
            *mut RawShapeContext, *mut RawShape, i64, i64, *mut RawShape, *mut RawStatus);
        fn TF_ShapeInferenceContextVectorFromSize(*mut RawShapeContext, usize) -> *mut RawShape;
        fn TF_ShapeInferenceContextConcatenateShapes(
            *mut RawShapeContext, *mut RawShape, *mut RawShape, *mut RawShape, *mut RawStatus);
        fn TF_LoadPluggableDeviceLibrary(*const c_char, *mut RawStatus) -> *mut c_void;
        // Since 2.12 or 2.15: not in 2.6 either.
        fn TF_NewAsyncKernelBuilder(
            *const c_char, *const c_char, Option<CreateFn>, ComputeFn, Option<DeleteFn>) -> *mut RawKernelBuilder;
        fn TF_RunAsyncOpKernelDoneCallback(*mut RawDone);
        fn TF_GetFrameId(*mut RawContext) -> u64;
        fn TF_GetIterId(*mut RawContext) -> i64;
    }
}

/// Where TensorFlow's functions are: the first holds nearly all of them since 2.7, the last one before.
const FILES: [&str; 4] = [
    "libtensorflow_framework.so.2",
    "libtensorflow_framework.so.1",
    "libtensorflow_cc.so.2",
    "_pywrap_tensorflow_internal.so",
];

/// Handles of the loaded libraries, kept open for the life of the process.
pub(crate) struct Libraries {
    handles: Vec<*mut c_void>,
}

// SAFETY: handles of libraries that are never closed; the loader's functions may be called on any thread.
unsafe impl Send for Libraries {}
// SAFETY: as above.
unsafe impl Sync for Libraries {}

/// The libraries of TensorFlow that the process had loaded when it was first asked.
pub(crate) fn libraries() -> &'static Libraries {
    static LOADED: OnceLock<Libraries> = OnceLock::new();
    LOADED.get_or_init(Libraries::loaded)
}

impl Libraries {
    /// Those of [`FILES`] that the process has loaded; loads nothing. By their paths, because one has no soname.
    fn loaded() -> Libraries {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut paths: Vec<&str> = maps
            .lines()
            .filter_map(|line| line.find('/').map(|start| &line[start..]))
            .filter(|path| FILES.contains(&path.rsplit('/').next().unwrap_or_default()))
            .collect();
        paths.dedup();
        paths.sort_by_key(|path| FILES.iter().position(|file| path.ends_with(file)));
        paths.dedup();
        let open = |path: &&str| {
            let path = crate::status::c_string(path);
            // SAFETY: the path is a valid C string, and RTLD_NOLOAD only looks among what is loaded: no initialiser of
            // another library runs.
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
        };
        Libraries { handles: paths.iter().map(open).filter(|handle| !handle.is_null()).collect() }
    }

    /// The addresses that the loaded libraries give for a symbol; two of 1.15 have copies of some.
    pub(crate) fn find_all<'a>(&'a self, name: &'a CStr) -> impl Iterator<Item = *mut c_void> + 'a {
        self.handles.iter().filter_map(|handle| {
            // SAFETY: the handle came from dlopen and is never closed; the name is a valid C string.
            core::ptr::NonNull::new(unsafe { libc::dlsym(*handle, name.as_ptr()) }).map(core::ptr::NonNull::as_ptr)
        })
    }

    /// The address of a symbol; the name ends with a zero byte.
    pub(crate) fn find(&self, name: &str) -> Option<core::ptr::NonNull<c_void>> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("the names end with their only zero byte");
        self.handles.iter().find_map(|handle| {
            // SAFETY: the handle came from dlopen and is never closed; the name is a valid C string.
            core::ptr::NonNull::new(unsafe { libc::dlsym(*handle, name.as_ptr()) })
        })
    }
}

/// The functions of the TensorFlow in this process.
///
/// # Errors
/// A sentence for the user, if TensorFlow is not loaded or is too old.
pub(crate) fn load() -> Result<&'static Api, &'static str> {
    static LOADED: OnceLock<Result<Api, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let libraries = libraries();
        if libraries.handles.is_empty() {
            return Err("TensorFlow is not loaded in this process: load this library by tf.load_op_library".into());
        }
        Api::load(libraries).map_err(|missing| {
            format!("this TensorFlow's C API lacks {}: TensorFlow 1.15, or 2.6 or newer, is needed", missing.join(", "))
        })
    });
    loaded.as_ref().map_err(String::as_str)
}

/// The functions of TensorFlow, for code that only TensorFlow calls.
pub(crate) fn api() -> &'static Api {
    load().expect("TensorFlow calls only what was registered, and nothing is registered without its functions")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_without_tensorflow_is_told_so() {
        let problem = super::load().err().expect("the test program has no TensorFlow");
        assert!(problem.contains("tf.load_op_library"), "{problem}");
    }
}
