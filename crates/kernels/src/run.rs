//! Puts folds of any size and alignment together from the kernels.
//!
//! The kernels only do what has to be in one loop to be fast. A second output, and streaming of anything but two
//! sources, are done in blocks that stay in the first-level cache: fold a block, then copy it.

use core::mem::MaybeUninit;

use crate::arch::prefetch_for_writing;
use crate::dispatch::Kernel;
use crate::fold::Hints;
use crate::generic::fold::STEP;
use crate::generic::{AHEAD, FoldJob, LINE, PairJob, to_next_line};

/// Bytes of a block: a few of them fit the first-level cache.
const BLOCK: usize = 4096;

/// Folds a job that starts at 0, and writes the result to `also` as well if that is given. `size` is that of an
/// element, in bytes.
///
/// # Safety
/// See `FoldJob`; `also` is as the output is, and the processor has the kernel's instruction set. With `streaming`,
/// the output is none of the sources.
#[inline]
pub(crate) unsafe fn fold(kernel: &Kernel, size: usize, job: &FoldJob<'_>, also: Option<*mut u8>, streaming: bool) {
    take_first_lines(job);
    if also.is_none() && !streaming {
        // SAFETY: the caller's promise is the same.
        unsafe { plain(kernel, job) }
    } else if also.is_none() && job.sources.len() == 2 {
        // SAFETY: the caller's promise is the same.
        unsafe { pair(kernel, size, job, true, core::ptr::null(), core::ptr::null_mut(), 0) }
    } else {
        // SAFETY: the caller's promise is the same.
        unsafe { blocks(kernel, size, job, also, streaming) }
    }
}

/// Folds a job of two sources that starts at 0, and copies `stage_len` bytes from `next` to `stage`.
///
/// # Safety
/// See `fold`, and `PairJob` for `next` and `stage`.
pub(crate) unsafe fn fold_pair(
    kernel: &Kernel,
    size: usize,
    job: &FoldJob<'_>,
    streaming: bool,
    next: *const u8,
    stage: *mut u8,
    stage_len: usize,
) {
    take_first_lines(job);
    // SAFETY: the caller's promise is the same.
    unsafe { pair(kernel, size, job, streaming, next, stage, stage_len) }
}

/// Asks for the lines that come before those that the kernels ask for.
#[inline]
fn take_first_lines(job: &FoldJob<'_>) {
    if job.wanted_end == 0 {
        return;
    }
    for &source in job.sources {
        if source != job.own {
            let mut offset = 0;
            while offset < job.wanted_end.min(AHEAD) {
                prefetch_for_writing(source.wrapping_add(offset));
                offset += LINE;
            }
        }
    }
}

/// # Safety
/// See `fold`.
#[inline]
unsafe fn plain(kernel: &Kernel, job: &FoldJob<'_>) {
    let fold = kernel.fold[job.sources.len().min(kernel.fold.len()) - 1];
    // SAFETY: the caller's promise is the same.
    unsafe { fold(job) }
}

/// See `fold_pair`. Streams if a whole number of elements leads to the output's first cache line.
///
/// # Safety
/// See `fold_pair`.
#[inline(never)]
unsafe fn pair(
    kernel: &Kernel,
    size: usize,
    job: &FoldJob<'_>,
    streaming: bool,
    next: *const u8,
    stage: *mut u8,
    stage_len: usize,
) {
    let FoldJob { output, end, .. } = *job;
    let sources: [*const u8; 2] = *job.sources.first_chunk().expect("a pair has two sources");
    let wanted = if sources[0] == job.own { sources[1] } else { sources[0] };
    let head = to_next_line(output.addr());
    let streaming = streaming && head.is_multiple_of(size) && head + STEP <= end;
    let start = if streaming { head } else { 0 };
    // SAFETY: the first bytes of the job.
    unsafe { plain(kernel, &FoldJob { end: start, ..*job }) }

    let whole = |len: usize| len / STEP * STEP;
    let both = whole(stage_len.min(end - start));
    let alone = if streaming { whole(end - start - both) } else { 0 };
    let at = |offset: usize, len: usize| PairJob {
        sources: sources.map(|source| source.wrapping_add(offset)),
        wanted: wanted.wrapping_add(offset),
        wanted_len: job.wanted_end.saturating_sub(offset),
        output: output.wrapping_add(offset),
        next,
        stage,
        len,
        streaming,
    };
    if both > 0 {
        // SAFETY: bytes of the job and of the stage, a whole number of steps, aligned if streaming.
        unsafe { (kernel.pair)(&at(start, both)) }
    }
    if alone > 0 {
        let alone = PairJob { stage: core::ptr::null_mut(), ..at(start + both, alone) };
        // SAFETY: bytes of the job, a whole number of steps, aligned if streaming.
        unsafe { (kernel.pair)(&alone) }
    }
    let done = start + both + alone;
    if done < end {
        let rest = FoldJob { start: done, output: output.wrapping_add(done), ..*job };
        // SAFETY: the last bytes of the job.
        unsafe { plain(kernel, &rest) }
    }
    if both < stage_len {
        let (to, from) = (stage.wrapping_add(both), next.wrapping_add(both));
        // SAFETY: the last bytes of the stage.
        unsafe { (kernel.copy)(to, from, stage_len - both, Hints::default()) }
    }
}

/// See `fold`: folds each block to `also` or, if there is none, to the stack, and copies it to the output.
///
/// # Safety
/// See `fold`.
#[inline(never)]
unsafe fn blocks(kernel: &Kernel, size: usize, job: &FoldJob<'_>, also: Option<*mut u8>, streaming: bool) {
    let mut scratch = [const { MaybeUninit::<u8>::uninit() }; BLOCK + LINE];
    let hints = Hints { streaming, take_ownership: false };
    // Blocks that end where cache lines of the output end, if they can.
    let head = to_next_line(job.output.addr());
    let mut block_end = if head.is_multiple_of(size) { head } else { 0 };
    let mut start = 0;
    while start < job.end {
        block_end = (block_end + BLOCK).min(job.end);
        let result = also.map_or(scratch.as_mut_ptr().cast(), |also| also.wrapping_add(start));
        // SAFETY: bytes of the job; the result has room for as many, at most a block and what leads to a cache line.
        unsafe { plain(kernel, &FoldJob { start, end: block_end, output: result, ..*job }) }
        // SAFETY: the result was written by the line above; it is apart from the output.
        unsafe { (kernel.copy)(job.output.wrapping_add(start), result, block_end - start, hints) }
        start = block_end;
    }
}
