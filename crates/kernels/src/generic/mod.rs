//! The loops, written once over the traits below, and inlined into each instruction set's entry points.
//!
//! Everything here is `#[inline(always)]`: the code of a loop takes on the instruction set of the entry point it ends
//! up in. That is also why the methods that run vector instructions are `unsafe`: **the processor must have the
//! instruction set of the implementing type**, which the entry points' callers prove once, in `dispatch`.

pub(crate) mod copy;
pub(crate) mod fold;
pub(crate) mod partial;

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

    /// Reads `len < BYTES` bytes and not one more; the others are zero.
    ///
    /// # Safety
    /// The bytes are valid for reads.
    unsafe fn load_partial(from: *const u8, len: usize) -> Self;

    /// Writes the first `len < BYTES` bytes and not one more.
    ///
    /// # Safety
    /// The bytes are valid for writes.
    unsafe fn store_partial(self, to: *mut u8, len: usize);

    /// Asks for a cache line, to write to it soon. Any address will do.
    ///
    /// # Safety
    /// Only what the module says.
    unsafe fn prefetch_for_writing(at: *const u8);
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
    /// Size of an element in bytes.
    const SIZE: usize;

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

/// One fold. The sources are handed over beside it.
pub(crate) struct FoldJob {
    pub(crate) output: *mut u8,
    /// A second output, or null.
    pub(crate) also: *mut u8,
    /// This rank's input: the source that is not shared.
    pub(crate) own: *const u8,
    /// Length in bytes of each source and output.
    pub(crate) len: usize,
    /// Only if `output` is none of the sources.
    pub(crate) streaming: bool,
    pub(crate) take_ownership: bool,
}

/// A fold of two and a copy. `fold.also` is null.
pub(crate) struct StageJob {
    pub(crate) fold: FoldJob,
    /// In rank order.
    pub(crate) sources: [*const u8; 2],
    /// `stage_len` bytes to be copied from here...
    pub(crate) next: *const u8,
    /// ... to here.
    pub(crate) stage: *mut u8,
    pub(crate) stage_len: usize,
}

/// How far ahead of the loop lines are asked for, in bytes.
pub(crate) const AHEAD: usize = 2048;
/// Size of a cache line in bytes.
pub(crate) const LINE: usize = 64;
