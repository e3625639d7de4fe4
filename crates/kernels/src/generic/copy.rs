use super::{AHEAD, LINE, Register, to_next_line};
use crate::arch::prefetch_for_writing;
use crate::fold::Hints;

/// Copies `len` bytes.
///
/// # Safety
/// The bytes are valid and do not overlap, and what the module says.
#[inline(always)]
pub(crate) unsafe fn copy<R: Register>(to: *mut u8, from: *const u8, len: usize, hints: Hints) {
    let head = if hints.streaming { to_next_line(to.addr()).min(len) } else { 0 };
    // SAFETY: the first bytes of both.
    unsafe { copy_rest::<R>(to, from, 0, head) }
    let mut offset = head;
    while offset + LINE <= len {
        if hints.take_ownership {
            prefetch_for_writing(from.wrapping_add((offset + AHEAD).min(len - 1)));
        }
        // SAFETY: both have a line's worth of bytes there; after the head, `to` is aligned.
        unsafe { copy_line::<R>(to.wrapping_add(offset), from.wrapping_add(offset), hints.streaming) }
        offset += LINE;
    }
    // SAFETY: the last bytes of both.
    unsafe { copy_rest::<R>(to, from, offset, len) }
}

/// Copies the bytes from `offset` to `end`, which are few.
#[inline(always)]
unsafe fn copy_rest<R: Register>(to: *mut u8, from: *const u8, mut offset: usize, end: usize) {
    while offset < end {
        let len = (end - offset).min(R::BYTES);
        // SAFETY: the source has these bytes.
        let raw = unsafe { R::load_partial(from.wrapping_add(offset), len) };
        // SAFETY: the destination has these bytes.
        unsafe { raw.store_partial(to.wrapping_add(offset), len) }
        offset += len;
    }
}

/// Copies the bytes of one cache line.
///
/// # Safety
/// As `copy`, of `LINE` bytes; with `streaming`, `to` is aligned to a cache line.
#[inline(always)]
pub(super) unsafe fn copy_line<R: Register>(to: *mut u8, from: *const u8, streaming: bool) {
    let mut offset = 0;
    while offset < LINE {
        // SAFETY: the source has a line's worth of bytes.
        let raw = unsafe { R::load(from.wrapping_add(offset)) };
        if streaming {
            // SAFETY: the destination has a line's worth of bytes, aligned.
            unsafe { raw.store_streaming(to.wrapping_add(offset)) }
        } else {
            // SAFETY: the destination has a line's worth of bytes.
            unsafe { raw.store(to.wrapping_add(offset)) }
        }
        offset += R::BYTES;
    }
}
