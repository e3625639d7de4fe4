use std::sync::Arc;

use types::OpKind;
use types::transport::{Geometry, SLOT_INLINE_BYTES};

use crate::algorithms::Algorithm;
use crate::choice::Choice;
use crate::step::{Place, Span, Step};

/// Who gives which bytes of the whole. The whole is what every rank has at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shares {
    /// Every rank gives all bytes: they are reduced.
    All,
    /// This rank gives all bytes, the others give none.
    Root(usize),
    /// Rank j gives piece j, of this many bytes; the whole is the pieces in the order of the ranks.
    Pieces(Arc<[usize]>),
}

impl Shares {
    /// The bytes that a rank gives of a whole of `bytes` bytes.
    #[must_use]
    pub fn of(&self, rank: usize, bytes: usize) -> Span {
        match self {
            Shares::All => 0..bytes,
            Shares::Root(root) if *root == rank => 0..bytes,
            Shares::Root(_) => 0..0,
            Shares::Pieces(pieces) => {
                let start = pieces.iter().take(rank).sum();
                start..start + pieces.get(rank).copied().unwrap_or_default()
            }
        }
    }

    /// Who gives which bytes of a part of the whole, where that is a call of its own.
    #[must_use]
    pub fn within(&self, part: &Span) -> Shares {
        match self {
            Shares::All => Shares::All,
            Shares::Root(root) => Shares::Root(*root),
            Shares::Pieces(pieces) => {
                let mut end = 0;
                let inside = |bytes: &usize| {
                    let start = end;
                    end += bytes;
                    end.min(part.end).saturating_sub(start.max(part.start))
                };
                Shares::Pieces(pieces.iter().map(inside).collect())
            }
        }
    }
}

/// All that a plan depends on besides the rank. Equal on all ranks of a call that is right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Kind of the collective.
    pub kind: OpKind,
    /// Number of ranks of the group.
    pub ranks: usize,
    /// Bytes of the whole, which is the output: a multiple of `element`; 0 for a barrier.
    pub bytes: usize,
    /// Who gives which of these bytes.
    pub shares: Shares,
    /// Bytes of one element, at least 1.
    pub element: usize,
    /// The group's areas.
    pub geometry: Geometry,
    /// Whether every rank can read the buffers of all others where they are.
    pub readable: bool,
}

impl Shape {
    /// Smaller calls do not ask whether buffers can be read where they are: whoever writes his input anew, and reads the
    /// result, must then fetch lines back from other cores, which costs as much as the staging that it saves.
    pub const LEAST_READABLE_BYTES: usize = 512 << 10;

    /// An allreduce over the areas that a group of this many ranks has by default.
    #[must_use]
    pub const fn all_reduce(ranks: usize, bytes: usize, element: usize) -> Shape {
        let shares = Shares::All;
        let geometry = Geometry::of(ranks);
        Shape { kind: OpKind::AllReduce, ranks, bytes, shares, element, geometry, readable: false }
    }

    /// A barrier over the areas that a group of this many ranks has by default.
    #[must_use]
    pub const fn barrier(ranks: usize) -> Shape {
        let shares = Shares::All;
        let geometry = Geometry::of(ranks);
        Shape { kind: OpKind::Barrier, ranks, bytes: 0, shares, element: 1, geometry, readable: false }
    }

    /// A broadcast over the areas that a group of this many ranks has by default.
    #[must_use]
    pub const fn broadcast(ranks: usize, root: usize, bytes: usize, element: usize) -> Shape {
        let shares = Shares::Root(root);
        let geometry = Geometry::of(ranks);
        Shape { kind: OpKind::Broadcast, ranks, bytes, shares, element, geometry, readable: false }
    }

    /// An allgather of pieces of so many bytes, one for each rank, over the areas that a group of this many ranks has by
    /// default.
    #[must_use]
    pub fn all_gather(pieces: impl Into<Arc<[usize]>>, element: usize) -> Shape {
        let pieces: Arc<[usize]> = pieces.into();
        let (ranks, bytes) = (pieces.len(), pieces.iter().sum());
        let shares = Shares::Pieces(pieces);
        let geometry = Geometry::of(ranks);
        Shape { kind: OpKind::AllGather, ranks, bytes, shares, element, geometry, readable: false }
    }

    /// The same call of ranks that can read each other's buffers, if it is one in which they ask.
    #[must_use]
    pub fn in_readable_memory(&self) -> Shape {
        let asks = self.kind == OpKind::AllReduce && self.ranks > 1 && self.bytes >= Shape::LEAST_READABLE_BYTES;
        Shape { readable: asks, ..self.clone() }
    }

    /// The bytes of the whole that a rank gives: the others of its input, if it has such, are not read.
    #[must_use]
    pub fn share(&self, rank: usize) -> Span {
        self.shares.of(rank, self.bytes)
    }

    /// The largest share of a rank, in bytes.
    pub(crate) fn largest_share(&self) -> usize {
        match &self.shares {
            Shares::All | Shares::Root(_) => self.bytes,
            Shares::Pieces(pieces) => pieces.iter().copied().max().unwrap_or_default(),
        }
    }

    /// Bytes of a full chunk: what fits a pair or gather buffer without cutting a cache line or, where buffers are
    /// smaller than that, an element. Never less than one element, which [`verify`](crate::verify) refuses if it does
    /// not fit.
    pub(crate) fn chunk(&self) -> usize {
        let whole = |unit: usize| self.geometry.chunk_bytes / unit * unit;
        match whole(self.unit()) {
            0 => whole(self.element).max(self.element),
            bytes => bytes,
        }
    }

    /// The smallest number of bytes that is whole cache lines (of 64 bytes) and whole elements.
    pub(crate) fn unit(&self) -> usize {
        let line = 64_usize;
        (1..=line).map(|n| n * self.element).find(|bytes| bytes.is_multiple_of(line)).unwrap_or(line * self.element)
    }
}

/// What one rank does in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Digest of algorithm, geometry and shape: equal on all ranks that chose the same plan.
    pub id: u64,
    /// By how much the channel's use count grows when the call succeeds. After a mismatch it stays.
    pub rounds: u64,
    /// What the rank does, in order.
    pub steps: Vec<Step>,
    /// What the plan is for.
    pub shape: Shape,
}

impl Plan {
    /// By how much the channel's count of [longer payloads](SLOT_INLINE_BYTES) in slots grows when the call succeeds: 1 if
    /// there is one, the same on all ranks. After a mismatch it stays.
    #[must_use]
    pub fn slots(&self) -> u64 {
        let long =
            |step: &Step| matches!(step, Step::Stage { span, to: Place::Slot } if span.len() > SLOT_INLINE_BYTES);
        u64::from(self.steps.iter().any(long))
    }
}

/// The cheapest algorithm for this shape, with the default [`Constants`](crate::Constants).
///
/// # Panics
/// If `shape.ranks` is 0.
#[must_use]
pub fn select(shape: &Shape) -> &'static dyn Algorithm {
    Choice::default().select(shape)
}

/// The plan of one rank by the [selected](select) algorithm.
#[must_use]
pub fn plan(shape: &Shape, rank: usize) -> Plan {
    plan_with(select(shape), shape, rank)
}

/// The plan of one rank by a given algorithm, which must [apply](Algorithm::applies) to the shape.
#[must_use]
pub fn plan_with(algorithm: &dyn Algorithm, shape: &Shape, rank: usize) -> Plan {
    Plan {
        algorithm: algorithm.name(),
        id: id(algorithm.name(), shape),
        rounds: algorithm.rounds(shape),
        steps: algorithm.steps(shape, rank),
        shape: shape.clone(),
    }
}

fn id(algorithm: &str, shape: &Shape) -> u64 {
    let Geometry { ranks, slot_bytes, chunk_bytes, pair_depth } = shape.geometry;
    let sizes = [shape.ranks, shape.bytes, shape.element, ranks, slot_bytes, chunk_bytes, pair_depth];
    let mut bytes = vec![shape.kind.code()];
    let shares = match &shape.shares {
        Shares::All => Vec::new(),
        Shares::Root(root) => vec![*root],
        Shares::Pieces(pieces) => pieces.to_vec(),
    };
    for size in sizes.into_iter().chain([usize::from(shape.readable), shares.len()]).chain(shares) {
        bytes.extend(u64::try_from(size).unwrap_or(u64::MAX).to_le_bytes());
    }
    bytes.extend(algorithm.as_bytes());
    types::digest(0x706c_616e, &bytes)
}
