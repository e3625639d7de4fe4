use core::fmt;
use std::sync::OnceLock;

use types::{DataType, Reduction};

use crate::arch;
use crate::fold::Hints;
use crate::generic::{FoldJob, StageJob};

/// An instruction set for which there are kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Whatever the compiler makes of plain code for the baseline processor; on every machine.
    Portable,
    /// x86-64 with AVX2 and F16C.
    Avx2,
}

impl Level {
    /// Every level, the slowest first.
    pub const ALL: [Level; 2] = [Level::Portable, Level::Avx2];

    /// The name that [`dispatch`] gives.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
        }
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Avx2 => false,
        }
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

/// The kernels of one data type and reduction.
pub(crate) struct Kernel {
    /// Safety: the pointers of the job and of the sources are valid for `len` bytes, of which the outputs may be
    /// written; there is at least one source; the processor has the instruction set.
    pub(crate) fold: unsafe fn(&FoldJob, &[*const u8]),
    /// Safety: as `fold`, and `next` and `stage` are valid for `stage_len` bytes.
    pub(crate) fold_and_stage: unsafe fn(&StageJob),
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

/// The kernels of one level.
pub(crate) struct Table {
    pub(crate) level: Level,
    pub(crate) kernels: [[Kernel; 4]; 12],
    /// Copies `len` bytes (third argument) that do not overlap. Safety: both pointers are valid for them; the
    /// processor has the instruction set.
    pub(crate) copy: unsafe fn(*mut u8, *const u8, usize, Hints),
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
    CHOSEN.get_or_init(|| {
        Level::ALL
            .iter()
            .rev()
            .find_map(|&level| table_of(level).ok())
            .unwrap_or(&arch::PORTABLE)
    })
}

/// The table of a level, if the processor can run it.
pub(crate) fn table_of(level: Level) -> Result<&'static Table, LevelError> {
    if !level.is_available() {
        return Err(LevelError::Unavailable(level));
    }
    match level {
        Level::Portable => Ok(&arch::PORTABLE),
        Level::Avx2 => Err(LevelError::Unavailable(level)),
    }
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
    if chosen == level {
        Ok(())
    } else {
        Err(LevelError::Chosen {
            asked: level,
            chosen,
        })
    }
}
