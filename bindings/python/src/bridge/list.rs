//! Calls of lists.

use std::sync::Arc;

use foldcast::{CallOptions, Claims, OwnedBuffers, Result};
use table::{ListCall, Member};

use super::{Borrowed, Reply, address, data_type, options, reduction, text};

/// [`Table::submit_list`](table::Table::submit_list).
///
/// # Safety
/// As [`Table::submit_list`](table::Table::submit_list) says.
pub(super) unsafe extern "C" fn submit(call: *const ListCall) {
    // SAFETY: the caller gives a valid call, which lives until this returns.
    let call = unsafe { &*call };
    // SAFETY: the strings and members of the call are as its documentation says.
    if let Err(refused) = unsafe { start(call) } {
        Reply::to(&call.common).send(&Err(refused));
    }
}

/// Hands the call to the engine. If that fails, the reply was not used.
///
/// # Safety
/// As [`Table::submit_list`](table::Table::submit_list) says.
unsafe fn start(call: &ListCall) -> Result<()> {
    // SAFETY: by the contract of the call.
    let (group, tag) = unsafe { address(&call.common, "allreduce") }?;
    let (dtype, reduction) = (data_type(call.dtype)?, reduction(call.reduction)?);
    // SAFETY: by the contract of the call.
    let names: Arc<str> = unsafe { text("names", call.names, call.names_len) }?.into();
    // SAFETY: by the contract of the call.
    let alone = unsafe { text("alone", call.alone, call.alone_len) }?;
    // SAFETY: by the contract of the call.
    let suffix = unsafe { text("suffix", call.suffix, call.suffix_len) }?;
    let claims = Claims::new(alone, suffix);
    let members: &[Member] = if call.count == 0 {
        &[]
    } else {
        // SAFETY: by the contract of the call as many members are there, until this returns.
        unsafe { std::slice::from_raw_parts(call.members, call.count) }
    };
    let borrowed = |member: &Member| -> Result<Box<dyn OwnedBuffers>> {
        // SAFETY: the buffer is as the contract of the call says.
        Ok(Box::new(unsafe { Borrowed::new(member.input, member.output, member.bytes) }?))
    };
    let buffers = members.iter().map(borrowed).collect::<Result<Vec<_>>>()?;
    let reply = Reply::to(&call.common);
    let done = Box::new(move |outcome, _| reply.send(&outcome));
    let options = CallOptions { claims: claims.as_ref(), ..options(tag) };
    group.all_reduce_set_async(dtype, reduction, buffers, names, &options, done)
}
