//! What one call is, and the cache of plans.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use kernels::Fold;
use plan::{Choice, Offering, Plan, Shape, Span};
use types::transport::Geometry;
use types::{Buffers, Elements, Error, Fingerprint, OpKind, Result, Summary, Ticket, digest};

use crate::claims::Claims;
use crate::lanes::{cuts, spans};
use crate::offers::{Course, Others, Way};
use crate::work::Work;

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

/// What the plans of all ranks of a group depend on beside the call: the first member's, handed out with the memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The group's areas.
    pub geometry: Geometry,
    /// What decides between algorithms.
    pub choice: Choice,
    /// Into how many lanes a large call is cut, at least 1: what [`Windows::lanes`](types::transport::Windows::lanes) says.
    pub lanes: usize,
}

/// What does not change between calls of the same arguments: the plan and the fingerprint.
#[derive(Debug)]
pub struct Prepared {
    /// What the plan was chosen by.
    terms: Arc<Terms>,
    staged: Course,
    /// For a call in which the ranks say where their buffers are: the other ways that it may go.
    pub(crate) ways: Option<Box<Others>>,
    pub(crate) fold: Fold,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) hash: u64,
    /// What is noted of the call for those who look from outside.
    pub(crate) summary: Summary,
    /// Where this rank's input stands in the whole, if it is a buffer of its own.
    input_at: usize,
    work: Work,
    /// The bytes that this lane of the call has: all, unless it is cut.
    pub(crate) span: Span,
    /// Whether its results leave the caches before anyone reads them.
    pub(crate) leaves_caches: bool,
    /// Bytes of this rank's input that belong to them, if it is a buffer of its own.
    pub(crate) input_bytes: usize,
    /// The lanes beside this one, if the call is cut and this is its first.
    pub(crate) others: Vec<Arc<Prepared>>,
}

impl Prepared {
    /// Where in this rank's input a span of the whole is.
    #[inline]
    pub(crate) fn in_input(&self, span: &Span, in_place: bool) -> Span {
        let before = if in_place { 0 } else { self.input_at };
        span.start - before..span.end - before
    }

    /// The plan of a way, with what follows from it.
    #[inline]
    pub(crate) fn course(&self, way: Way) -> &Course {
        match (&self.ways, way) {
            (None, _) | (_, Way::Staged) => &self.staged,
            (Some(ways), Way::Late) => &ways.late,
            (Some(ways), Way::Direct) => &ways.direct,
        }
    }

    /// Steps that it holds.
    fn steps(&self) -> usize {
        self.staged.plan.steps.len() + self.ways.as_ref().map_or(0, |ways| ways.steps())
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
    /// For a named call that stands for several: the names that these would have.
    pub(crate) claims: Option<Arc<Claims>>,
    is_light: bool,
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

    /// The same call, whose completion only takes note of its end: it waits for nothing, submits nothing, and may run on any
    /// thread.
    #[must_use]
    pub const fn light(mut self, is_light: bool) -> Call {
        self.is_light = is_light;
        self
    }

    /// Whether its completion may run on any thread.
    #[must_use]
    pub const fn is_light(&self) -> bool {
        self.is_light
    }

    /// The same call, which stands for calls of these names.
    #[must_use]
    pub fn claiming(mut self, claims: Option<Arc<Claims>>) -> Call {
        self.claims = claims;
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

    /// Bytes of its output.
    pub(crate) fn bytes(&self) -> usize {
        self.prepared.whole()
    }

    /// Whether the call is cut into lanes: it is run by [`Cut`](crate::Cut).
    #[must_use]
    #[inline]
    pub fn is_cut(&self) -> bool {
        !self.prepared.others.is_empty()
    }

    /// The lanes of the call as calls, the first one first.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Call> + '_ {
        let lane = |prepared: &Arc<Prepared>| {
            let lane = Call { prepared: Arc::clone(prepared), named: None, ..self.clone() };
            match &self.named {
                Some(named) => lane.named(&named.fingerprint.name),
                None => lane,
            }
        };
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
    /// How many calls it is: with those that follow it.
    pub(crate) fn length(&self) -> u64 {
        core::iter::successors(Some(self), |task| task.next.as_deref()).map(|_| 1).sum()
    }

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
    last: Option<Arc<Prepared>>,
    cache: HashMap<Work, Arc<Prepared>>,
    steps: usize,
}

impl Preparer {
    /// For the group rank `rank` of a group. Its terms hold until the first member's are known.
    #[must_use]
    pub fn new(terms: Arc<Terms>, rank: usize, epoch: u64, settings: u64) -> Preparer {
        Preparer { terms, rank, epoch, settings, last: None, cache: HashMap::new(), steps: 0 }
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

    #[cold]
    fn forget(&mut self) {
        self.last = None;
        self.cache.clear();
        self.steps = 0;
    }

    /// A call that does this.
    #[inline]
    pub fn call(&mut self, work: &Work, limits: Limits) -> Call {
        let prepared = match &self.last {
            Some(last) if last.work == *work => Arc::clone(last),
            _ => self.prepare(work),
        };
        Preparer::call_of(prepared, limits)
    }

    /// The same for a call that is [given back](Self::give_back) when it has ended well: the next one like it is made without
    /// counting how many have the plan, which would be two locked instructions. One that is not given back costs the next
    /// one a look into the cache.
    #[inline]
    pub fn lend(&mut self, work: &Work, limits: Limits) -> Call {
        let prepared = match self.last.take() {
            Some(last) if last.work == *work => last,
            _ => self.prepare(work),
        };
        Preparer::call_of(prepared, limits)
    }

    /// Takes a call back that was [lent](Self::lend).
    #[inline]
    pub fn give_back(&mut self, call: Call) {
        if call.is_by(&self.terms) && call.prepared.fingerprint.settings == self.settings {
            self.last = Some(call.prepared);
        }
    }

    #[inline]
    const fn call_of(prepared: Arc<Prepared>, limits: Limits) -> Call {
        Call { prepared, named: None, limits, started: None, ticket: None, claims: None, is_light: false }
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
            self.steps += made.steps() * (1 + made.others.len());
            self.cache.insert(work.clone(), Arc::clone(&made));
            made
        });
        self.last = Some(Arc::clone(&prepared));
        prepared
    }

    fn make(&self, work: &Work, settings: u64) -> Prepared {
        let geometry = &self.terms.geometry;
        let spans = spans(work, cuts(work, self.terms.lanes, geometry), geometry);
        let lane = |(lane, span): (u64, &Span)| self.make_lane(work, settings, lane, spans.len(), span.clone());
        let mut lanes = (0..).zip(&spans).map(lane);
        let first = lanes.next().expect("a call has at least one lane");
        Prepared { others: lanes.map(Arc::new).collect(), ..first }
    }

    /// One of the lanes of a call: a call of these bytes that agrees with the others on being this lane of the whole.
    fn make_lane(&self, work: &Work, settings: u64, lane: u64, lanes: usize, span: Span) -> Prepared {
        let Work { kind, dtype, reduction, bytes, shares, root, parts, list_bytes: _ } = work.clone();
        let Terms { geometry, choice, .. } = &*self.terms;
        let (ranks, element) = (geometry.ranks, dtype.size());
        let shares = if lanes == 1 { shares } else { shares.within(&span) };
        let shape = Shape { kind, ranks, bytes: span.len(), shares, element, geometry: *geometry, readable: false };
        let share = shape.share(self.rank);
        let (input_at, input_bytes) = (share.start, share.len());
        let (staged, ways) = match Offering::of(choice, &shape, self.rank) {
            Some(offering) => {
                let (staged, ways) = Others::split(offering, lanes);
                (staged, Some(Box::new(ways)))
            }
            None => (Course::new(plan::plan_with(choice.select(&shape), &shape, self.rank), lanes), None),
        };
        let possible = [Some(&staged), ways.as_ref().map(|ways| &ways.direct)];
        let is_possible = |name| possible.iter().flatten().any(|course| course.plan.algorithm == name);
        if self.rank == 0 && kind == OpKind::AllReduce && !choice.forced.is_none_or(is_possible) {
            say_that_it_is_not_forced(&staged.plan, choice);
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
            plan: if lanes == 1 { staged.plan.id } else { lane_id(staged.plan.id, lane, number(lanes)) },
            settings,
            name: "".into(),
        };
        let hash = fingerprint.hash();
        let fold = Fold::new(dtype, reduction);
        let (terms, work, others) = (Arc::clone(&self.terms), work.clone(), Vec::new());
        let (summary, leaves_caches) = (work.summary(), work.leaves_caches(ranks));
        Prepared {
            terms,
            staged,
            ways,
            fold,
            fingerprint,
            hash,
            summary,
            input_at,
            work,
            span,
            leaves_caches,
            input_bytes,
            others,
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

/// The identity of the plan of one lane of several.
fn lane_id(plan: u64, lane: u64, lanes: u64) -> u64 {
    digest(0x6c61_6e65, &[plan, lane, lanes].map(u64::to_le_bytes).concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{DataType, Reduction};

    const LIMITS: Limits = Limits { deadline: None, first_warning: Duration::MAX };

    fn terms() -> Arc<Terms> {
        Arc::new(Terms { geometry: Geometry::of(2), choice: Choice::default(), lanes: 1 })
    }

    #[test]
    fn a_plan_that_was_given_back_is_lent_again() {
        let (mut preparer, work) =
            (Preparer::new(terms(), 0, 0, 0), Work::all_reduce(DataType::Float32, Reduction::Sum, 8));
        let first = preparer.lend(&work, LIMITS);
        let plan = Arc::as_ptr(&first.prepared);
        preparer.give_back(first);
        let again = preparer.lend(&work, LIMITS);
        assert_eq!(Arc::as_ptr(&again.prepared), plan);
        // One that is not given back is found all the same, and another one is another.
        drop(again);
        assert_eq!(Arc::as_ptr(&preparer.lend(&work, LIMITS).prepared), plan);
        let other = Work::all_reduce(DataType::Float32, Reduction::Max, 8);
        assert_ne!(preparer.lend(&other, LIMITS).hash(), preparer.call(&work, LIMITS).hash());
    }

    #[test]
    fn what_was_lent_before_a_change_is_not_kept() {
        let work = Work::all_reduce(DataType::Float32, Reduction::Sum, 8);
        let mut preparer = Preparer::new(terms(), 0, 0, 0);
        let lent = preparer.lend(&work, LIMITS);
        preparer.with_settings(1);
        preparer.give_back(lent);
        assert_eq!(preparer.lend(&work, LIMITS).fingerprint().settings, 1);

        let (lent, newer) = (preparer.lend(&work, LIMITS), terms());
        preparer.with_terms(&newer);
        preparer.give_back(lent);
        assert!(preparer.lend(&work, LIMITS).is_by(&newer));
    }
}
