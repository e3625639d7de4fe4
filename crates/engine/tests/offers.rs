#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Calls in which ranks say where their buffers are, against worlds whose schedule a seed decides. Whatever the ranks have to
//! say, and however that changes from call to call, they go on in the same way. (The direct way needs processes: see the tests
//! of the crates that have them.)

mod support;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldcast_engine::{Call, ChannelState, Choice, Execution, Ground, Life, Limits, Poll, Preparer, Terms, View, Work};
use support::{Memory, Random, SimWindows, memory, view};
use types::transport::{Channel, Clock, Geometry};
use types::{Buffers, Cause, DataType, Ending, Error, Reduction, Result};

/// The least that makes offers, and an odd number more.
const COUNTS: [usize; 3] = [(512 << 10) / 4, 200_001, 10];

struct Member {
    windows: SimWindows,
    rank: usize,
    life: Life,
    view: View,
    state: ChannelState,
    preparer: Preparer,
    running: Option<(Call, Execution)>,
    input: Vec<u8>,
    output: Vec<u8>,
    result: Option<Result<()>>,
}

fn element(rank: usize, at: usize) -> i32 {
    i32::try_from(rank * 1000 + at % 977).expect("small numbers")
}

impl Member {
    fn begin(&mut self, count: usize) {
        let rank = self.rank;
        let limits = Limits { deadline: Some(Duration::from_secs(100)), first_warning: Duration::from_secs(50) };
        let work = Work::all_reduce(DataType::Int32, Reduction::Sum, 4 * count);
        let call = self.preparer.call(&work, limits).started(self.windows.now());
        self.input = (0..count).flat_map(|at| element(rank, at).to_le_bytes()).collect();
        self.output = vec![0xAA; 4 * count];
        self.running = Some((call, Execution::begin(&mut self.state)));
        self.result = None;
    }

    fn step(&mut self, look: bool) {
        let Some((call, execution)) = self.running.as_mut().filter(|_| self.result.is_none()) else { return };
        let clock: &dyn Clock = &self.windows;
        let ground = Ground { windows: &self.windows, peers: &self.windows, life: &self.life, view: &self.view, clock };
        let mut buffers = Buffers::Separate { input: &self.input, output: &mut self.output };
        if let Poll::Ready(result) = execution.poll(ground, &mut self.state, call, &mut buffers, look) {
            self.result = Some(result);
        }
    }
}

struct World {
    memory: Rc<Memory>,
    members: Vec<Member>,
    random: Random,
}

impl World {
    fn new(ranks: usize, seed: u64) -> World {
        let memory = memory(Geometry::of(ranks));
        let terms = Arc::new(Terms { geometry: Geometry::of(ranks), choice: Choice::default(), lanes: 1 });
        let member = |rank| Member {
            windows: memory.windows(rank),
            rank,
            life: Life::default(),
            view: view(rank, ranks),
            state: ChannelState::new(Channel::Unnamed),
            preparer: Preparer::new(Arc::clone(&terms), rank, 0, 0),
            running: None,
            input: Vec::new(),
            output: Vec::new(),
            result: None,
        };
        World { members: (0..ranks).map(member).collect(), memory, random: Random::new(seed) }
    }

    /// Lets the living ranks go on in any order until all have ended the call; `draw` may change what they have to say.
    fn run(&mut self, mut draw: impl FnMut(&Memory, &mut Random)) {
        for _ in 0..100_000 {
            let gone = |rank| self.memory.host().is_gone(rank);
            if self.members.iter().all(|member| member.result.is_some() || gone(member.rank)) {
                return;
            }
            draw(&self.memory, &mut self.random);
            let rank = self.random.below(self.members.len());
            let look = self.random.below(4) == 0;
            if !self.memory.host().is_gone(rank) {
                self.members[rank].step(look);
            }
        }
        panic!("some rank waits for ever");
    }

    fn call(&mut self, count: usize, draw: impl FnMut(&Memory, &mut Random)) {
        self.members.iter_mut().for_each(|member| member.begin(count));
        self.run(draw);
        let ranks = self.members.len();
        for member in &self.members {
            assert_eq!(member.result, Some(Ok(())));
            for (at, word) in member.output.as_chunks::<4>().0.iter().enumerate() {
                let expected: i32 = (0..ranks).map(|rank| element(rank, at)).sum();
                assert_eq!(i32::from_le_bytes(*word), expected, "element {at}");
            }
        }
    }
}

/// Changes what ranks have to say at any moment, but never to what makes all of them ready.
fn anything_but_all_ready(memory: &Memory, random: &mut Random) {
    memory.set_readable(|all| {
        let last = all.len() - 1;
        for (rank, readable) in all.iter_mut().enumerate() {
            if random.below(3) == 0 {
                *readable = [None, Some(false), Some(true)][random.below(if rank == last { 2 } else { 3 })];
            }
        }
    });
}

#[test]
fn ranks_that_say_anything_go_the_same_way() {
    for ranks in [2, 3, 5] {
        for seed in 0..12 {
            let mut world = World::new(ranks, seed);
            for turn in 0..6 {
                world.call(COUNTS[turn % COUNTS.len()], anything_but_all_ready);
            }
        }
    }
}

#[test]
fn only_who_could_give_asks_and_only_those_who_give() {
    let asked = |said: [Option<bool>; 3]| {
        let mut world = World::new(3, 1);
        world.memory.set_readable(|all| all.copy_from_slice(&said));
        world.call(COUNTS[0], |_, _| {});
        world.memory.asked()
    };
    assert_eq!(asked([None; 3]), 0);
    assert_eq!(asked([Some(false), None, None]), 0);
    assert_eq!(asked([Some(false), Some(false), None]), 2);
    assert_eq!(asked([Some(false); 3]), 6);
    assert_eq!(asked([Some(false), Some(true), Some(true)]), 2);
}

#[test]
fn a_mismatch_among_offers_leaves_the_next_call_right() {
    for seed in 0..10 {
        let mut world = World::new(3, seed);
        for (odd, count) in COUNTS.into_iter().enumerate() {
            for (rank, member) in world.members.iter_mut().enumerate() {
                member.begin(if rank == odd { count } else { COUNTS[0] + 1 });
            }
            world.run(anything_but_all_ready);
            for member in &world.members {
                assert!(
                    matches!(&member.result, Some(Err(Error::Mismatch(e))) if e.field == "count"),
                    "{:?}",
                    member.result
                );
            }
            world.call(COUNTS[1], anything_but_all_ready);
        }
    }
}

/// Offers of memory that is not there: a rank writes what it should not. Nobody hangs, and nobody reads it.
#[test]
fn offers_of_what_is_not_there_end_the_epoch() {
    let mut world = World::new(3, 5);
    world.memory.set_readable(|all| all.fill(Some(true)));
    world.members.iter_mut().for_each(|member| member.begin(COUNTS[0]));
    world.run(|_, _| {});
    for member in &world.members {
        let Some(Err(Error::GroupAborted(aborted))) = &member.result else { panic!("{:?}", member.result) };
        assert!(matches!(aborted.cause, Cause::Failed { .. }), "{aborted:?}");
    }
}

#[test]
fn a_death_in_any_way_is_told() {
    for seed in 0..20 {
        let mut world = World::new(3, seed);
        world.members.iter_mut().for_each(|member| member.begin(COUNTS[1]));
        let mut left = 1 + seed;
        world.run(|memory, random| {
            anything_but_all_ready(memory, random);
            left = left.saturating_sub(1);
            if left == 0 {
                memory.host().kill(1, Ending::Signalled(9));
            }
        });
        for rank in [0, 2] {
            let result = &world.members[rank].result;
            let told = matches!(result, Some(Err(Error::RankDied(died))) if died.peer.0 == 10);
            assert!(told || *result == Some(Ok(())), "{result:?}");
        }
    }
}
