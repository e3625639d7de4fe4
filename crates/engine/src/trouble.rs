//! What a wait can find wrong, and the errors made of it.

use core::time::Duration;

use types::error::{Cause, Deadline, Mismatch};
use types::transport::{Channel, Counter, Fate, Peers};
use types::{CallSite, Ending, Error, Fingerprint, GroupName, Rank, Tag};

use crate::call::Call;
use crate::{Ground, SharedWindows};

/// The group as this rank sees it, for messages.
#[derive(Clone, Debug)]
pub struct View {
    /// This process's rank in the world.
    pub rank: Rank,
    /// World ranks of the members, by their index in the group.
    pub ranks: Vec<Rank>,
    /// Name of the group.
    pub group: GroupName,
}

impl View {
    /// The beginning of a message about a call.
    #[must_use]
    pub fn site(&self, op: &'static str, tag: Option<Tag>) -> CallSite {
        CallSite { rank: self.rank, op, tag, group: self.group.clone() }
    }

    /// The world rank of a member.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn world(&self, index: usize) -> Rank {
        self.ranks[index]
    }
}

/// How long a rank may have left in order before a wait fails for it. One that left because of another's death, or of an
/// abort, may be seen to have gone before the first cause is.
pub const SETTLING: Duration = Duration::from_millis(30);

/// What a wait remembers between looks.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    next_warning: Option<Duration>,
    left_since: Option<Duration>,
}

impl Watch {
    /// Whether a warning is due after `elapsed`; the time doubles with each.
    pub(crate) fn warning_due(&mut self, elapsed: Duration, first: Duration) -> bool {
        let next = *self.next_warning.get_or_insert(first);
        if elapsed < next {
            return false;
        }
        self.next_warning = Some(elapsed.max(next) * 2);
        true
    }

    /// The trouble, unless it is only that a rank left, and not yet for long.
    pub(crate) fn settled(&mut self, trouble: Trouble, elapsed: Duration) -> Option<Trouble> {
        if let Trouble::Over(Cause::RankDied { ending: Ending::Left(_), .. }) = trouble {
            let since = *self.left_since.get_or_insert(elapsed);
            return (elapsed.saturating_sub(since) >= SETTLING).then_some(trouble);
        }
        Some(trouble)
    }
}

/// What a wait found wrong.
pub(crate) enum Trouble {
    /// The epoch ends with this cause, found here or said by another rank.
    Over(Cause),
    /// The deadline passed.
    Late { peers: Vec<usize>, elapsed: Duration },
}

/// Whom a call waits for, as indices of the group.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) channel: Channel,
    /// For the current step.
    pub(crate) missing: Vec<usize>,
    /// For this step or a later one: these have not done their whole part.
    pub(crate) needed: Vec<usize>,
}

/// Looks for an aborted epoch, a death that matters, or a passed deadline.
///
/// A death, or an orderly leaving, matters if the call still needs something of that rank, now or later.
pub(crate) fn find_trouble<W: SharedWindows, P: Peers>(
    ground: Ground<'_, W, P>,
    waits: &Waits,
    call: &Call,
    elapsed: Duration,
) -> Option<Trouble> {
    if let Some(cause) = ground.windows.aborted() {
        // Another rank was first: its cause stands for all.
        return Some(Trouble::Over(cause));
    }
    let gone = waits.needed.iter().filter_map(|index| {
        let ending = departure(ground, waits.channel, *index)?;
        Some((ground.view.world(*index), ending))
    });
    // Rather one that died than one that ended or left because of it.
    if let Some((peer, ending)) = gone.min_by_key(|(_, ending)| ending.remoteness()) {
        return Some(Trouble::Over(Cause::RankDied { peer, ending }));
    }
    if call.limits.deadline.is_some_and(|limit| elapsed >= limit) {
        return Some(Trouble::Late { peers: waits.missing.clone(), elapsed });
    }
    None
}

/// How a member ended its part in the group, if it did.
fn departure<W: SharedWindows, P: Peers>(ground: Ground<'_, W, P>, channel: Channel, index: usize) -> Option<Ending> {
    match ground.windows.counter(channel.of_kind(), index, Counter::Left) {
        0 => match ground.peers.fate(index) {
            Fate::Gone(ending) => Some(ending),
            Fate::Alive => None,
        },
        left => Some(Ending::Left(left - 1)),
    }
}

/// Ends the epoch on all ranks and makes the error of the call that found the trouble.
pub(crate) fn fail<W: SharedWindows, P: Peers>(
    ground: Ground<'_, W, P>,
    call: &mut Call,
    trouble: Trouble,
    site: CallSite,
    awaited: &'static str,
) -> Error {
    let elapsed = call.elapsed(ground.clock.now());
    match trouble {
        Trouble::Over(cause) => {
            // If another rank was first, its cause stays.
            ground.windows.abort(&cause);
            let first = ground.windows.aborted().unwrap_or(cause);
            ground.life.end(&first);
            ground.life.error(site, elapsed, true)
        }
        Trouble::Late { peers, elapsed } => {
            let first = peers.first().copied().unwrap_or_default();
            let cause = Cause::Deadline { by: ground.view.rank, peer: ground.view.world(first) };
            // If another rank was first, its cause stays, also for this rank's later calls.
            ground.windows.abort(&cause);
            ground.life.end(&ground.windows.aborted().unwrap_or(cause));
            let peers = peers.into_iter().map(|index| ground.view.world(index)).collect();
            let limit = call.limits.deadline.unwrap_or(elapsed);
            let (awaited, detail) = (awaited.into(), String::new());
            Error::Deadline(Box::new(Deadline { site, peers, awaited, limit, elapsed, detail }))
        }
    }
}

/// Logs who is waited for.
pub(crate) fn warn(site: &CallSite, view: &View, missing: &[usize], awaited: &str, elapsed: Duration) {
    let names: Vec<_> = missing.iter().map(|index| view.world(*index).to_string()).collect();
    log::warn!("{site}: waiting since {:.1} s for {} to {awaited}", elapsed.as_secs_f64(), names.join(", "));
}

pub(crate) fn mismatch_error(
    site: CallSite,
    own: &Fingerprint,
    described: &[Option<Fingerprint>],
    view: &View,
    elapsed: Duration,
) -> Error {
    const UNREADABLE: &str = "unreadable";
    let differences: Vec<_> = described
        .iter()
        .map(|other| match other {
            Some(other) => own.differences(other),
            None => vec![("fingerprint", "readable".to_owned(), UNREADABLE.to_owned())],
        })
        .collect();
    let first = differences.iter().enumerate().find_map(|(index, found)| Some((index, found.first()?.clone())));
    let (peer, (field, expected, got)) = first.unwrap_or_else(|| {
        // The hashes differ though the descriptions agree: a peer wrote what it should not have.
        (0, ("fingerprint", format!("{:016x}", own.hash()), UNREADABLE.to_owned()))
    });
    let value = |found: &Vec<(&'static str, String, String)>| {
        found.iter().find(|(name, ..)| *name == field).map_or_else(|| expected.clone(), |(.., other)| other.clone())
    };
    let values = view.ranks.iter().copied().zip(differences.iter().map(value)).collect();
    let peer = view.world(peer);
    Error::Mismatch(Box::new(Mismatch { site, field, peer, expected, got, values, detail: String::new(), elapsed }))
}
