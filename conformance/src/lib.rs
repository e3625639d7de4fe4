//! Tests only: see `README.md` and `tests/cases`.
#![forbid(unsafe_code)]
