use core::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of the group of all ranks.
pub const WORLD_GROUP: &str = "hccl_world_group";

/// The longest group name in bytes: 128 with its terminator.
pub const MAX_GROUP_NAME_BYTES: usize = 127;

/// A rank of the world, counted from 0. Always written `rank 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    #[must_use]
    #[allow(clippy::as_conversions, reason = "u32 fits usize on every target")]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank with this index.
    ///
    /// # Panics
    /// If the index does not fit 32 bits, which no world's size reaches.
    #[must_use]
    pub fn from_index(index: usize) -> Rank {
        Rank(u32::try_from(index).expect("a world has fewer than 2^32 ranks"))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// The name of a group: 1 to 127 bytes of UTF-8 without a zero byte.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// Checks and makes a name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is empty, longer than 127 bytes or holds a zero byte.
    pub fn new(name: &str) -> Result<GroupName> {
        if name.is_empty() || name.len() > MAX_GROUP_NAME_BYTES || name.contains('\0') {
            return Err(Error::invalid(
                "group",
                format!("1 to {MAX_GROUP_NAME_BYTES} bytes of UTF-8 without a zero byte"),
                format!("{} bytes: {name:?}", name.len()),
            ));
        }
        Ok(GroupName(name.into()))
    }

    /// The name of the group of all ranks, `hccl_world_group`.
    #[must_use]
    pub fn world() -> GroupName {
        GroupName(WORLD_GROUP.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the group of all ranks.
    #[must_use]
    pub fn is_world(&self) -> bool {
        &*self.0 == WORLD_GROUP
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_have_1_to_127_bytes() {
        assert!(GroupName::new("").is_err());
        assert!(GroupName::new(&"x".repeat(127)).is_ok());
        assert!(GroupName::new(&"x".repeat(128)).is_err());
        assert!(GroupName::new(&"é".repeat(63)).is_ok());
        assert!(GroupName::new(&"é".repeat(64)).is_err());
        assert!(GroupName::new("a\0b").is_err());
    }

    #[test]
    fn a_rank_is_always_written_with_its_word() {
        assert_eq!(Rank(3).to_string(), "rank 3");
    }
}
