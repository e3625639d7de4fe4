//! The state of jobs for programs.

use foldcast::Rank;
use foldcast::blackbox::observe::{Operation, Seen};
use foldcast::blackbox::{LateRank, Times, Wait, describe, operation_json};
use serde_json::{Value, json};

use super::judge::Judged;
use super::text::word;

pub(super) fn of(jobs: &[Judged]) -> Value {
    json!({ "jobs": jobs.iter().map(job).collect::<Vec<_>>() })
}

fn job(judged: &Judged) -> Value {
    let Judged { job, now, .. } = judged;
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let times = |Times { op, calls, p50, p99 }: &Times| json!({ "op": op, "calls": calls, "p50_ns": p50.map(ns), "p99_ns": p99.map(ns) });
    let late = |LateRank { rank, group, p50, calls }: &LateRank| json!({ "rank": rank.0, "group": group, "p50_ns": ns(*p50), "calls": calls });
    let wait = |wait: &Wait| {
        json!({
            "operation": operation(&wait.operation),
            "waiting": numbers(&wait.waiting),
            "missing": numbers(&wait.missing),
            "since_s": now.since(wait.since_ns).as_secs_f64(),
        })
    };
    json!({
        "job": format!("{:016x}", job.hash),
        "key": job.key,
        "state": judged.state.name(),
        "answered_by": job.answered_by.map(|rank| rank.0),
        "now_ns": now.0,
        "ranks": job.ranks.iter().map(|seen| rank(judged, seen)).collect::<Vec<_>>(),
        "waits": judged.waits.iter().map(wait).collect::<Vec<_>>(),
        "times": judged.times.iter().map(times).collect::<Vec<_>>(),
        "late": judged.late.iter().map(late).collect::<Vec<_>>(),
    })
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn operation(operation: &Operation) -> Value {
    let mut value = operation_json(operation);
    value["text"] = describe(operation).into();
    value
}

fn rank(judged: &Judged, seen: &Seen) -> Value {
    let last = judged.ranks.iter().find(|rank| rank.rank == seen.rank).and_then(|rank| rank.last());
    json!({
        "rank": seen.rank.0,
        "pid": (seen.process != 0).then_some(seen.process),
        "condition": word(seen),
        "operations": seen.noted.as_ref().map(|noted| noted.operations.len()),
        "last": last.map(operation),
        "said": last.map(|last| judged.now.state(last)),
    })
}
