use core::ops::Range;
use core::ptr;

use types::{Buffers, DataType, Reduction};

use crate::dispatch::{self, Kernel, Level, LevelError};
use crate::environment::Environment;
use crate::generic::FoldJob;
use crate::run;
use crate::shared::{ForeignBytes, SharedBytes};

/// Where one rank's contribution to a fold is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// This rank's own input, at the span of the fold.
    Own,
    /// Another rank's bytes (or this one's, staged); as long as the span.
    Shared(SharedBytes<'a>),
    /// Another rank's input where it is; as long as the span.
    Foreign(ForeignBytes<'a>),
}

/// What the caller knows about the memory. No hint changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The output will not fit the cache: write it past the cache (non-temporal stores). Out of place only, in place
    /// it is ignored: the lines are in the cache already. Call [`finish_streaming`](crate::finish_streaming) before
    /// telling another thread or process about the output.
    pub streaming: bool,
    /// This rank is the next to write the shared sources: fetch their cache lines for writing, so that they change
    /// cores once and not twice.
    pub take_ownership: bool,
}

/// The fold of one data type by one reduction.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    dtype: DataType,
    reduction: Reduction,
    kernel: &'static Kernel,
}

/// Up to this many sources are folded without an allocation.
const FEW: usize = 8;

impl Fold {
    /// The fold on the instruction set that [`dispatch`](crate::dispatch()) chose.
    #[must_use]
    pub fn new(dtype: DataType, reduction: Reduction) -> Fold {
        Fold { dtype, reduction, kernel: dispatch::table().kernel(dtype, reduction) }
    }

    /// The fold on a given instruction set, whatever `dispatch` chose: for tests and benchmarks.
    ///
    /// # Errors
    /// If this machine does not have it.
    pub fn with_level(dtype: DataType, reduction: Reduction, level: Level) -> Result<Fold, LevelError> {
        Ok(Fold { dtype, reduction, kernel: dispatch::table_of(level)?.kernel(dtype, reduction) })
    }

    /// The type of the elements.
    #[must_use]
    pub const fn dtype(self) -> DataType {
        self.dtype
    }

    /// The instruction set.
    #[must_use]
    pub const fn level(self) -> Level {
        self.kernel.level
    }

    /// How elements are combined.
    #[must_use]
    pub const fn reduction(self) -> Reduction {
        self.reduction
    }

    /// Writes the fold of the sources, which stand in rank order, to the output at `span` (in bytes), and to `also`
    /// if that is given. With one source the result is that source with its NaNs made canonical.
    ///
    /// `also` may be one of the sources; otherwise it must not overlap them.
    ///
    /// # Panics
    /// If there is no source, the span is not inside the buffers or not a whole number of elements, or a shared
    /// source or `also` is not as long as the span.
    pub fn fold(
        self,
        buffers: &mut Buffers<'_>,
        span: Range<usize>,
        sources: &[Source<'_>],
        also: Option<SharedBytes<'_>>,
        hints: Hints,
    ) {
        assert!(!sources.is_empty(), "a fold needs at least one source");
        let memory = Memory::of(buffers).span(&span, self.dtype);
        if let Some(also) = also {
            assert!(also.len() == memory.len, "a second output of {} bytes for a span of {}", also.len(), memory.len);
        }
        if let [_, _] = sources {
            // The small folds that are in a hurry have two, and their loops are gone once the number is known.
            self.fold_from(&memory, sources, &mut [ptr::null(); 2], also, hints);
        } else if sources.len() <= FEW {
            let mut few = [ptr::null(); FEW];
            self.fold_from(&memory, sources, &mut few[..sources.len()], also, hints);
        } else {
            self.fold_many(&memory, sources, also, hints);
        }
    }

    /// Not inlined: what it needs would have to be got ready for few sources as well, of small folds above all.
    #[inline(never)]
    fn fold_many(self, memory: &Memory, sources: &[Source<'_>], also: Option<SharedBytes<'_>>, hints: Hints) {
        let mut many = vec![ptr::null(); sources.len()];
        self.fold_from(memory, sources, &mut many, also, hints);
    }

    /// `pointers` has room for as many as there are sources.
    #[inline(always)]
    fn fold_from(
        self,
        memory: &Memory,
        sources: &[Source<'_>],
        pointers: &mut [*const u8],
        also: Option<SharedBytes<'_>>,
        hints: Hints,
    ) {
        let len = memory.len;
        for (at, source) in pointers.iter_mut().zip(sources) {
            *at = match source {
                Source::Own => memory.input,
                Source::Shared(bytes) => {
                    assert!(bytes.len() == len, "a source of {} bytes for a span of {len}", bytes.len());
                    bytes.as_ptr().cast_const()
                }
                Source::Foreign(bytes) => {
                    assert!(bytes.len() == len, "a source of {} bytes for a span of {len}", bytes.len());
                    bytes.as_ptr()
                }
            };
        }
        let job = memory.job(pointers, hints);
        let streaming = hints.streaming && !memory.in_place;
        let _environment = Environment::enter(self.dtype);
        // SAFETY: `Memory::span` and the assertions prove that the output, `also` and every source have `len` bytes; in
        // place the output is exactly this rank's input.
        unsafe { run::fold(self.kernel, self.dtype.size(), &job, also.map(SharedBytes::as_ptr), streaming) }
    }

    /// For two ranks: writes `own op peer` (or `peer op own` unless `own_first`) to the output at `span`, and in the
    /// same loop copies the input at the stage's span to the stage. Does what [`fold`](Self::fold) and
    /// [`copy_in`](crate::copy_in) would do one after the other, but the two kinds of traffic overlap.
    ///
    /// # Panics
    /// As `fold`; and if the stage is not as long as its span, or its span overlaps `span` in place.
    pub fn fold_and_stage(
        self,
        buffers: &mut Buffers<'_>,
        span: Range<usize>,
        peer: SharedBytes<'_>,
        own_first: bool,
        stage: Option<(Range<usize>, SharedBytes<'_>)>,
        hints: Hints,
    ) {
        let whole = Memory::of(buffers);
        let memory = whole.span(&span, self.dtype);
        let len = memory.len;
        assert!(peer.len() == len, "a source of {} bytes for a span of {len}", peer.len());
        let (next, stage, stage_len) = match stage {
            Some((from, to)) => {
                let apart = from.start >= span.end || from.end <= span.start;
                assert!(apart || !whole.in_place, "in place, {from:?} is staged while {span:?} is folded");
                let next = whole.span(&from, self.dtype);
                assert!(to.len() == next.len, "a stage of {} bytes for {from:?}", to.len());
                (next.input, to.as_ptr(), next.len)
            }
            None => (ptr::null(), ptr::null_mut(), 0),
        };
        let shared = peer.as_ptr().cast_const();
        let sources = if own_first { [memory.input, shared] } else { [shared, memory.input] };
        let job = memory.job(&sources, hints);
        let streaming = hints.streaming && !memory.in_place;
        let _environment = Environment::enter(self.dtype);
        // SAFETY: `Memory::span` and the assertions prove that output and sources have `len` bytes, and the stage and what
        // goes there `stage_len`; in place the output is exactly this rank's input, and apart from what is staged.
        unsafe { run::fold_pair(self.kernel, self.dtype.size(), &job, streaming, next, stage, stage_len) }
    }
}

/// The buffers as pointers. They are taken once for each call, so that those to different spans may be used in turn.
#[derive(Clone, Copy)]
struct Memory {
    input: *const u8,
    output: *mut u8,
    len: usize,
    in_place: bool,
}

impl Memory {
    fn of(buffers: &mut Buffers<'_>) -> Memory {
        match buffers {
            Buffers::Separate { input, output } => Memory {
                input: input.as_ptr(),
                output: output.as_mut_ptr(),
                len: input.len().min(output.len()),
                in_place: false,
            },
            Buffers::InPlace(both) => {
                let output = both.as_mut_ptr();
                Memory { input: output, output, len: both.len(), in_place: true }
            }
        }
    }

    /// A part, which is inside the buffers and a whole number of elements.
    fn span(self, span: &Range<usize>, dtype: DataType) -> Memory {
        let inside = span.start <= span.end && span.end <= self.len;
        assert!(inside, "the span {span:?} is outside of buffers of {} bytes", self.len);
        let len = span.end - span.start;
        assert!(len.is_multiple_of(dtype.size()), "{len} bytes are no whole number of {dtype} elements");
        let (input, output) = (self.input.wrapping_add(span.start), self.output.wrapping_add(span.start));
        Memory { input, output, len, in_place: self.in_place }
    }

    /// The fold of all of it.
    fn job<'a>(&self, sources: &'a [*const u8], hints: Hints) -> FoldJob<'a> {
        FoldJob {
            sources,
            own: self.input,
            wanted_end: if hints.take_ownership { self.len } else { 0 },
            output: self.output,
            start: 0,
            end: self.len,
        }
    }
}
