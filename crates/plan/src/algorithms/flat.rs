//! Every rank stages its whole input in its slot, behind its header, and folds all slots itself.
//!
//! Source: the direct (all-to-all broadcast) allreduce of small messages; the slots that two ranks hand to and fro
//! instead of acknowledging them are our own.
//! Steps: one. Bytes that each rank writes for others: N; that it reads from others: (k - 1) N; that it folds: k N.
//!
//! The header is the only signal: it covers the payload. A slot of call s is written again in call s + 2 (for two
//! ranks, by the other rank in call s + 1), and whoever writes it then has seen headers of calls after s from all its
//! readers, or has read it itself: nobody acknowledges anything.
//! A barrier, and an allreduce of nothing, are the headers alone.

use types::OpKind;

use super::Algorithm;
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Place, Sources, Step};

pub(super) struct Flat;

impl Algorithm for Flat {
    fn name(&self) -> &'static str {
        "flat"
    }

    fn source(&self) -> &'static str {
        "direct exchange: every rank folds every rank's slot"
    }

    fn applies(&self, shape: &Shape) -> bool {
        let fits = shape.kind == OpKind::AllReduce && shape.bytes <= shape.geometry.slot_bytes;
        shape.ranks > 1 && (shape.kind == OpKind::Barrier || fits)
    }

    fn rounds(&self, _shape: &Shape) -> u64 {
        0
    }

    fn steps(&self, shape: &Shape, _rank: usize) -> Vec<Step> {
        if shape.kind == OpKind::Barrier || shape.bytes == 0 {
            return vec![Step::Announce, Step::Meet];
        }
        let span = 0..shape.bytes;
        vec![
            Step::Stage { span: span.clone(), to: Place::Slot },
            Step::Announce,
            Step::Meet,
            Step::Fold { span, sources: Sources::Slots, also: None },
        ]
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        let peers = shape.ranks - 1;
        constants.signals(peers)
            + constants.copy(shape.bytes)
            + constants.transfer(shape.bytes * peers)
            + constants.fold(shape.bytes, shape.ranks)
            + constants.memory(shape.bytes)
    }
}
