use super::Register;
use crate::fold::Hints;

/// Copies `len` bytes.
///
/// # Safety
/// The bytes are valid and do not overlap, and what the module says.
#[inline(always)]
pub(crate) unsafe fn copy<R: Register>(to: *mut u8, from: *const u8, len: usize, hints: Hints) {
    let _ = hints;
    // SAFETY: the caller's promise is the same.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}
