use std::sync::atomic::AtomicBool;
use std::thread;

use types::{DataType, OpKind, Reduction, Tag, failure_code_of};

use super::view::Operation;
use super::*;
use crate::fork::Home;
use crate::layout::count;
use crate::wire::Address;

/// The ranks of a world, all in this process, each with a mapping of its own.
fn worlds(size: usize) -> Vec<Arc<World>> {
    let home = Home::here().unwrap();
    let (_, memory) = World::create_segment(size, home).unwrap();
    let world = |rank| {
        let segment = Segment::attach("test", &memory, World::segment_bytes(size), home).unwrap();
        Arc::new(World::enter(segment, Rank::from_index(rank), vec![Address::default(); size].into(), home).unwrap())
    };
    (0..size).map(world).collect()
}

fn key(name: &str) -> GroupKey {
    GroupKey::new(GroupName::new(name).unwrap(), vec![Rank(0), Rank(1)], 0)
}

fn summary(bytes: u64) -> Summary {
    Summary::new(OpKind::AllReduce, DataType::Float32, Reduction::Sum, bytes)
}

fn seen(worlds: &[Arc<World>], rank: u32) -> Vec<Operation> {
    worlds[1].noted(Rank(rank)).unwrap().operations
}

#[test]
fn others_see_what_a_rank_notes() {
    let worlds = worlds(2);
    assert_eq!(worlds[1].noted(Rank(0)).unwrap().process, std::process::id());
    let journal = worlds[0].journal(&key("g"));
    journal.begin(1, summary(8));
    journal.done(1);
    journal.begin(2, summary(16));
    journal.waiting(None, &[1]);
    let [first, second] = &seen(&worlds, 0)[..] else { panic!("two operations") };
    assert_eq!((&first.tag, first.stage, first.ended_ns), (&Some(Tag::Unnamed(1)), Stage::Done, None));
    assert_eq!((second.summary, &second.group[..], second.key), (summary(16), "g", 2));
    assert_eq!((second.stage, second.awaited), (Stage::Waiting, Some((Rank(1), 1))));
    journal.ended(2, Outcome::Failed(failure_code_of("Deadline")));
    let last = seen(&worlds, 0).pop().unwrap();
    assert_eq!((last.stage, last.error), (Stage::Failed, failure_code_of("Deadline")));
    assert!(last.ended_ns >= last.begun_ns && last.awaited.is_some());
    assert!(seen(&worlds, 1).is_empty());
}

#[test]
fn the_last_256_calls_are_there() {
    let worlds = worlds(2);
    let journal = worlds[0].journal(&key("g"));
    for number in 1..=1000 {
        journal.begin(number, summary(number));
        journal.done(number);
    }
    let operations = seen(&worlds, 0);
    let numbers: Vec<u64> = operations.iter().map(|operation| operation.key).collect();
    assert_eq!(numbers, (745..=1000).collect::<Vec<_>>());
    assert!(operations.is_sorted_by_key(|operation| operation.begun_ns));
}

#[test]
fn what_goes_on_stays_whatever_else_is_noted() {
    let worlds = worlds(2);
    let (one, other) = (worlds[0].journal(&key("one")), worlds[0].journal(&key("other")));
    let hung = one.note(Stage::Submitted, summary(8), "hung");
    one.identify(hung, 7);
    one.waiting(hung, &[1]);
    for number in 0..1000_u64 {
        let ticket = other.note(Stage::Submitted, summary(number), "");
        other.begun(ticket.unwrap(), Some(number + 1));
        other.finish(ticket, Outcome::Done);
    }
    let operations = seen(&worlds, 0);
    assert_eq!(operations.len(), RECORDS);
    let hung = &operations[0];
    assert_eq!((&hung.tag, &hung.group[..]), (&Some(Tag::Named("hung".into())), "one"));
    assert_eq!((hung.stage, hung.awaited), (Stage::Waiting, Some((Rank(1), 1))));
    assert_eq!(operations.last().unwrap().tag, Some(Tag::Unnamed(1000)));
}

#[test]
fn more_than_fit_are_not_noted_and_harm_nobody() {
    let worlds = worlds(2);
    let journal = worlds[0].journal(&key("g"));
    let tickets: Vec<_> = (0..300).map(|_| journal.note(Stage::Submitted, summary(1), "x")).collect();
    assert_eq!(tickets.iter().flatten().count(), RECORDS);
    // Those without a ticket are noted when they begin.
    journal.begin(1, summary(2));
    journal.begin(2, summary(3));
    journal.latest_ended(Outcome::Done);
    let (done, others): (Vec<_>, Vec<_>) =
        seen(&worlds, 0).into_iter().partition(|operation| operation.stage == Stage::Done);
    assert_eq!((done.len(), others.len()), (2, RECORDS));
    journal.waiting(None, &[1]);
    tickets.iter().for_each(|ticket| journal.finish(*ticket, Outcome::Done));
    assert!(journal.note(Stage::Submitted, summary(1), "x").is_some());
}

#[test]
fn groups_without_a_track_use_the_shared_one() {
    let worlds = worlds(2);
    let names: Vec<String> = (0..20).map(|at| format!("g{at}")).collect();
    let journals: Vec<_> = names.iter().map(|name| worlds[0].journal(&key(name))).collect();
    for journal in &journals {
        for number in 1..=2 {
            journal.begin(number, summary(8));
            journal.waiting(None, &[1]);
            journal.done(number);
        }
    }
    let operations = seen(&worlds, 0);
    for name in &names {
        let own: Vec<_> = operations.iter().filter(|operation| operation.group == *name).collect();
        assert_eq!(own.len(), 2, "{name}");
        assert!(own.iter().all(|operation| operation.stage == Stage::Done), "{name}");
    }
    assert_eq!(operations.iter().filter(|operation| !operation.is_blocking).count(), 10);
}

#[test]
fn a_track_that_is_given_back_keeps_its_calls_until_another_group_needs_it() {
    let worlds = worlds(2);
    drop(worlds[0].journal(&key("gone")));
    let journal = worlds[0].journal(&key("gone"));
    journal.begin(1, summary(8));
    journal.done(1);
    drop(journal);
    assert_eq!(seen(&worlds, 0).len(), 1);
    let mut held = Vec::new();
    for at in 0..40 {
        held.push(worlds[0].journal(&key(&format!("new {at}"))));
    }
    assert!(seen(&worlds, 0).is_empty());
}

#[test]
fn a_group_has_one_journal() {
    let worlds = worlds(2);
    let (one, same) = (worlds[0].journal(&key("g")), worlds[0].journal(&key("g")));
    assert!(Arc::ptr_eq(&one, &same));
    one.begin(1, summary(8));
    assert_eq!(seen(&worlds, 0).len(), 1);
}

#[test]
fn arrivals_are_those_of_the_same_call() {
    let worlds = worlds(2);
    let journals = [worlds[0].journal(&key("g")), worlds[1].journal(&key("g"))];
    journals[1].begin(5, summary(8));
    thread::sleep(Duration::from_millis(5));
    // Here it was submitted.
    let ticket = journals[0].note(Stage::Submitted, summary(8), "");
    journals[0].begun(ticket.unwrap(), Some(5));
    for journal in &journals {
        let [own, other] = [0, 1].map(|member| journal.arrival(member, 5, ticket, false).unwrap());
        assert!(own >= other + Duration::from_millis(5), "{own:?} {other:?}");
        assert_eq!(journal.arrival(1, 6, None, false), None);
    }
    let named = journals.each_ref().map(|journal| {
        let ticket = journal.note(Stage::Submitted, summary(8), "w");
        journal.identify(ticket, 99);
        thread::sleep(Duration::from_millis(2));
        ticket
    });
    let [first, second] = [0, 1].map(|member| journals[0].arrival(member, 0, named[0], true).unwrap());
    assert!(second >= first + Duration::from_millis(2));
    assert_eq!(journals[0].arrival(0, 0, ticket, true), None, "it has no name");
}

#[test]
fn long_names_are_cut_at_a_character() {
    let worlds = worlds(2);
    let name = "é".repeat(63);
    let journal = worlds[0].journal(&key(&name));
    let ticket = journal.note(Stage::Submitted, summary(8), &"ü".repeat(300));
    journal.finish(ticket, Outcome::Done);
    journal.begin(1, summary(8));
    let operations = seen(&worlds, 0);
    assert!(operations.iter().all(|operation| operation.group == name));
    assert_eq!(operations[0].tag, Some(Tag::Named("ü".repeat(63).into())));
}

#[test]
fn whatever_stands_in_the_memory_is_read() {
    let worlds = worlds(2);
    let place = worlds[0].place_of(Rank(0));
    let words = place::bytes(2) / 8;
    for seed in 0..20_u64 {
        for at in 1..words {
            let word: &AtomicU64 = worlds[0].segment().at(place.start + at * 8);
            let noise = types::digest(seed, &count(at).to_le_bytes());
            word.store(if seed % 2 == 0 { noise } else { noise & 0xff00_0000_0000_0706 }, Ordering::Relaxed);
        }
        // The kind of ticks must be one, or nothing is read.
        worlds[0].segment().at::<BoxHeader>(place.start)[2].store(1 + seed % 2, Ordering::Relaxed);
        let noted = worlds[1].noted(Rank(0)).unwrap();
        assert!(noted.operations.len() + noted.torn > 0);
        let _ = worlds[1].journal(&key("g")).arrival(0, seed, None, false);
    }
}

#[test]
fn readers_never_see_parts_of_two_calls() {
    let worlds = worlds(2);
    let journal = worlds[0].journal(&key("g"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                journal.begin(number, summary(number));
                journal.done(number);
            }
            number
        });
        let mut read = 0;
        // Whole notes among torn ones: how many of either depends on who runs when.
        while read < 20_000 {
            for operation in seen(&worlds, 0) {
                assert_eq!(operation.summary.bytes(), operation.key);
                read += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
}
