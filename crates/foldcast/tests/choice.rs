//! All ranks of a group choose by what its first member has, whatever they have themselves.

mod support;

use std::path::PathBuf;

use foldcast::plans::{Choice, Constants};
use foldcast::{CallOptions, Communicator, Config, CostsFrom, InitOptions, Rank, costs};
use support::{all_well, named, number, ranks, submit, sum, total, wait};

/// A communicator of the same ranks, whose process has these settings.
fn with_settings(communicator: &Communicator, costs: CostsFrom, algorithm: Option<&'static str>) -> Communicator {
    let config = Config::from_env().expect("the variables of the test");
    let job = format!("{}, once more", config.job);
    assert_eq!(config.rank, communicator.rank());
    Communicator::with_config(Config { job, costs, algorithm, ..config }, InitOptions::default()).expect("they meet")
}

/// Every way of calling, before the members have met and afterwards.
fn call_in_every_way(communicator: &Communicator, first: usize) {
    let group = communicator.world();
    type Way<'a> = &'a dyn Fn(&[f32]) -> Vec<f32>;
    let ways: [Way<'_>; 4] = [
        &|input| sum(&group, input, &CallOptions::default()).expect("blocking"),
        &|input| sum(&group, input, &named("a")).expect("named"),
        &|input| wait(&submit(&group, input.to_vec(), &CallOptions::default()).expect("submitted")).expect("ended"),
        &|input| wait(&submit(&group, input.to_vec(), &named("a")).expect("submitted")).expect("ended"),
    ];
    for at in 0..2 * ways.len() {
        for count in [1, 1000, 300_000] {
            let got = ways[(first + at) % ways.len()](&vec![number(communicator); count]);
            assert_eq!(got, vec![total(communicator.size()); count], "way {at} from {first}, {count}");
        }
    }
}

#[test]
fn the_first_members_algorithm_holds_for_all() {
    for size in [2, 3] {
        all_well(&ranks("the_first_members_algorithm_holds_for_all", size, |communicator| {
            let two = communicator.size() == 2;
            // Where each rank used its own, the plans and so the fingerprints would differ: the calls would fail.
            let own = match communicator.rank().index() {
                0 if two => Some("one_shot"),
                0 => Some("reduce_scatter_allgather"),
                1 => Some("flat"),
                _ => None,
            };
            let forced = if two { "one_shot" } else { "reduce_scatter_allgather" };
            for first in 0..4 {
                let again = with_settings(communicator, CostsFrom::BuiltIn, own);
                assert_eq!(again.world().choice(), None);
                call_in_every_way(&again, first);
                let choice = Choice { forced: Some(forced), ..Choice::default() };
                assert_eq!(again.world().choice(), Some(&choice));
                if communicator.rank() != Rank(0) {
                    // In this group another rank is the first.
                    let others: Vec<Rank> = (1..again.size()).map(Rank::from_index).collect();
                    let group = again.new_group(&others, Some("others")).expect("a group");
                    sum(&group, &[1.0; 1000], &CallOptions::default()).expect("a call");
                    if others.len() > 1 {
                        assert_eq!(group.choice().and_then(|choice| choice.forced), Some("flat"));
                    }
                }
                again.world().barrier(&CallOptions::default()).expect("a barrier");
                again.shutdown();
            }
        }));
    }
}

#[test]
fn an_algorithm_that_cannot_do_a_call_is_replaced_for_all() {
    all_well(&ranks("an_algorithm_that_cannot_do_a_call_is_replaced_for_all", 3, |communicator| {
        let own = (communicator.rank() == Rank(0)).then_some("one_shot");
        let again = with_settings(communicator, CostsFrom::BuiltIn, own);
        call_in_every_way(&again, 0);
        assert_eq!(again.world().choice().and_then(|choice| choice.forced), Some("one_shot"));
    }));
}

#[test]
fn the_first_members_costs_hold_for_all() {
    all_well(&ranks("the_first_members_costs_hold_for_all", 3, |communicator| {
        let rank = communicator.rank().index();
        let file = CostsFrom::File(file(rank));
        // By rank 0's costs signals are cheap, by rank 1's dear; rank 2's file is broken.
        let signal_us = [0.0001, 100.0, 0.0][rank];
        costs::store(&Constants { signal_us, ..Constants::default() }, &file).expect("a file");
        if rank == 2 {
            std::fs::write(self::file(rank), "{").expect("a file");
            let costs = costs::load(&file);
            assert_eq!((costs.constants, costs.file), (Constants::default(), None));
            assert!(costs.complaint.is_some_and(|complaint| complaint.contains("of no use")));
        }
        let again = with_settings(communicator, file, None);
        call_in_every_way(&again, 0);
        assert_eq!(again.world().choice().map(|choice| choice.constants.signal_us), Some(0.0001));
        again.world().barrier(&CallOptions::default()).expect("a barrier");
        std::fs::remove_file(self::file(rank)).expect("the file");
    }));
}

/// A file of costs for each rank of this test run: the test program's child knows the run by its parent.
fn file(rank: usize) -> PathBuf {
    std::env::temp_dir().join(format!("foldcast-costs-{}-{rank}.json", std::os::unix::process::parent_id()))
}
