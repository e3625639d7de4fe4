//! foldcast
#![forbid(unsafe_code)]
