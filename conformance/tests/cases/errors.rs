//! The text of every error that a wait can end with is enough: who, in which op, whom it is about, how long, which limit.

use std::sync::Barrier;
use std::time::Duration;

use foldcast::{CallOptions, Communicator, Config, DataType, Error, Group, Reduction, Result, Timeout};

use crate::support::{algorithms, submit, sum, world};

const RANKS: usize = 3;
const LIMIT: Duration = Duration::from_millis(150);

/// The ways of calling, each with what its tag looks like.
type Way = (&'static str, fn(&Group, usize, Timeout) -> Result<()>);

const WAYS: [Way; 4] = [
    ("#", |group, count, timeout| call(group, count, None, timeout)),
    ("'x'", |group, count, timeout| call(group, count, Some("x"), timeout)),
    ("#", |group, count, timeout| submitted(group, count, None, timeout)),
    ("'x'", |group, count, timeout| submitted(group, count, Some("x"), timeout)),
];

fn call(group: &Group, count: usize, name: Option<&str>, timeout: Timeout) -> Result<()> {
    sum(group, &vec![1.0; count], &CallOptions { name, timeout, ..CallOptions::default() }).map(drop)
}

fn submitted(group: &Group, count: usize, name: Option<&str>, timeout: Timeout) -> Result<()> {
    let input = vec![0; count * 4];
    let options = CallOptions { name, timeout, ..CallOptions::default() };
    submit(group, DataType::Float32, Reduction::Sum, &input, &options)?.wait().map(drop)
}

/// The number of seconds behind these words, which must have three decimals and its unit.
fn seconds(text: &str, words: &str) -> f64 {
    let rest = text.split_once(words).unwrap_or_else(|| panic!("no '{words}' in: {text}")).1;
    let number = rest.split_once(" s").unwrap_or_else(|| panic!("no unit behind '{words}' in: {text}")).0;
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    assert_eq!(decimals, 3, "{text}");
    number.parse().unwrap_or_else(|_| panic!("no number behind '{words}' in: {text}"))
}

/// What every such text has: the rank that speaks, its op and tag, the group, the rank that it is about, and the time.
fn check(error: &Error, own: usize, tag: &str, peer: usize) -> String {
    let text = error.to_string();
    assert!(text.starts_with(&format!("rank {own}: allreduce {tag}")), "{text}");
    assert!(text.contains(" on group 'hccl_world_group': "), "{text}");
    let rest = text.split_once("': ").unwrap().1;
    let name = format!("rank {peer}");
    let whole = |(at, _): (usize, &str)| !rest[at + name.len()..].starts_with(|c: char| c.is_ascii_digit());
    assert!(rest.match_indices(&name).any(whole), "{name} is not named in: {text}");
    assert!(seconds(&text, " (after ") < 3600.0, "{text}");
    assert!(!text.contains("unknown"), "{text}");
    text
}

/// One world for each algorithm and way; the body makes an error on each rank that it is for.
fn everywhere(body: impl Fn(&Communicator, &Group, &Way, &Barrier) + Sync) {
    for algorithm in algorithms() {
        for way in WAYS {
            let told = Barrier::new(RANKS);
            world(RANKS, algorithm, |communicator| {
                let group = communicator.world();
                group.barrier(&CallOptions::default()).unwrap();
                body(communicator, &group, &way, &told);
            });
        }
    }
}

#[test]
fn gloo_511_a_mismatch_says_who_and_what() {
    everywhere(|communicator, group, (tag, way), _| {
        let rank = communicator.rank().index();
        for counts in [[7, 8], [40_000, 7]] {
            let error = way(group, counts[usize::from(rank == 1)], Timeout::Default).unwrap_err();
            let text = check(&error, rank, tag, 1);
            assert!(matches!(error, Error::Mismatch(_)), "{text}");
            for count in counts {
                assert!(text.contains(&format!(": {count} elements")), "{text}");
            }
        }
    });
}

#[test]
fn gloo_511_a_deadline_says_who_did_not_come_and_which_limit_it_was() {
    everywhere(|communicator, group, (tag, way), told| {
        let rank = communicator.rank().index();
        if rank != 2 {
            let error = way(group, 7, Timeout::After(LIMIT)).unwrap_err();
            let text = check(&error, rank, tag, 2);
            match error {
                Error::Deadline(_) => {
                    let limit = seconds(&text, "the limit was ");
                    assert_eq!(limit, LIMIT.as_secs_f64(), "{text}");
                    assert!(seconds(&text, " (after ") >= limit, "{text}");
                }
                // The other one's was first.
                Error::GroupAborted(_) => {
                    check(&error, rank, tag, 1 - rank);
                    assert!(text.contains("reached its deadline waiting for rank 2"), "{text}");
                }
                other => panic!("{other:?}"),
            }
        }
        told.wait();
    });
}

#[test]
fn gloo_511_a_rank_that_left_is_named_with_how_it_ended() {
    everywhere(|communicator, group, (tag, way), told| {
        let rank = communicator.rank().index();
        if rank == 1 {
            communicator.shutdown();
        } else {
            let error = way(group, 7, Timeout::Default).unwrap_err();
            let text = check(&error, rank, tag, 1);
            assert!(text.contains("rank 1 left in order"), "{text}");
            assert!(matches!(error, Error::RankDied(_) | Error::GroupAborted(_)), "{text}");
        }
        told.wait();
    });
}

#[test]
fn gloo_511_whoever_aborts_is_named() {
    everywhere(|communicator, group, (tag, way), told| {
        let rank = communicator.rank().index();
        if rank == 0 {
            communicator.abort();
        }
        if rank != 0 {
            let error = way(group, 7, Timeout::Default).unwrap_err();
            let text = check(&error, rank, tag, 0);
            assert!(matches!(error, Error::GroupAborted(_)) && text.contains("rank 0 aborted"), "{text}");
        }
        told.wait();
    });
}

/// That the next ones come each after twice the time is shown by processes.
#[test]
fn vllm_ascend_382_the_first_warning_comes_after_5_s_by_default() {
    if std::env::var_os("FOLDCAST_WARN_AFTER").is_none() {
        assert_eq!(Config::from_env().unwrap().warn_after, Duration::from_secs(5));
    }
}
