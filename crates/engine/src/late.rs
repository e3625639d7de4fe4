//! Ranks that come late again and again.
//!
//! A reduction ends at the same time for all, so its end does not say who held it up. What says so is when each rank came: when it
//! published its header, or submitted the call by name. Only a call that has waited for long asks for that; calls that have
//! not were held up by nobody. The rank that came last is late by the time since half of the ranks were there.

use core::time::Duration;
use std::collections::VecDeque;

use crate::trouble::View;

/// Waits up to this are not looked into.
pub(crate) const LONG: Duration = Duration::from_millis(1);

/// In larger groups it would take too long to ask for each member; who looks from outside finds them all the same.
pub(crate) const MOST_MEMBERS: usize = 64;

/// Over how many calls of a group lateness is judged.
const WINDOW: u64 = 50;

/// The time between the first two messages; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// One call that was held up.
#[derive(Clone, Copy, Debug)]
struct Sample {
    call: u64,
    /// The member that came last.
    member: usize,
    by: Duration,
}

/// Who was late to the last calls of a lane.
#[derive(Debug, Default)]
pub(crate) struct Late {
    samples: VecDeque<Sample>,
    next: Duration,
    pause: Option<Duration>,
}

impl Late {
    /// Notes when the members came to a call, the `call`-th of its lane: `arrivals` by their index, as far as they are known. If
    /// one has been late to most of the last calls, and nothing was said of that for a while, says so; unless it is this rank,
    /// of which the others say it.
    pub(crate) fn note(&mut self, view: &View, call: u64, arrivals: &[Option<Duration>], now: Duration) {
        while self.samples.front().is_some_and(|sample| sample.call + WINDOW <= call) {
            self.samples.pop_front();
        }
        let Some((member, by)) = last(arrivals).filter(|(_, by)| *by >= LONG) else { return };
        self.samples.push_back(Sample { call, member, by });
        if call < WINDOW || now < self.next || view.world(member) == view.rank {
            return;
        }
        let Some(by) = self.median(member) else { return };
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| pause * 2);
        self.pause = Some(pause);
        self.next = now + pause;
        log::warn!(
            "{}: {} late p50 {:.1} ms over the last {WINDOW} calls of group '{}'",
            view.rank,
            view.world(member),
            by.as_secs_f64() * 1e3,
            view.group
        );
    }

    /// By how much a member was late to the median call of the window; `None` if it was not late to most of them.
    fn median(&self, member: usize) -> Option<Duration> {
        let mut late: Vec<Duration> =
            self.samples.iter().filter(|sample| sample.member == member).map(|sample| sample.by).collect();
        late.sort_unstable_by(|a, b| b.cmp(a));
        // It was not late to the calls that are not among them.
        late.get(usize::try_from(WINDOW / 2).unwrap_or(usize::MAX)).copied()
    }
}

/// The member that came last, and how long after half of them were there.
fn last(arrivals: &[Option<Duration>]) -> Option<(usize, Duration)> {
    let mut known: Vec<(Duration, usize)> =
        arrivals.iter().enumerate().filter_map(|(member, at)| Some(((*at)?, member))).collect();
    known.sort_unstable();
    let (last, member) = *known.last()?;
    let (half, _) = known[(known.len() - 1) / 2];
    Some((member, last.saturating_sub(half)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GroupName, Rank};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(times: &[u64]) -> Vec<Option<Duration>> {
        times.iter().map(|time| (*time > 0).then(|| ms(*time))).collect()
    }

    #[test]
    fn the_last_to_come_is_late_since_half_were_there() {
        assert_eq!(last(&at(&[10, 11, 12, 17])), Some((3, ms(6))));
        assert_eq!(last(&at(&[15, 10])), Some((0, ms(5))));
        assert_eq!(last(&at(&[15, 0, 10])), Some((0, ms(5))));
        assert_eq!(last(&at(&[7, 0])), Some((0, ms(0))));
        assert_eq!(last(&[]), None);
    }

    #[test]
    fn who_is_late_to_most_calls_of_the_window_is_found() {
        let view = View { rank: Rank(0), ranks: (0..4).map(Rank).collect(), group: GroupName::world() };
        let mut late = Late::default();
        for call in 1..=100 {
            // Late to three of four calls, by 5 ms.
            let own = if call % 4 == 0 { 10 } else { 15 };
            late.note(&view, call, &at(&[10, 10, 10, own]), ms(call));
            assert_eq!(late.median(3).is_some(), call >= 34, "call {call}");
            assert!(late.pause.is_some() == (call >= 50), "call {call}");
        }
        assert_eq!((late.median(3), late.median(0)), (Some(ms(5)), None));
        assert!(late.samples.len() <= usize::try_from(WINDOW).unwrap());
        assert_eq!(late.next, ms(50) + FIRST_PAUSE, "said once");
        // Nothing is late any more: the window empties.
        late.note(&view, 200, &at(&[10, 10, 10, 10]), ms(200));
        assert!(late.samples.is_empty());
    }

    #[test]
    fn nobody_names_himself() {
        let view = View { rank: Rank(1), ranks: (0..2).map(Rank).collect(), group: GroupName::world() };
        let mut late = Late::default();
        (1..=100).for_each(|call| late.note(&view, call, &at(&[10, 15]), ms(call)));
        assert_eq!((late.median(1), late.pause), (Some(ms(5)), None));
    }

    #[test]
    fn who_is_late_to_few_calls_is_not_named() {
        let view = View { rank: Rank(0), ranks: (0..2).map(Rank).collect(), group: GroupName::world() };
        let mut late = Late::default();
        for call in 1..=200 {
            let own = if call % 3 == 0 { 15 } else { 10 };
            late.note(&view, call, &at(&[10, own]), ms(call));
        }
        assert_eq!((late.median(1), late.pause), (None, None));
    }
}
