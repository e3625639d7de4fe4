use crate::scenario::{Cuts, Scenario};

/// What can be left out of a scenario so that it still `fails`: calls and faults one by one, as long as that helps.
pub fn shrink(scenario: &Scenario, fails: &dyn Fn(&Scenario) -> bool) -> Cuts {
    let mut cuts = Cuts::default();
    loop {
        let before = cuts.clone();
        for fault in 0..scenario.faults.len() {
            let mut more = cuts.clone();
            if more.faults.insert(fault) && fails(&scenario.clone().without(&more)) {
                cuts = more;
            }
        }
        for call in 0..scenario.calls() {
            let mut more = cuts.clone();
            if more.calls.insert(call) && fails(&scenario.clone().without(&more)) {
                cuts = more;
            }
        }
        if cuts == before {
            return cuts;
        }
    }
}
