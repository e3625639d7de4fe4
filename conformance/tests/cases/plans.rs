//! Which plan runs, that it is the same one everywhere, what it costs, and lists of arrays as one call.

use std::process::Command;

use foldcast::fusion::{Gradient, Strategy, launches};
use foldcast::plans::{Choice, Explanation, Shape, algorithm, plan_with};
use foldcast::{Buffers, CallOptions, DataType, Reduction};

use crate::oracle::{elements, fold};
use crate::support::{algorithms, named, reduce, world, worlds};

/// Sizes at which something changes for so many ranks: where another algorithm is chosen, and where an area ends.
fn switch_points(ranks: usize) -> Vec<usize> {
    let chosen = |bytes: usize| Choice::default().select(&Shape::all_reduce(ranks, bytes, 4)).name();
    let mut points = vec![0, 48, 32 << 10, 64 << 10, 128 << 10];
    for exponent in 3..22 {
        let (mut below, mut above) = (1_usize << exponent, 2_usize << exponent);
        if chosen(below) == chosen(above) {
            continue;
        }
        while above - below > 4 {
            let middle = (below + above) / 8 * 4;
            *(if chosen(middle) == chosen(below) { &mut below } else { &mut above }) = middle;
        }
        points.push(below);
    }
    points.sort_unstable();
    points.dedup();
    points
}

#[test]
fn oneccl_215_every_algorithm_number_of_ranks_and_size() {
    for ranks in 1..=17 {
        let points = switch_points(ranks);
        worlds(&[ranks], |communicator| {
            let (group, rank) = (communicator.world(), communicator.rank().index());
            for bytes in points.iter().flat_map(|point| [point.saturating_sub(4), *point, point + 4]) {
                let value =
                    |rank: usize, at: usize| u32::try_from((at * 2_654_435_761 + rank * 40_503) % 4_294_967_291);
                let value = |rank: usize, at: usize| value(rank, at).expect("below 2^32");
                let input: Vec<u32> = (0..bytes / 4).map(|at| value(rank, at)).collect();
                let options = if bytes % 8 == 0 { CallOptions::default() } else { named("x") };
                let got =
                    reduce(&group, DataType::Uint32, Reduction::Sum, foldcast::bytes_of(&input), &options).unwrap();
                let want: Vec<u32> = (0..bytes / 4)
                    .map(|at| (0..ranks).map(|rank| value(rank, at)).fold(0, u32::wrapping_add))
                    .collect();
                assert!(got == foldcast::bytes_of(&want), "{bytes} bytes on {ranks} ranks");
            }
        });
    }
}

#[test]
fn horovod_358_lists_of_odd_sizes_are_right() {
    worlds(&[1, 2, 3, 5], |communicator| {
        let (group, rank) = (communicator.world(), communicator.rank().index());
        let list = [1, 3, 0, 7, 8191, 13, 8193, 1, 0, 30_001, 5];
        for dtype in DataType::ALL {
            let inputs = |rank: usize| -> Vec<Vec<u8>> {
                (0..).zip(list).map(|(salt, count)| elements(dtype, count, rank, salt)).collect()
            };
            let each: Vec<Vec<Vec<u8>>> = (0..communicator.size()).map(inputs).collect();
            let mut outputs = each[rank].clone();
            let mut buffers: Vec<Buffers<'_>> = outputs.iter_mut().map(|both| Buffers::InPlace(both)).collect();
            group.all_reduce_many(dtype, Reduction::Sum, &mut buffers, &CallOptions::default()).unwrap();
            for (at, output) in outputs.iter().enumerate() {
                let inputs: Vec<_> = each.iter().map(|inputs| inputs[at].clone()).collect();
                assert!(*output == fold(dtype, Reduction::Sum, &inputs), "{dtype}: member {at}");
            }
        }
    });
}

#[test]
fn horovod_1604_the_limits_of_fusion_are_bytes() {
    // As many elements of one byte as of eight: by elements the cut would be in the middle.
    let gradient = |at: usize, dtype: DataType| Gradient {
        name: format!("g{at}").into(),
        bytes: u64::try_from(1000 * dtype.size()).unwrap(),
        dtype,
    };
    let gradients: Vec<Gradient> =
        (0..20).map(|at| gradient(at, if at < 10 { DataType::Int8 } else { DataType::Float64 })).collect();
    let mut strategy = Strategy::default();
    strategy.set_by_size(&[50.0, 50.0]).unwrap();
    let found = launches(&gradients, &strategy).unwrap();
    let bytes: Vec<(usize, DataType, u64)> =
        found.iter().map(|launch| (launch.segment, launch.dtype, launch.bytes)).collect();
    assert_eq!(
        bytes,
        [(0, DataType::Int8, 10_000), (0, DataType::Float64, 32_000), (1, DataType::Float64, 48_000)],
        "half of 90,000 bytes is nearest behind the fourth float64"
    );
    // Lists of both types around the sizes at which arrays travel alone, in bytes.
    worlds(&[2], |communicator| {
        let (group, rank) = (communicator.world(), communicator.rank().index());
        for dtype in [DataType::Int8, DataType::Float64] {
            for bytes in [(32 << 10) - 8, 32 << 10, (32 << 10) + 8, 1 << 20] {
                let inputs =
                    |rank| -> Vec<_> { (0..5).map(|salt| elements(dtype, bytes / dtype.size(), rank, salt)).collect() };
                let each: Vec<Vec<Vec<u8>>> = (0..2).map(inputs).collect();
                let mut outputs = each[rank].clone();
                let mut buffers: Vec<Buffers<'_>> = outputs.iter_mut().map(|both| Buffers::InPlace(both)).collect();
                group.all_reduce_many(dtype, Reduction::Sum, &mut buffers, &CallOptions::default()).unwrap();
                for (at, output) in outputs.iter().enumerate() {
                    let inputs: Vec<_> = each.iter().map(|inputs| inputs[at].clone()).collect();
                    assert!(*output == fold(dtype, Reduction::Sum, &inputs), "{dtype} of {bytes} bytes");
                }
            }
        }
    });
}

/// Ids of plans, and orders of names: what ranks must agree in without talking about it.
fn agreed() -> String {
    let mut text = String::new();
    for name in algorithms() {
        let algorithm = algorithm(name).unwrap();
        for ranks in 1..20 {
            for bytes in [0, 4, 1000, 1 << 20] {
                let shape = Shape::all_reduce(ranks, bytes, 4);
                if !algorithm.applies(&shape) {
                    continue;
                }
                let ids: Vec<u64> = (0..ranks).map(|rank| plan_with(algorithm, &shape, rank).id).collect();
                assert!(ids.iter().all(|id| *id == ids[0]), "{name} on {ranks} ranks");
                text.push_str(&format!("{:x},", ids[0]));
            }
        }
    }
    let names: Vec<String> = (0..200).map(|at| format!("layer_{}/w_{}", at * 7 % 31, at)).collect();
    format!("{text}{:?}", foldcast::fusion::order_by_name(&names))
}

#[test]
fn horovod_1548_ranks_and_runs_agree_in_plans_and_orders() {
    const VARIABLE: &str = "CONFORMANCE_AGREED";
    if let Ok(file) = std::env::var(VARIABLE) {
        return std::fs::write(file, agreed()).unwrap();
    }
    // Another process has other seeds for whatever is random in it.
    let file = std::env::temp_dir().join(format!("foldcast-agreed-{}", std::process::id()));
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plans::horovod_1548_ranks_and_runs_agree_in_plans_and_orders"])
        .env(VARIABLE, &file)
        .output()
        .unwrap();
    assert!(other.status.success(), "{other:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), agreed());
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn ompi_8186_no_number_of_ranks_is_much_slower_than_the_one_before() {
    let choice = Choice::default();
    for bytes in [8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
        let cost = |ranks: usize| {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            choice.select(&shape).cost(&shape, &choice.constants)
        };
        for ranks in 2..300 {
            let step = cost(ranks + 1) / cost(ranks);
            // From two ranks to three every rank gets twice as many peers.
            let most = if ranks == 2 { 3.0 } else { 1.5 };
            assert!(step <= most, "{bytes} bytes: {step:.2} times as long on {} ranks as on {ranks}", ranks + 1);
        }
    }
}

#[test]
fn nccl_754_what_is_explained_is_what_runs() {
    for name in algorithms() {
        world(2, name, |communicator| {
            let group = communicator.world();
            for count in [2_usize, 3000, 300_000] {
                let input = vec![0; count * 4];
                reduce(&group, DataType::Float32, Reduction::Sum, &input, &CallOptions::default()).unwrap();
                let choice = group.choice().expect("the members have met");
                assert_eq!(choice.forced, Some(name));
                let shape = Shape::all_reduce(2, count * 4, 4);
                let explained = Explanation::of(&shape, choice);
                let forced = algorithm(name).unwrap();
                // The one that was asked for, wherever it can do the call.
                assert_eq!(explained.chosen == name, forced.applies(&shape), "{count}: {}", explained.why);
                assert_eq!(explained.plan.id, plan_with(choice.select(&shape), &shape, 1).id);
                let text = explained.to_string();
                assert!(text.contains(explained.chosen), "{text}");
            }
        });
    }
}
