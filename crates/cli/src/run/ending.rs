//! When the processes of a job are asked to end, and when they are made to.

use std::time::{Duration, Instant};

use rustix::process::Signal;

/// From being asked to being killed. Together with what follows everything has ended within 2 s.
const GRACE: Duration = Duration::from_millis(1500);

/// For those who may be ending already: when a rank has failed, which the others are told at once and report in their own
/// words; after another signal that was passed on; when the ranks have ended and only what they started is left.
const SOFT_DELAY: Duration = Duration::from_millis(500);

/// SIGKILL is repeated, because a process may have started another meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// After this much killing the rest hangs in the kernel or belongs to another user.
const KILL_LIMIT: Duration = Duration::from_millis(500);

/// The steps down to the end of a job: nothing, SIGTERM, SIGKILL.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    terminate_at: Option<Instant>,
    terminated: bool,
    kill_at: Option<Instant>,
    killing_since: Option<Instant>,
}

impl Ladder {
    /// Begins to end everything: SIGTERM now, or a little later if `softly`. Never moves a step further off.
    pub(super) fn begin(&mut self, now: Instant, softly: bool) {
        let terminate_at = if softly { now + SOFT_DELAY } else { now };
        if !self.terminated {
            self.terminate_at = Some(self.terminate_at.map_or(terminate_at, |at| at.min(terminate_at)));
        }
        self.kill_by(now + GRACE);
    }

    /// A SIGTERM has been passed on: no other one is needed.
    pub(super) fn has_been_asked(&mut self, now: Instant) {
        self.terminated = true;
        self.terminate_at = None;
        self.kill_by(now + GRACE);
    }

    /// Kills everything at the next step.
    pub(super) fn kill_now(&mut self, now: Instant) {
        self.kill_by(now);
    }

    fn kill_by(&mut self, at: Instant) {
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn has_begun(&self) -> bool {
        self.kill_at.is_some()
    }

    pub(super) fn has_killed(&self) -> bool {
        self.killing_since.is_some()
    }

    /// Whether what is still there will not die.
    pub(super) fn is_hopeless(&self, now: Instant) -> bool {
        self.killing_since.is_some_and(|since| now.duration_since(since) > KILL_LIMIT)
    }

    /// When [`due`](Self::due) wants to be asked next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.terminate_at.into_iter().chain(self.kill_at).min()
    }

    /// The signal to send now, if any.
    pub(super) fn due(&mut self, now: Instant) -> Option<Signal> {
        if self.kill_at.is_some_and(|at| at <= now) {
            self.killing_since.get_or_insert(now);
            self.kill_at = Some(now + KILL_AGAIN);
            self.terminate_at = None;
            self.terminated = true;
            return Some(Signal::KILL);
        }
        if self.terminate_at.is_some_and(|at| at <= now) {
            self.terminate_at = None;
            self.terminated = true;
            return Some(Signal::TERM);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Every signal, with the time at which it was due, until the second SIGKILL.
    fn play(ladder: &mut Ladder, start: Instant) -> Vec<(Duration, Signal)> {
        let mut sent = Vec::new();
        while sent.iter().filter(|(_, signal)| *signal == Signal::KILL).count() < 2 {
            let now = ladder.next().expect("the ladder has begun");
            let signal = ladder.due(now).expect("something is due when it said so");
            sent.push((now.duration_since(start), signal));
        }
        sent
    }

    #[test]
    fn everything_is_asked_once_and_then_killed_until_it_is_gone() {
        let start = Instant::now();
        let mut ladder = Ladder::default();
        assert_eq!((ladder.next(), ladder.due(start), ladder.has_begun()), (None, None, false));
        ladder.begin(start, false);
        ladder.begin(start + ms(1), false);
        let kills = [(ms(1500), Signal::KILL), (ms(1520), Signal::KILL)];
        assert_eq!(play(&mut ladder, start), [&[(ms(0), Signal::TERM)], &kills[..]].concat());
        ladder.begin(start + ms(1600), true);
        assert_eq!(ladder.due(start + ms(1600)), Some(Signal::KILL), "no step back");
        assert!(!ladder.is_hopeless(start + ms(1600)) && ladder.is_hopeless(start + ms(2001)));
    }

    #[test]
    fn who_may_be_ending_already_gets_a_little_longer() {
        let start = Instant::now();
        let mut ladder = Ladder::default();
        ladder.begin(start, true);
        let sent = [(ms(500), Signal::TERM), (ms(1500), Signal::KILL), (ms(1520), Signal::KILL)];
        assert_eq!(play(&mut ladder, start), sent);
    }

    #[test]
    fn a_sigterm_that_was_passed_on_is_not_repeated() {
        let start = Instant::now();
        let mut ladder = Ladder::default();
        ladder.has_been_asked(start);
        ladder.begin(start + ms(100), true);
        assert_eq!(play(&mut ladder, start), [(ms(1500), Signal::KILL), (ms(1520), Signal::KILL)]);
    }

    #[test]
    fn killing_now_is_now() {
        let start = Instant::now();
        let mut ladder = Ladder::default();
        ladder.begin(start, true);
        ladder.kill_now(start + ms(3));
        assert_eq!(play(&mut ladder, start), [(ms(3), Signal::KILL), (ms(23), Signal::KILL)]);
    }
}
