//! Plain code, 16 bytes at a time, which compilers turn into the vector instructions of the baseline processor.
#![allow(clippy::as_conversions, reason = "a macro's literal patterns")]

use super::entry::entry_points;
use super::half;
use crate::dispatch::{Kernel, Level, Table};
use crate::fold::Hints;
use crate::generic::fold::{Fixed, Many, Tree};
use crate::generic::{self, FoldJob, Lanes, Max, Min, Operation, PairJob, Prod, Register, Sum, partial};

#[derive(Clone, Copy)]
pub(super) struct Bytes16([u8; 16]);

impl Register for Bytes16 {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Bytes16 {
        // SAFETY: the caller promises these bytes, and a byte array has no alignment.
        Bytes16(unsafe { from.cast::<[u8; 16]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes, and a byte array has no alignment.
        unsafe { to.cast::<[u8; 16]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // SAFETY: the caller promises more.
        unsafe { self.store(to) }
    }

    // Not inlined: it is much code for what happens once in a call, and there are hundreds of kernels.
    #[inline(never)]
    unsafe fn load_partial(from: *const u8, len: usize) -> Bytes16 {
        // SAFETY: the caller promises these bytes, at most 16.
        let halves = unsafe { partial::read(from, len) };
        // SAFETY: both are 16 bytes.
        Bytes16(unsafe { core::mem::transmute::<[u64; 2], [u8; 16]>(halves.map(u64::to_le)) })
    }

    #[inline(never)]
    unsafe fn store_partial(self, to: *mut u8, len: usize) {
        // SAFETY: both are 16 bytes.
        let halves = unsafe { core::mem::transmute::<[u8; 16], [u64; 2]>(self.0) };
        // SAFETY: the caller promises these bytes, at most 16.
        unsafe { partial::write(halves.map(u64::from_le), to, len) }
    }
}

/// The elements of one register, and the register of some elements.
macro_rules! elements {
    ($type:ident, $split:ident, $join:ident) => {
        #[inline(always)]
        fn $split(raw: Bytes16) -> [$type; 16 / size_of::<$type>()] {
            // SAFETY: both are 16 bytes, and every pattern is a number.
            unsafe { core::mem::transmute(raw.0) }
        }
        #[inline(always)]
        fn $join(elements: [$type; 16 / size_of::<$type>()]) -> Bytes16 {
            // SAFETY: both are 16 bytes, none of them padding.
            Bytes16(unsafe { core::mem::transmute::<[$type; 16 / size_of::<$type>()], [u8; 16]>(elements) })
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
fn split_u8(raw: Bytes16) -> [u8; 16] {
    raw.0
}

#[inline(always)]
fn join_u8(elements: [u8; 16]) -> Bytes16 {
    Bytes16(elements)
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
            type Raw = Bytes16;
            type Acc = [$type; 16 / size_of::<$type>()];

            #[inline(always)]
            unsafe fn widen(raw: Bytes16) -> Self::Acc {
                $split(raw)
            }
            lanewise! {
                sum = $type::wrapping_add;
                max = Ord::max;
                min = Ord::min;
                prod = $type::wrapping_mul;
            }
            #[inline(always)]
            unsafe fn narrow(acc: Self::Acc) -> Bytes16 {
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

/// The larger, the smaller, of two floats: NaN wins, -0 is less than +0. Equal values are of equal bits but for the
/// signs of zeros, so that "and" and "or" of the bits choose between those.
macro_rules! extremes {
    ($max:ident $min:ident $type:ident) => {
        #[inline(always)]
        fn $max(a: $type, b: $type) -> $type {
            let zeros = $type::from_bits(a.to_bits() & b.to_bits());
            let ordered = if a > b {
                a
            } else if a < b {
                b
            } else {
                zeros
            };
            if a.is_nan() || b.is_nan() { $type::NAN } else { ordered }
        }
        #[inline(always)]
        fn $min(a: $type, b: $type) -> $type {
            let zeros = $type::from_bits(a.to_bits() | b.to_bits());
            let ordered = if a < b {
                a
            } else if a > b {
                b
            } else {
                zeros
            };
            if a.is_nan() || b.is_nan() { $type::NAN } else { ordered }
        }
    };
}
extremes!(max_f32 min_f32 f32);
extremes!(max_f64 min_f64 f64);

/// `bits`: the type in memory; `type`: the type that is computed with.
macro_rules! floats {
    ($($name:ident $bits:ident $type:ident $split:ident $join:ident $max:ident $min:ident $from:expr, $to:expr;)*) => {$(
        struct $name;
        impl Lanes for $name {
            type Raw = Bytes16;
            type Acc = [$type; 16 / size_of::<$bits>()];

            #[inline(always)]
            unsafe fn widen(raw: Bytes16) -> Self::Acc {
                let mut result = [0.0; 16 / size_of::<$bits>()];
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
            unsafe fn narrow(acc: Self::Acc) -> Bytes16 {
                let mut result = [0; 16 / size_of::<$bits>()];
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
    PORTABLE, Level::Portable, Bytes16,
    lanes: [I8 I8, I16 I16, I32 I32, I64 I64, U8 I8, U16 I16, U32 I32, U64 I64, F16 F16, Bf16 Bf16, F32 F32, F64 F64],
    trees: [Many, Fixed<2>, Many, Many, Many, Many, Many, Many, Many]
);
