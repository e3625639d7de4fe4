//! What the kernels of broadcast and allgather share.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use table::{Common, Moves};

use crate::api::RawConstruction;
use crate::attach;
use crate::attributes::{Attributes, Kind};
use crate::counters::{self, add_one};
use crate::kernel::{self, unattached};
use crate::status::{Failure, StatusCode};
use crate::tag::Base;
use crate::unnamed::Turn;

/// Makes the kernel object, or tells TensorFlow why not and returns null. `kernel::delete` ends it.
///
/// # Safety
/// `construction` is alive during the call.
pub(crate) unsafe fn create(construction: *mut RawConstruction, kind: Kind) -> *mut c_void {
    // SAFETY: as the caller promises.
    let Some(attributes) = (unsafe { kernel::attributes_of(construction, kind) }) else { return ptr::null_mut() };
    add_one(&counters::KERNELS_CREATED);
    Arc::into_raw(attributes).cast_mut().cast()
}

/// A share of the kernel object of our own: the engine may end the call, and TensorFlow then the kernel, before the
/// function that submits it has returned.
///
/// # Safety
/// `kernel` came from [`create`] and has not been deleted.
pub(crate) unsafe fn share(kernel: *mut c_void) -> Arc<Attributes> {
    let kernel = kernel.cast_const().cast::<Attributes>();
    // SAFETY: `create` made the pointer from an `Arc` that lives until `delete`.
    unsafe { Arc::increment_strong_count(kernel) };
    // SAFETY: the line above counted this share.
    unsafe { Arc::from_raw(kernel) }
}

/// The engine's functions, and the right to be inside an unnamed call, if this is one.
pub(crate) fn enter(attributes: &Arc<Attributes>) -> Result<(&'static Moves, Option<Turn>), Failure> {
    let table = attach::table().ok_or_else(unattached)?;
    let moves = table.moves.ok_or_else(|| Failure {
        code: StatusCode::FailedPrecondition,
        message: format!("the engine that is attached to the op library has no {}", attributes.kind.verb()),
    })?;
    let turn = (attributes.tag == Base::Unnamed).then(|| Turn::enter(attributes)).transpose()?;
    Ok((moves, turn))
}

/// The part that both calls have; valid while group and tag are.
pub(crate) fn common(
    attributes: &Attributes,
    tag: &str,
    user: *mut c_void,
    done: unsafe extern "C" fn(*mut c_void, u32, *const u8, usize),
) -> Common {
    Common {
        group: attributes.group.as_ptr(),
        group_len: attributes.group.len(),
        tag: tag.as_ptr(),
        tag_len: tag.len(),
        user,
        done,
    }
}
