//! Operations as JSON and back.

use serde_json::{Map, Value, json};
use shm::observe::{Operation, Stage};
use types::{DataType, OpKind, Rank, Reduction, Summary, Tag, failure_code_of, failure_name};

const STAGES: [(Stage, &str); 5] = [
    (Stage::Submitted, "submitted"),
    (Stage::Begun, "begun"),
    (Stage::Waiting, "waiting"),
    (Stage::Done, "done"),
    (Stage::Failed, "failed"),
];

/// An operation as a flat JSON object. Times are in ns of the monotonic clock, absent where they are not known.
#[must_use]
pub fn operation_json(operation: &Operation) -> Value {
    let Operation { summary, stage, .. } = operation;
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| drop(object.insert(key.into(), value));
    put("op", summary.op().into());
    match &operation.tag {
        Some(Tag::Unnamed(number)) => put("number", (*number).into()),
        Some(Tag::Named(name)) => put("name", (&**name).into()),
        None => {}
    }
    if let (Some(dtype), Some(reduction)) = (summary.dtype(), summary.reduction()) {
        put("dtype", dtype.name().into());
        put("reduction", reduction.name().into());
        put("bytes", summary.bytes().into());
    }
    put("group", operation.group.as_str().into());
    put("group_id", operation.group_id.into());
    put("key", operation.key.into());
    put("blocking", operation.is_blocking.into());
    let name = STAGES.iter().find(|(known, _)| known == stage).map_or("", |(_, name)| *name);
    put("state", name.into());
    if *stage == Stage::Failed {
        put("error", failure_name(operation.error).into());
    }
    if let Some((first, number)) = operation.awaited {
        put("waits_for", json!({ "rank": first.0, "ranks": number }));
    }
    let times =
        [("submitted_ns", operation.submitted_ns), ("begun_ns", operation.begun_ns), ("ended_ns", operation.ended_ns)];
    for (key, time) in times {
        if let Some(ns) = time {
            put(key, ns.into());
        }
    }
    Value::Object(object)
}

/// The operation that such an object is; `None` if it is none.
#[must_use]
pub fn operation_from_json(value: &Value) -> Option<Operation> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let op = text("op")?;
    let summary = match OpKind::ALL.into_iter().find(|kind| kind.name() == op) {
        Some(kind) => {
            let dtype: DataType = text("dtype")?.parse().ok()?;
            let reduction: Reduction = text("reduction")?.parse().ok()?;
            Summary::new(kind, dtype, reduction, number("bytes")?)
        }
        None if op == Summary::JOIN.op() => Summary::JOIN,
        None => return None,
    };
    let state = text("state")?;
    let stage = STAGES.iter().find(|(_, name)| *name == state).map(|(stage, _)| *stage)?;
    let awaited = value.get("waits_for").and_then(|waits| {
        let rank = u32::try_from(waits.get("rank")?.as_u64()?).ok()?;
        Some((Rank(rank), u16::try_from(waits.get("ranks")?.as_u64()?).ok()?))
    });
    let tag = match (text("name"), number("number")) {
        (Some(name), _) => Some(Tag::Named(name.into())),
        (None, number) => number.map(Tag::Unnamed),
    };
    Some(Operation {
        summary,
        tag,
        group: text("group")?.to_owned(),
        group_id: number("group_id")?,
        key: number("key")?,
        is_blocking: value.get("blocking")?.as_bool()?,
        stage,
        error: text("error").map_or(0, failure_code_of),
        awaited,
        submitted_ns: number("submitted_ns"),
        begun_ns: number("begun_ns"),
        ended_ns: number("ended_ns"),
    })
}
