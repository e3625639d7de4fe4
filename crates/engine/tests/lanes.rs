#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Calls that are cut into lanes, against worlds whose schedule, time and deaths a seed decides: every rank in one thread,
//! and on each rank whichever lane is drawn goes on, as if each had a thread of its own.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use foldcast_engine::lanes::Others;
use foldcast_engine::{Call, ChannelState, Cut, Lane, OwnedBuffers, Poll, Preparer, Work};
use support::{Actor, LANES, LIMITS, Owned, Random, Seat, World, small_areas, sums};
use types::transport::{Channel, Clock, Counter, Windows};
use types::{Cause, DataType, Ending, Error, Rank, Reduction, Result};

const SEEDS: u64 = 80;

/// Elements that make two lanes, three, and many rounds in three.
const COUNTS: [usize; 4] = [512, 1023, 2001, 5000];

struct Member {
    seat: Seat,
    state: ChannelState,
    others: Others,
    preparer: Preparer,
    cut: Option<(Cut, Call)>,
    buffers: Owned,
    result: Option<Result<()>>,
}

impl Member {
    fn new(seat: Seat) -> Member {
        Member {
            state: ChannelState::new(Channel::Unnamed),
            others: Others::new(Channel::Unnamed),
            preparer: seat.preparer(LANES),
            cut: None,
            buffers: Owned::of_sum(seat.rank(), 0, false),
            result: None,
            seat,
        }
    }

    /// Begins a call of this many elements, as the caller's thread does.
    fn begin(&mut self, count: usize, in_place: bool) {
        let work = Work::all_reduce(DataType::Int32, Reduction::Sum, 4 * count);
        let call = self.preparer.call(&work, LIMITS).started(self.seat.windows.now());
        assert!(call.is_cut(), "{count} elements");
        self.buffers = Owned::of_sum(self.seat.rank(), count, in_place);
        self.cut = Some((Cut::begin(&mut self.state, &call), call));
        self.result = None;
    }
}

impl Actor for Member {
    /// One of its lanes goes on, or before the ranks have met the first one.
    fn step(&mut self, random: &mut Random) {
        if self.result.is_some() {
            return;
        }
        let ground = self.seat.ground();
        let mut buffers = self.buffers.buffers();
        let look = random.below(4) == 0;
        let (cut, _) = self.cut.as_mut().unwrap();
        match cut.meet(ground, &mut self.state, &mut buffers, look) {
            Poll::Pending => return,
            Poll::Ready(Err(error)) => {
                self.result = Some(Err(error));
                return;
            }
            Poll::Ready(Ok(())) => {}
        }
        let mut lanes = cut.lanes(&mut self.state, &mut self.others, buffers);
        let drawn = random.below(lanes.len());
        match lanes[drawn].poll(ground, look) {
            Poll::Ready(Err(error)) => self.result = Some(Err(error)),
            _ if lanes.iter().all(Lane::has_ended) => self.result = Some(Ok(())),
            _ => {}
        }
    }
}

impl World<Member> {
    fn new(ranks: usize, seed: u64) -> World<Member> {
        World::of(small_areas(ranks), seed, Member::new)
    }

    /// Lets the ranks that live take turns until each has a result.
    fn end(&mut self) {
        self.run_until(
            |_, _| {},
            |world| {
                let waits = |rank: usize| !world.memory.host().is_gone(rank) && world.actors[rank].result.is_none();
                !(0..world.ranks()).any(waits)
            },
        );
    }

    fn begin(&mut self, count: usize) {
        for member in &mut self.actors {
            let in_place = self.random.below(2) == 0;
            member.begin(count, in_place);
        }
    }

    fn check(&self, rank: usize, count: usize) {
        let ranks = self.ranks();
        assert!(self.actors[rank].buffers.output() == sums(ranks, count), "rank {rank} of {ranks}, {count} elements");
    }

    fn good_call(&mut self, count: usize) {
        self.begin(count);
        self.end();
        for rank in 0..self.ranks() {
            assert_eq!(self.actors[rank].result, Some(Ok(())));
            self.check(rank, count);
        }
    }
}

#[test]
fn lanes_are_right_in_every_order() {
    let mut used = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut world = World::new(2 + usize::try_from(seed % 4).unwrap(), seed);
        for count in COUNTS {
            world.good_call(count);
        }
        for lane in 1..u8::try_from(LANES).unwrap() {
            if world.actors[0].seat.windows.counter(Channel::Lane(lane), 1, Counter::Staged) > 0 {
                used.insert(lane);
            }
        }
    }
    assert_eq!(used, BTreeSet::from([1, 2]));
}

#[test]
fn a_mismatch_begins_no_other_lane_and_loses_nothing() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        world.good_call(COUNTS[1]);
        let odd = world.random.below(ranks);
        for (common, other) in [(0, 1), (3, 2), (1, 3)] {
            for (rank, member) in world.actors.iter_mut().enumerate() {
                member.begin(COUNTS[if rank == odd { other } else { common }], rank % 2 == 0);
            }
            world.end();
            for member in &world.actors {
                let Some(Err(Error::Mismatch(mismatch))) = &member.result else { panic!("{:?}", member.result) };
                assert_eq!((mismatch.field, mismatch.values.len()), ("count", ranks));
            }
            let next = world.random.below(4);
            world.good_call(COUNTS[next]);
        }
    }
}

/// In each lane somebody may have what he needs; who has not learns who died.
#[test]
fn a_death_ends_all_lanes_and_is_named() {
    let mut failures = 0;
    for seed in 0..6 * SEEDS {
        let ranks = 2 + usize::try_from(seed % 3).unwrap();
        let mut world = World::new(ranks, seed);
        let (count, victim) = (COUNTS[world.random.below(4)], world.random.below(ranks));
        world.begin(count);
        for _ in 0..world.random.below(120) {
            world.step();
        }
        world.memory.host().kill(victim, Ending::Signalled(9));
        world.end();
        for rank in (0..ranks).filter(|rank| *rank != victim) {
            match &world.actors[rank].result {
                Some(Ok(())) => world.check(rank, count),
                Some(Err(Error::RankDied(died))) => {
                    assert_eq!(died.peer, Rank::from_index(10 * victim), "seed {seed}");
                    assert!(!world.actors[rank].seat.life.is_live());
                    failures += 1;
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    assert!(failures > 100, "{failures}: the deaths come too late to test anything");
}

#[test]
fn a_deadline_inside_a_lane_ends_the_call_on_all_ranks() {
    let mut late = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(3, seed);
        world.begin(COUNTS[3]);
        for _ in 0..20 + world.random.below(60) {
            world.step();
        }
        // Rank 2 stops, and time goes on.
        world.memory.host().set_now(Duration::from_secs(101));
        let mut turns = 0;
        while world.actors[..2].iter().any(|member| member.result.is_none()) {
            let rank = world.random.below(2);
            world.actors[rank].step(&mut world.random);
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: the deadline is not seen");
        }
        world.end();
        for member in &world.actors {
            match member.result.as_ref().unwrap() {
                Ok(()) => {}
                Err(Error::Deadline(_)) => late += 1,
                Err(Error::GroupAborted(e)) => assert!(matches!(e.cause, Cause::Deadline { .. }), "{e:?}"),
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
    assert!(late > 20, "{late} deadlines were seen");
}
