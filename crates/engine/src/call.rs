//! What one call is, and the cache of plans.

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use kernels::Fold;
use plan::{Plan, Shape, Step};
use types::transport::{Counter, Geometry};
use types::{Buffers, DataType, Elements, Fingerprint, OpKind, Reduction, Result};

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

/// What does not change between calls of the same arguments: the plan and the fingerprint.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) fold: Fold,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) hash: u64,
    /// The last round of each counter that the plan waits for: who has published these has done its part.
    pub(crate) last_awaits: Vec<(Counter, u64)>,
    key: Key,
}

/// One call in progress: its arguments, prepared, and its limits.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) named: Option<Arc<Named>>,
    pub(crate) limits: Limits,
    /// When it was made, by the caller's clock; `None` until the clock is read for it the first time.
    pub(crate) started: Option<Duration>,
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

    /// What the call must agree on with the other ranks.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        self.named.as_ref().map_or(&self.prepared.fingerprint, |named| &named.fingerprint)
    }

    /// Whether the call is matched by name.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.named.is_some()
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
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("call", &self.call).finish_non_exhaustive()
    }
}

impl Task {
    /// Ends the call: runs its completion.
    pub fn finish(self, result: Result<()>) {
        (self.done)(result, self.buffers);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: OpKind,
    dtype: DataType,
    reduction: Reduction,
    bytes: usize,
}

/// The cache is emptied when it holds more plans than this.
const CACHED_PLANS: usize = 512;
/// The cache is emptied when its plans hold more steps than this (some 10 MB).
const CACHED_STEPS: usize = 1 << 18;

/// Makes plans and fingerprints, and keeps them.
#[derive(Debug)]
pub struct Preparer {
    geometry: Geometry,
    rank: usize,
    epoch: u64,
    settings: u64,
    last: Option<Arc<Prepared>>,
    cache: HashMap<Key, Arc<Prepared>>,
    steps: usize,
}

impl Preparer {
    /// For the group rank `rank` of a group with these areas.
    #[must_use]
    pub fn new(geometry: Geometry, rank: usize, epoch: u64, settings: u64) -> Preparer {
        Preparer { geometry, rank, epoch, settings, last: None, cache: HashMap::new(), steps: 0 }
    }

    /// A call of these arguments.
    #[inline]
    pub fn call(&mut self, kind: OpKind, dtype: DataType, reduction: Reduction, bytes: usize, limits: Limits) -> Call {
        let key = Key { kind, dtype, reduction, bytes };
        let prepared = match &self.last {
            Some(last) if last.key == key => Arc::clone(last),
            _ => self.prepare(key),
        };
        Call { prepared, named: None, limits, started: None }
    }

    #[cold]
    fn prepare(&mut self, key: Key) -> Arc<Prepared> {
        let found = self.cache.get(&key).map(Arc::clone);
        let prepared = found.unwrap_or_else(|| {
            let made = Arc::new(self.make(key));
            if self.cache.len() >= CACHED_PLANS || self.steps >= CACHED_STEPS {
                self.cache.clear();
                self.steps = 0;
            }
            self.steps += made.plan.steps.len();
            self.cache.insert(key, Arc::clone(&made));
            made
        });
        self.last = Some(Arc::clone(&prepared));
        prepared
    }

    fn make(&self, key: Key) -> Prepared {
        let element = key.dtype.size();
        let shape =
            Shape { kind: key.kind, ranks: self.geometry.ranks, bytes: key.bytes, element, geometry: self.geometry };
        let plan = plan::plan(&shape, self.rank);
        let fingerprint = Fingerprint {
            kind: key.kind,
            dtype: key.dtype,
            reduction: key.reduction,
            count: Elements(u64::try_from(key.bytes / element).expect("a length in memory fits 64 bits")),
            epoch: self.epoch,
            plan: plan.id,
            settings: self.settings,
            name: "".into(),
        };
        let hash = fingerprint.hash();
        let last_awaits = last_awaits(&plan);
        Prepared { plan, fold: Fold::new(key.dtype, key.reduction), fingerprint, hash, last_awaits, key }
    }
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
