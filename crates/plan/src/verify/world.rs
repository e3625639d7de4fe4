//! All ranks, run through all calls on symbols.

use std::collections::HashMap;
use std::rc::Rc;

use types::transport::{Counter, SLOT_INLINE_BYTES};

use super::memory::{Conflict, Event, Memory, Value};
use super::symbols::{Symbol, Symbols};
use super::violation::{Area, Fault, Missing, Violation};
use super::{Call, Proof, Start};
use crate::shape::{Shape, Shares};
use crate::step::{Place, Sources, Span, Step};

/// Where a rank stands.
struct Rank {
    call: usize,
    step: usize,
    /// Vector clock: of each rank the last tick that happened before this rank's present.
    clock: Vec<u64>,
    /// Call and step of each of its ticks.
    log: Vec<(usize, usize)>,
    /// Output written in this call: disjoint, ascending.
    output: Vec<Span>,
    /// Every value that each of its counters ever had, ascending. Plans use two of them.
    counters: Vec<(Counter, Vec<Published>)>,
}

/// A published value, and what its publisher knew then.
type Published = (u64, Rc<[u64]>);

pub(super) struct World<'a> {
    calls: &'a [Call],
    /// Where the channel stands before each call.
    positions: Vec<Start>,
    start: Start,
    ranks: Vec<Rank>,
    memory: Memory,
    symbols: Symbols,
    /// What each header cell holds: owner, and sequence.
    headers: HashMap<Area, (usize, Published)>,
}

impl<'a> World<'a> {
    /// Before the first of these calls, whose form is right.
    pub(super) fn new(calls: &'a [Call], start: Start) -> World<'a> {
        let ranks = calls.first().map_or(0, |call| call.plans.len());
        let mut next = start;
        let mut positions = Vec::with_capacity(calls.len());
        for call in calls {
            positions.push(next);
            next.sequence += 1;
            if !call.mismatch {
                next.uses += call.plans[0].rounds;
                next.slots += call.plans[0].slots();
            }
        }
        let rank = |_| {
            let clock = vec![0; ranks];
            Rank { call: 0, step: 0, clock, log: Vec::new(), output: Vec::new(), counters: Vec::new() }
        };
        World {
            calls,
            positions,
            start,
            ranks: (0..ranks).map(rank).collect(),
            memory: Memory::default(),
            symbols: Symbols::default(),
            headers: HashMap::new(),
        }
    }

    /// Runs whoever can run, to the end.
    pub(super) fn run(mut self) -> Result<Proof, Box<Violation>> {
        while self.ranks.iter().any(|rank| rank.call < self.calls.len()) {
            let mut moved = false;
            let mut stuck = Vec::new();
            for rank in 0..self.ranks.len() {
                let before = self.ranks[rank].log.len();
                stuck.extend(self.run_rank(rank)?.map(|fault| self.violation(rank, fault)));
                moved |= self.ranks[rank].log.len() > before;
            }
            // Whoever reads what nobody wrote, or waits in the earliest call, is nearest to the root of the trouble.
            let is_wait = |violation: &Violation| matches!(violation.fault, Fault::Deadlock(_));
            let root = stuck.into_iter().min_by_key(|violation| (is_wait(violation), violation.call));
            if let Some(root) = root.filter(|_| !moved) {
                return Err(root);
            }
        }
        let steps = self.ranks.iter().map(|rank| rank.log.len()).sum();
        Ok(Proof { steps, areas: self.memory.areas() })
    }

    /// Runs one rank as far as it goes, and says what is wrong if nobody else can run either.
    fn run_rank(&mut self, rank: usize) -> Result<Option<Fault>, Box<Violation>> {
        loop {
            let Some(step) = self.upcoming(rank)? else { return Ok(None) };
            if let Some(missing) = self.missing(rank, step) {
                return Ok(Some(Fault::Deadlock(missing)));
            }
            match self.advance(rank, step) {
                Ok(()) => {}
                // It may be the order in which ranks are run here: if another writes the bytes later, the fault is
                // the race between the two. A step reads before it writes, so it can be run again.
                Err(fault @ Fault::Unwritten { .. }) => {
                    let Rank { clock, log, .. } = &mut self.ranks[rank];
                    clock[rank] -= 1;
                    log.pop();
                    return Ok(Some(fault));
                }
                Err(fault) => return Err(self.violation(rank, fault)),
            }
        }
    }

    fn violation(&self, rank: usize, fault: Fault) -> Box<Violation> {
        let Rank { call, step, .. } = self.ranks[rank];
        let of = self.calls[call].plans[rank].steps.get(step);
        Box::new(Violation { call, rank, step: of.map(|of| (step, of.clone())), fault })
    }

    fn shape(&self, rank: usize) -> &'a Shape {
        &self.calls[self.ranks[rank].call].plans[rank].shape
    }

    /// Sequence and use count of the call in which this rank is.
    fn position(&self, rank: usize) -> Start {
        self.positions[self.ranks[rank].call]
    }

    /// What a rank does next; `None` at the end of the call, which is `Meet` if the call is a mismatch.
    fn next_step(&self, rank: usize) -> Option<&'a Step> {
        let Rank { call, step, .. } = self.ranks[rank];
        let call = &self.calls[call];
        let steps = &call.plans[rank].steps;
        let stopped = call.mismatch && steps[..step].last() == Some(&Step::Meet);
        steps.get(step).filter(|_| !stopped)
    }

    /// The next step of a rank, in a later call if this one is at its end; `None` when all its calls are.
    fn upcoming(&mut self, rank: usize) -> Result<Option<&'a Step>, Box<Violation>> {
        while self.ranks[rank].call < self.calls.len() {
            if let Some(step) = self.next_step(rank) {
                return Ok(Some(step));
            }
            self.end_call(rank)?;
        }
        Ok(None)
    }

    fn end_call(&mut self, rank: usize) -> Result<(), Box<Violation>> {
        if !self.calls[self.ranks[rank].call].mismatch {
            let end = self.shape(rank).bytes;
            let mut next = 0;
            for written in self.ranks[rank].output.iter().chain([&(end..end)]) {
                if written.start > next {
                    let span = next..written.start;
                    return Err(self.violation(rank, Fault::OutputMissing { span }));
                }
                next = written.end;
            }
        }
        let taken_back = self.fill_buffers(rank, true);
        taken_back.map_err(|fault| self.violation(rank, fault))?;
        let rank = &mut self.ranks[rank];
        rank.output.clear();
        rank.step = 0;
        rank.call += 1;
        Ok(())
    }

    /// What a rank still waits for at this step.
    fn missing(&self, rank: usize, step: &Step) -> Option<Missing> {
        let Start { sequence, uses, .. } = self.position(rank);
        let mut others = (0..self.ranks.len()).filter(|other| *other != rank);
        let (counter, value) = match step {
            Step::Meet => {
                let there = |from| {
                    let cell = self.headers.get(&self.header(from, sequence));
                    cell.is_some_and(|(owner, published)| *owner == from && published.0 == sequence)
                };
                return others.find(|from| !there(*from)).map(|from| Missing::Header { from });
            }
            Step::Await { counter, round } => (*counter, uses + round + 1),
            _ => return None,
        };
        let from = others.find(|from| self.reached(*from, counter, value).is_none())?;
        Some(Missing::Counter { from, counter, value })
    }

    /// The first publication by which a counter reached a value.
    fn reached(&self, from: usize, counter: Counter, value: u64) -> Option<&Published> {
        let (_, history) = self.ranks[from].counters.iter().find(|(of, _)| *of == counter)?;
        history.get(history.partition_point(|(reached, _)| *reached < value))
    }

    /// Runs the next step, which waits for nothing.
    fn advance(&mut self, rank: usize, step: &Step) -> Result<(), Fault> {
        let Start { sequence, uses, .. } = self.position(rank);
        let at = (self.ranks[rank].call, self.ranks[rank].step);
        self.ranks[rank].log.push(at);
        self.ranks[rank].clock[rank] += 1;
        if at.1 == 0 {
            self.fill_buffers(rank, false)?;
        }
        match step {
            Step::Offer => self.offer(rank, sequence)?,
            Step::Stage { span, to } => self.stage(rank, span, *to)?,
            Step::Announce => self.announce(rank, sequence)?,
            Step::Meet => self.meet(rank, sequence)?,
            Step::Publish { counter, round } => self.publish(rank, *counter, uses + round + 1)?,
            Step::Await { counter, round } => self.join_counters(rank, *counter, uses + round + 1),
            Step::Fold { span, sources, also } => self.fold(rank, span, *sources, *also)?,
            Step::FoldAndStage { span, round, stage } => self.fold_and_stage(rank, span, *round, stage.as_ref())?,
            Step::Keep { span } => {
                self.read_input(rank, span)?;
                let symbol = self.symbols.input(rank, self.ranks[rank].call);
                self.write_output(rank, span, symbol)?;
            }
            Step::Collect { span, from, round } => {
                let area = Some(self.gather(rank, *from, *round));
                self.collect(rank, span, area)?;
            }
            Step::Take { span, from } => self.collect(rank, span, Some(Area::Buffers { owner: *from }))?,
        }
        self.ranks[rank].step += 1;
        Ok(())
    }

    /// What a program does with buffers that other ranks read: before a call it writes its input there, and after the call
    /// something else. So nobody may read them any more when the call ends.
    fn fill_buffers(&mut self, rank: usize, after: bool) -> Result<(), Fault> {
        let (shape, call) = (self.shape(rank), self.ranks[rank].call);
        if !shape.readable || shape.bytes == 0 {
            return Ok(());
        }
        let symbol = if after { self.symbols.other(rank, call) } else { self.symbols.input(rank, call) };
        self.write(rank, Area::Buffers { owner: rank }, 0..shape.bytes, Value { symbol, origin: 0 })
    }

    fn offer(&mut self, rank: usize, sequence: u64) -> Result<(), Fault> {
        let symbol = self.symbols.other(rank, self.ranks[rank].call);
        self.write(rank, self.beside(rank, sequence), 0..1, Value { symbol, origin: 0 })
    }

    fn now(&self, rank: usize) -> Event {
        Event { rank, tick: self.ranks[rank].clock[rank] }
    }

    fn known(&self, rank: usize) -> Rc<[u64]> {
        self.ranks[rank].clock.as_slice().into()
    }

    fn join(&mut self, rank: usize, other: &[u64]) {
        for (own, other) in self.ranks[rank].clock.iter_mut().zip(other) {
            *own = (*own).max(*other);
        }
    }

    fn announce(&mut self, rank: usize, sequence: u64) -> Result<(), Fault> {
        let area = self.header(rank, sequence);
        // The content of a header is looked up in `headers`; here it is written for the sake of races alone.
        let symbol = self.symbols.input(rank, self.ranks[rank].call);
        self.write(rank, area, 0..1, Value { symbol, origin: 0 })?;
        self.headers.insert(area, (rank, (sequence, self.known(rank))));
        Ok(())
    }

    fn meet(&mut self, rank: usize, sequence: u64) -> Result<(), Fault> {
        for other in (0..self.ranks.len()).filter(|other| *other != rank) {
            let area = self.header(other, sequence);
            let known = self.headers.get(&area).map(|(_, (_, known))| Rc::clone(known));
            self.join(rank, &known.unwrap_or_default());
            self.read(rank, area, 0..1)?;
            let Call { plans, mismatch } = &self.calls[self.ranks[rank].call];
            let mut before = plans[other].steps.iter().take_while(|step| **step != Step::Meet);
            if !mismatch && before.any(|step| *step == Step::Offer) {
                self.read(rank, self.beside(other, sequence), 0..1)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, rank: usize, counter: Counter, value: u64) -> Result<(), Fault> {
        let known = self.known(rank);
        let counters = &mut self.ranks[rank].counters;
        let at = counters.iter().position(|(of, _)| *of == counter).unwrap_or_else(|| {
            counters.push((counter, Vec::new()));
            counters.len() - 1
        });
        let history = &mut counters[at].1;
        let from = history.last().map_or(self.start.uses, |(value, _)| *value);
        if value <= from {
            return Err(Fault::CounterBackwards { counter, from, to: value });
        }
        history.push((value, known));
        Ok(())
    }

    fn join_counters(&mut self, rank: usize, counter: Counter, value: u64) {
        for other in (0..self.ranks.len()).filter(|other| *other != rank) {
            let known = self.reached(other, counter, value).map(|(_, known)| Rc::clone(known));
            self.join(rank, &known.unwrap_or_default());
        }
    }

    fn stage(&mut self, rank: usize, span: &Span, to: Place) -> Result<(), Fault> {
        self.read_input(rank, span)?;
        let symbol = self.symbols.input(rank, self.ranks[rank].call);
        let area = self.area(rank, to);
        self.write(rank, area, 0..span.len(), Value { symbol, origin: span.start })
    }

    fn fold(&mut self, rank: usize, span: &Span, sources: Sources, also: Option<Place>) -> Result<(), Fault> {
        self.read_input(rank, span)?;
        let areas = self.sources(rank, sources);
        let also = also.map(|place| self.area(rank, place));
        if areas.iter().any(|source| source.is_some() && *source == also) {
            return Err(Fault::Aliased);
        }
        let mut operands = Vec::with_capacity(areas.len());
        for area in areas {
            operands.push(self.operand(rank, span, area)?);
        }
        for (part, symbols) in refine(span, &operands) {
            let symbol = self.symbols.tree(&symbols);
            self.write_output(rank, &part, symbol)?;
            if let Some(area) = also {
                let bytes = part.start - span.start..part.end - span.start;
                self.write(rank, area, bytes, Value { symbol, origin: span.start })?;
            }
        }
        Ok(())
    }

    fn fold_and_stage(
        &mut self,
        rank: usize,
        span: &Span,
        round: u64,
        stage: Option<&(Span, u64)>,
    ) -> Result<(), Fault> {
        let sources = Sources::Pairs { round };
        let Some((staged, ahead)) = stage else { return self.fold(rank, span, sources, None) };
        let to = Place::Pair { reader: 1 - rank, round: *ahead };
        // One loop does both, in an order of its own: neither may touch what the other writes.
        let same_area = self.sources(rank, sources).contains(&Some(self.area(rank, to)));
        if same_area || (staged.start < span.end && span.start < staged.end) {
            return Err(Fault::Aliased);
        }
        self.fold(rank, span, sources, None)?;
        self.stage(rank, staged, to)
    }

    fn collect(&mut self, rank: usize, span: &Span, area: Option<Area>) -> Result<(), Fault> {
        for (part, symbol) in self.operand(rank, span, area)? {
            self.write_output(rank, &part, symbol)?;
        }
        Ok(())
    }

    /// What each rank gives to a fold, in the order of the tree; `None` is the own input.
    fn sources(&self, rank: usize, sources: Sources) -> Vec<Option<Area>> {
        let uses = self.position(rank).uses;
        let of = |other: usize| match sources {
            _ if other == rank => None,
            Sources::Own => None,
            Sources::Slots => Some(self.slot(rank, other)),
            Sources::Pairs { round } => Some(self.pair(other, rank, uses + round, self.shape(rank))),
            Sources::Inputs => Some(Area::Buffers { owner: other }),
        };
        match sources {
            Sources::Own => vec![None],
            Sources::Slots | Sources::Pairs { .. } | Sources::Inputs => (0..self.ranks.len()).map(of).collect(),
        }
    }

    /// What a source holds for the output `span`: intervals of the user's buffers, and their symbols.
    fn operand(&mut self, rank: usize, span: &Span, area: Option<Area>) -> Result<Vec<(Span, Symbol)>, Fault> {
        let Some(area) = area else {
            return Ok(vec![(span.clone(), self.symbols.input(rank, self.ranks[rank].call))]);
        };
        let mut found = Vec::new();
        // Buffers hold the whole, all other areas the span from their beginning.
        let start = if matches!(area, Area::Buffers { .. }) { 0 } else { span.start };
        for (bytes, value) in self.read(rank, area, span.start - start..span.end - start)? {
            let part = start + bytes.start..start + bytes.end;
            if value.origin != start {
                return Err(Fault::Misplaced { span: part, from: value.origin + bytes.start });
            }
            found.push((part, value.symbol));
        }
        Ok(found)
    }

    fn read_input(&self, rank: usize, span: &Span) -> Result<(), Fault> {
        match overlap(&self.ranks[rank].output, span) {
            Some(span) => Err(Fault::InputOverwritten { span }),
            None => Ok(()),
        }
    }

    /// What the output `span` must be: the oracle of each kind of call.
    fn expected(&mut self, rank: usize, span: &Span) -> Vec<(Span, Symbol)> {
        let (shape, call) = (self.shape(rank), self.ranks[rank].call);
        match &shape.shares {
            Shares::All => vec![(span.clone(), self.symbols.result(self.ranks.len(), call))],
            Shares::Root(root) => vec![(span.clone(), self.symbols.input(*root, call))],
            Shares::Pieces(pieces) => {
                let mut parts = Vec::new();
                let mut start = 0;
                for (owner, bytes) in pieces.iter().enumerate() {
                    let part = start.max(span.start)..(start + bytes).min(span.end);
                    start += bytes;
                    if !part.is_empty() {
                        parts.push((part, self.symbols.input(owner, call)));
                    }
                }
                parts
            }
        }
    }

    fn write_output(&mut self, rank: usize, span: &Span, symbol: Symbol) -> Result<(), Fault> {
        let call = self.ranks[rank].call;
        for (part, expected) in self.expected(rank, span) {
            if symbol != expected {
                let [got, expected] = [symbol, expected].map(|symbol| self.symbols.words(symbol, call));
                return Err(Fault::WrongTree { span: part, got, expected });
            }
        }
        let output = &mut self.ranks[rank].output;
        if let Some(span) = overlap(output, span) {
            return Err(Fault::OutputTwice { span });
        }
        let at = output.partition_point(|written| written.end < span.start);
        match output.get_mut(at) {
            Some(written) if written.end == span.start => written.end = span.end,
            _ => output.insert(at, span.clone()),
        }
        if self.shape(rank).readable {
            return self.write(rank, Area::Buffers { owner: rank }, span.clone(), Value { symbol, origin: 0 });
        }
        Ok(())
    }

    fn write(&mut self, rank: usize, area: Area, bytes: Span, value: Value) -> Result<(), Fault> {
        let now = self.now(rank);
        let done = self.memory.write(area, bytes, value, now, &self.ranks[rank].clock);
        done.map_err(|conflict| self.fault(area, conflict))
    }

    fn read(&mut self, rank: usize, area: Area, bytes: Span) -> Result<Vec<(Span, Value)>, Fault> {
        let now = self.now(rank);
        let found = self.memory.read(area, bytes, now, &self.ranks[rank].clock);
        found.map_err(|conflict| self.fault(area, conflict))
    }

    fn fault(&self, area: Area, conflict: Conflict) -> Fault {
        match conflict {
            Conflict::Unwritten { bytes } => Fault::Unwritten { area, bytes },
            Conflict::Race { bytes, access, other_access, other: Event { rank, tick } } => {
                // Ticks count from 1, and each has its entry in the log; but for a step that has read a part and waits
                // for the rest to be written, which is the one that the rank will run next.
                let index = usize::try_from(tick - 1).unwrap_or(usize::MAX);
                let Rank { log, call, step, .. } = &self.ranks[rank];
                let (other_call, other_step) = log.get(index).copied().unwrap_or((*call, *step));
                Fault::Race { area, bytes, access, other_access, other: rank, other_call, other_step }
            }
        }
    }

    fn area(&self, writer: usize, place: Place) -> Area {
        let uses = self.position(writer).uses;
        match place {
            Place::Slot => self.slot(writer, writer),
            Place::Pair { reader, round } => self.pair(writer, reader, uses + round, self.shape(writer)),
            Place::Gather { round } => self.gather(writer, writer, round),
        }
    }

    /// Two ranks share two cells, which change hands with every turn; more have two each, used in turn.
    fn cell(&self, owner: usize, turn: u64) -> (usize, u64) {
        match self.ranks.len() {
            2 => (0, (u64::from(owner == 1) + turn) & 1),
            _ => (owner, turn & 1),
        }
    }

    fn header(&self, owner: usize, sequence: u64) -> Area {
        let (owner, cell) = self.cell(owner, sequence);
        Area::Header { owner, cell }
    }

    fn beside(&self, owner: usize, sequence: u64) -> Area {
        let (owner, cell) = self.cell(owner, sequence);
        Area::Beside { owner, cell }
    }

    /// A slot holds the whole payload, so its length is the plan's.
    fn slot(&self, seen_by: usize, owner: usize) -> Area {
        let Start { sequence, slots, .. } = self.position(seen_by);
        if self.shape(seen_by).bytes <= SLOT_INLINE_BYTES {
            return self.beside(owner, sequence);
        }
        let (owner, cell) = self.cell(owner, slots);
        Area::Slot { owner, cell }
    }

    /// The sides of a pair of buffers change with each use of the same buffers.
    fn pair(&self, writer: usize, reader: usize, turn: u64, shape: &Shape) -> Area {
        let depth = u64::try_from(shape.geometry.pair_depth).unwrap_or(u64::MAX);
        let side = (u64::from(writer > reader) + turn / depth) & 1;
        Area::Pair { low: writer.min(reader), high: writer.max(reader), index: turn % depth, side }
    }

    fn gather(&self, seen_by: usize, owner: usize, round: u64) -> Area {
        let uses = self.position(seen_by).uses;
        Area::Gather { owner, index: (uses + round) & 1 }
    }
}

/// The first part of `span` that lies in these disjoint ascending spans.
fn overlap(spans: &[Span], span: &Span) -> Option<Span> {
    let first = spans.get(spans.partition_point(|other| other.end <= span.start))?;
    let common = first.start.max(span.start)..first.end.min(span.end);
    (!common.is_empty()).then_some(common)
}

/// Cuts `span` wherever any operand's symbol changes: the parts, and each operand's symbol there.
fn refine(span: &Span, operands: &[Vec<(Span, Symbol)>]) -> Vec<(Span, Vec<Symbol>)> {
    let mut cuts: Vec<usize> = operands.iter().flatten().map(|(part, _)| part.start).collect();
    cuts.push(span.end);
    cuts.sort_unstable();
    cuts.dedup();
    let symbol_at =
        |operand: &Vec<(Span, Symbol)>, at: usize| operand[operand.partition_point(|(part, _)| part.end <= at)].1;
    let part = |pair: &[usize]| {
        let symbols = operands.iter().map(|operand| symbol_at(operand, pair[0])).collect();
        (pair[0]..pair[1], symbols)
    };
    cuts.windows(2).map(part).collect()
}
