//! A group whose ranks live in one thread, over simulated memory in which all see at once what is published, and in which a
//! race is a panic.

use std::rc::Rc;

use sim::{Areas, Host};
pub(crate) use sim::{Memory, Random, SimWindows};
use types::transport::Geometry;
use types::{GroupName, Rank};

/// Into how many lanes large unnamed calls are cut.
pub(crate) const LANES: usize = 3;

/// The memory of a group of all ranks.
pub(crate) fn memory(geometry: Geometry) -> Rc<Memory> {
    let members = (0..geometry.ranks).collect();
    Memory::new(Areas { geometry, lanes: LANES, ring: 8, members, immediate: true }, &Host::new(geometry.ranks))
}

/// The group as one rank sees it, for messages. World ranks are ten times the group's, so that a mix-up shows.
pub(crate) fn view(rank: usize, ranks: usize) -> foldcast_engine::View {
    let world = |index: usize| Rank::from_index(10 * index);
    foldcast_engine::View {
        rank: world(rank),
        ranks: (0..ranks).map(world).collect(),
        group: GroupName::new("test").expect("a name"),
    }
}
