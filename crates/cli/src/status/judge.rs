//! What is said of a job.

use std::time::Duration;

use foldcast::Rank;
use foldcast::blackbox::observe::{Condition, Job, Seen, Stage};
use foldcast::blackbox::{LateRank, Moment, RankOperations, Times, Wait, late_ranks, times, waits};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not all ranks have come.
    Meeting,
    /// No rank waits.
    Running,
    /// Some wait, not for long.
    Waiting,
    /// Some wait for too long, or for who cannot come.
    Stalled,
    /// All ranks are gone.
    Ended,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            State::Meeting => "MEETING",
            State::Running => "RUNNING",
            State::Waiting => "WAITING",
            State::Stalled => "STALLED",
            State::Ended => "ENDED",
        }
    }
}

/// A job and what is said of it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) job: Job,
    pub(super) now: Moment,
    pub(super) state: State,
    pub(super) ranks: Vec<RankOperations>,
    /// The longest first.
    pub(super) waits: Vec<Wait>,
    pub(super) times: Vec<Times>,
    pub(super) late: Vec<LateRank>,
}

impl Judged {
    pub(super) fn of(job: Job, stalled_after: Duration) -> Judged {
        let now = Moment::now();
        let operations = |seen: &Seen| {
            let mut operations = seen.noted.as_ref().map_or_else(Vec::new, |noted| noted.operations.clone());
            if matches!(seen.condition, Condition::Gone(_)) {
                // It waits no more.
                operations.retain(|operation| operation.stage != Stage::Waiting);
            }
            RankOperations { rank: seen.rank, operations }
        };
        let ranks: Vec<RankOperations> = job.ranks.iter().map(operations).collect();
        let waits = waits(&ranks, false);
        let state = state(&job, &waits, now, stalled_after);
        let (times, late) = (times(&ranks), late_ranks(&ranks));
        Judged { job, now, state, ranks, waits, times, late }
    }
}

fn state(job: &Job, waits: &[Wait], now: Moment, stalled_after: Duration) -> State {
    let is = |rank: &Rank, wanted: fn(Condition) -> bool| {
        job.ranks.iter().any(|seen| seen.rank == *rank && wanted(seen.condition))
    };
    let cannot_come = |condition| matches!(condition, Condition::Stopped | Condition::Gone(_));
    let is_stalled = |wait: &Wait| {
        now.since(wait.since_ns) >= stalled_after || wait.missing.iter().any(|rank| is(rank, cannot_come))
    };
    if !job.has_met {
        State::Meeting
    } else if job.ranks.iter().all(|seen| matches!(seen.condition, Condition::Gone(_))) {
        State::Ended
    } else if waits.iter().any(is_stalled) {
        State::Stalled
    } else if waits.is_empty() {
        State::Running
    } else {
        State::Waiting
    }
}
