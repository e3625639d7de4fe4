//! Anonymous shared memory: a sealed memfd, mapped. It has no name, so nothing is left behind.

use core::ptr::NonNull;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use types::{Bytes, Error, Result};

use crate::door::Door;
use crate::fork::Home;
use crate::header::Header;
use crate::layout::count;
use crate::primitive::{AtomicU32, AtomicU64};
use crate::retry::retry;

/// Types that any bytes are a value of, and that may change under a shared reference: atomics and structs of them.
///
/// # Safety
/// Every bit pattern must be valid, and every field an atomic.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU64 {}
// SAFETY: two atomic integers and padding that is never read.
unsafe impl Shared for Door {}
// SAFETY: two atomic integers.
unsafe impl Shared for Header {}
// SAFETY: an array of atomic integers.
unsafe impl<const N: usize> Shared for [AtomicU64; N] {}

/// What any segment has at least.
const VIEWED_BYTES: usize = 4096;

/// A mapped segment of shared memory. Sparse: it costs memory only where it was touched.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    home: Home,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is read and written through atomics and `SharedBytes`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment of `len` zeroed bytes, and the descriptor to hand to other processes.
    ///
    /// # Errors
    /// [`Error::Resource`] if the process may not have so much, and [`Error::InvalidArgument`] if `len` is 0.
    pub fn create(what: &str, len: usize, home: Home) -> Result<(Segment, OwnedFd)> {
        let bytes = count(len);
        let wanted = || format!("{} of shared memory for {what}", Bytes(bytes));
        // Past this limit ftruncate does not only fail, it raises SIGXFSZ, which kills.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < bytes) {
            return Err(Error::resource(
                wanted(),
                format!("the limit on the size of files is {} (RLIMIT_FSIZE)", Bytes(limit)),
                "raise it with `ulimit -f unlimited`",
            ));
        }
        let refused = |error: Errno| Error::resource(wanted(), error, hint(error));
        let fd = memory_file().map_err(refused)?;
        retry(|| ftruncate(&fd, bytes)).map_err(refused)?;
        // Whoever maps it can then touch all of it for ever: no SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(refused)?;
        Ok((Segment::map(&fd, len, home, ProtFlags::READ | ProtFlags::WRITE).map_err(refused)?, fd))
    }

    /// Maps a segment that another process made.
    ///
    /// # Errors
    /// [`Error::Resource`] if it cannot be mapped, is not sealed, or has not `len` bytes.
    pub fn attach(what: &str, fd: impl AsFd, len: usize, home: Home) -> Result<Segment> {
        Segment::attach_if(what, fd, len, home, |actual| actual == len)
    }

    /// Maps the first `len` bytes of a segment that another process made, where there may be no room for all of it.
    ///
    /// # Errors
    /// [`Error::Resource`] if they cannot be mapped, the segment is not sealed, or it is shorter.
    pub(crate) fn attach_start(what: &str, fd: impl AsFd, len: usize, home: Home) -> Result<Segment> {
        Segment::attach_if(what, fd, len, home, |actual| actual >= len)
    }

    fn attach_if(what: &str, fd: impl AsFd, len: usize, home: Home, fits: impl Fn(usize) -> bool) -> Result<Segment> {
        let wanted = || format!("{} of shared memory of another rank for {what}", Bytes(count(len)));
        let refused = |error: Errno| Error::resource(wanted(), error, hint(error));
        let actual = Segment::size_of(&fd).map_err(refused)?;
        let seals = fcntl_get_seals(&fd).map_err(refused)?;
        if !fits(actual) || !seals.contains(SealFlags::SHRINK) {
            return Err(Error::resource(
                wanted(),
                format!("{} with seals {seals:?}", Bytes(count(actual))),
                "see that all ranks run the same version",
            ));
        }
        Segment::map(&fd, len, home, ProtFlags::READ | ProtFlags::WRITE).map_err(refused)
    }

    /// Maps a segment that another process made, however long it is, for reading only: [`at`](Self::at) is not for it. A core
    /// dump leaves it to its owner.
    ///
    /// # Errors
    /// [`Error::Resource`] if it cannot be mapped, is not sealed, or has no bytes.
    pub(crate) fn attach_for_reading(what: &str, fd: impl AsFd, home: Home) -> Result<Segment> {
        let refused = |error: Errno| Error::resource(format!("a view of {what}"), error, hint(error));
        let len = Segment::size_of(&fd).map_err(refused)?;
        let seals = fcntl_get_seals(&fd).map_err(refused)?;
        if len == 0 || isize::try_from(len).is_err() || !seals.contains(SealFlags::SHRINK) {
            let got = format!("{} with seals {seals:?}", Bytes(count(len)));
            return Err(Error::resource(format!("a view of {what}"), got, "see that all ranks run the same version"));
        }
        let segment = Segment::map(&fd, len, home, ProtFlags::READ).map_err(refused)?;
        // SAFETY: the range is this new mapping, which nobody else knows; the advice changes no content.
        unsafe { madvise(segment.base.as_ptr().cast(), len, Advice::LinuxDontDump) }.map_err(refused)?;
        Ok(segment)
    }

    /// Maps a segment of another job, to look at it: what is mapped cannot be written.
    ///
    /// # Errors
    /// If it cannot be mapped, or could shrink.
    pub(crate) fn view(fd: impl AsFd, home: Home) -> rustix::io::Result<Segment> {
        let len = Segment::size_of(&fd)?;
        if len < VIEWED_BYTES || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(Errno::INVAL);
        }
        Segment::map(&fd, len, home, ProtFlags::READ)
    }

    /// The size of the segment behind a descriptor.
    pub(crate) fn size_of(fd: impl AsFd) -> rustix::io::Result<usize> {
        usize::try_from(fstat(fd)?.st_size).map_err(|_| Errno::OVERFLOW)
    }

    fn map(fd: impl AsFd, len: usize, home: Home, access: ProtFlags) -> rustix::io::Result<Segment> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(core::ptr::null_mut(), len, access, flags, fd, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let segment = Segment { base, len, home };
        // SAFETY: the range is this new mapping, which nobody else knows; the advice changes no content.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(segment)
    }

    /// Bytes of the segment.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is mapped in this process.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The shared value at an offset.
    ///
    /// # Panics
    /// If it is not wholly inside the segment, or not aligned.
    #[inline]
    pub(crate) fn at<T: Shared>(&self, offset: usize) -> &T {
        let inside = self.len.checked_sub(size_of::<T>()).is_some_and(|last| offset <= last);
        assert!(
            inside && offset.is_multiple_of(align_of::<T>()),
            "offset {offset} of {} is not a place for a value",
            self.len
        );
        // SAFETY: the offset is inside the mapping, as checked above.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: inside the mapping and aligned (checked above; the base is page-aligned), any bytes are a `T`, and its
        // fields are atomics, so that writes by anybody at any time are allowed. The mapping lives as long as `self`.
        unsafe { place.cast::<T>().as_ref() }
    }

    /// The shared value at an offset that the caller has bounded.
    ///
    /// # Safety
    /// The value must lie wholly inside the segment and be aligned.
    #[inline]
    pub(crate) unsafe fn at_unchecked<T: Shared>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: inside the mapping, by the caller's word.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: inside and aligned by the caller's word; the rest as in `at`.
        unsafe { place.cast::<T>().as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A forked child does not have the mapping; something else may be at that address.
        if self.home.is_here() {
            // SAFETY: the mapping was made by `map` and all references into it borrow from `self`.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

fn memory_file() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where the administrator forbids executable memory files, this flag is required; older kernels do not know it.
    match memfd_create(c"foldcast", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(c"foldcast", flags),
        made => made,
    }
}

fn hint(error: Errno) -> &'static str {
    match error {
        Errno::MFILE | Errno::NFILE => "raise the limit on open files with `ulimit -n`",
        Errno::NOMEM => {
            "raise the limit on address space (`ulimit -v`) or on mappings (vm.max_map_count), or use fewer ranks"
        }
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => "let the container's system call filter allow memfd_create",
        _ => "see the limits of this process with `ulimit -a`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::primitive::Ordering;

    #[test]
    fn both_mappings_are_the_same_memory() {
        let home = Home::here().unwrap();
        let (made, fd) = Segment::create("test", 8192, home).unwrap();
        let attached = Segment::attach("test", &fd, 8192, home).unwrap();
        made.at::<AtomicU64>(8184).store(7, Ordering::Relaxed);
        assert_eq!(attached.at::<AtomicU64>(8184).load(Ordering::Relaxed), 7);
        drop(made);
        assert_eq!(attached.at::<AtomicU64>(8184).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn nobody_can_take_pages_away() {
        let (_, fd) = Segment::create("test", 8192, Home::here().unwrap()).unwrap();
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 16384), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let home = Home::here().unwrap();
        let unsealed = memory_file().unwrap();
        ftruncate(&unsealed, 8192).unwrap();
        assert!(Segment::attach("test", &unsealed, 8192, home).is_err());
        let (_, other_size) = Segment::create("test", 4096, home).unwrap();
        assert!(Segment::attach("test", &other_size, 8192, home).is_err());
        assert!(Segment::attach_start("test", &other_size, 8192, home).is_err());
        assert!(Segment::attach_start("test", &other_size, 4096, home).is_ok());
    }

    #[test]
    fn a_segment_costs_nothing_until_it_is_touched() {
        let (segment, fd) = Segment::create("test", 1 << 30, Home::here().unwrap()).unwrap();
        segment.at::<AtomicU64>(1 << 29).store(1, Ordering::Relaxed);
        assert_eq!(fstat(&fd).unwrap().st_blocks, 8, "one page of 512-byte blocks");
    }

    #[test]
    #[should_panic(expected = "is not a place")]
    fn offsets_are_bounded() {
        let (segment, _) = Segment::create("test", 4096, Home::here().unwrap()).unwrap();
        let _ = segment.at::<AtomicU64>(4089);
    }
}
