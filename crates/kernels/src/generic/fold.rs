use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::copy::copy;
use super::{AHEAD, FoldJob, LINE, Lanes, Operation, Register, StageJob};
use crate::fold::Hints;

/// The canonical tree over the sources' elements at one place.
///
/// # Safety
/// For the methods: all sources have the bytes in question, and what the module says.
pub(crate) trait Tree<L: Lanes> {
    /// At a whole register's worth of bytes from `offset` on.
    unsafe fn at(&self, offset: usize) -> L::Acc;
    /// At `len` bytes from `offset` on: fewer than a register's worth.
    unsafe fn at_partial(&self, offset: usize, len: usize) -> L::Acc;
    /// The sources.
    fn sources(&self) -> &[*const u8];
}

/// A tree over a number of sources that the compiler knows: it stays in registers.
pub(crate) struct Fixed<'a, L, O, const K: usize>(&'a [*const u8; K], PhantomData<(L, O)>);

impl<L: Lanes, O: Operation, const K: usize> Fixed<'_, L, O, K> {
    #[inline(always)]
    unsafe fn combine(mut a: [L::Acc; K]) -> L::Acc {
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

impl<L: Lanes, O: Operation, const K: usize> Tree<L> for Fixed<'_, L, O, K> {
    #[inline(always)]
    unsafe fn at(&self, offset: usize) -> L::Acc {
        // SAFETY: the sources have these bytes.
        let leaves = self.0.map(|source| unsafe { leaf::<L>(source, offset) });
        // SAFETY: the caller's promise is the same.
        unsafe { Self::combine(leaves) }
    }

    #[inline(always)]
    unsafe fn at_partial(&self, offset: usize, len: usize) -> L::Acc {
        // SAFETY: the sources have these bytes.
        let leaves = self
            .0
            .map(|source| unsafe { leaf_partial::<L>(source, offset, len) });
        // SAFETY: the caller's promise is the same.
        unsafe { Self::combine(leaves) }
    }

    #[inline(always)]
    fn sources(&self) -> &[*const u8] {
        self.0
    }
}

#[inline(always)]
unsafe fn leaf<L: Lanes>(source: *const u8, offset: usize) -> L::Acc {
    // SAFETY: inside the source.
    let at = unsafe { source.add(offset) };
    // SAFETY: the source has a register's worth of bytes there.
    let raw = unsafe { L::Raw::load(at) };
    // SAFETY: the caller's promise is the same.
    unsafe { L::widen(raw) }
}

#[inline(always)]
unsafe fn leaf_partial<L: Lanes>(source: *const u8, offset: usize, len: usize) -> L::Acc {
    // SAFETY: inside the source.
    let at = unsafe { source.add(offset) };
    // SAFETY: the source has `len` bytes there.
    let raw = unsafe { L::Raw::load_partial(at, len) };
    // SAFETY: the caller's promise is the same.
    unsafe { L::widen(raw) }
}

/// A tree over any number of sources.
///
/// Eight consecutive sources whose first has a number divisible by eight are a complete subtree. Those are folded in
/// registers; their results meet as in a binary counter: two complete subtrees of equal size, side by side, make one
/// of twice the size. What remains at the end is folded from the right, as the canonical tree does.
pub(crate) struct Many<'a, L, O>(&'a [*const u8], PhantomData<(L, O)>);

/// Sources of one subtree that stays in registers.
const GROUP: usize = 8;
/// More complete subtrees of different sizes than a slice of pointers can have.
const DEPTH: usize = 61;

impl<L: Lanes, O: Operation> Many<'_, L, O> {
    /// `PARTIAL`: of `len` bytes; else of a whole register.
    #[inline(always)]
    unsafe fn tree<const PARTIAL: bool>(&self, offset: usize, len: usize) -> L::Acc {
        let mut subtrees = [const { MaybeUninit::<L::Acc>::uninit() }; DEPTH];
        let mut depth = 0;
        for (number, group) in self.0.chunks(GROUP).enumerate() {
            // SAFETY: the caller's promise is the same.
            let mut acc = unsafe { few::<L, O, PARTIAL>(group, offset, len) };
            if group.len() == GROUP {
                for _ in 0..number.trailing_ones() {
                    depth -= 1;
                    // SAFETY: `depth` subtrees have been written: one for each bit set in `number`.
                    let left = unsafe { subtrees[depth].assume_init() };
                    // SAFETY: the caller's promise is the same.
                    acc = unsafe { O::combine::<L>(left, acc) };
                }
            }
            subtrees[depth].write(acc);
            depth += 1;
        }
        depth -= 1;
        // SAFETY: there is at least one source, so at least one subtree was written.
        let mut acc = unsafe { subtrees[depth].assume_init() };
        while depth > 0 {
            depth -= 1;
            // SAFETY: the first `depth` subtrees have been written.
            let left = unsafe { subtrees[depth].assume_init() };
            // SAFETY: the caller's promise is the same.
            acc = unsafe { O::combine::<L>(left, acc) };
        }
        acc
    }
}

/// The tree over 1 to 8 sources.
#[inline(always)]
unsafe fn few<L: Lanes, O: Operation, const PARTIAL: bool>(
    sources: &[*const u8],
    offset: usize,
    len: usize,
) -> L::Acc {
    macro_rules! fixed {
        ($($k:literal)*) => {
            match sources.len() {
                $($k => {
                    let sources = sources.first_chunk::<$k>().expect("this many sources");
                    let tree = Fixed::<L, O, $k>(sources, PhantomData);
                    if PARTIAL {
                        // SAFETY: the caller's promise is the same.
                        unsafe { tree.at_partial(offset, len) }
                    } else {
                        // SAFETY: the caller's promise is the same.
                        unsafe { tree.at(offset) }
                    }
                })*
                _ => unreachable!("a group has 1 to 8 sources"),
            }
        };
    }
    fixed!(1 2 3 4 5 6 7 8)
}

impl<L: Lanes, O: Operation> Tree<L> for Many<'_, L, O> {
    #[inline(always)]
    unsafe fn at(&self, offset: usize) -> L::Acc {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tree::<false>(offset, L::Raw::BYTES) }
    }

    #[inline(always)]
    unsafe fn at_partial(&self, offset: usize, len: usize) -> L::Acc {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tree::<true>(offset, len) }
    }

    #[inline(always)]
    fn sources(&self) -> &[*const u8] {
        self.0
    }
}

/// The fold of any number of sources.
///
/// # Safety
/// The pointers of the job and the sources are valid for `job.len` bytes, there is at least one source, and what the
/// module says.
#[inline(always)]
pub(crate) unsafe fn fold<L: Lanes, O: Operation>(job: &FoldJob, sources: &[*const u8]) {
    macro_rules! fixed {
        ($($k:literal)*) => {
            match sources.len() {
                $($k => {
                    let sources = sources.first_chunk::<$k>().expect("this many sources");
                    // SAFETY: the caller's promise is the same.
                    unsafe { fold_tree(job, &Fixed::<L, O, $k>(sources, PhantomData)) }
                })*
                // SAFETY: the caller's promise is the same.
                _ => unsafe { fold_tree(job, &Many::<L, O>(sources, PhantomData)) },
            }
        };
    }
    fixed!(1 2 3 4 5 6 7 8)
}

#[inline(always)]
unsafe fn fold_tree<L: Lanes, T: Tree<L>>(job: &FoldJob, tree: &T) {
    if job.take_ownership {
        // SAFETY: the caller's promise is the same.
        unsafe { take_first_lines(job, tree) }
    }
    let mut start = 0;
    if let Some(head) = streaming_head::<L>(job) {
        // SAFETY: `head <= len`, and the bytes from `head` on are aligned.
        unsafe { fold_range(job, tree, 0, head, false) }
        start = head;
    }
    // SAFETY: the caller's promise is the same; `start > 0` or aligned only if streaming.
    unsafe {
        fold_range(
            job,
            tree,
            start,
            job.len,
            streaming_head::<L>(job).is_some(),
        )
    }
}

/// The bytes before the first cache line of the output, if the output is to be streamed and a whole number of
/// elements leads there.
#[inline(always)]
fn streaming_head<L: Lanes>(job: &FoldJob) -> Option<usize> {
    if !job.streaming {
        return None;
    }
    let head = job.output.addr().wrapping_neg() % LINE;
    (head.is_multiple_of(L::SIZE) && head + LINE <= job.len).then_some(head)
}

#[inline(always)]
unsafe fn take_first_lines<L: Lanes, T: Tree<L>>(job: &FoldJob, tree: &T) {
    for &source in tree.sources() {
        if source != job.own {
            let mut offset = 0;
            while offset < job.len.min(AHEAD) {
                // SAFETY: any address will do.
                unsafe { L::Raw::prefetch_for_writing(source.wrapping_add(offset)) }
                offset += LINE;
            }
        }
    }
}

/// Folds the bytes from `start` to `end`.
///
/// ```text
/// fewer bytes than a register: one partial step
/// last = the fold of the last register's worth       // first: the output may be one of the sources
/// for each cache line:       ask for the sources' lines 2 KiB ahead, if wanted
///                            store the fold of its registers' worth
/// for each register's worth: store its fold
/// store last                                         // overlaps what was stored, with the same bytes
/// ```
///
/// # Safety
/// As `fold`; with `streaming` the output is aligned to a cache line at `start`.
#[inline(always)]
unsafe fn fold_range<L: Lanes, T: Tree<L>>(
    job: &FoldJob,
    tree: &T,
    start: usize,
    end: usize,
    streaming: bool,
) {
    let step = L::Raw::BYTES;
    let len = end - start;
    if len < step {
        if len > 0 {
            // SAFETY: the sources have these bytes.
            let acc = unsafe { tree.at_partial(start, len) };
            // SAFETY: the outputs have these bytes.
            unsafe { put_partial::<L>(job, acc, start, len) }
        }
        return;
    }
    // SAFETY: the sources have these bytes.
    let last = unsafe { tree.at(end - step) };
    let mut offset = start;
    while offset + LINE <= end {
        if job.take_ownership && offset + AHEAD < job.len {
            for &source in tree.sources() {
                if source != job.own {
                    // SAFETY: any address will do.
                    unsafe { L::Raw::prefetch_for_writing(source.wrapping_add(offset + AHEAD)) }
                }
            }
        }
        let line_end = offset + LINE;
        while offset < line_end {
            // SAFETY: the sources have these bytes.
            let acc = unsafe { tree.at(offset) };
            // SAFETY: the outputs have these bytes; alignment as promised, and lines are whole registers.
            unsafe { put::<L>(job, acc, offset, streaming) }
            offset += step;
        }
    }
    while offset + step <= end {
        // SAFETY: the sources have these bytes.
        let acc = unsafe { tree.at(offset) };
        // SAFETY: the outputs have these bytes.
        unsafe { put::<L>(job, acc, offset, false) }
        offset += step;
    }
    if offset < end {
        // SAFETY: the outputs have these bytes.
        unsafe { put::<L>(job, last, end - step, false) }
    }
}

#[inline(always)]
unsafe fn put<L: Lanes>(job: &FoldJob, acc: L::Acc, offset: usize, streaming: bool) {
    // SAFETY: the caller's promise is the same.
    let raw = unsafe { L::narrow(acc) };
    // SAFETY: inside the output.
    let output = unsafe { job.output.add(offset) };
    if streaming {
        // SAFETY: the output has a register's worth of bytes there, aligned.
        unsafe { raw.store_streaming(output) }
    } else {
        // SAFETY: the output has a register's worth of bytes there.
        unsafe { raw.store(output) }
    }
    if !job.also.is_null() {
        // SAFETY: inside the second output.
        let also = unsafe { job.also.add(offset) };
        // SAFETY: the second output has a register's worth of bytes there.
        unsafe { raw.store(also) }
    }
}

#[inline(always)]
unsafe fn put_partial<L: Lanes>(job: &FoldJob, acc: L::Acc, offset: usize, len: usize) {
    // SAFETY: the caller's promise is the same.
    let raw = unsafe { L::narrow(acc) };
    // SAFETY: inside the output.
    let output = unsafe { job.output.add(offset) };
    // SAFETY: the output has `len` bytes there.
    unsafe { raw.store_partial(output, len) }
    if !job.also.is_null() {
        // SAFETY: inside the second output.
        let also = unsafe { job.also.add(offset) };
        // SAFETY: the second output has `len` bytes there.
        unsafe { raw.store_partial(also, len) }
    }
}

/// The fold of two, and a copy.
///
/// # Safety
/// As `fold`, and `next` and `stage` are valid for `stage_len` bytes.
#[inline(always)]
pub(crate) unsafe fn fold_and_stage<L: Lanes, O: Operation>(job: &StageJob) {
    let tree = Fixed::<L, O, 2>(&job.sources, PhantomData);
    // SAFETY: the caller's promise is the same.
    unsafe { fold_tree(&job.fold, &tree) }
    // SAFETY: the caller's promise is the same; the stage is shared memory and the input is not, so they are apart.
    unsafe { copy::<L::Raw>(job.stage, job.next, job.stage_len, Hints::default()) }
}
