//! TensorFlow's status objects, and the errors that this library makes of the engine's.

use core::ffi::{CStr, c_int};
use std::borrow::Cow;
use std::ffi::CString;

use table::Code;

use crate::api::{RawStatus, api};

/// The status codes of TensorFlow that this library uses. Never `UNAVAILABLE`: TensorFlow takes that for a fault of its
/// own network and rewrites the message. `ABORTED` is for a death alone: a MonitoredSession takes it for a lost worker, makes a new
/// session and runs the step again. What that finds, a group that is over and stays so until the program shrinks it or makes
/// another, is `FAILED_PRECONDITION`, with which the session ends: else it would begin anew for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum StatusCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Internal = 13,
}

impl StatusCode {
    #[allow(clippy::as_conversions, reason = "a fieldless repr(i32) enum")]
    fn raw(self) -> c_int {
        self as c_int
    }

    /// The status for a call that ended with this code of the table; `None` for success.
    pub(crate) fn of_call(code: u32) -> Option<StatusCode> {
        #[allow(clippy::as_conversions, reason = "a fieldless repr(u32) enum")]
        const CODES: [(u32, StatusCode); 9] = [
            (Code::InvalidArgument as u32, StatusCode::InvalidArgument),
            (Code::NotInGroup as u32, StatusCode::InvalidArgument),
            (Code::Mismatch as u32, StatusCode::InvalidArgument),
            (Code::RankDied as u32, StatusCode::Aborted),
            (Code::Deadline as u32, StatusCode::DeadlineExceeded),
            (Code::GroupAborted as u32, StatusCode::FailedPrecondition),
            (Code::ForkedProcess as u32, StatusCode::FailedPrecondition),
            (Code::Closed as u32, StatusCode::FailedPrecondition),
            (Code::Resource as u32, StatusCode::ResourceExhausted),
        ];
        if code == 0 {
            return None;
        }
        let known = CODES.iter().find(|(known, _)| *known == code);
        Some(known.map_or(StatusCode::Internal, |(_, status)| *status))
    }
}

/// Why a kernel could not be made, or a call of it failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn invalid(message: String) -> Failure {
        Failure { code: StatusCode::InvalidArgument, message }
    }
}

/// An owned `TF_Status`.
pub(crate) struct Status {
    raw: *mut RawStatus,
}

impl Status {
    /// A status that says success.
    pub(crate) fn new() -> Status {
        // SAFETY: TF_NewStatus has no preconditions.
        let raw = unsafe { (api().TF_NewStatus)() };
        Status { raw }
    }

    /// A status that says this failure.
    pub(crate) fn of(failure: &Failure) -> Status {
        let status = Status::new();
        let message = c_string(&failure.message);
        // SAFETY: `raw` is a live status that only this function knows, and the message a valid C string.
        unsafe { (api().TF_SetStatus)(status.raw, failure.code.raw(), message.as_ptr()) };
        status
    }

    /// For TensorFlow's functions, which write it.
    pub(crate) fn as_ptr(&self) -> *mut RawStatus {
        self.raw
    }

    /// What TensorFlow said, if it was an error.
    pub(crate) fn error(&self) -> Option<Cow<'_, str>> {
        // SAFETY: `raw` is a live status.
        if unsafe { (api().TF_GetCode)(self.raw) } == 0 {
            return None;
        }
        // SAFETY: `raw` is a live status.
        let message = unsafe { (api().TF_Message)(self.raw) };
        // SAFETY: the message is a C string that lives as long as the status is not written, and nobody can write it
        // while the result borrows `self`: this library writes a status only through TensorFlow's functions, between
        // calls of this one.
        Some(unsafe { CStr::from_ptr(message) }.to_string_lossy())
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live status that this value owns, and nothing uses it afterwards.
        unsafe { (api().TF_DeleteStatus)(self.raw) };
    }
}

/// The text as a C string; a zero byte in it, which no C string can hold, becomes a space.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("there is no zero byte left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::as_conversions, reason = "a fieldless repr(u32) enum")]
    fn every_code_of_the_table_has_its_status() {
        let expected = [
            (Code::InvalidArgument, StatusCode::InvalidArgument),
            (Code::NotInGroup, StatusCode::InvalidArgument),
            (Code::Mismatch, StatusCode::InvalidArgument),
            (Code::RankDied, StatusCode::Aborted),
            (Code::Deadline, StatusCode::DeadlineExceeded),
            (Code::GroupAborted, StatusCode::FailedPrecondition),
            (Code::ForkedProcess, StatusCode::FailedPrecondition),
            (Code::Closed, StatusCode::FailedPrecondition),
            (Code::Resource, StatusCode::ResourceExhausted),
        ];
        for (code, status) in expected {
            assert_eq!(StatusCode::of_call(code as u32), Some(status), "{code:?}");
        }
        assert_eq!(StatusCode::of_call(Code::Ok as u32), None);
        assert_eq!(StatusCode::of_call(77), Some(StatusCode::Internal));
    }

    #[test]
    fn a_zero_byte_does_not_cut_a_message() {
        assert_eq!(c_string("a\0b").as_bytes(), b"a b");
    }
}
