use core::sync::atomic::AtomicU8;

const PAGE: usize = 4096;

/// Memory that begins with a page, as large arrays of programs do, and has been touched.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// This many bytes of rubbish.
    #[must_use]
    pub fn new(len: usize) -> Aligned {
        let memory = vec![1u8; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Aligned { memory, start, len }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// The same for bytes that the kernels take for shared ones.
pub(crate) struct AlignedAtomics {
    memory: Vec<AtomicU8>,
    start: usize,
    len: usize,
}

impl AlignedAtomics {
    pub(crate) fn new(len: usize) -> AlignedAtomics {
        let memory: Vec<_> = (0..len + PAGE).map(|_| AtomicU8::new(1)).collect();
        let start = memory.as_ptr().align_offset(PAGE);
        AlignedAtomics { memory, start, len }
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        &self.memory[self.start..][..self.len]
    }
}
