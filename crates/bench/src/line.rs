//! How far two processors are from each other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// For how long [`line_round_trip_ns`] measures, at least, and how many stretches; the first one warms up.
const LEAST_TIME: Duration = Duration::from_micros(1500);
const LEAST_STRETCHES: usize = 8;
/// The most stretches: more would only take memory.
const MOST_STRETCHES: usize = 1024;
/// Round trips in a stretch: some 10 us between processors that share a cache, so that most are not interrupted.
const TRIPS: u32 = 128;

/// What the second thread has written, before the first round trip.
const READY: u32 = u32::MAX - 1;
/// Whoever has written this is not there, or not any more.
const GONE: u32 = u32::MAX;

/// A number alone in its cache line, and in the one that some processors fetch with it.
#[repr(align(128))]
struct Line(AtomicU32);

impl Line {
    /// The next number that is not this one.
    fn after(&self, known: u32) -> u32 {
        loop {
            match self.0.load(Ordering::Acquire) {
                number if number == known => std::hint::spin_loop(),
                number => return number,
            }
        }
    }

    fn put(&self, number: u32) {
        self.0.store(number, Ordering::Release);
    }
}

/// How long a cache line takes from one processor to another and back, in ns: the median of short stretches, some 2 ms in all,
/// in which two threads of their own, one bound to each, hand a number to and fro. Small calls take a few such trips, and on
/// a virtual machine the way may change while a program runs, by a factor of six where the two are moved to different caches.
///
/// Processors are named by their numbers, as in an affinity mask. `None` if the two are one, or if the system does not let
/// threads run there. The caller's own affinity stays as it is.
#[must_use]
pub fn line_round_trip_ns(one: usize, other: usize) -> Option<f64> {
    if one == other || one.max(other) >= CpuSet::MAX_CPU {
        return None;
    }
    let line = Line(AtomicU32::new(0));
    thread::scope(|scope| {
        let answering = thread::Builder::new().spawn_scoped(scope, || answer(&line, other));
        if answering.is_err() {
            return None;
        }
        let asking = thread::Builder::new().spawn_scoped(scope, || ask(&line, one));
        if asking.is_err() {
            line.put(GONE);
        }
        // The thread does not panic; if it did there would be no number.
        asking.ok()?.join().ok()?
    })
}

/// Binds this thread; whether it could be bound.
fn bind(processor: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).is_ok()
}

/// Sends even numbers and waits for the odd ones that follow; the median time of that.
fn ask(line: &Line, processor: usize) -> Option<f64> {
    let bound = bind(processor);
    let ready = line.after(0) == READY;
    if !bound || !ready {
        line.put(GONE);
        return None;
    }
    let begun = Instant::now();
    let mut times = Vec::with_capacity(MOST_STRETCHES);
    while times.len() < LEAST_STRETCHES || (times.len() < MOST_STRETCHES && begun.elapsed() < LEAST_TIME) {
        let start = Instant::now();
        for trip in 0..TRIPS {
            line.put(2 * trip);
            line.after(2 * trip);
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS));
    }
    line.put(GONE);
    let times = &mut times[1..];
    times.sort_by(f64::total_cmp);
    Some(times[times.len() / 2])
}

/// Says that it is there, and answers each even number with the next one.
fn answer(line: &Line, processor: usize) {
    if !bind(processor) {
        return line.put(GONE);
    }
    // The one that asks may be gone already, if it could not be made.
    if line.0.compare_exchange(0, READY, Ordering::Release, Ordering::Relaxed).is_err() {
        return;
    }
    let mut known = READY;
    loop {
        match line.after(known) {
            GONE => return,
            number => {
                known = number + 1;
                line.put(known);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).expect("a mask");
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    #[test]
    fn two_processors_have_a_way_and_the_caller_stays_where_it_may_run() {
        let before = allowed();
        if let [one, other, ..] = before[..] {
            for (one, other) in [(one, other), (other, one)] {
                let ns = line_round_trip_ns(one, other).expect("both are allowed");
                assert!(ns.is_finite() && ns > 0.0, "{ns}");
            }
        }
        assert_eq!(allowed(), before);
    }

    #[test]
    fn one_processor_has_no_way_to_itself() {
        assert_eq!(line_round_trip_ns(0, 0), None);
    }

    #[test]
    fn processors_that_are_not_there_are_told_whichever_they_are() {
        let here = allowed()[0];
        for nowhere in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            assert_eq!(line_round_trip_ns(here, nowhere), None);
            assert_eq!(line_round_trip_ns(nowhere, here), None);
        }
    }
}
