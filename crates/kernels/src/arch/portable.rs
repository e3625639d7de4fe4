//! Plain code, 64 bytes at a time: loops long enough, and without branches, so that compilers turn them into whatever
//! vector instructions the baseline processor has.
#![allow(clippy::eq_op, reason = "only NaN differs from itself")]

use super::entry::entry_points;
use super::half;
use crate::dispatch::{Kernel, Level, Table};
use crate::fold::Hints;
use crate::generic::fold::{Fixed, Many, Tree};
use crate::generic::{self, FoldJob, Lanes, Max, Min, Operation, PairJob, Prod, Register, Sum};

#[derive(Clone, Copy)]
pub(super) struct Bytes64([u8; 64]);

impl Register for Bytes64 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Bytes64 {
        // SAFETY: the caller promises these bytes, and a byte array has no alignment.
        Bytes64(unsafe { from.cast::<[u8; 64]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes, and a byte array has no alignment.
        unsafe { to.cast::<[u8; 64]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // SAFETY: the caller promises more.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn load_partial(from: *const u8, len: usize) -> Bytes64 {
        let mut bytes = [0; 64];
        // SAFETY: the caller promises these bytes, at most 64.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) }
        Bytes64(bytes)
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises these bytes, at most 64.
        unsafe { to.copy_from_nonoverlapping(self.0.as_ptr(), len) }
    }
}

/// The elements of one register, and the register of some elements.
macro_rules! elements {
    ($type:ident, $split:ident, $join:ident) => {
        #[inline(always)]
        fn $split(raw: Bytes64) -> [$type; 64 / size_of::<$type>()] {
            // SAFETY: both are 64 bytes, and every pattern is a number.
            unsafe { core::mem::transmute(raw.0) }
        }
        #[inline(always)]
        fn $join(elements: [$type; 64 / size_of::<$type>()]) -> Bytes64 {
            // SAFETY: both are 64 bytes, none of them padding.
            Bytes64(unsafe { core::mem::transmute::<[$type; 64 / size_of::<$type>()], [u8; 64]>(elements) })
        }
    };
}
elements!(i8, split_i8, join_i8);
elements!(i16, split_i16, join_i16);
elements!(i32, split_i32, join_i32);
elements!(i64, split_i64, join_i64);
elements!(u16, split_u16, join_u16);
elements!(u32, split_u32, join_u32);
elements!(u64, split_u64, join_u64);

#[inline(always)]
fn split_u8(raw: Bytes64) -> [u8; 64] {
    raw.0
}

#[inline(always)]
fn join_u8(elements: [u8; 64]) -> Bytes64 {
    Bytes64(elements)
}

macro_rules! lanewise {
    ($($name:ident = $operation:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(a: Self::Acc, b: Self::Acc) -> Self::Acc {
            let mut result = a;
            for (x, y) in result.iter_mut().zip(b) {
                *x = $operation(*x, y);
            }
            result
        }
    )*};
}

macro_rules! integers {
    ($($name:ident $type:ident $split:ident $join:ident;)*) => {$(
        struct $name;
        impl Lanes for $name {
            type Raw = Bytes64;
            type Acc = [$type; 64 / size_of::<$type>()];

            #[inline(always)]
            unsafe fn widen(raw: Bytes64) -> Self::Acc {
                $split(raw)
            }
            lanewise! {
                sum = $type::wrapping_add;
                max = Ord::max;
                min = Ord::min;
                prod = $type::wrapping_mul;
            }
            #[inline(always)]
            unsafe fn narrow(acc: Self::Acc) -> Bytes64 {
                $join(acc)
            }
        }
    )*};
}
integers! {
    I8 i8 split_i8 join_i8;
    I16 i16 split_i16 join_i16;
    I32 i32 split_i32 join_i32;
    I64 i64 split_i64 join_i64;
    U8 u8 split_u8 join_u8;
    U16 u16 split_u16 join_u16;
    U32 u32 split_u32 join_u32;
    U64 u64 split_u64 join_u64;
}

/// The larger, the smaller, of two floats: NaN wins, -0 is less than +0. What the two comparisons choose differs only
/// for zeros, of which "and" and "or" of the bits choose the right one, and for NaN, which is made by setting all bits.
macro_rules! extremes {
    ($max:ident $min:ident $type:ident $bits:ident) => {
        #[inline(always)]
        fn $max(a: $type, b: $type) -> $type {
            let (x, y) = (if a > b { a } else { b }, if b > a { b } else { a });
            let nan: $bits = if (a != a) | (b != b) { !0 } else { 0 };
            $type::from_bits(x.to_bits() & y.to_bits() | nan)
        }
        #[inline(always)]
        fn $min(a: $type, b: $type) -> $type {
            let (x, y) = (if a < b { a } else { b }, if b < a { b } else { a });
            let nan: $bits = if (a != a) | (b != b) { !0 } else { 0 };
            $type::from_bits(x.to_bits() | y.to_bits() | nan)
        }
    };
}
extremes!(max_f32 min_f32 f32 u32);
extremes!(max_f64 min_f64 f64 u64);

/// `bits`: the type in memory; `type`: the type that is computed with.
macro_rules! floats {
    ($($name:ident $bits:ident $type:ident $split:ident $join:ident $max:ident $min:ident $from:expr, $to:expr;)*) => {$(
        struct $name;
        impl Lanes for $name {
            type Raw = Bytes64;
            type Acc = [$type; 64 / size_of::<$bits>()];

            #[inline(always)]
            unsafe fn widen(raw: Bytes64) -> Self::Acc {
                let mut result = [0.0; 64 / size_of::<$bits>()];
                for (x, bits) in result.iter_mut().zip($split(raw)) {
                    *x = $from(bits);
                }
                result
            }
            lanewise! {
                sum = |a, b| a + b;
                max = $max;
                min = $min;
                prod = |a, b| a * b;
            }
            #[inline(always)]
            unsafe fn narrow(acc: Self::Acc) -> Bytes64 {
                let mut result = [0; 64 / size_of::<$bits>()];
                for (bits, x) in result.iter_mut().zip(acc) {
                    *bits = $to(x);
                }
                $join(result)
            }
        }
    )*};
}
floats! {
    F16 u16 f32 split_u16 join_u16 max_f32 min_f32 half::from_float16, half::to_float16;
    Bf16 u16 f32 split_u16 join_u16 max_f32 min_f32 half::from_bfloat16, half::to_bfloat16;
    F32 u32 f32 split_u32 join_u32 max_f32 min_f32 f32::from_bits, |x: f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    F64 u64 f64 split_u64 join_u64 max_f64 min_f64 f64::from_bits, |x: f64| if x.is_nan() { 0x7ff8 << 48 } else { x.to_bits() };
}

entry_points!(
    PORTABLE, Level::Portable, Bytes64,
    lanes: [I8 I8, I16 I16, I32 I32, I64 I64, U8 I8, U16 I16, U32 I32, U64 I64, F16 F16, Bf16 Bf16, F32 F32, F64 F64],
    trees: [Many, Fixed<2>, Many, Many, Many, Many, Many, Many, Many]
);
