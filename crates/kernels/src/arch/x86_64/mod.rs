//! Vector instructions of x86-64.
//!
//! The functions that use intrinsics are `#[target_feature]` functions and safe; the traits' methods, which cannot
//! have that attribute, call them in `unsafe` and are inlined into entry points that have it.
//!
//! Rounding control, flush-to-zero and fused multiply-add are never used: the bits are those of plain IEEE arithmetic.

mod avx2;
mod avx512;
mod avx512_half;

pub(crate) use avx2::AVX2;
pub(crate) use avx512::AVX512;
pub(crate) use avx512_half::{AVX512_BF16, AVX512_FP16};

/// Implements `Lanes` with functions that need the instruction set that the caller promises.
macro_rules! lanes {
    ($($name:ident($raw:ty => $acc:ty) {
        widen: $widen:expr, sum: $sum:expr, max: $max:expr, min: $min:expr, prod: $prod:expr, narrow: $narrow:expr
    })*) => {$(
        pub(super) struct $name;
        impl Lanes for $name {
            type Raw = $raw;
            type Acc = $acc;
            #[inline(always)]
            unsafe fn widen(raw: $raw) -> $acc {
                // SAFETY: the caller promises the instruction set.
                unsafe { $widen(raw) }
            }
            #[inline(always)]
            unsafe fn sum(a: $acc, b: $acc) -> $acc {
                // SAFETY: the caller promises the instruction set.
                unsafe { $sum(a, b) }
            }
            #[inline(always)]
            unsafe fn max(a: $acc, b: $acc) -> $acc {
                // SAFETY: the caller promises the instruction set.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            unsafe fn min(a: $acc, b: $acc) -> $acc {
                // SAFETY: the caller promises the instruction set.
                unsafe { $min(a, b) }
            }
            #[inline(always)]
            unsafe fn prod(a: $acc, b: $acc) -> $acc {
                // SAFETY: the caller promises the instruction set.
                unsafe { $prod(a, b) }
            }
            #[inline(always)]
            unsafe fn narrow(acc: $acc) -> $raw {
                // SAFETY: the caller promises the instruction set.
                unsafe { $narrow(acc) }
            }
        }
    )*};
}
use lanes;
