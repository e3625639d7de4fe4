//! The segments of the gradient split strategy: the documented examples, every check, and what holds for any gradients.

use foldcast_plan::fusion::{Gradient, Launch, Strategy, digest, launches, order_by_name, segments};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use types::{DataType, Error};

fn gradients(sizes: &[u64]) -> Vec<Gradient> {
    let gradient = |(at, bytes): (usize, &u64)| Gradient {
        name: format!("gradient_{at}").into(),
        bytes: *bytes,
        dtype: DataType::Float32,
    };
    sizes.iter().enumerate().map(gradient).collect()
}

#[allow(clippy::as_conversions, reason = "as the planner does")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}

fn by_size(percentages: &[f64]) -> Strategy {
    let mut strategy = Strategy::default();
    strategy.set_by_size(percentages).expect("good percentages");
    strategy
}

fn by_index(indices: &[i64]) -> Strategy {
    let mut strategy = Strategy::default();
    strategy.set_by_index(indices).expect("good indices");
    strategy
}

/// First and last gradient of each segment.
fn cut(sizes: &[u64], strategy: &Strategy) -> Vec<(usize, usize)> {
    let segments = segments(&gradients(sizes), strategy).expect("segments");
    segments.into_iter().map(|segment| (segment.start, segment.end - 1)).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, String, String) {
    match result.expect_err("a refusal") {
        Error::InvalidArgument(e) => (e.field, e.expected, e.got),
        other => panic!("{other}"),
    }
}

#[test]
fn the_documented_examples() {
    let equal = [400; 160];
    // 96.54 % of 160 equal gradients are 154.46 of them.
    assert_eq!(cut(&equal, &Strategy::default()), [(0, 153), (154, 159)]);
    assert_eq!(cut(&equal, &by_index(&[20, 100, 159])), [(0, 20), (21, 100), (101, 159)]);
    assert_eq!(cut(&equal, &by_size(&[60.0, 20.0, 20.0])), [(0, 95), (96, 127), (128, 159)]);
}

/// Gradients as ResNet-50 has them, last layer first: 25.5 million float32.
#[test]
fn a_large_network_is_two_launches_by_default() {
    let mut sizes: Vec<u64> = vec![1000 * 4, 2048 * 1000 * 4];
    let stages: [(u64, u64, usize); 4] = [(512, 2048, 3), (256, 1024, 6), (128, 512, 4), (64, 256, 3)];
    for (inner, outer, blocks) in stages {
        for block in 0..blocks {
            let from = if block == blocks - 1 { outer / 2 } else { outer };
            for (kernel, channels) in [(inner * outer, outer), (9 * inner * inner, inner), (from * inner, inner)] {
                sizes.extend([channels * 4, channels * 4, kernel * 4]);
            }
        }
    }
    sizes.extend([64 * 4, 64 * 4, 49 * 3 * 64 * 4]);
    let total: u64 = sizes.iter().sum();
    let gradients = gradients(&sizes);
    let launches = launches(&gradients, &Strategy::default()).expect("launches");
    assert_eq!(launches.len(), 2);
    assert_eq!(launches.iter().map(|launch| launch.members.len()).sum::<usize>(), sizes.len());
    let off = (launches[0].bytes * 10_000).abs_diff(total * 9654);
    assert!(off < total * 50, "half a percent at most: {} of {total} bytes", launches[0].bytes);
}

#[test]
fn cuts_fall_where_the_bytes_are_nearest() {
    let half = by_size(&[50.0, 50.0]);
    type Row<'a> = (&'a [u64], &'a Strategy, &'a [(usize, usize)]);
    let table: [Row<'_>; 12] = [
        (&[], &half, &[]),
        (&[7], &half, &[(0, 0)]),
        (&[7], &Strategy::default(), &[(0, 0)]),
        (&[1, 1], &half, &[(0, 0), (1, 1)]),
        // Equally near: the earlier.
        (&[1, 1, 1], &half, &[(0, 0), (1, 2)]),
        (&[10, 1, 1], &half, &[(0, 0), (1, 2)]),
        (&[1, 1, 10], &half, &[(0, 1), (2, 2)]),
        (&[3, 3, 1, 3], &half, &[(0, 1), (2, 3)]),
        // A last gradient of a tenth: the second segment has it all the same.
        (&[90, 10], &Strategy::default(), &[(0, 0), (1, 1)]),
        (&[0, 0, 0, 0], &half, &[(0, 0), (1, 3)]),
        (&[5, 0, 0, 5], &half, &[(0, 0), (1, 3)]),
        (&[100, 1, 1, 1], &by_size(&[10.0, 10.0, 10.0, 70.0]), &[(0, 0), (1, 1), (2, 2), (3, 3)]),
    ];
    for (sizes, strategy, wanted) in table {
        assert_eq!(cut(sizes, strategy), wanted, "{sizes:?} {strategy:?}");
    }
}

#[test]
fn sizes_win_over_indices_and_later_calls_over_earlier_ones() {
    let sizes = [4; 10];
    for sizes_first in [false, true] {
        let mut strategy = Strategy::default();
        if sizes_first {
            strategy.set_by_size(&[50.0, 50.0]).expect("good");
        }
        strategy.set_by_index(&[0, 1, 9]).expect("good");
        if !sizes_first {
            strategy.set_by_size(&[50.0, 50.0]).expect("good");
        }
        assert_eq!(cut(&sizes, &strategy), [(0, 4), (5, 9)]);
        strategy.set_by_size(&[20.0, 80.0]).expect("good");
        assert_eq!(cut(&sizes, &strategy), [(0, 1), (2, 9)]);
    }
    let mut strategy = by_index(&[3, 9]);
    strategy.set_by_index(&[5, 9]).expect("good");
    assert_eq!(cut(&sizes, &strategy), [(0, 5), (6, 9)]);
    // What is refused changes nothing.
    strategy.set_by_index(&[9, 5]).expect_err("not ascending");
    strategy.set_by_size(&[9.0]).expect_err("not 100");
    assert_eq!(cut(&sizes, &strategy), [(0, 5), (6, 9)]);
}

#[test]
fn bad_strategies_are_refused() {
    let indices = |list: &[i64]| refused(Strategy::default().set_by_index(list));
    let table: [(&[i64], &str, &str); 6] = [
        (&[], "1 to 8 segments", "0 segments"),
        (&[0, 1, 2, 3, 4, 5, 6, 7, 8], "1 to 8 segments", "9 segments"),
        (&[-1, 5], "indices of gradients, from 0", "-1"),
        (&[5, 5], "ascending indices", "5 behind 5"),
        (&[20, 100, 99], "ascending indices", "99 behind 100"),
        (&[i64::MAX, i64::MIN], "indices of gradients, from 0", "-9223372036854775808"),
    ];
    for (list, expected, got) in table {
        assert_eq!(indices(list), ("split strategy by index".into(), expected.into(), got.into()), "{list:?}");
    }
    assert!(Strategy::default().set_by_index(&[0, 1, 2, 3, 4, 5, 6, 7]).is_ok(), "8 are allowed");

    let sizes = |list: &[f64]| refused(Strategy::default().set_by_size(list));
    let table: [(&[f64], &str, &str); 8] = [
        (&[], "1 to 8 segments", "0 segments"),
        (&[12.5; 9], "1 to 8 segments", "9 segments"),
        (&[60.0, 20.0, 19.0], "percentages that sum to 100", "a sum of 99"),
        (&[60.0, 41.0], "percentages that sum to 100", "a sum of 101"),
        (&[100.0, 0.0], "percentages above 0", "0"),
        (&[120.0, -20.0], "percentages above 0", "-20"),
        (&[f64::NAN, 50.0], "percentages above 0", "NaN"),
        (&[f64::INFINITY], "percentages above 0", "inf"),
    ];
    for (list, expected, got) in table {
        assert_eq!(sizes(list), ("split strategy by size".into(), expected.into(), got.into()), "{list:?}");
    }
    for good in [&[12.5; 8][..], &[100.0], &[96.54, 3.46], &[33.3, 33.3, 33.4], &[0.1, 99.9]] {
        assert!(Strategy::default().set_by_size(good).is_ok(), "{good:?}");
    }
}

#[test]
fn indices_are_for_exactly_these_gradients() {
    for number in [0, 1, 159, 161] {
        let strategy = by_index(&[20, 100, 159]);
        let result = segments(&gradients(&vec![4; number]), &strategy);
        if number == 0 {
            assert_eq!(result, Ok(Vec::new()), "a graph without gradients has nothing to cut");
            continue;
        }
        let (field, expected, got) = refused(result);
        assert_eq!((field.as_str(), got.as_str()), ("split strategy by index", "[20, 100, 159]"));
        assert!(expected.contains(&format!("{} as the last index", number - 1)), "{expected}");
        assert!(expected.contains(&format!("{number} gradients")), "{expected}");
    }
}

#[test]
fn names_must_differ() {
    let mut twice = gradients(&[4, 4, 4]);
    twice[2].name = "gradient_0".into();
    assert_eq!(refused(segments(&twice, &Strategy::default())).2, "'gradient_0' twice");
}

#[test]
fn types_are_launched_apart() {
    let mut mixed = gradients(&[4, 2, 4, 2, 4, 8]);
    mixed[1].dtype = DataType::Float16;
    mixed[3].dtype = DataType::Float16;
    let launch = |segment, dtype, members: &[usize], bytes| Launch { segment, dtype, members: members.into(), bytes };
    let wanted = [
        launch(0, DataType::Float32, &[0, 2], 8),
        launch(0, DataType::Float16, &[1], 2),
        launch(1, DataType::Float16, &[3], 2),
        launch(1, DataType::Float32, &[4, 5], 12),
    ];
    assert_eq!(launches(&mixed, &by_index(&[2, 5])), Ok(wanted.into()));
}

#[test]
fn names_have_one_order() {
    let sorted = [
        "HcomAllReduce",
        "HcomAllReduce_1",
        "HcomAllReduce_2",
        "HcomAllReduce_10",
        "a",
        "a/9/b",
        "a/10/a",
        "a1",
        "a01",
        "b",
        "é",
    ];
    let wanted = [
        "HcomAllReduce",
        "HcomAllReduce_1",
        "HcomAllReduce_2",
        "HcomAllReduce_10",
        "a",
        "a01",
        "a1",
        "a/9/b",
        "a/10/a",
        "b",
        "é",
    ];
    for shift in 0..sorted.len() {
        let mut names = sorted;
        names.rotate_left(shift);
        let ordered: Vec<_> = order_by_name(&names).into_iter().map(|at| names[at]).collect();
        assert_eq!(ordered, wanted, "{names:?}");
    }
}

#[test]
fn digests_tell_lists_apart() {
    let base = gradients(&[4, 8, 12]);
    assert_eq!(digest(&base), digest(&base.clone()));
    let changes: [fn(&mut Vec<Gradient>); 5] = [
        |list| list.swap(0, 1),
        |list| list[1].bytes = 12,
        |list| list[1].dtype = DataType::Int32,
        |list| list[1].name = "gradient".into(),
        |list| drop(list.pop()),
    ];
    for change in changes {
        let mut other = base.clone();
        change(&mut other);
        assert_ne!(digest(&base), digest(&other), "{other:?}");
    }
}

fn percentages() -> impl proptest::strategy::Strategy<Value = Vec<f64>> {
    prop::collection::vec(1_u32..1000, 1..=8).prop_map(|weights| {
        let sum: u32 = weights.iter().sum();
        weights.iter().map(|weight| f64::from(*weight) * 100.0 / f64::from(sum)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_gradient_is_in_one_segment_and_shares_are_as_near_as_can_be(
        sizes in prop::collection::vec(prop_oneof![0_u64..10, 0_u64..10_000, 1_u64 << 20..1 << 24], 1..200),
        percentages in percentages(),
    ) {
        let found = segments(&gradients(&sizes), &by_size(&percentages)).expect("segments");
        let number = percentages.len().min(sizes.len());
        prop_assert_eq!(found.len(), number);
        prop_assert!(found.iter().all(|segment| !segment.is_empty()));
        let joined: Vec<usize> = found.iter().cloned().flatten().collect();
        prop_assert_eq!(joined, (0..sizes.len()).collect::<Vec<_>>(), "each once, in order");
        // Of all cuts that leave every later segment a gradient, none is nearer, and no earlier one as near.
        let bytes = |end: usize| real(sizes[..end].iter().sum());
        let total = bytes(sizes.len());
        let mut percent = 0.0;
        for (at, segment) in found[..number - 1].iter().enumerate() {
            percent += percentages[at];
            let off = |end: usize| (bytes(end) - total * percent / 100.0).abs();
            for other in segment.start + 1..=sizes.len() - (number - 1 - at) {
                prop_assert!(off(segment.end) <= off(other), "segment {at} ends at {}, {other} is nearer", segment.end);
                prop_assert!(other >= segment.end || off(segment.end) < off(other), "{other} is as near and earlier");
            }
        }
    }

    #[test]
    fn launches_hold_every_gradient_once_and_one_type_each(
        types in prop::collection::vec(0_usize..3, 0..60),
        percentages in percentages(),
    ) {
        let mut list = gradients(&vec![8; types.len()]);
        for (gradient, dtype) in list.iter_mut().zip(&types) {
            gradient.dtype = [DataType::Float32, DataType::Float16, DataType::Int64][*dtype];
        }
        let strategy = by_size(&percentages);
        let (cuts, found) = (segments(&list, &strategy).expect("segments"), launches(&list, &strategy).expect("launches"));
        let mut members: Vec<usize> = found.iter().flat_map(|launch| launch.members.clone()).collect();
        members.sort_unstable();
        prop_assert_eq!(members, (0..list.len()).collect::<Vec<_>>());
        let mut keys = std::collections::HashSet::new();
        for launch in &found {
            prop_assert!(launch.members.is_sorted());
            prop_assert!(launch.members.iter().all(|at| list[*at].dtype == launch.dtype));
            prop_assert!(launch.members.iter().all(|at| cuts[launch.segment].contains(at)));
            prop_assert_eq!(launch.bytes, launch.members.iter().map(|at| list[*at].bytes).sum::<u64>());
            prop_assert!(keys.insert((launch.segment, launch.dtype)), "one launch for each type of a segment");
        }
    }

    #[test]
    fn the_order_of_names_does_not_depend_on_how_they_come(
        mut names in prop::collection::hash_set("[a-c]{0,2}_?0?[0-9]{0,3}/?[a-b]?", 0..30).prop_map(Vec::from_iter),
        rotate in 0_usize..30,
    ) {
        let ordered = |names: &[String]| -> Vec<String> {
            order_by_name(names).into_iter().map(|at| names[at].clone()).collect()
        };
        let first = ordered(&names);
        let by = rotate % names.len().max(1);
        names.rotate_left(by);
        names.reverse();
        prop_assert_eq!(ordered(&names), first);
    }
}
