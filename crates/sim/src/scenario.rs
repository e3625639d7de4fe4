//! What is to happen in a world: drawn from the seed before anything runs, and plain data, so that it can be printed and cut
//! down. What the schedule and the memory make of it is drawn apart from it.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::Choice;
use plan::Constants;
use types::transport::Geometry;
use types::{DataType, OpKind, Product, Reduction};

use crate::random::Random;
use crate::spec::Spec;

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of all that is drawn on the way.
    pub seed: u64,
    /// Number of processes.
    pub ranks: usize,
    /// The groups; the first is that of all ranks.
    pub groups: Vec<Circle>,
    /// What each rank does, in its order.
    pub programs: Vec<Vec<Op>>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How much more slowly a rank goes on than the others, by rank.
    pub slowness: Vec<usize>,
    /// Whether one thread goes on for a while before another does.
    pub bursts: bool,
}

/// A group of a world.
#[derive(Clone, Debug)]
pub struct Circle {
    /// The ranks of the members, ascending.
    pub members: Vec<usize>,
    /// Sizes of its areas.
    pub geometry: Geometry,
    /// Lanes of large unnamed calls.
    pub lanes: usize,
    /// Entries of the lists of named calls.
    pub ring: u64,
    /// What decides between algorithms.
    pub choice: Choice,
    /// The epoch of each member; one that differs is a fault.
    pub epochs: Vec<u64>,
}

/// How a rank makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The rank's program waits for it.
    Blocking,
    /// The progress thread runs it.
    Submitted,
    /// A thread of its own waits for it; named calls only.
    Thread,
}

/// A call in a program.
#[derive(Clone, Debug)]
pub struct Making {
    /// Number of the call, the same on all its ranks.
    pub call: usize,
    /// Its group.
    pub group: usize,
    /// What it does, on this rank.
    pub spec: Spec,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// How it is made.
    pub mode: Mode,
    /// Whether the result replaces the input.
    pub in_place: bool,
    /// How long it may take.
    pub limit: Option<Duration>,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Op {
    /// Makes a call.
    Call(Making),
    /// Waits until all that this rank has submitted has ended.
    Wait,
    /// Closes this rank's part of a group, if nothing of it is in flight.
    Destroy(usize),
    /// Ends a group's epoch.
    Abort(usize),
    /// Leaves the world, whatever is in flight.
    Leave,
}

/// Something that goes wrong: when the rank has begun step `at` of its program, and `after` turns of the world more.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Whom it befalls.
    pub rank: usize,
    /// The step of its program.
    pub at: usize,
    /// Turns of the world after that.
    pub after: usize,
    /// What it is.
    pub what: Mishap,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The process ends when it has published so many things more, or soon.
    Crash(u64),
    /// The process is stopped likewise, for so long, or for ever.
    Stop(u64, Option<Duration>),
    /// The next wait of the rank's program is interrupted.
    Interrupt,
}

/// What of a scenario is to be left out, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Calls, on all ranks.
    pub calls: BTreeSet<usize>,
    /// Faults.
    pub faults: BTreeSet<usize>,
}

/// How much is to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// All calls succeed.
    Fair,
    /// Ranks disagree now and then: mismatches, and nothing else.
    Disputes,
    /// Groups end.
    Storm,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Scenario {
        Draft::new(seed).scenario()
    }

    /// The same without some of it.
    #[must_use]
    pub fn without(mut self, cuts: &Cuts) -> Scenario {
        for program in &mut self.programs {
            // A call that is left out stays as a step that does nothing, so that faults keep their places.
            for op in program {
                if matches!(op, Op::Call(making) if cuts.calls.contains(&making.call)) {
                    *op = Op::Wait;
                }
            }
        }
        let faults = self.faults.into_iter().enumerate();
        self.faults = faults.filter(|(at, _)| !cuts.faults.contains(at)).map(|(_, fault)| fault).collect();
        self
    }

    /// Number of calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        let numbers = self.programs.iter().flatten().filter_map(|op| match op {
            Op::Call(making) => Some(making.call + 1),
            _ => None,
        });
        numbers.max().unwrap_or(0)
    }
}

/// Calls of a batch, after which the ranks wait for each other, at most.
const MOST_CALLS: usize = 6;

struct Draft {
    seed: u64,
    random: Random,
    ranks: usize,
    weather: Weather,
    /// The limit that calls have.
    limit: Option<Duration>,
    groups: Vec<Circle>,
}

impl Draft {
    fn new(seed: u64) -> Draft {
        let mut random = Random::new(seed);
        let ranks = 1 + random.below(9).min(random.below(9));
        let weather = random.pick(&[Weather::Fair, Weather::Disputes, Weather::Storm, Weather::Storm, Weather::Storm]);
        let limit = match weather {
            Weather::Storm => Some(Duration::from_millis(200 + u64::try_from(random.below(1500)).expect("small"))),
            _ => None,
        };
        let mut draft = Draft { seed, random, ranks, weather, limit, groups: Vec::new() };
        let all: Vec<usize> = (0..ranks).collect();
        draft.add_group(all);
        for _ in 0..draft.random.below(4) {
            let members: Vec<usize> = (0..ranks).filter(|_| draft.random.chance(2, 3)).collect();
            if !members.is_empty() {
                draft.add_group(members);
            }
        }
        draft
    }

    fn add_group(&mut self, members: Vec<usize>) {
        let random = &mut self.random;
        let ranks = members.len();
        let geometry = match random.below(24) {
            0 if ranks <= 4 => Geometry::of(ranks),
            _ => Geometry {
                ranks,
                slot_bytes: random.pick(&[64, 64, 128, 256]),
                chunk_bytes: random.pick(&[64, 128, 128, 256, 1024]),
                pair_depth: if ranks <= 2 { random.pick(&[4, 8]) } else { random.pick(&[1, 1, 2, 4]) },
            },
        };
        let choice = match random.below(4) {
            0 => Choice { forced: Some(random.pick(&plan::all_reduce_algorithms())), ..Choice::default() },
            // Costs that are nobody's, so that other algorithms are the cheapest.
            1 => {
                let mut values = [0.1_f64, 0.1, 0.02, 0.01, 0.03, 0.05, 0.0];
                for value in &mut values {
                    *value *= random.pick(&[0.01, 1.0, 50.0]);
                }
                values[6] = random.pick(&[0.0, 4096.0, 1e6]);
                Choice { constants: Constants::from_values(values).unwrap_or_default(), forced: None }
            }
            _ => Choice::default(),
        };
        let mut epochs = vec![1; ranks];
        if self.weather == Weather::Disputes && random.chance(1, 12) {
            epochs[random.below(ranks)] = 2;
        }
        let (lanes, ring) = (random.pick(&[1, 2, 3]), random.pick(&[4, 8, 16]));
        self.groups.push(Circle { members, geometry, lanes, ring, choice, epochs });
    }

    fn scenario(mut self) -> Scenario {
        let mut programs: Vec<Vec<Op>> = vec![Vec::new(); self.ranks];
        let mut call = 0;
        for batch in 0..1 + self.random.below(3) {
            let mut batches: Vec<Vec<Op>> = vec![Vec::new(); self.ranks];
            for _ in 0..1 + self.random.below(MOST_CALLS) {
                self.call(call, batch, &mut batches);
                call += 1;
            }
            for (program, mut ops) in programs.iter_mut().zip(batches) {
                self.reorder(&mut ops);
                program.append(&mut ops);
                program.push(Op::Wait);
            }
        }
        let mut faults = Vec::new();
        if self.weather == Weather::Storm {
            for _ in 0..1 + self.random.below(3) {
                self.mishap(&mut programs, &mut faults);
            }
        }
        let slowness = (0..self.ranks).map(|_| self.random.pick(&[1, 1, 1, 1, 1, 8])).collect();
        let bursts = self.random.chance(1, 2);
        let Draft { seed, ranks, groups, .. } = self;
        Scenario { seed, ranks, groups, programs, faults, slowness, bursts }
    }

    /// Draws a call and adds it to the programs of its ranks.
    fn call(&mut self, call: usize, batch: usize, programs: &mut [Vec<Op>]) {
        let group = self.random.below(self.groups.len());
        let spec = self.spec(group);
        // A name stands once in a batch, and in later ones again.
        let named = self.random.chance(9, 20);
        let again = batch > 0 && call >= MOST_CALLS && self.random.chance(1, 2);
        let name = named.then(|| format!("n{}", if again { call - MOST_CALLS } else { call }));
        let members = self.groups[group].members.clone();
        let disputes = match self.weather {
            Weather::Fair => false,
            Weather::Disputes => self.random.chance(2, 5),
            Weather::Storm => self.random.chance(1, 10),
        };
        let odd = disputes.then(|| self.random.below(members.len()));
        for (at, rank) in members.iter().enumerate() {
            let spec = if odd == Some(at) { self.other(&spec, group) } else { spec.clone() };
            let mode = match (named, self.random.below(10)) {
                (true, 0..3) | (false, 0..6) => Mode::Blocking,
                (true, 3..5) => Mode::Thread,
                _ => Mode::Submitted,
            };
            let limit = match self.random.below(8) {
                0 if self.limit.is_none() => Some(Duration::from_secs(10_000)),
                _ => self.limit,
            };
            let in_place = self.random.chance(1, 2);
            let name = name.clone();
            programs[*rank].push(Op::Call(Making { call, group, spec, name, mode, in_place, limit }));
        }
    }

    fn spec(&mut self, group: usize) -> Spec {
        let dtype = self.random.pick(&DataType::ALL);
        let ranks = self.groups[group].members.len();
        match self.random.below(20) {
            0..9 => Spec::all_reduce(dtype, self.random.pick(&Reduction::ALL), self.elements(group, dtype)),
            9..12 => Spec::broadcast(dtype, self.elements(group, dtype), self.random.below(ranks)),
            12..15 => {
                let even = self.random.chance(1, 2);
                let most = self.elements(group, dtype) / ranks + 1;
                let first = self.random.below(most);
                let piece = |_| if even { first } else { self.random.below(most) };
                Spec::all_gather(dtype, (0..ranks).map(piece).collect())
            }
            15 => Spec::barrier(),
            _ => self.list(group, dtype),
        }
    }

    /// A list of two or three launches, or of one.
    fn list(&mut self, group: usize, dtype: DataType) -> Spec {
        let launches: Vec<usize> = (0..1 + self.random.below(3)).map(|_| self.elements(group, dtype)).collect();
        let ranks = self.groups[group].members.len();
        let spec = match self.random.below(4) {
            0 => Spec::broadcast(dtype, 0, self.random.below(ranks)),
            _ => Spec::all_reduce(dtype, self.random.pick(&Reduction::ALL), 0),
        };
        Spec { list: Some((launches.clone(), self.random.draw() % 2)), launches, ..spec }
    }

    /// A number of elements around one at which something changes, or any.
    fn elements(&mut self, group: usize, dtype: DataType) -> usize {
        let Geometry { ranks, slot_bytes, chunk_bytes, .. } = self.groups[group].geometry;
        let most = if chunk_bytes > 1024 { chunk_bytes * 3 } else { 20 * chunk_bytes };
        let bytes = match self.random.below(10) {
            0 => 0,
            1 => dtype.size() * (1 + self.random.below(3)),
            2 => 48,
            3 => slot_bytes,
            4 => chunk_bytes,
            5 => ranks * chunk_bytes,
            6 => 2 * chunk_bytes,
            // What is cut into lanes.
            7 => 8 * chunk_bytes,
            8 => 16 * chunk_bytes,
            _ => self.random.below(most),
        };
        let elements = bytes.min(most) / dtype.size();
        (elements + self.random.below(3)).saturating_sub(1)
    }

    /// A call that differs from this one in something that ranks compare.
    fn other(&mut self, spec: &Spec, group: usize) -> Spec {
        let mut other = spec.clone();
        match self.random.below(8) {
            0 => other.settings = spec.settings ^ (1 << 8 << self.random.below(40)),
            1 => other.settings = Product::AtlasA2.into_settings(spec.settings),
            2 => return self.spec(group),
            3 => return Spec::barrier(),
            4 if spec.kind != OpKind::Barrier => {
                other.dtype = self.random.pick(&DataType::ALL);
            }
            5 if spec.kind == OpKind::AllReduce => other.reduction = self.random.pick(&Reduction::ALL),
            6 if spec.kind == OpKind::Broadcast => {
                other.root = Some(self.random.below(self.groups[group].members.len()))
            }
            7 if spec.kind == OpKind::AllGather => {
                let at = self.random.below(spec.pieces.len());
                other.pieces[at] += 1;
                other.launches = vec![other.pieces.iter().sum()];
            }
            _ if spec.kind == OpKind::AllReduce || spec.kind == OpKind::Broadcast => {
                let at = self.random.below(spec.launches.len());
                other.launches[at] += 1;
                if let Some((sizes, _)) = &mut other.list {
                    sizes[at] += 1;
                }
            }
            _ => return Spec::all_reduce(DataType::Int32, Reduction::Sum, 7),
        }
        other
    }

    /// Lets named calls that nobody waits for come earlier: the ranks submit them in different orders.
    fn reorder(&mut self, ops: &mut [Op]) {
        for at in 1..ops.len() {
            let moves = matches!(&ops[at], Op::Call(making) if making.name.is_some() && making.mode != Mode::Blocking);
            if moves && self.random.chance(2, 3) {
                let to = self.random.below(at + 1);
                ops[to..=at].rotate_right(1);
            }
        }
    }

    fn mishap(&mut self, programs: &mut [Vec<Op>], faults: &mut Vec<Fault>) {
        let rank = self.random.below(self.ranks);
        let at = self.random.below(programs[rank].len());
        let after = self.random.below(60);
        let few = u64::try_from(self.random.below(5)).expect("small");
        let group = self.random.below(self.groups.len());
        let what = match self.random.below(10) {
            0..3 => Mishap::Crash(few),
            3 => Mishap::Stop(few, None),
            4 => Mishap::Stop(few, Some(Duration::from_millis(1 + 20 * few * few * few))),
            5 => Mishap::Interrupt,
            6 => return programs[rank].insert(at, Op::Abort(group)),
            7 => return programs[rank].insert(at, Op::Destroy(group)),
            8 => return programs[rank].insert(at, Op::Leave),
            _ => {
                // One that forgets a call.
                programs[rank][at] = Op::Wait;
                return;
            }
        };
        faults.push(Fault { rank, at, after, what });
    }
}
