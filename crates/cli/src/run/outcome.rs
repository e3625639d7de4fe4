//! Which rank failed first and how, and what the launcher says and returns for it.

use std::time::{Duration, Instant};

use foldcast::error::signal_name;
use foldcast::{Ending, Rank};

use super::{LAUNCHER_FAILED, Refusal};

/// 128 + SIGPIPE: what a shell sees of a program whose reader has gone.
const OUTPUT_CLOSED: u8 = 141;

/// A process that ends this long after its rank has left the job has left because of what ends it.
const ENDING_LIMIT: Duration = Duration::from_secs(2);

/// How a job ended, as far as is known.
#[derive(Debug)]
pub(super) struct Outcome {
    size: usize,
    keep_going: bool,
    /// The first signal that was passed on before a rank failed.
    asked: Option<i32>,
    /// In the order in which the processes were gone.
    failures: Vec<Failure>,
    /// The number of the first one among them.
    first: usize,
    stopped: Option<Refusal>,
}

#[derive(Debug)]
struct Failure {
    rank: Rank,
    ending: Ending,
    at: Instant,
    others_were_running: bool,
    killed_by_launcher: bool,
}

impl Failure {
    /// When it began: a process takes its time to end, and others may fail by that and be gone before it is.
    fn began(&self, left: &[(Rank, Instant)]) -> Instant {
        let is_own =
            |(rank, at): &&(Rank, Instant)| *rank == self.rank && *at <= self.at && self.at - *at <= ENDING_LIMIT;
        left.iter().find(is_own).map_or(self.at, |(_, at)| *at)
    }
}

/// Whether this is the end of a rank that did what it should.
pub(super) fn is_success(ending: Ending) -> bool {
    ending == Ending::Exited(0)
}

impl Outcome {
    pub(super) fn new(size: usize, keep_going: bool) -> Outcome {
        Outcome { size, keep_going, asked: None, failures: Vec::new(), first: 0, stopped: None }
    }

    /// A signal that asks to end was passed on.
    pub(super) fn asked(&mut self, signal: i32) {
        if self.failures.is_empty() {
            self.asked.get_or_insert(signal);
        }
    }

    /// The launcher itself cannot go on.
    pub(super) fn stop(&mut self, refusal: Refusal) {
        if self.failures.is_empty() {
            self.stopped.get_or_insert(refusal);
        }
    }

    /// Nobody reads the launcher's output any more.
    pub(super) fn output_closed(&mut self) {
        self.stop(Refusal { code: OUTPUT_CLOSED, message: String::new() });
    }

    /// `rank` has failed while this many others were running.
    pub(super) fn failed(&mut self, rank: Rank, ending: Ending, others: usize, killed_by_launcher: bool) {
        self.failures.push(Failure {
            rank,
            ending,
            at: Instant::now(),
            others_were_running: others > 0,
            killed_by_launcher,
        });
    }

    /// Decides which failure was the first, when all have ended; `left` says when ranks left the job.
    pub(super) fn settle(&mut self, left: &[(Rank, Instant)]) {
        // Who was killed by a signal has left nothing before; who was ended by the launcher is not the reason.
        let is_own = |failure: &Failure| matches!(failure.ending, Ending::Exited(_)) && !failure.killed_by_launcher;
        let Some(first) = self.failures.first().filter(|failure| is_own(failure)) else { return };
        let (began, mut earliest) = (first.began(left), 0);
        let mut before = began;
        for (at, failure) in self.failures.iter().enumerate().filter(|(_, failure)| is_own(failure)) {
            if failure.began(left) < before {
                (before, earliest) = (failure.began(left), at);
            }
        }
        self.first = earliest;
    }

    fn first(&self) -> Option<&Failure> {
        if self.stopped.is_some() { None } else { self.failures.get(self.first) }
    }

    /// The exit code.
    pub(super) fn code(&self) -> u8 {
        match (&self.stopped, self.first()) {
            (Some(refusal), _) => refusal.code,
            (None, None) => 0,
            (None, Some(failure)) => match (failure.ending, self.asked) {
                // It did not do what it was asked to: what it was asked is the reason.
                (Ending::Signalled(_), Some(asked)) if failure.killed_by_launcher => code_of_signal(asked),
                (Ending::Signalled(signal), _) => code_of_signal(signal),
                (Ending::Exited(status), _) => u8::try_from(status).unwrap_or(LAUNCHER_FAILED),
                (Ending::Left(_) | Ending::Unknown, _) => LAUNCHER_FAILED,
            },
        }
    }

    /// The last line on standard error, if there is something to say.
    pub(super) fn message(&self) -> Option<String> {
        if let Some(refusal) = &self.stopped {
            return (!refusal.message.is_empty()).then(|| format!("foldcast run: {}\n", refusal.message));
        }
        let failure = self.first()?;
        let rank = failure.rank;
        let how = match failure.ending {
            Ending::Signalled(signal) => format!("killed by {}", signal_name(signal)),
            other => other.to_string(),
        };
        Some(match self.asked {
            Some(signal) if failure.killed_by_launcher => {
                format!("foldcast run: passed on {}; {rank} did not end by it and was killed\n", signal_name(signal))
            }
            Some(signal) => {
                format!("foldcast run: passed on {}; {rank} ended first: {how}\n", signal_name(signal))
            }
            None => {
                let first = if self.size > 1 { " first" } else { "" };
                let others = self.others(failure);
                format!("foldcast run: {rank} failed{first}: {how}{others}\n")
            }
        })
    }

    fn others(&self, failure: &Failure) -> String {
        if self.keep_going && self.size > 1 {
            format!("; {} of {} ranks failed", self.failures.len(), self.size)
        } else if failure.others_were_running || self.failures.len() > 1 {
            "; the other ranks were ended".into()
        } else {
            String::new()
        }
    }
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(LAUNCHER_FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(outcome: &Outcome) -> (u8, String) {
        (outcome.code(), outcome.message().unwrap_or_default())
    }

    #[test]
    fn the_first_failure_counts() {
        let mut outcome = Outcome::new(4, false);
        assert_eq!(told(&outcome), (0, String::new()));
        outcome.failed(Rank(2), Ending::Signalled(9), 3, false);
        outcome.failed(Rank(0), Ending::Exited(1), 2, true);
        outcome.asked(2);
        outcome.output_closed();
        let text = "foldcast run: rank 2 failed first: killed by signal 9 (SIGKILL); the other ranks were ended\n";
        assert_eq!(told(&outcome), (137, text.into()));
    }

    #[test]
    fn who_began_to_end_first_failed_first() {
        let mut outcome = Outcome::new(3, false);
        let now = Instant::now();
        for rank in [0, 1, 2] {
            outcome.failed(Rank(rank), Ending::Exited(4 + i32::try_from(rank).unwrap()), 1, false);
        }
        outcome.settle(&[]);
        assert_eq!(outcome.code(), 4);
        // Rank 1 had left before rank 0, whose process was gone earlier; rank 2 left long before it failed.
        let long_ago = now.checked_sub(ENDING_LIMIT * 2).unwrap();
        outcome.settle(&[(Rank(2), long_ago), (Rank(1), now), (Rank(0), Instant::now())]);
        let text = "foldcast run: rank 1 failed first: exited with status 5; the other ranks were ended\n";
        assert_eq!(told(&outcome), (5, text.into()));

        let mut killed = Outcome::new(2, false);
        killed.failed(Rank(0), Ending::Signalled(9), 1, false);
        killed.failed(Rank(1), Ending::Exited(1), 0, false);
        killed.settle(&[(Rank(1), now)]);
        assert_eq!(killed.code(), 137);
    }

    #[test]
    fn each_situation_has_its_words() {
        let cases: [(usize, bool, usize, &str); 4] = [
            (1, false, 0, "rank 0 failed: exited with status 3"),
            (2, false, 0, "rank 0 failed first: exited with status 3"),
            (2, false, 1, "rank 0 failed first: exited with status 3; the other ranks were ended"),
            (2, true, 1, "rank 0 failed first: exited with status 3; 1 of 2 ranks failed"),
        ];
        for (size, keep_going, others, text) in cases {
            let mut outcome = Outcome::new(size, keep_going);
            outcome.failed(Rank(0), Ending::Exited(3), others, false);
            assert_eq!(told(&outcome), (3, format!("foldcast run: {text}\n")));
        }
    }

    #[test]
    fn a_signal_that_was_passed_on_is_the_reason() {
        let mut ended = Outcome::new(2, false);
        ended.asked(2);
        ended.failed(Rank(1), Ending::Signalled(2), 1, false);
        let text = "foldcast run: passed on signal 2 (SIGINT); rank 1 ended first: killed by signal 2 (SIGINT)\n";
        assert_eq!(told(&ended), (130, text.into()));

        let mut killed = Outcome::new(2, false);
        killed.asked(15);
        killed.failed(Rank(1), Ending::Signalled(9), 1, true);
        let text = "foldcast run: passed on signal 15 (SIGTERM); rank 1 did not end by it and was killed\n";
        assert_eq!(told(&killed), (143, text.into()));

        let mut handled = Outcome::new(2, false);
        handled.asked(15);
        assert_eq!(told(&handled), (0, String::new()));
        handled.failed(Rank(0), Ending::Exited(5), 1, false);
        assert_eq!(handled.code(), 5);
    }

    #[test]
    fn a_closed_output_is_silent() {
        let mut outcome = Outcome::new(2, false);
        outcome.output_closed();
        outcome.failed(Rank(1), Ending::Signalled(15), 1, true);
        assert_eq!(told(&outcome), (141, String::new()));
    }
}
