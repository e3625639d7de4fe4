use core::mem::MaybeUninit;

use super::copy::copy_line;
use super::{AHEAD, FAR_AHEAD, FoldJob, LINE, Lanes, Operation, PairJob, Register};
use crate::arch::{prefetch_for_reading, prefetch_for_writing};

/// A source's elements at `len` bytes from `offset` on: at least one, at most a register's worth, and that unless
/// `PARTIAL`.
#[inline(always)]
unsafe fn leaf<L: Lanes, const PARTIAL: bool>(source: *const u8, offset: usize, len: usize) -> L::Acc {
    let at = source.wrapping_add(offset);
    let raw = if PARTIAL {
        // SAFETY: the source has `len` bytes there.
        unsafe { L::Raw::load_partial(at, len) }
    } else {
        // SAFETY: the source has a register's worth of bytes there.
        unsafe { L::Raw::load(at) }
    };
    // SAFETY: the caller's promise is the same.
    unsafe { L::widen(raw) }
}

/// A way to fold the sources at one place.
pub(crate) trait Tree {
    /// The tree over these sources.
    ///
    /// # Panics
    /// If there are fewer than the tree is for.
    fn over(sources: &[*const u8]) -> Self;

    /// The canonical tree over the sources' elements at `len` bytes from `offset` on: at least one, at most a
    /// register's worth, and that unless `PARTIAL`.
    ///
    /// # Safety
    /// The sources that the tree is over still stand where they stood; all have these bytes; and what the module says.
    unsafe fn at<L: Lanes, O: Operation, const PARTIAL: bool>(&self, offset: usize, len: usize) -> L::Acc;
}

/// The tree over `K` sources. Its elements stay in registers, and so do the pointers, for they are a copy: the
/// compiler must assume that the caller's are written to.
pub(crate) struct Fixed<const K: usize>([*const u8; K]);

impl<const K: usize> Tree for Fixed<K> {
    #[inline(always)]
    fn over(sources: &[*const u8]) -> Self {
        Fixed(*sources.first_chunk().expect("the table's entry for this many sources"))
    }

    #[inline(always)]
    unsafe fn at<L: Lanes, O: Operation, const PARTIAL: bool>(&self, offset: usize, len: usize) -> L::Acc {
        // SAFETY: the sources have these bytes.
        let mut a = [unsafe { leaf::<L, PARTIAL>(self.0[0], offset, len) }; K];
        let mut j = 1;
        while j < K {
            // SAFETY: the sources have these bytes.
            a[j] = unsafe { leaf::<L, PARTIAL>(self.0[j], offset, len) };
            j += 1;
        }
        let mut d = 1;
        while d < K {
            let mut j = 0;
            while j + d < K {
                // SAFETY: the caller's promise is the same.
                a[j] = unsafe { O::combine::<L>(a[j], a[j + d]) };
                j += 2 * d;
            }
            d *= 2;
        }
        a[0]
    }
}

/// The tree over any number of sources.
///
/// Subtrees meet as in a binary counter: two complete ones of equal size, side by side, make one of twice the size.
/// What remains at the end is folded from the right, as the canonical tree does.
pub(crate) struct Many(*const [*const u8]);

/// More complete subtrees of different sizes than a slice of pointers can have.
const DEPTH: usize = 61;

impl Tree for Many {
    #[inline(always)]
    fn over(sources: &[*const u8]) -> Self {
        Many(sources)
    }

    #[inline(always)]
    unsafe fn at<L: Lanes, O: Operation, const PARTIAL: bool>(&self, offset: usize, len: usize) -> L::Acc {
        // SAFETY: the caller promises that they still stand there.
        let sources = unsafe { &*self.0 };
        let mut subtrees = [const { MaybeUninit::<L::Acc>::uninit() }; DEPTH];
        let mut depth = 0;
        // SAFETY: the sources have these bytes.
        let mut acc = unsafe { leaf::<L, PARTIAL>(sources[0], offset, len) };
        let mut folded = 1;
        while folded < sources.len() {
            subtrees[depth].write(acc);
            depth += 1;
            // SAFETY: the sources have these bytes.
            acc = unsafe { leaf::<L, PARTIAL>(sources[folded], offset, len) };
            let mut complete = folded.trailing_ones();
            while complete > 0 {
                depth -= 1;
                // SAFETY: the subtrees below `depth` have been written: one for each bit set in `folded`.
                let left = unsafe { subtrees[depth].assume_init() };
                // SAFETY: the caller's promise is the same.
                acc = unsafe { O::combine::<L>(left, acc) };
                complete -= 1;
            }
            folded += 1;
        }
        while depth > 0 {
            depth -= 1;
            // SAFETY: the subtrees below `depth` have been written.
            let left = unsafe { subtrees[depth].assume_init() };
            // SAFETY: the caller's promise is the same.
            acc = unsafe { O::combine::<L>(left, acc) };
        }
        acc
    }
}

/// Folds the bytes from `job.start` to `job.end`. Each step reads all sources before it writes, so the output may be
/// one of them.
///
/// ```text
/// for each cache line:        ask for the sources' lines 2 KiB ahead, if wanted
///                             for each register's worth: store the tree over the sources
/// for each register's worth or less that is left: the same
/// ```
///
/// # Safety
/// See `FoldJob`; and what the module says.
#[inline(always)]
pub(crate) unsafe fn fold<L: Lanes, O: Operation, T: Tree>(job: &FoldJob<'_>) {
    let FoldJob { sources, own, wanted_end, output, start, end } = *job;
    let tree = T::over(sources);
    let mut offset = start;
    while offset + LINE <= end {
        if offset + AHEAD < wanted_end {
            for &source in sources {
                if source != own {
                    prefetch_for_writing(source.wrapping_add(offset + AHEAD));
                }
            }
        }
        // SAFETY: these bytes are of the job.
        unsafe { fold_line::<L, O, T>(&tree, offset, output.wrapping_add(offset - start), false) }
        offset += LINE;
    }
    while offset < end {
        let len = (end - offset).min(L::Raw::BYTES);
        // SAFETY: these bytes are of the job.
        let acc = unsafe { tree.at::<L, O, true>(offset, len) };
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { L::narrow(acc) };
        // SAFETY: the output has `len` bytes there.
        unsafe { raw.store_partial(output.wrapping_add(offset - start), len) }
        offset += len;
    }
}

/// Folds the `LINE` bytes from `offset` on.
///
/// # Safety
/// The sources have these bytes, and so has `output`, which is aligned to a line if `streaming`; and what the module
/// says.
#[inline(always)]
unsafe fn fold_line<L: Lanes, O: Operation, T: Tree>(tree: &T, offset: usize, output: *mut u8, streaming: bool) {
    let mut at = 0;
    while at < LINE {
        // SAFETY: the sources have these bytes.
        let acc = unsafe { tree.at::<L, O, false>(offset + at, L::Raw::BYTES) };
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { L::narrow(acc) };
        if streaming {
            // SAFETY: the output has a register's worth of bytes there, aligned.
            unsafe { raw.store_streaming(output.wrapping_add(at)) }
        } else {
            // SAFETY: the output has a register's worth of bytes there.
            unsafe { raw.store(output.wrapping_add(at)) }
        }
        at += L::Raw::BYTES;
    }
}

/// Folds two sources, and copies as many bytes.
///
/// ```text
/// for each STEP bytes: for each cache line: ask for the peer's line 2 KiB ahead, if wanted
///                                           store the fold
///                      for each cache line: ask for the line a page ahead; copy it to the stage, if there is one
/// ```
///
/// The loads of one half hide the waits of the other.
///
/// # Safety
/// See `PairJob`; and what the module says.
#[inline(always)]
pub(crate) unsafe fn fold_pair<L: Lanes, O: Operation>(job: &PairJob) {
    let PairJob { sources, wanted, wanted_len, output, next, stage, len, streaming } = *job;
    let tree = Fixed(sources);
    let mut offset = 0;
    while offset < len {
        let step = offset;
        while offset < step + STEP {
            if offset + AHEAD < wanted_len {
                prefetch_for_writing(wanted.wrapping_add(offset + AHEAD));
            }
            // SAFETY: these bytes are of the job, which is a whole number of steps.
            unsafe { fold_line::<L, O, _>(&tree, offset, output.wrapping_add(offset), streaming) }
            offset += LINE;
        }
        if !stage.is_null() {
            let mut staged = step;
            while staged < offset {
                prefetch_for_reading(next.wrapping_add(staged + FAR_AHEAD));
                // SAFETY: these bytes are of the job.
                unsafe { copy_line::<L::Raw>(stage.wrapping_add(staged), next.wrapping_add(staged), false) }
                staged += LINE;
            }
        }
    }
}

/// Bytes folded, and bytes copied, at a time.
pub(crate) const STEP: usize = 4 * LINE;
