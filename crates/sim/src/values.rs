//! What calls are given, and what must come out: element by element, as the words say it.

use core::cmp::Ordering;

use half::{bf16, f16};
use types::{DataType, Reduction};

use crate::random::Random;

/// A rank's input: elements of all magnitudes, with now and then one that is not an ordinary number.
pub(crate) fn input(dtype: DataType, elements: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(elements * dtype.size());
    for _ in 0..elements {
        let bits = random.draw();
        let element = match dtype {
            DataType::Float16 | DataType::Bfloat16 | DataType::Float32 | DataType::Float64 => float(dtype, bits),
            _ => bits,
        };
        bytes.extend(&element.to_le_bytes()[..dtype.size()]);
    }
    bytes
}

/// The bits of a float of this type: of some eight binades around one, or any bits at all.
fn float(dtype: DataType, bits: u64) -> u64 {
    if bits.is_multiple_of(31) {
        return bits >> 5;
    }
    let (exponent_bits, fraction_bits) = match dtype {
        DataType::Float16 => (5, 10),
        DataType::Bfloat16 => (8, 7),
        DataType::Float32 => (8, 23),
        _ => (11, 52),
    };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = bias - 4 + (bits >> 60 & 7);
    let sign = bits >> 59 & 1;
    sign << (exponent_bits + fraction_bits) | exponent << fraction_bits | bits & ((1 << fraction_bits) - 1)
}

/// The canonical tree over the ranks' inputs.
pub(crate) fn tree(dtype: DataType, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size();
    let mut result = Vec::with_capacity(inputs[0].len());
    for at in (0..inputs[0].len()).step_by(size) {
        let mut a: Vec<Number> = inputs.iter().map(|input| Number::of(dtype, &input[at..at + size])).collect();
        let mut d = 1;
        while d < a.len() {
            for j in (0..a.len() - d).step_by(2 * d) {
                a[j] = a[j].with(a[j + d], reduction);
            }
            d *= 2;
        }
        result.extend(&a[0].bits(dtype).to_le_bytes()[..size]);
    }
    result
}

/// An element on its way up the tree.
#[derive(Clone, Copy)]
enum Number {
    Signed(i64),
    Unsigned(u64),
    /// float32, and the 16-bit types until they are rounded at the end.
    Single(f32),
    Double(f64),
}

/// Two floats combined, of either width. Of two zeros -0 is the smaller, and NaN with anything is NaN.
macro_rules! float {
    ($reduction:expr, $a:expr, $b:expr, $nan:expr) => {
        match $reduction {
            Reduction::Sum => $a + $b,
            Reduction::Prod => $a * $b,
            Reduction::Max | Reduction::Min if $a.is_nan() || $b.is_nan() => $nan,
            Reduction::Max if $a.total_cmp(&$b) == Ordering::Less => $b,
            Reduction::Min if $a.total_cmp(&$b) != Ordering::Less => $b,
            Reduction::Max | Reduction::Min => $a,
        }
    };
}

impl Number {
    fn of(dtype: DataType, bytes: &[u8]) -> Number {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        let [a, b, c, d, ..] = word.to_le_bytes();
        let (half, single) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([a, b, c, d]));
        match dtype {
            DataType::Int8 => Number::Signed(a.cast_signed().into()),
            DataType::Int16 => Number::Signed(half.cast_signed().into()),
            DataType::Int32 => Number::Signed(single.cast_signed().into()),
            DataType::Int64 => Number::Signed(word.cast_signed()),
            DataType::Uint8 | DataType::Uint16 | DataType::Uint32 | DataType::Uint64 => Number::Unsigned(word),
            DataType::Float16 => Number::Single(f16::from_bits(half).to_f32()),
            DataType::Bfloat16 => Number::Single(bf16::from_bits(half).to_f32()),
            DataType::Float32 => Number::Single(f32::from_bits(single)),
            DataType::Float64 => Number::Double(f64::from_bits(word)),
        }
    }

    fn with(self, other: Number, reduction: Reduction) -> Number {
        match (self, other) {
            (Number::Signed(a), Number::Signed(b)) => Number::Signed(match reduction {
                Reduction::Sum => a.wrapping_add(b),
                Reduction::Prod => a.wrapping_mul(b),
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            }),
            (Number::Unsigned(a), Number::Unsigned(b)) => Number::Unsigned(match reduction {
                Reduction::Sum => a.wrapping_add(b),
                Reduction::Prod => a.wrapping_mul(b),
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            }),
            (Number::Single(a), Number::Single(b)) => Number::Single(float!(reduction, a, b, f32::NAN)),
            (Number::Double(a), Number::Double(b)) => Number::Double(float!(reduction, a, b, f64::NAN)),
            _ => unreachable!("elements of one type"),
        }
    }

    /// The bits of the result; of one that is not a number those of the canonical quiet NaN.
    fn bits(self, dtype: DataType) -> u64 {
        match self {
            Number::Signed(x) => x.cast_unsigned(),
            Number::Unsigned(x) => x,
            Number::Single(x) => match dtype {
                DataType::Float16 if x.is_nan() => 0x7e00,
                DataType::Float16 => f16::from_f32(x).to_bits().into(),
                DataType::Bfloat16 if x.is_nan() => 0x7fc0,
                DataType::Bfloat16 => bf16::from_f32(x).to_bits().into(),
                _ if x.is_nan() => 0x7fc0_0000,
                _ => x.to_bits().into(),
            },
            Number::Double(x) if x.is_nan() => 0x7ff8_0000_0000_0000,
            Number::Double(x) => x.to_bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_that_of_the_contract() {
        // ((r0 + r1) + (r2 + r3)) + r4, whose rounding differs from that of a chain.
        let values = [1.0_f32, 1e8, -1e8, 3.0, 0.25];
        let inputs: Vec<Vec<u8>> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        let [a, b, c, d, e] = values;
        let want = ((a + b) + (c + d)) + e;
        assert_eq!(tree(DataType::Float32, Reduction::Sum, &inputs), want.to_le_bytes());
        assert_ne!(want, values.iter().sum::<f32>());
    }

    #[test]
    fn extremes_and_roundings_are_those_of_the_contract() {
        let of = |values: &[f32]| values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>();
        let max = tree(DataType::Float32, Reduction::Max, &of(&[-0.0, 0.0]));
        assert_eq!(max, 0.0_f32.to_le_bytes());
        let nan = tree(DataType::Float32, Reduction::Min, &of(&[f32::from_bits(0xffc1_2345), 1.0]));
        assert_eq!(nan, 0x7fc0_0000_u32.to_le_bytes());
        // 1 + 2^-11 + 2^-11: rounded after each addition it would stay 1.
        let small = f16::from_f32(f32::powi(2.0, -11)).to_le_bytes().to_vec();
        let sum = tree(DataType::Float16, Reduction::Sum, &[f16::ONE.to_le_bytes().to_vec(), small.clone(), small]);
        assert_eq!(sum, f16::from_f32(1.0 + f32::powi(2.0, -10)).to_le_bytes());
    }
}
