//! Calls of lists.

use std::sync::Arc;

use foldcast::{OwnedBuffers, Result};
use table::{ListCall, Member};

use super::{Borrowed, Reply, Site, text};

/// [`Table::submit_list`](table::Table::submit_list).
///
/// # Safety
/// As [`Table::submit_list`](table::Table::submit_list) says.
pub(super) unsafe extern "C" fn submit(call: *const ListCall) {
    // SAFETY: the caller gives a valid call, which lives until this returns.
    let call = unsafe { &*call };
    // The two ends of the reply: one for the engine, one for a refusal, of which exactly one is used.
    let reply = || Reply { user: call.user, done: call.done };
    // SAFETY: the strings and members of the call are as its documentation says.
    if let Err(refused) = unsafe { start(call, reply()) } {
        reply().send(&Err(refused));
    }
}

/// Hands the call to the engine. If that fails, the reply was not used.
///
/// # Safety
/// As [`Table::submit_list`](table::Table::submit_list) says.
unsafe fn start(call: &ListCall, reply: Reply) -> Result<()> {
    // SAFETY: by the contract of the call.
    let site =
        unsafe { Site::read(call.dtype, call.reduction, (call.group, call.group_len), (call.tag, call.tag_len)) }?;
    // SAFETY: by the contract of the call.
    let names: Arc<str> = unsafe { text("names", call.names, call.names_len) }?.into();
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
    let done = Box::new(move |outcome, _| reply.send(&outcome));
    site.group.all_reduce_set_async(site.dtype, site.reduction, buffers, names, &site.options(), done)
}
