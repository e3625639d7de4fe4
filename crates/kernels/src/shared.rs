use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU8;

/// Memory that other processes may read and write at any time.
///
/// No `&[u8]` is ever formed over it. This crate reads and writes it through raw pointers only, each byte of a call
/// a bounded number of times, and nothing that is read is used as an index, a length or a pointer: a peer that breaks
/// the protocol and writes during a call can spoil the numbers of the result, and nothing else. Who may write when
/// is agreed between the ranks by flags with release and acquire order, which are the caller's affair.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: it stands for a `&[AtomicU8]`, which may be sent to another thread.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: it stands for a `&[AtomicU8]`, which threads may share.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// The `len` bytes from `ptr` on.
    ///
    /// # Safety
    /// For all of `'a` the bytes must be mapped for reading and writing, and no Rust reference to them may exist
    /// other than to atomics.
    #[must_use]
    pub const unsafe fn from_raw(ptr: *mut u8, len: usize) -> SharedBytes<'a> {
        SharedBytes { ptr, len, memory: PhantomData }
    }

    /// Memory shared between the threads of this process: for tests and simulated worlds.
    #[must_use]
    pub fn from_atomics(bytes: &'a [AtomicU8]) -> SharedBytes<'a> {
        // The pointer is not written through unless the memory allows it: an `AtomicU8` is an `UnsafeCell`.
        SharedBytes { ptr: bytes.as_ptr().cast_mut().cast(), len: bytes.len(), memory: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> SharedBytes<'a> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} is outside of {} shared bytes",
            self.len
        );
        // SAFETY: `start <= len`, and `len` bytes from `ptr` on are one mapped piece of memory.
        let ptr = unsafe { self.ptr.add(range.start) };
        SharedBytes { ptr, len: range.end - range.start, memory: PhantomData }
    }

    /// Where it starts.
    pub(crate) const fn as_ptr(self) -> *mut u8 {
        self.ptr
    }
}

/// Memory that its owner, another process, may write at any time, and that this process can only read.
///
/// As for [`SharedBytes`], no `&[u8]` is ever formed over it, and nothing that is read is used as an index, a length or a
/// pointer.
#[derive(Clone, Copy)]
pub struct ForeignBytes<'a> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: it stands for a `&[AtomicU8]`, which may be sent to another thread.
unsafe impl Send for ForeignBytes<'_> {}
// SAFETY: it stands for a `&[AtomicU8]`, which threads may share.
unsafe impl Sync for ForeignBytes<'_> {}

impl<'a> ForeignBytes<'a> {
    /// The `len` bytes from `ptr` on.
    ///
    /// # Safety
    /// For all of `'a` the bytes must be mapped for reading, and no Rust reference to them may exist other than to atomics.
    #[must_use]
    pub const unsafe fn from_raw(ptr: *const u8, len: usize) -> ForeignBytes<'a> {
        ForeignBytes { ptr, len, memory: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts.
    pub(crate) const fn as_ptr(self) -> *const u8 {
        self.ptr
    }
}

impl fmt::Debug for ForeignBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignBytes({} bytes)", self.len)
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len)
    }
}
