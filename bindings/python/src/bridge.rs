//! The table of C functions by which the TensorFlow op library reaches the engine of this process.

mod moves;

use std::ffi::c_void;

use foldcast::{Buffers, CallOptions, DataType, Error, Group, OwnedBuffers, Reduction, Result};
use pyo3::prelude::*;
use table::{Call, Code, Common, TABLE_VERSION, Table};

use crate::{state, strategies};

mod list;

#[allow(clippy::as_conversions, reason = "the size of a small struct")]
static TABLE: Table = Table {
    version: TABLE_VERSION,
    size: size_of::<Table>() as u32,
    submit,
    split: strategies::split,
    submit_list: list::submit,
    moves: &moves::MOVES,
};

/// Address of the process's `Table`, for the op library's attach function. Valid until the process ends.
#[pyfunction]
pub(crate) fn table_address() -> usize {
    std::ptr::from_ref(&TABLE).addr()
}

/// The memory of a call from the op library. It belongs to the caller, who keeps it until `done`.
struct Borrowed {
    input: *const u8,
    output: *mut u8,
    bytes: usize,
}

impl Borrowed {
    /// # Safety
    /// The memory is as the table's contract says.
    unsafe fn new(input: *const u8, output: *mut u8, bytes: u64) -> Result<Borrowed> {
        let bytes = usize::try_from(bytes)
            .map_err(|_| Error::invalid("tensor", "a size that fits the address space", bytes.to_string()))?;
        Ok(Borrowed { input, output, bytes })
    }
}

// SAFETY: plain addresses, used as the table's contract allows: from any thread, until `done`.
unsafe impl Send for Borrowed {}

impl OwnedBuffers for Borrowed {
    fn buffers(&mut self) -> Buffers<'_> {
        if self.bytes == 0 {
            return Buffers::InPlace(&mut []);
        }
        // SAFETY: by the table's contract the output is valid for this many bytes, and nobody else's until `done`.
        let output = unsafe { std::slice::from_raw_parts_mut(self.output, self.bytes) };
        if std::ptr::eq(self.input, self.output) {
            return Buffers::InPlace(output);
        }
        // SAFETY: by the table's contract the input is valid for this many bytes, untouched until `done`, and does
        // not overlap with the output unless it is the output.
        let input = unsafe { std::slice::from_raw_parts(self.input, self.bytes) };
        Buffers::Separate { input, output }
    }
}

/// Whom to tell how a call ended, once.
struct Reply {
    user: *mut c_void,
    done: unsafe extern "C" fn(user: *mut c_void, code: u32, message: *const u8, message_len: usize),
}

// SAFETY: by the table's contract `done` may be called with `user` on any thread.
unsafe impl Send for Reply {}

impl Reply {
    /// The reply to a call: made once for the engine and once for a refusal, of which exactly one is sent.
    fn to(common: &Common) -> Reply {
        Reply { user: common.user, done: common.done }
    }

    #[allow(clippy::as_conversions, reason = "a fieldless repr(u32) enum")]
    fn send(self, outcome: &Result<()>) {
        let (code, message) = match outcome {
            Ok(()) => (Code::Ok, String::new()),
            Err(error) => (code(error), error.to_string()),
        };
        // SAFETY: the contract of `done`: its own `user`, a code, and a text that lives through the call.
        unsafe { (self.done)(self.user, code as u32, message.as_ptr(), message.len()) };
    }
}

fn code(error: &Error) -> Code {
    match error {
        Error::InvalidArgument(_) => Code::InvalidArgument,
        Error::NotInGroup(_) => Code::NotInGroup,
        Error::Mismatch(_) => Code::Mismatch,
        Error::RankDied(_) => Code::RankDied,
        Error::Deadline(_) => Code::Deadline,
        Error::GroupAborted(_) => Code::GroupAborted,
        Error::ForkedProcess { .. } => Code::ForkedProcess,
        Error::Closed { .. } => Code::Closed,
        _ => Code::Resource,
    }
}

/// [`Table::submit`].
///
/// # Safety
/// As [`Table::submit`] says.
unsafe extern "C" fn submit(call: *const Call) {
    // SAFETY: the caller gives a valid call, which lives until this returns.
    let call = unsafe { &*call };
    // SAFETY: the call is as its documentation says.
    if let Err(refused) = unsafe { start(call) } {
        Reply::to(&call.common).send(&Err(refused));
    }
}

/// Hands the call to the engine. If that fails, the reply was not used.
///
/// # Safety
/// As [`Table::submit`] says.
unsafe fn start(call: &Call) -> Result<()> {
    // SAFETY: by the contract of the call.
    let (group, tag) = unsafe { address(&call.common, "allreduce") }?;
    let (dtype, reduction) = (data_type(call.dtype)?, reduction(call.reduction)?);
    // SAFETY: the buffer is as the contract of the call says.
    let buffers = Box::new(unsafe { Borrowed::new(call.input, call.output, call.bytes) }?);
    let reply = Reply::to(&call.common);
    let done = Box::new(move |outcome: Result<()>, _| reply.send(&outcome));
    group.all_reduce_alone_async(dtype, reduction, buffers, &options(tag), done)
}

/// Group and tag of a call.
///
/// # Safety
/// The strings are as [`Common`] says.
unsafe fn address<'a>(common: &Common, op: &'static str) -> Result<(Group, &'a str)> {
    // SAFETY: as the caller promises.
    let name = unsafe { text("group", common.group, common.group_len) }?;
    // SAFETY: as the caller promises.
    let tag = unsafe { text("name", common.tag, common.tag_len) }?;
    Ok((group_of(name, op)?, tag))
}

fn options(tag: &str) -> CallOptions<'_> {
    // TensorFlow goes on from `done` on any thread: best on its own.
    CallOptions { name: (!tag.is_empty()).then_some(tag), attended: true, ..CallOptions::default() }
}

fn data_type(code: u32) -> Result<DataType> {
    let dtype = u8::try_from(code).ok().and_then(DataType::from_code);
    dtype.ok_or_else(|| Error::invalid("dtype", "the code of a data type", code.to_string()))
}

fn reduction(code: u32) -> Result<Reduction> {
    let reduction = u8::try_from(code).ok().and_then(Reduction::from_code);
    reduction.ok_or_else(|| Error::invalid("reduction", "the code of a reduction", code.to_string()))
}

/// The group of this name, for a call of `op`.
fn group_of(name: &str, op: &'static str) -> Result<Group> {
    let state = state::current().ok_or_else(|| Error::Closed {
        what: "the engine (foldcast.init() was not called in this process, so it)".into(),
    })?;
    state.group(name, op)
}

/// # Safety
/// `start` is null, or `len` bytes are readable there for `'a`.
unsafe fn text<'a>(field: &str, start: *const u8, len: usize) -> Result<&'a str> {
    if start.is_null() || len == 0 {
        return Ok("");
    }
    // SAFETY: not null, and readable as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    std::str::from_utf8(bytes).map_err(|_| Error::invalid(field, "UTF-8", format!("{bytes:?}")))
}
