//! What happened, in words.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use foldcast::Rank;
use foldcast::blackbox::{LateRank, Moment, RankOperations, Wait, describe, late_ranks, waits};

use super::dump::Dump;

/// Waits that are told.
const WAITS: usize = 8;

pub(super) fn of(dumps: &[Dump]) -> String {
    let ranks: Vec<RankOperations> =
        dumps.iter().map(|dump| RankOperations { rank: dump.rank, operations: dump.operations.clone() }).collect();
    let mut text = String::new();
    head(&mut text, dumps);
    let waits = waits(&ranks, true);
    for wait in waits.iter().take(WAITS) {
        missing(&mut text, dumps, wait);
    }
    if let Some(more) = waits.len().checked_sub(WAITS).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more waits");
    }
    let late = late_ranks(&ranks);
    for LateRank { rank, group, p50, calls } in &late {
        let ms = p50.as_secs_f64() * 1e3;
        let _ = writeln!(text, "{rank} late p50 {ms:.1} ms over the last {calls} calls of group '{group}'");
    }
    if waits.is_empty() && late.is_empty() {
        text.push_str("no rank was waited for, and none was late\n");
    }
    for dump in dumps {
        rank(&mut text, dump);
    }
    text
}

fn head(text: &mut String, dumps: &[Dump]) {
    let size = dumps.iter().map(|dump| dump.size).max().unwrap_or_default();
    let job = dumps.first().map(|dump| dump.job.clone()).unwrap_or_default();
    let _ = writeln!(text, "job {job}: files of {} of {size} ranks", dumps.len());
}

fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

fn missing(text: &mut String, dumps: &[Dump], wait: &Wait) {
    // The clock of the day, by a file that has both.
    let Some(dump) = dumps.iter().find(|dump| wait.waiting.contains(&dump.rank)) else { return };
    let end = wait.operation.ended_ns.unwrap_or(dump.at_ns);
    let waited = Moment(end).since(wait.since_ns).as_secs_f64();
    let before = Moment(dump.at_ns).since(wait.since_ns);
    let day = UNIX_EPOCH + Duration::from_millis(dump.at_unix_ms).saturating_sub(before);
    let _ = writeln!(
        text,
        "{} missing in {} on group '{}': {} waited {waited:.1} s, since {}",
        list(&wait.missing),
        describe(&wait.operation),
        wait.operation.group,
        list(&wait.waiting),
        humantime::format_rfc3339_millis(day),
    );
    for rank in &wait.missing {
        let Some(dump) = dumps.iter().find(|dump| dump.rank == *rank) else {
            let _ = writeln!(text, "  {rank} left no file");
            continue;
        };
        let said = match dump.operations.last() {
            Some(last) => format!("{} on group '{}', {}", describe(last), last.group, Moment(dump.at_ns).state(last)),
            None => "none".into(),
        };
        let _ = writeln!(text, "  last operation of {rank}: {said}");
    }
}

fn rank(text: &mut String, dump: &Dump) {
    let cut = if dump.is_cut { ", cut short" } else { "" };
    let by = match &dump.ended {
        Some(ended) => format!(", which {ended}: written by {}", dump.written_by),
        None => String::new(),
    };
    let (rank, process, number) = (dump.rank, dump.process, dump.operations.len());
    let _ = writeln!(text, "{rank} (process {process}){by}: {number} operations{cut}");
    for failure in &dump.failures {
        let _ = writeln!(text, "  {}: {}", failure.kind, failure.text);
    }
}
