//! Named calls meet by name, whatever the order in which the ranks submit them.
//!
//! Each rank announces its submissions in a list of its own. Group rank 0 reads all lists and publishes, as one order
//! for all, what **every** rank has announced; each rank runs its named calls in that order. A name that is used again
//! is another call: the identity is made of the name and of how often the rank has used it before. An entry of the order also
//! says, for all ranks alike, whether the call is small, so that it runs beside the large ones and not behind them.

use std::collections::{HashMap, VecDeque};

use types::transport::{Announcement, Channel, Counter};
use types::{Tag, digest};

use crate::SharedWindows;

/// In an entry of the order: whether the call is small on group rank 0. Identities have no such bit.
pub(crate) const SMALL: u128 = 1;

/// How far back the lists of announcements are searched for a name.
pub(crate) const SEARCHED: u64 = 1024;

/// This rank's side of the matching; on group rank 0 also the matching itself.
#[derive(Debug, Default)]
pub struct Names {
    /// How often this rank has used a name, by the name's digest.
    uses: HashMap<u64, u64>,
    /// Submitted here, not yet in the shared list because it is full.
    backlog: VecDeque<u128>,
    /// Entries of the order that this rank has taken.
    taken: u64,
    matching: Matching,
}

/// State of group rank 0.
#[derive(Debug, Default)]
struct Matching {
    /// Announcements read, by rank.
    read: Vec<u64>,
    /// How many ranks have announced an identity.
    tally: HashMap<u128, usize>,
    /// Announced by all, not yet in the order because it is full.
    ready: VecDeque<u128>,
}

impl Names {
    /// Notes that this rank submits a call with this name, and returns the call's identity, and how often the name was used
    /// before.
    pub fn submit(&mut self, name: &str) -> (u128, u64) {
        let uses = self.uses.entry(digest(0, name.as_bytes())).or_insert(0);
        let before = *uses;
        let identity = Tag::identity(name, before) & !SMALL;
        *uses += 1;
        self.backlog.push_back(identity);
        (identity, before)
    }

    /// How often this rank has used a name.
    pub(crate) fn uses(&self, name: &str) -> u64 {
        self.uses.get(&digest(0, name.as_bytes())).copied().unwrap_or(0)
    }

    /// Announces what can be announced and, on group rank 0, publishes what all ranks have announced, with what
    /// `is_small` says of each call. Returns whether anything was published.
    pub fn progress<W: SharedWindows>(&mut self, windows: &W, is_small: &dyn Fn(u128) -> bool) -> bool {
        let mut moved = false;
        while let Some(identity) = self.backlog.front() {
            if !windows.announce(Announcement { identity: *identity }) {
                break;
            }
            self.backlog.pop_front();
            moved = true;
        }
        if windows.rank() == 0 {
            moved |= self.matching.progress(windows, is_small);
        }
        if moved {
            windows.wake();
        }
        moved
    }

    /// Whether [`progress`](Self::progress) has something to read.
    pub fn can_go_on<W: SharedWindows>(&self, windows: &W) -> bool {
        let read = |owner: usize| self.matching.read.get(owner).copied().unwrap_or(0);
        windows.rank() == 0 && (0..windows.geometry().ranks).any(|owner| windows.announced(owner) > read(owner))
    }

    /// The next call, if the order has one, and whether it is small on group rank 0.
    pub fn next<W: SharedWindows>(&self, windows: &W) -> Option<(u128, bool)> {
        windows.order(self.taken).map(|entry| (entry & !SMALL, entry & SMALL != 0))
    }

    /// Whether the order has this call, so that its turn will come.
    pub fn is_ordered<W: SharedWindows>(&self, windows: &W, identity: u128) -> bool {
        let end = windows.ordered().min(self.taken + SEARCHED);
        (self.taken..end).any(|index| windows.order(index).is_some_and(|entry| entry & !SMALL == identity))
    }

    /// Takes the next call over from the order.
    pub fn take<W: SharedWindows>(&mut self, windows: &W) {
        self.taken += 1;
        windows.publish(Channel::Named, Counter::Taken, self.taken);
    }

    /// Entries of the order that this rank has taken.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// The members that have not announced this identity, as far as the lists reach back. If all have, the order is
    /// what is missing, and group rank 0 publishes it.
    pub fn missing<W: SharedWindows>(windows: &W, identity: u128) -> Vec<usize> {
        let announced = |owner: usize| {
            let end = windows.announced(owner);
            (end.saturating_sub(SEARCHED)..end)
                .rev()
                .any(|index| windows.announcement(owner, index).is_some_and(|found| found.identity == identity))
        };
        let own = windows.rank();
        let missing: Vec<_> =
            (0..windows.geometry().ranks).filter(|owner| *owner != own && !announced(*owner)).collect();
        if missing.is_empty() && own != 0 {
            return vec![0];
        }
        missing
    }
}

impl Matching {
    fn progress<W: SharedWindows>(&mut self, windows: &W, is_small: &dyn Fn(u128) -> bool) -> bool {
        let ranks = windows.geometry().ranks;
        self.read.resize(ranks, 0);
        let mut moved = false;
        for owner in 0..ranks {
            moved |= self.read_list(windows, owner, ranks);
        }
        while let Some(identity) = self.ready.front() {
            let class = if is_small(*identity) { SMALL } else { 0 };
            if !windows.append_order(*identity | class) {
                break;
            }
            self.ready.pop_front();
            moved = true;
        }
        moved
    }

    /// Returns whether the owner may be waiting for room in its list.
    fn read_list<W: SharedWindows>(&mut self, windows: &W, owner: usize, ranks: usize) -> bool {
        let start = self.read[owner];
        // A rank cannot announce more than its list holds before we release it; a larger number is not to be trusted.
        let end = windows.announced(owner).min(start + SEARCHED);
        for index in start..end {
            let Some(Announcement { identity }) = windows.announcement(owner, index) else {
                continue;
            };
            let count = self.tally.entry(identity).or_insert(0);
            *count += 1;
            if *count == ranks {
                self.tally.remove(&identity);
                self.ready.push_back(identity);
            }
        }
        if end > start {
            self.read[owner] = end;
            windows.release_announcements(owner, end);
        }
        end - start >= SEARCHED / 2
    }
}
