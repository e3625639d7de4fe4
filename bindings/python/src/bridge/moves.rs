//! Broadcast and allgather for the op library.

use std::ffi::c_void;
use std::ptr;

use foldcast::{Buffers, DataType, Error, Group, MAX_INPUT, OwnedBuffers, Rank, Result};
use table::{AllGather, Broadcast, Buffer, Moves};

use super::{Borrowed, Reply, address, data_type, options};

pub(super) static MOVES: Moves = Moves { broadcast, all_gather };

/// [`Moves::broadcast`].
///
/// # Safety
/// As [`Moves::broadcast`] says.
unsafe extern "C" fn broadcast(call: *const Broadcast) {
    // SAFETY: the caller gives a valid call, which lives until this returns.
    let call = unsafe { &*call };
    // SAFETY: the call is as its documentation says.
    if let Err(refused) = unsafe { start_broadcast(call) } {
        Reply::to(&call.common).send(&Err(refused));
    }
}

/// [`Moves::all_gather`].
///
/// # Safety
/// As [`Moves::all_gather`] says.
unsafe extern "C" fn all_gather(call: *const AllGather) {
    // SAFETY: the caller gives a valid call, which lives until this returns.
    let call = unsafe { &*call };
    // SAFETY: the call is as its documentation says.
    if let Err(refused) = unsafe { start_all_gather(call) } {
        Reply::to(&call.common).send(&Err(refused));
    }
}

/// Hands the call to the engine. If that fails, the reply was not used.
///
/// # Safety
/// As [`Moves::broadcast`] says.
unsafe fn start_broadcast(call: &Broadcast) -> Result<()> {
    // SAFETY: by the contract of the call.
    let (group, tag) = unsafe { address(&call.common, "broadcast") }?;
    let buffers = match call.count {
        0 => &[],
        // SAFETY: by the contract of the call, that many buffers are readable there.
        count => unsafe { std::slice::from_raw_parts(call.buffers, count) },
    };
    let root = root(&group, call.root)?;
    // SAFETY: by the contract of the call.
    let list = buffers.iter().map(|buffer| unsafe { member(buffer) }).collect::<Result<Vec<_>>>()?;
    let reply = Reply::to(&call.common);
    let done = Box::new(move |outcome, _| reply.send(&outcome));
    group.broadcast_many_async(root, list, &options(tag), done)
}

/// # Safety
/// The buffer is as its documentation says.
unsafe fn member(buffer: &Buffer) -> Result<(DataType, Box<dyn OwnedBuffers>)> {
    // SAFETY: as the caller promises.
    let borrowed = unsafe { Borrowed::new(buffer.input, buffer.output, buffer.bytes) }?;
    Ok((data_type(buffer.dtype)?, Box::new(borrowed)))
}

/// # Safety
/// As [`Moves::all_gather`] says.
unsafe fn start_all_gather(call: &AllGather) -> Result<()> {
    // SAFETY: by the contract of the call.
    let (group, tag) = unsafe { address(&call.common, "allgather") }?;
    let dtype = data_type(call.dtype)?;
    let members = u64::try_from(group.size()).unwrap_or(u64::MAX);
    if call.ranks != 0 && call.ranks != members {
        let expected = format!("{members}, the number of ranks of group '{}'", group.name());
        return Err(Error::invalid("rank_size", expected, call.ranks.to_string()));
    }
    let row = size(call.row.checked_mul(u64::try_from(dtype.size()).unwrap_or(u64::MAX)), call.row)?;
    let own = size(call.rows.checked_mul(u64::try_from(row).unwrap_or(u64::MAX)), call.rows)?;
    let room = Room { input: call.input, own, row, place: call.place, user: call.common.user };
    let reply = Reply::to(&call.common);
    if call.unequal == 0 {
        let (_, buffers) = room.find(dtype, &vec![call.rows; group.size()])?;
        return group.all_gather_async(dtype, buffers, &options(tag), Box::new(move |outcome, _| reply.send(&outcome)));
    }
    let place = Box::new(move |rows: &[u64]| room.find(dtype, rows));
    let done = Box::new(move |outcome: Result<_>| reply.send(&outcome.map(|_| ())));
    group.all_gather_exchanging_async(dtype, call.rows, &options(tag), place, done)
}

/// What it takes to find room for the result of an allgather.
struct Room {
    input: *const u8,
    /// Bytes of this rank's contribution, and of a row.
    own: usize,
    row: usize,
    place: unsafe extern "C" fn(user: *mut c_void, rows: *const u64, ranks: usize, output: *mut *mut u8) -> bool,
    user: *mut c_void,
}

// SAFETY: plain addresses, used as the table's contract allows: from any thread, until `done`.
unsafe impl Send for Room {}

impl Room {
    /// Room for so many rows of each rank, and the number of elements of each rank.
    fn find(self, dtype: DataType, rows: &[u64]) -> Result<(Vec<usize>, Box<dyn OwnedBuffers>)> {
        let refused = || {
            let expected = format!("at most {MAX_INPUT} of all ranks together ({} bytes)", MAX_INPUT.0);
            Error::invalid("tensor", expected, format!("{rows:?} rows of {} bytes", self.row))
        };
        let bytes_of = |rows: &u64| usize::try_from(*rows).ok().and_then(|rows| rows.checked_mul(self.row));
        let bytes: Option<Vec<usize>> = rows.iter().map(bytes_of).collect();
        let bytes = bytes.ok_or_else(refused)?;
        let all = bytes.iter().try_fold(0_usize, |sum, bytes| sum.checked_add(*bytes));
        let all = all.filter(|all| u64::try_from(*all).is_ok_and(|all| all <= MAX_INPUT.0)).ok_or_else(refused)?;
        let mut output = ptr::null_mut();
        // SAFETY: the callback's contract: its own `user`, as many rows as said, and a place to write to.
        if !unsafe { (self.place)(self.user, rows.as_ptr(), rows.len(), &mut output) } {
            return Err(Error::resource(format!("{all} bytes for the result"), "no memory", "use smaller tensors"));
        }
        let counts = bytes.iter().map(|bytes| bytes / dtype.size()).collect();
        Ok((counts, Box::new(Gathered { input: self.input, own: self.own, output, all })))
    }
}

/// The memory of an allgather. It belongs to the caller, who keeps it until `done`.
struct Gathered {
    input: *const u8,
    own: usize,
    output: *mut u8,
    all: usize,
}

// SAFETY: plain addresses, used as the table's contract allows: from any thread, until `done`.
unsafe impl Send for Gathered {}

impl OwnedBuffers for Gathered {
    fn buffers(&mut self) -> Buffers<'_> {
        if self.all == 0 {
            return Buffers::InPlace(&mut []);
        }
        // SAFETY: by the table's contract the output is valid for all rows, and nobody else's until `done`.
        let output = unsafe { std::slice::from_raw_parts_mut(self.output, self.all) };
        if self.own == 0 {
            return Buffers::Separate { input: &[], output };
        }
        // SAFETY: by the table's contract the input is valid for this rank's rows, untouched until `done`, and does not
        // overlap with the output.
        let input = unsafe { std::slice::from_raw_parts(self.input, self.own) };
        Buffers::Separate { input, output }
    }
}

/// The rank of the world that has this rank in the group.
fn root(group: &Group, root: u64) -> Result<Rank> {
    let found = usize::try_from(root).ok().and_then(|root| group.ranks().get(root)).copied();
    found.ok_or_else(|| {
        let last = group.size().saturating_sub(1);
        let expected = format!("0 to {last}, a rank in group '{}'", group.name());
        Error::invalid("root_rank", expected, root.to_string())
    })
}

fn size(bytes: Option<u64>, of: u64) -> Result<usize> {
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| Error::invalid("tensor", "a size that fits the address space", of.to_string()))
}
