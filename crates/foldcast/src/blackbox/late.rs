//! Ranks that come late again and again, from what all ranks have noted.

use std::collections::BTreeMap;
use std::time::Duration;

use types::Rank;

use super::RankOperations;

/// Calls over which lateness is judged.
const WINDOW: usize = 50;
/// Less than this is not late.
const LATE: Duration = Duration::from_millis(1);

/// A rank that came late to most of the last calls of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateRank {
    /// The rank.
    pub rank: Rank,
    /// The group.
    pub group: String,
    /// By how much, in the median: since half of the ranks were there.
    pub p50: Duration,
    /// Over how many calls.
    pub calls: usize,
}

/// The ranks that came late to most of the last 50 calls of a group that all of its ranks have noted. What counts is when a
/// rank came, not when the call ended: that is the same for all.
#[must_use]
pub fn late_ranks(ranks: &[RankOperations]) -> Vec<LateRank> {
    type Arrivals = Vec<(u64, Rank)>;
    let mut groups: BTreeMap<u64, (&str, BTreeMap<u64, Arrivals>)> = BTreeMap::new();
    for RankOperations { rank, operations } in ranks {
        for operation in operations.iter().filter(|operation| operation.key != 0) {
            let Some(arrived) = operation.arrived_ns() else { continue };
            let (_, calls) = groups.entry(operation.group_id).or_insert((&operation.group, BTreeMap::new()));
            calls.entry(operation.key).or_default().push((arrived, *rank));
        }
    }
    groups.into_values().flat_map(|(group, calls)| late_in(group, calls.into_values().collect())).collect()
}

fn late_in(group: &str, mut calls: Vec<Vec<(u64, Rank)>>) -> Vec<LateRank> {
    // Calls that some have not come to, or noted longer ago than others, say nothing of who is late.
    let members = calls.iter().map(Vec::len).max().unwrap_or_default();
    calls.retain(|arrivals| arrivals.len() == members && members > 1);
    for arrivals in &mut calls {
        arrivals.sort_unstable();
    }
    calls.sort_unstable();
    let window = &calls[calls.len().saturating_sub(WINDOW)..];
    let mut late: BTreeMap<Rank, Vec<Duration>> = BTreeMap::new();
    for arrivals in window {
        let (half, _) = arrivals[(members - 1) / 2];
        if let Some((last, rank)) = arrivals.last() {
            let by = Duration::from_nanos(last.saturating_sub(half));
            late.entry(*rank).or_default().extend((by >= LATE).then_some(by));
        }
    }
    let judged = |(rank, mut by): (Rank, Vec<Duration>)| {
        by.sort_unstable_by(|a, b| b.cmp(a));
        // It was not late to the calls that are not among them.
        let p50 = *by.get(window.len() / 2)?;
        Some(LateRank { rank, group: group.to_owned(), p50, calls: window.len() })
    };
    if window.len() < WINDOW { Vec::new() } else { late.into_iter().filter_map(judged).collect() }
}
