//! Which rank failed first and how, and what the launcher says and returns for it.

use foldcast::error::signal_name;
use foldcast::{Ending, Rank};

use super::{LAUNCHER_FAILED, Refusal};

/// 128 + SIGPIPE: what a shell sees of a program whose reader has gone.
const OUTPUT_CLOSED: u8 = 141;

/// How a job ended, as far as is known.
#[derive(Debug)]
pub(super) struct Outcome {
    size: usize,
    keep_going: bool,
    /// The first signal that was passed on before a rank failed.
    asked: Option<i32>,
    first: Option<Failure>,
    failures: usize,
    stopped: Option<Refusal>,
}

#[derive(Debug)]
struct Failure {
    rank: Rank,
    ending: Ending,
    others_were_running: bool,
    killed_by_launcher: bool,
}

/// Whether this is the end of a rank that did what it should.
pub(super) fn is_success(ending: Ending) -> bool {
    ending == Ending::Exited(0)
}

impl Outcome {
    pub(super) fn new(size: usize, keep_going: bool) -> Outcome {
        Outcome { size, keep_going, asked: None, first: None, failures: 0, stopped: None }
    }

    /// A signal that asks to end was passed on.
    pub(super) fn asked(&mut self, signal: i32) {
        if self.first.is_none() {
            self.asked.get_or_insert(signal);
        }
    }

    /// The launcher itself cannot go on.
    pub(super) fn stop(&mut self, refusal: Refusal) {
        if self.first.is_none() {
            self.stopped.get_or_insert(refusal);
        }
    }

    /// Nobody reads the launcher's output any more.
    pub(super) fn output_closed(&mut self) {
        self.stop(Refusal { code: OUTPUT_CLOSED, message: String::new() });
    }

    /// `rank` has failed while this many others were running.
    pub(super) fn failed(&mut self, rank: Rank, ending: Ending, others: usize, killed_by_launcher: bool) {
        self.failures += 1;
        if self.first.is_none() && self.stopped.is_none() {
            self.first = Some(Failure { rank, ending, others_were_running: others > 0, killed_by_launcher });
        }
    }

    /// The exit code.
    pub(super) fn code(&self) -> u8 {
        match (&self.stopped, &self.first) {
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
        let failure = self.first.as_ref()?;
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
            format!("; {} of {} ranks failed", self.failures, self.size)
        } else if failure.others_were_running {
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
