//! Buffers into which small arrays are gathered, used again and again.

use std::sync::{Arc, Mutex};

use engine::OwnedBuffers;
use types::Buffers;

use crate::group::lock;
use crate::world::World;

/// Bytes of a stage at most: it stays in the second-level cache between its filling, its reduction and its emptying.
pub(crate) const STAGE_BYTES: usize = 1 << 20;

/// Stages that wait for their next use; more than these are freed.
const KEPT: usize = 4;

/// The stages of a process that are not in use.
pub(crate) type Stages = Mutex<Vec<Vec<u8>>>;

/// A stage in use: so many bytes of a buffer that goes back to the others in the end.
pub(crate) struct Stage {
    memory: Vec<u8>,
    used: usize,
    world: Arc<World>,
}

impl Stage {
    /// A stage of this many bytes. What they are is not defined.
    pub(crate) fn take(world: &Arc<World>, bytes: usize) -> Stage {
        let mut memory = lock(&world.stages).pop().unwrap_or_default();
        if memory.len() < bytes {
            memory.resize(bytes, 0);
        }
        Stage { memory, used: bytes, world: Arc::clone(world) }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[..self.used]
    }
}

impl OwnedBuffers for Stage {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(self.bytes())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let mut stages = lock(&self.world.stages);
        if stages.len() < KEPT {
            stages.push(core::mem::take(&mut self.memory));
        }
    }
}
