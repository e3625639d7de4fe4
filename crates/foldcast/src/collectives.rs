//! The collectives that move bytes and change none: broadcast and allgather. NaNs keep their payloads.

use engine::{Completion, OwnedBuffers, Work};
use types::{Buffers, DataType, OpKind, Rank, Result};

use crate::check::MAX_BYTES;
use crate::element::{bytes_of, bytes_of_mut};
use crate::group::{CallOptions, Group, GroupShared};

impl Group {
    /// Gives every member what the member `root`, a rank of the world, has. All members give buffers of the same length;
    /// only the root's input is read. Blocks until the bytes are there.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error); a `root` that is not a member is refused. After an error the output's content is
    /// undefined.
    pub fn broadcast(
        &self,
        dtype: DataType,
        root: Rank,
        buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let work = self.broadcast_work(dtype, root, &buffers)?;
        self.shared().run(&work, buffers, options)
    }

    /// Submits [`broadcast`](Self::broadcast); never blocks. `done` is as for
    /// [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped.
    pub fn broadcast_async(
        &self,
        dtype: DataType,
        root: Rank,
        mut buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        let work = self.broadcast_work(dtype, root, &buffers.buffers())?;
        GroupShared::submit(self.shared(), work, buffers, options, done)
    }

    pub(crate) fn broadcast_work(&self, dtype: DataType, root: Rank, buffers: &Buffers<'_>) -> Result<Work> {
        let index = self.ranks().iter().position(|rank| *rank == root);
        let work = Work::broadcast(dtype, buffers.len(), index.unwrap_or_default(), root);
        self.shared().check(&work, buffers)?;
        if index.is_none() {
            let members: Vec<_> = self.ranks().iter().map(Rank::to_string).collect();
            let expected = format!("a member of the group: {}", members.join(", "));
            return Err(self.shared().invalid(OpKind::Broadcast, "root", expected, root.to_string()));
        }
        Ok(work)
    }

    /// Gives every member the contributions of all members, one behind the other in the order of the group; all
    /// contribute equally much. The output is as long as all inputs together; if the two are one buffer, the own
    /// contribution stands at its place in it already. Blocks until the bytes are there.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error). After an error the output's content is undefined.
    pub fn all_gather(&self, dtype: DataType, buffers: Buffers<'_>, options: &CallOptions<'_>) -> Result<()> {
        let work = self.equal_pieces(dtype, &buffers)?;
        self.shared().run(&work, buffers, options)
    }

    /// Submits [`all_gather`](Self::all_gather); never blocks. `done` is as for
    /// [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped.
    pub fn all_gather_async(
        &self,
        dtype: DataType,
        mut buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        let work = self.equal_pieces(dtype, &buffers.buffers())?;
        GroupShared::submit(self.shared(), work, buffers, options, done)
    }

    /// [`all_gather`](Self::all_gather) of contributions of unequal lengths: `counts` has the number of elements of each
    /// member, in the order of the group, and is the same on all members. Who does not know it asks
    /// [`all_gather_sizes`](Self::all_gather_sizes) first.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error); members whose `counts` differ get a mismatch in `parts`, or in `count` where the sums
    /// differ. After an error the output's content is undefined.
    pub fn all_gather_unequal(
        &self,
        dtype: DataType,
        counts: &[usize],
        buffers: Buffers<'_>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let work = self.pieces(dtype, counts, &buffers)?;
        self.shared().run(&work, buffers, options)
    }

    /// Submits [`all_gather_unequal`](Self::all_gather_unequal); never blocks. `done` is as for
    /// [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped.
    pub fn all_gather_unequal_async(
        &self,
        dtype: DataType,
        counts: &[usize],
        mut buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: Completion,
    ) -> Result<()> {
        let work = self.pieces(dtype, counts, &buffers.buffers())?;
        GroupShared::submit(self.shared(), work, buffers, options, done)
    }

    /// One number of each member, in the order of the group: what an allgather of unequal contributions needs to know.
    /// It is itself an allgather, of one 64-bit integer each.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error).
    pub fn all_gather_sizes(&self, size: u64, options: &CallOptions<'_>) -> Result<Vec<u64>> {
        let (own, mut sizes) = ([size], vec![0; self.size()]);
        let buffers = Buffers::Separate { input: bytes_of(&own), output: bytes_of_mut(&mut sizes) };
        self.all_gather(DataType::Uint64, buffers, options)?;
        Ok(sizes)
    }

    fn equal_pieces(&self, dtype: DataType, buffers: &Buffers<'_>) -> Result<Work> {
        let bytes = if buffers.is_in_place() { buffers.len() / self.size() } else { buffers.len() };
        // What is no whole number of elements is not the length that these counts ask for, and so refused.
        self.pieces(dtype, &vec![bytes / dtype.size(); self.size()], buffers)
    }

    fn pieces(&self, dtype: DataType, counts: &[usize], buffers: &Buffers<'_>) -> Result<Work> {
        let shared = self.shared();
        if self.rank().is_none() {
            return Err(shared.not_a_member(OpKind::AllGather));
        }
        if counts.len() != self.size() {
            let expected = format!("one number for each of the {} members", self.size());
            return Err(shared.invalid(OpKind::AllGather, "counts", expected, format!("{} numbers", counts.len())));
        }
        let sum = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        if sum.and_then(|sum| sum.checked_mul(dtype.size())).is_none_or(|bytes| bytes > MAX_BYTES) {
            let expected =
                format!("at most {} elements of {dtype} together ({MAX_BYTES} bytes)", MAX_BYTES / dtype.size());
            return Err(shared.invalid(OpKind::AllGather, "counts", expected, format!("{counts:?}")));
        }
        let work = Work::all_gather(dtype, counts);
        shared.check(&work, buffers)?;
        Ok(work)
    }
}
