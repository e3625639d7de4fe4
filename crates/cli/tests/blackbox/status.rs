//! What `foldcast status` says in each phase of a job's life.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Job, foldcast, numbers};

fn is(status: &Value, state: &str) -> bool {
    status["state"] == state
}

fn conditions(status: &Value) -> Vec<String> {
    status["ranks"].as_array().unwrap().iter().map(|rank| rank["condition"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn who_is_missing_is_said_before_all_have_come_and_nobody_is_disturbed() {
    let mut job = Job::empty(4, &[]);
    assert_eq!(job.try_status(), None);
    // Without rank 0, where the others knock.
    job.start(2);
    let status = job.await_status("rank 2", |status| conditions(status)[2] == "meeting");
    assert_eq!(conditions(&status), ["missing", "missing", "meeting", "missing"]);
    job.start(0);
    job.start(3);
    let status =
        job.await_status("rank 3", |status| conditions(status) == ["meeting", "missing", "meeting", "meeting"]);
    assert!(is(&status, "MEETING"), "{status}");
    let text = job.status_text();
    assert!(text.contains("4 ranks: MEETING\n  missing: rank 1\n"), "{text}");
    // Asked again and again, they still meet.
    (0..10).for_each(|_| drop(job.try_status()));
    job.start(1);
    (0..4).for_each(|rank| assert_eq!(job.rank(rank).hear(), "met"));
    job.all_do("barrier");
    let status = job.try_status().unwrap();
    assert!(is(&status, "RUNNING"), "{status}");
    assert_eq!((conditions(&status), &status["key"]), (vec!["alive".to_owned(); 4], &job.key.clone().into()));
}

#[test]
fn nccl_1730_status_says_stalled() {
    let mut job = Job::met(2, &[]);
    job.all_do("sum 262144");
    job.rank(0).tell("sum 1025");
    let status = job.await_status("a wait", |status| is(status, "WAITING") || is(status, "STALLED"));
    assert!(!status.to_string().contains("OK"), "{status}");
    let status = job.await_status("a stall", |status| is(status, "STALLED"));
    let wait = &status["waits"][0];
    assert_eq!((numbers(&wait["waiting"]), numbers(&wait["missing"])), (vec![0], vec![1]));
    assert_eq!(wait["operation"]["text"], "allreduce #2 of 1025 float32");
    assert_eq!(wait["operation"]["group"], "hccl_world_group");
    assert!(wait["since_s"].as_f64().unwrap() >= 1.0);
    let text = job.status_text();
    let stalled = "allreduce #2 of 1025 float32 on group 'hccl_world_group': rank 0 waits for rank 1\n";
    assert!(text.contains("2 ranks: STALLED\n  STALLED since ") && text.contains(stalled), "{text}");
    assert!(text.contains("allreduce #1 of 262144 float32 on group 'hccl_world_group', done"), "{text}");
    // Rank 1 comes: nothing is stalled any more.
    job.rank(1).tell("sum 1025");
    (0..2).for_each(|rank| assert_eq!(job.rank(rank).hear(), "done"));
    assert!(is(&job.try_status().unwrap(), "RUNNING"));
}

#[test]
fn nccl_1324_all_wait_for_the_rank_that_hangs() {
    let mut job = Job::met(4, &[("FOLDCAST_TIMEOUT", "4")]);
    job.all_do("sum 8");
    job.tell(&[0, 1, 3], "sum 16");
    let status = job.await_status("three wait", |status| numbers(&status["waits"][0]["waiting"]) == [0, 1, 3]);
    assert_eq!(numbers(&status["waits"][0]["missing"]), [2]);
    for rank in [0, 1, 3] {
        let said = job.rank(rank).hear();
        assert!(said.starts_with("error") && said.contains("rank 2"), "{said}");
    }
}

#[test]
fn a_stopped_rank_is_answered_for_by_another_one() {
    let mut job = Job::met(3, &[]);
    job.all_do("sum 8");
    job.rank(2).stop();
    let status = job.try_status().unwrap();
    assert_eq!(conditions(&status), ["alive", "alive", "stopped"]);
    assert_eq!(status["ranks"][2]["last"]["text"], "allreduce #1 of 8 float32");
    assert!(is(&status, "RUNNING"), "nobody waits yet: {status}");
    job.tell(&[0, 1], "sum 16");
    // At once: who is stopped does not come.
    let status = job.await_status("a stall", |status| numbers(&status["waits"][0]["waiting"]) == [0, 1]);
    assert!(is(&status, "STALLED"), "{status}");
    assert_eq!(numbers(&status["waits"][0]["missing"]), [2]);
    job.rank(2).signal(Signal::CONT);
    job.rank(2).tell("sum 16");
    (0..3).for_each(|rank| assert_eq!(job.rank(rank).hear(), "done"));
}

#[test]
fn a_job_of_which_all_ranks_are_stopped_is_read_all_the_same() {
    let mut job = Job::met(2, &[]);
    job.all_do("sum 8");
    job.rank(0).tell("sum 16");
    job.await_status("a wait", |status| status["waits"].as_array().is_some_and(|waits| !waits.is_empty()));
    (0..2).for_each(|rank| job.rank(rank).stop());
    let status = job.try_status().unwrap();
    assert!(is(&status, "STALLED"), "{status}");
    assert_eq!((conditions(&status), &status["answered_by"]), (vec!["stopped".to_owned(); 2], &Value::Null));
    assert_eq!(status["ranks"][0]["last"]["text"], "allreduce #2 of 16 float32");
    (0..2).for_each(|rank| job.rank(rank).signal(Signal::CONT));
    job.rank(1).tell("sum 16");
    (0..2).for_each(|rank| assert_eq!(job.rank(rank).hear(), "done"));
}

#[test]
fn the_ring_of_a_dead_rank_is_still_there() {
    let mut job = Job::met(3, &[]);
    job.all_do("sum 8");
    job.all_do("sum 24");
    job.rank(1).kill();
    let status = job.await_status("the death", |status| conditions(status)[1].contains("signal 9"));
    assert_eq!(status["ranks"][1]["last"]["text"], "allreduce #2 of 24 float32");
    assert_eq!(conditions(&status)[0], "alive");
}

#[test]
fn pytorch_68803_the_skipped_tensor_and_the_missing_rank_are_listed() {
    let mut job = Job::met(2, &[]);
    for name in ["t1", "t2", "t4", "t5"] {
        job.tell(&[0, 1], &format!("submit {name}"));
    }
    job.rank(0).tell("submit t3");
    for (rank, submitted) in [(0, 5), (1, 4)] {
        (0..submitted).for_each(|_| assert_eq!(job.rank(rank).hear(), "submitted"));
    }
    let status = job.await_status("a stall", |status| is(status, "STALLED"));
    let [wait] = &status["waits"].as_array().unwrap()[..] else { panic!("one wait: {status}") };
    assert_eq!(wait["operation"]["name"], "t3");
    assert_eq!((numbers(&wait["waiting"]), numbers(&wait["missing"])), (vec![0], vec![1]));
    let text = job.status_text();
    assert!(text.contains("allreduce 't3' of 4 float32") && text.contains("rank 0 waits for rank 1"), "{text}");
}

#[test]
fn a_rank_that_waits_for_the_groups_memory_is_seen() {
    let mut job = Job::met(2, &[]);
    // The first call of all: rank 0 makes the memory when it makes its own first call.
    job.rank(1).tell("sum 8");
    let status = job.await_status("the join", |status| is(status, "STALLED"));
    assert_eq!(status["waits"][0]["operation"]["op"], "join");
    assert_eq!(numbers(&status["waits"][0]["missing"]), [0]);
    job.rank(0).tell("sum 8");
    (0..2).for_each(|rank| assert_eq!(job.rank(rank).hear(), "done"));
}

#[test]
fn every_rank_is_seen_to_leave() {
    let mut job = Job::met(2, &[]);
    job.all_do("sum 8");
    job.rank(1).tell("quit");
    job.rank(1).child.wait().unwrap();
    let status = job.await_status("the end", |status| conditions(status)[1].starts_with("left in order"));
    assert!(is(&status, "RUNNING"), "{status}");
    job.rank(0).tell("quit");
    job.rank(0).child.wait().unwrap();
    assert_eq!(job.try_status(), None);
}

#[test]
fn two_jobs_of_one_key_are_told_apart() {
    let mut first = Job::met(2, &[]);
    first.all_do("sum 8");
    let mut second = Job::empty(2, &[]);
    second.key.clone_from(&first.key);
    second.start(1);
    second.start(0);
    (0..2).for_each(|rank| assert_eq!(second.rank(rank).hear(), "met"));
    second.all_do("sum 24");
    let (code, out) = foldcast(&["status", "--json", "--job", &first.key]);
    let status: Value = serde_json::from_str(&out).unwrap();
    let lasts: Vec<&Value> =
        status["jobs"].as_array().unwrap().iter().map(|job| &job["ranks"][1]["last"]["bytes"]).collect();
    assert_eq!(code, 0);
    assert!(lasts.len() == 2 && lasts.contains(&&Value::from(32)) && lasts.contains(&&Value::from(96)), "{out}");
}

#[test]
fn times_are_shown_by_kind() {
    let mut job = Job::met(2, &[]);
    for _ in 0..5 {
        job.all_do("sum 1048576");
        job.all_do("barrier");
    }
    let status = job.try_status().unwrap();
    let [reduce, barrier] = &status["times"].as_array().unwrap()[..] else { panic!("two kinds: {status}") };
    assert_eq!((&reduce["op"], &reduce["calls"]), (&"allreduce".into(), &10.into()));
    assert!(reduce["p50_ns"].as_u64().unwrap() > 0 && reduce["p99_ns"].as_u64() >= reduce["p50_ns"].as_u64());
    assert_eq!((&barrier["op"], &barrier["calls"]), (&"barrier".into(), &10.into()));
    let text = job.status_text();
    assert!(text.contains("  allreduce: the last 10 calls: p50 "), "{text}");
}
