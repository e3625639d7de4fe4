//! The state of jobs for people.

use std::fmt::Write as _;
use std::time::Duration;

use foldcast::Rank;
use foldcast::blackbox::observe::{Condition, Seen};
use foldcast::blackbox::{Times, Wait, describe};

use super::judge::{Judged, State};

/// Characters of a job's key that are shown.
const KEY_CHARS: usize = 60;
/// Waits of a job that are shown.
const WAITS: usize = 8;

pub(super) fn of(jobs: &[Judged]) -> String {
    if jobs.is_empty() {
        return "no jobs of several ranks of this user on this host\n".into();
    }
    jobs.iter().map(job).collect::<Vec<_>>().join("\n")
}

fn job(judged: &Judged) -> String {
    let Judged { job, state, .. } = judged;
    let mut text = format!("job {:016x}{}, {} ranks: {}\n", job.hash, key(judged), job.ranks.len(), state.name());
    match state {
        State::Meeting => missing(&mut text, judged),
        _ if job.answered_by.is_none() => text.push_str("  no rank answers: its memory was read all the same\n"),
        _ => {}
    }
    for wait in judged.waits.iter().take(WAITS) {
        waiting(&mut text, judged, wait);
    }
    if let Some(more) = judged.waits.len().checked_sub(WAITS).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more waits");
    }
    ranks(&mut text, judged);
    for Times { op, calls, p50, p99 } in &judged.times {
        let _ = writeln!(text, "  {op}: the last {calls} calls: p50 {}, p99 {}", time(*p50), time(*p99));
    }
    for late in &judged.late {
        let ms = late.p50.as_secs_f64() * 1e3;
        let _ = writeln!(
            text,
            "  {} late p50 {ms:.1} ms over the last {} calls of group '{}'",
            late.rank, late.calls, late.group
        );
    }
    text
}

fn key(judged: &Judged) -> String {
    let Some(key) = &judged.job.key else { return String::new() };
    let line: String = key.chars().map(|c| if c.is_control() { ' ' } else { c }).take(KEY_CHARS).collect();
    format!(" ('{line}{}')", if key.chars().count() > KEY_CHARS { ".." } else { "" })
}

fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

fn missing(text: &mut String, judged: &Judged) {
    let ranks = judged.job.ranks.iter();
    let missing: Vec<Rank> = ranks.filter(|seen| seen.condition == Condition::Missing).map(|seen| seen.rank).collect();
    if missing.is_empty() {
        text.push_str("  all ranks are there and have not met yet\n");
    } else {
        let _ = writeln!(text, "  missing: {}", list(&missing));
    }
}

fn waiting(text: &mut String, judged: &Judged, wait: &Wait) {
    let since = judged.now.since(wait.since_ns).as_secs_f64();
    let verb = if wait.waiting.len() == 1 { "waits" } else { "wait" };
    let _ = writeln!(
        text,
        "  {} since {since:.1} s: {} on group '{}': {} {verb} for {}",
        if judged.state == State::Stalled { "STALLED" } else { "waiting" },
        describe(&wait.operation),
        wait.operation.group,
        list(&wait.waiting),
        list(&wait.missing),
    );
}

fn ranks(text: &mut String, judged: &Judged) {
    for seen in &judged.job.ranks {
        let process = if seen.process == 0 { "-".into() } else { seen.process.to_string() };
        let _ = writeln!(
            text,
            "  {:<9} process {process:<8} {:<9} {}",
            seen.rank.to_string(),
            word(seen),
            last(judged, seen)
        );
    }
}

/// How a rank is, in a word.
pub(super) fn word(seen: &Seen) -> String {
    match seen.condition {
        Condition::Missing => "missing".into(),
        Condition::Meeting => "meeting".into(),
        Condition::Alive => "alive".into(),
        Condition::Stopped => "stopped".into(),
        Condition::Gone(ending) => ending.to_string(),
    }
}

fn last(judged: &Judged, seen: &Seen) -> String {
    let last = judged.ranks.iter().find(|rank| rank.rank == seen.rank).and_then(|rank| rank.last());
    match last {
        Some(last) => format!("{} on group '{}', {}", describe(last), last.group, judged.now.state(last)),
        None if seen.noted.is_some() => "no call yet".into(),
        None => String::new(),
    }
}

/// A time in a unit that suits it.
fn time(time: Option<Duration>) -> String {
    let Some(time) = time else { return "a few us".into() };
    let us = time.as_secs_f64() * 1e6;
    match us {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}
