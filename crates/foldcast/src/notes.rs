//! What a process notes of its calls, for whoever looks from outside: see `shm::blackbox`.

use engine::Work;
use shm::Outcome;
use shm::observe::{Operation, Stage};
use types::error::Deadline;
use types::{Error, Rank, Result, Ticket};

use crate::blackbox::{Moment, describe};
use crate::group::GroupShared;

/// Ranks whose last operations an error tells.
const TOLD: usize = 16;

impl GroupShared {
    /// Notes a call before it begins.
    pub(crate) fn note(&self, stage: Stage, work: &Work, name: Option<&str>) -> Option<Ticket> {
        let journal = self.joining.journal(self)?;
        journal.note(stage, work.summary(), name.unwrap_or_default())
    }

    /// Notes which of the calls of its name a call is.
    pub(crate) fn identify(&self, ticket: Option<Ticket>, identity: u128) {
        if let Some(journal) = self.joining.journal(self) {
            journal.identify(ticket, identity);
        }
    }

    /// Notes the end of a call that was noted before it began.
    pub(crate) fn note_end(&self, ticket: Option<Ticket>, result: &Result<()>) {
        if let Some(journal) = self.joining.journal(self) {
            journal.finish(ticket, Outcome::of(result));
        }
    }

    /// Notes the end of the unnamed call that was entered last.
    #[cold]
    pub(crate) fn note_latest_end(&self, result: &Result<()>) {
        if let Some(journal) = self.joining.journal(self) {
            journal.latest_ended(Outcome::of(result));
        }
    }

    /// Notes that calls were refused after all.
    #[cold]
    pub(crate) fn note_refused(&self, tickets: &[Option<Ticket>], error: &Error) {
        for ticket in tickets {
            self.note_end(*ticket, &Err(error.clone()));
        }
    }

    /// A call has failed: the error as the caller gets it. What the ranks did last is told to those who waited in vain, and
    /// written down if that is wanted.
    #[cold]
    pub(crate) fn failed(&self, error: Error) -> Error {
        let error = match error {
            Error::Deadline(late) if late.detail.is_empty() => {
                let detail = self.last_operations(&late.peers);
                Error::Deadline(Box::new(Deadline { detail, ..*late }))
            }
            error => error,
        };
        self.world.dumps.write(self, &error);
        error
    }

    /// What the members did last, in words: those that were waited for first.
    fn last_operations(&self, awaited: &[Rank]) -> String {
        let Some(host) = self.world.host() else { return String::new() };
        let others = self.view.ranks.iter().filter(|rank| !awaited.contains(rank));
        let told = awaited.iter().chain(others).take(TOLD);
        let now = Moment::now();
        let of_rank = |rank: &Rank| {
            let noted = host.noted(*rank).unwrap_or_default();
            let last = noted.operations.iter().max_by_key(|operation| operation.came_ns());
            let said = |operation: &Operation| {
                let elsewhere = operation.group != self.view.group.as_str();
                let place = if elsewhere { format!(" on group '{}'", operation.group) } else { String::new() };
                format!("{}{place}, {}", describe(operation), now.state(operation))
            };
            format!("{rank}: {}", last.map_or_else(|| "none yet".to_owned(), said))
        };
        let told: Vec<_> = told.map(of_rank).collect();
        let rest = match self.view.ranks.len().saturating_sub(TOLD) {
            0 => String::new(),
            rest => format!("; and {rest} more ranks"),
        };
        format!("last operations: {}{rest}", told.join("; "))
    }
}
