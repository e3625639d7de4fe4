#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! Submitted calls that are cut into lanes and lent, against worlds whose schedule, time and deaths a seed decides: every rank
//! in one thread, and on each rank the queues and the lanes of what is lent go on as if each had a thread of its own.

mod support;

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldcast_engine::*;
use support::{LANES, Memory, Random, SimWindows, memory, view};
use types::transport::{Announcement, Channel, Clock, Counter, Geometry, Windows};
use types::{Buffers, Cause, DataType, Ending, Error, Rank, Reduction, Result, Tag};

const SEEDS: u64 = 60;

fn geometry(ranks: usize) -> Geometry {
    Geometry { ranks, slot_bytes: 64, chunk_bytes: 128, pair_depth: if ranks == 2 { 4 } else { 1 } }
}

/// Elements of calls of two lanes, of three, and of many rounds in three.
const COUNTS: [usize; 4] = [512, 1023, 2001, 5000];

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Sum,
    Broadcast,
    /// Of pieces as equal as they can be; of unequal ones, of which that of rank 0 is empty.
    Gather,
    GatherUnequal,
}

const ALL: [What; 4] = [What::Sum, What::Broadcast, What::Gather, What::GatherUnequal];

/// A call of so many elements together.
#[derive(Clone, Debug)]
struct Request {
    what: What,
    count: usize,
    name: Option<String>,
    in_place: bool,
}

fn element(rank: usize, at: usize) -> i32 {
    i32::try_from(rank * 1000 + at % 977).expect("small numbers")
}

impl Request {
    fn new(what: What, count: usize, name: Option<&str>) -> Request {
        Request { what, count, name: name.map(str::to_owned), in_place: false }
    }

    /// The rank that broadcasts.
    fn root(ranks: usize) -> usize {
        ranks - 1
    }

    fn pieces(&self, ranks: usize) -> Vec<usize> {
        let givers = if self.what == What::GatherUnequal { ranks - 1 } else { ranks };
        let mut pieces: Vec<usize> = (0..givers).map(|giver| (self.count + giver) / givers).collect();
        pieces.resize(ranks, 0);
        pieces.rotate_right(ranks - givers);
        pieces
    }

    fn work(&self, ranks: usize) -> Work {
        let (dtype, bytes, root) = (DataType::Int32, 4 * self.count, Request::root(ranks));
        match self.what {
            What::Sum => Work::all_reduce(dtype, Reduction::Sum, bytes),
            What::Broadcast => Work::broadcast(dtype, bytes, root, Rank::from_index(10 * root)),
            What::Gather | What::GatherUnequal => Work::all_gather(dtype, &self.pieces(ranks)),
        }
    }

    /// Where a rank's own elements stand in the output.
    fn own(&self, rank: usize, ranks: usize) -> std::ops::Range<usize> {
        if matches!(self.what, What::Sum | What::Broadcast) {
            return 0..self.count;
        }
        let pieces = self.pieces(ranks);
        let start = pieces[..rank].iter().sum();
        start..start + pieces[rank]
    }

    fn expected(&self, ranks: usize) -> Vec<i32> {
        match self.what {
            What::Sum => (0..self.count).map(|at| (0..ranks).map(|rank| element(rank, at)).sum()).collect(),
            What::Broadcast => (0..self.count).map(|at| element(Request::root(ranks), at)).collect(),
            What::Gather | What::GatherUnequal => {
                let pieces = self.pieces(ranks).into_iter().enumerate();
                pieces.flat_map(|(rank, count)| (0..count).map(move |at| element(rank, at))).collect()
            }
        }
    }
}

struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
    in_place: bool,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        match self.in_place {
            true => Buffers::InPlace(&mut self.output),
            false => Buffers::Separate { input: &self.input, output: &mut self.output },
        }
    }
}

type Outcome = Arc<Mutex<Option<Result<Vec<i32>>>>>;

fn collector(outcome: &Outcome) -> Completion {
    let slot = Arc::clone(outcome);
    Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.output_len();
        let words = buffers.output(all).as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
        assert!(slot.lock().unwrap().replace(result.map(|()| words)).is_none(), "each call ends once");
    })
}

fn taken(outcome: &Outcome) -> Result<Vec<i32>> {
    outcome.lock().unwrap().clone().expect("it has ended")
}

struct Actor {
    windows: SimWindows,
    life: Life,
    view: foldcast_engine::View,
    unnamed: UnnamedLane,
    named: NamedLane,
    limits: Limits,
    loans: Vec<Loan>,
    /// How often something was lent.
    lent: usize,
}

impl Actor {
    fn task(&mut self, request: &Request, next: Option<Box<Task>>) -> (Task, Outcome) {
        let (rank, ranks) = (self.windows.rank(), self.view.ranks.len());
        let lane = if request.name.is_some() { &mut self.named.preparer } else { &mut self.unnamed.preparer };
        let call = lane.call(&request.work(ranks), self.limits).started(self.windows.now());
        let call = request.name.as_ref().map_or(call.clone(), |name| call.named(name));
        let own = request.own(rank, ranks);
        let input: Vec<u8> = (0..own.len()).flat_map(|at| element(rank, at).to_le_bytes()).collect();
        let mut output = vec![0xAA; 4 * request.count];
        if request.in_place {
            output[4 * own.start..4 * own.end].copy_from_slice(&input);
        }
        let outcome = Outcome::default();
        let buffers = Box::new(Owned { input, output, in_place: request.in_place });
        (Task { call, buffers, done: collector(&outcome), next }, outcome)
    }

    fn submit(&mut self, request: &Request) -> Outcome {
        let (task, outcome) = self.task(request, None);
        self.queue(request, task);
        outcome
    }

    fn queue(&mut self, request: &Request, task: Task) {
        match request.name {
            Some(_) => self.named.submit(task),
            None => self.unnamed.submit(task),
        }
    }

    /// Requests that follow each other as one call.
    fn submit_list(&mut self, requests: &[Request]) -> Vec<Outcome> {
        let (mut next, mut outcomes) = (None, Vec::new());
        for request in requests.iter().rev() {
            let (task, outcome) = self.task(request, next);
            outcomes.push(outcome);
            next = Some(Box::new(task));
        }
        self.queue(&requests[0], *next.unwrap());
        outcomes.reverse();
        outcomes
    }

    /// The queues go on.
    fn poll(&mut self, look: bool) {
        let Actor { windows, life, view, unnamed, named, .. } = self;
        let clock: &dyn Clock = &*windows;
        let ground = Ground { windows: &*windows, peers: &*windows, life, view, clock };
        let mut finished = unnamed.poll(ground, look);
        finished.extend(named.poll(ground, None, look).finished);
        finished.into_iter().for_each(|(task, result)| task.finish(result));
    }

    /// What can be lent is.
    fn lend(&mut self) {
        assert_eq!(self.named.can_lend(None), {
            let loan = self.named.lend(None);
            let lent = loan.is_some();
            self.loans.extend(loan);
            lent
        });
        self.loans.extend(self.unnamed.lend());
        self.lent += self.loans.len();
    }

    /// A lane of something that is lent goes on.
    fn help(&mut self, random: &mut Random, look: bool) {
        if self.loans.is_empty() {
            return;
        }
        let drawn = random.below(self.loans.len());
        let mut loan = self.loans.swap_remove(drawn);
        let clock: &dyn Clock = &self.windows;
        let ground = Ground { windows: &self.windows, peers: &self.windows, life: &self.life, view: &self.view, clock };
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
            true => self.named.settle(loan, result, false).finished,
            false => self.unnamed.settle(loan, result),
        };
        finished.into_iter().for_each(|(task, result)| task.finish(result));
    }

    fn step(&mut self, random: &mut Random) {
        let look = random.below(4) == 0;
        match random.below(5) {
            0 => self.lend(),
            1 | 2 => self.poll(look),
            _ => self.help(random, look),
        }
    }
}

struct World {
    memory: Rc<Memory>,
    actors: Vec<Actor>,
    random: Random,
}

impl World {
    fn new(ranks: usize, seed: u64) -> World {
        let memory = memory(geometry(ranks));
        let terms = Arc::new(Terms { geometry: geometry(ranks), choice: Choice::default(), lanes: LANES });
        let limits = Limits { deadline: Some(Duration::from_secs(100)), first_warning: Duration::from_secs(5) };
        let actor = |rank| {
            let preparer = || Preparer::new(Arc::clone(&terms), rank, 0, 0);
            Actor {
                windows: memory.windows(rank),
                life: Life::default(),
                view: view(rank, ranks),
                unnamed: UnnamedLane::new(preparer()),
                named: NamedLane::new(preparer()),
                limits,
                loans: Vec::new(),
                lent: 0,
            }
        };
        World { actors: (0..ranks).map(actor).collect(), memory, random: Random::new(seed) }
    }

    fn run(&mut self, ends: &[Outcome]) {
        for _ in 0..2_000_000 {
            if ends.iter().all(|end| end.lock().unwrap().is_some()) {
                return;
            }
            let rank = self.random.below(self.actors.len());
            if !self.memory.host().is_gone(rank) {
                self.actors[rank].step(&mut self.random);
            }
        }
        panic!("the calls do not end");
    }

    fn good_call(&mut self, request: &Request) {
        let ranks = self.actors.len();
        let ends: Vec<_> = self.actors.iter_mut().map(|actor| actor.submit(request)).collect();
        self.run(&ends);
        for end in &ends {
            assert_eq!(taken(end).expect("a good call"), request.expected(ranks), "{request:?}");
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
                Request { name, in_place: world.random.below(2) == 0, ..Request::new(what, count, None) }
            })
            .collect();
        for actor in &mut world.actors {
            let mut order: Vec<_> = requests.iter().filter(|request| request.name.is_some()).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, world.random.below(at + 1));
            }
            order.extend(requests.iter().filter(|request| request.name.is_none()));
            ends.extend(order.into_iter().map(|request| (request, actor.submit(request))));
        }
        world.run(&ends.iter().map(|(_, end)| Arc::clone(end)).collect::<Vec<_>>());
        for (request, end) in &ends {
            assert_eq!(taken(end).expect("a good call"), request.expected(ranks), "seed {seed}, {request:?}");
        }
        for channel in [Channel::Lane(1), Channel::NamedLane(1), Channel::NamedLane(2)] {
            let used = |rank: usize| world.actors[0].windows.counter(channel, rank, Counter::Staged) > 0;
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
        let large = Request::new(What::Sum, COUNTS[3], Some("large"));
        let ends: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&large)).collect();
        while world.actors.iter().any(|actor| actor.loans.is_empty()) {
            for actor in &mut world.actors {
                actor.poll(false);
                actor.lend();
            }
        }
        let second = Request::new(What::Sum, COUNTS[0], Some("second"));
        let small = Request::new(What::Sum, 9, Some("small"));
        let seconds: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&second)).collect();
        let smalls: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&small)).collect();
        for _ in 0..1000 {
            let rank = world.random.below(ranks);
            world.actors[rank].poll(true);
        }
        assert!(smalls.iter().all(|end| taken(end) == Ok(small.expected(ranks))), "nobody has touched the large one");
        assert!(ends.iter().chain(&seconds).all(|end| end.lock().unwrap().is_none()));
        world.run(&[ends.clone(), seconds.clone()].concat());
        assert!(ends.iter().all(|end| taken(end) == Ok(large.expected(ranks))));
        assert!(seconds.iter().all(|end| taken(end) == Ok(second.expected(ranks))));
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
                    let ends: Vec<_> = (0..ranks)
                        .map(|rank| {
                            let count = if rank == odd { other } else { common };
                            world.actors[rank].submit(&Request::new(what, count, name))
                        })
                        .collect();
                    world.run(&ends);
                    for end in &ends {
                        let error = taken(end).expect_err("a mismatch");
                        let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
                        assert_eq!((mismatch.field, mismatch.values.len()), ("count", ranks), "{error}");
                    }
                    world.good_call(&Request::new(ALL[world.actors[0].lent % 4], common.max(other), name));
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
                .map(|count| Request::new(What::Sum, count, name))
                .into_iter()
                .collect();
            let lists: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit_list(&requests)).collect();
            let after = Request::new(What::Sum, 77, name);
            let last: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&after)).collect();
            world.run(&lists.concat());
            world.run(&last);
            for ends in &lists {
                for (end, request) in ends.iter().zip(&requests) {
                    assert_eq!(taken(end).expect("a good list"), request.expected(ranks), "seed {seed}");
                }
            }
            assert!(last.iter().all(|end| taken(end) == Ok(after.expected(ranks))));
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
        let request = Request::new(what, COUNTS[world.random.below(4)], name);
        let ends: Vec<Vec<_>> =
            world.actors.iter_mut().map(|actor| vec![actor.submit(&request), actor.submit(&request)]).collect();
        for _ in 0..world.random.below(400) {
            let rank = world.random.below(ranks);
            world.actors[rank].step(&mut world.random);
        }
        lent += world.actors.iter().map(|actor| actor.loans.len()).sum::<usize>();
        world.memory.host().kill(victim, Ending::Signalled(9));
        let alive: Vec<usize> = (0..ranks).filter(|rank| *rank != victim).collect();
        world.run(&alive.iter().flat_map(|rank| ends[*rank].clone()).collect::<Vec<_>>());
        for end in alive.iter().flat_map(|rank| &ends[*rank]) {
            match taken(end) {
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
    let large = Request::new(What::Sum, COUNTS[3], None);
    let ends: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&large)).collect();
    while world.actors.iter().any(|actor| actor.loans.is_empty()) {
        for actor in &mut world.actors {
            actor.poll(false);
            actor.lend();
        }
    }
    world.actors[0].limits.deadline = Some(Duration::from_secs(10));
    let behind = world.actors[0].submit(&Request::new(What::Sum, 3, None));
    world.memory.host().set_now(Duration::from_secs(11));
    world.actors[0].poll(true);
    let error = taken(&behind).expect_err("its time is up");
    let Error::Deadline(late) = &error else { panic!("{error}") };
    assert_eq!(late.site.tag, Some(Tag::Unnamed(2)), "{error}");
    // What is lent ends with the epoch, or with what it has.
    world.run(&ends);
    for end in &ends {
        match taken(end) {
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
    let request = Request::new(What::Sum, COUNTS[1], Some("x"));
    let end = world.actors[1].submit(&request);
    world.actors[1].poll(false);
    let identity = Tag::identity("x", 0) & !1;
    let (task, _) = world.actors[0].task(&request, None);
    let Actor { windows, life, view, .. } = &world.actors[0];
    assert!(windows.announce(Announcement { identity }) && windows.append_order(identity | 1));
    let clock: &dyn Clock = windows;
    let ground = Ground { windows, peers: windows, life, view, clock };
    let mut state = ChannelState::new(Channel::Small);
    let mut cut = Cut::begin(&mut state, &task.call);
    let mut buffers = task.buffers;
    let _ = cut.meet(ground, &mut state, &mut buffers.buffers(), false);
    world.actors[1].poll(true);
    let error = taken(&end).expect_err("that cannot be");
    let Error::GroupAborted(aborted) = &error else { panic!("{error}") };
    assert_eq!(aborted.cause, Cause::Failed { by: Rank(0) }, "{error}");
}
