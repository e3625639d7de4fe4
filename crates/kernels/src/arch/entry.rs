//! The entry points of an instruction set. A macro, because a function's instruction set is part of its definition.

/// Makes the functions `fold`, `fold_pair`, `copy` and the table of them. `lanes` are those of the integers,
/// signed and then unsigned, and of the floats, the smallest first: the order of the data types' codes. Beside each
/// are the lanes for sums and products: those of signed and of unsigned integers have the same bits, and one kernel.
/// `trees` are those over 1 to 8 sources, and over any number.
macro_rules! entry_points {
    (
        $table:ident, $level:expr, $raw:ty, $(#[$instructions:meta])?
        lanes: [$($lanes:ident $modular:ident),*], trees: [$($tree:ty),*]
    ) => {
        $(#[$instructions])?
        unsafe fn fold<L: Lanes, O: Operation, T: Tree>(job: &FoldJob<'_>) {
            // SAFETY: the caller's promise is the same.
            unsafe { generic::fold::fold::<L, O, T>(job) }
        }

        $(#[$instructions])?
        unsafe fn fold_pair<L: Lanes, O: Operation>(job: &PairJob) {
            // SAFETY: the caller's promise is the same.
            unsafe { generic::fold::fold_pair::<L, O>(job) }
        }

        $(#[$instructions])?
        pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, hints: Hints) {
            // SAFETY: the caller's promise is the same.
            unsafe { generic::copy::copy::<$raw>(to, from, len, hints) }
        }

        pub(super) const fn kernel<L: Lanes, O: Operation>(level: Level) -> Kernel {
            Kernel { level, fold: [$(fold::<L, O, $tree>),*], pair: fold_pair::<L, O>, copy }
        }

        /// The kernels in the order of the reductions' codes.
        const fn kernels<L: Lanes, M: Lanes>(level: Level) -> [Kernel; 4] {
            [kernel::<M, Sum>(level), kernel::<L, Max>(level), kernel::<L, Min>(level), kernel::<M, Prod>(level)]
        }

        /// The table of a level, which has at least these instructions.
        pub(super) const fn table(level: Level) -> Table {
            Table { level, kernels: [$(kernels::<$lanes, $modular>(level)),*], copy }
        }

        pub(crate) static $table: Table = table($level);
    };
}
pub(crate) use entry_points;
