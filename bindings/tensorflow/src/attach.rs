//! The engine's table of functions, handed over by the Python module.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use table::{TABLE_VERSION, Table};

static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// Takes the engine's table: 0 if it was accepted, 1 if there is none, 2 if its version is another one than this
/// library's, 3 if its size is. A later table replaces an earlier one.
///
/// # Safety
/// `table` is null or points to a table that lives as long as the process and is not written any more.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foldcast_tensorflow_attach(table: *const Table) -> u32 {
    if table.is_null() {
        return 1;
    }
    // SAFETY: the caller promises a table, and every version of it begins with the two numbers version and size.
    let [version, size] = unsafe { table.cast::<[u32; 2]>().read() };
    if version != TABLE_VERSION {
        return 2;
    }
    if usize::try_from(size) != Ok(size_of::<Table>()) {
        return 3;
    }
    // Release: whoever finds the pointer also finds what it points to.
    TABLE.store(table.cast_mut(), Ordering::Release);
    0
}

/// The engine's table, if it was handed over.
pub(crate) fn table() -> Option<&'static Table> {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or passed the checks of `foldcast_tensorflow_attach`, whose caller promised that
    // the table lives on and stays as it is.
    unsafe { table.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn submit(_: *const table::Call) {}

    unsafe extern "C" fn submit_list(_: *const table::ListCall) {}

    unsafe extern "C" fn split(_: *const u8, _: usize, _: *const u64, _: usize, _: *mut usize, _: usize) -> usize {
        0
    }

    unsafe extern "C" fn broadcast(_: *const table::Broadcast) {}

    unsafe extern "C" fn all_gather(_: *const table::AllGather) {}

    static MOVES: table::Moves = table::Moves { broadcast, all_gather };

    #[test]
    fn only_a_table_of_this_layout_is_accepted() {
        #[allow(clippy::as_conversions, reason = "the size of a small struct")]
        let size = size_of::<Table>() as u32;
        let good = Table { version: TABLE_VERSION, size, submit, split, submit_list, moves: &MOVES };
        let attach = |table: Option<Table>| {
            let table: *const Table = match table {
                Some(table) => Box::leak(Box::new(table)),
                None => ptr::null(),
            };
            // SAFETY: the table is null or leaked, so it lives as long as the process.
            unsafe { foldcast_tensorflow_attach(table) }
        };
        assert!(super::table().is_none());
        assert_eq!(attach(None), 1);
        assert_eq!(attach(Some(Table { version: TABLE_VERSION + 1, ..good })), 2);
        assert_eq!(attach(Some(Table { size: good.size - 8, ..good })), 3);
        assert_eq!(attach(Some(Table { size: good.size + 8, ..good })), 3);
        assert!(super::table().is_none());
        assert_eq!(attach(Some(good)), 0);
        assert!(super::table().is_some());
    }
}
