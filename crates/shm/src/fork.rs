//! Forked children: they have their parent's objects, but not its memory windows and not its place in the job.
//!
//! A page that the kernel wipes on fork (`MADV_WIPEONFORK`) holds a mark of the process that uses it; objects remember
//! the mark under which they were made. In a child the page is zero, or holds the child's own mark once the child makes
//! a communicator of its own: the parent's objects are recognised either way, with one load.
//!
//! What a forked child inherits and what becomes of it:
//! * Windows are `MADV_DONTFORK`: they are not there, and must be neither touched nor unmapped.
//! * Sockets, process handles and the life pipe are open in the child until it execs or exits. Its exit says nothing to
//!   peers: nobody sees the end of a stream while the parent still holds its copy. (The one effect: where process
//!   handles are not to be had and a life pipe stands in, the parent's death is seen only once such a child is gone too.)
//! * The child must never mark its parent's rank as having left: [`Home::check`] guards every such write.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use types::{Error, Result};

/// The process in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    mark: u64,
    process: u32,
}

struct Page {
    word: &'static AtomicU64,
    /// Whether the kernel wipes the page on fork; else the process id is asked for each time.
    wiped: bool,
}

static PAGE: OnceLock<Page> = OnceLock::new();
static MARKING: Mutex<()> = Mutex::new(());

impl Home {
    /// The calling process, marked as the home of what it makes from now on.
    ///
    /// # Errors
    /// [`Error::Resource`] if there is no page of memory to be had.
    pub fn here() -> Result<Home> {
        let process = std::process::id();
        let _guard = MARKING.lock().unwrap_or_else(PoisonError::into_inner);
        let page = match PAGE.get() {
            Some(page) => page,
            None => {
                let page = map_page()?;
                PAGE.get_or_init(|| page)
            }
        };
        let mut mark = page.word.load(Ordering::Relaxed);
        let inherited = !page.wiped && mark >> 32 != u64::from(process);
        if mark == 0 || inherited {
            mark = new_mark(process);
            page.word.store(mark, Ordering::Relaxed);
        }
        Ok(Home { mark, process })
    }

    /// Whether the calling process is the one that this was made in. One load.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        match PAGE.get() {
            Some(page) => {
                page.word.load(Ordering::Relaxed) == self.mark && (page.wiped || std::process::id() == self.process)
            }
            None => false,
        }
    }

    /// Refuses forked children.
    ///
    /// # Errors
    /// [`Error::ForkedProcess`] in a child of the process that this was made in.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.refusal()) }
    }

    #[cold]
    fn refusal(&self) -> Error {
        Error::ForkedProcess { parent: self.process, child: std::process::id() }
    }
}

/// A mark that no ancestor has had: the process id above (equal ids of different namespaces are told apart by the time).
fn new_mark(process: u32) -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(process) << 32 | u64::from(since.subsec_nanos()) << 1 | 1
}

fn map_page() -> Result<Page> {
    let bytes = rustix::param::page_size();
    let failed = |error: rustix::io::Errno| {
        Error::resource(
            "a page of private memory (fork mark)",
            error,
            "free some memory, or raise the limit on address space",
        )
    };
    // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps nothing.
    let page =
        unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(failed)?;
    // SAFETY: the page was mapped just now, and nobody else knows it.
    let wiped = unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }.is_ok();
    // SAFETY: the page is aligned, zeroed (a valid AtomicU64), never unmapped, and only used through this reference.
    let word = unsafe { &*page.cast::<AtomicU64>() };
    Ok(Page { word, wiped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_home() {
        let home = Home::here().unwrap();
        assert_eq!(Home::here().unwrap(), home);
        assert!(home.is_here());
        assert_eq!(home.check(), Ok(()));
    }

    #[test]
    fn another_process_is_refused() {
        let elsewhere = Home { mark: new_mark(1), process: 1 };
        assert!(!elsewhere.is_here());
        assert_eq!(elsewhere.check(), Err(Error::ForkedProcess { parent: 1, child: std::process::id() }));
    }
}
