//! A world that runs: whose turn it is, what goes wrong when, and whether all is as it should be.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use types::{Cause, Ending, Rank};

use crate::cause::Truth;
use crate::host::{Fuse, Host};
use crate::judge::{Judge, Made};
use crate::memory::{Areas, Memory, SimWindows};
use crate::random::Random;
use crate::rank::{Ended, Going, Member, Process, Sight};
use crate::scenario::{Circle, Making, Mishap, Op, Scenario};

/// A thread that waits looks at everything so often, as `foldcast` does.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What was published is seen by all after two of these.
const TICK: Duration = Duration::from_millis(1);

/// A call that is to end has ended this much later, with the looks of a slow rank on top.
const GRACE: Duration = Duration::from_millis(150);

/// A world in which nothing moves for so long will not move again: no call may take so long.
const STUCK: Duration = Duration::from_secs(30);

/// More turns than any world needs.
const MOST_TURNS: u64 = 3_000_000;

/// Lines of a trace that are kept.
const TRACED: usize = 400;

/// How a world ended in which all was as it should be.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many launches of calls ended how.
    pub tally: BTreeMap<&'static str, u64>,
    /// Turns of the scheduler.
    pub turns: u64,
    /// Time that passed in the world.
    pub time: Duration,
}

/// What was wrong in a world.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that makes this world again.
    pub seed: u64,
    /// What was wrong.
    pub wrong: Vec<String>,
    /// What happened before, if it was asked for.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "    {line}")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "seed {:#x}: {wrong}", self.seed)?;
        }
        Ok(())
    }
}

/// Runs a scenario on the windows that `wrap` makes of the simulation's own.
///
/// # Errors
/// What was wrong, with the last steps before if `traced`.
pub fn run<W: Sight>(scenario: &Scenario, wrap: &dyn Fn(SimWindows) -> W, traced: bool) -> Result<Report, Failure> {
    // A panic of the engine is as wrong as anything, and its seed is to be known.
    let ran = catch_unwind(AssertUnwindSafe(|| World::new(scenario, wrap, traced).run()));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let wrong = vec![format!("a panic: {}", text.unwrap_or("of another kind"))];
        Err(Failure { seed: scenario.seed, wrong, trace: Vec::new() })
    })
}

/// A thread whose turn it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thread {
    /// That of a rank's program.
    Main(usize),
    /// A rank's progress thread, with this group.
    Progress(usize, usize),
    /// One that waits for this call.
    Waiter(usize, usize),
}

impl Thread {
    const fn rank(self) -> usize {
        match self {
            Thread::Main(rank) | Thread::Progress(rank, _) | Thread::Waiter(rank, _) => rank,
        }
    }
}

/// A fault on its way.
#[derive(Clone, Copy)]
struct Armed {
    rank: usize,
    at: usize,
    after: usize,
    what: Mishap,
}

pub(crate) struct World<'s, W> {
    scenario: &'s Scenario,
    host: Rc<Host>,
    memories: Vec<Rc<Memory>>,
    processes: Vec<Process<W>>,
    judge: Judge,
    random: Random,
    faults: Vec<Armed>,
    /// When a fuse burns out at the latest.
    fuses: Vec<Option<Duration>>,
    /// How long a stop of the rank is to take; what it is while it is stopped: when it ends.
    stops: Vec<Option<Option<Duration>>>,
    resumes: Vec<Option<Duration>>,
    awake_since: Vec<Duration>,
    /// Ranks that do nothing any more.
    done: Vec<bool>,
    looked: BTreeMap<Thread, Duration>,
    last: Option<Thread>,
    idle: usize,
    /// Publications, steps of programs and ends of calls so far, and when the last was.
    activity: (u64, Duration),
    steps: u64,
    ticked: Duration,
    turns: u64,
    trace: Option<VecDeque<String>>,
}

impl<'s, W: Sight> World<'s, W> {
    fn new(scenario: &'s Scenario, wrap: &dyn Fn(SimWindows) -> W, traced: bool) -> World<'s, W> {
        let mut random = Random::new(scenario.seed ^ 0x7363_6865_6475_6c65);
        let ranks = scenario.ranks;
        let host = Host::new(ranks);
        for rank in 0..ranks {
            host.set_offset(rank, Duration::from_micros(random.draw() >> 20));
        }
        let memory = |circle: &Circle| {
            let Circle { geometry, lanes, ring, ref members, .. } = *circle;
            let areas = Areas { geometry, lanes, ring, members: members.clone(), immediate: false };
            let memory = Memory::new(areas, &host);
            let _ = memory.races();
            memory
        };
        let memories: Vec<Rc<Memory>> = scenario.groups.iter().map(memory).collect();
        let member = |rank: usize, number: usize| {
            let (circle, memory) = (&scenario.groups[number], &memories[number]);
            let index = circle.members.iter().position(|member| *member == rank)?;
            Some(Member::new(rank, number, circle, memory, wrap(memory.windows(index))))
        };
        let process = |(rank, program): (usize, &Vec<Op>)| {
            let members = (0..memories.len()).map(|number| member(rank, number)).collect();
            Process::new(rank, members, program.clone())
        };
        let processes = scenario.programs.iter().enumerate().map(process).collect();
        let armed = scenario.faults.iter();
        World {
            faults: armed.map(|f| Armed { rank: f.rank, at: f.at, after: f.after, what: f.what }).collect(),
            judge: Judge::new(scenario.seed, &scenario.groups),
            fuses: vec![None; ranks],
            stops: vec![None; ranks],
            resumes: vec![None; ranks],
            awake_since: vec![Duration::ZERO; ranks],
            done: vec![false; ranks],
            looked: BTreeMap::new(),
            last: None,
            idle: 0,
            activity: (0, Duration::ZERO),
            steps: 0,
            ticked: Duration::ZERO,
            turns: 0,
            trace: traced.then(VecDeque::new),
            scenario,
            host,
            memories,
            processes,
            random,
        }
    }

    fn note(&mut self, line: impl FnOnce(&Judge) -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() == TRACED {
                trace.pop_front();
            }
            let line = format!("{:?} {}", self.host.now(), line(&self.judge));
            trace.push_back(line);
        }
    }

    fn run(mut self) -> Result<Report, Failure> {
        let mut threads = Vec::new();
        loop {
            self.faults();
            self.threads(&mut threads);
            let asleep = self.resumes.iter().flatten().any(|at| *at < Duration::MAX);
            if threads.is_empty() && !asleep {
                break;
            }
            if let Some(thread) = self.choose(&threads) {
                self.turn(thread);
            }
            self.time(threads.len());
            self.turns += 1;
            if self.turns.is_multiple_of(64) {
                self.overdue();
            }
            if self.turns > MOST_TURNS || self.host.now() > self.activity.1 + STUCK {
                let pending: Vec<_> = self.judge.pending().take(9).map(|id| self.judge.describe(id)).collect();
                self.judge.wrong.push(format!("the world does not end: {}", pending.join("; ")));
            }
            if !self.judge.wrong.is_empty() {
                return Err(self.failure());
            }
        }
        self.afterwards();
        if !self.judge.wrong.is_empty() {
            return Err(self.failure());
        }
        Ok(Report { tally: self.judge.tally, turns: self.turns, time: self.host.now() })
    }

    fn failure(self) -> Failure {
        let trace = self.trace.into_iter().flatten().collect();
        Failure { seed: self.scenario.seed, wrong: self.judge.wrong, trace }
    }

    /// The threads that can have a turn.
    fn threads(&self, threads: &mut Vec<Thread>) {
        threads.clear();
        for process in &self.processes {
            let rank = process.rank;
            if self.done[rank] || self.host.is_stopped(rank) {
                continue;
            }
            if process.at < process.program.len() || process.main.is_some() {
                threads.push(Thread::Main(rank));
            }
            threads.extend(process.threads.iter().map(|waiting| Thread::Waiter(rank, waiting.id)));
            let groups = process.members.iter().enumerate();
            let busy = groups.filter(|(_, member)| member.as_ref().is_some_and(Member::needs_progress));
            threads.extend(busy.map(|(group, _)| Thread::Progress(rank, group)));
        }
    }

    /// Whose turn it is: of one that has waited for too long, or anybody's.
    fn choose(&mut self, threads: &[Thread]) -> Option<Thread> {
        if threads.is_empty() {
            return None;
        }
        let now = self.host.now();
        for thread in threads {
            self.looked.entry(*thread).or_insert(now);
        }
        let waited = |thread: &Thread| now - self.looked[thread];
        let patience = |thread: &Thread| LOOK_EVERY * self.slowness(thread.rank());
        if let Some(late) = threads.iter().find(|thread| waited(thread) >= patience(thread)) {
            return Some(*late);
        }
        if self.scenario.bursts
            && let Some(last) = self.last.filter(|last| threads.contains(last))
            && self.random.chance(7, 8)
        {
            return Some(last);
        }
        let mut drawn = self.random.pick(threads);
        for _ in 1..self.slowness(drawn.rank()) {
            drawn = self.random.pick(threads);
        }
        Some(drawn)
    }

    fn slowness(&self, rank: usize) -> u32 {
        u32::try_from(self.scenario.slowness[rank]).expect("a small factor")
    }

    fn turn(&mut self, thread: Thread) {
        let (rank, now) = (thread.rank(), self.host.now());
        let look = now - self.looked[&thread] >= LOOK_EVERY || self.random.chance(1, 4);
        if look {
            self.looked.insert(thread, now);
        }
        self.last = Some(thread);
        for member in self.processes[rank].members.iter().flatten() {
            member.memory.advance(member.index, &mut self.random);
        }
        let ended = match thread {
            Thread::Main(_) => self.main(rank, look),
            Thread::Progress(_, group) => {
                let process = &mut self.processes[rank];
                let ends = std::sync::Arc::clone(&process.ends);
                process.member(group).progress(look, &mut self.random, &ends)
            }
            Thread::Waiter(_, id) => {
                let process = &mut self.processes[rank];
                let at = process.threads.iter().position(|waiting| waiting.id == id);
                process.go_on(at, look, &mut self.random)
            }
        };
        self.settle(rank, ended);
    }

    /// After a turn: what has ended is judged, unless the rank itself has ended.
    fn settle(&mut self, rank: usize, ended: Vec<Ended>) {
        let truth = Truth { host: &self.host, memories: &self.memories };
        self.judge.watch(&truth);
        for memory in &self.memories {
            self.judge.wrong.extend(memory.races());
        }
        if self.host.is_gone(rank) && !self.done[rank] {
            self.bury(rank);
            return;
        }
        for Ended { id, launch, result, held } in ended {
            self.steps += 1;
            let truth = Truth { host: &self.host, memories: &self.memories };
            self.judge.end((id, launch), result.clone(), held.content(), &truth);
            self.note(|judge| {
                let how = result.map_or_else(|error| error.to_string(), |()| "right".into());
                format!("{}, launch {launch}, ends: {how}", judge.describe(id))
            });
        }
    }

    /// A turn of a rank's program.
    fn main(&mut self, rank: usize, look: bool) -> Vec<Ended> {
        let process = &mut self.processes[rank];
        if process.main.is_some() {
            return process.go_on(None, look, &mut self.random);
        }
        let Some(op) = process.program.get(process.at).cloned() else { return Vec::new() };
        let (going, ended) = match op {
            Op::Call(making) => self.call(rank, &making),
            Op::Wait if process.is_busy() => (Going::Waits, Vec::new()),
            Op::Wait => (Going::On, Vec::new()),
            Op::Abort(group) => {
                if let Some(member) = self.processes[rank].members[group].as_ref().filter(|member| !member.closed) {
                    self.judge.epochs[group].requested.insert(rank);
                    member.end(&Cause::Requested { by: Rank::from_index(rank) });
                }
                (Going::On, Vec::new())
            }
            Op::Destroy(group) => (Going::On, self.close(rank, group, false)),
            Op::Leave => (Going::On, self.leave(rank)),
        };
        if going == Going::On {
            self.processes[rank].at += 1;
            self.steps += 1;
            let at = self.processes[rank].at - 1;
            self.note(|_| format!("rank {rank} does step {at}"));
        }
        ended
    }

    fn call(&mut self, rank: usize, making: &Making) -> (Going, Vec<Ended>) {
        let process = &mut self.processes[rank];
        if process.waits_for_turn(making) {
            return (Going::Waits, Vec::new());
        }
        if let Some(error) = process.refusal(making) {
            let truth = Truth { host: &self.host, memories: &self.memories };
            self.judge.watch(&truth);
            self.judge.refused(rank, making.group, &error);
            return (Going::On, Vec::new());
        }
        let index = process.member(making.group).index;
        let made = Made::new(rank, (making.group, index), making, self.host.now());
        let id = self.judge.make(made);
        self.note(|judge| format!("{} is made, {:?}", judge.describe(id), making.mode));
        let inputs = (0..making.spec.launches.len()).map(|launch| self.judge.input(id, launch)).collect();
        (Going::On, self.processes[rank].make(making, id, inputs, &mut self.random))
    }

    /// Closes a rank's part of a group, if that is allowed.
    fn close(&mut self, rank: usize, group: usize, always: bool) -> Vec<Ended> {
        let process = &mut self.processes[rank];
        let ends = std::sync::Arc::clone(&process.ends);
        let Some(member) = process.members[group].as_mut().filter(|member| !member.closed) else { return Vec::new() };
        let allowed = group != 0 && (!member.is_busy() || !member.life.is_live());
        if !always && !allowed {
            return Vec::new();
        }
        self.judge.epochs[group].closed.push((rank, member.unnamed.state.calls()));
        member.close(&ends)
    }

    fn leave(&mut self, rank: usize) -> Vec<Ended> {
        let mut ended = Vec::new();
        for group in 0..self.memories.len() {
            ended.extend(self.close(rank, group, true));
        }
        let process = &mut self.processes[rank];
        while !process.threads.is_empty() {
            ended.extend(process.go_on(Some(0), true, &mut self.random));
        }
        process.at = process.program.len();
        process.has_left = true;
        let calls = process.member(0).unnamed.state.calls();
        let delays: Vec<_> = (0..self.scenario.ranks).map(|_| self.delay(2_000)).collect();
        if !self.host.is_gone(rank) {
            self.settle(rank, core::mem::take(&mut ended));
            self.host.end(rank, Ending::Left(calls), &delays);
            self.done[rank] = true;
        }
        ended
    }

    fn delay(&mut self, most_us: usize) -> Duration {
        Duration::from_micros(u64::try_from(self.random.below(most_us)).expect("a small number"))
    }

    /// A rank has ended in the middle of something: the others learn it sooner or later.
    fn bury(&mut self, rank: usize) {
        let ending = self.random.pick(&[Ending::Signalled(9), Ending::Exited(1), Ending::Unknown, Ending::Exited(0)]);
        let delays: Vec<_> = (0..self.scenario.ranks).map(|_| self.delay(60_000)).collect();
        self.host.end(rank, ending, &delays);
        self.done[rank] = true;
        self.judge.forget(rank);
        self.note(|_| format!("rank {rank} {ending}"));
    }

    /// What goes wrong now.
    fn faults(&mut self) {
        let now = self.host.now();
        let mut fired = Vec::new();
        let processes = &self.processes;
        self.faults.retain_mut(|fault| {
            if processes[fault.rank].at < fault.at {
                return true;
            }
            if fault.after == 0 {
                fired.push(*fault);
                return false;
            }
            fault.after -= 1;
            true
        });
        fired.retain(|fault: &Armed| !self.done[fault.rank]);
        for Armed { rank, what, .. } in fired {
            self.note(|_| format!("rank {rank}: {what:?}"));
            match what {
                Mishap::Crash(more) => {
                    self.host.set_fuse(rank, more, Fuse::Gone);
                    self.fuses[rank] = Some(now + TICK * 5);
                }
                Mishap::Stop(more, time) => {
                    self.host.set_fuse(rank, more, Fuse::Stopped);
                    self.fuses[rank] = Some(now + TICK * 5);
                    self.stops[rank] = Some(time);
                }
                Mishap::Interrupt => {
                    for group in 0..self.memories.len() {
                        self.judge.epochs[group].interrupted.insert(rank);
                    }
                    self.processes[rank].interrupted = true;
                }
            }
        }
        for rank in 0..self.scenario.ranks {
            if self.fuses[rank].is_some_and(|at| at <= now) {
                self.fuses[rank] = None;
                self.host.burn(rank);
                self.settle(rank, Vec::new());
            }
            if self.host.is_stopped(rank)
                && let Some(time) = self.stops[rank].take()
            {
                self.resumes[rank] = Some(time.map_or(Duration::MAX, |time| now + time));
            }
            if self.resumes[rank].is_some_and(|at| at <= now) {
                self.resumes[rank] = None;
                self.awake_since[rank] = now;
                self.host.resume(rank);
                for member in self.processes[rank].members.iter().flatten() {
                    member.memory.resume(member.index);
                }
                self.note(|_| format!("rank {rank} is continued"));
            }
        }
    }

    /// Lets time pass: little where something moves, and more where all wait.
    fn time(&mut self, threads: usize) {
        let activity = self.host.activity() + self.steps;
        if activity != self.activity.0 {
            self.activity = (activity, self.host.now());
            self.idle = 0;
        }
        self.idle += 1;
        let quiet = self.host.now() - self.activity.1 > LOOK_EVERY;
        if self.idle > threads * if quiet { 1 } else { 3 } {
            self.idle = 0;
            self.host.pass(LOOK_EVERY);
        } else {
            let step = self.delay(100);
            self.host.pass(step);
        }
        if self.host.now() >= self.ticked + TICK {
            self.ticked = self.host.now();
            for memory in &self.memories {
                memory.tick();
            }
        }
    }

    /// Looks for calls that should have ended.
    fn overdue(&mut self) {
        let now = self.host.now();
        let mut late = Vec::new();
        for id in self.judge.pending() {
            let made = &self.judge.made[id];
            let rank = made.rank;
            if self.done[rank] || self.host.is_stopped(rank) {
                continue;
            }
            let from = |time: Duration| time.max(made.begun).max(self.awake_since[rank]);
            // The time of a call that a thread waits for begins with the first look, which a stop may put off.
            let limit = made.limit.map(|limit| from(made.begun) + limit);
            // What a rank says in the moment in which it is stopped is heard when it is continued.
            let epoch = &self.judge.epochs[made.group];
            let told = epoch.author.filter(|author| !self.host.is_stopped(*author));
            let over = epoch.over.as_ref().zip(told).map(|((at, _), author)| (*at).max(self.awake_since[author]));
            let gone = (0..self.scenario.ranks).filter(|other| self.judge.awaits_absent(id, *other));
            let gone = gone.filter_map(|other| self.host.known_at(rank, other)).min();
            let gone = gone.map(|at| at.max(self.judge.next_since(id)));
            let due = [limit, over, gone].into_iter().flatten().map(from).min();
            let grace = GRACE + 4 * LOOK_EVERY * self.slowness(rank);
            if due.is_some_and(|due| now > due + grace) {
                late.push(format!("{} should have ended: limit {limit:?}, over {over:?}, gone {gone:?}", {
                    self.judge.describe(id)
                }));
            }
        }
        self.judge.wrong.extend(late);
    }

    /// When all programs have ended: nothing is pending, and whoever is in a group that is over knows why.
    fn afterwards(&mut self) {
        for memory in &self.memories {
            for rank in 0..memory.areas().members.len() {
                memory.resume(rank);
            }
            memory.tick();
            memory.tick();
        }
        let left: Vec<usize> = self.judge.pending().filter(|id| !self.is_out(self.judge.made[*id].rank)).collect();
        for id in left {
            self.judge.wrong.push(format!("{} has not ended", self.judge.describe(id)));
        }
        for rank in 0..self.scenario.ranks {
            if self.is_out(rank) {
                continue;
            }
            for group in 0..self.memories.len() {
                self.last_look(rank, group);
            }
        }
    }

    fn last_look(&mut self, rank: usize, group: usize) {
        let process = &self.processes[rank];
        let Some(member) = process.members[group].as_ref().filter(|member| !member.closed) else { return };
        if !member.unnamed.is_idle() {
            self.judge.wrong.push(format!("rank {rank} has unnamed calls of group {group} left"));
        }
        let refusal = member.next_call();
        match (refusal, self.judge.epochs[group].over.is_some()) {
            (Some(error), _) => self.judge.refused(rank, group, &error),
            (None, true) => self.judge.wrong.push(format!("rank {rank} does not know that group {group} is over")),
            (None, false) => {}
        }
    }

    /// Whether a rank takes no part any more.
    fn is_out(&self, rank: usize) -> bool {
        self.done[rank] || self.host.is_stopped(rank)
    }
}
