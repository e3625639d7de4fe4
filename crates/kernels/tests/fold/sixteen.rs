//! Every value of the 16-bit floats: alone, and with each of a table of others, in both orders.

use half::{bf16, f16};
use types::{DataType, Reduction};

use crate::oracle::{self, Element};
use crate::world::{self, Manner, levels};

/// Bits of values at which something changes, for one type.
fn seeds(dtype: DataType) -> Vec<u16> {
    // Bits of the fraction, of the exponent.
    let (fraction, one) = match dtype {
        DataType::Float16 => (10, f16::ONE.to_bits()),
        _ => (7, bf16::ONE.to_bits()),
    };
    let ulp = 1u16;
    let infinity = if dtype == DataType::Float16 { f16::INFINITY.to_bits() } else { bf16::INFINITY.to_bits() };
    let smallest_normal = 1 << fraction;
    let positive = [
        0,
        ulp,
        2 * ulp,
        smallest_normal - ulp,
        smallest_normal,
        smallest_normal + ulp,
        one / 2,
        one - ulp,
        one,
        one + ulp,
        one + smallest_normal,
        infinity - ulp,
        infinity,
        infinity + ulp,                 // a signalling NaN
        infinity + smallest_normal / 2, // the canonical NaN
        0x7fff,
        0x5555,
    ];
    positive.into_iter().flat_map(|bits| [bits, bits | 0x8000]).collect()
}

/// Every value; in Miri, which is some thousand times slower, a sample.
fn values() -> impl Iterator<Item = u16> {
    (0..=u16::MAX).step_by(if cfg!(miri) { 2039 } else { 1 })
}

fn bytes(values: impl Iterator<Item = u16>) -> Vec<u8> {
    values.flat_map(u16::to_ne_bytes).collect()
}

/// The element of these bits.
type Widened<'a> = &'a dyn Fn(u16) -> Element;

fn check(dtype: DataType, reduction: Reduction, sources: &[Vec<u8>], widened: Widened<'_>, what: &str) {
    let element = |source: &[u8], i: usize| widened(u16::from_ne_bytes([source[2 * i], source[2 * i + 1]]));
    let mut expected = vec![0; sources[0].len()];
    for (i, out) in expected.chunks_exact_mut(2).enumerate() {
        let value = match sources {
            [a] => element(a, i),
            [a, b] => oracle::combine(reduction, element(a, i), element(b, i)),
            _ => unreachable!("one or two sources"),
        };
        value.encode(dtype, out);
    }
    for level in levels() {
        let actual = world::fold(dtype, reduction, sources, Manner::plain(level));
        if actual != expected {
            let i = (0..expected.len() / 2).find(|i| actual[2 * i..][..2] != expected[2 * i..][..2]).unwrap();
            let show = |bytes: &[u8]| format!("{:04x}", u16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]));
            let operands: Vec<_> = sources.iter().map(|s| show(s)).collect();
            panic!(
                "{dtype} {reduction} {what} {}: of {operands:?} expected {}, got {}",
                level.name(),
                show(&expected),
                show(&actual)
            );
        }
    }
}

fn every_value(dtype: DataType) {
    let all = bytes(values());
    let decode = |bits: u16| Element::decode(dtype, &bits.to_ne_bytes());
    // The oracle decodes from a table, because that is most of its time.
    let table: Vec<_> = if cfg!(miri) { Vec::new() } else { (0..=u16::MAX).map(decode).collect() };
    let widened = |bits: u16| table.get(usize::from(bits)).copied().unwrap_or_else(|| decode(bits));
    for reduction in Reduction::ALL {
        check(dtype, reduction, std::slice::from_ref(&all), &widened, "alone");
        for seed in seeds(dtype).into_iter().step_by(if cfg!(miri) { 9 } else { 1 }) {
            let other = bytes(values().map(|_| seed));
            check(dtype, reduction, &[all.clone(), other.clone()], &widened, "value first");
            check(dtype, reduction, &[other, all.clone()], &widened, "seed first");
        }
        // And pairs without a pattern: every value once on each side.
        let mixed = bytes(values().map(|x| x.wrapping_mul(40503).wrapping_add(12829)));
        check(dtype, reduction, &[all.clone(), mixed], &widened, "mixed");
    }
}

#[test]
fn every_float16() {
    every_value(DataType::Float16);
}

#[test]
fn every_bfloat16() {
    every_value(DataType::Bfloat16);
}

/// A number that is no NaN comes out of a fold of one as it went in, subnormals and both zeros included.
#[test]
fn a_fold_of_one_only_changes_nan() {
    for dtype in [DataType::Float16, DataType::Bfloat16] {
        let infinity = if dtype == DataType::Float16 { 0x7c00 } else { 0x7f80 };
        let canonical = if dtype == DataType::Float16 { 0x7e00 } else { 0x7fc0 };
        let expected = bytes(values().map(|x| if x & 0x7fff > infinity { canonical } else { x }));
        for level in levels() {
            let all = [bytes(values())];
            for reduction in Reduction::ALL {
                assert_eq!(world::fold(dtype, reduction, &all, Manner::plain(level)), expected);
            }
        }
    }
}
