#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Calls in which ranks say where their buffers are, against worlds whose schedule a seed decides. Whatever the ranks have to
//! say, and however that changes from call to call, they go on in the same way. (The direct way needs processes: see the tests
//! of the crates that have them.)

mod support;

use foldcast_engine::{Call, ChannelState, Execution, OwnedBuffers, Poll, Preparer, Work};
use support::{Actor, LIMITS, Memory, Owned, Random, Seat, World, sums};
use types::transport::{Channel, Clock, Geometry};
use types::{Cause, DataType, Ending, Error, Reduction, Result};

/// The least that makes offers, and an odd number more.
const COUNTS: [usize; 3] = [(512 << 10) / 4, 200_001, 10];

struct Member {
    seat: Seat,
    state: ChannelState,
    preparer: Preparer,
    running: Option<(Call, Execution)>,
    buffers: Owned,
    result: Option<Result<()>>,
}

impl Member {
    fn new(seat: Seat) -> Member {
        Member {
            state: ChannelState::new(Channel::Unnamed),
            preparer: seat.preparer(1),
            running: None,
            buffers: Owned::of_sum(seat.rank(), 0, false),
            result: None,
            seat,
        }
    }

    fn begin(&mut self, count: usize) {
        let work = Work::all_reduce(DataType::Int32, Reduction::Sum, 4 * count);
        let call = self.preparer.call(&work, LIMITS).started(self.seat.windows.now());
        self.buffers = Owned::of_sum(self.seat.rank(), count, false);
        self.running = Some((call, Execution::begin(&mut self.state)));
        self.result = None;
    }
}

impl Actor for Member {
    fn step(&mut self, random: &mut Random) {
        let look = random.below(4) == 0;
        let Some((call, execution)) = self.running.as_mut().filter(|_| self.result.is_none()) else { return };
        let mut buffers = self.buffers.buffers();
        if let Poll::Ready(result) = execution.poll(self.seat.ground(), &mut self.state, call, &mut buffers, look) {
            self.result = Some(result);
        }
    }
}

impl World<Member> {
    fn new(ranks: usize, seed: u64) -> World<Member> {
        World::of(Geometry::of(ranks), seed, Member::new)
    }

    /// Lets the living ranks go on in any order until all have ended the call; `draw` may change what they have to say.
    fn end(&mut self, draw: impl FnMut(&Memory, &mut Random)) {
        self.run_until(draw, |world| {
            let gone = |rank| world.memory.host().is_gone(rank);
            world.actors.iter().all(|member| member.result.is_some() || gone(member.seat.rank()))
        });
    }

    fn call(&mut self, count: usize, draw: impl FnMut(&Memory, &mut Random)) {
        self.actors.iter_mut().for_each(|member| member.begin(count));
        self.end(draw);
        let want = sums(self.ranks(), count);
        for member in &self.actors {
            assert_eq!(member.result, Some(Ok(())));
            assert!(member.buffers.output() == want, "rank {}, {count} elements", member.seat.rank());
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
            for (rank, member) in world.actors.iter_mut().enumerate() {
                member.begin(if rank == odd { count } else { COUNTS[0] + 1 });
            }
            world.end(anything_but_all_ready);
            for member in &world.actors {
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
    world.actors.iter_mut().for_each(|member| member.begin(COUNTS[0]));
    world.end(|_, _| {});
    for member in &world.actors {
        let Some(Err(Error::GroupAborted(aborted))) = &member.result else { panic!("{:?}", member.result) };
        assert!(matches!(aborted.cause, Cause::Failed { .. }), "{aborted:?}");
    }
}

#[test]
fn a_death_in_any_way_is_told() {
    for seed in 0..20 {
        let mut world = World::new(3, seed);
        world.actors.iter_mut().for_each(|member| member.begin(COUNTS[1]));
        let mut left = 1 + seed;
        world.end(|memory, random| {
            anything_but_all_ready(memory, random);
            left = left.saturating_sub(1);
            if left == 0 {
                memory.host().kill(1, Ending::Signalled(9));
            }
        });
        for rank in [0, 2] {
            let result = &world.actors[rank].result;
            let told = matches!(result, Some(Err(Error::RankDied(died))) if died.peer.0 == 10);
            assert!(told || *result == Some(Ok(())), "{result:?}");
        }
    }
}
