//! Calls in which ranks say where their buffers are: all plans that they may go on with, and how these follow each other.

mod common;

use common::{algorithm, small, small_readable, small_shape};
use foldcast_plan::verify::{self, Call, Fault, Start};
use foldcast_plan::{ALGORITHMS, Choice, Offering, Plan, Shape, Step, plan_with};
use proptest::prelude::*;
use types::transport::Geometry;

/// The plans of all ranks, for a call that `name` does unless all can read all buffers.
fn offerings(name: &str, shape: &Shape) -> Vec<Offering> {
    let readable = Shape { readable: true, ..shape.clone() };
    let plans = |rank| {
        let (staged, direct) =
            (plan_with(algorithm(name), shape, rank), plan_with(algorithm("direct"), &readable, rank));
        Offering::with(staged, direct).expect("its slots are free")
    };
    (0..shape.ranks).map(plans).collect()
}

fn staging(ranks: usize) -> &'static str {
    if ranks == 2 { "one_shot" } else { "reduce_scatter_allgather" }
}

/// What a rank runs that has staged before the header, as it hoped for nothing, and then goes on late.
fn staged_then_late(offering: &Offering) -> Plan {
    let met = |plan: &Plan| plan.steps.iter().position(|step| *step == Step::Meet).expect("a plan meets") + 1;
    let (staged, late) = (&offering.staged, &offering.late);
    let steps = [&staged.steps[..met(staged)], &late.steps[met(late) + offering.staged_before()..]].concat();
    Plan { steps, ..late.clone() }
}

/// The call where these ranks offer readable buffers: bit r of `offers` is rank r.
fn call(offerings: &[Offering], offers: u32) -> Call {
    let ranks = offerings.len();
    let is_ready = |rank: usize| offers >> rank & 1 == 1;
    let plan = |(rank, offering): (usize, &Offering)| match (0..ranks).filter(|rank| is_ready(*rank)).count() {
        0 => offering.staged.clone(),
        ready if ready == ranks => offering.direct.clone(),
        _ if is_ready(rank) => offering.late.clone(),
        _ => staged_then_late(offering),
    };
    Call { plans: offerings.iter().enumerate().map(plan).collect(), mismatch: false }
}

#[test]
fn whoever_offers_the_plans_are_right() {
    for ranks in 2..=6 {
        for bytes in [1, 63, 64, 65, 300, 128 * ranks, 900] {
            let offerings = offerings(staging(ranks), &small_shape(ranks, bytes));
            for offers in 0..1 << ranks {
                let calls = vec![call(&offerings, offers); 3];
                for uses in 0..8 {
                    let proof = verify::calls(&calls, Start { sequence: uses & 1, uses, slots: 0 });
                    proof.unwrap_or_else(|wrong| panic!("{ranks} ranks, {bytes} bytes, {offers:b}: {wrong}"));
                }
                for seed in 0..2 {
                    assert_eq!(common::run(&calls, Start::default(), seed, seed == 0), Ok(()));
                }
            }
        }
    }
}

#[test]
fn real_sizes_are_right_for_up_to_17_ranks() {
    for ranks in 2..=17 {
        for bytes in [512 << 10, (1 << 20) + 4, 3 << 20] {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            let offerings: Vec<Offering> = (0..ranks)
                .map(|rank| Offering::of(&Choice::default(), &shape, rank).expect("worth an offer"))
                .collect();
            for offers in [0, 1, (1 << ranks) - 2, (1 << ranks) - 1] {
                let call = call(&offerings, offers);
                let name = if offers + 1 == 1 << ranks { "direct" } else { staging(ranks) };
                assert!(call.plans.iter().all(|plan| plan.algorithm == name && plan.id == offerings[0].direct.id));
                verify::calls(&vec![call; 2], Start { sequence: 1, uses: 3, slots: 0 }).unwrap();
            }
        }
    }
}

#[test]
fn only_large_allreduces_of_several_ranks_make_offers() {
    let of = |shape: &Shape| Offering::of(&Choice::default(), shape, 0).is_some();
    let least = Shape::LEAST_READABLE_BYTES;
    assert!(of(&Shape::all_reduce(2, least, 4)) && of(&Shape::all_reduce(7, 1 << 28, 4)));
    assert!(!of(&Shape::all_reduce(2, least - 4, 4)) && !of(&Shape::all_reduce(1, 1 << 28, 4)));
    assert!(
        !of(&Shape::broadcast(2, 0, 1 << 28, 4)) && !of(&Shape::barrier(2)) && !of(&Shape::all_gather([least; 2], 4))
    );
    // Forced to the staged way, no call asks; forced to the direct one, large calls do.
    let forced = |name| Choice { forced: Some(name), ..Choice::default() };
    for (name, asks) in [("one_shot", false), ("direct", true), ("flat", true)] {
        assert_eq!(Offering::of(&forced(name), &Shape::all_reduce(2, 1 << 22, 4), 0).is_some(), asks, "{name}");
    }
    // A slot is for one thing.
    let flat =
        Shape { geometry: Geometry { slot_bytes: 1 << 20, ..Geometry::of(2) }, ..Shape::all_reduce(2, least, 4) };
    let direct = plan_with(algorithm("direct"), &flat.in_readable_memory(), 0);
    assert_eq!(Offering::with(plan_with(algorithm("flat"), &flat, 0), direct), None);
}

#[test]
fn buffers_that_were_not_offered_are_not_read() {
    let good = Call::of(algorithm("direct"), &small_readable(3, 600));
    let remove = |plan: &mut Plan, step: &Step| plan.steps.retain(|other| other != step);
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut call = good.clone();
        call.plans.iter_mut().for_each(change);
        verify::calls(&[call], Start::default()).expect_err("a broken plan").fault
    };
    assert_eq!(refused(&|plan| remove(plan, &Step::Offer)), Fault::NotOffered);
    assert_eq!(refused(&|plan| plan.shape.readable = false), Fault::NotOffered);
    assert_eq!(refused(&|plan| plan.steps.swap(0, 1)), Fault::NotOffered);
    assert_eq!(refused(&|plan| plan.steps.insert(0, Step::Offer)), Fault::OffersCollide);
    let whole = Step::Stage { span: 0..600, to: foldcast_plan::Place::Slot };
    let larger = |plan: &mut Plan| plan.shape.geometry.slot_bytes = 600;
    let staged = |plan: &mut Plan| {
        larger(plan);
        plan.steps.insert(0, whole.clone());
    };
    assert_eq!(refused(&staged), Fault::OffersCollide);
    // Nobody says when it has read for the last time: the program may write there while it still does.
    let rounds = good.plans[0].rounds;
    let counter = types::transport::Counter::Folded;
    let last = Step::Await { counter, round: rounds - 1 };
    assert!(matches!(refused(&|plan| remove(plan, &last)), Fault::Race { .. }));
}

#[derive(Clone, Debug)]
enum Recipe {
    /// Bytes, and who offers.
    Offers(usize, u32),
    /// Bytes, and which algorithm.
    Plain(usize, usize),
    /// Bytes of the first rank's call, and of the others'.
    Mismatch(usize, usize),
}

fn recipe() -> impl Strategy<Value = Recipe> {
    prop_oneof![
        4 => (1_usize..1000, any::<u32>()).prop_map(|(bytes, offers)| Recipe::Offers(bytes, offers)),
        2 => (0_usize..500, 0_usize..4).prop_map(|(bytes, which)| Recipe::Plain(bytes, which)),
        1 => (1_usize..300, 1_usize..300).prop_map(|(bytes, others)| Recipe::Mismatch(bytes, others + 300)),
    ]
}

fn make(ranks: usize, recipe: &Recipe) -> Call {
    let name = staging(ranks);
    match *recipe {
        Recipe::Offers(bytes, offers) => call(&offerings(name, &small_shape(ranks, bytes)), offers % (1 << ranks)),
        Recipe::Plain(bytes, which) => {
            let shape = small_shape(ranks, bytes);
            let all: Vec<_> = ALGORITHMS.iter().filter(|algorithm| algorithm.applies(&shape)).collect();
            Call::of(*all[which % all.len()], &shape)
        }
        Recipe::Mismatch(first, others) => {
            let direct = |rank| if rank == 0 { small_readable(ranks, first) } else { small_readable(ranks, others) };
            let each: Vec<_> = (0..ranks).map(|rank| (algorithm("direct"), direct(rank))).collect();
            Call::mismatch(&each)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_with_offers_is_right(
        ranks in 2_usize..8,
        recipes in prop::collection::vec(recipe(), 1..10),
        sequence in 0_u64..9,
        uses in 0_u64..9,
        seed in any::<u64>(),
        in_place in any::<bool>(),
    ) {
        let calls: Vec<Call> = recipes.iter().map(|recipe| make(ranks, recipe)).collect();
        let start = Start { sequence, uses, slots: 0 };
        prop_assert!(verify::calls(&calls, start).is_ok(), "{}", verify::calls(&calls, start).unwrap_err());
        prop_assert_eq!(common::run(&calls, start, seed, in_place), Ok(()));
    }
}

#[test]
fn small_areas_are_small() {
    assert_eq!(small(2).chunk_bytes, 64, "else the tests above have one round");
}
