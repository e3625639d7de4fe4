//! Group memory: the group's first member makes it and offers it; the others ask that member's process for it.
//!
//! Nothing here waits. The asking and the serving are done by the monitor ([`crate::monitor`]); this is the desk over
//! which the other threads deal with it.

use core::fmt;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use types::error::NotInGroup;
use types::transport::Geometry;
use types::{CallSite, Error, GroupName, Rank, Result, digest};

use crate::arena;
use crate::windows::GroupWindows;
use crate::world::World;

/// Destroyed groups that are remembered, so that a late member is refused at once instead of kept waiting.
const MAX_REFUSED: usize = 4096;

/// Which group: its name, its members, and how often this name with these members was made before.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupKey {
    name: GroupName,
    ranks: Arc<[Rank]>,
    incarnation: u64,
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' of {} ranks, incarnation {}", self.name, self.ranks.len(), self.incarnation)
    }
}

impl GroupKey {
    /// A key. All members must give the same.
    ///
    /// # Panics
    /// If the ranks are none, or not sorted, or not distinct.
    #[must_use]
    pub fn new(name: GroupName, ranks: impl Into<Arc<[Rank]>>, incarnation: u64) -> GroupKey {
        let ranks = ranks.into();
        assert!(!ranks.is_empty() && ranks.is_sorted_by(|a, b| a < b), "members are some sorted ranks: {ranks:?}");
        GroupKey { name, ranks, incarnation }
    }

    /// The group's name.
    #[must_use]
    pub const fn name(&self) -> &GroupName {
        &self.name
    }

    /// The world ranks of the members, sorted.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// How often this name with these members was made before; for one that goes on where another ended, a number that
    /// stands for that one.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The key of the group of these members that goes on where this one ended. No group that is made has it: those count
    /// from 0.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn successor(&self, ranks: impl Into<Arc<[Rank]>>) -> GroupKey {
        GroupKey::new(self.name.clone(), ranks, digest(1, &self.identity().to_le_bytes()) | 1 << 63)
    }

    /// 128 bits that stand for the key between processes.
    pub(crate) fn identity(&self) -> u128 {
        let mut bytes = self.incarnation.to_le_bytes().to_vec();
        bytes.extend(self.ranks.iter().flat_map(|rank| rank.0.to_le_bytes()));
        bytes.extend(self.name.as_str().as_bytes());
        u128::from(digest(1, &bytes)) << 64 | u128::from(digest(2, &bytes))
    }

    pub(crate) fn site(&self, rank: Rank) -> CallSite {
        CallSite { rank, op: "join", tag: None, group: self.name.clone() }
    }
}

#[derive(Default)]
struct Cell {
    done: AtomicBool,
    result: Mutex<Option<Result<GroupWindows>>>,
}

impl Cell {
    fn put(&self, result: Result<GroupWindows>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.done.store(true, Ordering::Release);
    }
}

/// A group's memory, on its way. The process's door rings when it is there.
pub struct Request(Arc<Cell>);

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.is_done()).finish()
    }
}

impl Request {
    /// Whether the result is there, or was taken. One load.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.done.load(Ordering::Acquire)
    }

    /// The result, once. Never blocks.
    pub fn try_take(&self) -> Option<Result<GroupWindows>> {
        if !self.is_done() {
            return None;
        }
        self.0.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A request that the monitor is to carry out.
#[derive(Clone)]
pub(crate) enum Wish {
    /// For the memory of a group.
    Group(Ask),
    /// For the arena of a rank.
    Arena(Rank),
}

impl Wish {
    /// Whom to ask.
    pub(crate) fn host(&self) -> Rank {
        match self {
            Wish::Group(ask) => ask.host(),
            Wish::Arena(of) => *of,
        }
    }

    /// What to ask for.
    pub(crate) fn identity(&self) -> u128 {
        match self {
            Wish::Group(ask) => ask.key.identity(),
            Wish::Arena(_) => arena::IDENTITY,
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Wish::Group(ask) => ask.is_wanted(),
            Wish::Arena(_) => true,
        }
    }
}

/// A request for the memory of a group.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) key: GroupKey,
    pub(crate) since: Instant,
    cell: Weak<Cell>,
}

impl Ask {
    /// Hands over the result, if somebody still waits for it.
    pub(crate) fn answer(&self, world: &World, result: Result<GroupWindows>) {
        if let Some(cell) = self.cell.upgrade() {
            cell.put(result);
            world.ring_own();
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(key: GroupKey) -> Ask {
        Ask { key, since: Instant::now(), cell: Weak::new() }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.cell.strong_count() > 0
    }

    /// The member that has the memory.
    pub(crate) fn host(&self) -> Rank {
        self.key.ranks()[0]
    }
}

struct Offer {
    memory: OwnedFd,
    waiting_for: Vec<Rank>,
}

/// What to tell a rank that asks.
pub(crate) enum Answer {
    Granted(OwnedFd),
    /// The group is gone; or could not be made, and this is why.
    Refused(Option<String>),
    NotYet,
}

/// What this process offers and wants.
#[derive(Default)]
pub(crate) struct Desk {
    offers: HashMap<u128, Offer>,
    refused: VecDeque<(u128, Option<String>)>,
    asks: Vec<Wish>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Desk({} offers, {} requests)", self.offers.len(), self.asks.len())
    }
}

impl Desk {
    pub(crate) fn take_asks(&mut self) -> Vec<Wish> {
        core::mem::take(&mut self.asks)
    }

    pub(crate) fn want_arena(&mut self, of: Rank) {
        self.asks.push(Wish::Arena(of));
    }

    /// Offers memory to these ranks.
    pub(crate) fn offer(&mut self, key: u128, memory: OwnedFd, waiting_for: Vec<Rank>) {
        if !waiting_for.is_empty() {
            self.offers.insert(key, Offer { memory, waiting_for });
        }
    }

    /// What to tell a member that asks for the memory of group `key`.
    pub(crate) fn answer(&mut self, key: u128) -> rustix::io::Result<Answer> {
        let Some(offer) = self.offers.get_mut(&key) else {
            let refused = self.refused.iter().find(|(refused, _)| *refused == key);
            return Ok(refused.map_or(Answer::NotYet, |(_, why)| Answer::Refused(why.clone())));
        };
        let memory = rustix::io::fcntl_dupfd_cloexec(&offer.memory, 0)?;
        Ok(Answer::Granted(memory))
    }

    fn refuse(&mut self, key: u128, why: Option<String>) {
        self.offers.remove(&key);
        if self.refused.len() >= MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back((key, why));
    }

    /// Notes that `rank` has got the memory. The descriptor is closed when everybody has.
    pub(crate) fn served(&mut self, key: u128, rank: Rank) {
        if let Some(offer) = self.offers.get_mut(&key) {
            offer.waiting_for.retain(|waiting| *waiting != rank);
            if offer.waiting_for.is_empty() {
                self.offers.remove(&key);
            }
        }
    }
}

impl World {
    /// Asks for the memory of a group that this rank is a member of. Never blocks: the group's first member makes the
    /// memory here and now, for `lanes` lanes, and offers it, with `settings`, to the others; these get it from that member's process through the
    /// monitor of both, as soon as that member asks too. A request that is dropped is forgotten.
    ///
    /// The result is an error if the first member's process ends or leaves ([`Error::RankDied`]) or has destroyed the group
    /// ([`Error::Closed`]), if memory or descriptors cannot be had ([`Error::Resource`]), in a forked child, and for
    /// others than members.
    ///
    /// What others than the first member give as `lanes` and `settings` has no effect; nor have more lanes than
    /// [fit](Geometry::lanes).
    #[must_use]
    pub fn request_group(self: &Arc<World>, key: GroupKey, lanes: usize, settings: &[u8]) -> Request {
        let cell = Arc::new(Cell::default());
        if let Err(error) = self.may_join(&key) {
            cell.put(Err(error));
        } else if key.ranks()[0] == self.rank() {
            cell.put(self.offer_group(&key, lanes, settings));
        } else {
            let ask = Ask { key, since: Instant::now(), cell: Arc::downgrade(&cell) };
            self.desk().asks.push(Wish::Group(ask));
            self.ring_bell();
        }
        Request(cell)
    }

    fn may_join(&self, key: &GroupKey) -> Result<()> {
        self.home().check()?;
        if key.ranks().last().is_none_or(|last| last.index() >= self.size()) {
            return Err(Error::invalid("ranks", format!("ranks below {}", self.size()), format!("{:?}", key.ranks())));
        }
        if !key.ranks().contains(&self.rank()) {
            return Err(Error::NotInGroup(Box::new(NotInGroup {
                rank: self.rank(),
                op: "join",
                group: key.name().clone(),
                members: Some(key.ranks().to_vec()),
                known: Vec::new(),
            })));
        }
        Ok(())
    }

    fn offer_group(self: &Arc<World>, key: &GroupKey, lanes: usize, settings: &[u8]) -> Result<GroupWindows> {
        let identity = key.identity();
        let geometry = Geometry::of(key.ranks().len());
        let made = GroupWindows::create(self, key, geometry, geometry.lanes(lanes), settings);
        let waiting_for: Vec<Rank> = key.ranks().iter().copied().filter(|rank| *rank != self.rank()).collect();
        if waiting_for.is_empty() {
            return made.map(|(windows, _)| windows);
        }
        let mut desk = self.desk();
        desk.refused.retain(|(refused, _)| *refused != identity);
        let windows = match made {
            Ok((windows, memory)) => {
                desk.offer(identity, memory, waiting_for);
                Ok(windows)
            }
            Err(error) => {
                desk.refuse(identity, Some(error.to_string()));
                Err(error)
            }
        };
        drop(desk);
        self.ring_bell();
        windows
    }

    /// Refuses the memory of a group to all members, those included that have asked already: its first member has destroyed the
    /// group before it made any. On other members it has no effect.
    pub fn refuse_group(&self, key: &GroupKey) {
        if self.home().is_here() && key.ranks()[0] == self.rank() {
            self.desk().refuse(key.identity(), None);
            self.ring_bell();
        }
    }

    /// Refuses the group's memory to members that have not asked yet: its first member has destroyed it.
    pub(crate) fn withdraw(&self, key: &GroupKey) {
        if !self.home().is_here() {
            return;
        }
        let identity = key.identity();
        let mut desk = self.desk();
        if desk.offers.contains_key(&identity) {
            desk.refuse(identity, None);
            drop(desk);
            self.ring_bell();
        }
    }
}
