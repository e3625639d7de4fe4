//! Looking at named calls that wait for their place in the order.

use core::time::Duration;
use std::sync::Arc;

use types::transport::{Channel, Peers};
use types::{CallSite, Error, Tag, Ticket};

use crate::call::Call;
use crate::late::{LONG, Late, MOST_MEMBERS};
use crate::names::Names;
use crate::trouble::{View, Waits, Watch, fail, find_trouble, warn};
use crate::{Ground, SharedWindows};

/// What a rank that has not submitted a named call is waited for.
const SUBMIT: &str = "submit a call of that name";

pub(super) fn site(view: &View, call: &Call) -> CallSite {
    let fingerprint = call.fingerprint();
    view.site(fingerprint.kind.name(), Some(Tag::Named(Arc::clone(&fingerprint.name))))
}

pub(super) fn look_at<W: SharedWindows, P: Peers>(
    ground: Ground<'_, W, P>,
    identity: u128,
    call: &mut Call,
    watch: &mut Watch,
    now: Duration,
) -> Option<Error> {
    let elapsed = call.elapsed(now);
    let waits = unordered(ground, identity);
    if !waits.missing.is_empty() {
        ground.windows.note_waiting(Channel::Named, call.ticket, &waits.missing);
    }
    let Some(trouble) = find_trouble(ground, &waits, call, elapsed) else {
        if watch.warning_due(elapsed, call.limits.first_warning) {
            warn(&site(ground.view, call), ground.view, &waits.missing, SUBMIT, elapsed);
        }
        return None;
    };
    let trouble = watch.settled(trouble, elapsed)?;
    let site = site(ground.view, call);
    Some(fail(ground, call, trouble, site, SUBMIT))
}

/// After a long wait for the order: notes who submitted late.
#[cold]
pub(super) fn note_arrivals<W: SharedWindows, P: Peers>(
    ground: Ground<'_, W, P>,
    late: &mut Late,
    number: u64,
    ticket: Option<Ticket>,
    since: Duration,
) {
    let now = ground.clock.now();
    let members = ground.view.ranks.len();
    if now.saturating_sub(since) < LONG || members > MOST_MEMBERS {
        return;
    }
    let arrival = |owner| ground.windows.arrival(Channel::Named, owner, number, ticket);
    let arrivals: Vec<_> = (0..members).map(arrival).collect();
    late.note(ground.view, number, &arrivals, now);
}

/// Whom a call waits for that is not in the order yet. It needs every member: to run it, each must come.
pub(super) fn unordered<W: SharedWindows, P: Peers>(ground: Ground<'_, W, P>, identity: u128) -> Waits {
    let missing = Names::missing(ground.windows, identity);
    Waits { channel: Channel::Named, missing, needed: ground.others().collect() }
}
