//! Calls that some ranks make as one and others one by one.
//!
//! A call that stands for several can claim the names that these would have one by one. It never meets them, since calls meet
//! by name. So while it waits for ranks that have not submitted it, it looks whether one of them has submitted a name that it
//! claims, for a use that this rank has not had. That rank waits for this one there, this one for that rank here. Both
//! are facts of the lists of submissions; that a rank has submitted *neither* says nothing, as it may come late.
//!
//! A process in which two threads run the same thing at once, one alone and one with others, could still bring what is
//! missing. So the two must have waited for each other for [`GRACE`] before it counts.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use types::Tag;

use crate::SharedWindows;
use crate::names::{Names, SEARCHED, SMALL};

/// How long two ranks must have waited for each other.
pub const GRACE: Duration = Duration::from_secs(1);

/// How often a call that waits looks for what it claims.
const EVERY: Duration = Duration::from_millis(250);

/// The names that the parts of a call would have if each were a call of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// One a line.
    names: Arc<str>,
    /// What follows each of them.
    suffix: Box<str>,
}

impl Claims {
    /// Of these names, one a line, each followed by `suffix`; `None` if there are none.
    #[must_use]
    pub fn new(names: &str, suffix: &str) -> Option<Arc<Claims>> {
        (!names.is_empty()).then(|| Arc::new(Claims { names: names.into(), suffix: suffix.into() }))
    }

    /// The names.
    pub fn each(&self) -> impl Iterator<Item = String> + '_ {
        self.names.lines().map(|name| format!("{name}{}", self.suffix))
    }
}

/// A name that another rank has submitted alone, and that a waiting call of this rank claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The name.
    pub name: String,
    /// How often this rank has used it before: it is the use that the other rank waits in.
    pub uses: u64,
    /// All names that are claimed with it.
    pub claims: Arc<Claims>,
    /// The calls of this rank that wait and claim it, each with how often this rank had used its name before.
    pub calls: Vec<(Arc<str>, u64)>,
}

/// What a call that waits has seen of the names that it claims.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    next: Option<Duration>,
    since: Option<Duration>,
}

impl Doubt {
    /// Whether it is time to look.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let next = *self.next.get_or_insert(now + EVERY);
        if now < next {
            return false;
        }
        self.next = Some(now + EVERY);
        true
    }

    /// Notes what a look has found; says whether it has been so for long enough, and begins anew then.
    pub(crate) fn is_settled(&mut self, found: bool, now: Duration) -> bool {
        if !found {
            self.since = None;
            return false;
        }
        let settled = now.saturating_sub(*self.since.get_or_insert(now)) >= GRACE;
        if settled {
            self.since = None;
        }
        settled
    }
}

impl Names {
    /// Which of the claimed names these ranks have submitted, for the use that this rank has next; with that use.
    pub(crate) fn elsewhere<W: SharedWindows>(
        &self,
        windows: &W,
        claims: &Claims,
        owners: &[usize],
    ) -> Vec<(String, u64)> {
        let mut submitted = HashSet::new();
        for owner in owners.iter().copied().filter(|owner| *owner != windows.rank()) {
            let end = windows.announced(owner);
            let list = (end.saturating_sub(SEARCHED)..end).filter_map(|index| windows.announcement(owner, index));
            submitted.extend(list.map(|announcement| announcement.identity));
        }
        let claimed = claims.each().filter_map(|name| {
            let uses = self.uses(&name);
            submitted.contains(&(Tag::identity(&name, uses) & !SMALL)).then_some((name, uses))
        });
        claimed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_suffix() {
        assert_eq!(Claims::new("", "@1.2"), None);
        let claims = Claims::new("g/a\ng/b", "@1.2").expect("there are names");
        assert_eq!(claims.each().collect::<Vec<_>>(), ["g/a@1.2", "g/b@1.2"]);
    }

    #[test]
    fn what_lasts_counts_and_what_passes_does_not() {
        let ms = Duration::from_millis;
        let mut doubt = Doubt::default();
        assert!(!doubt.is_due(ms(0)) && !doubt.is_due(ms(249)) && doubt.is_due(ms(250)) && !doubt.is_due(ms(300)));
        assert!(!doubt.is_settled(true, ms(250)));
        assert!(!doubt.is_settled(false, ms(500)), "the other call came");
        assert!(!doubt.is_settled(true, ms(750)) && !doubt.is_settled(true, ms(1749)));
        assert!(doubt.is_settled(true, ms(1750)));
        assert!(!doubt.is_settled(true, ms(2000)), "it begins anew");
    }
}
