//! Each rank puts its piece into its gather buffers, chunk by chunk, and everybody collects all pieces.
//!
//! Source: the direct (all-to-all broadcast) allgather of shared memory: each byte is written once and read by everybody,
//! where a ring (Thakur, Rabenseifner and Gropp, 2005) would write it k - 1 times.
//! Steps: one per round, ceil(largest piece / chunk) rounds. Bytes that each rank writes for others: its piece; that it
//! reads from others: all other pieces.
//!
//! The header covers the first chunk. A rank stages chunk r + 1 when it has collected those of round r, and collects
//! those of round r when all have staged them: so all are done with round r - 1 then, whose buffer chunk r + 1 takes.
//! The first chunk's buffer was read last in the round before the last of the calls before, which the signals of that
//! last round have covered. The own piece is copied while the others are waited for.

use types::OpKind;
use types::transport::Counter;

use super::{Algorithm, chunk_of, chunks, peers};
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Place, Span, Step};

pub(super) struct AllGather;

impl Algorithm for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn source(&self) -> &'static str {
        "direct allgather: everybody reads everybody's gather buffer, chunk by chunk"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.ranks > 1 && shape.kind == OpKind::AllGather
    }

    fn rounds(&self, shape: &Shape) -> u64 {
        chunks(shape.largest_share(), shape.chunk())
    }

    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step> {
        let shares: Vec<Span> = (0..shape.ranks).map(|rank| shape.share(rank)).collect();
        let chunk = |owner: usize, round| chunk_of(&shares[owner], shape.chunk(), round);
        let own = |round| Some(chunk(rank, round)).filter(|span| !span.is_empty());
        let stage = |round| own(round).map(|span| Step::Stage { span, to: Place::Gather { round } });
        let mut steps: Vec<Step> = stage(0).into_iter().collect();
        steps.extend([Step::Announce, Step::Meet]);
        for round in 0..self.rounds(shape) {
            if round > 0 {
                steps.extend(stage(round));
                steps.push(Step::Publish { counter: Counter::Staged, round });
            }
            steps.extend(own(round).map(|span| Step::Keep { span }));
            if round > 0 {
                steps.push(Step::Await { counter: Counter::Staged, round });
            }
            let spans = peers(shape, rank).map(|from| (from, chunk(from, round)));
            let spans = spans.filter(|(_, span)| !span.is_empty());
            steps.extend(spans.map(|(from, span)| Step::Collect { span, from, round }));
        }
        steps
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        let peers = shape.ranks - 1;
        constants.signals(peers)
            + constants.rounds(self.rounds(shape))
            + constants.copy(shape.bytes)
            + constants.transfer(shape.bytes)
            + constants.memory(shape.bytes)
    }
}
