//! Memory for arrays that the other ranks of the host can read where it is.

use core::fmt;
use core::ops::{Deref, DerefMut};

use shm::Piece;
use types::{Error, Result};

use crate::communicator::Communicator;
use crate::world::World;

/// Bytes for an array, from [`Communicator::empty`]: this process's own, and if the other ranks can read them too, an allreduce
/// of 512 KiB or more whose inputs and outputs are such memory on all ranks copies nothing into buffers in between. They begin
/// at an address that suits every type of elements. The memory goes back to the system when the value is dropped, also after
/// the communicator was shut down.
///
/// It is not there in forked children, which must not touch it.
pub struct Memory(Kind);

enum Kind {
    Readable(Piece),
    /// Eight bytes each, for their alignment; and how many bytes it is.
    Private(Vec<u64>, usize),
}

impl Memory {
    /// Whether the other ranks can read it.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        matches!(self.0, Kind::Readable(_))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Readable(piece) => piece,
            Kind::Private(words, bytes) => &bytemuck::cast_slice(words)[..*bytes],
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Readable(piece) => piece,
            Kind::Private(words, bytes) => &mut bytemuck::cast_slice_mut(words)[..*bytes],
        }
    }
}

impl World {
    fn empty(&self, bytes: usize) -> Result<Memory> {
        self.check_process()?;
        if self.is_shut_down() {
            return Err(Error::Closed { what: "the communicator".into() });
        }
        match self.host().filter(|host| host.size() > 1 && bytes > 0) {
            Some(host) => Ok(Memory(Kind::Readable(host.piece(bytes, self.config().arena_bytes)?))),
            // Nobody else is there to read it.
            None => Ok(Memory(Kind::Private(vec![0; bytes.div_ceil(8)], bytes))),
        }
    }
}

impl Communicator {
    /// Memory of so many bytes, all zero, that the other ranks can read where it is; private memory in a world of one. All
    /// such memory of this process together is bounded by `FOLDCAST_ARENA_BYTES`.
    ///
    /// # Errors
    /// [`Error::Resource`] if so much cannot be had, [`Error::Closed`] after [`shutdown`](Communicator::shutdown),
    /// [`Error::ForkedProcess`].
    pub fn empty(&self, bytes: usize) -> Result<Memory> {
        self.shared_world().empty(bytes)
    }
}
