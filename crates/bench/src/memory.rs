use core::fmt;
use core::ops::DerefMut;
use core::sync::atomic::AtomicU8;

const PAGE: usize = 4096;

/// Memory that begins with a page, as large arrays of programs do, and has been touched.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    /// Memory of the library's own kind, in place of the above.
    lent: Option<Box<dyn DerefMut<Target = [u8]>>>,
}

impl fmt::Debug for Aligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aligned({} bytes)", self.bytes().len())
    }
}

impl Aligned {
    /// This many bytes of rubbish.
    #[must_use]
    pub fn new(len: usize) -> Aligned {
        let memory = vec![1u8; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Aligned { memory, start, len, lent: None }
    }

    /// Memory that a library gives for its calls.
    #[must_use]
    pub fn lent(mut memory: Box<dyn DerefMut<Target = [u8]>>) -> Aligned {
        memory.fill(1);
        Aligned { memory: Vec::new(), start: 0, len: 0, lent: Some(memory) }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.lent {
            None => &self.memory[self.start..][..self.len],
            Some(lent) => lent,
        }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.lent {
            None => &mut self.memory[self.start..][..self.len],
            Some(lent) => lent,
        }
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
