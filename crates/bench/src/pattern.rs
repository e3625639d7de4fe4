//! What the ranks put in, and what must come out.

use half::{bf16, f16};
use types::{DataType, Reduction};

use crate::case::{Case, Kind};

/// A prime, so that pieces of any power of two that are swapped or repeated are seen.
const PERIOD: usize = 4093;

/// The elements of every rank, and of the result, of one case: a pattern that recurs.
#[derive(Debug)]
pub struct Pattern {
    dtype: DataType,
    input: Vec<u8>,
    expected: Vec<u8>,
}

impl Pattern {
    /// The pattern of this rank of `ranks`; the data follow from `seed`, which all ranks share.
    #[must_use]
    pub fn new(case: &Case, rank: usize, ranks: usize, seed: u64) -> Pattern {
        let period = PERIOD.min(case.count());
        let encoded = |value: &dyn Fn(usize) -> i64| {
            let mut bytes = Vec::with_capacity(period * case.dtype.size());
            (0..period).for_each(|at| encode(case.dtype, value(at), &mut bytes));
            bytes
        };
        let value = |rank, at| value(case.kind, rank, ranks, at, seed);
        let result = |at| match case.kind {
            Kind::Broadcast(root) => value(root.index(), at),
            Kind::AllReduce(reduction) => {
                let values = (0..ranks).map(|rank| value(rank, at));
                let combined = match reduction {
                    Reduction::Sum => values.reduce(i64::wrapping_add),
                    Reduction::Prod => values.reduce(i64::wrapping_mul),
                    Reduction::Max => values.max(),
                    Reduction::Min => values.min(),
                };
                combined.unwrap_or_default()
            }
        };
        Pattern { dtype: case.dtype, input: encoded(&|at| value(rank, at)), expected: encoded(&result) }
    }

    /// Writes this rank's elements.
    pub fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(self.input.len()) {
            chunk.copy_from_slice(&self.input[..chunk.len()]);
        }
    }

    /// How many elements are not the result's.
    #[must_use]
    pub fn wrong(&self, buffer: &[u8]) -> u64 {
        let size = self.dtype.size();
        let mut wrong = 0;
        for chunk in buffer.chunks(self.expected.len()) {
            let expected = &self.expected[..chunk.len()];
            if chunk != expected {
                wrong += chunk.chunks(size).zip(expected.chunks(size)).map(|(a, b)| u64::from(a != b)).sum::<u64>();
            }
        }
        wrong
    }
}

/// A small whole number, such that the result is exact, or rounded once, in every type: any order of combining gives the
/// same bits.
fn value(kind: Kind, rank: usize, ranks: usize, at: usize, seed: u64) -> i64 {
    let word = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let mixed = mix(seed ^ mix(word(at)));
    let small = i64::try_from(mixed % 7).unwrap_or_default();
    match kind {
        // One rank, another at each place, has the factor; so no product grows with the number of ranks.
        Kind::AllReduce(Reduction::Prod) if mixed % word(ranks) == word(rank) => 2 + small,
        Kind::AllReduce(Reduction::Prod) => 1,
        _ => small + i64::try_from(mix(word(rank) ^ word(at)) % 5).unwrap_or_default(),
    }
}

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Appends the element for a whole number; integers wrap, floats round to nearest even.
#[allow(clippy::as_conversions, reason = "wrapping and rounding are what is meant")]
fn encode(dtype: DataType, value: i64, to: &mut Vec<u8>) {
    match dtype {
        DataType::Float16 => to.extend(f16::from_f64(value as f64).to_le_bytes()),
        DataType::Bfloat16 => to.extend(bf16::from_f64(value as f64).to_le_bytes()),
        DataType::Float32 => to.extend((value as f32).to_le_bytes()),
        DataType::Float64 => to.extend((value as f64).to_le_bytes()),
        _ => to.extend(&value.to_le_bytes()[..dtype.size()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rank;

    const SIZES: [usize; 4] = [1, 7, PERIOD, PERIOD + 905];

    fn case(count: usize, dtype: DataType, kind: Kind) -> Case {
        Case { bytes: count * dtype.size(), dtype, kind, in_place: false }
    }

    /// The result by other means: every rank's elements decoded, combined in float64, and rounded.
    fn oracle(case: &Case, ranks: usize) -> Vec<u8> {
        let inputs: Vec<Vec<f64>> = (0..ranks)
            .map(|rank| {
                let mut bytes = vec![0; case.bytes];
                Pattern::new(case, rank, ranks, 3).fill(&mut bytes);
                bytes.chunks(case.dtype.size()).map(|element| decode(case.dtype, element)).collect()
            })
            .collect();
        let mut expected = Vec::new();
        for at in 0..case.count() {
            let values = inputs.iter().map(|input| input[at]);
            let value = match case.kind {
                Kind::Broadcast(root) => inputs[root.index()][at],
                Kind::AllReduce(Reduction::Sum) => values.sum(),
                Kind::AllReduce(Reduction::Prod) => values.product(),
                Kind::AllReduce(Reduction::Max) => values.fold(f64::MIN, f64::max),
                Kind::AllReduce(Reduction::Min) => values.fold(f64::MAX, f64::min),
            };
            #[allow(clippy::as_conversions, reason = "whole numbers far below 2^53")]
            encode(case.dtype, value as i64, &mut expected);
        }
        expected
    }

    fn decode(dtype: DataType, bytes: &[u8]) -> f64 {
        match dtype {
            DataType::Float16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            DataType::Bfloat16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            DataType::Float32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
            DataType::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            // The values are small and none is negative.
            _ => f64::from(bytes[0]),
        }
    }

    fn kinds(ranks: usize) -> Vec<Kind> {
        let root = Rank::from_index(ranks - 1);
        Reduction::ALL.into_iter().map(Kind::AllReduce).chain([Kind::Broadcast(root)]).collect()
    }

    #[test]
    fn the_right_result_is_right_for_every_type_reduction_and_number_of_ranks() {
        for ranks in [1, 2, 3, 8, 40] {
            for kind in kinds(ranks) {
                for dtype in DataType::ALL {
                    for count in SIZES {
                        let case = case(count, dtype, kind);
                        let pattern = Pattern::new(&case, 0, ranks, 3);
                        assert_eq!(pattern.wrong(&oracle(&case, ranks)), 0, "{case} on {ranks} ranks");
                    }
                }
            }
        }
    }

    #[test]
    fn every_wrong_element_is_counted_wherever_it_is() {
        for dtype in [DataType::Uint8, DataType::Bfloat16, DataType::Float32, DataType::Int64] {
            for count in SIZES {
                let case = case(count, dtype, Kind::AllReduce(Reduction::Sum));
                let pattern = Pattern::new(&case, 1, 2, 3);
                let right = oracle(&case, 2);
                let mut all = right.clone();
                for at in 0..count {
                    let mut one = right.clone();
                    // Any byte of the element, not always the first.
                    one[at * dtype.size() + at % dtype.size()] ^= 0x10;
                    all[at * dtype.size()] ^= 1;
                    if at % 97 == 0 || at + 9 > count {
                        assert_eq!(pattern.wrong(&one), 1, "{case} at {at}");
                    }
                }
                assert_eq!(pattern.wrong(&all), u64::try_from(count).unwrap());
            }
        }
    }

    #[test]
    fn pieces_that_are_swapped_left_out_or_unreduced_are_seen() {
        let case = case(100_000, DataType::Float32, Kind::AllReduce(Reduction::Sum));
        let pattern = Pattern::new(&case, 0, 2, 3);
        let right = oracle(&case, 2);
        for piece in [64, 4096, 65536, 131_072] {
            let mut swapped = right.clone();
            let (first, second) = swapped.split_at_mut(piece);
            first.swap_with_slice(&mut second[..piece]);
            assert!(pattern.wrong(&swapped) > 0, "{piece}");
        }
        let mut own = vec![0; case.bytes];
        pattern.fill(&mut own);
        assert!(pattern.wrong(&own) > 70_000);
        assert!(Pattern::new(&case, 0, 3, 3).wrong(&right) > 70_000, "a rank was left out");
        assert!(Pattern::new(&case, 0, 2, 4).wrong(&right) > 70_000, "other data");
    }
}
