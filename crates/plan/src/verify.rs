//! The proof that plans are right.
