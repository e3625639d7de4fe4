//! A world of bytes: it runs plans on real memory, one step at a time, in an order that a seed decides. It knows
//! nothing of how the proof is made, so that each can convict the other.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;

use foldcast_plan::verify::{Call, Start};
use foldcast_plan::{ALGORITHMS, Algorithm, Place, Shape, Shares, Sources, Span, Step};
use types::transport::{Counter, Geometry, SLOT_INLINE_BYTES};

/// The registered algorithm of this name.
pub(crate) fn algorithm(name: &str) -> &'static dyn Algorithm {
    let found = ALGORITHMS.iter().copied().find(|algorithm| algorithm.name() == name);
    found.unwrap_or_else(|| panic!("no algorithm {name}"))
}

/// Areas so small that few bytes make many rounds.
pub(crate) fn small(ranks: usize) -> Geometry {
    Geometry { ranks, slot_bytes: 96, chunk_bytes: 64, pair_depth: if ranks == 2 { 4 } else { 1 } }
}

/// An allreduce over small areas.
pub(crate) fn small_shape(ranks: usize, bytes: usize) -> Shape {
    Shape { geometry: small(ranks), ..Shape::all_reduce(ranks, bytes, 1) }
}

/// The same of ranks that read each other's buffers.
pub(crate) fn small_readable(ranks: usize, bytes: usize) -> Shape {
    Shape { readable: true, ..small_shape(ranks, bytes) }
}

/// A broadcast over small areas.
pub(crate) fn small_broadcast(ranks: usize, root: usize, bytes: usize) -> Shape {
    Shape { geometry: small(ranks), ..Shape::broadcast(ranks, root, bytes, 1) }
}

/// An allgather over small areas.
pub(crate) fn small_gather(pieces: &[usize]) -> Shape {
    Shape { geometry: small(pieces.len()), ..Shape::all_gather(pieces, 1) }
}

/// Ways to cut about this many bytes into pieces: all equal, all different, some empty, all with one rank.
pub(crate) fn ways_to_cut(ranks: usize, bytes: usize, element: usize) -> Vec<Vec<usize>> {
    let elements = bytes / element;
    let whole = |size: usize| size * element;
    let equal = vec![whole(elements / ranks); ranks];
    let rising = (0..ranks).map(|rank| whole(elements * 2 * rank / (ranks * ranks))).collect();
    let holes = (0..ranks).map(|rank| if rank % 2 == 1 { whole(elements / ranks + rank) } else { 0 }).collect();
    let of_one = |owner| (0..ranks).map(|rank| if rank == owner { whole(elements) } else { 0 }).collect();
    vec![equal, rising, holes, of_one(ranks - 1)]
}

/// Pseudo-random numbers (xorshift64*, Vigna 2016).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits") % limit
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).expect("usize is at most 64 bits wide")
}

/// A reduction that is neither commutative nor associative, so that every change of the tree shows.
fn join(left: u8, right: u8) -> u8 {
    left.wrapping_mul(29) ^ right.wrapping_mul(113).rotate_left(3) ^ 0x5a
}

/// The canonical tree, from the top: the largest power of two of ranks on the left.
fn tree(operands: &[u8]) -> u8 {
    match operands {
        [one] => *one,
        _ => {
            let left = operands.len().next_power_of_two() / 2;
            join(tree(&operands[..left]), tree(&operands[left..]))
        }
    }
}

fn input(rank: usize, call: usize, at: usize) -> u8 {
    let bytes = [rank, call, at].map(|word| wide(word).to_le_bytes()).concat();
    types::digest(7, &bytes).to_le_bytes()[0]
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Memory {
    /// Owner and cell of a payload, and whether it is one that does not fit beside the header.
    Slot(usize, u64, bool),
    Pair(usize, usize, u64, u64),
    Gather(usize, u64),
}

struct Process {
    call: usize,
    step: usize,
    input: Vec<u8>,
    output: Vec<u8>,
}

struct World<'a> {
    calls: &'a [Call],
    positions: Vec<Start>,
    in_place: bool,
    processes: Vec<Process>,
    memory: HashMap<Memory, Vec<u8>>,
    headers: HashMap<(usize, u64), (usize, u64)>,
    counters: HashMap<(usize, Counter), u64>,
}

/// Runs the calls in an order that `seed` decides, and compares every output with what the call is to give.
pub(crate) fn run(calls: &[Call], start: Start, seed: u64, in_place: bool) -> Result<(), String> {
    let ranks = calls[0].plans.len();
    let mut next = start;
    let mut positions = Vec::new();
    for call in calls {
        positions.push(next);
        next.sequence += 1;
        if !call.mismatch {
            next.uses += call.plans[0].rounds;
            next.slots += call.plans[0].slots();
        }
    }
    let mut world = World {
        calls,
        positions,
        in_place,
        processes: Vec::new(),
        memory: HashMap::new(),
        headers: HashMap::new(),
        counters: HashMap::new(),
    };
    for rank in 0..ranks {
        world.processes.push(Process { call: 0, step: 0, input: Vec::new(), output: Vec::new() });
        world.counters.insert((rank, Counter::Staged), start.uses);
        world.counters.insert((rank, Counter::Folded), start.uses);
        world.enter(rank);
    }
    world.run(&mut Random::new(seed))
}

impl World<'_> {
    fn run(&mut self, random: &mut Random) -> Result<(), String> {
        let mut live: Vec<usize> = (0..self.processes.len()).collect();
        while !live.is_empty() {
            // One rank in eight turns is preferred for a while, so that ranks also run far apart.
            let first = random.below(live.len());
            let burst = if random.below(8) == 0 { 20 } else { 1 };
            let ready = (0..live.len()).map(|shift| live[(first + shift) % live.len()]).find(|rank| self.ready(*rank));
            let Some(rank) = ready else { return Err("deadlock".into()) };
            for _ in 0..burst {
                if self.processes[rank].call < self.calls.len() && self.ready(rank) {
                    self.step(rank)?;
                }
            }
            live.retain(|rank| self.processes[*rank].call < self.calls.len());
        }
        Ok(())
    }

    fn enter(&mut self, rank: usize) {
        let process = &mut self.processes[rank];
        process.step = 0;
        if let Some(call) = self.calls.get(process.call) {
            let bytes = call.plans[rank].shape.bytes;
            // What a rank does not give is not there: whoever reads it reads nonsense.
            let share = call.plans[rank].shape.share(rank);
            let byte = |at| if share.contains(&at) { input(rank, process.call, at) } else { 0xdd };
            process.input = (0..bytes).map(byte).collect();
            process.output = if self.in_place { process.input.clone() } else { vec![0xee; bytes] };
        }
    }

    fn leave(&mut self, rank: usize) -> Result<(), String> {
        let call = self.processes[rank].call;
        if !self.calls[call].mismatch {
            for (at, got) in self.processes[rank].output.iter().enumerate() {
                let inputs: Vec<u8> = (0..self.processes.len()).map(|rank| input(rank, call, at)).collect();
                let wanted = match &self.calls[call].plans[rank].shape.shares {
                    Shares::All => tree(&inputs),
                    Shares::Root(root) => inputs[*root],
                    Shares::Pieces(pieces) => {
                        let ends = pieces.iter().scan(0, |end, piece| {
                            *end += piece;
                            Some(*end)
                        });
                        inputs[ends.take_while(|end| *end <= at).count()]
                    }
                };
                if *got != wanted {
                    return Err(format!("call {call}, rank {rank}: output {at} is wrong"));
                }
            }
        }
        self.processes[rank].call += 1;
        self.enter(rank);
        Ok(())
    }

    /// Steps of the call that are run: up to `Meet` if it is a mismatch.
    fn length(&self, rank: usize) -> usize {
        let call = &self.calls[self.processes[rank].call];
        let steps = &call.plans[rank].steps;
        let met = || steps.iter().position(|step| *step == Step::Meet).map_or(0, |meet| meet + 1);
        if call.mismatch { met() } else { steps.len() }
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.processes.len()).filter(move |other| *other != rank)
    }

    fn ready(&self, rank: usize) -> bool {
        let Process { call, step, .. } = self.processes[rank];
        let Start { sequence, uses, .. } = self.positions[call];
        let reached = |counter, value| self.others(rank).all(|other| self.counters[&(other, counter)] >= value);
        match self.calls[call].plans[rank].steps.get(step) {
            Some(Step::Meet) => {
                self.others(rank).all(|other| self.headers.get(&self.cell(other, sequence)) == Some(&(other, sequence)))
            }
            Some(Step::Await { counter, round }) => reached(*counter, uses + round + 1),
            _ => true,
        }
    }

    fn step(&mut self, rank: usize) -> Result<(), String> {
        let Process { call, step, .. } = self.processes[rank];
        let Start { sequence, uses, .. } = self.positions[call];
        let calls = self.calls;
        match calls[call].plans[rank].steps.get(step) {
            // What is said in an offer is the engine's affair.
            None | Some(Step::Offer | Step::Meet | Step::Await { .. }) => {}
            Some(Step::Announce) => {
                self.headers.insert(self.cell(rank, sequence), (rank, sequence));
            }
            Some(Step::Publish { counter, round }) => {
                self.counters.insert((rank, *counter), uses + round + 1);
            }
            Some(Step::Stage { span, to }) => self.stage(rank, span, *to),
            Some(Step::Fold { span, sources, also }) => self.fold(rank, span, *sources, *also),
            Some(Step::FoldAndStage { span, round, stage }) => {
                self.fold(rank, span, Sources::Pairs { round: *round }, None);
                if let Some((staged, round)) = stage {
                    self.stage(rank, staged, Place::Pair { reader: 1 - rank, round: *round });
                }
            }
            Some(Step::Keep { span }) => {
                let data = self.processes[rank].input[span.clone()].to_vec();
                self.write_output(rank, span, &data);
            }
            Some(Step::Collect { span, from, round }) => {
                let data = self.bytes(Memory::Gather(*from, (uses + round) & 1), span.len());
                self.write_output(rank, span, &data);
            }
            Some(Step::Take { span, from }) => {
                let data = self.buffer(*from, call, span, |process| &process.output);
                self.write_output(rank, span, &data);
            }
        }
        self.processes[rank].step += 1;
        if self.processes[rank].step >= self.length(rank) { self.leave(rank) } else { Ok(()) }
    }

    fn stage(&mut self, rank: usize, span: &Span, to: Place) {
        let data = self.processes[rank].input[span.clone()].to_vec();
        let memory = self.place(rank, to);
        self.put(memory, &data);
    }

    fn fold(&mut self, rank: usize, span: &Span, sources: Sources, also: Option<Place>) {
        let call = self.processes[rank].call;
        let uses = self.positions[call].uses;
        let own = self.processes[rank].input[span.clone()].to_vec();
        let operands: Vec<Vec<u8>> = match sources {
            Sources::Own => vec![own],
            _ => {
                let of = |other: usize| match sources {
                    _ if other == rank => own.clone(),
                    Sources::Pairs { round } => self.bytes(self.pair(other, rank, uses + round), span.len()),
                    Sources::Inputs => self.buffer(other, call, span, |process| &process.input),
                    _ => self.bytes(self.slot(rank, other), span.len()),
                };
                (0..self.processes.len()).map(of).collect()
            }
        };
        let one = |at| tree(&operands.iter().map(|operand| operand[at]).collect::<Vec<u8>>());
        let result: Vec<u8> = (0..span.len()).map(one).collect();
        self.write_output(rank, span, &result);
        if let Some(place) = also {
            let memory = self.place(rank, place);
            self.put(memory, &result);
        }
    }

    /// What stands now in a buffer of another rank, which may be in another call already.
    fn buffer(&self, owner: usize, call: usize, span: &Span, which: impl Fn(&Process) -> &Vec<u8>) -> Vec<u8> {
        let process = &self.processes[owner];
        let found = which(process).get(span.clone()).filter(|_| process.call == call);
        found.map_or_else(|| vec![0xcc; span.len()], <[u8]>::to_vec)
    }

    fn write_output(&mut self, rank: usize, span: &Span, data: &[u8]) {
        let process = &mut self.processes[rank];
        process.output[span.clone()].copy_from_slice(data);
        if self.in_place {
            process.input[span.clone()].copy_from_slice(data);
        }
    }

    fn bytes(&self, memory: Memory, len: usize) -> Vec<u8> {
        let mut found = self.memory.get(&memory).cloned().unwrap_or_default();
        found.resize(found.len().max(len), 0xa5);
        found[..len].to_vec()
    }

    fn put(&mut self, memory: Memory, data: &[u8]) {
        let all = self.memory.entry(memory).or_default();
        all.resize(all.len().max(data.len()), 0xa5);
        all[..data.len()].copy_from_slice(data);
    }

    fn cell(&self, owner: usize, turn: u64) -> (usize, u64) {
        if self.processes.len() == 2 { (0, (wide(owner) + turn) & 1) } else { (owner, turn & 1) }
    }

    /// A payload that does not fit beside the header has cells, and a count, of its own.
    fn slot(&self, seen_by: usize, owner: usize) -> Memory {
        let call = self.processes[seen_by].call;
        let Start { sequence, slots, .. } = self.positions[call];
        let long = self.calls[call].plans[seen_by].shape.bytes > SLOT_INLINE_BYTES;
        let (owner, cell) = self.cell(owner, if long { slots } else { sequence });
        Memory::Slot(owner, cell, long)
    }

    fn pair(&self, writer: usize, reader: usize, turn: u64) -> Memory {
        let depth = wide(self.calls[0].plans[0].shape.geometry.pair_depth);
        let side = (u64::from(writer >= reader) + turn / depth) & 1;
        Memory::Pair(writer.min(reader), writer.max(reader), turn % depth, side)
    }

    fn place(&self, writer: usize, place: Place) -> Memory {
        let uses = self.positions[self.processes[writer].call].uses;
        match place {
            Place::Slot => self.slot(writer, writer),
            Place::Pair { reader, round } => self.pair(writer, reader, uses + round),
            Place::Gather { round } => Memory::Gather(writer, (uses + round) & 1),
        }
    }
}
