//! AVX2 and F16C: 32 bytes at a time.
#![allow(clippy::as_conversions, reason = "cuts numbers into halves for the intrinsics")]

use core::arch::x86_64::*;

use super::lanes;
use crate::arch::entry::entry_points;
use crate::dispatch::{Kernel, Level, Table};
use crate::fold::Hints;
use crate::generic::fold::{Fixed, Many, Tree};
use crate::generic::{self, FoldJob, Lanes, Max, Min, Operation, PairJob, Prod, Register, Sum};
use crate::partial;

impl Register for __m256i {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the caller promises these bytes; the instruction takes any address.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes; the instruction takes any address.
        unsafe { _mm256_storeu_si256(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_streaming(self, to: *mut u8) {
        // SAFETY: the caller promises these bytes and the alignment.
        unsafe { _mm256_stream_si256(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn load_partial(from: *const u8, len: usize) -> __m256i {
        if len.is_multiple_of(4) {
            // SAFETY: the caller's promise is the same.
            unsafe { load_masked(from, len / 4) }
        } else {
            // SAFETY: the caller's promise is the same.
            unsafe { load_partial_apart(from, len) }
        }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { store_partial_apart(self, to, len) }
    }
}

/// The first `count` of eight elements of four bytes, the others zero.
///
/// # Safety
/// Those are valid for reads.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_masked(from: *const u8, count: usize) -> __m256i {
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    // SAFETY: the instruction touches the elements in the mask only.
    unsafe { _mm256_maskload_epi32(from.cast(), mask) }
}

/// Not inlined: it is much code for what happens once in a call, and there are hundreds of kernels. A function of its
/// own, because the compiler does not heed `inline(never)` where there is a `target_feature`.
///
/// # Safety
/// See `Register`.
#[inline(never)]
unsafe fn load_partial_apart(from: *const u8, len: usize) -> __m256i {
    // SAFETY: the caller's promise is the same.
    unsafe { load_partial(from, len) }
}

/// # Safety
/// See `Register`.
#[inline(never)]
unsafe fn store_partial_apart(value: __m256i, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { store_partial(value, to, len) }
}

/// # Safety
/// See `Register`.
#[target_feature(enable = "avx2")]
unsafe fn load_partial(from: *const u8, len: usize) -> __m256i {
    if len < 16 {
        // SAFETY: the caller promises these bytes.
        let low = unsafe { partial::read(from, len) };
        _mm256_zextsi128_si256(from_numbers(low))
    } else {
        // SAFETY: the first 16 of at least 16 bytes.
        let low = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: the bytes after those, at most 16.
        let high = unsafe { partial::read(from.wrapping_add(16), len - 16) };
        join(low, from_numbers(high))
    }
}

/// # Safety
/// See `Register`.
#[target_feature(enable = "avx2")]
unsafe fn store_partial(value: __m256i, to: *mut u8, len: usize) {
    let (low, high) = halves(value);
    if len < 16 {
        // SAFETY: the caller promises these bytes.
        unsafe { partial::write(to_numbers(low), to, len) }
    } else {
        // SAFETY: the first 16 of at least 16 bytes.
        unsafe { _mm_storeu_si128(to.cast(), low) }
        // SAFETY: the bytes after those, at most 16.
        unsafe { partial::write(to_numbers(high), to.wrapping_add(16), len - 16) }
    }
}

#[inline(always)]
fn from_numbers(value: [u64; 2]) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi64x(value[1] as i64, value[0] as i64) }
}

#[inline(always)]
fn to_numbers(value: __m128i) -> [u64; 2] {
    // SAFETY: both are 16 plain bytes.
    unsafe { core::mem::transmute::<__m128i, [u64; 2]>(value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn join(low: __m128i, high: __m128i) -> __m256i {
    _mm256_set_m128i(high, low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn halves(a: __m256i) -> (__m128i, __m128i) {
    (_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a))
}

#[inline]
#[target_feature(enable = "avx2")]
fn same(a: __m256i) -> __m256i {
    a
}

/// There is no multiplication of bytes: those of odd place and those of even place are multiplied as 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn prod_8(a: __m256i, b: __m256i) -> __m256i {
    let even = _mm256_mullo_epi16(a, b);
    let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
    _mm256_blendv_epi8(_mm256_slli_epi16::<8>(odd), even, _mm256_set1_epi16(0x00ff))
}

/// Modulo 2^64, from products of 32-bit halves: low * low + (low * high + high * low) * 2^32.
#[inline]
#[target_feature(enable = "avx2")]
fn prod_64(a: __m256i, b: __m256i) -> __m256i {
    let low = _mm256_mul_epu32(a, b);
    let crosswise = _mm256_mullo_epi32(a, _mm256_shuffle_epi32::<0b10_11_00_01>(b));
    let cross = _mm256_add_epi32(crosswise, _mm256_slli_epi64::<32>(crosswise));
    _mm256_add_epi64(low, _mm256_and_si256(cross, _mm256_set1_epi64x(!0 << 32)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_i64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_i64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b))
}

/// Unsigned numbers are in the order of signed ones once the top bit is flipped.
#[inline]
#[target_feature(enable = "avx2")]
fn greater_u64(a: __m256i, b: __m256i) -> __m256i {
    let top = _mm256_set1_epi64x(i64::MIN);
    _mm256_cmpgt_epi64(_mm256_xor_si256(a, top), _mm256_xor_si256(b, top))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_u64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, greater_u64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_u64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, greater_u64(a, b))
}

/// The instruction gives its second operand for two zeros and for NaN. So of both orders the results differ only
/// there: for zeros "and" gives +0 unless both are -0, and NaN is made by setting all bits.
#[inline]
#[target_feature(enable = "avx2")]
fn max_f32(a: __m256, b: __m256) -> __m256 {
    let ordered = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
    _mm256_or_ps(ordered, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
}

/// As `max_f32`, but for zeros "or" gives -0 unless both are +0.
#[inline]
#[target_feature(enable = "avx2")]
fn min_f32(a: __m256, b: __m256) -> __m256 {
    let ordered = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
    _mm256_or_ps(ordered, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_f64(a: __m256d, b: __m256d) -> __m256d {
    let ordered = _mm256_and_pd(_mm256_max_pd(a, b), _mm256_max_pd(b, a));
    _mm256_or_pd(ordered, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_f64(a: __m256d, b: __m256d) -> __m256d {
    let ordered = _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a));
    _mm256_or_pd(ordered, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn canonical_f32(a: __m256) -> __m256 {
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
    _mm256_blendv_ps(a, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_f32(raw: __m256i) -> __m256 {
    _mm256_castsi256_ps(raw)
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_f32(a: __m256) -> __m256i {
    _mm256_castps_si256(canonical_f32(a))
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_f64(raw: __m256i) -> __m256d {
    _mm256_castsi256_pd(raw)
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_f64(a: __m256d) -> __m256i {
    let nan = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7ff8 << 48));
    _mm256_castpd_si256(_mm256_blendv_pd(a, nan, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a)))
}

/// Sixteen elements, widened.
type Widened = (__m256, __m256);

/// The first eight, and the last eight.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_f16(raw: __m256i) -> Widened {
    let (low, high) = halves(raw);
    (_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
}

/// The conversion keeps the upper bits of NaN, so that the canonical NaN becomes the canonical NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_f16(a: Widened) -> __m256i {
    let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_f32(a.0));
    let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_f32(a.1));
    join(low, high)
}

/// Those of even place, and those of odd place: no element has to leave its 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn widen_bf16(raw: __m256i) -> Widened {
    let odd = _mm256_and_si256(raw, _mm256_set1_epi32(!0 << 16));
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(raw)), _mm256_castsi256_ps(odd))
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_bf16(a: Widened) -> __m256i {
    let even = _mm256_srli_epi32::<16>(rounded_bf16(a.0));
    _mm256_blend_epi16::<0b1010_1010>(even, rounded_bf16(a.1))
}

/// Rounded to nearest, ties to even, in the upper half of 32 bits; what is in the lower half does not count. A carry
/// out of the significand goes into the exponent, as it should, up to infinity. With integers, because the
/// instructions for this flush subnormals.
#[inline]
#[target_feature(enable = "avx2")]
fn rounded_bf16(a: __m256) -> __m256i {
    let bits = _mm256_castps_si256(a);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
    _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0_0000), nan)
}

macro_rules! pairwise {
    ($($name:ident = $each:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(a: Widened, b: Widened) -> Widened {
            ($each(a.0, b.0), $each(a.1, b.1))
        }
    )*};
}
pairwise! { sum_2 = _mm256_add_ps; max_2 = max_f32; min_2 = min_f32; prod_2 = _mm256_mul_ps; }

lanes! {
    I8(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi8, max: _mm256_max_epi8, min: _mm256_min_epi8, prod: prod_8, narrow: same
    }
    I16(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi16, max: _mm256_max_epi16, min: _mm256_min_epi16, prod: _mm256_mullo_epi16,
        narrow: same
    }
    I32(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi32, max: _mm256_max_epi32, min: _mm256_min_epi32, prod: _mm256_mullo_epi32,
        narrow: same
    }
    I64(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi64, max: max_i64, min: min_i64, prod: prod_64, narrow: same
    }
    U8(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi8, max: _mm256_max_epu8, min: _mm256_min_epu8, prod: prod_8, narrow: same
    }
    U16(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi16, max: _mm256_max_epu16, min: _mm256_min_epu16, prod: _mm256_mullo_epi16,
        narrow: same
    }
    U32(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi32, max: _mm256_max_epu32, min: _mm256_min_epu32, prod: _mm256_mullo_epi32,
        narrow: same
    }
    U64(__m256i => __m256i) {
        widen: same, sum: _mm256_add_epi64, max: max_u64, min: min_u64, prod: prod_64, narrow: same
    }
    F16(__m256i => Widened) {
        widen: widen_f16, sum: sum_2, max: max_2, min: min_2, prod: prod_2, narrow: narrow_f16
    }
    Bf16(__m256i => Widened) {
        widen: widen_bf16, sum: sum_2, max: max_2, min: min_2, prod: prod_2, narrow: narrow_bf16
    }
    F32(__m256i => __m256) {
        widen: widen_f32, sum: _mm256_add_ps, max: max_f32, min: min_f32, prod: _mm256_mul_ps, narrow: narrow_f32
    }
    F64(__m256i => __m256d) {
        widen: widen_f64, sum: _mm256_add_pd, max: max_f64, min: min_f64, prod: _mm256_mul_pd, narrow: narrow_f64
    }
}

entry_points!(
    AVX2, Level::Avx2, __m256i, #[target_feature(enable = "avx2,f16c")]
    lanes: [I8 I8, I16 I16, I32 I32, I64 I64, U8 I8, U16 I16, U32 I32, U64 I64, F16 F16, Bf16 Bf16, F32 F32, F64 F64],
    trees: [Fixed<1>, Fixed<2>, Fixed<3>, Fixed<4>, Fixed<5>, Fixed<6>, Fixed<7>, Fixed<8>, Many]
);
