#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Small named calls beside large ones: every rank in one thread, whose turn it is drawn from a seed.

mod support;

use std::time::Duration;

use foldcast_engine::{Limits, NamedLane, Task, Work};
use support::{Actor, Outcome, Owned, Random, Seat, World, collector, ended, small_areas, sums};
use types::transport::{Channel, Counter, Geometry, Windows};
use types::{DataType, Error, Reduction};

/// Miri is some thousand times slower.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 40 };

/// Elements of a call that fits a slot.
const SMALL: usize = 10;
/// Of one that does not.
const LARGE: usize = 300;
/// Of one of many rounds.
const HUGE: usize = 500_000;

struct Member {
    seat: Seat,
    named: NamedLane,
    /// How often a call gave the turn back.
    pauses: usize,
}

impl Member {
    fn submit(&mut self, name: &str, count: usize) -> Outcome {
        let limits = Limits { deadline: None, first_warning: Duration::MAX };
        let work = Work::all_reduce(DataType::Int32, Reduction::Sum, 4 * count);
        let call = self.named.preparer.call(&work, limits).named(name);
        let outcome = Outcome::default();
        let buffers = Box::new(Owned::of_sum(self.seat.rank(), count, true));
        self.named.submit(Task { call, buffers, done: collector(&outcome), next: None });
        outcome
    }
}

impl Actor for Member {
    fn step(&mut self, random: &mut Random) {
        let look = random.below(4) == 0;
        let progress = self.named.poll(self.seat.ground(), None, look);
        self.pauses += usize::from(progress.paused);
        for (task, result) in progress.finished {
            task.finish(result);
        }
    }
}

impl World<Member> {
    fn new(ranks: usize, seed: u64) -> World<Member> {
        World::with_chunks(ranks, 1024, seed)
    }

    fn with_chunks(ranks: usize, chunk_bytes: usize, seed: u64) -> World<Member> {
        let geometry = Geometry { chunk_bytes, ..small_areas(ranks) };
        World::of(geometry, seed, |seat| Member { named: NamedLane::new(seat.preparer(1)), seat, pauses: 0 })
    }

    fn submit(&mut self, name: &str, count: impl Fn(usize) -> usize) -> Vec<Outcome> {
        self.actors.iter_mut().enumerate().map(|(rank, member)| member.submit(name, count(rank))).collect()
    }

    fn check(&self, outcomes: &[Outcome], count: usize) {
        let want = sums(self.ranks(), count);
        for outcome in outcomes {
            assert!(ended(outcome).expect("a good call") == want, "{count} elements");
        }
    }
}

#[test]
fn small_calls_end_while_a_large_one_is_in_flight() {
    for seed in 0..6 {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        let large = world.submit("large", |_| HUGE);
        let rounds = |world: &World<Member>| {
            let counters = [Counter::Staged, Counter::Folded].into_iter();
            counters.map(|counter| world.actors[0].seat.windows.counter(Channel::Named, 0, counter)).max().unwrap()
        };
        while rounds(&world) < 3 {
            world.step();
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
    let mut world = World::with_chunks(4, 64 << 10, 1);
    let small = world.submit("small", |_| SMALL);
    world.run(&small);
    assert!(world.actors.iter().all(|member| member.pauses == 0));
    let large = world.submit("large", |_| HUGE);
    world.run(&large);
    world.check(&large, HUGE);
    // 2 MB, of which a poll does 256 KiB.
    assert!(world.actors.iter().all(|member| member.pauses > 3), "the turn is kept");
}

#[test]
fn sizes_and_orders_may_be_mixed() {
    for seed in 0..SEEDS {
        let mut world = World::new(2 + usize::try_from(seed % 3).unwrap(), seed);
        let calls: Vec<(String, usize)> =
            (0..40).map(|at| (format!("n{}", at / 2), [SMALL, LARGE, 0, 16, 17][at % 5])).collect();
        let mut ends: Vec<Vec<Outcome>> = vec![Vec::new(); calls.len()];
        for rank in 0..world.actors.len() {
            // Two calls of one name keep their order; the names come in another order on each rank.
            let first = world.random.below(20);
            for name in (0..20).map(|name| (name * 7 + first) % 20) {
                for at in [2 * name, 2 * name + 1] {
                    ends[at].push(world.actors[rank].submit(&calls[at].0, calls[at].1));
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
                        let error = ended(end).expect_err("a mismatch");
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
