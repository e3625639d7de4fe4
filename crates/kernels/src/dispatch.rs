use core::fmt;
use std::sync::OnceLock;

use types::{DataType, Reduction};

use crate::arch;
use crate::fold::Hints;
use crate::generic::{FoldJob, PairJob};

/// An instruction set for which there are kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Whatever the compiler makes of plain code for the baseline processor; on every machine.
    Portable,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with AVX-512 BF16, for bfloat16.
    Avx512Bf16,
    /// The same with AVX-512 BF16 and FP16, for bfloat16 and float16.
    Avx512Fp16,
}

impl Level {
    /// Every level, the slowest first.
    pub const ALL: [Level; 5] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Avx512Fp16];

    /// The name that [`dispatch`] gives.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
            Level::Avx512Fp16 => "avx512fp16",
        }
    }

    /// Whether this build has kernels for it.
    #[must_use]
    pub const fn is_built(self) -> bool {
        matches!(self, Level::Portable) || cfg!(target_arch = "x86_64")
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        table_of(self).is_ok()
    }
}

/// A level cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelError {
    /// The processor does not have the instruction set.
    Unavailable(Level),
    /// Kernels of another level have been used already.
    Chosen {
        /// The level asked for.
        asked: Level,
        /// The level in use.
        chosen: Level,
    },
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LevelError::Unavailable(level) => {
                write!(f, "this processor cannot run the {} kernels", level.name())
            }
            LevelError::Chosen { asked, chosen } => write!(
                f,
                "the {} kernels were asked for when the {} kernels were in use already: choose before the first call",
                asked.name(),
                chosen.name()
            ),
        }
    }
}

impl core::error::Error for LevelError {}

/// The kernels of one data type and reduction. To be called with what `FoldJob` and `PairJob` ask for, on a processor
/// that has the instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) level: Level,
    /// For 1 to 8 sources, and for any number.
    pub(crate) fold: [unsafe fn(&FoldJob<'_>); 9],
    /// For two, with a copy.
    pub(crate) pair: unsafe fn(&PairJob),
    /// The same for every data type.
    pub(crate) copy: CopyKernel,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

/// Copies, to the first from the second, a number of bytes that do not overlap and for which both are valid.
pub(crate) type CopyKernel = unsafe fn(*mut u8, *const u8, usize, Hints);

/// The kernels of one level.
pub(crate) struct Table {
    pub(crate) level: Level,
    pub(crate) kernels: [[Kernel; 4]; 12],
    pub(crate) copy: CopyKernel,
}

impl Table {
    pub(crate) fn kernel(&self, dtype: DataType, reduction: Reduction) -> &Kernel {
        &self.kernels[usize::from(dtype.code()) - 1][usize::from(reduction.code()) - 1]
    }
}

static CHOSEN: OnceLock<&'static Table> = OnceLock::new();

/// The table in use.
#[inline]
pub(crate) fn table() -> &'static Table {
    CHOSEN.get_or_init(|| Level::ALL.iter().rev().find_map(|&level| table_of(level).ok()).unwrap_or(&arch::PORTABLE))
}

/// The table of a level, if the processor can run it. The only place that hands out a table, so that whoever has one
/// has the proof that its kernels may be called.
pub(crate) fn table_of(level: Level) -> Result<&'static Table, LevelError> {
    match level {
        Level::Portable => Ok(&arch::PORTABLE),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") => Ok(&arch::x86_64::AVX2),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if has_avx512() => Ok(&arch::x86_64::AVX512),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Bf16 if has_avx512() && is_x86_feature_detected!("avx512bf16") => Ok(&arch::x86_64::AVX512_BF16),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Fp16
            if has_avx512() && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512fp16") =>
        {
            Ok(&arch::x86_64::AVX512_FP16)
        }
        Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 | Level::Avx512Fp16 => Err(LevelError::Unavailable(level)),
    }
}

/// Whether the processor has what all levels with AVX-512 need.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// The name of the level in use, such as `avx2`: the best that this machine has, unless [`force`] chose.
#[must_use]
pub fn dispatch() -> &'static str {
    table().level.name()
}

/// Chooses the level for this process, in place of the best one.
///
/// # Errors
/// If the processor cannot run it, or if kernels of another level have been used already.
pub fn force(level: Level) -> Result<(), LevelError> {
    let asked = table_of(level)?;
    let chosen = CHOSEN.get_or_init(|| asked).level;
    if chosen == level { Ok(()) } else { Err(LevelError::Chosen { asked: level, chosen }) }
}
