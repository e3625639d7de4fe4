//! Ranks that call with different things are told so, all of them, with all that one needs; and go on.

use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, Config, DataType, Error, Group, Product, Rank, Reduction, Result, Timeout,
};

use crate::support::{algorithms, mismatch, named, submit, sum, world, world_with, worlds};

fn rank(communicator: &Communicator) -> usize {
    communicator.rank().index()
}

/// The next right call works.
fn goes_on(group: &Group) {
    let want = f32::from(u16::try_from(group.size()).unwrap());
    assert_eq!(sum(group, &[1.0; 9], &CallOptions::default()), Ok(vec![want; 9]));
}

#[test]
fn nccl_1417_counts_that_differ() {
    worlds(&[2, 3], |communicator| {
        let (group, size) = (communicator.world(), communicator.size());
        let pairs = [(4, 3), (4, 100_000), (100_000, 99_999), (0, 1), (300_000, 299_999), (1, 300_000)];
        for (common, odd) in pairs {
            for other in 0..size {
                let count = if rank(communicator) == other { odd } else { common };
                let input = vec![1.0; count];
                let submitted = |options: &CallOptions<'_>| {
                    submit(&group, DataType::Float32, Reduction::Sum, foldcast::bytes_of(&input), options)
                        .and_then(|submitted| submitted.wait())
                };
                let ways: [&dyn Fn() -> Result<()>; 4] = [
                    &|| sum(&group, &input, &CallOptions::default()).map(drop),
                    &|| sum(&group, &input, &named("x")).map(drop),
                    &|| submitted(&CallOptions::default()).map(drop),
                    &|| submitted(&named("x")).map(drop),
                ];
                for way in ways {
                    let found = mismatch(way());
                    assert_eq!((found.field, found.values.len()), ("count", size));
                    for (rank, value) in &found.values {
                        let count = if rank.index() == other { odd } else { common };
                        assert!(value.starts_with(&format!("{count} elements")), "{rank}: {value}");
                    }
                    goes_on(&group);
                }
            }
        }
    });
}

/// The ways in which rank 1's call may differ from that of the others: the field, both values, and the call.
type Difference = (&'static str, [&'static str; 2], fn(&Group, bool) -> Result<()>);

fn differences() -> Vec<Difference> {
    vec![
        ("dtype", ["float32", "int32"], |group, odd| {
            let dtype = if odd { DataType::Int32 } else { DataType::Float32 };
            group.all_reduce(dtype, Reduction::Sum, Buffers::InPlace(&mut [0; 32]), &CallOptions::default())
        }),
        ("reduction", ["sum", "max"], |group, odd| {
            let reduction = if odd { Reduction::Max } else { Reduction::Sum };
            group.all_reduce(DataType::Int8, reduction, Buffers::InPlace(&mut [0; 32]), &CallOptions::default())
        }),
        ("count", ["262144 elements", "1025 elements"], |group, odd| {
            let mut both = vec![0; if odd { 1025 } else { 262_144 }];
            group.all_reduce(DataType::Uint8, Reduction::Sum, Buffers::InPlace(&mut both), &CallOptions::default())
        }),
        ("root", ["rank 0", "rank 1"], |group, odd| {
            let root = Rank(u32::from(odd));
            group.broadcast(DataType::Int64, root, Buffers::InPlace(&mut [0; 32]), &CallOptions::default())
        }),
        ("parts", ["2 parts", "2 parts"], |group, odd| {
            let counts = if odd { [3, 1] } else { [1, 3] };
            let own = counts[group.rank().unwrap()];
            let buffers = Buffers::Separate { input: &vec![0; own], output: &mut [0; 4] };
            group.all_gather_unequal(DataType::Uint8, &counts, buffers, &CallOptions::default())
        }),
        ("kind", ["allreduce", "barrier"], |group, odd| {
            if odd {
                return group.barrier(&CallOptions::default());
            }
            group.all_reduce(DataType::Uint8, Reduction::Sum, Buffers::InPlace(&mut [0; 4]), &CallOptions::default())
        }),
    ]
}

#[test]
fn nccl_296_the_text_alone_is_enough() {
    worlds(&[2], |communicator| {
        let group = communicator.world();
        for (field, values, call) in differences() {
            let error = call(&group, rank(communicator) == 1).unwrap_err();
            let text = error.to_string();
            let found = mismatch::<()>(Err(error));
            assert_eq!(found.field, field, "{text}");
            assert_eq!(found.peer, Rank(1 - communicator.rank().0), "{text}");
            let op = if field == "kind" { ["allreduce", "barrier"][rank(communicator)] } else { found.site.op };
            let begin = format!("{}: {op} #", communicator.rank());
            assert!(text.starts_with(&begin) && text.contains("on group 'hccl_world_group'"), "{text}");
            assert!(text.contains(&format!("the ranks disagree in {field}:")), "{text}");
            assert!(text.contains("rank 0: ") && text.contains("rank 1: "), "{text}");
            assert!(values.iter().all(|value| text.contains(value)), "{text}");
            assert!(text.contains("make the ranks call with the same arguments"), "{text}");
            goes_on(&group);
        }
    });
}

#[test]
fn nccl_296_products_that_differ() {
    for algorithm in algorithms() {
        let adapt = |config: &mut Config| {
            config.algorithm = Some(algorithm);
            config.product = if config.rank == Rank(1) { Product::AtlasA2 } else { Product::Host };
        };
        world_with(2, adapt, |communicator| {
            let error = sum(&communicator.world(), &[1.0], &CallOptions::default()).unwrap_err();
            let text = error.to_string();
            assert_eq!(mismatch::<()>(Err(error)).field, "product");
            assert!(text.contains("rank 0: host") && text.contains("rank 1: atlas-a2"), "{text}");
        });
    }
}

#[test]
fn pytorch_140563_the_error_has_every_ranks_call() {
    worlds(&[4], |communicator| {
        let group = communicator.world();
        let counts = [262_144, 1025, 262_144, 7];
        let found = mismatch(sum(&group, &vec![1.0; counts[rank(communicator)]], &CallOptions::default()));
        let got: Vec<(u32, String)> = found.values.iter().map(|(rank, value)| (rank.0, value.clone())).collect();
        let want = [
            "262144 elements (1 MiB)",
            "1025 elements (4100 bytes)",
            "262144 elements (1 MiB)",
            "7 elements (28 bytes)",
        ];
        assert_eq!(got, (0..).zip(want.map(str::to_owned)).collect::<Vec<_>>());
        assert_eq!(found.expected, want[rank(communicator)]);
        goes_on(&group);
    });
}

#[test]
fn gloo_456_the_message_word_by_word() {
    worlds(&[3], |communicator| {
        let group = communicator.world();
        goes_on(&group);
        let count = if rank(communicator) == 2 { 3 } else { 4 };
        let text = sum(&group, &vec![1.0; count], &CallOptions::default()).unwrap_err().to_string();
        let (before, after) = text.split_once(" (after 0.").expect("the time");
        let (_, after) = after.split_once(" s)").expect("the time");
        assert_eq!(
            before,
            format!(
                "rank {}: allreduce #2 on group 'hccl_world_group': the ranks disagree in count: rank 0, rank 1: 4 elements (16 \
                 bytes); rank 2: 3 elements (12 bytes)",
                rank(communicator)
            )
        );
        assert_eq!(after, "; nothing was done and the group stays usable: make the ranks call with the same arguments");
        let text = sum(&group, &vec![1.0; count], &named("grad/W")).unwrap_err().to_string();
        assert!(text.starts_with(&format!("rank {}: allreduce 'grad/W' on group", rank(communicator))), "{text}");
    });
}

#[test]
fn deepspeed_2343_gradients_in_other_orders() {
    worlds(&[2, 3], |communicator| {
        let (group, size) = (communicator.world(), communicator.size());
        let value = |name: usize, rank: usize| f32::from(u16::try_from(name * 10 + rank).unwrap());
        // Equal shapes: only the name tells them apart.
        for round in 0..5 {
            let order: Vec<usize> = (0..17).map(|at| (at * 5 + rank(communicator) * 7 + round) % 17).collect();
            let submitted: Vec<_> = order
                .iter()
                .map(|name| {
                    let input = [value(*name, rank(communicator)); 33];
                    let tag = format!("gradient {name}");
                    submit(&group, DataType::Float32, Reduction::Sum, foldcast::bytes_of(&input), &named(&tag)).unwrap()
                })
                .collect();
            for (name, submitted) in order.iter().zip(&submitted) {
                let want: f32 = (0..size).map(|rank| value(*name, rank)).sum();
                assert_eq!(submitted.wait().unwrap(), foldcast::bytes_of(&[want; 33]), "gradient {name}");
            }
        }
        // Without names they meet by number: an error wherever it can be seen.
        let counts = if rank(communicator) == 1 { [7, 5] } else { [5, 7] };
        for count in counts {
            assert_eq!(mismatch(sum(&group, &vec![1.0; count], &CallOptions::default())).field, "count");
        }
        goes_on(&group);
    });
}

#[test]
fn pytorch_72843_another_collective_at_the_same_place() {
    type Call = fn(&Group) -> Result<()>;
    let calls: [(&str, Call); 4] = [
        ("allreduce", |group| {
            group.all_reduce(DataType::Int32, Reduction::Sum, Buffers::InPlace(&mut [1; 24]), &CallOptions::default())
        }),
        ("broadcast", |group| {
            group.broadcast(DataType::Int32, Rank(0), Buffers::InPlace(&mut [1; 24]), &CallOptions::default())
        }),
        ("allgather", |group| {
            group.all_gather(DataType::Int32, Buffers::InPlace(&mut [1; 24]), &CallOptions::default())
        }),
        ("barrier", |group| group.barrier(&CallOptions::default())),
    ];
    worlds(&[2, 3], |communicator| {
        let group = communicator.world();
        for (common, first) in calls {
            for (odd, second) in calls.iter().filter(|(odd, _)| *odd != common) {
                for other in 0..communicator.size() {
                    let own = rank(communicator) == other;
                    let found = mismatch(if own { second(&group) } else { first(&group) });
                    assert_eq!(found.field, "kind");
                    for (rank, kind) in &found.values {
                        assert_eq!(kind, if rank.index() == other { odd } else { common });
                    }
                    goes_on(&group);
                }
            }
        }
    });
}

#[test]
fn pytorch_68803_a_gradient_that_one_rank_leaves_out() {
    for algorithm in algorithms() {
        world(3, algorithm, |communicator| {
            let all: Vec<Rank> = (0..3).map(Rank::from_index).collect();
            let group = communicator.new_group(&all, Some("gradients")).unwrap();
            let leaves_out = rank(communicator) == 1;
            for tensor in (0..5).filter(|tensor| !(leaves_out && *tensor == 3)) {
                let name = format!("tensor {tensor}");
                let timeout = Timeout::After(Duration::from_millis(if tensor == 3 { 200 } else { 30_000 }));
                let options = CallOptions { timeout, ..named(&name) };
                let result = sum(&group, &[1.0; 50], &options);
                match (tensor, result) {
                    (0..3, result) => assert_eq!(result, Ok(vec![3.0; 50])),
                    (3, Err(Error::Deadline(late))) => {
                        assert_eq!(late.peers, [Rank(1)]);
                        assert!(late.to_string().contains("allreduce 'tensor 3' on group 'gradients'"), "{late}");
                    }
                    // Whoever was not the first to give up, or comes later, is told who and for whom.
                    (_, Err(Error::GroupAborted(over))) => {
                        assert!(over.to_string().contains("reached its deadline waiting for rank 1"), "{over}");
                    }
                    (tensor, other) => panic!("tensor {tensor}: {other:?}"),
                }
            }
            goes_on(&communicator.world());
        });
    }
}

#[test]
fn nccl_2428_no_setting_silences_the_check() {
    let settings: [fn(&mut Config); 7] = [
        |config| config.timeout = None,
        |config| config.warn_after = Duration::MAX,
        |config| config.threads = 1,
        |config| config.threads = 7,
        |config| config.product = Product::AtlasTraining,
        |config| config.pool_bytes = 0,
        |config| config.costs = foldcast::CostsFrom::File("/nonexistent/costs.json".into()),
    ];
    for algorithm in algorithms() {
        for setting in settings {
            let adapt = |config: &mut Config| {
                setting(config);
                config.algorithm = Some(algorithm);
            };
            world_with(2, adapt, |communicator| {
                let group = communicator.world();
                for (common, odd) in [(4, 3), (300_000, 300_001)] {
                    let count = if rank(communicator) == 1 { odd } else { common };
                    assert_eq!(mismatch(sum(&group, &vec![1.0; count], &CallOptions::default())).field, "count");
                    goes_on(&group);
                }
            });
        }
    }
}
