//! The line at the head of a slot: sequence, fingerprint hash, and room for a payload of up to 48 bytes.

use crate::primitive::{AtomicU64, Ordering};

/// Payload bytes that lie in the header's own cache line.
pub const INLINE_BYTES: usize = types::transport::SLOT_INLINE_BYTES;
/// Where they begin in the slot.
pub const INLINE_OFFSET: usize = 16;
/// Where a larger payload begins in the slot.
pub const PAYLOAD_OFFSET: usize = 64;

/// Sequence and hash of the call whose payload is in the slot. Sequences count from 1: zeroed memory is no header.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Header {
    sequence: AtomicU64,
    hash: AtomicU64,
}

impl Header {
    /// Publishes: whoever reads this sequence sees the hash and all that the writer wrote before.
    #[inline]
    pub fn publish(&self, sequence: u64, hash: u64) {
        self.hash.store(hash, Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Release);
    }

    /// The hash, if the header is that of call `sequence`.
    #[inline]
    #[must_use]
    pub fn read(&self, sequence: u64) -> Option<u64> {
        if self.sequence.load(Ordering::Acquire) == sequence { Some(self.hash.load(Ordering::Relaxed)) } else { None }
    }
}
