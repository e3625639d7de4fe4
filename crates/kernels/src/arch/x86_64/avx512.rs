//! AVX-512 (F, BW, DQ, VL): 64 bytes at a time.

use core::arch::x86_64::*;

use super::lanes;
use crate::arch::entry::entry_points;
use crate::dispatch::{Kernel, Level, Table};
use crate::fold::Hints;
use crate::generic::fold::{Fixed, Many, Tree};
use crate::generic::{self, FoldJob, Lanes, Max, Min, Operation, PairJob, Prod, Register, Sum};

impl Register for __m512i {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the caller promises these bytes; the instruction takes any address.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes; the instruction takes any address.
        unsafe { _mm512_storeu_si512(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes and the alignment.
        unsafe { _mm512_stream_si512(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn load_partial(from: *const u8, len: usize) -> __m512i {
        // SAFETY: the caller promises the instruction set and these bytes.
        unsafe { load_first(from, len) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises the instruction set and these bytes.
        unsafe { store_first(self, to, len) }
    }
}

/// The mask of the first `len` of 16 bytes, at least one; below, of 32 and of 64.
#[inline(always)]
const fn first_of_16(len: usize) -> __mmask16 {
    !0 >> (16 - len)
}

#[inline(always)]
const fn first_of_32(len: usize) -> __mmask32 {
    !0 >> (32 - len)
}

#[inline(always)]
const fn first_of_64(len: usize) -> __mmask64 {
    !0 >> (64 - len)
}

/// The first `len` bytes, at least one and at most 64, the others zeros. No wider than need be: what crosses the end of a cache
/// line takes the next one too, though the mask hides its bytes, and for the few bytes behind a header that is a line
/// of another core.
///
/// # Safety
/// They are valid for reads.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_first(from: *const u8, len: usize) -> __m512i {
    if len <= 16 {
        // SAFETY: the instruction touches the bytes in the mask only, and those the caller promises.
        let low = unsafe { _mm_maskz_loadu_epi8(first_of_16(len), from.cast()) };
        _mm512_zextsi128_si512(low)
    } else if len <= 32 {
        // SAFETY: the same.
        let low = unsafe { _mm256_maskz_loadu_epi8(first_of_32(len), from.cast()) };
        _mm512_zextsi256_si512(low)
    } else {
        // SAFETY: the same.
        unsafe { _mm512_maskz_loadu_epi8(first_of_64(len), from.cast()) }
    }
}

/// Writes the first `len` bytes, at least one and at most 64; no wider than need be either.
///
/// # Safety
/// They are valid for writes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store_first(value: __m512i, to: *mut u8, len: usize) {
    if len <= 16 {
        let low = _mm512_castsi512_si128(value);
        // SAFETY: the instruction touches the bytes in the mask only, and those the caller promises.
        unsafe { _mm_mask_storeu_epi8(to.cast(), first_of_16(len), low) }
    } else if len <= 32 {
        let low = _mm512_castsi512_si256(value);
        // SAFETY: the same.
        unsafe { _mm256_mask_storeu_epi8(to.cast(), first_of_32(len), low) }
    } else {
        // SAFETY: the same.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), first_of_64(len), value) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn same(a: __m512i) -> __m512i {
    a
}

/// There is no multiplication of bytes: those of odd place and those of even place are multiplied as 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn prod_8(a: __m512i, b: __m512i) -> __m512i {
    let even = _mm512_mullo_epi16(a, b);
    let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
    _mm512_mask_mov_epi8(even, 0xaaaa_aaaa_aaaa_aaaa, _mm512_slli_epi16::<8>(odd))
}

/// The larger by the number's order, where -0 is less than +0; the instruction does not propagate NaN.
const LARGER: i32 = 0b0101;
/// The smaller, likewise.
const SMALLER: i32 = 0b0100;

macro_rules! extreme {
    ($($name:ident $vector:ty, $range:ident::<$which:ident>, $unordered:ident, $replace:ident, $nan:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = "avx512f,avx512dq")]
        fn $name(a: $vector, b: $vector) -> $vector {
            $replace($range::<$which>(a, b), $unordered::<_CMP_UNORD_Q>(a, b), $nan())
        }
    )*};
}
extreme! {
    max_f32 __m512, _mm512_range_ps::<LARGER>, _mm512_cmp_ps_mask, _mm512_mask_mov_ps, nan_f32;
    min_f32 __m512, _mm512_range_ps::<SMALLER>, _mm512_cmp_ps_mask, _mm512_mask_mov_ps, nan_f32;
    max_f64 __m512d, _mm512_range_pd::<LARGER>, _mm512_cmp_pd_mask, _mm512_mask_mov_pd, nan_f64;
    min_f64 __m512d, _mm512_range_pd::<SMALLER>, _mm512_cmp_pd_mask, _mm512_mask_mov_pd, nan_f64;
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nan_f32() -> __m512 {
    _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc0_0000))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn nan_f64() -> __m512d {
    _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8 << 48))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn canonical_f32(a: __m512) -> __m512 {
    _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), nan_f32())
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_f32(raw: __m512i) -> __m512 {
    _mm512_castsi512_ps(raw)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn narrow_f32(a: __m512) -> __m512i {
    _mm512_castps_si512(canonical_f32(a))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_f64(raw: __m512i) -> __m512d {
    _mm512_castsi512_pd(raw)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn narrow_f64(a: __m512d) -> __m512i {
    _mm512_castpd_si512(_mm512_mask_mov_pd(a, _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, a), nan_f64()))
}

/// Thirty-two elements, widened.
pub(super) type Widened = (__m512, __m512);

/// The first sixteen, and the last sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn widen_f16(raw: __m512i) -> Widened {
    let (low, high) = (_mm512_castsi512_si256(raw), _mm512_extracti64x4_epi64::<1>(raw));
    (_mm512_cvtph_ps(low), _mm512_cvtph_ps(high))
}

/// The conversion keeps the upper bits of NaN, so that the canonical NaN becomes the canonical NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn narrow_f16(a: Widened) -> __m512i {
    let low = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_f32(a.0));
    let high = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_f32(a.1));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Those of even place, and those of odd place: no element has to leave its 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn widen_bf16(raw: __m512i) -> Widened {
    let odd = _mm512_and_si512(raw, _mm512_set1_epi32(!0 << 16));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw)), _mm512_castsi512_ps(odd))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn narrow_bf16(a: Widened) -> __m512i {
    let even = _mm512_srli_epi32::<16>(rounded_bf16(a.0));
    _mm512_mask_mov_epi16(even, 0xaaaa_aaaa, rounded_bf16(a.1))
}

/// Rounded to nearest, ties to even, in the upper half of 32 bits; what is in the lower half does not count. A carry
/// out of the significand goes into the exponent, as it should, up to infinity. With integers, because the
/// instructions for this flush subnormals.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded_bf16(a: __m512) -> __m512i {
    let bits = _mm512_castps_si512(a);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), _mm512_set1_epi32(0x7fc0_0000))
}

macro_rules! pairwise {
    ($($name:ident = $each:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = "avx512f,avx512dq")]
        pub(super) fn $name(a: Widened, b: Widened) -> Widened {
            ($each(a.0, b.0), $each(a.1, b.1))
        }
    )*};
}
pairwise! { sum_2 = _mm512_add_ps; max_2 = max_f32; min_2 = min_f32; prod_2 = _mm512_mul_ps; }

lanes! {
    I8(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi8, max: _mm512_max_epi8, min: _mm512_min_epi8, prod: prod_8, narrow: same
    }
    I16(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi16, max: _mm512_max_epi16, min: _mm512_min_epi16, prod: _mm512_mullo_epi16,
        narrow: same
    }
    I32(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi32, max: _mm512_max_epi32, min: _mm512_min_epi32, prod: _mm512_mullo_epi32,
        narrow: same
    }
    I64(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi64, max: _mm512_max_epi64, min: _mm512_min_epi64, prod: _mm512_mullo_epi64,
        narrow: same
    }
    U8(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi8, max: _mm512_max_epu8, min: _mm512_min_epu8, prod: prod_8, narrow: same
    }
    U16(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi16, max: _mm512_max_epu16, min: _mm512_min_epu16, prod: _mm512_mullo_epi16,
        narrow: same
    }
    U32(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi32, max: _mm512_max_epu32, min: _mm512_min_epu32, prod: _mm512_mullo_epi32,
        narrow: same
    }
    U64(__m512i => __m512i) {
        widen: same, sum: _mm512_add_epi64, max: _mm512_max_epu64, min: _mm512_min_epu64, prod: _mm512_mullo_epi64,
        narrow: same
    }
    F16(__m512i => Widened) {
        widen: widen_f16, sum: sum_2, max: max_2, min: min_2, prod: prod_2, narrow: narrow_f16
    }
    Bf16(__m512i => Widened) {
        widen: widen_bf16, sum: sum_2, max: max_2, min: min_2, prod: prod_2, narrow: narrow_bf16
    }
    F32(__m512i => __m512) {
        widen: widen_f32, sum: _mm512_add_ps, max: max_f32, min: min_f32, prod: _mm512_mul_ps, narrow: narrow_f32
    }
    F64(__m512i => __m512d) {
        widen: widen_f64, sum: _mm512_add_pd, max: max_f64, min: min_f64, prod: _mm512_mul_pd, narrow: narrow_f64
    }
}

entry_points!(
    AVX512, Level::Avx512, __m512i, #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    lanes: [I8 I8, I16 I16, I32 I32, I64 I64, U8 I8, U16 I16, U32 I32, U64 I64, F16 F16, Bf16 Bf16, F32 F32, F64 F64],
    trees: [Fixed<1>, Fixed<2>, Fixed<3>, Fixed<4>, Fixed<5>, Fixed<6>, Fixed<7>, Fixed<8>, Many]
);
