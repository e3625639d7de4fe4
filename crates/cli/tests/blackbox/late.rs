//! A rank that comes late again and again is named.

use crate::support::Job;

/// How often a job is played. On a machine that has more to do than this, another rank may be as late as the one that is meant.
const TRIES: usize = 5;

fn named(job: &mut Job, group: &str) -> Result<(), String> {
    for waiting in 0..3 {
        let logged = &job.rank(waiting).logged;
        let said: Vec<_> = logged.iter().filter(|line| line.contains("late p50")).collect();
        let [line] = &said[..] else { return Err(format!("rank {waiting} says it once: {logged:?}")) };
        let other = || format!("not of rank 3, or not by 4 ms: {line}");
        let rest = line.strip_prefix(&format!("rank {waiting}: rank 3 late p50 ")).ok_or_else(other)?;
        let (ms, rest) = rest.split_once(' ').unwrap();
        if ms.parse::<f64>().unwrap() < 4.0 {
            return Err(other());
        }
        assert_eq!(rest, format!("ms over the last 50 calls of group '{group}'"));
    }
    let logged = &job.rank(3).logged;
    if logged.iter().any(|line| line.contains("late p50")) { Err(format!("rank 3: {logged:?}")) } else { Ok(()) }
}

fn steps(job: &mut Job, command: &str) {
    // Together they take as long as the late rank lets them, so what is late is not what takes long.
    job.tell(&[0, 1, 2], &format!("{command} 60 0"));
    job.rank(3).tell(&format!("{command} 60 5"));
    (0..4).for_each(|rank| assert_eq!(job.rank(rank).hear(), "done"));
}

/// `foldcast status` finds it in what was noted, also for who was not there.
fn seen(job: &Job) -> Result<(), String> {
    let status = job.try_status().unwrap();
    let late = &status["late"];
    if (&late[0]["rank"], &late[0]["calls"], &late[1]) != (&3.into(), &50.into(), &serde_json::Value::Null)
        || late[0]["p50_ns"].as_u64().unwrap() < 4_000_000
    {
        return Err(format!("status: {late}"));
    }
    let text = job.status_text();
    assert!(text.contains("rank 3 late p50 ") && text.contains("ms over the last 50 calls of group"), "{text}");
    Ok(())
}

fn a_straggler_is_named(command: &str) {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        let mut job = Job::met(4, &[]);
        steps(&mut job, command);
        match named(&mut job, "hccl_world_group").and_then(|()| seen(&job)) {
            Ok(()) => return,
            Err(other) => found.push(other),
        }
    }
    panic!("in {TRIES} jobs: {found:#?}");
}

#[test]
fn horovod_2026_a_straggler_is_named_after_50_steps() {
    a_straggler_is_named("steps");
}

#[test]
fn a_rank_that_submits_late_is_named_too() {
    a_straggler_is_named("named-steps");
}

/// All calls end at the same time on all ranks: only the arrivals say who it was. (Another rank may be late to the last call too,
/// if the machine has more to do than this: then again.)
#[test]
fn traceml_252_arrivals_are_noted_and_not_ends() {
    let mut job = Job::met(4, &[]);
    let mut seen = Vec::new();
    for _ in 0..20 {
        steps(&mut job, "steps");
        let status = job.try_status().unwrap();
        let time = |rank: usize, key: &str| status["ranks"][rank]["last"][key].as_u64();
        let begun: Vec<u64> = (0..4).map(|rank| time(rank, "begun_ns").unwrap()).collect();
        let ended: Vec<u64> = (0..3).map(|rank| time(rank, "ended_ns").unwrap()).collect();
        assert!(ended.iter().all(|ended| *ended >= begun[3]), "{ended:?} {begun:?}");
        // The last one came to the last call 5 ms or so after the others.
        if (0..3).all(|rank| begun[3] >= begun[rank] + 3_000_000) {
            return;
        }
        seen.push(begun);
    }
    panic!("rank 3 was never the last by 3 ms: {seen:?}");
}
