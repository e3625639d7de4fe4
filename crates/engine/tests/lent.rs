#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Submitted calls that are cut into lanes and lent, against worlds whose schedule, time and deaths a seed decides: every rank
//! in one thread, and on each rank the queues and the lanes of what is lent go on as if each had a thread of its own.

mod support;

use std::sync::Arc;
use std::time::Duration;

use foldcast_engine::{ChannelState, Cut, Lane, Loan, Poll};
use support::queues::{Queues, Request};
use support::{Actor, Random, World, ended, shuffle, small_areas};
use types::transport::{Announcement, Channel, Counter, Windows};
use types::{Cause, Ending, Error, Rank, Tag};

const SEEDS: u64 = 60;

/// Elements of calls of two lanes, of three, and of many rounds in three.
const COUNTS: [usize; 4] = [512, 1023, 2001, 5000];

#[derive(Clone, Copy, Debug)]
enum What {
    Sum,
    /// From the last rank.
    Broadcast,
    /// Of pieces as equal as they can be; of unequal ones, of which that of rank 0 is empty.
    Gather,
    GatherUnequal,
}

const ALL: [What; 4] = [What::Sum, What::Broadcast, What::Gather, What::GatherUnequal];

impl What {
    /// A call of so many elements together.
    fn request(self, count: usize, ranks: usize) -> Request {
        let pieces = |givers: usize| (0..givers).map(|giver| (count + giver) / givers).collect::<Vec<_>>();
        match self {
            What::Sum => Request::sum(count),
            What::Broadcast => Request::broadcast(ranks - 1, count),
            What::Gather => Request::gather(&pieces(ranks)),
            What::GatherUnequal => Request::gather(&[vec![0], pieces(ranks - 1)].concat()),
        }
    }
}

/// A rank whose queues lend.
struct Lender {
    queues: Queues,
    loans: Vec<Loan>,
    /// How often something was lent.
    lent: usize,
}

impl Lender {
    /// What can be lent is.
    fn lend(&mut self) {
        let Queues { named, unnamed, .. } = &mut self.queues;
        assert_eq!(named.can_lend(None), {
            let loan = named.lend(None);
            let lent = loan.is_some();
            self.loans.extend(loan);
            lent
        });
        self.loans.extend(unnamed.lend());
        self.lent += self.loans.len();
    }

    /// A lane of something that is lent goes on.
    fn help(&mut self, random: &mut Random, look: bool) {
        if self.loans.is_empty() {
            return;
        }
        let drawn = random.below(self.loans.len());
        let mut loan = self.loans.swap_remove(drawn);
        let ground = self.queues.seat.ground();
        let mut lanes = loan.submitted_lanes();
        let drawn = random.below(lanes.len());
        let result = match lanes[drawn].poll(ground, look) {
            Poll::Ready(Err(error)) => Err(error),
            _ if lanes.iter().all(Lane::has_ended) => Ok(()),
            _ => {
                drop(lanes);
                self.loans.push(loan);
                return;
            }
        };
        drop(lanes);
        let finished = match loan.call().is_named() {
            true => self.queues.named.settle(loan, result, false).finished,
            false => self.queues.unnamed.settle(loan, result),
        };
        finished.into_iter().for_each(|(task, result)| task.finish(result));
    }
}

impl Actor for Lender {
    fn step(&mut self, random: &mut Random) {
        let look = random.below(4) == 0;
        match random.below(5) {
            0 => self.lend(),
            1 | 2 => self.queues.poll(look),
            _ => self.help(random, look),
        }
    }
}

impl AsMut<Queues> for Lender {
    fn as_mut(&mut self) -> &mut Queues {
        &mut self.queues
    }
}

impl World<Lender> {
    fn new(ranks: usize, seed: u64) -> World<Lender> {
        World::of(small_areas(ranks), seed, |seat| Lender { queues: Queues::new(seat), loans: Vec::new(), lent: 0 })
    }

    /// Lets all ranks go on until each has lent something.
    fn lend(&mut self) {
        while self.actors.iter().any(|actor| actor.loans.is_empty()) {
            for actor in &mut self.actors {
                actor.queues.poll(false);
                actor.lend();
            }
        }
    }
}

#[test]
fn lent_calls_of_every_kind_are_right_in_every_order() {
    let mut lent = 0;
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 4).unwrap();
        let mut world = World::new(ranks, seed);
        let mut ends = Vec::new();
        let requests: Vec<_> = (0..10)
            .map(|at| {
                let what = ALL[world.random.below(4)];
                let count = if at % 4 == 0 { 1 + at } else { COUNTS[world.random.below(4)] };
                let name = (at % 2 == 0 || at == 7).then(|| format!("call {at}"));
                Request { name, in_place: world.random.below(2) == 0, ..what.request(count, ranks) }
            })
            .collect();
        for actor in &mut world.actors {
            let mut order: Vec<_> = requests.iter().filter(|request| request.name.is_some()).collect();
            shuffle(&mut order, &mut world.random);
            order.extend(requests.iter().filter(|request| request.name.is_none()));
            ends.extend(order.into_iter().map(|request| (request, actor.queues.submit(request))));
        }
        world.run(&ends.iter().map(|(_, end)| Arc::clone(end)).collect::<Vec<_>>());
        for (request, end) in &ends {
            assert_eq!(ended(end).expect("a good call"), request.expected(ranks), "seed {seed}, {request:?}");
        }
        for channel in [Channel::Lane(1), Channel::NamedLane(1), Channel::NamedLane(2)] {
            let used = |rank: usize| world.actors[0].queues.seat.windows.counter(channel, rank, Counter::Staged) > 0;
            assert!((0..ranks).any(used) || seed > 0, "{channel:?} was not used");
        }
        lent += world.actors.iter().map(|actor| actor.lent).sum::<usize>();
    }
    assert!(lent > 1000, "{lent}: hardly anything was lent");
}

#[test]
fn small_calls_pass_one_that_is_lent_and_large_ones_wait() {
    for ranks in 2..=4 {
        let mut world = World::new(ranks, 11);
        let large = Request::sum(COUNTS[3]).named("large");
        let ends = world.submit(&large);
        world.lend();
        let second = Request::sum(COUNTS[0]).named("second");
        let small = Request::sum(9).named("small");
        let seconds = world.submit(&second);
        let smalls = world.submit(&small);
        for _ in 0..1000 {
            let rank = world.random.below(ranks);
            world.actors[rank].queues.poll(true);
        }
        assert!(smalls.iter().all(|end| ended(end) == Ok(small.expected(ranks))), "nobody has touched the large one");
        assert!(ends.iter().chain(&seconds).all(|end| end.lock().unwrap().is_none()));
        world.run(&[ends.clone(), seconds.clone()].concat());
        assert!(ends.iter().all(|end| ended(end) == Ok(large.expected(ranks))));
        assert!(seconds.iter().all(|end| ended(end) == Ok(second.expected(ranks))));
    }
}

#[test]
fn a_mismatch_is_not_lent_and_loses_nothing() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        let odd = world.random.below(ranks);
        for name in [None, Some("x")] {
            for (common, other) in [(COUNTS[0], COUNTS[1]), (COUNTS[3], 7), (7, COUNTS[3]), (COUNTS[2], COUNTS[2] + 1)]
            {
                for what in [What::Sum, What::Broadcast] {
                    let count = |rank| if rank == odd { other } else { common };
                    let ends = world.submit_each(|rank| what.request(count(rank), ranks).named(name));
                    world.run(&ends);
                    for end in &ends {
                        let error = ended(end).expect_err("a mismatch");
                        let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                        assert_eq!((mismatch.field, mismatch.values.len()), ("count", ranks), "{error}");
                    }
                    let next = ALL[world.actors[0].lent % 4];
                    world.good_call(&next.request(common.max(other), ranks).named(name));
                }
            }
        }
    }
}

#[test]
fn the_calls_of_a_list_follow_one_that_was_lent() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        for name in [None, Some("x")] {
            let mut world = World::new(ranks, seed);
            let requests: Vec<_> = [COUNTS[0], 5, COUNTS[2], COUNTS[1], 900]
                .map(|count| Request::sum(count).named(name))
                .into_iter()
                .collect();
            let lists: Vec<_> = world.actors.iter_mut().map(|actor| actor.queues.submit_list(&requests)).collect();
            let after = Request::sum(77).named(name);
            let last = world.submit(&after);
            world.run(&lists.concat());
            world.run(&last);
            for ends in &lists {
                for (end, request) in ends.iter().zip(&requests) {
                    assert_eq!(ended(end).expect("a good list"), request.expected(ranks), "seed {seed}");
                }
            }
            assert!(last.iter().all(|end| ended(end) == Ok(after.expected(ranks))));
        }
    }
}

/// In each lane somebody may have what he needs; who has not learns who died, and so does who waits behind.
#[test]
fn a_death_ends_what_is_lent_and_is_named() {
    let (mut failures, mut lent) = (0, 0);
    for seed in 0..6 * SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        let (victim, what) = (world.random.below(ranks), ALL[world.random.below(4)]);
        let name = (seed % 2 == 0).then_some("x");
        let request = what.request(COUNTS[world.random.below(4)], ranks).named(name);
        let ends: Vec<Vec<_>> = world
            .actors
            .iter_mut()
            .map(|actor| vec![actor.queues.submit(&request), actor.queues.submit(&request)])
            .collect();
        for _ in 0..world.random.below(400) {
            let rank = world.random.below(ranks);
            world.actors[rank].step(&mut world.random);
        }
        lent += world.actors.iter().map(|actor| actor.loans.len()).sum::<usize>();
        world.memory.host().kill(victim, Ending::Signalled(9));
        let alive: Vec<usize> = (0..ranks).filter(|rank| *rank != victim).collect();
        world.run(&alive.iter().flat_map(|rank| ends[*rank].clone()).collect::<Vec<_>>());
        for end in alive.iter().flat_map(|rank| &ends[*rank]) {
            match ended(end) {
                Ok(result) => assert_eq!(result, request.expected(ranks), "seed {seed}"),
                Err(Error::RankDied(died)) => {
                    assert_eq!(died.peer, Rank::from_index(10 * victim), "seed {seed}");
                    failures += 1;
                }
                Err(Error::GroupAborted(aborted)) => assert!(matches!(aborted.cause, Cause::RankDied { .. })),
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
    assert!(failures > 100 && lent > 50, "{failures}, {lent}: the deaths come too late to test anything");
}

#[test]
fn what_waits_behind_a_lent_call_has_its_number_and_its_deadline() {
    let mut world = World::new(2, 3);
    let large = Request::sum(COUNTS[3]);
    let ends = world.submit(&large);
    world.lend();
    world.actors[0].queues.limits.deadline = Some(Duration::from_secs(10));
    let behind = world.actors[0].queues.submit(&Request::sum(3));
    world.memory.host().set_now(Duration::from_secs(11));
    world.actors[0].queues.poll(true);
    let error = ended(&behind).expect_err("its time is up");
    let Error::Deadline(late) = &error else { panic!("{error}") };
    assert_eq!(late.site.tag, Some(Tag::Unnamed(2)), "{error}");
    // What is lent ends with the epoch, or with what it has.
    world.run(&ends);
    for end in &ends {
        match ended(end) {
            Ok(result) => assert_eq!(result, large.expected(2)),
            Err(Error::GroupAborted(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Group rank 0 says of a large call that it fits a slot, and all agree on the rest.
#[test]
fn a_large_call_among_small_ones_ends_the_epoch() {
    let mut world = World::new(2, 5);
    let request = Request::sum(COUNTS[1]).named("x");
    let end = world.actors[1].queues.submit(&request);
    world.actors[1].queues.poll(false);
    let identity = Tag::identity("x", 0) & !1;
    let (task, _) = world.actors[0].queues.task(&request, None);
    let ground = world.actors[0].queues.seat.ground();
    let windows = ground.windows;
    assert!(windows.announce(Announcement { identity }) && windows.append_order(identity | 1));
    let mut state = ChannelState::new(Channel::Small);
    let mut cut = Cut::begin(&mut state, &task.call);
    let mut buffers = task.buffers;
    let _ = cut.meet(ground, &mut state, &mut buffers.buffers(), false);
    world.actors[1].queues.poll(true);
    let error = ended(&end).expect_err("that cannot be");
    let Error::GroupAborted(aborted) = &error else { panic!("{error}") };
    assert_eq!(aborted.cause, Cause::Failed { by: Rank(0) }, "{error}");
}
