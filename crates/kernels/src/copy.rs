use crate::dispatch;
use crate::fold::Hints;
use crate::partial;
use crate::shared::{ForeignBytes, SharedBytes};

/// Up to so many bytes are copied at once: to call a kernel would take longer.
const FEW: usize = 16;

/// Copies this rank's bytes into shared memory.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_in(to: SharedBytes<'_>, from: &[u8]) {
    assert!(to.len() == from.len(), "{} bytes to copy into {} shared bytes", from.len(), to.len());
    if from.len() <= FEW {
        // SAFETY: the source has this length.
        let few = unsafe { partial::read(from.as_ptr(), from.len()) };
        // SAFETY: so has the destination.
        unsafe { partial::write(few, to.as_ptr(), from.len()) }
        return;
    }
    // SAFETY: both have this length; they do not overlap, because no reference to shared memory exists.
    unsafe { (dispatch::table().copy)(to.as_ptr(), from.as_ptr(), from.len(), Hints::default()) }
}

/// Copies shared memory to where only this rank reads it.
///
/// # Panics
/// If the lengths differ.
pub fn copy_out(to: &mut [u8], from: SharedBytes<'_>) {
    copy_out_with(to, from, Hints::default());
}

/// [`copy_out`] with hints. After a streaming copy call [`finish_streaming`] before telling anyone about the bytes.
///
/// # Panics
/// If the lengths differ.
pub fn copy_out_with(to: &mut [u8], from: SharedBytes<'_>, hints: Hints) {
    assert!(to.len() == from.len(), "{} shared bytes to copy into {} bytes", from.len(), to.len());
    // SAFETY: both have this length; they do not overlap, because no reference to shared memory exists.
    unsafe { (dispatch::table().copy)(to.as_mut_ptr(), from.as_ptr(), to.len(), hints) }
}

/// Copies memory of another process to where only this rank writes, with hints as for [`copy_out_with`].
///
/// # Panics
/// If the lengths differ.
pub fn take(to: &mut [u8], from: ForeignBytes<'_>, hints: Hints) {
    assert!(to.len() == from.len(), "{} foreign bytes to copy into {} bytes", from.len(), to.len());
    // SAFETY: both have this length; they do not overlap, because no reference to foreign memory exists.
    unsafe { (dispatch::table().copy)(to.as_mut_ptr(), from.as_ptr(), to.len(), hints) }
}

/// Orders streaming stores before everything that follows. To be called once, after the last fold or copy with
/// `streaming` set, before another thread or process may learn of the result.
pub fn finish_streaming() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has SSE, of which this fence is a part.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    // Elsewhere, and in Miri, no streaming stores are used.
}
