//! Whatever differs between ranks, on whichever rank: all ranks are told in what, with whom, and go on.

use std::collections::BTreeSet;

use engine::Choice;
use foldcast_sim::{Circle, Making, Mode, Op, Scenario, Spec, run};
use types::transport::Geometry;
use types::{DataType, OpKind, Product, Reduction};

/// A way in which one rank's call differs; `None` where that makes no sense.
type Change = (&'static str, fn(&Spec) -> Option<Spec>);

fn is_kind(spec: &Spec, kind: OpKind) -> bool {
    spec.kind == kind
}

const CHANGES: [Change; 9] = [
    ("kind", |spec| match spec.kind {
        OpKind::AllReduce => {
            Some(Spec { kind: OpKind::Broadcast, reduction: Reduction::Sum, root: Some(0), ..spec.clone() })
        }
        _ => Some(Spec { settings: spec.settings, ..Spec::all_reduce(spec.dtype, Reduction::Sum, spec.launches[0]) }),
    }),
    ("dtype", |spec| {
        let dtype = if spec.dtype == DataType::Float32 { DataType::Int32 } else { DataType::Float32 };
        (!is_kind(spec, OpKind::Barrier)).then(|| Spec { dtype, ..spec.clone() })
    }),
    ("reduction", |spec| is_kind(spec, OpKind::AllReduce).then(|| Spec { reduction: Reduction::Max, ..spec.clone() })),
    ("count", |spec| {
        let mut other = spec.clone();
        other.launches[0] += 1;
        if let Some(first) = other.pieces.first_mut() {
            *first += 1;
        }
        if let Some((sizes, _)) = &mut other.list {
            sizes[0] += 1;
        }
        (!is_kind(spec, OpKind::Barrier)).then_some(other)
    }),
    ("root", |spec| is_kind(spec, OpKind::Broadcast).then(|| Spec { root: Some(1), ..spec.clone() })),
    // The whole is the same: only its parts are not.
    ("parts", |spec| {
        let mut other = spec.clone();
        let sizes = match &mut other.list {
            Some((sizes, _)) => sizes,
            None => &mut other.pieces,
        };
        let last = sizes.len().checked_sub(1)?;
        sizes[0] -= 1;
        sizes[last] += 1;
        Some(other)
    }),
    ("set", |spec| {
        let mut other = spec.clone();
        other.list.as_mut()?.1 += 1;
        Some(other)
    }),
    ("product", |spec| Some(Spec { settings: Product::AtlasA2.into_settings(spec.settings), ..spec.clone() })),
    ("settings", |spec| Some(Spec { settings: spec.settings ^ 1 << 20, ..spec.clone() })),
];

/// What is common: each kind, small and large, a list whose members travel together, and one of two launches.
fn commons(ranks: usize) -> Vec<Spec> {
    let (dtype, sum) = (DataType::Float32, Reduction::Sum);
    let list = |sizes: &[usize], launches: &[usize]| Spec {
        list: Some((sizes.to_vec(), 7)),
        launches: launches.to_vec(),
        ..Spec::all_reduce(dtype, sum, 0)
    };
    vec![
        Spec::all_reduce(dtype, sum, 2),
        Spec::all_reduce(dtype, sum, 2000),
        Spec::broadcast(dtype, 3, 0),
        Spec::broadcast(dtype, 700, 0),
        Spec::all_gather(dtype, vec![2; ranks]),
        Spec::all_gather(dtype, vec![150; ranks]),
        Spec::barrier(),
        list(&[2, 3, 4], &[9]),
        list(&[300, 5], &[300, 5]),
    ]
}

fn circle(ranks: usize, epochs: Vec<u64>) -> Circle {
    let pair_depth = if ranks == 2 { 4 } else { 1 };
    let geometry = Geometry { ranks, slot_bytes: 64, chunk_bytes: 128, pair_depth };
    Circle { members: (0..ranks).collect(), geometry, lanes: 3, ring: 8, choice: Choice::default(), epochs }
}

/// Runs a call, one in which a rank differs, and one that is right again; returns how many launches ended in a mismatch.
fn mismatches(common: &Spec, other: &Spec, (ranks, odd): (usize, usize), mode: usize, epochs: Vec<u64>) -> u64 {
    let good = Spec { settings: common.settings, ..Spec::all_reduce(DataType::Int64, Reduction::Sum, 333) };
    let program = |rank: usize| {
        let specs = [&good, if rank == odd { other } else { common }, common, &good];
        let call = |(call, spec): (usize, &&Spec)| {
            // On each rank in another way: some wait, some submit.
            let (name, way) = match mode {
                0 => (None, [Mode::Blocking, Mode::Submitted][(rank + call) % 2]),
                _ => (Some(format!("n{call}")), [Mode::Submitted, Mode::Blocking, Mode::Thread][(rank + call) % 3]),
            };
            let spec = (*spec).clone();
            [Op::Call(Making { call, group: 0, spec, name, mode: way, in_place: rank == 0, limit: None }), Op::Wait]
        };
        specs.iter().enumerate().flat_map(call).collect()
    };
    let seed = u64::try_from(1000 * ranks + 10 * odd + mode).expect("small numbers");
    let scenario = Scenario {
        seed,
        ranks,
        groups: vec![circle(ranks, epochs)],
        programs: (0..ranks).map(program).collect(),
        faults: Vec::new(),
        slowness: vec![1; ranks],
        bursts: seed % 2 == 0,
    };
    match run(&scenario, &|windows| windows, false) {
        // The judge has seen that each is told on each rank, in the right field, with the right values.
        Ok(report) => report.tally.get("mismatch").copied().unwrap_or(0),
        Err(failure) => panic!("{common} but {other} on rank {odd} of {ranks}: {failure}"),
    }
}

#[test]
fn each_field_and_each_two_are_told_on_every_rank_whoever_differs() {
    let mut told = BTreeSet::new();
    for ranks in 2..=5 {
        for common in commons(ranks) {
            for (at, (first, change)) in CHANGES.iter().enumerate() {
                let Some(once) = change(&common) else { continue };
                let twice = CHANGES[at + 1..].iter().filter_map(|(second, change)| Some((*second, change(&once)?)));
                for (second, other) in std::iter::once(("", once.clone())).chain(twice) {
                    let Some(field) = common.difference(&other, 0) else { continue };
                    for odd in 0..ranks {
                        for mode in 0..2 {
                            let launches = common.launches.len().max(other.launches.len());
                            let found = mismatches(&common, &other, (ranks, odd), mode, vec![1; ranks]);
                            let (least, most) = (ranks, ranks * launches);
                            let found = usize::try_from(found).expect("few");
                            assert!((least..=most).contains(&found), "{first} {second}: {found} on {ranks} ranks");
                        }
                    }
                    told.insert(field);
                }
            }
        }
    }
    let all = ["product", "kind", "dtype", "reduction", "root", "count", "parts", "settings"];
    assert_eq!(told, BTreeSet::from(all), "each field is the first that differs in some pair");
}

#[test]
fn a_rank_of_another_epoch_is_told_in_every_call() {
    for ranks in 2..=5 {
        for odd in 0..ranks {
            for mode in 0..2 {
                let mut epochs = vec![1; ranks];
                epochs[odd] = 2;
                let spec = Spec::all_reduce(DataType::Float32, Reduction::Sum, 40);
                let found = mismatches(&spec, &spec, (ranks, odd), mode, epochs);
                assert_eq!(usize::try_from(found).expect("few"), 4 * ranks);
            }
        }
    }
}
