//! What one call is, and the cache of plans.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use kernels::Fold;
use plan::{Choice, Plan, Shape, Shares, Span, Step};
use types::transport::{Counter, Geometry};
use types::{
    Buffers, DataType, Elements, Error, Fingerprint, OpKind, Parts, Rank, Reduction, Result, Summary, Ticket, digest,
};

use crate::lanes::{cuts, spans};

/// Buffers that a call keeps until it has ended.
pub trait OwnedBuffers: Send {
    /// The buffers: the same memory each time.
    fn buffers(&mut self) -> Buffers<'_>;
}

/// Runs once when a submitted call has ended, on any thread, with no lock held; gets the buffers back.
pub type Completion = Box<dyn FnOnce(Result<()>, Box<dyn OwnedBuffers>) + Send>;

/// How long a call may take and when it first complains.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The call fails when it has taken this long; `None`: never.
    pub deadline: Option<Duration>,
    /// The first warning comes after this time, the next ones each after twice the time.
    pub first_warning: Duration,
}

/// What a call is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    kind: OpKind,
    dtype: DataType,
    reduction: Reduction,
    /// Bytes of the output.
    bytes: usize,
    shares: Shares,
    root: Option<Rank>,
    parts: Parts,
}

impl Work {
    /// An allreduce of this many bytes.
    #[must_use]
    #[inline]
    pub const fn all_reduce(dtype: DataType, reduction: Reduction, bytes: usize) -> Work {
        let parts = Parts { number: 0, digest: 0 };
        Work { kind: OpKind::AllReduce, dtype, reduction, bytes, shares: Shares::All, root: None, parts }
    }

    /// A barrier.
    #[must_use]
    pub fn barrier() -> Work {
        Work { kind: OpKind::Barrier, ..Work::moving(DataType::Uint8, 0) }
    }

    /// A broadcast of this many bytes from the member with this index, which is this rank of the world.
    #[must_use]
    pub fn broadcast(dtype: DataType, bytes: usize, index: usize, root: Rank) -> Work {
        let moving = Work::moving(dtype, bytes);
        Work { kind: OpKind::Broadcast, shares: Shares::Root(index), root: Some(root), ..moving }
    }

    /// An allgather of this many elements from each member, in the order of the group.
    #[must_use]
    pub fn all_gather(dtype: DataType, counts: &[usize]) -> Work {
        let pieces: Arc<[usize]> = counts.iter().map(|count| count * dtype.size()).collect();
        let moving = Work::moving(dtype, pieces.iter().sum());
        Work { kind: OpKind::AllGather, shares: Shares::Pieces(pieces), parts: Parts::of(counts), ..moving }
    }

    /// The same on so many bytes. Not for an allgather, whose pieces have their own sizes.
    #[must_use]
    pub fn of_bytes(mut self, bytes: usize) -> Work {
        self.bytes = bytes;
        self
    }

    /// The same, as one of the calls that together do this list of buffers.
    #[must_use]
    pub fn of_list(mut self, parts: Parts) -> Work {
        self.parts = parts;
        self
    }

    /// What is moved is not reduced: the fingerprint gets the same reduction on all ranks.
    fn moving(dtype: DataType, bytes: usize) -> Work {
        Work::all_reduce(dtype, Reduction::Sum, bytes)
    }

    /// The kind of the collective.
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> OpKind {
        self.kind
    }

    /// The type of the elements.
    #[must_use]
    #[inline]
    pub const fn dtype(&self) -> DataType {
        self.dtype
    }

    /// How elements are combined; for kinds that combine none it says nothing.
    #[must_use]
    pub const fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Whether every rank gives all bytes: only such a call can be cut at any place.
    pub(crate) const fn is_of_all(&self) -> bool {
        matches!(self.kind, OpKind::AllReduce)
    }

    /// Bytes of the output.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is noted of such a call for those who look from outside.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::new(self.kind, self.dtype, self.reduction, u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }

    /// How many bytes of input the member with this index has: of a broadcast all have as much as the root.
    #[must_use]
    #[inline]
    pub fn input_bytes(&self, index: usize) -> usize {
        match &self.shares {
            Shares::All | Shares::Root(_) => self.bytes,
            Shares::Pieces(pieces) => pieces.get(index).copied().unwrap_or_default(),
        }
    }

    /// Does it for a group of one.
    pub fn alone(&self, buffers: &mut Buffers<'_>) {
        match (self.kind, buffers) {
            (OpKind::AllReduce, buffers) => crate::alone(self.dtype, self.reduction, buffers),
            (_, Buffers::Separate { input, output }) => output.copy_from_slice(input),
            (_, Buffers::InPlace(_)) => {}
        }
    }
}

/// What the plans of all ranks of a group depend on beside the call: the first member's, handed out with the memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The group's areas.
    pub geometry: Geometry,
    /// What decides between algorithms.
    pub choice: Choice,
}

/// What does not change between calls of the same arguments: the plan and the fingerprint.
#[derive(Debug)]
pub struct Prepared {
    /// What the plan was chosen by.
    terms: Arc<Terms>,
    pub(crate) plan: Plan,
    pub(crate) fold: Fold,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) hash: u64,
    /// What is noted of the call for those who look from outside.
    pub(crate) summary: Summary,
    /// The last round of each counter that the plan waits for: who has published these has done its part.
    pub(crate) last_awaits: Vec<(Counter, u64)>,
    /// Where this rank's input stands in the whole, if it is a buffer of its own.
    input_at: usize,
    work: Work,
    /// The bytes that this lane of the call has: all, unless it is cut.
    pub(crate) span: Span,
    /// The lanes beside this one, if the call is cut and this is its first.
    pub(crate) others: Vec<Arc<Prepared>>,
    /// A paced call gives the turn back after so many waits that have ended.
    pub(crate) pace: u32,
    /// How many lanes a group must have for a large call to be cut as this one is.
    lanes: usize,
}

impl Prepared {
    /// Where in this rank's input a span of the whole is.
    #[inline]
    pub(crate) fn in_input(&self, span: &Span, in_place: bool) -> Span {
        let before = if in_place { 0 } else { self.input_at };
        span.start - before..span.end - before
    }

    /// Bytes of the whole call, of which this may be one lane.
    #[inline]
    pub(crate) fn whole(&self) -> usize {
        self.work.bytes
    }
}

/// One call in progress: its arguments, prepared, and its limits.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) named: Option<Arc<Named>>,
    pub(crate) limits: Limits,
    /// When it was made, by the caller's clock; `None` until the clock is read for it the first time.
    pub(crate) started: Option<Duration>,
    /// Under what it was noted for those who look from outside, if it was noted before it begins.
    pub(crate) ticket: Option<Ticket>,
}

/// The fingerprint of a named call.
#[derive(Debug)]
pub(crate) struct Named {
    fingerprint: Fingerprint,
    hash: u64,
}

impl Call {
    /// The same call, matched by this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Call {
        let fingerprint = Fingerprint { name: name.into(), ..self.prepared.fingerprint.clone() };
        let hash = fingerprint.hash();
        self.named = Some(Arc::new(Named { fingerprint, hash }));
        self
    }

    /// The same call, begun at this time.
    #[must_use]
    pub fn started(mut self, now: Duration) -> Call {
        self.started = Some(now);
        self
    }

    /// The same call, begun at this time if one is given.
    #[must_use]
    #[inline]
    pub fn begun(mut self, at: Option<Duration>) -> Call {
        self.started = at.or(self.started);
        self
    }

    /// The same call, noted under this ticket.
    #[must_use]
    pub fn noted(mut self, ticket: Option<Ticket>) -> Call {
        self.ticket = ticket;
        self
    }

    /// Under what it is noted, if it was noted before it begins.
    #[must_use]
    pub const fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// When it began, if that is known.
    #[must_use]
    pub const fn begun_at(&self) -> Option<Duration> {
        self.started
    }

    /// What the call must agree on with the other ranks.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        self.named.as_ref().map_or(&self.prepared.fingerprint, |named| &named.fingerprint)
    }

    /// Whether the call's plan was chosen by these terms.
    #[must_use]
    #[inline]
    pub fn is_by(&self, terms: &Arc<Terms>) -> bool {
        Arc::ptr_eq(&self.prepared.terms, terms)
    }

    /// Whether the call is matched by name.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Whether the call fits a slot.
    pub(crate) fn is_small(&self) -> bool {
        self.prepared.whole() <= self.prepared.plan.shape.geometry.slot_bytes
    }

    /// Whether the call is cut into lanes: it is run by [`Cut`](crate::Cut).
    #[must_use]
    #[inline]
    pub fn is_cut(&self) -> bool {
        !self.prepared.others.is_empty()
    }

    /// The lanes of the call as calls, the first one first.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Call> + '_ {
        let lane = |prepared: &Arc<Prepared>| Call { prepared: Arc::clone(prepared), ..self.clone() };
        core::iter::once(self.clone()).chain(self.prepared.others.iter().map(lane))
    }

    /// The call's limits.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.named.as_ref().map_or(self.prepared.hash, |named| named.hash)
    }

    /// Time since the call began.
    pub fn elapsed(&mut self, now: Duration) -> Duration {
        now.saturating_sub(*self.started.get_or_insert(now))
    }
}

/// A submitted call with its buffers.
pub struct Task {
    /// The call.
    pub call: Call,
    /// Its buffers.
    pub buffers: Box<dyn OwnedBuffers>,
    /// What to run at its end.
    pub done: Completion,
    /// The call that follows directly if this one succeeds, and else fails with it: the two are one call of a list, which
    /// is cut in the same way on all ranks. Matched is the first; the others need no match of their own.
    pub next: Option<Box<Task>>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("call", &self.call).finish_non_exhaustive()
    }
}

impl Task {
    /// Ends the call, and after a failure with it those that were to follow it. (After a success nothing may follow.)
    pub(crate) fn end(mut self, result: Result<()>, finished: &mut Vec<(Task, Result<()>)>) {
        let mut next = self.next.take();
        finished.push((self, result.clone()));
        while let Some(mut task) = next {
            next = task.next.take();
            finished.push((*task, result.clone()));
        }
    }

    /// Ends the call, and those that were to follow it, with this error.
    pub(crate) fn failed(self, error: Error) -> Vec<(Task, Result<()>)> {
        let mut finished = Vec::new();
        self.end(Err(error), &mut finished);
        finished
    }

    /// Ends the call: runs its completion.
    pub fn finish(self, result: Result<()>) {
        (self.done)(result, self.buffers);
    }
}

/// The cache is emptied when it holds more plans than this.
const CACHED_PLANS: usize = 512;
/// The cache is emptied when its plans hold more steps than this (some 10 MB).
const CACHED_STEPS: usize = 1 << 18;

/// Makes plans and fingerprints, and keeps them.
#[derive(Debug)]
pub struct Preparer {
    terms: Arc<Terms>,
    rank: usize,
    epoch: u64,
    settings: u64,
    lanes: usize,
    last: Option<Arc<Prepared>>,
    cache: HashMap<Work, Arc<Prepared>>,
    steps: usize,
}

impl Preparer {
    /// For the group rank `rank` of a group. Its terms hold until the first member's are known.
    #[must_use]
    pub fn new(terms: Arc<Terms>, rank: usize, epoch: u64, settings: u64) -> Preparer {
        Preparer { terms, rank, epoch, settings, lanes: 1, last: None, cache: HashMap::new(), steps: 0 }
    }

    /// Makes plans by these terms from now on: those that the group's first member handed out.
    #[inline]
    pub fn with_terms(&mut self, terms: &Arc<Terms>) -> &mut Preparer {
        self.changes_to(terms);
        self
    }

    /// The same; returns whether others held before.
    #[inline]
    pub(crate) fn changes_to(&mut self, terms: &Arc<Terms>) -> bool {
        let changes = !Arc::ptr_eq(&self.terms, terms);
        if changes {
            self.terms = Arc::clone(terms);
            self.forget();
        }
        changes
    }

    /// Makes the call's plan anew if it was made by other terms, before those of the group were known.
    #[inline]
    pub fn renew(&self, call: &mut Call) {
        if !call.is_by(&self.terms) {
            self.remake(call);
        }
    }

    #[cold]
    fn remake(&self, call: &mut Call) {
        let name = call.named.take().map(|named| Arc::clone(&named.fingerprint.name));
        // The settings are those of the moment in which the call was made.
        let settings = call.prepared.fingerprint.settings;
        call.prepared = Arc::new(self.make(&call.prepared.work, settings));
        if let Some(name) = name {
            *call = call.clone().named(&name);
        }
    }

    /// [Renews](Self::renew) a submitted call, and those that follow it.
    pub(crate) fn renew_task(&self, task: &mut Task) {
        let mut next = Some(task);
        while let Some(task) = next {
            self.renew(&mut task.call);
            next = task.next.as_deref_mut();
        }
    }

    /// Makes the calls from now on carry these settings.
    #[inline]
    pub fn with_settings(&mut self, settings: u64) -> &mut Preparer {
        if self.settings != settings {
            self.settings = settings;
            self.forget();
        }
        self
    }

    /// Cuts large allreduces from now on into so many lanes. Only unnamed calls may be: give what
    /// [`Windows::lanes`](types::transport::Windows::lanes) says once the group's memory is there.
    #[inline]
    pub fn with_lanes(&mut self, lanes: usize) -> &mut Self {
        if self.lanes != lanes {
            self.lanes = lanes;
            self.forget();
        }
        self
    }

    #[cold]
    fn forget(&mut self) {
        self.last = None;
        self.cache.clear();
        self.steps = 0;
    }

    /// Prepares an unnamed call anew if it was made before the number of lanes was known.
    pub(crate) fn recut(&mut self, call: &mut Call, lanes: usize) {
        let Prepared { lanes: made_for, fingerprint, work, .. } = &*call.prepared;
        if *made_for != lanes && cuts(work, lanes, &self.terms.geometry) > 1 {
            let again = self.with_settings(fingerprint.settings).with_lanes(lanes).call(work, call.limits);
            call.prepared = again.prepared;
        }
    }

    /// A call that does this.
    #[inline]
    pub fn call(&mut self, work: &Work, limits: Limits) -> Call {
        let prepared = match &self.last {
            Some(last) if last.work == *work => Arc::clone(last),
            _ => self.prepare(work),
        };
        Call { prepared, named: None, limits, started: None, ticket: None }
    }

    #[cold]
    fn prepare(&mut self, work: &Work) -> Arc<Prepared> {
        let found = self.cache.get(work).map(Arc::clone);
        let prepared = found.unwrap_or_else(|| {
            let made = Arc::new(self.make(work, self.settings));
            if self.cache.len() >= CACHED_PLANS || self.steps >= CACHED_STEPS {
                self.cache.clear();
                self.steps = 0;
            }
            self.steps += made.plan.steps.len() * (1 + made.others.len());
            self.cache.insert(work.clone(), Arc::clone(&made));
            made
        });
        self.last = Some(Arc::clone(&prepared));
        prepared
    }

    fn make(&self, work: &Work, settings: u64) -> Prepared {
        let geometry = &self.terms.geometry;
        let spans = spans(work, cuts(work, self.lanes, geometry), geometry);
        let lane = |(lane, span): (u64, &Span)| self.make_lane(work, settings, lane, spans.len(), span.clone());
        let mut lanes = (0..).zip(&spans).map(lane);
        let first = lanes.next().expect("a call has at least one lane");
        Prepared { others: lanes.map(Arc::new).collect(), ..first }
    }

    /// One of the lanes of a call: a call of these bytes that agrees with the others on being this lane of the whole.
    fn make_lane(&self, work: &Work, settings: u64, lane: u64, lanes: usize, span: Span) -> Prepared {
        let Work { kind, dtype, reduction, bytes, shares, root, parts } = work.clone();
        let Terms { geometry, choice } = &*self.terms;
        let (ranks, element) = (geometry.ranks, dtype.size());
        let shape = Shape { kind, ranks, bytes: span.len(), shares, element, geometry: *geometry };
        let input_at = shape.share(self.rank).start;
        let plan = plan::plan_with(choice.select(&shape), &shape, self.rank);
        if self.rank == 0 && kind == OpKind::AllReduce && plan.algorithm != choice.forced.unwrap_or(plan.algorithm) {
            say_that_it_is_not_forced(&plan, choice);
        }
        let number = |length: usize| u64::try_from(length).expect("a length in memory fits 64 bits");
        let fingerprint = Fingerprint {
            kind,
            dtype,
            reduction,
            count: Elements(number(bytes / element)),
            root,
            parts,
            epoch: self.epoch,
            plan: if lanes == 1 { plan.id } else { lane_id(plan.id, lane, number(lanes)) },
            settings,
            name: "".into(),
        };
        let hash = fingerprint.hash();
        let (fold, last_awaits, pace) = (Fold::new(dtype, reduction), last_awaits(&plan), pace(&plan, lanes));
        let summary = work.summary();
        let (terms, work, others, lanes) = (Arc::clone(&self.terms), work.clone(), Vec::new(), self.lanes);
        Prepared {
            terms,
            plan,
            fold,
            fingerprint,
            hash,
            summary,
            last_awaits,
            input_at,
            work,
            span,
            others,
            pace,
            lanes,
        }
    }
}

/// Says, once in a process, that a call is not done as was asked for.
#[cold]
fn say_that_it_is_not_forced(plan: &Plan, choice: &Choice) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let (taken, shape) = (plan.algorithm, &plan.shape);
        log::warn!(
            "the forced algorithm {} cannot do an allreduce of {} bytes on {} ranks: {taken} is taken for it, and for \
             others like it nothing is said any more",
            choice.forced.unwrap_or_default(),
            shape.bytes,
            shape.ranks,
        );
    }
}

/// How much a paced call does before it gives the turn back, in bytes of its output.
const TURN_BYTES: usize = 256 << 10;

/// How many waits of a plan lie between so many bytes, of all its lanes together.
fn pace(plan: &Plan, lanes: usize) -> u32 {
    let waits = plan.steps.iter().filter(|step| matches!(step, Step::Await { .. })).count();
    let pace = waits.saturating_mul(TURN_BYTES) / plan.shape.bytes.max(1) / lanes;
    u32::try_from(pace).unwrap_or(u32::MAX).max(1)
}

/// The identity of the plan of one lane of several.
fn lane_id(plan: u64, lane: u64, lanes: u64) -> u64 {
    digest(0x6c61_6e65, &[plan, lane, lanes].map(u64::to_le_bytes).concat())
}

fn last_awaits(plan: &Plan) -> Vec<(Counter, u64)> {
    let last = |wanted: Counter| {
        let rounds = plan.steps.iter().filter_map(|step| match step {
            Step::Await { counter, round } if *counter == wanted => Some(*round),
            _ => None,
        });
        rounds.max().map(|round| (wanted, round))
    };
    [Counter::Staged, Counter::Folded].into_iter().filter_map(last).collect()
}
