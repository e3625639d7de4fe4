use types::{DataType, OpKind, Reduction, Summary, Tag, failure_code_of};

use super::*;

const STEP_NS: u64 = 10_000_000;

/// Call `number` of group 1, to which the rank came at this time.
fn call(number: u64, begun_ns: u64) -> Operation {
    Operation {
        summary: Summary::new(OpKind::AllReduce, DataType::Float32, Reduction::Sum, 4096),
        tag: Some(Tag::Unnamed(number)),
        group: "g".into(),
        group_id: 1,
        key: number,
        is_blocking: true,
        stage: Stage::Done,
        error: 0,
        awaited: None,
        submitted_ns: None,
        begun_ns: Some(begun_ns),
        ended_ns: None,
    }
}

fn of_ranks(size: u32, operations: impl Fn(u32) -> Vec<Operation>) -> Vec<RankOperations> {
    (0..size).map(|rank| RankOperations { rank: Rank(rank), operations: operations(rank) }).collect()
}

/// Steps to which rank `late` comes late by so much.
fn steps(number: u64, late: u32, by_ns: u64) -> Vec<RankOperations> {
    let came = move |rank, step| STEP_NS * step + if rank == late { by_ns } else { u64::from(rank) };
    of_ranks(4, |rank| (1..=number).map(|step| call(step, came(rank, step))).collect())
}

#[test]
fn a_rank_that_is_late_to_each_of_50_calls_is_found() {
    let [late] = &late_ranks(&steps(50, 3, 5_000_000))[..] else { panic!("one rank is late") };
    assert_eq!((late.rank, late.calls, &late.group[..]), (Rank(3), 50, "g"));
    assert_eq!(late.p50.as_millis(), 4, "since the second of four came, 1 ns after the first");
    assert_eq!(late_ranks(&steps(49, 3, 5_000_000)), [], "too few calls");
    assert_eq!(late_ranks(&steps(200, 3, 900_000)), [], "not late enough");
}

#[test]
fn calls_that_some_have_not_come_to_say_nothing() {
    let mut ranks = steps(60, 3, 5_000_000);
    ranks[3].operations.truncate(49);
    assert_eq!(late_ranks(&ranks), []);
    ranks[0].operations.clear();
    assert_eq!(late_ranks(&ranks), []);
}

#[test]
fn who_waits_for_whom_is_put_together() {
    let waiting = |rank, since| Operation { stage: Stage::Waiting, awaited: Some((Rank(rank), 1)), ..call(7, since) };
    let ranks = of_ranks(4, |rank| match rank {
        2 => vec![call(6, 50)],
        rank => vec![call(6, 50), waiting(2, 100 + u64::from(rank))],
    });
    let [wait] = &waits(&ranks, false)[..] else { panic!("one wait") };
    assert_eq!((&wait.waiting[..], &wait.missing[..]), (&[Rank(0), Rank(1), Rank(3)][..], &[Rank(2)][..]));
    assert_eq!((wait.since_ns, wait.has_failed), (100, false));
    // Rank 1 looked before rank 0 had come.
    let stale = of_ranks(3, |rank| match rank {
        2 => Vec::new(),
        rank => vec![waiting(if rank == 1 { 0 } else { 2 }, 100)],
    });
    assert!(matches!(&waits(&stale, false)[..], [wait] if wait.missing == [Rank(2)]));
    assert_eq!(ranks[2].last().and_then(|last| last.tag.clone()), Some(Tag::Unnamed(6)));
    let failed = of_ranks(1, |_| vec![Operation { stage: Stage::Failed, error: 5, ..waiting(1, 3) }]);
    assert!(waits(&failed, false).is_empty());
    assert!(matches!(&waits(&failed, true)[..], [wait] if wait.has_failed));
}

#[test]
fn times_are_by_kind_and_those_without_a_clock_are_the_short_ones() {
    let took = |ns: Option<u64>| Operation { ended_ns: ns.map(|ns| 100 + ns), ..call(1, 100) };
    let ranks = of_ranks(1, |_| (0..100_u64).map(|at| took((at >= 60).then_some(at))).collect());
    let [times] = &times(&ranks)[..] else { panic!("one kind") };
    assert_eq!((times.op, times.calls, times.p50), ("allreduce", 100, None));
    assert_eq!(times.p99, Some(Duration::from_nanos(98)));
}

#[test]
fn states_are_told_in_words() {
    let now = Moment(5_000_000_000);
    let at =
        |stage, awaited| Operation { stage, awaited, error: failure_code_of("Deadline"), ..call(7, 2_000_000_000) };
    assert_eq!(describe(&at(Stage::Done, None)), "allreduce #7 of 1024 float32");
    assert_eq!(now.state(&at(Stage::Waiting, Some((Rank(2), 1)))), "waits for rank 2 since 3.0 s");
    assert_eq!(now.state(&at(Stage::Waiting, Some((Rank(2), 3)))), "waits for rank 2 and 2 more since 3.0 s");
    assert_eq!(now.state(&at(Stage::Failed, None)), "failed 3.0 s ago (Deadline)");
    assert_eq!(now.state(&at(Stage::Done, None)), "done 3.0 s ago");
    let join = Operation { summary: Summary::JOIN, tag: None, ..call(0, 1) };
    assert_eq!(describe(&join), "join");
}

#[test]
fn operations_round_trip_through_json() {
    let join = Operation { summary: Summary::JOIN, tag: None, key: 0, ..call(0, 1) };
    let named = Operation {
        tag: Some(Tag::Named("w \"1\"".into())),
        key: 1 << 63 | 5,
        is_blocking: false,
        stage: Stage::Failed,
        error: failure_code_of("RankDied"),
        awaited: Some((Rank(3), 2)),
        submitted_ns: Some(u64::MAX),
        begun_ns: None,
        ended_ns: Some(9),
        ..call(0, 0)
    };
    let barrier =
        Operation { summary: Summary::new(OpKind::Barrier, DataType::Uint8, Reduction::Sum, 0), ..call(3, 4) };
    for operation in [call(5, 6), join, named, barrier] {
        let text = operation_json(&operation).to_string();
        let value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(operation_from_json(&value), Some(operation), "{text}");
    }
    assert_eq!(operation_from_json(&serde_json::json!({ "op": "allreduce" })), None);
}
