//! All orders in which some members may look, die, learn of deaths, and run out of patience.

use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::*;

/// Some of the members, a bit each.
type Set = u8;

fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..8).filter(move |member| set & 1 << member != 0)
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Phase {
    Begins,
    In { list: Set, seat: Seat },
    Founded(Set),
    Failed { list: Set, seat: Seat },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Member {
    alive: bool,
    /// Whose deaths it knows of.
    knows: Set,
    patient: bool,
    phase: Phase,
}

impl Member {
    fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Founded(_) | Phase::Failed { .. })
    }
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Memory {
    /// By member, one more than the number of the try.
    arrived: [u64; 8],
    founded: bool,
    failures: u64,
    /// Whether the last failure was for a death.
    for_death: bool,
}

impl Memory {
    fn fail(&mut self, number: u64, for_death: bool) {
        if !self.founded && self.failures == number {
            (self.failures, self.for_death) = (number + 1, for_death);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omission {
    Nothing,
    /// Who gives up tells nobody.
    GivingUp,
    /// Nobody waits for the others.
    Arrival,
}

/// A founding's memory, as the member of a place in its list sees it.
struct View<'a> {
    memory: RefCell<&'a mut Memory>,
    list: Set,
    member: usize,
    omission: Omission,
    /// What it said to nobody.
    untold: RefCell<Option<Cause>>,
}

fn cause(death: bool) -> Cause {
    if death { Cause::RankDied { peer: Rank(0), ending: Ending::Unknown } } else { Cause::Requested { by: Rank(0) } }
}

impl Place for View<'_> {
    fn arrive(&self, number: u64) {
        self.memory.borrow_mut().arrived[self.member] = number + 1;
    }

    fn has_arrived(&self, index: usize, number: u64) -> bool {
        let member = members(self.list).nth(index).expect("a member of the list");
        self.omission == Omission::Arrival || self.memory.borrow().arrived[member] == number + 1
    }

    fn founding(&self) -> Founding {
        let memory = self.memory.borrow();
        if memory.founded { Founding::Founded } else { Founding::Open(memory.failures) }
    }

    fn why_not(&self) -> Option<Cause> {
        if let Some(untold) = &*self.untold.borrow() {
            return Some(untold.clone());
        }
        let memory = self.memory.borrow();
        (memory.failures > 0).then(|| cause(memory.for_death))
    }

    fn found(&self, number: u64) -> Founding {
        let mut memory = self.memory.borrow_mut();
        memory.founded |= memory.failures == number;
        drop(memory);
        self.founding()
    }

    fn give_up(&self, number: u64, cause: &Cause) -> Founding {
        let for_death = matches!(cause, Cause::RankDied { .. });
        match self.omission {
            Omission::GivingUp => {
                *self.untold.borrow_mut() = Some(cause.clone());
                return Founding::Open(number + 1);
            }
            Omission::Arrival | Omission::Nothing => {}
        }
        self.memory.borrow_mut().fail(number, for_death);
        self.founding()
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    members: Vec<Member>,
    memories: BTreeMap<Set, Memory>,
    /// Foundings that somebody gave up before their memory was there, who tells as soon as it is.
    untold: BTreeSet<(Set, usize)>,
    deaths: u8,
    impatience: u8,
    retries: u8,
}

impl World {
    fn new(size: usize, [deaths, impatience, retries]: [u8; 3]) -> World {
        let member = Member { alive: true, knows: 0, patient: true, phase: Phase::Begins };
        let members = vec![member; size];
        World { members, memories: BTreeMap::new(), untold: BTreeSet::new(), deaths, impatience, retries }
    }

    fn all(&self) -> Set {
        Set::MAX >> (8 - self.members.len())
    }

    fn living(&self) -> Set {
        (0..self.members.len()).filter(|at| self.members[*at].alive).fold(0, |set, at| set | 1 << at)
    }

    /// One look of a member at its founding.
    fn step(&mut self, at: usize, omission: Omission) {
        let Member { knows, patient, ref phase, .. } = self.members[at];
        let (list, mut seat) = match *phase {
            Phase::Begins => (self.all() & !knows, Seat::default()),
            Phase::In { list, seat } => (list, seat),
            Phase::Founded(_) | Phase::Failed { .. } => return,
        };
        if list == 1 << at {
            self.members[at].phase = Phase::Founded(list);
            return;
        }
        if members(list).next() == Some(at) {
            self.memories.entry(list).or_default();
        }
        let ranks = || members(list).filter(|member| knows & 1 << member != 0);
        let gone = ranks().next().map(|member| (Rank::from_index(member), Ending::Unknown));
        let stop = (!patient).then(|| cause(false));
        let facts = Facts { size: members(list).count(), gone, stop };
        let view = self.memories.get_mut(&list);
        let view = view.map(|memory| View {
            memory: RefCell::new(memory),
            list,
            member: at,
            omission,
            untold: RefCell::default(),
        });
        let has_memory = view.is_some();
        let step = look(view.as_ref(), &mut seat, &facts);
        self.members[at].phase = match step {
            Step::Wait => Phase::In { list, seat },
            Step::Founded => Phase::Founded(list),
            Step::Fewer => Phase::Begins,
            Step::Failed(_) if has_memory => Phase::Failed { list, seat },
            Step::Failed(_) => {
                self.untold.insert((list, at));
                Phase::Failed { list, seat: Seat { known: 1, number: None } }
            }
        };
    }

    /// A member calls again after a failure.
    fn try_again(&mut self, at: usize) {
        let Phase::Failed { list, seat } = self.members[at].phase else { return };
        let now = self.all() & !self.members[at].knows;
        self.untold.remove(&(list, at));
        self.members[at].phase = if now == list { Phase::In { list, seat } } else { Phase::Begins };
        self.members[at].patient = true;
        self.retries -= 1;
    }

    /// All that may happen next, without what is somebody's misfortune; then with that.
    fn nexts(&self, omission: Omission) -> (Vec<World>, Vec<World>) {
        let (mut progress, mut misfortunes) = (Vec::new(), Vec::new());
        let dead = self.all() & !self.living();
        let add = |to: &mut Vec<World>, change: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            change(&mut next);
            if next != *self {
                to.push(next);
            }
        };
        for at in members(self.living()) {
            add(&mut progress, &|world| world.step(at, omission));
            for known in members(dead) {
                add(&mut progress, &|world| world.members[at].knows |= 1 << known);
            }
            if self.deaths > 0 {
                add(&mut misfortunes, &|world| {
                    world.members[at].alive = false;
                    world.untold.retain(|(_, teller)| *teller != at);
                    world.deaths -= 1;
                });
            }
            if self.retries > 0 {
                add(&mut misfortunes, &|world| world.try_again(at));
            }
            if self.impatience > 0 && !self.members[at].is_done() {
                add(&mut misfortunes, &|world| {
                    if core::mem::take(&mut world.members[at].patient) {
                        world.impatience -= 1;
                    }
                });
            }
        }
        for told in &self.untold {
            if self.memories.contains_key(&told.0) {
                add(&mut progress, &|world| {
                    world.untold.remove(told);
                    world.memories.entry(told.0).or_default().fail(0, false);
                });
            }
        }
        (progress, misfortunes)
    }

    /// What must hold at any time.
    fn check(&self) -> Result<(), String> {
        let phases = || self.members.iter().map(|member| &member.phase);
        let founded: BTreeSet<Set> =
            phases().filter_map(|phase| if let Phase::Founded(list) = phase { Some(*list) } else { None }).collect();
        if founded.len() > 1 {
            return Err(format!("two groups: {founded:?}"));
        }
        if let Some(list) = founded.first() {
            if self.living() & !list != 0 {
                return Err(format!("a living member is not in {list:b}"));
            }
            if phases().any(|phase| matches!(phase, Phase::Failed { list: failed, .. } if failed == list)) {
                return Err(format!("founded and failed: {list:b}"));
            }
        }
        Ok(())
    }

    /// What must hold where nothing goes on any more by itself.
    fn check_end(&self) -> Result<(), String> {
        let anybody_failed = self.members.iter().any(|member| matches!(member.phase, Phase::Failed { .. }));
        let waits = self.members.iter().position(|member| member.alive && !member.is_done());
        match waits {
            // For one that has given up and is not back; its own time will be up.
            Some(_) if anybody_failed => Ok(()),
            Some(at) => Err(format!("member {at} waits for ever")),
            None => Ok(()),
        }
    }
}

/// The states that there are, or what is wrong with one.
fn explore(start: World, omission: Omission) -> Result<usize, String> {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        world.check()?;
        let (progress, misfortunes) = world.nexts(omission);
        if progress.is_empty() {
            world.check_end()?;
        }
        open.extend(progress.into_iter().chain(misfortunes).filter(|next| seen.insert(next.clone())));
    }
    Ok(seen.len())
}

#[test]
fn members_agree_in_every_order() {
    // Members; deaths, members whose time is up, calls after a failure.
    let worlds = [(2, [1, 2, 2]), (3, [2, 1, 1]), (3, [0, 2, 2]), (3, [3, 0, 0]), (4, [2, 0, 0]), (4, [1, 1, 0])];
    for (size, limits) in worlds {
        let states = explore(World::new(size, limits), Omission::Nothing);
        let states = states.unwrap_or_else(|wrong| panic!("{size} members, {limits:?}: {wrong}"));
        assert!(states > 50, "{states} states");
    }
}

#[test]
fn the_model_can_tell() {
    for omission in [Omission::GivingUp, Omission::Arrival] {
        assert!(explore(World::new(3, [2, 1, 0]), omission).is_err(), "{omission:?}");
    }
}
