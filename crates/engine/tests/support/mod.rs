#![allow(dead_code, reason = "each test program uses its part")]
//! Worlds of one group whose ranks live in one thread, over simulated memory in which all see at once what is published, and in
//! which a race is a panic. A seed draws whose turn it is; what a rank does in its turn is its actor's.

pub(crate) mod queues;

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldcast_engine::{Choice, Completion, Ground, Life, Limits, OwnedBuffers, Preparer, Terms, View};
use sim::{Areas, Host};
pub(crate) use sim::{Memory, Random, SimWindows};
use types::transport::{Geometry, Windows};
use types::{Buffers, GroupName, Rank, Result};

/// Into how many lanes large unnamed calls are cut.
pub(crate) const LANES: usize = 3;

/// Of calls that say nothing of them.
pub(crate) const LIMITS: Limits =
    Limits { deadline: Some(Duration::from_secs(100)), first_warning: Duration::from_secs(5) };

/// Small areas, so that small calls take many rounds.
pub(crate) fn small_areas(ranks: usize) -> Geometry {
    Geometry { ranks, slot_bytes: 64, chunk_bytes: 128, pair_depth: if ranks == 2 { 4 } else { 1 } }
}

/// What a rank has of the world.
pub(crate) struct Seat {
    pub(crate) windows: SimWindows,
    pub(crate) life: Life,
    pub(crate) view: View,
}

impl Seat {
    /// Of the group as this rank sees it. World ranks are ten times the group's, so that a mix-up shows.
    fn new(memory: &Rc<Memory>, rank: usize) -> Seat {
        let world = |index: usize| Rank::from_index(10 * index);
        let windows = memory.windows(rank);
        let view = View {
            rank: world(rank),
            ranks: (0..windows.geometry().ranks).map(world).collect(),
            group: GroupName::new("test").expect("a name"),
        };
        Seat { windows, life: Life::default(), view }
    }

    pub(crate) fn rank(&self) -> usize {
        self.windows.rank()
    }

    /// Prepares calls that are cut into at most so many lanes.
    pub(crate) fn preparer(&self, lanes: usize) -> Preparer {
        let terms = Terms { geometry: self.windows.geometry(), choice: Choice::default(), lanes };
        Preparer::new(Arc::new(terms), self.rank(), 0, 0)
    }

    pub(crate) fn ground(&self) -> Ground<'_, SimWindows, SimWindows> {
        let Seat { windows, life, view } = self;
        Ground { windows, peers: windows, life, view, clock: windows }
    }
}

/// What goes on at a rank.
pub(crate) trait Actor {
    /// It is the rank's turn.
    fn step(&mut self, random: &mut Random);
}

pub(crate) struct World<A> {
    pub(crate) memory: Rc<Memory>,
    pub(crate) actors: Vec<A>,
    pub(crate) random: Random,
}

impl<A: Actor> World<A> {
    pub(crate) fn of(geometry: Geometry, seed: u64, actor: impl Fn(Seat) -> A) -> World<A> {
        let members = (0..geometry.ranks).collect();
        let areas = Areas { geometry, lanes: LANES, ring: 8, members, immediate: true };
        let memory = Memory::new(areas, &Host::new(geometry.ranks));
        let actors = (0..geometry.ranks).map(|rank| actor(Seat::new(&memory, rank))).collect();
        World { memory, actors, random: Random::new(seed) }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.actors.len()
    }

    /// One rank has its turn, if it lives.
    pub(crate) fn step(&mut self) {
        let rank = self.random.below(self.ranks());
        if !self.memory.host().is_gone(rank) {
            self.actors[rank].step(&mut self.random);
        }
    }

    /// Lets ranks take turns until all is done; something happens before each turn.
    pub(crate) fn run_until(
        &mut self,
        mut happens: impl FnMut(&Memory, &mut Random),
        done: impl Fn(&World<A>) -> bool,
    ) {
        for _ in 0..1_000_000 {
            if done(self) {
                return;
            }
            happens(&self.memory, &mut self.random);
            self.step();
        }
        panic!("the calls do not end");
    }

    /// Lets ranks take turns, and time pass, until all these outcomes are there.
    pub(crate) fn run(&mut self, outcomes: &[Outcome]) {
        let there = |outcome: &Outcome| outcome.lock().unwrap().is_some();
        self.run_until(|memory, _| memory.host().pass(Duration::from_micros(150)), |_| outcomes.iter().all(there));
    }
}

/// How a call ended, and its output; nothing before that.
pub(crate) type Outcome = Arc<Mutex<Option<Result<Vec<i32>>>>>;

/// Keeps the end of a call, and its output.
pub(crate) fn collector(outcome: &Outcome) -> Completion {
    let slot = Arc::clone(outcome);
    Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.output_len();
        let output = words(buffers.output(all));
        assert!(slot.lock().unwrap().replace(result.map(|()| output)).is_none(), "each call ends once");
    })
}

/// How a call that has ended did.
pub(crate) fn ended(outcome: &Outcome) -> Result<Vec<i32>> {
    outcome.lock().unwrap().clone().expect("it has ended")
}

pub(crate) struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
    in_place: bool,
}

impl Owned {
    /// Of an output of so many bytes, in which the input stands from `start` on where it is in place.
    pub(crate) fn new(input: Vec<u8>, output_bytes: usize, start: usize, in_place: bool) -> Owned {
        let mut output = vec![0xAA; output_bytes];
        if in_place {
            output[start..start + input.len()].copy_from_slice(&input);
        }
        Owned { input, output, in_place }
    }

    /// Of a rank's part of a sum.
    pub(crate) fn of_sum(rank: usize, count: usize, in_place: bool) -> Owned {
        Owned::new(input(rank, count), 4 * count, 0, in_place)
    }

    pub(crate) fn output(&self) -> Vec<i32> {
        words(&self.output)
    }
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        match self.in_place {
            true => Buffers::InPlace(&mut self.output),
            false => Buffers::Separate { input: &self.input, output: &mut self.output },
        }
    }
}

/// What a rank gives.
pub(crate) fn element(rank: usize, at: usize) -> i32 {
    i32::try_from(rank * 1000 + at % 977).expect("small numbers")
}

/// The first so many elements of a rank.
pub(crate) fn input(rank: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|at| element(rank, at).to_le_bytes()).collect()
}

/// What all ranks must get of a sum of so many elements.
pub(crate) fn sums(ranks: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| (0..ranks).map(|rank| element(rank, at)).sum()).collect()
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect()
}

/// Puts things into an order that is drawn.
pub(crate) fn shuffle<T>(things: &mut [T], random: &mut Random) {
    for at in (1..things.len()).rev() {
        things.swap(at, random.below(at + 1));
    }
}
