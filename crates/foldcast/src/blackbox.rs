//! What the ranks of a job have done last, and what can be said of it: who waits for whom, how long calls take, who comes late.
//!
//! [`jobs`](observe::jobs) looks at the jobs of this user from outside. What a failed rank has written to a file becomes the
//! same [`Operation`]s again ([`operation_from_json`]), so that both are judged in the same way. `docs/blackbox.md` is for those
//! who look for the rank that hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use shm::observe;
use shm::observe::{Operation, Stage};
use types::{Rank, failure_name};

mod json;
mod late;

pub use json::{operation_from_json, operation_json};
pub use late::{LateRank, late_ranks};

/// What the files in `FOLDCAST_DUMP_DIR` say they are, in `format`.
pub const DUMP_FORMAT: &str = "foldcast operations 1";

/// Bytes of such a file at most.
pub const MAX_DUMP_BYTES: usize = 1 << 20;

/// What an operation is, such as `allreduce #7 of 1024 float32`.
#[must_use]
pub fn describe(operation: &Operation) -> String {
    let op = operation.summary.op();
    let tag = match (&operation.tag, operation.summary.kind()) {
        (Some(tag), _) => format!(" {tag}"),
        (None, Some(_)) => " without a number yet".into(),
        (None, None) => String::new(),
    };
    let bytes = operation.summary.bytes();
    let size = match operation.summary.dtype() {
        Some(dtype) if bytes > 0 => {
            let element = u64::try_from(dtype.size()).unwrap_or(1);
            format!(" of {} {dtype}", bytes / element)
        }
        _ => String::new(),
    };
    format!("{op}{tag}{size}")
}

/// Whom an operation waits for, or waited for last, such as `rank 2 and 1 more`.
#[must_use]
pub fn awaited(operation: &Operation) -> Option<String> {
    let (first, number) = operation.awaited?;
    Some(match number {
        1 => first.to_string(),
        number => format!("{first} and {} more", number - 1),
    })
}

/// A moment of the clock by which operations are noted.
#[derive(Clone, Copy, Debug)]
pub struct Moment(pub u64);

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Moment {
        Moment(observe::now_ns())
    }

    /// How long ago something was.
    #[must_use]
    pub fn since(self, ns: u64) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(ns))
    }

    /// The state of an operation at this moment, such as `waits for rank 2 since 1.3 s`.
    #[must_use]
    pub fn state(self, operation: &Operation) -> String {
        let since = |ns: u64| format!("{:.1} s", self.since(ns).as_secs_f64());
        let came = since(operation.came_ns());
        match (operation.stage, operation.ended_ns) {
            (Stage::Submitted, _) => format!("submitted {came} ago"),
            (Stage::Begun, _) => format!("entered {came} ago"),
            (Stage::Waiting, _) => {
                let awaited = awaited(operation).unwrap_or_else(|| "another rank".into());
                format!("waits for {awaited} since {came}")
            }
            (Stage::Done, Some(ended)) => format!("done {} ago", since(ended)),
            // It was over before anybody could have looked at the clock.
            (Stage::Done, None) => format!("done {came} ago"),
            (Stage::Failed, ended) => {
                let ago = ended.map_or(came, since);
                format!("failed {ago} ago ({})", failure_name(operation.error))
            }
        }
    }
}

/// A rank and what it has noted.
#[derive(Clone, Debug)]
pub struct RankOperations {
    /// The rank.
    pub rank: Rank,
    /// Its operations, in the order in which it came to them.
    pub operations: Vec<Operation>,
}

impl RankOperations {
    /// The operation to which it came last.
    #[must_use]
    pub fn last(&self) -> Option<&Operation> {
        self.operations.last()
    }
}

/// Ranks that wait for others in the same call.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The call, as the rank sees it that waits for the longest time.
    pub operation: Operation,
    /// Who waits, or waited until the call failed.
    pub waiting: Vec<Rank>,
    /// For whom.
    pub missing: Vec<Rank>,
    /// Since when.
    pub since_ns: u64,
    /// Whether the call has failed meanwhile.
    pub has_failed: bool,
}

/// Who waits for whom, the longest wait first. With `failed`, also the waits that ended with an error.
#[must_use]
pub fn waits(ranks: &[RankOperations], failed: bool) -> Vec<Wait> {
    // A call of which ranks do not know yet that it is the same is told apart by what it is called.
    type Call = (u64, u64, String);
    let mut calls: BTreeMap<Call, Vec<(Rank, &Operation)>> = BTreeMap::new();
    for RankOperations { rank, operations } in ranks {
        let is_wait = |operation: &&Operation| {
            operation.awaited.is_some()
                && (operation.stage == Stage::Waiting || (failed && operation.stage == Stage::Failed))
        };
        for operation in operations.iter().filter(is_wait) {
            let call = (operation.group_id, operation.key, describe_call(operation));
            calls.entry(call).or_default().push((*rank, operation));
        }
    }
    let wait = |waiting: Vec<(Rank, &Operation)>| {
        let (_, first) = waiting.iter().min_by_key(|(_, operation)| operation.came_ns())?;
        let awaited: BTreeSet<Rank> = waiting.iter().filter_map(|(_, operation)| Some(operation.awaited?.0)).collect();
        // Who was waited for and waits now has come since then.
        let has_come = |rank: &Rank| waiting.iter().any(|(waits, _)| waits == rank);
        let missing: BTreeSet<Rank> = awaited.iter().copied().filter(|rank| !has_come(rank)).collect();
        let missing = if missing.is_empty() { awaited } else { missing };
        Some(Wait {
            operation: (*first).clone(),
            since_ns: first.came_ns(),
            has_failed: waiting.iter().all(|(_, operation)| operation.stage == Stage::Failed),
            waiting: waiting.iter().map(|(rank, _)| *rank).collect(),
            missing: missing.into_iter().collect(),
        })
    };
    let mut waits: Vec<Wait> = calls.into_values().filter_map(wait).collect();
    waits.sort_by_key(|wait| wait.since_ns);
    waits
}

fn describe_call(operation: &Operation) -> String {
    let tag = operation.tag.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{} {tag}", operation.summary.op())
}

/// How long the operations of one kind took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The kind, such as `allreduce`.
    pub op: &'static str,
    /// Operations that ended well.
    pub calls: usize,
    /// The median; `None` if so many were over before anybody looked at the clock, within some microseconds.
    pub p50: Option<Duration>,
    /// What one in a hundred exceeds; `None` as above.
    pub p99: Option<Duration>,
}

/// How long operations took, by kind: those of all these ranks together.
#[must_use]
pub fn times(ranks: &[RankOperations]) -> Vec<Times> {
    let mut kinds: BTreeMap<&'static str, Vec<Option<Duration>>> = BTreeMap::new();
    let all = ranks.iter().flat_map(|rank| &rank.operations);
    let is_call = |operation: &&Operation| operation.stage == Stage::Done && operation.summary.kind().is_some();
    for operation in all.filter(is_call) {
        let begun = operation.begun_ns.unwrap_or_else(|| operation.came_ns());
        let took = operation.ended_ns.map(|ended| Duration::from_nanos(ended.saturating_sub(begun)));
        kinds.entry(operation.summary.op()).or_default().push(took);
    }
    let times = |(op, mut took): (&'static str, Vec<Option<Duration>>)| {
        // Those without a time come first: they are the short ones.
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        Times { op, calls: took.len(), p50: at(50), p99: at(99) }
    };
    kinds.into_iter().map(times).collect()
}

#[cfg(test)]
mod tests;
