//! System calls that a signal may interrupt.

use rustix::io::{Errno, Result};

/// Repeats a system call that a signal interrupted. Only for calls that do not wait.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
