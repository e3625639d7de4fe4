//! The fold, one element at a time, as the words say it: slow, and with nothing in common with the kernels.

use half::{bf16, f16};
use types::{DataType, Reduction};

/// One element of any data type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Element {
    Signed(i64),
    Unsigned(u64),
    /// float32, and the 16-bit types while they are folded.
    Single(f32),
    Double(f64),
}

impl Element {
    pub(crate) fn decode(dtype: DataType, bytes: &[u8]) -> Element {
        macro_rules! number {
            ($type:ty) => {
                <$type>::from_ne_bytes(bytes.try_into().unwrap())
            };
        }
        match dtype {
            DataType::Int8 => Element::Signed(number!(i8).into()),
            DataType::Int16 => Element::Signed(number!(i16).into()),
            DataType::Int32 => Element::Signed(number!(i32).into()),
            DataType::Int64 => Element::Signed(number!(i64)),
            DataType::Uint8 => Element::Unsigned(number!(u8).into()),
            DataType::Uint16 => Element::Unsigned(number!(u16).into()),
            DataType::Uint32 => Element::Unsigned(number!(u32).into()),
            DataType::Uint64 => Element::Unsigned(number!(u64)),
            DataType::Float16 => Element::Single(f16::from_bits(number!(u16)).to_f32_const()),
            DataType::Bfloat16 => Element::Single(bf16::from_bits(number!(u16)).to_f32_const()),
            DataType::Float32 => Element::Single(number!(f32)),
            DataType::Float64 => Element::Double(number!(f64)),
        }
    }

    pub(crate) fn encode(self, dtype: DataType, bytes: &mut [u8]) {
        let size = dtype.size();
        match self {
            // Two's complement: the low bytes are the number modulo 2^(8 size).
            Element::Signed(x) => bytes.copy_from_slice(&x.to_le_bytes()[..size]),
            Element::Unsigned(x) => bytes.copy_from_slice(&x.to_le_bytes()[..size]),
            Element::Single(x) => {
                let nan = x.is_nan();
                match dtype {
                    DataType::Float16 => {
                        let bits = if nan { 0x7e00 } else { f16::from_f32_const(x).to_bits() };
                        bytes.copy_from_slice(&bits.to_ne_bytes());
                    }
                    DataType::Bfloat16 => {
                        let bits = if nan { 0x7fc0 } else { bf16::from_f32_const(x).to_bits() };
                        bytes.copy_from_slice(&bits.to_ne_bytes());
                    }
                    _ => {
                        let bits = if nan { 0x7fc0_0000 } else { x.to_bits() };
                        bytes.copy_from_slice(&bits.to_ne_bytes());
                    }
                }
            }
            Element::Double(x) => {
                let bits = if x.is_nan() { 0x7ff8_0000_0000_0000 } else { x.to_bits() };
                bytes.copy_from_slice(&bits.to_ne_bytes());
            }
        }
    }
}

/// The larger (`larger`) or the smaller of two floats: NaN wins, -0 is less than +0.
fn extreme<T: PartialOrd + Copy>(a: T, b: T, larger: bool, is_negative: fn(T) -> bool) -> T {
    let a_is_less = match a.partial_cmp(&b) {
        None if a.partial_cmp(&a).is_none() => return a,
        None => return b,
        Some(core::cmp::Ordering::Equal) => is_negative(a),
        Some(order) => order.is_lt(),
    };
    if a_is_less == larger { b } else { a }
}

pub(crate) fn combine(reduction: Reduction, a: Element, b: Element) -> Element {
    use Element::{Double, Signed, Single, Unsigned};
    use Reduction::{Max, Min, Prod, Sum};
    match (reduction, a, b) {
        (Sum, Signed(a), Signed(b)) => Signed(a.wrapping_add(b)),
        (Prod, Signed(a), Signed(b)) => Signed(a.wrapping_mul(b)),
        (Max, Signed(a), Signed(b)) => Signed(if a > b { a } else { b }),
        (Min, Signed(a), Signed(b)) => Signed(if a < b { a } else { b }),
        (Sum, Unsigned(a), Unsigned(b)) => Unsigned(a.wrapping_add(b)),
        (Prod, Unsigned(a), Unsigned(b)) => Unsigned(a.wrapping_mul(b)),
        (Max, Unsigned(a), Unsigned(b)) => Unsigned(if a > b { a } else { b }),
        (Min, Unsigned(a), Unsigned(b)) => Unsigned(if a < b { a } else { b }),
        // Through float64, which has more than twice the digits: the second rounding cannot change the first, but for
        // products that are subnormal, so those are taken as they are.
        (Sum, Single(a), Single(b)) => Single(round(f64::from(a) + f64::from(b))),
        (Prod, Single(a), Single(b)) => Single(a * b),
        (Max | Min, Single(a), Single(b)) => Single(extreme(a, b, reduction == Max, f32::is_sign_negative)),
        (Sum, Double(a), Double(b)) => Double(a + b),
        (Prod, Double(a), Double(b)) => Double(a * b),
        (Max | Min, Double(a), Double(b)) => Double(extreme(a, b, reduction == Max, f64::is_sign_negative)),
        _ => unreachable!("elements of one data type"),
    }
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "the rounding is what is wanted")]
fn round(x: f64) -> f32 {
    x as f32
}

/// The canonical tree.
pub(crate) fn tree(reduction: Reduction, mut a: Vec<Element>) -> Element {
    let k = a.len();
    let mut d = 1;
    while d < k {
        for j in (0..k).step_by(2 * d) {
            if j + d < k {
                a[j] = combine(reduction, a[j], a[j + d]);
            }
        }
        d *= 2;
    }
    a[0]
}

/// The fold of some ranks' bytes.
pub(crate) fn fold(dtype: DataType, reduction: Reduction, sources: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; sources[0].len()];
    for (i, out) in result.chunks_exact_mut(dtype.size()).enumerate() {
        let at = i * dtype.size()..(i + 1) * dtype.size();
        let elements = sources.iter().map(|s| Element::decode(dtype, &s[at.clone()])).collect();
        tree(reduction, elements).encode(dtype, out);
    }
    result
}
