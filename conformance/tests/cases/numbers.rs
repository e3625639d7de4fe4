//! The same bits on every rank, and the right ones.

use std::sync::atomic::AtomicU8;

use foldcast::{Buffers, CallOptions, DataType, Reduction, bytes_of, bytes_of_mut};
use half::f16;
use kernels::{Fold, Hints, SharedBytes, Source};

use crate::oracle::{Random, elements, fold, is_float};
use crate::support::{named, reduce, submit, worlds};

fn floats() -> impl Iterator<Item = DataType> {
    DataType::ALL.into_iter().filter(|dtype| is_float(*dtype))
}

/// Calls every rank with `inputs` and compares with the oracle: so all ranks have the same bits, too.
fn check(communicator: &foldcast::Communicator, dtype: DataType, reduction: Reduction, inputs: &[Vec<u8>]) {
    let own = &inputs[communicator.rank().index()];
    let got = reduce(&communicator.world(), dtype, reduction, own, &CallOptions::default()).unwrap();
    assert!(got == fold(dtype, reduction, inputs), "{dtype} {reduction} of {} bytes: other bits", own.len());
}

#[test]
fn mlx_4072_max_and_min_of_nans() {
    // Quiet ones with payloads and signs; 1; zeros of both signs; infinity.
    let values = |dtype: DataType| -> Vec<Vec<u8>> {
        let words: [u64; 7] = match dtype {
            DataType::Float16 => [0x7e00, 0xfe01, 0x7fff, 0x3c00, 0, 0x8000, 0x7c00],
            DataType::Bfloat16 => [0x7fc0, 0xffc1, 0x7fff, 0x3f80, 0, 0x8000, 0x7f80],
            DataType::Float32 => [0x7fc0_0000, 0xffc0_0001, 0x7fff_ffff, 0x3f80_0000, 0, 0x8000_0000, 0x7f80_0000],
            _ => [0x7ff8 << 48, (0xfff8 << 48) | 1, u64::MAX >> 1, 0x3ff0 << 48, 0, 1 << 63, 0x7ff0 << 48],
        };
        words.map(|word| word.to_le_bytes()[..dtype.size()].to_vec()).to_vec()
    };
    worlds(&[1, 2, 3, 5], |communicator| {
        let size = communicator.size();
        for dtype in floats() {
            let values = values(dtype);
            // Every combination for the first three ranks; the others follow.
            let combinations = values.len().pow(3);
            let input = |rank: usize| {
                let pick = |at: usize| {
                    &values[(at / values.len().pow(u32::try_from(rank % 3).unwrap()) + rank / 3) % values.len()]
                };
                (0..combinations).flat_map(|at| pick(at).clone()).collect::<Vec<u8>>()
            };
            let inputs: Vec<Vec<u8>> = (0..size).map(input).collect();
            for reduction in [Reduction::Max, Reduction::Min, Reduction::Sum, Reduction::Prod] {
                check(communicator, dtype, reduction, &inputs);
                for few in [1, 2, 3, 17] {
                    let inputs: Vec<_> = inputs.iter().map(|input| input[..few * dtype.size()].to_vec()).collect();
                    check(communicator, dtype, reduction, &inputs);
                }
            }
        }
    });
}

#[test]
fn nccl_422_and_horovod_3662_integers_wrap_everywhere_alike() {
    worlds(&[1, 2, 3, 8], |communicator| {
        for dtype in DataType::ALL.into_iter().filter(|dtype| !is_float(*dtype)) {
            // 120 + 100 and the like at every place of a vector and behind the last whole one.
            for count in (1..40).chain([63, 65, 127, 1000, 20_001]) {
                let salt = u64::try_from(count).unwrap();
                let inputs: Vec<_> = (0..communicator.size()).map(|rank| elements(dtype, count, rank, salt)).collect();
                for reduction in Reduction::ALL {
                    check(communicator, dtype, reduction, &inputs);
                }
            }
        }
    });
}

#[test]
fn nccl_1055_the_error_of_float16_does_not_grow_with_the_ranks() {
    let mut random = Random(7);
    for ranks in [2, 8, 64, 500] {
        let inputs: Vec<Vec<f16>> = (0..ranks)
            .map(|_| {
                (0..301)
                    .map(|_| f16::from_f64(f64::from(u16::try_from(random.below(1000)).unwrap()) / 1000.0))
                    .collect()
            })
            .collect();
        let shared = |input: &Vec<f16>| bytes_of(input).iter().map(|byte| AtomicU8::new(*byte)).collect::<Vec<_>>();
        let memory: Vec<Vec<AtomicU8>> = inputs.iter().map(shared).collect();
        let sources: Vec<_> = memory.iter().map(|bytes| Source::Shared(SharedBytes::from_atomics(bytes))).collect();
        let mut output = vec![f16::ZERO; 301];
        let mut buffers = Buffers::InPlace(bytes_of_mut(&mut output));
        Fold::new(DataType::Float16, Reduction::Sum).fold(&mut buffers, 0..602, &sources, None, Hints::default());
        for (at, got) in output.iter().enumerate() {
            let exact: f64 = inputs.iter().map(|input| f64::from(input[at])).sum();
            let off = (f64::from(*got) - exact).abs() / exact;
            // Half a unit in the last place, and what float32 loses in between.
            assert!(off <= 1.0 / 2048.0 + 1e-6, "{ranks} ranks: {got} for {exact}");
        }
    }
}

#[test]
fn nccl_157_fused_and_alone_have_the_same_bits() {
    worlds(&[2, 3, 5], |communicator| {
        let (group, rank) = (communicator.world(), communicator.rank().index());
        let mut random = Random(11);
        for _ in 0..6 {
            let counts: Vec<usize> = (0..random.below(40)).map(|_| random.below(3000)).collect();
            for dtype in [DataType::Float32, DataType::Bfloat16] {
                let inputs: Vec<Vec<u8>> =
                    (0..).zip(&counts).map(|(salt, count)| elements(dtype, *count, rank, salt)).collect();
                let alone: Vec<Vec<u8>> = inputs
                    .iter()
                    .map(|input| reduce(&group, dtype, Reduction::Sum, input, &CallOptions::default()).unwrap())
                    .collect();
                // The whole list, and the list cut in two anywhere: buckets of other sizes.
                for cut in [0, random.below(counts.len() + 1)] {
                    let mut outputs: Vec<Vec<u8>> = inputs.iter().map(|input| vec![0; input.len()]).collect();
                    let mut buffers: Vec<Buffers<'_>> = inputs
                        .iter()
                        .zip(&mut outputs)
                        .map(|(input, output)| Buffers::Separate { input, output })
                        .collect();
                    let (first, second) = buffers.split_at_mut(cut);
                    for part in [first, second] {
                        group.all_reduce_many(dtype, Reduction::Sum, part, &CallOptions::default()).unwrap();
                    }
                    assert!(outputs == alone, "{dtype}, cut at {cut} of {counts:?}");
                }
            }
        }
    });
}

#[test]
fn ompi_11721_and_ompi_12258_all_ranks_get_the_same_bits() {
    worlds(&[2, 3, 4, 5, 6, 7, 8], |communicator| {
        for (salt, count) in (0..).zip([1, 5, 1000, 8193, 40_001]) {
            for dtype in floats() {
                let inputs: Vec<_> = (0..communicator.size()).map(|rank| elements(dtype, count, rank, salt)).collect();
                check(communicator, dtype, Reduction::Sum, &inputs);
            }
        }
    });
}

#[test]
fn ompi_9385_submitted_and_blocking_calls_have_the_same_bits() {
    worlds(&[1, 2, 3, 4, 5, 8, 13, 16], |communicator| {
        let (group, rank, dtype) = (communicator.world(), communicator.rank().index(), DataType::Float32);
        for (salt, count) in (0..).zip([0, 1, 3, 1000, 20_000]) {
            let input = elements(dtype, count, rank, salt);
            let blocking = reduce(&group, dtype, Reduction::Sum, &input, &CallOptions::default()).unwrap();
            let ways = [CallOptions::default(), named("a"), CallOptions::default(), named("b")];
            let submitted = ways.map(|options| submit(&group, dtype, Reduction::Sum, &input, &options).unwrap());
            for submitted in submitted {
                assert!(submitted.wait().unwrap() == blocking, "{count} elements");
            }
        }
    });
}

#[test]
fn tt_metal_37884_bfloat16_is_rounded_once() {
    worlds(&[3, 8, 16], |communicator| {
        let (size, dtype) = (communicator.size(), DataType::Bfloat16);
        // 256 and a one from every other rank: rounded after each step nothing would be added.
        let value = |rank: usize| half::bf16::from_f32(if rank == 0 { 256.0 } else { 1.0 });
        let inputs: Vec<Vec<u8>> = (0..size).map(|rank| bytes_of(&[value(rank); 37]).to_vec()).collect();
        check(communicator, dtype, Reduction::Sum, &inputs);
        let got = fold(dtype, Reduction::Sum, &inputs);
        let first = half::bf16::from_le_bytes([got[0], got[1]]);
        let want = half::bf16::from_f32(256.0 + f32::from(u16::try_from(size - 1).unwrap()));
        assert!(first == want && first > value(0), "{first}");
    });
}
