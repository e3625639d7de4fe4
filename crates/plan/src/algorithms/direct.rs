//! Each rank folds one piece of everybody's input where it stands, and everybody takes the pieces from where they came to
//! stand: nothing is staged.
//!
//! Source: the reduce-scatter and allgather of Thakur, Rabenseifner and Gropp, 2005, on memory that all ranks can read.
//! Steps: one per round and one more, ceil(N / k / chunk) rounds. Bytes that each rank writes for others: none; reads from
//! others: 2 N (k - 1)/k; folds: N.
//!
//! A rank writes nothing but its own output, so that one that is late, in a call that has ended for the others, spoils
//! nobody's memory. The header stands for "my input is there". Piece j of everybody's input is read by rank j alone, and
//! before j says that it has folded it; so whoever has heard that may write there, which it does if its input is its
//! output. While others fold a chunk, the one before it is taken. The last signal says "I read nothing of yours any more":
//! then a rank may give its buffers back to the program.

use types::OpKind;
use types::transport::Counter;

use super::{Algorithm, chunk_of_piece, chunks, peers, piece_bytes};
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Sources, Step};

pub(super) struct Direct;

/// Takes what the others have folded in a round.
fn take(shape: &Shape, rank: usize, round: u64) -> impl Iterator<Item = Step> {
    let spans = peers(shape, rank).map(move |from| (from, chunk_of_piece(shape, from, round)));
    let takes = spans.filter(|(_, span)| !span.is_empty()).map(|(from, span)| Step::Take { span, from });
    core::iter::once(Step::Await { counter: Counter::Folded, round }).chain(takes)
}

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn source(&self) -> &'static str {
        "Thakur, Rabenseifner, Gropp 2005, on buffers that all ranks read where they are"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.readable && shape.ranks > 1 && shape.kind == OpKind::AllReduce && shape.bytes > 0
    }

    fn rounds(&self, shape: &Shape) -> u64 {
        chunks(piece_bytes(shape), shape.chunk()) + 1
    }

    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step> {
        let last = self.rounds(shape) - 1;
        let mut steps = vec![Step::Offer, Step::Announce, Step::Meet];
        for round in 0..last {
            let span = chunk_of_piece(shape, rank, round);
            if !span.is_empty() {
                steps.push(Step::Fold { span, sources: Sources::Inputs, also: None });
            }
            steps.push(Step::Publish { counter: Counter::Folded, round });
            if round > 0 {
                steps.extend(take(shape, rank, round - 1));
            }
        }
        steps.extend(take(shape, rank, last - 1));
        steps.push(Step::Publish { counter: Counter::Folded, round: last });
        steps.push(Step::Await { counter: Counter::Folded, round: last });
        steps
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        let (peers, piece) = (shape.ranks - 1, piece_bytes(shape));
        let others = shape.bytes.saturating_sub(piece);
        constants.signals(peers) * 3.0
            + constants.rounds(self.rounds(shape))
            + constants.copy(others)
            + constants.transfer(others) * 2.0
            + constants.fold(piece, shape.ranks)
            + constants.memory(shape.bytes)
    }
}
