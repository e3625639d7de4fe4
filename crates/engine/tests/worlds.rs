#![allow(clippy::unwrap_used, reason = "a test fails by it")]
//! The engine against worlds whose schedule, time and deaths the test decides: every rank in one thread, whose turn it is
//! drawn from a seed. A failing seed replays exactly.

mod support;

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldcast_engine::*;
use support::{LANES, Memory, Random, SimWindows, memory, view};
use types::transport::{Clock, Geometry, Windows};
use types::{Buffers, Cause, DataType, Ending, Error, OpKind, Rank, Reduction, Result};

/// Miri is some thousand times slower.
const SEEDS: u64 = if cfg!(miri) { 2 } else { 60 };

/// Small areas, so that small calls take many rounds.
fn geometry(ranks: usize) -> Geometry {
    let pair_depth = if ranks == 2 { 4 } else { 1 };
    Geometry { ranks, slot_bytes: 64, chunk_bytes: 128, pair_depth }
}

struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
    in_place: bool,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        if self.in_place {
            return Buffers::InPlace(&mut self.output);
        }
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

type Outcome = Arc<Mutex<Option<Result<Vec<i32>>>>>;

/// Keeps the end of a call, and its output.
fn collector(outcome: &Outcome) -> foldcast_engine::Completion {
    let slot = Arc::clone(outcome);
    Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.output_len();
        let words = buffers.output(all).as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
        assert!(slot.lock().unwrap().replace(result.map(|()| words)).is_none(), "each call ends once");
    })
}

/// One call as a rank makes it.
#[derive(Clone, Debug)]
struct Request {
    kind: OpKind,
    dtype: DataType,
    reduction: Reduction,
    /// Elements of the output.
    count: usize,
    root: usize,
    /// Elements of each rank's piece, in an allgather.
    counts: Vec<usize>,
    name: Option<String>,
    in_place: bool,
}

impl Request {
    fn sum(count: usize) -> Request {
        Request {
            kind: OpKind::AllReduce,
            dtype: DataType::Int32,
            reduction: Reduction::Sum,
            count,
            root: 0,
            counts: Vec::new(),
            name: None,
            in_place: false,
        }
    }

    fn broadcast(root: usize, count: usize) -> Request {
        Request { kind: OpKind::Broadcast, root, ..Request::sum(count) }
    }

    fn gather(counts: &[usize]) -> Request {
        Request { kind: OpKind::AllGather, counts: counts.to_vec(), ..Request::sum(counts.iter().sum()) }
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

    fn work(&self) -> Work {
        match self.kind {
            OpKind::AllReduce => Work::all_reduce(self.dtype, self.reduction, self.count * self.dtype.size()),
            OpKind::Barrier => Work::barrier(),
            OpKind::Broadcast => {
                Work::broadcast(self.dtype, self.count * self.dtype.size(), self.root, Rank::from_index(10 * self.root))
            }
            OpKind::AllGather => Work::all_gather(self.dtype, &self.counts),
        }
    }

    /// Where a rank's own elements stand in the output.
    fn own(&self, rank: usize) -> std::ops::Range<usize> {
        if self.kind != OpKind::AllGather {
            return 0..self.count;
        }
        let start = self.counts[..rank].iter().sum();
        start..start + self.counts[rank]
    }

    /// What all ranks must get.
    fn expected(&self, ranks: usize) -> Vec<i32> {
        match self.kind {
            OpKind::AllReduce | OpKind::Barrier => expected(ranks, self.count),
            OpKind::Broadcast => (0..self.count).map(|at| element(self.root, at)).collect(),
            OpKind::AllGather => {
                let owners = self.counts.iter().enumerate();
                owners.flat_map(|(owner, count)| (0..*count).map(move |at| element(owner, at))).collect()
            }
        }
    }

    fn named(self, name: &str) -> Request {
        Request { name: Some(name.into()), ..self }
    }
}

fn element(rank: usize, at: usize) -> i32 {
    i32::try_from(rank * 1000 + at % 977).expect("small numbers")
}

fn expected(ranks: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| (0..ranks).map(|rank| element(rank, at)).sum()).collect()
}

struct Actor {
    windows: SimWindows,
    life: Life,
    view: foldcast_engine::View,
    unnamed: UnnamedLane,
    named: NamedLane,
    limits: Limits,
}

impl Actor {
    fn submit(&mut self, request: &Request) -> Outcome {
        let rank = self.windows.rank();
        let lane = if request.name.is_some() { &mut self.named.preparer } else { &mut self.unnamed.preparer };
        let size = request.dtype.size();
        let (bytes, own) = (request.count * size, request.own(rank));
        let call = lane.call(&request.work(), self.limits);
        let call = call.started(self.windows.now());
        let input: Vec<u8> = (0..own.len()).flat_map(|at| element(rank, at).to_le_bytes()).collect();
        let mut output = vec![0xAA; bytes];
        if request.in_place {
            output[own.start * size..own.end * size].copy_from_slice(&input);
        }
        let buffers = Box::new(Owned { input, output, in_place: request.in_place });
        let outcome = Outcome::default();
        if !self.life.is_live() {
            // As a front end does: a call that finds the group over is refused when it is made.
            let site = self.view.site(request.kind.name(), None);
            *outcome.lock().unwrap() = Some(Err(self.life.error(site, Duration::ZERO, false)));
            return outcome;
        }
        let done = collector(&outcome);
        match &request.name {
            Some(name) => self.named.submit(Task { call: call.named(name), buffers, done, next: None }),
            None => self.unnamed.submit(Task { call, buffers, done, next: None }),
        }
        outcome
    }

    fn poll(&mut self, look: bool) {
        let clock: &dyn Clock = &self.windows;
        let ground = Ground { windows: &self.windows, peers: &self.windows, life: &self.life, view: &self.view, clock };
        let mut finished = self.unnamed.poll(ground, look);
        finished.extend(self.named.poll(ground, None, look).finished);
        for (task, result) in finished {
            task.finish(result);
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
        let terms = Terms { geometry: geometry(ranks), choice: Choice::default(), lanes: LANES };
        let preparer = |rank| Preparer::new(Arc::new(terms.clone()), rank, 0, 0);
        let limits = Limits { deadline: Some(Duration::from_secs(100)), first_warning: Duration::from_secs(5) };
        let actor = |rank| Actor {
            windows: memory.windows(rank),
            life: Life::default(),
            view: view(rank, ranks),
            unnamed: UnnamedLane::new(preparer(rank)),
            named: NamedLane::new(preparer(rank)),
            limits,
        };
        let actors = (0..ranks).map(actor).collect();
        World { memory, actors, random: Random::new(seed) }
    }

    fn ranks(&self) -> usize {
        self.actors.len()
    }

    /// Lets ranks that live take turns until all these outcomes are there.
    fn run(&mut self, outcomes: &[Outcome]) {
        const TURNS: usize = 1_000_000;
        for turn in 0..TURNS {
            if outcomes.iter().all(|outcome| outcome.lock().unwrap().is_some()) {
                return;
            }
            let rank = self.random.below(self.ranks());
            if !self.memory.host().is_gone(rank) {
                let look = self.random.below(4) == 0;
                self.actors[rank].poll(look);
            }
            if turn % 64 == 0 {
                self.memory.host().pass(Duration::from_millis(10));
            }
        }
        panic!("the calls do not end");
    }

    /// All ranks make this call and it must be right.
    fn good_call(&mut self, request: &Request) {
        let outcomes: Vec<_> = self.actors.iter_mut().map(|actor| actor.submit(request)).collect();
        self.run(&outcomes);
        let want = request.expected(self.ranks());
        for outcome in outcomes {
            assert_eq!(taken(&outcome).expect("a good call"), want, "{request:?}");
        }
    }
}

fn taken(outcome: &Outcome) -> Result<Vec<i32>> {
    outcome.lock().unwrap().take().expect("an outcome")
}

#[test]
fn calls_of_all_sizes_are_right_in_every_order() {
    for seed in 0..SEEDS {
        let ranks = 2 + usize::try_from(seed % 4).unwrap();
        let mut world = World::new(ranks, seed);
        let mut outcomes = Vec::new();
        for _ in 0..12 {
            let request = Request::any(&mut world.random, ranks);
            let ends: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&request)).collect();
            outcomes.push((request, ends));
        }
        let all: Vec<_> = outcomes.iter().flat_map(|(_, ends)| ends.iter().cloned()).collect();
        world.run(&all);
        for (request, ends) in outcomes {
            for end in ends {
                assert_eq!(taken(&end).expect("a good call"), request.expected(ranks), "seed {seed}: {request:?}");
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
            for at in (1..order.len()).rev() {
                let other = world.random.below(at + 1);
                order.swap(at, other);
            }
            for name in order {
                let count = 1 + name.len() * 31 + usize::from(*name.as_bytes().last().unwrap());
                let outcome = world.actors[rank].submit(&Request::sum(count).named(name));
                outcomes.push((count, outcome));
            }
        }
        let all: Vec<_> = outcomes.iter().map(|(_, end)| Arc::clone(end)).collect();
        world.run(&all);
        for (count, end) in outcomes {
            assert_eq!(taken(&end).expect("a good call"), expected(ranks, count), "seed {seed}");
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
                    for name in [None, Some("x".to_owned())] {
                        let mut world = World::new(ranks, seed);
                        world.good_call(common);
                        let submit = |(rank, actor): (usize, &mut Actor)| {
                            let request = if rank == odd { other } else { *common };
                            actor.submit(&Request { name: name.clone(), ..request.clone() })
                        };
                        let ends: Vec<_> = world.actors.iter_mut().enumerate().map(submit).collect();
                        world.run(&ends);
                        for end in &ends {
                            let error = taken(end).expect_err("a mismatch");
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
            let submit = |(rank, actor): (usize, &mut Actor)| actor.submit(if rank == odd { &other } else { &good });
            let ends: Vec<_> = world.actors.iter_mut().enumerate().map(submit).collect();
            world.run(&ends);
            for end in &ends {
                let error = taken(end).expect_err("a mismatch");
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

/// Three calls that follow each other as one submission; `second` is the length of the second.
fn list(actor: &mut Actor, second: usize, name: Option<&str>) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = (0..3).map(|_| Outcome::default()).collect();
    let mut next = None;
    for (count, outcome) in [3, second, 200].into_iter().zip(&outcomes).rev() {
        let lane = if name.is_some() { &mut actor.named.preparer } else { &mut actor.unnamed.preparer };
        let call = lane.call(&Request::sum(count).work(), actor.limits).started(actor.windows.now());
        let call = name.map_or(call.clone(), |name| call.named(name));
        let rank = actor.windows.rank();
        let input: Vec<u8> = (0..count).flat_map(|at| element(rank, at).to_le_bytes()).collect();
        let buffers = Box::new(Owned { output: vec![0xAA; input.len()], input, in_place: false });
        let done = collector(outcome);
        next = Some(Box::new(Task { call, buffers, done, next }));
    }
    let first = *next.expect("three calls");
    match name {
        Some(_) => actor.named.submit(first),
        None => actor.unnamed.submit(first),
    }
    outcomes
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
                let second = |rank| if trial == 1 && rank == odd { 41 } else { 40 };
                let lists: Vec<_> =
                    world.actors.iter_mut().enumerate().map(|(rank, actor)| list(actor, second(rank), name)).collect();
                let mut wait: Vec<Outcome> = lists.iter().flatten().cloned().collect();
                if trial == 2 {
                    for _ in 0..world.random.below(40) {
                        let rank = world.random.below(ranks);
                        world.actors[rank].poll(false);
                    }
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
                    let ends: Vec<_> = ends.iter().map(taken).collect();
                    let failed = ends.iter().position(Result::is_err);
                    let good = failed.unwrap_or(3);
                    for (end, count) in ends[..good].iter().zip([3, 40, 200]) {
                        assert_eq!(*end, Ok(expected(ranks, count)), "seed {seed}, rank {rank}");
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
                    world.good_call(&Request { name: name.map(str::to_owned), ..Request::sum(77) });
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
                let outcome = |actor: &mut Actor| {
                    let call = actor.unnamed.preparer.call(&work, actor.limits);
                    let (outcome, output) = (Outcome::default(), vec![0xAA; own.len() * parts]);
                    let buffers = Box::new(Owned { input: own.clone(), output, in_place: false });
                    let done = collector(&outcome);
                    actor.unnamed.submit(Task { call, buffers, done, next: None });
                    outcome
                };
                let ends: Vec<_> = world.actors.iter_mut().map(outcome).collect();
                world.run(&ends);
                let want: Vec<i32> = odd.repeat(times * parts).iter().map(|bits| bits.cast_signed()).collect();
                for end in &ends {
                    assert_eq!(taken(end).expect("a good call"), want);
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
        let name = (seed % 3 == 0).then(|| "x".to_owned());
        let mut world = World::new(ranks, seed);
        world.good_call(&Request::sum(3));
        let victim = world.random.below(ranks);
        let count = [3, 40, 400][world.random.below(3)];
        let request = match world.random.below(3) {
            0 => Request::sum(count),
            1 => Request::broadcast(world.random.below(ranks), count),
            _ => Request::gather(&vec![count; ranks]),
        };
        let request = Request { name, ..request };
        let ends: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&request)).collect();
        for _ in 0..world.random.below(60) {
            let rank = world.random.below(ranks);
            world.actors[rank].poll(false);
        }
        world.memory.host().kill(victim, Ending::Signalled(9));
        let survivors: Vec<usize> = (0..ranks).filter(|rank| *rank != victim).collect();
        let alive: Vec<_> = survivors.iter().map(|rank| Arc::clone(&ends[*rank])).collect();
        world.run(&alive);
        for end in &alive {
            match taken(end) {
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
                let error = taken(end).expect_err("the group is over");
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
fn a_rank_that_finished_its_part_may_leave() {
    for seed in 0..SEEDS {
        let mut world = World::new(3, seed);
        let request = Request::sum(200);
        let ends: Vec<_> = world.actors.iter_mut().map(|actor| actor.submit(&request)).collect();
        world.run(&ends[..1]);
        world.memory.host().kill(0, Ending::Left(1));
        world.run(&ends);
        for end in &ends {
            assert_eq!(taken(end).expect("its data is there"), expected(3, 200), "seed {seed}");
        }
    }
}

#[test]
fn a_missing_rank_is_named_at_the_deadline() {
    for name in [None, Some("grad".to_owned())] {
        let mut world = World::new(3, 7);
        let request = Request { name, ..Request::sum(5) };
        let ends = [world.actors[0].submit(&request), world.actors[2].submit(&request)];
        world.actors[0].limits.deadline = None;
        for _ in 0..10 {
            world.actors[0].poll(true);
            world.actors[2].poll(true);
        }
        assert!(ends.iter().all(|end| end.lock().unwrap().is_none()), "nothing is known yet");
        world.memory.host().set_now(Duration::from_secs(101));
        world.actors[2].poll(true);
        let error = taken(&ends[1]).expect_err("the deadline");
        let Error::Deadline(deadline) = &error else { panic!("{error}") };
        assert!(deadline.peers.contains(&Rank(10)) && deadline.limit == Duration::from_secs(100), "{error}");
        assert!(error.to_string().contains("rank 10"), "{error}");
        // The other rank's call ends with it, saying whose deadline it was.
        world.actors[0].poll(true);
        let error = taken(&ends[0]).expect_err("the epoch is over");
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
    world.actors[3].windows.abort(&cause);
    world.run(&[Arc::clone(&end), Arc::clone(&named)]);
    for end in [end, named] {
        let error = taken(&end).expect_err("aborted");
        assert!(matches!(&error, Error::GroupAborted(e) if e.cause == cause), "{error}");
    }
}
