//! Every algorithm is right, for every number of ranks to 17, around every size at which something changes.

mod common;

use std::collections::BTreeSet;

use common::{algorithm, small, small_broadcast, small_gather, small_readable, small_shape, ways_to_cut};
use foldcast_plan::verify::{self, Call, Start};
use foldcast_plan::{ALGORITHMS, Shape, select};
use types::OpKind;
use types::transport::Geometry;

/// Sizes at which a plan may change its form, in elements of `element` bytes.
fn sizes(geometry: &Geometry, element: usize) -> Vec<usize> {
    let Geometry { ranks, slot_bytes, chunk_bytes, .. } = *geometry;
    let around = |bytes: usize| [bytes.saturating_sub(element), bytes, bytes + element];
    let mut sizes = vec![0, element, 3 * element, 7 * element, 101 * element];
    let lines = [48, 64, ranks * 64, slot_bytes, chunk_bytes, 2 * chunk_bytes, 3 * chunk_bytes, 5 * chunk_bytes];
    let rounds = [ranks * chunk_bytes, (ranks - 1) * chunk_bytes, 2 * ranks * chunk_bytes, 3 * ranks * chunk_bytes];
    sizes.extend(lines.into_iter().chain(rounds).flat_map(around));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Calls of every kind that has a payload, of about this many bytes.
fn shapes(geometry: Geometry, bytes: usize, element: usize) -> Vec<Shape> {
    let ranks = geometry.ranks;
    let all_reduce = Shape::all_reduce(ranks, bytes, element);
    let mut shapes = vec![all_reduce.clone(), Shape { readable: true, ..all_reduce }];
    let mut roots = vec![0, ranks - 1];
    roots.dedup();
    if element == 2 || element == 4 {
        // What is moved does not know what an element is, except that none is cut.
        roots.clear();
    }
    shapes.extend(roots.into_iter().map(|root| Shape::broadcast(ranks, root, bytes, element)));
    shapes.extend(ways_to_cut(ranks, bytes, element).into_iter().map(|pieces| Shape::all_gather(pieces, element)));
    for shape in &mut shapes {
        shape.geometry = geometry;
    }
    shapes
}

fn prove_all(geometry: impl Fn(usize) -> Geometry, extra: &[usize], starts: impl Fn(usize) -> Vec<Start>) -> usize {
    let mut proofs = 0;
    for ranks in 1..=17 {
        for element in [1, 2, 4, 8] {
            let geometry = geometry(ranks);
            let mut sizes = sizes(&geometry, element);
            // The size of an element moves the borders of pieces and nothing else: for the middle ones few turns are enough, and
            // no size that only adds rounds.
            let is_middle = element == 2 || element == 4;
            sizes.extend(extra.iter().filter(|_| !is_middle).map(|elements| elements * element));
            for bytes in sizes {
                for shape in shapes(geometry, bytes, element) {
                    for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.applies(&shape)) {
                        // What is moved goes through gather buffers alone: with them, all repeats after two turns.
                        let turns = if shape.kind == OpKind::AllReduce { usize::MAX } else { 4 };
                        let turns = starts(ranks).into_iter().take(turns);
                        for start in turns.step_by(if is_middle { 5 } else { 1 }) {
                            let proof = verify::algorithm(*algorithm, &shape, 3, start);
                            proof.unwrap_or_else(|violation| panic!("{} {shape:?}: {violation}", algorithm.name()));
                            proofs += 1;
                        }
                    }
                }
            }
        }
    }
    proofs
}

#[test]
fn every_algorithm_is_right_in_the_areas_that_groups_have() {
    let odd_and_several_mib = [1001, 12_345, 700_001, (1 << 20) + 3];
    assert!(prove_all(Geometry::of, &odd_and_several_mib, |_| vec![Start { sequence: 1, uses: 5, slots: 0 }]) > 3000);
}

#[test]
fn every_algorithm_is_right_in_small_areas_from_every_turn() {
    // Two ranks use 4 buffers of two sides, so all repeats after 8 turns; more ranks use one; cells repeat after 2.
    let starts = |ranks| match ranks {
        2 => (0..16).map(|n| Start { sequence: n & 1, slots: n >> 1 & 1, uses: n / 2 }).collect(),
        _ => (0..8).map(|n| Start { sequence: n & 1, slots: n >> 1 & 1, uses: n >> 2 }).collect(),
    };
    assert!(prove_all(small, &[], starts) > 10_000);
}

#[test]
fn every_shape_has_an_algorithm_and_its_choice_is_right() {
    for ranks in 1..=17 {
        for bytes in sizes(&Geometry::of(ranks), 4).into_iter().chain([8 << 20]) {
            for shape in shapes(Geometry::of(ranks), bytes, 4) {
                verify::algorithm(select(&shape), &shape, 2, Start::default()).unwrap();
            }
        }
        let barrier = Shape::barrier(ranks);
        verify::algorithm(select(&barrier), &barrier, 4, Start::default()).unwrap();
    }
}

/// The chunks shrink where there are many ranks. Each size that comes out, on few ranks: so a round of each is proven.
#[test]
fn every_chunk_size_that_groups_have_is_used_rightly() {
    let chunks: BTreeSet<usize> = (1..=Geometry::MAX_RANKS).map(|ranks| Geometry::of(ranks).chunk_bytes).collect();
    assert!(chunks.len() > 100 && chunks.iter().all(|bytes| bytes.is_multiple_of(128)), "{chunks:?}");
    for chunk_bytes in chunks {
        for ranks in [2, 3, 5] {
            let geometry = Geometry { chunk_bytes, ..Geometry::of(ranks) };
            for bytes in sizes(&geometry, 8).into_iter().filter(|bytes| *bytes >= chunk_bytes) {
                for shape in shapes(geometry, bytes, 8) {
                    let proof = verify::algorithm(select(&shape), &shape, 2, Start { sequence: 1, uses: 3, slots: 0 });
                    proof.unwrap_or_else(|violation| panic!("{shape:?}: {violation}"));
                }
            }
        }
    }
}

#[test]
fn many_ranks_with_small_chunks_are_right() {
    let ranks = 140;
    let geometry = Geometry::of(ranks);
    assert!(geometry.chunk_bytes < Geometry::of(8).chunk_bytes);
    for bytes in [8, ranks * geometry.chunk_bytes + 8] {
        let pieces: Vec<usize> = (0..ranks).map(|rank| 8 * (rank % 5) * bytes.min(1000)).collect();
        for shape in
            [Shape::all_reduce(ranks, bytes, 8), Shape::broadcast(ranks, 3, bytes, 8), Shape::all_gather(pieces, 8)]
        {
            let proof = verify::algorithm(select(&shape), &shape, 2, Start::default());
            proof.unwrap_or_else(|violation| panic!("{shape:?}: {violation}"));
        }
    }
}

#[test]
fn areas_of_odd_sizes_are_used_rightly() {
    for ranks in 2..=6 {
        for (slot_bytes, chunk_bytes) in [(8, 8), (7, 9), (40, 63), (100, 65), (1000, 200)] {
            let pair_depth = if ranks == 2 { 3 } else { 1 };
            let geometry = Geometry { ranks, slot_bytes, chunk_bytes, pair_depth };
            for bytes in (0..60).map(|elements| elements * 8) {
                for shape in shapes(geometry, bytes, 8) {
                    verify::algorithm(select(&shape), &shape, 3, Start::default())
                        .unwrap_or_else(|violation| panic!("{shape:?}: {violation}"));
                }
            }
        }
    }
}

#[test]
fn many_calls_back_to_back_are_right() {
    for (name, shape) in [
        ("direct", small_readable(2, 500)),
        ("direct", small_readable(5, 700)),
        ("flat", small_shape(2, 96)),
        ("flat", small_shape(5, 33)),
        ("one_shot", small_shape(2, 700)),
        ("reduce_scatter_allgather", small_shape(6, 2000)),
        ("broadcast", small_broadcast(5, 3, 700)),
        ("all_gather", small_gather(&[64, 0, 300, 1])),
    ] {
        let proof = verify::algorithm(algorithm(name), &shape, 50, Start::default()).unwrap();
        let steps: usize = Call::of(algorithm(name), &shape).plans.iter().map(|plan| plan.steps.len()).sum();
        assert_eq!(proof.steps, 50 * steps, "each step of each rank and call was run");
    }
}

#[test]
fn memory_stays_within_the_areas_of_the_group() {
    // Both cells of a slot and their headers; all pair buffers; both gather buffers.
    let touched = |name, shape| verify::algorithm(algorithm(name), &shape, 20, Start::default()).unwrap().areas;
    assert_eq!(touched("flat", small_shape(2, 96)), 2 + 2);
    assert_eq!(touched("flat", small_shape(4, 96)), 4 * (2 + 2));
    assert_eq!(touched("one_shot", small_shape(2, 2000)), 2 + 4 * 2);
    assert_eq!(touched("broadcast", small_broadcast(4, 1, 2000)), 4 * 2 + 2);
    assert_eq!(touched("all_gather", small_gather(&[31 * 64, 0, 64, 1])), 4 * 2 + 3 * 2);
    assert_eq!(touched("reduce_scatter_allgather", small_shape(4, 2000)), 4 * 2 + 6 * 2 + 4 * 2);
    // Slots for the offers, with their headers, and what the programs gave.
    assert_eq!(touched("direct", small_readable(2, 2000)), 2 * 2 + 2);
    assert_eq!(touched("direct", small_readable(4, 2000)), 4 * 2 * 2 + 4);
}

#[test]
fn plans_run_right_on_bytes_in_any_order() {
    for ranks in 1..=7 {
        for bytes in [0, 1, 33, 96, 97, 300, 700] {
            for shape in shapes(small(ranks), bytes, 1) {
                for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.applies(&shape)) {
                    for seed in 0..6 {
                        let calls = vec![Call::of(*algorithm, &shape); 4];
                        let start = Start { sequence: seed, uses: seed, slots: seed / 2 };
                        let done = common::run(&calls, start, seed, seed % 2 == 0);
                        done.unwrap_or_else(|wrong| panic!("{} {shape:?} seed {seed}: {wrong}", algorithm.name()));
                    }
                }
            }
        }
    }
}
