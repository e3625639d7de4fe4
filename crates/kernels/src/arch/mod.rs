//! The instruction sets: how each one loads, computes and stores, and its entry points.

mod entry;
mod half;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use portable::PORTABLE;

/// Asks for a cache line, to read it soon. Any address will do.
#[inline(always)]
pub(crate) fn prefetch_for_reading(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch takes any address, and every x86-64 processor has SSE, of which it is a part.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch takes any address.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for a cache line, to write to it soon. Any address will do.
#[inline(always)]
pub(crate) fn prefetch_for_writing(at: *const u8) {
    // Not the intrinsic: without a target feature of its own it becomes a prefetch for reading. To every x86-64
    // processor this is an instruction, to those without the feature one that does nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch takes any address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch takes any address.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
    // Miri runs no assembly.
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}
