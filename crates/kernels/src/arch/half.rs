//! Conversions of the 16-bit floats in plain integer and float32 arithmetic, for machines without instructions for
//! them. No branches, so that compilers can vectorise the callers.
#![allow(clippy::as_conversions, reason = "cuts bit patterns into their parts")]

/// The float32 of the same value; NaN stays NaN.
#[inline(always)]
pub(super) const fn from_bfloat16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounded to nearest, ties to even; NaN becomes the canonical one. Rounding up a significand of all ones carries
/// into the exponent, which is what it should do, up to infinity.
#[inline(always)]
pub(super) const fn to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fc0 } else { rounded as u16 }
}

/// The float32 of the same value; NaN stays NaN.
#[inline(always)]
pub(super) fn from_float16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    // The exponent's bias differs by 112. Scaling by 2^112 corrects it, and makes subnormals normal, exactly.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    // Infinity and NaN must keep the largest exponent instead.
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(sign | if magnitude >= 0x0f80_0000 { special } else { scaled })
}

/// Rounded to nearest, ties to even; NaN becomes the canonical one, what is too large infinity.
#[inline(always)]
pub(super) fn to_float16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: the new exponent, and rounding as for bfloat16 but of 13 bits. Overflow carries into infinity.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // Subnormal results are multiples of 2^-24: adding 0.5, whose last place that is, rounds to them.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let result = if magnitude >= 143 << 23 { 0x7c00 } else { finite as u16 };
    if magnitude > 0x7f80_0000 { 0x7e00 } else { sign | result }
}
