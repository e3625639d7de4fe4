//! Buffers that one rank reduces in a list and another one by one.
//!
//! Such calls do not meet: the list has a name of its own. The rank with the list finds out ([`engine::claims`]), and makes
//! each of the other rank's calls a mismatch by submitting, in its own place, a call that nothing agrees with. In the
//! exchange that follows all learn of the lists, and who has not submitted one does the same there. So every call of both
//! kinds ends on all ranks, by the ordinary way, and the uses of all names are counted alike afterwards.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use engine::claims::GRACE;
use engine::{Claims, Contradiction, OwnedBuffers, Work};
use types::error::Mismatch;
use types::{DataType, Error, Parts, Rank, Reduction, Result};

use super::{Told, explain, short, some};
use crate::group::{CallOptions, Group, GroupShared, lock};
use crate::wait::LOOK_EVERY;

/// The beginning of what a rank tells that makes the call alone; then the name.
const ALONE: &str = "\u{1}alone\t";

/// The beginning of what a rank tells that has it in a list; then the calls, and names of the buffers, one a line.
const FUSED: &str = "\u{1}fused\n";

/// The beginning of a line that tells of a call: then its uses, and its name.
const CALL: &str = "call\t";

/// Lists that a rank tells of at most, and names.
const MOST: usize = 64;

/// The field in which such calls differ.
const FIELD: &str = "fused set";

/// What the parts of a call have as their digest that nothing is to agree with.
const REFUSAL: Parts = Parts { number: 0, digest: 0x7265_6675_7365_6421 };

impl Group {
    /// [`all_reduce_async`](Self::all_reduce_async) of a buffer that other ranks may reduce in a
    /// [set](Self::all_reduce_set_async) that claims its name: an error on all ranks says so.
    ///
    /// # Errors
    /// As [`all_reduce_async`](Self::all_reduce_async).
    pub fn all_reduce_alone_async(
        &self,
        dtype: DataType,
        reduction: Reduction,
        buffers: Box<dyn OwnedBuffers>,
        options: &CallOptions<'_>,
        done: engine::Completion,
    ) -> Result<()> {
        let Some(name) = options.name else {
            return self.all_reduce_async(dtype, reduction, buffers, options, done);
        };
        let (group, name): (Group, Arc<str>) = (self.clone(), name.into());
        let explained: engine::Completion = Box::new(move |outcome, buffers| match outcome {
            Err(Error::Mismatch(mismatch)) => {
                let (own, theirs) = (format!("{ALONE}{name}\n"), group.clone());
                let judge = move |mismatch: &mut Mismatch, exchange: &dyn Fn() -> Told| {
                    meet_elsewhere(&group, &name, mismatch, exchange());
                };
                explain(&theirs, mismatch, own, judge, move |mismatch| done(Err(Error::Mismatch(mismatch)), buffers));
            }
            outcome => done(outcome, buffers),
        });
        let options = CallOptions { light_completion: false, ..*options };
        self.all_reduce_async(dtype, reduction, buffers, &options, explained)
    }
}

impl GroupShared {
    /// Makes the calls of other ranks a mismatch that wait for what this rank has in a list.
    pub(crate) fn answer(&self, contradictions: Vec<Contradiction>) {
        let Some(me) = self.me.upgrade().filter(|_| !contradictions.is_empty()) else { return };
        let group = Group::of(me);
        for Contradiction { name, uses, claims, calls } in contradictions {
            let calls: String = calls.iter().take(MOST).map(|(call, uses)| format!("{CALL}{uses}\t{call}\n")).collect();
            let names: String = claims.each().take(MOST).map(|name| format!("{}\n", name.replace('\t', " "))).collect();
            refuse(&group, &name, uses, format!("{FUSED}{calls}{names}"));
        }
    }

    /// The calls of other ranks that wait for what this rank has in a list that has met.
    pub(super) fn claimed_elsewhere(&self, claims: Option<&Arc<Claims>>) -> Vec<Contradiction> {
        let (Some(claims), Some(joined)) = (claims, self.joining.get()) else { return Vec::new() };
        let mut lane = lock(&self.named);
        self.empty_inbox(&mut lane, &mut None);
        lane.elsewhere(&joined.windows, claims)
    }

    /// [Answers](Self::answer) for such a list. Others with the same claims may still meet: they are given the time for it.
    pub(super) fn answer_of_met(&self, mut found: Vec<Contradiction>) {
        let Some(claims) = found.first().map(|first| Arc::clone(&first.claims)) else { return };
        let until = Instant::now() + GRACE;
        let waiting = loop {
            let waiting = lock(&self.named).claiming(&claims);
            if waiting.is_empty() || Instant::now() >= until || !self.life.is_live() {
                break waiting;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        for contradiction in &mut found {
            contradiction.calls.clone_from(&waiting);
        }
        self.answer(found);
    }
}

/// Submits a call of this name that nothing agrees with, if this rank has not come there itself, and then tells `own`.
fn refuse(group: &Group, name: &str, uses: u64, own: String) {
    let work = Work::all_reduce(DataType::Uint8, Reduction::Sum, 0).of_list(REFUSAL, 0);
    let (theirs, at): (Group, Arc<str>) = (group.clone(), name.into());
    let done = Box::new(move |outcome: Result<()>, _: Box<dyn OwnedBuffers>| {
        theirs.shared().exchanges.fetch_sub(1, Ordering::AcqRel);
        let Err(Error::Mismatch(mismatch)) = outcome else { return };
        let group = theirs.clone();
        let judge = move |mismatch: &mut Mismatch, exchange: &dyn Fn() -> Told| {
            meet_elsewhere(&group, &at, mismatch, exchange());
        };
        explain(&theirs, mismatch, own, judge, |mismatch| log::info!("{}", Error::Mismatch(mismatch)));
    });
    // If it is given back this rank has made that call, and nothing is to be said in its place.
    let _made = GroupShared::submit_instead(group.shared(), &work, name, uses, done);
}

/// After a mismatch in a call that ranks make alone: says who has it in a list, if any does, and refuses the lists that this
/// rank does not make.
fn meet_elsewhere(group: &Group, name: &str, mismatch: &mut Mismatch, told: Told) {
    // Without the others' words it is an ordinary mismatch.
    let Ok(texts) = told else { return };
    if !explains(mismatch, &texts) {
        return;
    }
    let lists = texts.iter().filter_map(|(_, text)| text.strip_prefix(FUSED));
    let lines = lists.flat_map(|list| list.lines().take(MOST));
    for (uses, call) in lines.filter_map(|line| line.strip_prefix(CALL)?.split_once('\t')) {
        if let Ok(uses) = uses.parse() {
            refuse(group, call, uses, format!("{ALONE}{name}\n"));
        }
    }
}

/// Whether what the ranks tell shows that some make alone what others have in a list; the mismatch says so then.
pub(crate) fn explains(mismatch: &mut Mismatch, texts: &[(Rank, String)]) -> bool {
    let is_alone = |text: &str| text.starts_with(ALONE);
    if texts.iter().all(|(_, text)| is_alone(text)) || !texts.iter().any(|(_, text)| is_alone(text)) {
        return false;
    }
    let values: Vec<(Rank, String)> = texts.iter().map(|(rank, text)| (*rank, value(text))).collect();
    let of = |rank: Rank| values.iter().find(|(other, _)| *other == rank).map(|(_, value)| value.clone());
    let own = of(mismatch.site.rank).unwrap_or_default();
    let Some((peer, got)) = values.iter().find(|(_, value)| *value != own).cloned() else { return false };
    mismatch.field = FIELD;
    (mismatch.peer, mismatch.expected, mismatch.got) = (peer, own, got);
    mismatch.values = values;
    mismatch.detail =
        "what is one call on one rank is a call for each tensor on another: they wait for each other; all \
                       ranks must run the same allreduces of a group in one step, and have them fused in the same way"
            .into();
    true
}

/// What a rank does, as it tells it, for a message.
fn value(text: &str) -> String {
    if let Some(name) = text.strip_prefix(ALONE) {
        return format!("'{}' alone", short(name.lines().next().unwrap_or_default()));
    }
    let (list, has_calls) = text.strip_prefix(FUSED).map_or((text, false), |list| (list, true));
    let lines = list.lines().filter(|line| !(has_calls && line.starts_with(CALL)));
    let name = |line: &str| format!("'{}'", short(line.split('\t').next().unwrap_or_default()));
    format!("{} fused", some(&lines.map(name).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use types::{CallSite, GroupName};

    use super::*;

    fn said(texts: &[&str]) -> Option<Mismatch> {
        let texts: Vec<(Rank, String)> = (0..).map(Rank).zip(texts.iter().map(|text| (*text).to_owned())).collect();
        let site = CallSite { rank: Rank(1), op: "allreduce", tag: None, group: GroupName::world() };
        let empty = || String::new();
        let (field, peer, elapsed) = ("parts", Rank(0), core::time::Duration::ZERO);
        let (expected, got, detail) = (empty(), empty(), empty());
        let mut mismatch = Mismatch { site, field, peer, expected, got, values: Vec::new(), detail, elapsed };
        explains(&mut mismatch, &texts).then_some(mismatch)
    }

    #[test]
    fn it_is_told_where_some_are_alone_and_some_are_not() {
        let told = said(&[
            "\u{1}fused\ncall\t3\tg.0\ncall\t3\tg.1\na\nb\n",
            "\u{1}alone\ta\n",
            "\u{1}fused\ncall\t3\tg.0\ncall\t3\tg.1\na\nb\n",
        ]);
        let told = told.expect("a difference");
        assert_eq!((told.field, told.peer), ("fused set", Rank(0)));
        assert_eq!((&told.expected[..], &told.got[..]), ("'a' alone", "'a', 'b' fused"));
        assert_eq!(told.values.len(), 3);
        // In the call of the list, where the others tell what it holds.
        let told = said(&["\u{1}alone\ta\n", "x\t3\ny\t4\n"]).expect("a difference");
        assert_eq!((&told.expected[..], &told.got[..]), ("'x', 'y' fused", "'a' alone"));
    }

    #[test]
    fn other_differences_are_left_to_others() {
        assert_eq!(said(&["\u{1}alone\ta\n", "\u{1}alone\ta\n"]), None);
        assert_eq!(said(&["a\t1\n", "b\t1\n"]), None);
        assert_eq!(said(&["\u{1}fused\na\n", "\u{1}fused\na\n"]), None);
        assert_eq!(said(&[]), None);
    }
}
