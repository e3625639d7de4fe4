//! How a call is ended: the completion callback of an asynchronous kernel, or a signal to a thread that waits.
//!
//! TensorFlow hands an asynchronous kernel of the C API the address of a `std::function<void()>` that lives in its
//! caller's frame and is destroyed when the kernel's compute function returns; calling it later, as an asynchronous
//! kernel must, would run freed memory. So the function object is moved to the heap at once, as its C++ move
//! constructor would do it. That needs its layout, which is libstdc++'s, and the same since C++11 on every 64-bit
//! Linux: two words of storage (the callable itself, if it is trivially copyable and small, or a pointer to it),
//! then the manager, then the invoker. Either storage may be copied word by word. An empty object has a null manager,
//! and its destructor does nothing.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

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

/// Ends the call when it is dropped: a call that is begun ends exactly once on every path.
pub(crate) struct Done {
    way: Way,
}

enum Way {
    Callback(Box<Function>),
    Signal(Arc<Signal>),
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
        Done { way: Way::Callback(Box::new(moved)) }
    }

    /// Wakes whoever waits for the signal.
    pub(crate) fn signal(signal: &Arc<Signal>) -> Done {
        Done { way: Way::Signal(Arc::clone(signal)) }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        match &mut self.way {
            Way::Signal(signal) => signal.set(),
            Way::Callback(function) => {
                run(function);
                destroy(function);
            }
        }
    }
}

fn run(function: &mut Function) {
    let raw: *mut Function = function;
    if let Some(run) = api().TF_RunAsyncOpKernelDoneCallback {
        // SAFETY: `raw` is a `std::function` that owns its callable, and this is its only call.
        unsafe { run(raw.cast()) };
    } else if let Some(invoker) = function.invoker {
        // SAFETY: the invoker belongs to the callable in this storage, which starts the object; its only call.
        unsafe { invoker(raw.cast_const().cast()) };
    }
}

/// For a synchronous kernel, whose thread waits for the end of its call.
#[derive(Default)]
pub(crate) struct Signal {
    ended: Mutex<bool>,
    condition: Condvar,
}

impl Signal {
    fn set(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_all();
    }

    /// Returns when the call has ended. The engine ends every call: at its deadline at the latest.
    pub(crate) fn wait(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.condition.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
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
        let Way::Callback(function) = &done.way else { panic!("a callback was taken") };
        assert_eq!(function.storage, [11, 22]);
        assert!(function.manager.is_some() && function.invoker.is_some());
    }

    #[test]
    fn a_signal_wakes_the_thread_that_waits() {
        let signal = Arc::new(Signal::default());
        let done = Done::signal(&signal);
        let thread = std::thread::spawn(move || drop(done));
        signal.wait();
        thread.join().expect("it drops only");
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
