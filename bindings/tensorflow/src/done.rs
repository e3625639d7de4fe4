//! The completion callback of an asynchronous kernel.
//!
//! TensorFlow hands an asynchronous kernel of the C API the address of a `std::function<void()>` that lives in its
//! caller's frame and is destroyed when the kernel's compute function returns; calling it later, as an asynchronous
//! kernel must, would run freed memory. So the function object is moved to the heap at once, as its C++ move
//! constructor would do it. That needs its layout, which is libstdc++'s, and the same since C++11 on every 64-bit
//! Linux: two words of storage (the callable itself, if it is trivially copyable and small, or a pointer to it),
//! then the manager, then the invoker. Either storage may be copied word by word. An empty object has a null manager,
//! and its destructor does nothing.

use core::ffi::{c_int, c_void};

use crate::api::{RawDone, api};

/// `std::function<void()>` of libstdc++.
#[repr(C)]
struct Function {
    storage: [usize; 2],
    manager: Option<unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> bool>,
    invoker: Option<unsafe extern "C" fn(*const c_void)>,
}

/// The manager's operation that destroys the callable.
const DESTROY: c_int = 3;

/// Calls TensorFlow back when it is dropped: a call that is begun ends exactly once on every path.
pub(crate) struct Done {
    function: Box<Function>,
}

// SAFETY: TensorFlow means the callback to run on whatever thread ends the work, and the value is reachable from one
// thread at a time.
unsafe impl Send for Done {}

impl Done {
    /// Moves the callback out of its place.
    ///
    /// # Safety
    /// `raw` is what TensorFlow has handed to the compute function that is running now, for the first time.
    pub(crate) unsafe fn take(raw: *mut RawDone) -> Done {
        let place = raw.cast::<Function>();
        // SAFETY: the callback is a live `std::function` with the layout of `Function` (see the module's text), and
        // every word of that is a valid value of its field, functions being null or the address of one.
        let moved = unsafe { place.read() };
        let empty = Function { storage: [0; 2], manager: None, invoker: None };
        // SAFETY: the place is alive and belongs to the caller's frame, which does not look at it while this function
        // runs; afterwards its destructor sees an empty object and leaves the callable to `moved`.
        unsafe { place.write(empty) };
        Done { function: Box::new(moved) }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        let function: *mut Function = &mut *self.function;
        // SAFETY: `function` is a `std::function` that owns its callable, and this is its only call.
        unsafe { (api().TF_RunAsyncOpKernelDoneCallback)(function.cast()) };
        destroy(&mut self.function);
    }
}

/// Destroys the callable, as the destructor of `std::function` would.
fn destroy(function: &mut Function) {
    if let Some(manager) = function.manager.take() {
        let storage: *mut [usize; 2] = &mut function.storage;
        // SAFETY: the manager belongs to the callable in this storage, which is alive and is not used afterwards.
        unsafe { manager(storage.cast(), storage.cast_const().cast(), DESTROY) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    static DESTROYED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn manager(storage: *mut c_void, _: *const c_void, operation: c_int) -> bool {
        assert_eq!(operation, DESTROY);
        // SAFETY: `destroy` passes the storage of the function object, whose first word is readable.
        DESTROYED.store(unsafe { storage.cast::<usize>().read() }, SeqCst);
        true
    }

    unsafe extern "C" fn invoker(_: *const c_void) {}

    #[test]
    fn taking_moves_the_callable_and_empties_the_place() {
        let mut place = Function { storage: [11, 22], manager: Some(manager), invoker: Some(invoker) };
        let raw: *mut Function = &mut place;
        // SAFETY: `raw` is a live function object that nobody else uses.
        let done = core::mem::ManuallyDrop::new(unsafe { Done::take(raw.cast()) });
        assert!(place.manager.is_none() && place.invoker.is_none());
        assert_eq!(done.function.storage, [11, 22]);
        assert!(done.function.manager.is_some() && done.function.invoker.is_some());
    }

    #[test]
    fn destroying_happens_once() {
        let mut function = Function { storage: [33, 0], manager: Some(manager), invoker: Some(invoker) };
        destroy(&mut function);
        assert_eq!(DESTROYED.swap(0, SeqCst), 33);
        destroy(&mut function);
        assert_eq!(DESTROYED.load(SeqCst), 0);
    }
}
