//! Buffers that one rank reduces in lists and another one by one: real processes.

mod support;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use foldcast::{CallOptions, Claims, Communicator, DataType, Error, Group, OwnedBuffers, Rank, Reduction, Result};
use support::{Owned, WATCHDOG, all_well, named, ranks};

/// What a rank makes of the buffers `a`, `b` and `c` in a step.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Two lists, `g0` of `a` and `b`, `g1` of `c`: each stands for all three names.
    Lists,
    /// A call for each.
    Alone,
    /// A call for `a`, and no other.
    OnlyA,
    /// A call for `a`, and a list of the others.
    AllButA,
}

type Ends = Vec<(&'static str, mpsc::Receiver<Result<()>>)>;

fn list(group: &Group, ends: &mut Ends, name: &'static str, members: &[&str], claims: &Arc<Claims>) {
    let (sender, receiver) = mpsc::channel();
    let buffer = |_: &&str| -> Box<dyn OwnedBuffers> { Box::new(Owned { input: vec![1.0; 9], output: vec![0.0; 9] }) };
    let options = CallOptions { claims: Some(claims), ..named(name) };
    let done = Box::new(move |result, _| sender.send(result).expect("the test waits"));
    let (buffers, names) = (members.iter().map(buffer).collect(), members.join("\n").into());
    group.all_reduce_set_async(DataType::Float32, Reduction::Sum, buffers, names, &options, done).expect("submitted");
    ends.push((name, receiver));
}

fn alone(group: &Group, ends: &mut Ends, name: &'static str) {
    let (sender, receiver) = mpsc::channel();
    let buffer = Box::new(Owned { input: vec![1.0; 9], output: vec![0.0; 9] });
    let done = Box::new(move |result, _| sender.send(result).expect("the test waits"));
    group.all_reduce_alone_async(DataType::Float32, Reduction::Sum, buffer, &named(name), done).expect("submitted");
    ends.push((name, receiver));
}

/// Makes a step; how its calls ended.
fn step(group: &Group, way: Way) -> Vec<(&'static str, Result<()>)> {
    let (mut ends, all) = (Ends::new(), Claims::new("a\nb\nc", "@1").expect("names"));
    match way {
        Way::Lists => {
            list(group, &mut ends, "g0@1", &["a", "b"], &all);
            list(group, &mut ends, "g1@1", &["c"], &all);
        }
        Way::Alone => ["a@1", "b@1", "c@1"].into_iter().for_each(|name| alone(group, &mut ends, name)),
        Way::OnlyA => alone(group, &mut ends, "a@1"),
        Way::AllButA => {
            alone(group, &mut ends, "a@1");
            list(group, &mut ends, "g0@1", &["b", "c"], &Claims::new("b\nc", "@1").expect("names"));
        }
    }
    ends.into_iter().map(|(name, end)| (name, end.recv_timeout(WATCHDOG).expect("the call ends"))).collect()
}

fn steps_agree(group: &Group) {
    for way in [Way::Lists, Way::Alone, Way::Lists] {
        for (name, end) in step(group, way) {
            assert_eq!(end, Ok(()), "{name}");
        }
    }
}

/// The odd rank goes one way, the others another.
fn differ(communicator: &Communicator, odd: Rank, way: Way, others: Way) {
    let group = communicator.world();
    let own = if communicator.rank() == odd { way } else { others };
    for (name, end) in step(&group, own) {
        let Err(Error::Mismatch(mismatch)) = &end else { panic!("{name}: {end:?}") };
        if way == Way::AllButA || others == Way::AllButA {
            continue; // The lists meet, and differ in their names.
        }
        assert_eq!(mismatch.field, "fused set", "{name}: {mismatch}");
        let text = mismatch.to_string();
        assert!(text.contains("'a@1' alone") || text.contains("@1' alone"), "{name}: {text}");
        assert!(text.contains("fused") && text.contains(&format!("{odd}: ")), "{name}: {text}");
        assert_eq!(mismatch.values.len(), group.size(), "{name}: {text}");
    }
    steps_agree(&group);
}

fn body(communicator: &Communicator) {
    steps_agree(&communicator.world());
    for odd in (0..communicator.size()).map(Rank::from_index) {
        for other in [Way::Alone, Way::OnlyA, Way::AllButA] {
            differ(communicator, odd, other, Way::Lists);
            differ(communicator, odd, Way::Lists, other);
        }
    }
    // Nothing is left over that a group could not be destroyed for.
    let all: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).collect();
    let group = communicator.new_group(&all, None).expect("all are members");
    let own = if communicator.rank() == Rank(0) { Way::Lists } else { Way::Alone };
    assert!(step(&group, own).iter().all(|(_, end)| matches!(end, Err(Error::Mismatch(_)))));
    steps_agree(&group);
    communicator.world().barrier(&CallOptions::default()).expect("all are there");
    group.destroy().expect("nothing is in flight");
}

#[test]
fn two_ranks_that_list_and_do_not_are_a_mismatch() {
    all_well(&ranks("two_ranks_that_list_and_do_not_are_a_mismatch", 2, body));
}

#[test]
fn three_ranks_of_which_some_list_are_a_mismatch() {
    all_well(&ranks("three_ranks_of_which_some_list_are_a_mismatch", 3, body));
}

#[test]
fn who_is_late_is_waited_for() {
    all_well(&ranks("who_is_late_is_waited_for", 3, |communicator| {
        for late in (0..communicator.size()).map(Rank::from_index) {
            for way in [Way::Lists, Way::Alone] {
                if communicator.rank() == late {
                    std::thread::sleep(Duration::from_millis(2500));
                }
                assert!(step(&communicator.world(), way).iter().all(|(_, end)| *end == Ok(())));
            }
        }
        steps_agree(&communicator.world());
    }));
}
