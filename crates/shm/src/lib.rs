//! shm
pub mod launcher;
