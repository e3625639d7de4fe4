//! The root puts its bytes into its gather buffers, chunk by chunk, and everybody else collects them.
//!
//! Source: the flat tree in shared memory: the root writes each byte once, however many ranks read it, so that no deeper
//! tree could save anything.
//! Steps: one per round, ceil(N / chunk) rounds. Bytes that the root writes for others: N; that each of the others reads: N.
//!
//! The header covers the first chunk. The root stages chunk r + 1 while the others collect chunk r: it begins when all
//! have published round r, which they do when they are done with round r - 1, whose buffer chunk r + 1 takes. So the
//! others publish all rounds too, though they stage nothing.

use types::OpKind;
use types::transport::Counter;

use super::{Algorithm, chunk_of, chunks};
use crate::cost::Constants;
use crate::shape::{Shape, Shares};
use crate::step::{Place, Step};

pub(super) struct Broadcast;

impl Algorithm for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn source(&self) -> &'static str {
        "flat tree: everybody reads the root's gather buffer, chunk by chunk"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.ranks > 1 && shape.kind == OpKind::Broadcast
    }

    fn rounds(&self, shape: &Shape) -> u64 {
        chunks(shape.bytes, shape.chunk())
    }

    fn steps(&self, shape: &Shape, rank: usize) -> Vec<Step> {
        let Shares::Root(from) = shape.shares else { unreachable!("a broadcast has a root") };
        let is_root = rank == from;
        let chunk = |round| chunk_of(&(0..shape.bytes), shape.chunk(), round);
        let stage = |round| is_root.then(|| Step::Stage { span: chunk(round), to: Place::Gather { round } });
        let rounds = self.rounds(shape);
        let mut steps: Vec<Step> = (0..rounds.min(1)).filter_map(stage).collect();
        steps.extend([Step::Announce, Step::Meet]);
        for round in 0..rounds {
            if round > 0 {
                steps.extend(stage(round));
                steps.push(Step::Publish { counter: Counter::Staged, round });
            }
            if is_root {
                steps.push(Step::Keep { span: chunk(round) });
            }
            if round > 0 {
                steps.push(Step::Await { counter: Counter::Staged, round });
            }
            if !is_root {
                steps.push(Step::Collect { span: chunk(round), from, round });
            }
        }
        steps
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        constants.signals(shape.ranks - 1)
            + constants.rounds(self.rounds(shape))
            + constants.copy(shape.bytes)
            + constants.transfer(shape.bytes)
            + constants.memory(shape.bytes)
    }
}
