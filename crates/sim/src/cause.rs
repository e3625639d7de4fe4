//! Judges why the epochs of groups end.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use types::{Cause, Ending, Error};

use crate::host::Host;
use crate::memory::Memory;

/// What really happened, whoever knows it.
pub(crate) struct Truth<'a> {
    pub(crate) host: &'a Host,
    /// By the number of the group.
    pub(crate) memories: &'a [Rc<Memory>],
}

/// What the world knows of a group's epoch.
#[derive(Debug)]
pub(crate) struct Epoch {
    members: Vec<usize>,
    /// When it ended, and why.
    pub(crate) over: Option<(Duration, Cause)>,
    /// The rank that ended it.
    pub(crate) author: Option<usize>,
    /// Ranks that were made to end it.
    pub(crate) requested: BTreeSet<usize>,
    pub(crate) interrupted: BTreeSet<usize>,
    /// Ranks that have closed their part, with the unnamed calls that they had begun.
    pub(crate) closed: Vec<(usize, u64)>,
}

impl Epoch {
    pub(crate) fn new(members: Vec<usize>) -> Epoch {
        Epoch {
            members,
            over: None,
            author: None,
            requested: BTreeSet::new(),
            interrupted: BTreeSet::new(),
            closed: Vec::new(),
        }
    }

    /// Who has just ended the epoch, and why, if somebody has.
    ///
    /// # Errors
    /// If another cause was there before.
    pub(crate) fn begins_to_end(&mut self, memory: &Memory) -> Result<Option<(usize, Cause)>, String> {
        let Some((author, cause)) = memory.first_cause() else { return Ok(None) };
        match &self.over {
            None => {
                self.over = Some((memory.host().now(), cause.clone()));
                self.author = Some(self.members[author]);
                Ok(Some((author, cause)))
            }
            Some((_, first)) if *first == cause => Ok(None),
            Some((_, first)) => Err(format!("that {cause} replaces the first cause, that {first}")),
        }
    }

    /// Whether the cause that a rank gave is true, and may end the epoch.
    pub(crate) fn judge_cause(
        &self,
        by: usize,
        cause: &Cause,
        truth: &Truth<'_>,
        needs: &dyn Fn(usize) -> bool,
        late: bool,
    ) -> Result<(), String> {
        match cause {
            Cause::RankDied { peer, ending } => {
                let peer = peer.index();
                if !self.members.contains(&peer) || peer == by {
                    return Err("that is no other rank of the group".into());
                }
                if !self.has_ended(peer, *ending, truth) {
                    return Err(format!("that rank ended so: {:?}", truth.host.ending(peer)));
                }
                if needs(peer) { Ok(()) } else { Err("no call of the rank needs that one any more".into()) }
            }
            Cause::Deadline { by: late_one, peer } => {
                let is_other = self.members.contains(&peer.index()) && peer.index() != by;
                if late_one.index() == by && late && is_other { Ok(()) } else { Err("no call of it is late".into()) }
            }
            Cause::Interrupted { by } if self.interrupted.contains(&by.index()) => Ok(()),
            Cause::Requested { by } if self.requested.contains(&by.index()) => Ok(()),
            _ => Err("that did not happen".into()),
        }
    }

    fn has_ended(&self, peer: usize, ending: Ending, truth: &Truth<'_>) -> bool {
        let closed = self.closed.iter().any(|(rank, calls)| *rank == peer && ending == Ending::Left(*calls));
        closed || truth.host.ending(peer) == Some(ending)
    }

    /// Whether an error that says that the epoch is over says why.
    pub(crate) fn judge_over(&self, rank: usize, error: &Error) -> Result<(), String> {
        match (error, &self.over) {
            (Error::Closed { .. }, _) if self.closed.iter().any(|(closed, _)| *closed == rank) => Ok(()),
            (Error::RankDied(died), Some((_, Cause::RankDied { peer, ending }))) => {
                if died.peer == *peer && died.ending == *ending { Ok(()) } else { Err(format!("{peer} died first")) }
            }
            (Error::GroupAborted(aborted), Some((_, cause))) => {
                if aborted.cause == *cause {
                    Ok(())
                } else {
                    Err(format!("the first cause is that {cause}"))
                }
            }
            (_, Some((_, cause))) => Err(format!("ended because {cause}, the error is {error}")),
            (_, None) => Err(format!("the group is not over, the error is {error}")),
        }
    }

    /// Whether it is over at all.
    pub(crate) fn is_over(&self, error: &Error) -> Result<(), String> {
        if self.over.is_some() { Ok(()) } else { Err(format!("the group goes on after {error}")) }
    }
}
