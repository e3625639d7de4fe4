//! What a call is asked to do.

use std::sync::Arc;

use plan::Shares;
use types::{Buffers, DataType, OpKind, Parts, Rank, Reduction, Summary};

/// What a call is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DataType,
    pub(crate) reduction: Reduction,
    /// Bytes of the output.
    pub(crate) bytes: usize,
    pub(crate) shares: Shares,
    pub(crate) root: Option<Rank>,
    pub(crate) parts: Parts,
    /// Bytes of the list of buffers that it belongs to, if it does.
    pub(crate) list_bytes: usize,
}

/// Results of so many bytes leave the caches anyway: out of place, they are stored past them. With more than two ranks that is so if
/// all their results together have so many bytes, since more ranks share the last-level cache.
///
/// Where a non-temporal store begins to pay, with a program that writes the input before and reads the result afterwards, was
/// measured on two ranks: from 8 MiB on in a last-level cache of 32 MiB, which their inputs and results fill then, and from 24 MiB on
/// in one of 480 MiB that was shared with other machines. (On four ranks: at 1 MiB each it did not pay in the first of these.)
fn streaming_bytes() -> usize {
    const LEAST: usize = 1 << 20;
    const MOST: usize = 24 << 20;
    kernels::last_level_cache().map_or(MOST, |cache| (cache / 4).clamp(LEAST, MOST))
}

/// Of a list that is so large, smaller buffers are not: their edges would cost more than is gained.
const LEAST_STREAMING_BYTES: usize = 64 << 10;

impl Work {
    /// An allreduce of this many bytes.
    #[must_use]
    #[inline]
    pub const fn all_reduce(dtype: DataType, reduction: Reduction, bytes: usize) -> Work {
        let parts = Parts { number: 0, digest: 0 };
        Work { kind: OpKind::AllReduce, dtype, reduction, bytes, shares: Shares::All, root: None, parts, list_bytes: 0 }
    }

    /// A barrier.
    #[must_use]
    pub fn barrier() -> Work {
        Work { kind: OpKind::Barrier, ..Work::moving(DataType::Uint8, 0) }
    }

    /// A broadcast of this many bytes from the member with this index, which is this rank of the world.
    #[must_use]
    pub fn broadcast(dtype: DataType, bytes: usize, index: usize, root: Rank) -> Work {
        let moving = Work::moving(dtype, bytes);
        Work { kind: OpKind::Broadcast, shares: Shares::Root(index), root: Some(root), ..moving }
    }

    /// An allgather of this many elements from each member, in the order of the group.
    #[must_use]
    pub fn all_gather(dtype: DataType, counts: &[usize]) -> Work {
        let pieces: Arc<[usize]> = counts.iter().map(|count| count * dtype.size()).collect();
        let moving = Work::moving(dtype, pieces.iter().sum());
        Work { kind: OpKind::AllGather, shares: Shares::Pieces(pieces), parts: Parts::of(counts), ..moving }
    }

    /// The same on so many bytes. Not for an allgather, whose pieces have their own sizes.
    #[must_use]
    pub fn of_bytes(mut self, bytes: usize) -> Work {
        self.bytes = bytes;
        self
    }

    /// The same, as one of the calls that together do this list of buffers, of so many bytes.
    #[must_use]
    pub fn of_list(mut self, parts: Parts, bytes: usize) -> Work {
        self.parts = parts;
        self.list_bytes = bytes;
        self
    }

    /// What is moved is not reduced: the fingerprint gets the same reduction on all ranks.
    fn moving(dtype: DataType, bytes: usize) -> Work {
        Work::all_reduce(dtype, Reduction::Sum, bytes)
    }

    /// The kind of the collective.
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> OpKind {
        self.kind
    }

    /// The type of the elements.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DataType {
        self.dtype
    }

    /// How elements are combined; for kinds that combine none it says nothing.
    #[must_use]
    pub const fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Bytes of the output.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is noted of such a call for those who look from outside.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::new(self.kind, self.dtype, self.reduction, u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }

    /// How many bytes of input the member with this index has: of a broadcast all have as much as the root.
    #[must_use]
    #[inline]
    pub fn input_bytes(&self, index: usize) -> usize {
        match &self.shares {
            Shares::All | Shares::Root(_) => self.bytes,
            Shares::Pieces(pieces) => pieces.get(index).copied().unwrap_or_default(),
        }
    }

    /// Does it for a group of one.
    pub fn alone(&self, buffers: &mut Buffers<'_>) {
        match (self.kind, buffers) {
            (OpKind::AllReduce, buffers) => crate::alone(self.dtype, self.reduction, buffers),
            (_, Buffers::Separate { input, output }) => output.copy_from_slice(input),
            (_, Buffers::InPlace(_)) => {}
        }
    }

    /// Whether the results, of a group of so many ranks, leave the caches before anyone reads them.
    pub(crate) fn leaves_caches(&self, ranks: usize) -> bool {
        let sharers = if ranks > 2 { ranks } else { 1 };
        self.bytes >= LEAST_STREAMING_BYTES && self.bytes.max(self.list_bytes) >= streaming_bytes() / sharers
    }
}
