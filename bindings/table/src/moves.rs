//! The functions that move bytes and change none: broadcast and allgather.

use core::ffi::c_void;

use crate::Common;

/// The functions for broadcast and allgather. Lives as long as the process. Both never block; [`Common::done`] runs exactly
/// once, on any thread, possibly before the function returns; until then inputs and outputs stay valid and untouched by the
/// caller. Structs, lists and strings are read only before the function returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Submits the broadcast of a list of buffers: one call to all others.
    ///
    /// # Safety
    /// The pointers are as [`Broadcast`] says.
    pub broadcast: unsafe extern "C" fn(call: *const Broadcast),
    /// Submits one allgather.
    ///
    /// # Safety
    /// The pointers are as [`AllGather`] says.
    pub all_gather: unsafe extern "C" fn(call: *const AllGather),
}

/// One broadcast.
#[repr(C)]
#[derive(Debug)]
pub struct Broadcast {
    /// Group, tag and whom to tell.
    pub common: Common,
    /// Whose bytes all get: a rank in the group.
    pub root: u64,
    /// The buffers.
    pub buffers: *const Buffer,
    /// Their number.
    pub count: usize,
}

/// One of the buffers of a broadcast.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Data type code: `foldcast::DataType::code`.
    pub dtype: u32,
    /// This rank's bytes, which only the root's call moves. May be null if `bytes` is 0.
    pub input: *const u8,
    /// Where the root's bytes go: equal to `input` or not overlapping with it. May be null if `bytes` is 0.
    pub output: *mut u8,
    /// Size of the input, and of the output, in bytes.
    pub bytes: u64,
}

/// One allgather. Contributions consist of rows of one size.
#[repr(C)]
#[derive(Debug)]
pub struct AllGather {
    /// Group, tag and whom to tell.
    pub common: Common,
    /// Data type code: `foldcast::DataType::code`.
    pub dtype: u32,
    /// 0 if all ranks contribute the same number of rows; else the numbers are exchanged first.
    pub unequal: u32,
    /// How many ranks the caller takes the group to have; 0 if it takes any number.
    pub ranks: u64,
    /// This rank's rows.
    pub rows: u64,
    /// Elements of a row.
    pub row: u64,
    /// This rank's contribution: `rows` times `row` elements. May be null if these are 0 bytes.
    pub input: *const u8,
    /// Called once, on any thread, before `done`, with `user`, each rank's rows and the number of ranks: gives the address
    /// of room for all rows, which may be null if these are 0 bytes, by writing it to `output`. False if it cannot: `done`
    /// comes next then.
    pub place: unsafe extern "C" fn(user: *mut c_void, rows: *const u64, ranks: usize, output: *mut *mut u8) -> bool,
}
