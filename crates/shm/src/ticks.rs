//! Times for notes, which must cost next to nothing: the processor's counter where it counts evenly and for all cores alike,
//! else the monotonic clock.
//!
//! A reading of the counter is a few ns and no call; one of the clock is several times that, of a call of 8 bytes a tenth.
//! The kernel has tested the counter more thoroughly than we could: it is taken where the kernel itself keeps time by it. Ticks
//! become times when somebody looks, by two moments at which both were read.

use std::sync::OnceLock;

use types::transport::Clock;

use crate::world::MonotonicClock;

/// What ticks are in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticker {
    /// Of the processor's counter.
    Counter,
    /// Nanoseconds of the monotonic clock.
    Clock,
}

impl Ticker {
    /// What this process counts.
    pub(crate) fn of_host() -> Ticker {
        static FOUND: OnceLock<Ticker> = OnceLock::new();
        *FOUND.get_or_init(|| if cfg!(target_arch = "x86_64") && is_even() { Ticker::Counter } else { Ticker::Clock })
    }

    pub(crate) const fn code(self) -> u64 {
        match self {
            Ticker::Counter => 1,
            Ticker::Clock => 2,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Ticker> {
        [Ticker::Counter, Ticker::Clock].into_iter().find(|ticker| ticker.code() == code)
    }

    /// Now.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        match self {
            Ticker::Counter => counter(),
            Ticker::Clock => nanoseconds(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: reads a register, which every processor of this architecture lets programs do unless the system forbids it:
    // then the kernel does not keep time by it, and this is not called (`is_even`).
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    nanoseconds()
}

/// Now, by the monotonic clock.
pub(crate) fn nanoseconds() -> u64 {
    u64::try_from(MonotonicClock.now().as_nanos()).unwrap_or(u64::MAX)
}

/// Whether the counter counts evenly, in all states of power, and alike on all cores, by the kernel's word.
fn is_even() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(SOURCE).unwrap_or_default();
    match source.trim() {
        "tsc" => true,
        // These are made from the counter; whether it is even the host has told the guest.
        "kvm-clock" | "hyperv_clocksource_tsc_page" => {
            let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            ["constant_tsc", "nonstop_tsc"].iter().all(|wanted| flags.split_whitespace().any(|flag| flag == *wanted))
        }
        _ => false,
    }
}

/// A moment by ticks and by the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) ticks: u64,
    pub(crate) ns: u64,
}

impl Anchor {
    /// Now. Of three readings the one with the least time in between.
    pub(crate) fn now(ticker: Ticker) -> Anchor {
        let read = |_| {
            let before = ticker.now();
            let ns = nanoseconds();
            let gap = ticker.now().saturating_sub(before);
            (gap, Anchor { ticks: before + gap / 2, ns })
        };
        (0..3).map(read).min_by_key(|(gap, _)| *gap).map(|(_, anchor)| anchor).unwrap_or_default()
    }
}

/// From ticks to nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    from: Anchor,
    to: Anchor,
}

impl Scale {
    /// By two moments, the first one long before the second.
    pub(crate) const fn between(from: Anchor, to: Anchor) -> Scale {
        Scale { from, to }
    }

    /// The time of a tick, between or around the two moments; `None` for 0, which stands for no time.
    pub(crate) fn ns(&self, ticks: u64) -> Option<u64> {
        let Scale { from, to } = *self;
        let span = u128::from(to.ticks.saturating_sub(from.ticks).max(1));
        let time = u128::from(to.ns.saturating_sub(from.ns));
        let since = u128::from(ticks.saturating_sub(from.ticks));
        // Of memory that others write: whatever stands there must give a number.
        let ns = u128::from(from.ns).saturating_add(since.saturating_mul(time) / span);
        (ticks != 0).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ticks_become_times() {
        for ticker in [Ticker::of_host(), Ticker::Clock] {
            let from = Anchor::now(ticker);
            std::thread::sleep(Duration::from_millis(20));
            let (before, ticks, after) = (nanoseconds(), ticker.now(), nanoseconds());
            std::thread::sleep(Duration::from_millis(20));
            let scale = Scale::between(from, Anchor::now(ticker));
            let ns = scale.ns(ticks).unwrap();
            const SLACK_NS: u64 = 1_000_000;
            assert!(before <= ns + SLACK_NS && ns <= after + SLACK_NS, "{before} {ns} {after} with {ticker:?}");
            assert_eq!(Ticker::from_code(ticker.code()), Some(ticker));
        }
    }

    #[test]
    fn any_words_give_a_number() {
        let odd = Scale::between(Anchor { ticks: 9, ns: u64::MAX }, Anchor { ticks: 3, ns: 1 });
        assert_eq!(odd.ns(u64::MAX), Some(u64::MAX));
        let flat = Scale::between(Anchor { ticks: 3, ns: 7 }, Anchor { ticks: 3, ns: u64::MAX });
        assert_eq!((flat.ns(0), flat.ns(3)), (None, Some(7)));
    }
}
