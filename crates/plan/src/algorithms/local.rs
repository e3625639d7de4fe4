//! A group of one rank: the result is the input.
//!
//! Source: none needed.
//! Steps: copy (nothing at all in place). Bytes moved between ranks: none.
//! No header is published, as there is nobody to agree with.

use types::OpKind;

use super::Algorithm;
use crate::cost::Constants;
use crate::shape::Shape;
use crate::step::{Sources, Step};

pub(super) struct Local;

impl Algorithm for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn source(&self) -> &'static str {
        "a group of one: the result is the input"
    }

    fn applies(&self, shape: &Shape) -> bool {
        shape.ranks == 1
    }

    fn rounds(&self, _shape: &Shape) -> u64 {
        0
    }

    fn steps(&self, shape: &Shape, _rank: usize) -> Vec<Step> {
        if shape.bytes == 0 {
            return Vec::new();
        }
        let span = 0..shape.bytes;
        vec![match shape.kind {
            OpKind::AllReduce => Step::Fold { span, sources: Sources::Own, also: None },
            _ => Step::Keep { span },
        }]
    }

    fn cost(&self, shape: &Shape, constants: &Constants) -> f64 {
        constants.copy(shape.bytes) + constants.memory(shape.bytes)
    }
}
