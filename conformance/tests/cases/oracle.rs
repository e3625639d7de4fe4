//! What an allreduce must give, element by element, written as naively as can be: the canonical tree over the ranks.

use foldcast::{DataType, Reduction};
use half::{bf16, f16};

#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Single(f32),
    Double(f64),
}

pub(crate) fn is_float(dtype: DataType) -> bool {
    use DataType::{Bfloat16, Float16, Float32, Float64};
    matches!(dtype, Float16 | Bfloat16 | Float32 | Float64)
}

/// The fold of these inputs, one of each rank.
pub(crate) fn fold(dtype: DataType, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size();
    let element = |at: usize| {
        let mut values: Vec<Value> = inputs.iter().map(|input| read(dtype, &input[at..at + size])).collect();
        let mut distance = 1;
        while distance < values.len() {
            for left in (0..values.len() - distance).step_by(2 * distance) {
                values[left] = combine(dtype, reduction, values[left], values[left + distance]);
            }
            distance *= 2;
        }
        write(dtype, values[0])
    };
    (0..inputs[0].len()).step_by(size).flat_map(element).collect()
}

fn read(dtype: DataType, bytes: &[u8]) -> Value {
    use DataType as D;
    macro_rules! from {
        ($kind:ty) => {
            <$kind>::from_le_bytes(bytes.try_into().unwrap())
        };
    }
    match dtype {
        D::Int8 => Value::Integer(from!(i8).into()),
        D::Int16 => Value::Integer(from!(i16).into()),
        D::Int32 => Value::Integer(from!(i32).into()),
        D::Int64 => Value::Integer(from!(i64).into()),
        D::Uint8 => Value::Integer(from!(u8).into()),
        D::Uint16 => Value::Integer(from!(u16).into()),
        D::Uint32 => Value::Integer(from!(u32).into()),
        D::Uint64 => Value::Integer(from!(u64).into()),
        D::Float16 => Value::Single(from!(f16).to_f32()),
        D::Bfloat16 => Value::Single(from!(bf16).to_f32()),
        D::Float32 => Value::Single(from!(f32)),
        D::Float64 => Value::Double(from!(f64)),
    }
}

/// Rounded once, here; NaNs become the quiet one without a sign.
fn write(dtype: DataType, value: Value) -> Vec<u8> {
    match (dtype, value) {
        (_, Value::Integer(value)) => value.to_le_bytes()[..dtype.size()].to_vec(),
        (DataType::Float16, Value::Single(value)) if value.is_nan() => 0x7e00_u16.to_le_bytes().to_vec(),
        (DataType::Float16, Value::Single(value)) => f16::from_f32(value).to_le_bytes().to_vec(),
        (DataType::Bfloat16, Value::Single(value)) if value.is_nan() => 0x7fc0_u16.to_le_bytes().to_vec(),
        (DataType::Bfloat16, Value::Single(value)) => bf16::from_f32(value).to_le_bytes().to_vec(),
        (_, Value::Single(value)) if value.is_nan() => 0x7fc0_0000_u32.to_le_bytes().to_vec(),
        (_, Value::Single(value)) => value.to_le_bytes().to_vec(),
        (_, Value::Double(value)) if value.is_nan() => 0x7ff8_0000_0000_0000_u64.to_le_bytes().to_vec(),
        (_, Value::Double(value)) => value.to_le_bytes().to_vec(),
    }
}

/// NaN wins, and -0 is less than +0.
macro_rules! floats {
    ($reduction:expr, $a:expr, $b:expr) => {
        match $reduction {
            Reduction::Sum => $a + $b,
            Reduction::Prod => $a * $b,
            _ if $a.is_nan() || $b.is_nan() => $a + $b,
            Reduction::Max if $b > $a || ($a == $b && $a.is_sign_negative()) => $b,
            Reduction::Min if $b < $a || ($a == $b && $a.is_sign_positive()) => $b,
            Reduction::Max | Reduction::Min => $a,
        }
    };
}

fn combine(dtype: DataType, reduction: Reduction, a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => {
            let result = match reduction {
                Reduction::Sum => a + b,
                Reduction::Prod => a.wrapping_mul(b),
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            };
            // Integers wrap.
            read(dtype, &result.to_le_bytes()[..dtype.size()])
        }
        (Value::Single(a), Value::Single(b)) => Value::Single(floats!(reduction, a, b)),
        (Value::Double(a), Value::Double(b)) => Value::Double(floats!(reduction, a, b)),
        _ => unreachable!("both are of one type"),
    }
}

/// A small generator (splitmix64, after Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// Elements of every kind: ordinary ones, the extremes, and any bits.
pub(crate) fn elements(dtype: DataType, count: usize, rank: usize, salt: u64) -> Vec<u8> {
    let mut random = Random(salt.wrapping_mul(1000) + u64::try_from(rank).unwrap());
    let size = dtype.size();
    let mut bytes = Vec::with_capacity(count * size);
    for _ in 0..count {
        let any = random.next();
        let ordinary = f64::from(i32::try_from(random.next() % 2001).unwrap() - 1000) / 8.0;
        let element = match (random.next() % 8, dtype) {
            (0, _) => any.to_le_bytes()[..size].to_vec(),
            (1, _) => extreme(dtype, any).to_vec(),
            (_, DataType::Float16) => f16::from_f64(ordinary).to_le_bytes().to_vec(),
            (_, DataType::Bfloat16) => bf16::from_f64(ordinary).to_le_bytes().to_vec(),
            #[allow(clippy::as_conversions, reason = "eighths up to 125 are exact in 32 bits")]
            (_, DataType::Float32) => (ordinary as f32).to_le_bytes().to_vec(),
            (_, DataType::Float64) => ordinary.to_le_bytes().to_vec(),
            _ => (any >> 40).to_le_bytes()[..size].to_vec(),
        };
        bytes.extend(element);
    }
    bytes
}

/// The largest, the smallest and their neighbours; infinities, zeros, NaNs and subnormals.
fn extreme(dtype: DataType, any: u64) -> Vec<u8> {
    let size = dtype.size();
    let which = usize::try_from(any % 8).unwrap();
    if !is_float(dtype) {
        let words: [u64; 8] =
            [0, 1, u64::MAX, u64::MAX - 1, u64::MAX >> 1, 1 << 63, (1 << 63) | 1, 0x5555_5555_5555_5555];
        // The upper bytes, so that the extremes of each size are among them.
        let bytes = words[which].to_le_bytes();
        return if which < 2 { bytes[..size].to_vec() } else { bytes[8 - size..].to_vec() };
    }
    let words: [u64; 8] = match dtype {
        DataType::Float16 => [0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0x0001, 0x83ff, 0x7bff],
        DataType::Bfloat16 => [0, 0x8000, 0x7f80, 0xff80, 0xffc1, 0x0001, 0x807f, 0x7f7f],
        DataType::Float32 => [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0xffc0_0001, 1, 0x807f_ffff, 0x7f7f_ffff],
        _ => [
            0,
            1 << 63,
            0x7ff0 << 48,
            0xfff0 << 48,
            (0xfff8 << 48) | 1,
            1,
            (1 << 63) | (u64::MAX >> 12),
            (0x7fef << 48) | (u64::MAX >> 16),
        ],
    };
    words[which].to_le_bytes()[..size].to_vec()
}
