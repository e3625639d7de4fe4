//! The table of C functions that joins the TensorFlow op library to the one engine of the process.
//!
//! The Python module `foldcast._foldcast` owns the engine and fills a [`Table`]; the op library receives its
//! address through its exported function `foldcast_tensorflow_attach`. Nothing here has code: only the layout
//! that both sides share.
#![forbid(unsafe_code)]

mod moves;

pub use moves::{AllGather, Broadcast, Buffer, Moves};

use core::ffi::c_void;

/// Layout version: both sides refuse another one.
pub const TABLE_VERSION: u32 = 4;

/// Segments of a split strategy at most.
pub const MAX_SEGMENTS: usize = 8;

/// Name of the op library's exported function: `fn(table: *const Table) -> u32`, 0 if the table was accepted.
pub const ATTACH_SYMBOL: &str = "foldcast_tensorflow_attach";

/// The functions that the engine offers to the op library. Lives as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`TABLE_VERSION`].
    pub version: u32,
    /// Size of this struct in bytes.
    pub size: u32,
    /// Submits one allreduce. Never waits for more than a moment, some 40 us. [`Common::done`] runs exactly once, on any thread,
    /// possibly before this returns; until then input and output stay valid and untouched by the caller. The struct itself and
    /// its strings are read only before this returns.
    ///
    /// # Safety
    /// The pointers of the call must be as [`Call`] says.
    pub submit: unsafe extern "C" fn(call: *const Call),
    /// Cuts gradients into segments by the split strategy of their group.
    pub split: Split,
    /// Submits the allreduce of a list of buffers as one call; otherwise like [`submit`](Self::submit).
    ///
    /// # Safety
    /// The pointers of the call must be as [`ListCall`] says.
    pub submit_list: unsafe extern "C" fn(call: *const ListCall),
    /// Broadcast and allgather.
    pub moves: &'static Moves,
}

/// See [`Table::split`]. Arguments: the group's name, UTF-8, and its length in bytes; the sizes of the gradients in
/// bytes, and their number; where to write the segments' ends, and the room there, at least [`MAX_SEGMENTS`]. A segment's
/// end is the number of gradients in it and those before it, so that the last end is their number. Gives the number of
/// segments; 0 if the strategy is for another number of gradients, so that these are to be left alone. The same arguments
/// must give the same segments on every rank. Never blocks; called on any thread.
///
/// # Safety
/// The pointers are as said, for the time of the call.
pub type Split = unsafe extern "C" fn(
    group: *const u8,
    group_len: usize,
    sizes: *const u64,
    count: usize,
    ends: *mut usize,
    room: usize,
) -> usize;

/// What every call has.
#[repr(C)]
#[derive(Debug)]
pub struct Common {
    /// Name of the group: UTF-8, not terminated.
    pub group: *const u8,
    /// Length of the group's name in bytes.
    pub group_len: usize,
    /// What calls of different ranks are matched by: UTF-8, not terminated.
    pub tag: *const u8,
    /// Length of the tag in bytes; 0 for an unnamed call, matched by its number.
    pub tag_len: usize,
    /// Handed to the callbacks.
    pub user: *mut c_void,
    /// Called once when the call has ended. `code` is a [`Code`]; `message` is UTF-8 of `message_len` bytes, valid
    /// during the call only. No engine lock is held: it may submit again.
    pub done: unsafe extern "C" fn(user: *mut c_void, code: u32, message: *const u8, message_len: usize),
}

/// One allreduce.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// Group, tag and whom to tell.
    pub common: Common,
    /// Data type code: `foldcast::DataType::code`.
    pub dtype: u32,
    /// Reduction code: `foldcast::Reduction::code`.
    pub reduction: u32,
    /// This rank's contribution. May be null if `bytes` is 0.
    pub input: *const u8,
    /// Where the result goes: equal to `input` or not overlapping with it. May be null if `bytes` is 0.
    pub output: *mut u8,
    /// Size of the input, and of the output, in bytes.
    pub bytes: u64,
}

/// The allreduce of a list of buffers: of one data type, by one reduction, as one call.
#[repr(C)]
#[derive(Debug)]
pub struct ListCall {
    /// Group, tag and whom to tell.
    pub common: Common,
    /// As in [`Call`].
    pub dtype: u32,
    /// As in [`Call`].
    pub reduction: u32,
    /// What the buffers are called, one a line: UTF-8, not terminated. The ranks must agree on it; errors use it.
    pub names: *const u8,
    /// Length of the names in bytes; 0 if the buffers have none.
    pub names_len: usize,
    /// The tags that single calls have on a rank that does not put together what this call, and those beside it, do: one a
    /// line, UTF-8, not terminated.
    pub alone: *const u8,
    /// Length of these tags in bytes; 0 if there are none.
    pub alone_len: usize,
    /// What follows each of these tags: UTF-8, not terminated.
    pub suffix: *const u8,
    /// Length of the suffix in bytes.
    pub suffix_len: usize,
    /// The buffers, in the order that all ranks have; read only before `submit_list` returns.
    pub members: *const Member,
    /// Number of buffers.
    pub count: usize,
}

/// One buffer of a [`ListCall`]: see the fields of the same names in [`Call`]. Its output overlaps with no other buffer of
/// the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// This rank's contribution.
    pub input: *const u8,
    /// Where the result goes.
    pub output: *mut u8,
    /// Size of each in bytes.
    pub bytes: u64,
}

/// How a call ended: one code for each error class.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The result is there.
    Ok = 0,
    /// An argument is wrong.
    InvalidArgument = 1,
    /// This rank is not in the group.
    NotInGroup = 2,
    /// The ranks called with different things.
    Mismatch = 3,
    /// A rank died.
    RankDied = 4,
    /// The deadline passed.
    Deadline = 5,
    /// The group's epoch is over.
    GroupAborted = 6,
    /// The process is a forked child.
    ForkedProcess = 7,
    /// The communicator was shut down.
    Closed = 8,
    /// The system refused memory, descriptors or threads.
    Resource = 9,
}
