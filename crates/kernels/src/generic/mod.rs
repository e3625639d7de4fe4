//! The loops, written once over the traits below, and inlined into each instruction set's entry points.
//!
//! Everything here is `#[inline(always)]`: the code of a loop takes on the instruction set of the entry point it ends
//! up in. That is also why the methods that run vector instructions are `unsafe`: **the processor must have the
//! instruction set of the implementing type**, which the entry points' callers prove once, in `dispatch`.

pub(crate) mod copy;
pub(crate) mod fold;

/// One register of raw bytes.
pub(crate) trait Register: Copy {
    /// Its size: a power of two, 16 to 64.
    const BYTES: usize;

    /// Reads `BYTES` bytes, of any alignment.
    ///
    /// # Safety
    /// The bytes are valid for reads.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes `BYTES` bytes, of any alignment.
    ///
    /// # Safety
    /// The bytes are valid for writes.
    unsafe fn store(self, to: *mut u8);

    /// Writes `BYTES` bytes past the cache if the instruction set can.
    ///
    /// # Safety
    /// The bytes are valid for writes, and aligned to `BYTES`.
    unsafe fn store_streaming(self, to: *mut u8);

    /// Reads `len` bytes, at least one and at most `BYTES`, and not one more; the others are zero.
    ///
    /// # Safety
    /// The bytes are valid for reads.
    unsafe fn load_partial(from: *const u8, len: usize) -> Self;

    /// Writes the first `len` bytes, at least one and at most `BYTES`, and not one more.
    ///
    /// # Safety
    /// The bytes are valid for writes.
    unsafe fn store_partial(self, to: *mut u8, len: usize);
}

/// How a data type lies in a register, and its arithmetic.
///
/// # Safety
/// For all methods: only what the module says.
pub(crate) trait Lanes {
    /// The bytes in memory.
    type Raw: Register;
    /// What is computed with: for 16-bit floats the widened elements.
    type Acc: Copy;

    unsafe fn widen(raw: Self::Raw) -> Self::Acc;
    unsafe fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    unsafe fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    unsafe fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    unsafe fn prod(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Rounds where needed, and makes NaN canonical.
    unsafe fn narrow(acc: Self::Acc) -> Self::Raw;
}

/// A reduction, as a type.
pub(crate) trait Operation {
    /// # Safety
    /// Only what the module says.
    unsafe fn combine<L: Lanes>(a: L::Acc, b: L::Acc) -> L::Acc;
}

macro_rules! operation {
    ($($name:ident $method:ident),*) => {$(
        pub(crate) struct $name;
        impl Operation for $name {
            #[inline(always)]
            unsafe fn combine<L: Lanes>(a: L::Acc, b: L::Acc) -> L::Acc {
                // SAFETY: the caller's promise is the same.
                unsafe { L::$method(a, b) }
            }
        }
    )*};
}
operation!(Sum sum, Max max, Min min, Prod prod);

/// One fold, of the bytes from `start` to `end` of the sources.
///
/// # Safety
/// Every source is valid for reads of these bytes, and the output for writes of as many; there is at least one source.
/// The output is none of the sources, or exactly the bytes of one, or apart from all.
#[derive(Clone, Copy)]
pub(crate) struct FoldJob<'a> {
    pub(crate) sources: &'a [*const u8],
    /// This rank's input: the source that is not shared.
    pub(crate) own: *const u8,
    /// The shared sources' cache lines are to be fetched for writing, from `AHEAD` bytes after `start` to here, which
    /// may be further than `end`.
    pub(crate) wanted_end: usize,
    /// Where the byte at `start` goes.
    pub(crate) output: *mut u8,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A fold of two sources and, unless `stage` is null, a copy of as many bytes.
///
/// # Safety
/// Sources and `next` are valid for reads, and output and `stage` for writes, of `len` bytes, a multiple of
/// `fold::STEP`. What is staged is apart from the output, and the stage from everything; the output is as in `FoldJob`.
/// With `streaming` the output is none of the sources, and aligned to a cache line.
#[derive(Clone, Copy)]
pub(crate) struct PairJob {
    /// In rank order.
    pub(crate) sources: [*const u8; 2],
    /// That of the sources whose cache lines are to be fetched for writing, and how many bytes it has from here on.
    /// The first `AHEAD` bytes are not asked for.
    pub(crate) wanted: *const u8,
    pub(crate) wanted_len: usize,
    pub(crate) output: *mut u8,
    pub(crate) next: *const u8,
    pub(crate) stage: *mut u8,
    pub(crate) len: usize,
    pub(crate) streaming: bool,
}

/// How far ahead of the loop lines are asked for, in bytes.
pub(crate) const AHEAD: usize = 2048;
/// How far ahead of the loop input is asked for that comes from memory: processors do not do it by themselves beyond a page.
pub(crate) const FAR_AHEAD: usize = 4096;
/// Size of a cache line in bytes.
pub(crate) const LINE: usize = 64;

/// Bytes from an address to the next cache line.
pub(crate) fn to_next_line(address: usize) -> usize {
    address.wrapping_neg() % LINE
}
