#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! The engine against worlds whose schedule, time and deaths the test decides: every rank in one thread, whose turn it is
//! drawn from a seed. A failing seed replays exactly.

mod support;

use std::sync::Arc;
use std::time::Duration;

use foldcast_engine::{Task, Work};
use support::queues::{Queues, Request};
use support::{Outcome, Owned, Random, World, collector, ended, shuffle, small_areas, sums};
use types::transport::Windows;
use types::{Cause, DataType, Ending, Error, OpKind, Rank, Reduction, Result};

/// Miri is some thousand times slower.
const SEEDS: u64 = if cfg!(miri) { 2 } else { 60 };

impl World<Queues> {
    fn new(ranks: usize, seed: u64) -> World<Queues> {
        World::of(small_areas(ranks), seed, Queues::new)
    }

    /// Some ranks have their turns, of which none looks whether others still live.
    fn begin(&mut self, turns: usize) {
        for _ in 0..turns {
            let rank = self.random.below(self.ranks());
            self.actors[rank].poll(false);
        }
    }
}

/// A call of any kind.
fn any(random: &mut Random, ranks: usize) -> Request {
    let count = random.below(300);
    let request = match random.below(3) {
        0 => Request::sum(count),
        1 => Request::broadcast(random.below(ranks), count),
        _ => {
            let most = [1, 20, 150][random.below(3)];
            Request::gather(&(0..ranks).map(|_| random.below(most)).collect::<Vec<_>>())
        }
    };
    Request { in_place: random.below(2) == 0, ..request }
}

#[test]
fn calls_of_all_sizes_are_right_in_every_order() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 4).unwrap();
        let mut world = World::new(ranks, seed);
        let mut outcomes = Vec::new();
        for _ in 0..12 {
            let request = any(&mut world.random, ranks);
            let ends = world.submit(&request);
            outcomes.push((request, ends));
        }
        let all: Vec<_> = outcomes.iter().flat_map(|(_, ends)| ends.iter().cloned()).collect();
        world.run(&all);
        for (request, ends) in outcomes {
            for end in ends {
                assert_eq!(ended(&end).expect("a good call"), request.expected(ranks), "seed {seed}: {request:?}");
            }
        }
    }
}

#[test]
fn named_calls_meet_whatever_the_order_of_submission() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 4).unwrap();
        let mut world = World::new(ranks, seed);
        // More calls than the shared lists hold, two of each name.
        let names: Vec<String> = (0..20).flat_map(|name| [format!("n{name}"), format!("n{name}")]).collect();
        let mut outcomes = Vec::new();
        for rank in 0..ranks {
            let mut order: Vec<_> = names.iter().collect();
            shuffle(&mut order, &mut world.random);
            for name in order {
                let count = 1 + name.len() * 31 + usize::from(*name.as_bytes().last().unwrap());
                let outcome = world.actors[rank].submit(&Request::sum(count).named(name.as_str()));
                outcomes.push((count, outcome));
            }
        }
        let all: Vec<_> = outcomes.iter().map(|(_, end)| Arc::clone(end)).collect();
        world.run(&all);
        for (count, end) in outcomes {
            assert_eq!(ended(&end).expect("a good call"), sums(ranks, count), "seed {seed}");
        }
    }
}

#[test]
fn a_mismatch_is_an_error_on_all_ranks_and_loses_nothing() {
    let base = Request::sum(5);
    let large = Request::sum(300);
    let moved = Request::broadcast(0, 100);
    let changes: [(&str, &Request, Request); 9] = [
        ("count", &base, Request::sum(4)),
        ("count", &base, large.clone()),
        ("count", &large, Request::sum(301)),
        ("dtype", &base, Request { dtype: DataType::Float32, ..base.clone() }),
        ("reduction", &large, Request { reduction: Reduction::Max, ..large.clone() }),
        ("kind", &base, Request { kind: OpKind::Barrier, count: 0, ..base.clone() }),
        ("kind", &large, Request::broadcast(1, 300)),
        ("root", &moved, Request::broadcast(1, 100)),
        ("count", &moved, Request::broadcast(0, 99)),
    ];
    for seed in 0..SEEDS {
        for ranks in 2..=4 {
            for odd in 0..ranks {
                for (field, common, other) in &changes {
                    for name in [None, Some("x")] {
                        let mut world = World::new(ranks, seed);
                        world.good_call(common);
                        let request = |rank| if rank == odd { other } else { *common };
                        let ends = world.submit_each(|rank| request(rank).clone().named(name));
                        world.run(&ends);
                        for end in &ends {
                            let error = ended(end).expect_err("a mismatch");
                            let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                            assert_eq!(mismatch.field, *field, "{error}");
                            assert_eq!(mismatch.values.len(), ranks);
                            assert_ne!(mismatch.expected, mismatch.got, "{error}");
                            let odd_value = &mismatch.values[odd].1;
                            assert_eq!(mismatch.values.iter().filter(|(_, v)| v == odd_value).count(), 1, "{error}");
                        }
                        world.good_call(&large);
                        world.good_call(&base);
                    }
                }
            }
        }
        if seed >= 2 {
            break;
        }
    }
}

#[test]
fn allgathers_that_disagree_in_one_count_are_a_mismatch() {
    for ranks in 2..=4 {
        for odd in 0..ranks {
            let mut world = World::new(ranks, 5);
            let good = Request::gather(&vec![50; ranks]);
            world.good_call(&good);
            // The odd rank takes another rank's piece for larger, and one for smaller: the whole is the same.
            let mut counts = vec![50; ranks];
            counts[0] += 7;
            counts[ranks - 1] -= 7;
            let other = Request::gather(&counts);
            let ends = world.submit_each(|rank| if rank == odd { other.clone() } else { good.clone() });
            world.run(&ends);
            for end in &ends {
                let error = ended(end).expect_err("a mismatch");
                let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                assert_eq!(mismatch.field, "parts", "{error}");
                let odd_value = &mismatch.values[odd].1;
                assert_eq!(mismatch.values.iter().filter(|(_, value)| value == odd_value).count(), 1, "{error}");
            }
            world.good_call(&good);
            world.good_call(&other);
        }
    }
}

#[test]
fn the_calls_of_a_list_follow_each_other_and_fail_together() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        for name in [None, Some("x")] {
            let mut world = World::new(ranks, seed);
            let odd = world.random.below(ranks);
            // Right; then with a second call that one rank makes otherwise: the third is not begun. Then a death.
            for trial in 0..3 {
                let list = |(rank, actor): (usize, &mut Queues)| {
                    let second = if trial == 1 && rank == odd { 41 } else { 40 };
                    actor.submit_list(&[3, second, 200].map(|count| Request::sum(count).named(name)))
                };
                let lists: Vec<_> = world.actors.iter_mut().enumerate().map(list).collect();
                let mut wait: Vec<Outcome> = lists.iter().flatten().cloned().collect();
                if trial == 2 {
                    let turns = world.random.below(40);
                    world.begin(turns);
                    world.memory.host().kill(odd, Ending::Signalled(9));
                    wait = lists
                        .iter()
                        .enumerate()
                        .filter(|(rank, _)| *rank != odd)
                        .flat_map(|(_, l)| l.clone())
                        .collect();
                }
                world.run(&wait);
                for (rank, ends) in lists.iter().enumerate().filter(|(rank, _)| trial < 2 || *rank != odd) {
                    let ends: Vec<_> = ends.iter().map(ended).collect();
                    let failed = ends.iter().position(Result::is_err);
                    let good = failed.unwrap_or(3);
                    for (end, count) in ends[..good].iter().zip([3, 40, 200]) {
                        assert_eq!(*end, Ok(sums(ranks, count)), "seed {seed}, rank {rank}");
                    }
                    assert!(ends[good..].iter().all(|end| *end == ends[good]), "the rest fails with the same");
                    match trial {
                        0 => assert_eq!(failed, None),
                        1 => assert!(failed == Some(1) && matches!(ends[1], Err(Error::Mismatch(_))), "{:?}", ends[1]),
                        _ => {}
                    }
                }
                if trial < 2 {
                    // The channel is where it should be.
                    world.good_call(&Request::sum(77).named(name));
                }
            }
        }
    }
}

#[test]
fn what_is_moved_keeps_its_bits() {
    // Signalling and quiet NaNs with payloads, a subnormal, minus zero: a fold would make some of them canonical.
    let odd: [u32; 6] = [0x7f80_0001, 0xffc1_2345, 0x7fc0_0000, 0xff80_1111, 0x0000_0001, 0x8000_0000];
    for ranks in 2..=4 {
        for times in [1, 40] {
            for gathers in [false, true] {
                let mut world = World::new(ranks, 9);
                let own: Vec<u8> = odd.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<_>>().repeat(times);
                let count = own.len() / 4;
                let parts = if gathers { ranks } else { 1 };
                let work = match gathers {
                    true => Work::all_gather(DataType::Float32, &vec![count; ranks]),
                    false => Work::broadcast(DataType::Float32, own.len(), 1, Rank(10)),
                };
                let outcome = |actor: &mut Queues| {
                    let call = actor.unnamed.preparer.call(&work, actor.limits);
                    let outcome = Outcome::default();
                    let buffers = Box::new(Owned::new(own.clone(), own.len() * parts, 0, false));
                    let done = collector(&outcome);
                    actor.unnamed.submit(Task { call, buffers, done, next: None });
                    outcome
                };
                let ends: Vec<_> = world.actors.iter_mut().map(outcome).collect();
                world.run(&ends);
                let want: Vec<i32> = odd.repeat(times * parts).iter().map(|bits| bits.cast_signed()).collect();
                for end in &ends {
                    assert_eq!(ended(end).expect("a good call"), want);
                }
            }
        }
    }
}

/// Some survivors may have what they need; the others learn who died, and every later call says that the group is over.
#[test]
fn a_death_is_named_on_every_rank_that_depended_on_it() {
    for seed in 0..4 * SEEDS {
        let ranks = 2 + usize::try_from(seed % 4).unwrap();
        let name = (seed % 3 == 0).then_some("x");
        let mut world = World::new(ranks, seed);
        world.good_call(&Request::sum(3));
        let victim = world.random.below(ranks);
        let count = [3, 40, 400][world.random.below(3)];
        let request = match world.random.below(3) {
            0 => Request::sum(count),
            1 => Request::broadcast(world.random.below(ranks), count),
            _ => Request::gather(&vec![count; ranks]),
        };
        let request = request.named(name);
        let ends = world.submit(&request);
        let turns = world.random.below(60);
        world.begin(turns);
        world.memory.host().kill(victim, Ending::Signalled(9));
        let survivors: Vec<usize> = (0..ranks).filter(|rank| *rank != victim).collect();
        let alive: Vec<_> = survivors.iter().map(|rank| Arc::clone(&ends[*rank])).collect();
        world.run(&alive);
        for end in &alive {
            match ended(end) {
                Ok(result) => assert_eq!(result, request.expected(ranks), "seed {seed}"),
                Err(Error::RankDied(died)) => {
                    assert_eq!(died.peer, Rank::from_index(10 * victim), "seed {seed}");
                    assert_eq!(died.ending, Ending::Signalled(9));
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
        // The next call depends on the dead rank as well; the one after finds the group over.
        for attempt in 0..2 {
            let ends: Vec<_> = survivors.iter().map(|rank| world.actors[*rank].submit(&request)).collect();
            world.run(&ends);
            for end in &ends {
                let error = ended(end).expect_err("the group is over");
                let text = error.to_string();
                assert!(text.contains(&format!("rank {}", 10 * victim)), "{text}");
                match error {
                    Error::RankDied(_) => assert_eq!(attempt, 0, "seed {seed}: {text}"),
                    Error::GroupAborted(_) => {}
                    other => panic!("seed {seed}: {other}"),
                }
            }
        }
    }
}

#[test]
fn of_several_ends_the_one_that_speaks_for_itself_is_told() {
    let ends = [Ending::Left(0), Ending::Exited(0), Ending::Signalled(15), Ending::Unknown, Ending::Signalled(9)];
    for (seed, (first, second)) in (0..).zip(ends.iter().flat_map(|a| ends.iter().map(move |b| (*a, *b)))) {
        let mut world = World::new(3, seed);
        let end = world.actors[1].submit(&Request::sum(5));
        world.memory.host().kill(0, first);
        world.memory.host().kill(2, second);
        world.run(core::slice::from_ref(&end));
        let later = |ending| ends.iter().position(|each| *each == ending);
        let told = if later(first) >= later(second) { (0, first) } else { (20, second) };
        match ended(&end).expect_err("two ranks are missing") {
            Error::RankDied(death) => assert_eq!((death.peer.0, death.ending), told),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_rank_that_finished_its_part_may_leave() {
    for seed in 0..SEEDS {
        let mut world = World::new(3, seed);
        let request = Request::sum(200);
        let ends = world.submit(&request);
        world.run(&ends[..1]);
        world.memory.host().kill(0, Ending::Left(1));
        world.run(&ends);
        for end in &ends {
            assert_eq!(ended(end).expect("its data is there"), sums(3, 200), "seed {seed}");
        }
    }
}

#[test]
fn a_missing_rank_is_named_at_the_deadline() {
    for name in [None, Some("grad")] {
        let mut world = World::new(3, 7);
        let request = Request::sum(5).named(name);
        let ends = [world.actors[0].submit(&request), world.actors[2].submit(&request)];
        world.actors[0].limits.deadline = None;
        for _ in 0..10 {
            world.actors[0].poll(true);
            world.actors[2].poll(true);
        }
        assert!(ends.iter().all(|end| end.lock().unwrap().is_none()), "nothing is known yet");
        world.memory.host().set_now(Duration::from_secs(101));
        world.actors[2].poll(true);
        let error = ended(&ends[1]).expect_err("the deadline");
        let Error::Deadline(deadline) = &error else { panic!("{error}") };
        assert!(deadline.peers.contains(&Rank(10)) && deadline.limit == Duration::from_secs(100), "{error}");
        assert!(error.to_string().contains("rank 10"), "{error}");
        // The other rank's call ends with it, saying whose deadline it was.
        world.actors[0].poll(true);
        let error = ended(&ends[0]).expect_err("the epoch is over");
        let Error::GroupAborted(aborted) = &error else { panic!("{error}") };
        assert!(matches!(aborted.cause, Cause::Deadline { by: Rank(20), .. }), "{error}");
    }
}

#[test]
fn an_abort_reaches_every_rank() {
    let mut world = World::new(4, 3);
    let end = world.actors[1].submit(&Request::sum(1000));
    let named = world.actors[1].submit(&Request::sum(10).named("x"));
    world.actors[1].poll(true);
    let cause = Cause::Requested { by: Rank(30) };
    world.actors[3].seat.windows.abort(&cause);
    world.run(&[Arc::clone(&end), Arc::clone(&named)]);
    for end in [end, named] {
        let error = ended(&end).expect_err("aborted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == cause), "{error}");
    }
}
