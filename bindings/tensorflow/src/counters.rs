//! What this library has done so far, for tests and for finding leaks.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) static KERNELS_CREATED: AtomicU64 = AtomicU64::new(0);
pub(crate) static KERNELS_DELETED: AtomicU64 = AtomicU64::new(0);
pub(crate) static CALLS_SUBMITTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static CALLS_FINISHED: AtomicU64 = AtomicU64::new(0);
pub(crate) static OUTPUTS_FORWARDED: AtomicU64 = AtomicU64::new(0);

/// Counts since the library was loaded.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    /// Kernel objects made.
    pub kernels_created: u64,
    /// Kernel objects ended.
    pub kernels_deleted: u64,
    /// Calls handed to the engine.
    pub calls_submitted: u64,
    /// Calls that the engine has ended.
    pub calls_finished: u64,
    /// Calls whose result replaced their input.
    pub outputs_forwarded: u64,
}

pub(crate) fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Writes the counts.
///
/// # Safety
/// `counters` points to memory for one [`Counters`].
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foldcast_tensorflow_counters(counters: *mut Counters) {
    let now = Counters {
        kernels_created: KERNELS_CREATED.load(Relaxed),
        kernels_deleted: KERNELS_DELETED.load(Relaxed),
        calls_submitted: CALLS_SUBMITTED.load(Relaxed),
        calls_finished: CALLS_FINISHED.load(Relaxed),
        outputs_forwarded: OUTPUTS_FORWARDED.load(Relaxed),
    };
    // SAFETY: the caller promises the room.
    unsafe { counters.write(now) };
}
