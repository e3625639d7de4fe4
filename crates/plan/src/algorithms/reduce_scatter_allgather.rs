//! Each rank folds one piece of everybody's input, and everybody collects the pieces.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, with
//! the direct (pairwise) reduce-scatter in place of recursive halving, as that alone gives the canonical tree for
//! every number of ranks: the owner of a piece folds all k inputs in one pass.
//! Steps: one more than there are rounds, ceil(N / k / chunk). Bytes that each rank writes for others: N (k - 1)/k staged and
//! N / k of results; reads from others: 2 N (k - 1)/k; folds: N.
//!
//! The staged pieces go through hand-over buffers (each has one reader). In a round, a rank folds what all have staged for
//! it, stages the next round's pieces in the buffers that it has just read, says both at once, and collects when all have.
//! The header stands for "staged" in round 0. Having awaited all of that in round x, a rank knows that the others are done
//! with round x - 1: so its other gather buffer is free.

use types::OpKind;
use types::transport::Counter;

use super::{Algorithm, chunk_of_piece as chunk, chunks, peers, piece_bytes};
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Place, Sources, Step};

pub(super) struct ReduceScatterAllgather;

/// Stages what the others fold in a round.
fn stage(shape: &Shape, rank: usize, round: u64) -> impl Iterator<Item = Step> {
    let spans = peers(shape, rank).map(move |reader| (reader, chunk(shape, reader, round)));
    let spans = spans.filter(|(_, span)| !span.is_empty());
    spans.map(move |(reader, span)| Step::Stage { span, to: Place::Pair { reader, round } })
}

impl Algorithm for ReduceScatterAllgather {
    fn name(&self) -> &'static str {
        "reduce_scatter_allgather"
    }

    fn source(&self) -> &'static str {
        "Thakur, Rabenseifner, Gropp 2005, with a direct reduce-scatter through hand-over buffers"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.ranks > 2 && shape.kind == OpKind::AllReduce && shape.bytes > 0
    }

    fn rounds(&self, shape: &Shape) -> u64 {
        chunks(piece_bytes(shape), shape.chunk())
    }

    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step> {
        let mut steps: Vec<Step> = stage(shape, rank, 0).collect();
        steps.extend([Step::Announce, Step::Meet]);
        let rounds = self.rounds(shape);
        for round in 0..rounds {
            let own = chunk(shape, rank, round);
            if !own.is_empty() {
                let (sources, also) = (Sources::Pairs { round }, Some(Place::Gather { round }));
                steps.push(Step::Fold { span: own, sources, also });
            }
            if round + 1 < rounds {
                steps.extend(stage(shape, rank, round + 1));
            }
            steps.push(Step::Publish { counter: Counter::Folded, round });
            steps.push(Step::Await { counter: Counter::Folded, round });
            let spans = peers(shape, rank).map(|from| (from, chunk(shape, from, round)));
            let spans = spans.filter(|(_, span)| !span.is_empty());
            steps.extend(spans.map(|(from, span)| Step::Collect { span, from, round }));
        }
        steps
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        let (peers, piece) = (shape.ranks - 1, piece_bytes(shape));
        let others = shape.bytes.saturating_sub(piece);
        let later_rounds = self.rounds(shape) - 1;
        constants.signals(peers) * 2.0
            + constants.rounds(later_rounds)
            + constants.copy(others) * 2.0
            + constants.transfer(others) * 2.0
            + constants.fold(piece, shape.ranks)
            + constants.memory(shape.bytes)
    }
}
