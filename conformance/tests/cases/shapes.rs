//! Every type, every count, and every place where something is cut.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldcast::plans::{Shape, algorithm, plan_with};
use foldcast::{Buffers, CallOptions, Config, DataType, Elements, Error, MAX_INPUT, Product, Rank, Reduction};

use crate::oracle::{elements, fold};
use crate::support::{algorithms, is_long, named, reduce, world, world_with, worlds};

#[test]
fn gloo_179_nothing_is_reduced_and_everybody_has_come() {
    for algorithm in algorithms() {
        for size in [1, 2, 3, 5] {
            let come = AtomicUsize::new(0);
            world(size, algorithm, |communicator| {
                let (group, rank) = (communicator.world(), communicator.rank().index());
                for round in 1..=4 {
                    if rank == round % size {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    come.fetch_add(1, Ordering::SeqCst);
                    reduce(&group, DataType::Float32, Reduction::Sum, &[], &CallOptions::default()).unwrap();
                    assert!(come.load(Ordering::SeqCst) >= round * size, "returned before all had come");
                    group.barrier(&CallOptions::default()).unwrap();
                }
                for dtype in DataType::ALL {
                    for reduction in Reduction::ALL {
                        assert_eq!(reduce(&group, dtype, reduction, &[], &named("x")), Ok(Vec::new()));
                    }
                    let root = Rank::from_index(size - 1);
                    group.broadcast(dtype, root, Buffers::InPlace(&mut []), &CallOptions::default()).unwrap();
                    group.all_gather(dtype, Buffers::InPlace(&mut []), &CallOptions::default()).unwrap();
                }
                group.all_reduce_many(DataType::Int8, Reduction::Max, &mut [], &CallOptions::default()).unwrap();
            });
        }
    }
}

#[test]
fn gloo_209_a_world_of_one() {
    worlds(&[1], |communicator| {
        let group = communicator.world();
        for dtype in DataType::ALL {
            for count in [1, 9, 300_000] {
                let input = elements(dtype, count, 0, 5);
                for reduction in Reduction::ALL {
                    let want = fold(dtype, reduction, std::slice::from_ref(&input));
                    assert!(reduce(&group, dtype, reduction, &input, &CallOptions::default()) == Ok(want.clone()));
                    assert!(reduce(&group, dtype, reduction, &input, &named("x")) == Ok(want), "{dtype} {reduction}");
                }
                // What is moved keeps its bits.
                let mut both = input.clone();
                group.broadcast(dtype, Rank(0), Buffers::InPlace(&mut both), &CallOptions::default()).unwrap();
                assert!(both == input);
                let mut output = vec![0; input.len()];
                let buffers = Buffers::Separate { input: &input, output: &mut output };
                group.all_gather(dtype, buffers, &CallOptions::default()).unwrap();
                assert!(output == input);
            }
        }
        group.barrier(&CallOptions::default()).unwrap();
    });
}

/// An allreduce of every reduction against the oracle, out of place and in place.
fn check(communicator: &foldcast::Communicator, dtype: DataType, count: usize, reductions: &[Reduction]) {
    let (group, rank) = (communicator.world(), communicator.rank().index());
    let salt = u64::try_from(count).unwrap();
    let inputs: Vec<_> = (0..communicator.size()).map(|rank| elements(dtype, count, rank, salt)).collect();
    for reduction in reductions {
        let want = fold(dtype, *reduction, &inputs);
        let got = reduce(&group, dtype, *reduction, &inputs[rank], &CallOptions::default());
        assert!(got == Ok(want.clone()), "{count} {dtype} {reduction}");
        let mut both = inputs[rank].clone();
        group.all_reduce(dtype, *reduction, Buffers::InPlace(&mut both), &CallOptions::default()).unwrap();
        assert!(both == want, "{count} {dtype} {reduction} in place");
    }
}

#[test]
fn pytorch_85234_fewer_elements_than_ranks() {
    worlds(&[2, 3, 5, 8, 16], |communicator| {
        for count in 0..=2 * communicator.size() {
            for dtype in [DataType::Int8, DataType::Bfloat16, DataType::Float32, DataType::Float64] {
                check(communicator, dtype, count, &[Reduction::Sum]);
            }
        }
    });
}

#[test]
fn pytorch_111131_horovod_3642_and_mpich_7342_every_type_by_every_reduction() {
    worlds(&[1, 2, 3, 4], |communicator| {
        for dtype in DataType::ALL {
            for count in [1, 100, 10_007] {
                check(communicator, dtype, count, &Reduction::ALL);
            }
        }
    });
}

#[test]
fn pytorch_111131_horovod_3642_and_mpich_7342_what_a_product_lacks_is_refused_with_what_it_has() {
    for product in Product::ALL.into_iter().filter(|product| *product != Product::Host) {
        world_with(
            2,
            |config: &mut Config| config.product = product,
            |communicator| {
                let group = communicator.world();
                for dtype in DataType::ALL {
                    for reduction in Reduction::ALL {
                        let input = vec![0; 2 * dtype.size()];
                        let result = reduce(&group, dtype, reduction, &input, &CallOptions::default());
                        match (product.check(dtype, reduction, false), result) {
                            (Ok(()), result) => assert!(result.is_ok(), "{dtype} {reduction}: {result:?}"),
                            (Err(_), Err(Error::InvalidArgument(refused))) => {
                                assert!(refused.to_string().contains(product.name()), "{refused}");
                            }
                            (Err(_), other) => panic!("{dtype} {reduction}: {other:?}"),
                        }
                    }
                }
            },
        );
    }
}

#[test]
fn pytorch_76527_nobodys_input_is_written() {
    worlds(&[2, 3, 5], |communicator| {
        let (group, rank) = (communicator.world(), communicator.rank().index());
        let options = CallOptions::default();
        for count in [1, 13, 5000, 300_000] {
            let before = elements(DataType::Float32, count, rank, 9);
            let input = before.clone();
            let mut output = vec![0; input.len()];
            for reduction in Reduction::ALL {
                let buffers = Buffers::Separate { input: &input, output: &mut output };
                group.all_reduce(DataType::Float32, reduction, buffers, &options).unwrap();
            }
            for root in 0..communicator.size() {
                let buffers = Buffers::Separate { input: &input, output: &mut output };
                group.broadcast(DataType::Float32, Rank::from_index(root), buffers, &options).unwrap();
                assert!(output == elements(DataType::Float32, count, root, 9));
            }
            let mut all = vec![0; input.len() * communicator.size()];
            let buffers = Buffers::Separate { input: &input, output: &mut all };
            group.all_gather(DataType::Float32, buffers, &options).unwrap();
            // What the borrow checker promises, the memory behind it keeps.
            assert!(input == before, "{count}");
        }
    });
}

#[test]
fn plato_26_counts_of_more_than_32_bits() {
    let most = usize::try_from(MAX_INPUT.0).unwrap();
    for name in algorithms() {
        let algorithm = algorithm(name).unwrap();
        for (ranks, bytes) in [(1, most), (2, most), (3, most), (16, most), (2, (4 << 30) + 1)] {
            let shape = Shape::all_reduce(ranks, bytes, 1);
            if !algorithm.applies(&shape) {
                continue;
            }
            let steps = plan_with(algorithm, &shape, ranks - 1).steps;
            let end = steps.iter().filter_map(output_end).max();
            assert_eq!(end, Some(bytes), "{name} on {ranks} ranks");
        }
    }
    assert_eq!(Elements(1 << 40).to_string(), "1099511627776");
}

/// Where what a step writes to the output ends.
fn output_end(step: &foldcast::plans::Step) -> Option<usize> {
    use foldcast::plans::Step;
    match step {
        Step::Fold { span, .. }
        | Step::FoldAndStage { span, .. }
        | Step::Keep { span }
        | Step::Collect { span, .. } => Some(span.end),
        _ => None,
    }
}

#[test]
fn pytorch_91030_one_more_than_every_piece_times_a_power_of_two() {
    const PIECES: [usize; 5] = [48, 4 << 10, 32 << 10, 64 << 10, 256 << 10];
    let powers = if is_long() { 0..10 } else { 0..4 };
    worlds(&[2, 3, 4], |communicator| {
        let (group, rank, size) = (communicator.world(), communicator.rank().index(), communicator.size());
        for piece in PIECES {
            for power in powers.clone() {
                for bytes in [(piece << power) - 1, piece << power, (piece << power) + 1] {
                    let element = |rank: usize, at: usize| u8::try_from((at * 7 + at / 249 + rank * 31) % 256).unwrap();
                    let mut both: Vec<u8> = (0..bytes).map(|at| element(rank, at)).collect();
                    let buffers = Buffers::InPlace(&mut both);
                    group.all_reduce(DataType::Uint8, Reduction::Sum, buffers, &CallOptions::default()).unwrap();
                    let total = |at| (0..size).map(|rank| element(rank, at)).fold(0, u8::wrapping_add);
                    let wrong = both.iter().enumerate().position(|(at, got)| *got != total(at));
                    assert_eq!(wrong, None, "of {bytes} bytes");
                }
            }
        }
    });
}

#[test]
fn pytorch_91030_more_than_2_to_the_31_elements() {
    const COUNT: usize = (1 << 31) + 5;
    if !is_long() {
        eprintln!("SKIPPED pytorch_91030_more_than_2_to_the_31_elements: set CONFORMANCE_LONG=1; it takes 5 GiB");
        return;
    }
    world_with(
        2,
        |_| {},
        |communicator| {
            let own = u8::try_from(communicator.rank().index() + 1).unwrap();
            let mut both = vec![own; COUNT];
            both[COUNT - 1] = 100;
            let buffers = Buffers::InPlace(&mut both);
            communicator.world().all_reduce(DataType::Uint8, Reduction::Sum, buffers, &CallOptions::default()).unwrap();
            assert_eq!(both.iter().position(|got| *got != 3), Some(COUNT - 1));
            assert_eq!(both[COUNT - 1], 200);
        },
    );
}
