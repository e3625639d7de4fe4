//! What ranks leave in `FOLDCAST_DUMP_DIR`, and what `foldcast trace` makes of it.

use serde_json::Value;

use crate::support::{Directory, Job, foldcast};

const MAX_BYTES: u64 = 1 << 20;

fn read(directory: &Directory, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory.0.join(name)).unwrap()).unwrap()
}

/// The file of a rank.
fn of_rank(directory: &Directory, rank: usize) -> Value {
    let files = directory.files();
    let name = files.iter().find(|name| name.contains(&format!("-rank{rank}-"))).unwrap_or_else(|| panic!("{files:?}"));
    read(directory, name)
}

/// Three ranks of which the last one is killed in the tenth call of the two others.
fn death(directory: &Directory) -> Job {
    let mut job = Job::met(3, &[("FOLDCAST_DUMP_DIR", directory.path())]);
    for _ in 0..9 {
        job.all_do("sum 8");
    }
    job.tell(&[0, 1], "sum 16");
    job.await_status("two wait", |status| status["waits"][0]["waiting"].as_array().is_some_and(|all| all.len() == 2));
    job.rank(2).kill();
    for rank in 0..2 {
        let said = job.rank(rank).hear();
        assert!(said.contains("rank 2 was killed by signal 9"), "{said}");
    }
    job
}

#[test]
fn every_survivor_leaves_a_file_and_one_of_the_dead_rank() {
    let directory = Directory::new();
    let _job = death(&directory);
    let files = directory.files();
    assert_eq!(files.len(), 3, "{files:?}");
    for rank in 0..2 {
        let file = of_rank(&directory, rank);
        assert_eq!(file["errors"][0]["kind"], "RankDied");
        assert_eq!(file["errors"][0]["ranks"][0], 2);
        assert!(file["errors"][0]["text"].as_str().unwrap().contains("allreduce #10"), "{file}");
        assert_eq!((&file["written_by"], &file["size"]), (&rank.into(), &3.into()));
        let (last, operations) = (&file["operations"][0], file["operations"].as_array().unwrap());
        assert_eq!(
            (&last["number"], &last["state"], &last["error"]),
            (&10.into(), &"failed".into(), &"RankDied".into())
        );
        assert_eq!(last["waits_for"]["rank"], 2);
        assert_eq!(operations.iter().filter(|operation| operation["op"] == "allreduce").count(), 10);
        for key in ["host", "version", "kernel", "job", "pid", "at_ns", "at_unix_ms"] {
            assert!(!file[key].is_null(), "{key}: {file}");
        }
    }
    let dead = of_rank(&directory, 2);
    assert_eq!(dead["ended"], "was killed by signal 9 (SIGKILL)");
    assert!(dead["written_by"].as_u64().unwrap() < 2);
    assert_eq!((&dead["operations"][0]["number"], &dead["operations"][0]["state"]), (&9.into(), &"done".into()));
}

#[test]
fn a_trace_has_an_event_for_each_call_and_says_who_was_missing() {
    let directory = Directory::new();
    let _job = death(&directory);
    let out = directory.0.join("trace");
    let (code, text) = foldcast(&["trace", directory.path(), "--out", out.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let missing = "rank 2 missing in allreduce #10 of 16 float32 on group 'hccl_world_group': rank 0, rank 1 waited ";
    assert!(text.contains(missing) && text.contains("last operation of rank 2: allreduce #9 of 8 float32"), "{text}");
    assert!(text.contains("which was killed by signal 9 (SIGKILL): written by rank "), "{text}");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (rank, calls) in [(0, 10), (1, 10), (2, 9)] {
        let own = || events.iter().filter(move |event| event["pid"] == rank);
        let slices: Vec<_> = own().filter(|event| event["ph"] == "X").collect();
        assert_eq!(slices.len(), calls, "rank {rank}");
        assert!(
            slices.iter().all(|slice| slice["ts"].as_f64().unwrap() >= 0.0 && slice["dur"].as_f64().unwrap() >= 0.0)
        );
        assert!(own().any(|event| event["name"] == "process_name"), "rank {rank}");
    }
    // The clocks agree: who waited in call 10 had begun it after the dead rank had begun call 9.
    let ts = |rank: u32, name: &str| {
        let event = events.iter().find(|event| event["pid"] == rank && event["name"] == name);
        event.unwrap()["ts"].as_f64().unwrap()
    };
    assert!(ts(0, "allreduce #10 of 16 float32") > ts(2, "allreduce #9 of 8 float32"));
    assert!(ts(2, "allreduce #9 of 8 float32") > ts(0, "allreduce #8 of 8 float32"));
}

#[test]
fn one_file_is_a_trace_too() {
    let directory = Directory::new();
    let _job = death(&directory);
    let file = directory.0.join(&directory.files()[0]);
    let (code, text) = foldcast(&["trace", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    assert!(text.contains("files of 1 of 3 ranks") && text.contains("rank 2 left no file"), "{text}");
}

#[test]
fn horovod_1595_files_that_were_cut_short_are_read_as_far_as_they_go() {
    let directory = Directory::new();
    let _job = death(&directory);
    let files = directory.files();
    let first = directory.0.join(&files[0]);
    let whole = std::fs::read(&first).unwrap();
    // As a kill in the middle of writing leaves it: cut, and without its name.
    std::fs::write(&first, &whole[..whole.len() * 2 / 3]).unwrap();
    std::fs::rename(&first, first.with_extension("77.part")).unwrap();
    std::fs::write(directory.0.join("foldcast-0-rank1-5.json"), "").unwrap();
    std::fs::write(directory.0.join("foldcast-0-rank1-6.json"), [0xff; 100]).unwrap();
    let out = directory.0.join("trace");
    let (code, text) = foldcast(&["trace", directory.path(), "--out", out.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("operations, cut short") && text.contains("files of 3 of 3 ranks"), "{text}");
    assert!(text.contains("files of which nothing could be read: 2"), "{text}");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let of_rank_0 =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == 0 && event["ph"] == "X");
    assert!(of_rank_0.count() >= 4);
}

#[test]
fn horovod_603_files_are_bounded_however_long_a_job_runs() {
    let directory = Directory::new();
    let mut job = Job::met(2, &[("FOLDCAST_DUMP_DIR", directory.path())]);
    job.all_do("steps 20000 0");
    job.all_do("named-steps 2000 0");
    job.rank(0).tell("sum 8 0.2");
    assert!(job.rank(0).hear().starts_with("error"));
    job.rank(1).tell("sum 8");
    assert!(job.rank(1).hear().starts_with("error"));
    let files = directory.files();
    assert_eq!(files.len(), 2, "{files:?}");
    for name in &files {
        let bytes = std::fs::metadata(directory.0.join(name)).unwrap().len();
        assert!(bytes <= MAX_BYTES, "{name}: {bytes}");
        let operations = read(&directory, name)["operations"].as_array().unwrap().len();
        assert!((256..=2 * 256 + 1).contains(&operations), "{operations}");
    }
}

#[test]
fn pytorch_140563_the_error_itself_tells_the_last_operation_of_every_rank() {
    let mut job = Job::met(3, &[]);
    job.all_do("sum 262144");
    job.rank(2).stop();
    job.rank(1).tell("sum 8 60");
    job.await_status("rank 1 waits", |status| status["waits"][0]["waiting"] == serde_json::json!([1]));
    job.rank(0).tell("sum 1025 1");
    let said = job.rank(0).hear();
    assert!(said.contains("; last operations: rank"), "{said}");
    for part in [
        "rank 0: allreduce #2 of 1025 float32, failed",
        // It waits, or has heard already that the group is over.
        "rank 1: allreduce #2 of 8 float32, ",
        "rank 2: allreduce #1 of 262144 float32, done",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_mismatch_leaves_files_and_the_group_goes_on() {
    let directory = Directory::new();
    let mut job = Job::met(2, &[("FOLDCAST_DUMP_DIR", directory.path())]);
    job.rank(0).tell("sum 8");
    job.rank(1).tell("sum 9");
    (0..2).for_each(|rank| assert!(job.rank(rank).hear().contains("disagree in count")));
    job.all_do("sum 8");
    assert_eq!(directory.files().len(), 2);
    let file = of_rank(&directory, 1);
    assert_eq!((&file["errors"][0]["kind"], &file["operations"][0]["error"]), (&"Mismatch".into(), &"Mismatch".into()));
}

#[test]
fn what_cannot_be_written_is_logged_and_never_raised() {
    let mut job = Job::met(2, &[("FOLDCAST_DUMP_DIR", "/dev/null/nowhere")]);
    job.rank(0).tell("sum 8");
    job.rank(1).tell("sum 9");
    for rank in 0..2 {
        let said = job.rank(rank).hear();
        assert!(said.contains("disagree in count"), "{said}");
        let logged = &job.rank(rank).logged;
        assert!(logged.iter().any(|line| line.contains("could not be written to /dev/null/nowhere/")), "{logged:?}");
    }
}

#[test]
fn a_directory_without_files_is_said_to_be_one() {
    let (code, out) = foldcast(&["trace", env!("CARGO_MANIFEST_DIR")]);
    assert_eq!((code, &out[..]), (2, ""));
}
