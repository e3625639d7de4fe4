//! AVX-512 BF16 and FP16: what they do better for 16-bit floats than plain AVX-512, with the same bits. Everything else is as
//! there.

use core::arch::x86_64::*;

use types::DataType;

use super::avx512::{
    self, F16, Widened, max_2, min_2, narrow_bf16, narrow_f16, prod_2, same, sum_2, widen_bf16, widen_f16,
};
use super::lanes;
use crate::dispatch::{Kernel, Level, Table};
use crate::generic::fold::{Fixed, Many, Tree};
use crate::generic::{self, FoldJob, Lanes, Max, Min, Operation, PairJob, Prod, Sum};

/// Quiet NaN, signalling NaN, and subnormal: what the conversion to bfloat16 does not round as it should.
const SPECIAL: i32 = 0x01 | 0x80 | 0x20;

/// The conversion flushes subnormals and keeps the payload of NaN; both are rare, and then plain instructions convert all
/// elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn narrow_bf16_fast(a: Widened) -> __m512i {
    if _mm512_fpclass_ps_mask::<SPECIAL>(a.0) | _mm512_fpclass_ps_mask::<SPECIAL>(a.1) != 0 {
        return narrow_bf16(a);
    }
    let converted = _mm512_cvtne2ps_pbh(a.1, a.0);
    // SAFETY: both are 64 plain bytes.
    let apart = unsafe { core::mem::transmute::<__m512bh, __m512i>(converted) };
    _mm512_permutexvar_epi16(interleaved(), apart)
}

/// Where the elements are once those of even place stand before those of odd place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleaved() -> __m512i {
    let even = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_or_si512(even, _mm512_slli_epi32::<16>(_mm512_add_epi32(even, _mm512_set1_epi32(16))))
}

/// The sum of two float16 in float32, rounded to float16, is their sum rounded once: 24 bits are twice 11 and two more
/// (Figueroa, "When is double rounding innocuous?", 1995). Sums that are subnormal are exact.
#[inline]
#[target_feature(enable = "avx512f,avx512fp16")]
fn sum_f16(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castph_si512(_mm512_add_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)))
}

/// Products of two float16 are exact in float32.
#[inline]
#[target_feature(enable = "avx512f,avx512fp16")]
fn prod_f16(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,avx2")]
fn max_f16(a: __m512i, b: __m512i) -> __m512i {
    narrow_f16(max_2(widen_f16(a), widen_f16(b)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,avx2")]
fn min_f16(a: __m512i, b: __m512i) -> __m512i {
    narrow_f16(min_2(widen_f16(a), widen_f16(b)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512fp16")]
fn canonical_f16(a: __m512i) -> __m512i {
    let float = _mm512_castsi512_ph(a);
    _mm512_mask_mov_epi16(a, _mm512_cmp_ph_mask::<_CMP_UNORD_Q>(float, float), _mm512_set1_epi16(0x7e00))
}

lanes! {
    FastBf16(__m512i => Widened) {
        widen: widen_bf16, sum: sum_2, max: max_2, min: min_2, prod: prod_2, narrow: narrow_bf16_fast
    }
    // For one source or two only: between the sums of more nothing may be rounded.
    PairF16(__m512i => __m512i) {
        widen: same, sum: sum_f16, max: max_f16, min: min_f16, prod: prod_f16, narrow: canonical_f16
    }
}

/// Entry points for these lanes, in a module, with these instructions.
macro_rules! entries {
    ($module:ident, $lanes:ty, $instructions:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $instructions)]
            pub(super) unsafe fn fold<O: Operation, T: Tree>(job: &FoldJob<'_>) {
                // SAFETY: the caller's promise is the same.
                unsafe { generic::fold::fold::<$lanes, O, T>(job) }
            }

            #[target_feature(enable = $instructions)]
            pub(super) unsafe fn fold_pair<O: Operation>(job: &PairJob) {
                // SAFETY: the caller's promise is the same.
                unsafe { generic::fold::fold_pair::<$lanes, O>(job) }
            }
        }
    };
}
entries!(bf16, FastBf16, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");
entries!(fp16, PairF16, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512fp16");

const fn bfloat16<O: Operation>(level: Level) -> Kernel {
    Kernel {
        fold: [
            bf16::fold::<O, Fixed<1>>,
            bf16::fold::<O, Fixed<2>>,
            bf16::fold::<O, Fixed<3>>,
            bf16::fold::<O, Fixed<4>>,
            bf16::fold::<O, Fixed<5>>,
            bf16::fold::<O, Fixed<6>>,
            bf16::fold::<O, Fixed<7>>,
            bf16::fold::<O, Fixed<8>>,
            bf16::fold::<O, Many>,
        ],
        pair: bf16::fold_pair::<O>,
        level,
        copy: avx512::copy,
    }
}

/// For sums and products: one or two sources without a detour over float32.
const fn float16<O: Operation>(level: Level) -> Kernel {
    let mut kernel = avx512::kernel::<F16, O>(level);
    kernel.fold[0] = fp16::fold::<O, Fixed<1>>;
    kernel.fold[1] = fp16::fold::<O, Fixed<2>>;
    kernel.pair = fp16::fold_pair::<O>;
    kernel
}

/// The kernels of a data type stand at its code less one, as in `Table::kernel`; those of reductions likewise.
const FLOAT16: usize = 8;
const BFLOAT16: usize = 9;

const fn with_bf16(level: Level) -> Table {
    let mut table = avx512::table(level);
    table.kernels[BFLOAT16] =
        [bfloat16::<Sum>(level), bfloat16::<Max>(level), bfloat16::<Min>(level), bfloat16::<Prod>(level)];
    table
}

const fn with_fp16(level: Level) -> Table {
    let mut table = with_bf16(level);
    let [_, max, min, _] = table.kernels[FLOAT16];
    table.kernels[FLOAT16] = [float16::<Sum>(level), max, min, float16::<Prod>(level)];
    table
}

pub(crate) static AVX512_BF16: Table = with_bf16(Level::Avx512Bf16);
pub(crate) static AVX512_FP16: Table = with_fp16(Level::Avx512Fp16);

const _: () = assert!(DataType::Float16.code() == 9 && DataType::Bfloat16.code() == 10);
