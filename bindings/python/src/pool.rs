//! Memory of results, used again.
//!
//! Fresh memory costs more than the allreduce that fills it: the kernel clears each page when it is touched first. So the
//! memory of a large result that nobody holds any more is kept for the next one of about the same size, within limits of number and
//! bytes: what has been idle longest is given back first, and all of it by `shutdown`.
//!
//! An array over such memory has a [`Memory`] as its base: numpy keeps that alive with the array and every view of it, and
//! Python drops it, on whichever thread, when the last of them has gone. Only then is the memory anybody else's.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Mutex, TryLockError};

use numpy::npyffi::{self, PY_ARRAY_API};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

/// Smaller results are numpy's own: its allocator is as good for them.
pub(crate) const LEAST_BYTES: usize = 64 << 10;
/// Idle pieces that are kept at most.
const MOST_PIECES: usize = 64;
/// Results begin on a cache line.
const ALIGN: usize = 64;

/// Memory of some size class that is this value's own.
struct Piece {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, and nothing of it belongs to a thread.
unsafe impl Send for Piece {}
// SAFETY: a shared reference gives the address and the size, and no access to the memory.
unsafe impl Sync for Piece {}

impl Piece {
    /// `None` if there is no memory.
    fn new(layout: Layout) -> Option<Piece> {
        // SAFETY: the layout is of at least `LEAST_BYTES` bytes (`class`).
        let start = unsafe { std::alloc::alloc(layout) };
        Some(Piece { start: NonNull::new(start)?, layout })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and freed nowhere else.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The size class of a result: an eighth of a power of two at most is lost. `None` if no memory has this size.
fn class(bytes: usize) -> Option<Layout> {
    let bytes = bytes.max(LEAST_BYTES);
    let step = 1 << (bytes.ilog2() - 3);
    Layout::from_size_align(bytes.checked_next_multiple_of(step)?, ALIGN).ok()
}

struct Pool {
    /// The longest idle first.
    idle: VecDeque<Piece>,
    idle_bytes: usize,
    /// How many bytes may be idle; 0 outside of `init` and `shutdown`.
    limit: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: VecDeque::new(), idle_bytes: 0, limit: 0 });

/// Does something with the pool. `None` if another thread has it, which the GIL prevents: but in a forked child it may be had
/// by a thread that is not there, for which nobody must wait.
fn with_pool<T>(use_it: impl FnOnce(&mut Pool) -> T) -> Option<T> {
    match POOL.try_lock() {
        Ok(mut pool) => Some(use_it(&mut pool)),
        Err(TryLockError::Poisoned(pool)) => Some(use_it(&mut pool.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Pool {
    /// The piece of this class that was used last, whose lines are most likely in the cache.
    fn take(&mut self, layout: Layout) -> Option<Piece> {
        let at = self.idle.iter().rposition(|piece| piece.layout == layout)?;
        self.idle_bytes -= layout.size();
        self.idle.remove(at)
    }

    /// Keeps a piece if it fits the limits, and gives others back that do not fit any more.
    fn put(&mut self, piece: Piece) {
        if piece.layout.size() > self.limit {
            return;
        }
        self.idle_bytes += piece.layout.size();
        self.idle.push_back(piece);
        self.trim();
    }

    fn trim(&mut self) {
        while self.idle_bytes > self.limit || self.idle.len() > MOST_PIECES {
            let Some(piece) = self.idle.pop_front() else { return };
            self.idle_bytes -= piece.layout.size();
        }
    }
}

/// Keeps at most so many idle bytes from now on; 0 gives everything back that is idle.
pub(crate) fn set_limit(bytes: usize) {
    const TRIES: u32 = 10_000;
    let set = |pool: &mut Pool| {
        pool.limit = bytes;
        pool.trim();
    };
    // Without the GIL, so another thread may be at the pool, for a moment.
    for _ in 0..TRIES {
        if with_pool(set).is_some() {
            return;
        }
        std::thread::yield_now();
    }
}

/// The number of idle pieces and of their bytes.
#[pyfunction]
#[pyo3(name = "_pool")]
pub(crate) fn idle() -> (usize, usize) {
    with_pool(|pool| (pool.idle.len(), pool.idle_bytes)).unwrap_or_default()
}

/// The base of an array over memory of the pool.
#[pyclass(frozen, module = "foldcast", name = "_Memory")]
pub(crate) struct Memory(Option<Piece>);

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(piece) = self.0.take() {
            with_pool(|pool| pool.put(piece));
        }
    }
}

/// A new array in C order, which has so many bytes, over memory of the pool. `None` if there is none: numpy has better words
/// for that.
pub(crate) fn array<'py>(
    py: Python<'py>,
    dtype: &Bound<'py, PyArrayDescr>,
    extents: &[usize],
    bytes: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(layout) = class(bytes) else { return Ok(None) };
    let kept = with_pool(|pool| pool.take(layout)).flatten();
    let Some(piece) = kept.or_else(|| Piece::new(layout)) else { return Ok(None) };
    let start = piece.start.as_ptr();
    let base = Bound::new(py, Memory(Some(piece)))?;
    // SAFETY: the memory has at least as many bytes as an array of them has, and its base keeps it until the array has gone.
    unsafe { array_over(py, dtype, extents, start, base.into_any()) }.map(Some)
}

/// A new array in C order over this memory, which `base` keeps.
///
/// # Safety
/// From `start` on there are as many bytes as the array has, as long as `base` lives, and nobody else reads or writes them.
pub(crate) unsafe fn array_over<'py>(
    py: Python<'py>,
    dtype: &Bound<'py, PyArrayDescr>,
    extents: &[usize],
    start: *mut u8,
    base: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let ndim =
        i32::try_from(extents.len()).map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    let dims = extents.as_ptr().cast_mut().cast();
    let descr = dtype.clone().into_dtype_ptr();
    // SAFETY: the GIL is held; numpy's own array type.
    let kind = unsafe { PY_ARRAY_API.get_type_object(py, npyffi::NpyTypes::PyArray_Type) };
    let (strides, flags, none) = (std::ptr::null_mut(), npyffi::NPY_ARRAY_CARRAY, std::ptr::null_mut());
    // SAFETY: `dims` are `ndim` extents that numpy only reads; the reference to the dtype is ours to give away; the memory is
    // what the caller promises, and its base, set below, keeps it until the array has gone.
    let made =
        unsafe { PY_ARRAY_API.PyArray_NewFromDescr(py, kind, descr, ndim, dims, strides, start.cast(), flags, none) };
    // SAFETY: a new reference, or null with Python's error set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: a live array without a base, and a reference that is ours to give away.
    let status = unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, made.as_ptr().cast(), base.into_ptr()) };
    if status == 0 { Ok(made) } else { Err(PyErr::fetch(py)) }
}
