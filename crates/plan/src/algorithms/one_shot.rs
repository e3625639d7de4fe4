//! Two ranks hand each other all of their input, chunk by chunk, and each folds everything.
//!
//! Source: our own. Staging buffers change hands: a rank stages its next chunk in the very buffer that it has just
//! finished reading, whose lines its core then owns. A line so crosses between the cores once per direction, and
//! nobody needs to be told that a buffer is free. With two ranks as many lines cross as in a reduce-scatter and
//! allgather, with half the signals and no staging of results.
//! Steps: ceil(N / chunk), pipelined. Bytes that each rank writes for the other: N; reads from it: N; folds: 2 N.
//!
//! The first [`LAG`] chunks are staged before the header, which covers them; after that chunk c + LAG is staged in one
//! loop with the fold of chunk c. The buffer of chunk c + LAG was read for the last time in chunk c + LAG - depth,
//! so LAG must be less than the number of buffers that are used in turn.

use types::OpKind;
use types::transport::Counter;

use super::{Algorithm, chunk_of, chunks};
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Place, Step};

/// How many chunks the staging runs ahead of the fold.
const LAG: u64 = 2;

pub(super) struct OneShot;

impl Algorithm for OneShot {
    fn name(&self) -> &'static str {
        "one_shot"
    }

    fn source(&self) -> &'static str {
        "direct exchange through hand-over buffers, pipelined by chunks"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.ranks == 2 && shape.kind == OpKind::AllReduce && shape.bytes > 0
    }

    fn rounds(&self, shape: &Shape) -> u64 {
        chunks(shape.bytes, shape.chunk())
    }

    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step> {
        let rounds = self.rounds(shape);
        let span = |round| chunk_of(&(0..shape.bytes), shape.chunk(), round);
        let mut steps = Vec::new();
        for round in 0..rounds.min(LAG) {
            steps.push(Step::Stage { span: span(round), to: Place::Pair { reader: 1 - rank, round } });
        }
        steps.extend([Step::Announce, Step::Meet]);
        for round in 0..rounds {
            if round >= LAG {
                steps.push(Step::Await { counter: Counter::Staged, round });
            }
            let ahead = Some(round + LAG).filter(|ahead| *ahead < rounds);
            let stage = ahead.map(|ahead| (span(ahead), ahead));
            steps.push(Step::FoldAndStage { span: span(round), round, stage });
            steps.extend(ahead.map(|round| Step::Publish { counter: Counter::Staged, round }));
        }
        steps
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        constants.signals(1)
            + constants.rounds(self.rounds(shape))
            + constants.copy(shape.bytes)
            + constants.transfer(shape.bytes)
            + constants.fold(shape.bytes, 2)
            + constants.memory(shape.bytes)
    }
}
