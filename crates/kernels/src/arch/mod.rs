//! The instruction sets: how each one loads, computes and stores, and its entry points.

mod entry;
mod half;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use portable::PORTABLE;

/// Asks for a cache line, to write to it soon. Any address will do.
#[inline(always)]
pub(crate) fn prefetch_for_writing(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch takes any address, and processors without this one ignore it.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch takes any address.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
