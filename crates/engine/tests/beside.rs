#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Small named calls beside large ones: every rank in one thread, whose turn it is drawn from a seed.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldcast_engine::{Choice, Ground, Life, Limits, NamedLane, OwnedBuffers, Preparer, Task, Terms, View, Work};
use support::{Random, SimWindows, memory, view};
use types::transport::{Channel, Clock, Counter, Geometry, Windows};
use types::{Buffers, DataType, Error, Reduction, Result};

/// Miri is some thousand times slower.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 40 };

/// Elements of a call that fits a slot.
const SMALL: usize = 10;
/// Of one that does not.
const LARGE: usize = 300;
/// Of one of many rounds.
const HUGE: usize = 500_000;

fn geometry(ranks: usize) -> Geometry {
    Geometry { ranks, slot_bytes: 64, chunk_bytes: 1024, pair_depth: if ranks == 2 { 4 } else { 1 } }
}

struct Owned(Vec<u8>);

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(&mut self.0)
    }
}

type Outcome = Arc<Mutex<Option<Result<Vec<u8>>>>>;

struct Member {
    windows: SimWindows,
    life: Life,
    view: View,
    named: NamedLane,
    /// How often a call gave the turn back.
    pauses: usize,
}

fn element(rank: usize, at: usize) -> i32 {
    i32::try_from(rank * 1000 + at % 977).expect("small numbers")
}

impl Member {
    fn submit(&mut self, name: &str, count: usize) -> Outcome {
        let limits = Limits { deadline: None, first_warning: Duration::MAX };
        let work = Work::all_reduce(DataType::Int32, Reduction::Sum, 4 * count);
        let call = self.named.preparer.call(&work, limits).named(name);
        let rank = self.windows.rank();
        let input = (0..count).flat_map(|at| element(rank, at).to_le_bytes()).collect();
        let outcome = Outcome::default();
        let slot = Arc::clone(&outcome);
        let done = Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
            let output = buffers.buffers().input().to_vec();
            assert!(slot.lock().unwrap().replace(result.map(|()| output)).is_none(), "each call ends once");
        });
        self.named.submit(Task { call, buffers: Box::new(Owned(input)), done, next: None });
        outcome
    }

    fn poll(&mut self, look: bool) {
        let clock: &dyn Clock = &self.windows;
        let ground = Ground { windows: &self.windows, peers: &self.windows, life: &self.life, view: &self.view, clock };
        let progress = self.named.poll(ground, None, look);
        self.pauses += usize::from(progress.paused);
        for (task, result) in progress.finished {
            task.finish(result);
        }
    }
}

struct World {
    members: Vec<Member>,
    random: Random,
}

impl World {
    fn new(ranks: usize, seed: u64) -> World {
        World::of(geometry(ranks), seed)
    }

    fn of(geometry: Geometry, seed: u64) -> World {
        let (ranks, memory) = (geometry.ranks, memory(geometry));
        let terms = Arc::new(Terms { geometry, choice: Choice::default(), lanes: 1 });
        let member = |rank| Member {
            windows: memory.windows(rank),
            life: Life::default(),
            view: view(rank, ranks),
            named: NamedLane::new(Preparer::new(Arc::clone(&terms), rank, 0, 0)),
            pauses: 0,
        };
        World { members: (0..ranks).map(member).collect(), random: Random::new(seed) }
    }

    fn submit(&mut self, name: &str, count: impl Fn(usize) -> usize) -> Vec<Outcome> {
        self.members.iter_mut().enumerate().map(|(rank, member)| member.submit(name, count(rank))).collect()
    }

    fn poll_one(&mut self) {
        let rank = self.random.below(self.members.len());
        let look = self.random.below(4) == 0;
        self.members[rank].poll(look);
    }

    fn run(&mut self, outcomes: &[Outcome]) {
        for _ in 0..1_000_000 {
            if outcomes.iter().all(|outcome| outcome.lock().unwrap().is_some()) {
                return;
            }
            self.poll_one();
        }
        panic!("the calls do not end");
    }

    fn check(&self, outcomes: &[Outcome], count: usize) {
        let ranks = self.members.len();
        let sum = |at| (0..ranks).map(|rank| element(rank, at)).sum::<i32>();
        let want: Vec<u8> = (0..count).flat_map(|at| sum(at).to_le_bytes()).collect();
        for outcome in outcomes {
            assert!(outcome.lock().unwrap().take().unwrap().expect("a good call") == want, "{count} elements");
        }
    }
}

#[test]
fn small_calls_end_while_a_large_one_is_in_flight() {
    for seed in 0..6 {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        let large = world.submit("large", |_| HUGE);
        let rounds = |world: &World| {
            let counters = [Counter::Staged, Counter::Folded].into_iter();
            counters.map(|counter| world.members[0].windows.counter(Channel::Named, 0, counter)).max().unwrap()
        };
        while rounds(&world) < 3 {
            world.poll_one();
        }
        for _ in 0..3 {
            let small = world.submit("small", |_| SMALL);
            world.run(&small);
            world.check(&small, SMALL);
        }
        assert!(large.iter().all(|end| end.lock().unwrap().is_none()), "{ranks} ranks: the large call was first");
        world.run(&large);
        world.check(&large, HUGE);
    }
}

#[test]
fn a_large_call_gives_the_turn_back_and_a_small_one_has_no_need() {
    let mut world = World::of(Geometry { chunk_bytes: 64 << 10, ..geometry(4) }, 1);
    let small = world.submit("small", |_| SMALL);
    world.run(&small);
    assert!(world.members.iter().all(|member| member.pauses == 0));
    let large = world.submit("large", |_| HUGE);
    world.run(&large);
    world.check(&large, HUGE);
    // 2 MB, of which a poll does 256 KiB.
    assert!(world.members.iter().all(|member| member.pauses > 3), "the turn is kept");
}

#[test]
fn sizes_and_orders_may_be_mixed() {
    for seed in 0..SEEDS {
        let mut world = World::new(2 + usize::try_from(seed % 3).unwrap(), seed);
        let calls: Vec<(String, usize)> =
            (0..40).map(|at| (format!("n{}", at / 2), [SMALL, LARGE, 0, 16, 17][at % 5])).collect();
        let mut ends: Vec<Vec<Outcome>> = vec![Vec::new(); calls.len()];
        for rank in 0..world.members.len() {
            // Two calls of one name keep their order; the names come in another order on each rank.
            let first = world.random.below(20);
            for name in (0..20).map(|name| (name * 7 + first) % 20) {
                for at in [2 * name, 2 * name + 1] {
                    ends[at].push(world.members[rank].submit(&calls[at].0, calls[at].1));
                }
            }
        }
        let all: Vec<Outcome> = ends.iter().flatten().cloned().collect();
        world.run(&all);
        for (ends, (_, count)) in ends.iter().zip(&calls) {
            world.check(ends, *count);
        }
    }
}

#[test]
fn ranks_that_disagree_on_what_is_small_get_a_mismatch() {
    for seed in 0..SEEDS {
        for ranks in 2..=4 {
            for odd in 0..ranks {
                for (common, other) in [(SMALL, LARGE), (LARGE, SMALL), (SMALL, HUGE), (16, 17), (17, 16)] {
                    if seed > 0 && other == HUGE {
                        continue;
                    }
                    let mut world = World::new(ranks, seed);
                    let before = world.submit("x", |_| LARGE);
                    let failed = world.submit("x", |rank| if rank == odd { other } else { common });
                    let after =
                        [world.submit("y", |_| SMALL), world.submit("x", |_| LARGE), world.submit("x", |_| SMALL)];
                    let all = [&before, &failed, &after[0], &after[1], &after[2]];
                    let all: Vec<Outcome> = all.into_iter().flatten().cloned().collect();
                    world.run(&all);
                    for end in &failed {
                        let error = end.lock().unwrap().take().unwrap().expect_err("a mismatch");
                        let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                        assert_eq!((mismatch.field, mismatch.values.len()), ("count", ranks), "{error}");
                    }
                    for (ends, count) in [(&before, LARGE), (&after[0], SMALL), (&after[1], LARGE), (&after[2], SMALL)]
                    {
                        world.check(ends, count);
                    }
                }
            }
        }
    }
}
