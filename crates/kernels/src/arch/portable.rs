//! Plain code, 16 bytes at a time, which compilers turn into the vector instructions of the baseline processor.
#![allow(clippy::as_conversions, reason = "array lengths and function pointers")]

use core::array;

use super::half;
use crate::dispatch::{Kernel, Level, Table};
use crate::fold::Hints;
use crate::generic::{
    self, FoldJob, Lanes, Max, Min, Operation, Prod, Register, StageJob, Sum, partial,
};

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

    #[inline(always)]
    unsafe fn load_partial(from: *const u8, len: usize) -> Bytes16 {
        // SAFETY: the caller promises these bytes, fewer than 16.
        Bytes16(unsafe { partial::read(from, len) }.to_le_bytes())
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises these bytes, fewer than 16.
        unsafe { partial::write(u128::from_le_bytes(self.0), to, len) }
    }

    #[inline(always)]
    unsafe fn prefetch_for_writing(_: *const u8) {}
}

/// The elements of one register.
macro_rules! split {
    ($raw:expr, $type:ty) => {
        array::from_fn(|i| {
            <$type>::from_ne_bytes(array::from_fn(|j| $raw.0[i * size_of::<$type>() + j]))
        })
    };
}

/// The register of some elements.
macro_rules! join {
    ($elements:expr, $size:expr) => {{
        let bytes = $elements.map(|x| x.to_ne_bytes());
        Bytes16(array::from_fn(|i| bytes[i / $size][i % $size]))
    }};
}

macro_rules! lanewise {
    ($($name:ident = $operation:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(a: Self::Acc, b: Self::Acc) -> Self::Acc {
            array::from_fn(|i| $operation(a[i], b[i]))
        }
    )*};
}

macro_rules! integers {
    ($($name:ident $type:ident;)*) => {$(
        struct $name;
        impl Lanes for $name {
            type Raw = Bytes16;
            type Acc = [$type; 16 / size_of::<$type>()];
            const SIZE: usize = size_of::<$type>();

            #[inline(always)]
            unsafe fn widen(raw: Bytes16) -> Self::Acc {
                split!(raw, $type)
            }
            lanewise! {
                sum = $type::wrapping_add;
                max = Ord::max;
                min = Ord::min;
                prod = $type::wrapping_mul;
            }
            #[inline(always)]
            unsafe fn narrow(acc: Self::Acc) -> Bytes16 {
                join!(acc, size_of::<$type>())
            }
        }
    )*};
}
integers! { I8 i8; I16 i16; I32 i32; I64 i64; U8 u8; U16 u16; U32 u32; U64 u64; }

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
            if a.is_nan() || b.is_nan() {
                $type::NAN
            } else {
                ordered
            }
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
            if a.is_nan() || b.is_nan() {
                $type::NAN
            } else {
                ordered
            }
        }
    };
}
extremes!(max_f32 min_f32 f32);
extremes!(max_f64 min_f64 f64);

/// `bits`: the type in memory; `type`: the type that is computed with.
macro_rules! floats {
    ($($name:ident $bits:ident $type:ident $max:ident $min:ident $from:expr, $to:expr;)*) => {$(
        struct $name;
        impl Lanes for $name {
            type Raw = Bytes16;
            type Acc = [$type; 16 / size_of::<$bits>()];
            const SIZE: usize = size_of::<$bits>();

            #[inline(always)]
            unsafe fn widen(raw: Bytes16) -> Self::Acc {
                let bits: [$bits; 16 / size_of::<$bits>()] = split!(raw, $bits);
                bits.map($from)
            }
            lanewise! {
                sum = |a, b| a + b;
                max = $max;
                min = $min;
                prod = |a, b| a * b;
            }
            #[inline(always)]
            unsafe fn narrow(acc: Self::Acc) -> Bytes16 {
                let bits: [$bits; 16 / size_of::<$bits>()] = acc.map($to);
                join!(bits, size_of::<$bits>())
            }
        }
    )*};
}
floats! {
    F16 u16 f32 max_f32 min_f32 half::from_float16, half::to_float16;
    Bf16 u16 f32 max_f32 min_f32 half::from_bfloat16, half::to_bfloat16;
    F32 u32 f32 max_f32 min_f32 f32::from_bits, |x: f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    F64 u64 f64 max_f64 min_f64 f64::from_bits, |x: f64| if x.is_nan() { 0x7ff8 << 48 } else { x.to_bits() };
}

unsafe fn fold<L: Lanes, O: Operation>(job: &FoldJob, sources: &[*const u8]) {
    // SAFETY: the caller's promise is the same.
    unsafe { generic::fold::fold::<L, O>(job, sources) }
}

unsafe fn fold_and_stage<L: Lanes, O: Operation>(job: &StageJob) {
    // SAFETY: the caller's promise is the same.
    unsafe { generic::fold::fold_and_stage::<L, O>(job) }
}

unsafe fn copy(to: *mut u8, from: *const u8, len: usize, hints: Hints) {
    // SAFETY: the caller's promise is the same.
    unsafe { generic::copy::copy::<Bytes16>(to, from, len, hints) }
}

const fn kernel<L: Lanes, O: Operation>() -> Kernel {
    Kernel {
        fold: fold::<L, O>,
        fold_and_stage: fold_and_stage::<L, O>,
    }
}

/// The kernels in the order of the reductions' codes.
const fn kernels<L: Lanes>() -> [Kernel; 4] {
    [
        kernel::<L, Sum>(),
        kernel::<L, Max>(),
        kernel::<L, Min>(),
        kernel::<L, Prod>(),
    ]
}

pub(crate) static PORTABLE: Table = Table {
    level: Level::Portable,
    // In the order of the data types' codes.
    kernels: [
        kernels::<I8>(),
        kernels::<I16>(),
        kernels::<I32>(),
        kernels::<I64>(),
        kernels::<U8>(),
        kernels::<U16>(),
        kernels::<U32>(),
        kernels::<U64>(),
        kernels::<F16>(),
        kernels::<Bf16>(),
        kernels::<F32>(),
        kernels::<F64>(),
    ],
    copy,
};
