//! The timeline, as trace events: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.
//!
//! A rank is a process of the timeline. The blocking unnamed calls of a group follow each other: they are slices of a thread.
//! Named and submitted calls may overlap, and slices of a thread must not: they are pairs of begin and end with an id.

use std::collections::BTreeMap;

use foldcast::blackbox::observe::{Operation, Stage};
use foldcast::blackbox::{awaited, describe};
use serde_json::{Value, json};

use super::dump::Dump;

/// The trace of all ranks. Times are microseconds since the first operation.
pub(super) fn of(dumps: &[Dump]) -> Value {
    let all = || dumps.iter().flat_map(|dump| &dump.operations);
    let start = all().map(Operation::came_ns).filter(|ns| *ns > 0).min().unwrap_or_default();
    // A thread of the timeline has the same number in each rank.
    let mut threads: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for operation in all() {
        let next = threads.len() + 1;
        threads.entry((&operation.group, operation.is_blocking)).or_insert(next);
    }
    let mut events = Vec::new();
    let mut next_id = 0_u64;
    for dump in dumps {
        name(&mut events, dump, &threads);
        for operation in &dump.operations {
            next_id += 1;
            let thread = threads[&(&*operation.group, operation.is_blocking)];
            add(&mut events, dump, operation, (thread, next_id), start);
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

fn name(events: &mut Vec<Value>, dump: &Dump, threads: &BTreeMap<(&str, bool), usize>) {
    let rank = dump.rank.0;
    let meta = |what: &str, thread: usize, name: String| json!({ "ph": "M", "name": what, "pid": rank, "tid": thread, "args": { "name": name } });
    events.push(meta("process_name", 0, format!("rank {rank} (process {})", dump.process)));
    events.push(
        json!({ "ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": { "sort_index": rank } }),
    );
    for ((group, is_blocking), thread) in threads {
        let kind = if *is_blocking { "" } else { ", named and submitted" };
        events.push(meta("thread_name", *thread, format!("group '{group}'{kind}")));
    }
}

fn add(events: &mut Vec<Value>, dump: &Dump, operation: &Operation, (thread, id): (usize, u64), start: u64) {
    let us = |ns: u64| std::time::Duration::from_nanos(ns.saturating_sub(start)).as_secs_f64() * 1e6;
    let begun = operation.begun_ns.unwrap_or_else(|| operation.came_ns());
    let ended = match (operation.ended_ns, operation.stage) {
        (Some(ended), _) => ended.max(begun),
        // It was over before anybody looked at the clock.
        (None, Stage::Done | Stage::Failed) => begun,
        (None, _) => dump.at_ns.max(begun),
    };
    let op = operation.summary.op();
    let args = json!({
        "bytes": operation.summary.bytes(),
        "group": operation.group,
        "state": format!("{:?}", operation.stage).to_lowercase(),
        "waited_for": awaited(operation),
        "queued_us": operation.submitted_ns.map(|submitted| us(begun) - us(submitted)),
    });
    let base = |phase: &str, ns: u64| json!({ "ph": phase, "name": describe(operation), "cat": op, "pid": dump.rank.0, "tid": thread, "ts": us(ns) });
    if operation.is_blocking {
        let mut event = base("X", begun);
        event["dur"] = (us(ended) - us(begun)).into();
        event["args"] = args;
        events.push(event);
        return;
    }
    let came = operation.came_ns();
    for (phase, at) in [("b", came), ("e", ended.max(came))] {
        let mut event = base(phase, at);
        event["id"] = id.into();
        event["args"] = args.clone();
        events.push(event);
    }
}
