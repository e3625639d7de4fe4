//! Any number of ranks, any length, any alignment, every way to fold.

use foldcast_kernels::{Fold, Hints, finish_streaming};
use proptest::prelude::*;
use types::{Buffers, DataType, Reduction};

use crate::oracle;
use crate::world::{self, Common, Manner, Private, levels};

/// The next number of a simple generator (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bits of elements at which something changes: zeros, ones, ends of ranges, infinities, NaNs, subnormals.
fn special(dtype: DataType, choice: u64) -> u64 {
    // The exponent's bits and one of one half, for the floats.
    let (infinity, one) = match dtype {
        DataType::Float16 => (0x7c00, 0x3c00),
        DataType::Bfloat16 => (0x7f80, 0x3f80),
        DataType::Float32 => (0x7f80_0000, 0x3f80_0000),
        DataType::Float64 => (0x7ff0 << 48, 0x3ff0 << 48),
        _ => (0x7f, 1),
    };
    let sign = 1 << (8 * dtype.size() - 1);
    let table = [0, 1, 2, one, one + 1, infinity, infinity - 1, infinity + 1, sign - 1, !0, 0x80_0000, 0x7f_ffff];
    let magnitude = table[usize::try_from(choice / 2 % 12).unwrap()];
    if choice.is_multiple_of(2) { magnitude } else { magnitude ^ sign }
}

/// One rank's contribution. Some runs of elements are small whole numbers, whose sums are exact; some are any bits.
fn contribution(dtype: DataType, elements: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(elements * dtype.size());
    for _ in 0..elements {
        let random = next(&mut state);
        let bits = if random.is_multiple_of(4) { special(dtype, random >> 8) } else { random >> 2 };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
    }
    bytes
}

fn contributions(dtype: DataType, ranks: usize, elements: usize, seed: u64) -> Vec<Vec<u8>> {
    (0u64..).take(ranks).map(|rank| contribution(dtype, elements, seed ^ rank << 32)).collect()
}

/// Miri is some thousand times slower.
const CASES: u32 = if cfg!(miri) { 4 } else { 1500 };
/// Ends of the two ranges of lengths, short and long ones.
const SHORT: usize = if cfg!(miri) { 30 } else { 300 };
const LONG: usize = if cfg!(miri) { 80 } else { 3000 };

fn dtypes() -> impl Strategy<Value = DataType> {
    proptest::sample::select(DataType::ALL.to_vec())
}

fn reductions() -> impl Strategy<Value = Reduction> {
    proptest::sample::select(Reduction::ALL.to_vec())
}

fn hints() -> impl Strategy<Value = Hints> {
    (any::<bool>(), any::<bool>()).prop_map(|(streaming, take_ownership)| Hints { streaming, take_ownership })
}

/// Every data type and reduction, every number of ranks to one more than twice the kernels' eight.
#[test]
fn every_combination_on_every_level() {
    for dtype in DataType::ALL {
        for ranks in if cfg!(miri) { 2..=2 } else { 1..=17 } {
            // More than a cache line, and not a whole number of registers.
            let sources = contributions(dtype, ranks, 150 / dtype.size() + 1, 7);
            for reduction in Reduction::ALL {
                let expected = oracle::fold(dtype, reduction, &sources);
                for level in levels() {
                    let manner = Manner { own: ranks / 2, ..Manner::plain(level) };
                    let actual = world::fold(dtype, reduction, &sources, manner);
                    assert_eq!(actual, expected, "{dtype} {reduction} of {ranks}, {}", level.name());
                }
            }
        }
    }
}

/// Every length of up to a few cache lines.
#[test]
fn every_length_on_every_level() {
    for dtype in [DataType::Int8, DataType::Float16, DataType::Float32, DataType::Float64] {
        for elements in (0..=200 / dtype.size()).step_by(if cfg!(miri) { 29 } else { 1 }) {
            let sources = contributions(dtype, 3, elements, 11);
            let expected = oracle::fold(dtype, Reduction::Sum, &sources);
            for level in levels() {
                for in_place in [false, true] {
                    let manner = Manner { in_place, ..Manner::plain(level) };
                    assert_eq!(world::fold(dtype, Reduction::Sum, &sources, manner), expected, "{dtype} x {elements}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fold_is_the_canonical_tree(
        (dtype, reduction) in (dtypes(), reductions()),
        ranks in 1usize..=17,
        elements in prop_oneof![0..SHORT, SHORT..LONG],
        own in 0usize..=17,
        (in_place, also) in any::<(bool, bool)>(),
        hints in hints(),
        misalignments in any::<(u8, u8, u8)>(),
        seed in any::<u64>(),
    ) {
        let sources = contributions(dtype, ranks, elements, seed);
        let expected = oracle::fold(dtype, reduction, &sources);
        for level in levels() {
            let manner = Manner {
                level,
                own,
                in_place: in_place && own < ranks,
                also,
                hints,
                input_misalignment: misalignments.0.into(),
                output_misalignment: misalignments.1.into(),
                shared_misalignment: misalignments.2.into(),
            };
            prop_assert_eq!(&world::fold(dtype, reduction, &sources, manner), &expected, "{:?}", manner);
        }
    }

    #[test]
    fn fold_and_stage_is_fold_and_copy(
        (dtype, reduction) in (dtypes(), reductions()),
        elements in prop_oneof![0..SHORT, SHORT..LONG],
        (gap, staged) in (0usize..5, prop_oneof![Just(None), (0..LONG).prop_map(Some)]),
        (own_first, in_place) in any::<(bool, bool)>(),
        hints in hints(),
        misalignments in any::<(u8, u8, u8)>(),
        seed in any::<u64>(),
    ) {
        let size = dtype.size();
        let span = size..size + elements * size;
        let stage_start = span.end + gap * size;
        let stage_span = stage_start..stage_start + staged.unwrap_or(0) * size;
        let whole = contribution(dtype, stage_span.end / size, seed);
        let peer_content = contribution(dtype, elements, !seed);
        let own = whole[span.clone()].to_vec();
        let sources = if own_first { [own, peer_content.clone()] } else { [peer_content.clone(), own] };
        let expected = oracle::fold(dtype, reduction, &sources);

        for level in levels() {
            let fold = Fold::with_level(dtype, reduction, level).unwrap();
            let input = Private::new(&whole, misalignments.0.into());
            let before = if in_place { whole.clone() } else { vec![3; whole.len()] };
            let mut output = Private::new(&before, misalignments.1.into());
            let peer = Common::new(&peer_content, misalignments.2.into());
            let stage = Common::new(&vec![4; stage_span.len()], misalignments.2.into());
            let mut buffers = if in_place {
                Buffers::InPlace(output.bytes_mut())
            } else {
                Buffers::Separate { input: input.bytes(), output: output.bytes_mut() }
            };
            let to_stage = staged.map(|_| (stage_span.clone(), stage.view()));
            fold.fold_and_stage(&mut buffers, span.clone(), peer.view(), own_first, to_stage, hints);
            finish_streaming();

            let mut after = before;
            after[span.clone()].copy_from_slice(&expected);
            prop_assert_eq!(output.bytes(), &after[..], "{}", level.name());
            prop_assert_eq!(input.bytes(), &whole[..]);
            prop_assert_eq!(&peer.content(), &peer_content);
            if staged.is_some() {
                prop_assert_eq!(&stage.content()[..], &whole[stage_span.clone()]);
            }
            output.check_guards();
            input.check_guards();
            peer.check_guards();
            stage.check_guards();
        }
    }

    #[test]
    fn copies_copy(
        len in prop_oneof![0..SHORT, SHORT..5 * LONG / 3],
        hints in hints(),
        misalignments in any::<(u8, u8)>(),
        seed in any::<u64>(),
    ) {
        let content = contribution(DataType::Int8, len, seed);
        let from = Private::new(&content, misalignments.0.into());
        let shared = Common::new(&vec![5; len], misalignments.1.into());
        foldcast_kernels::copy_in(shared.view(), from.bytes());
        shared.check_guards();
        prop_assert_eq!(&shared.content(), &content);

        let mut to = Private::new(&vec![6; len], misalignments.0.into());
        foldcast_kernels::copy_out_with(to.bytes_mut(), shared.view(), hints);
        finish_streaming();
        to.check_guards();
        prop_assert_eq!(to.bytes(), &content[..]);
        prop_assert_eq!(&shared.content(), &content);
    }
}
