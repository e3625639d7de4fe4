//! Files in which a rank leaves what it has noted, when a call has failed: `FOLDCAST_DUMP_DIR`.
//!
//! One file a rank, written anew when something else fails; it gets its name when it is whole. The rank writes the file of
//! one that has died too, from shared memory: whoever is first. One operation stands on a line, the newest first, and no
//! file is longer than [`MAX_DUMP_BYTES`]. What goes wrong is logged and never raised.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};
use shm::observe::{self, Noted};
use types::error::Cause;
use types::transport::Fate;
use types::{CallSite, Ending, Error, Rank, failure_code, failure_name};

use crate::blackbox::{DUMP_FORMAT, MAX_DUMP_BYTES, operation_json};
use crate::group::{GroupShared, lock};

/// Errors that a file tells, and how often it is written.
const MAX_ERRORS: usize = 8;

/// What a process has written so far.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    errors: Vec<Value>,
    /// Groups and kinds of errors that are among them.
    known: Vec<(String, u8)>,
    /// Dead ranks whose files are there.
    dead: Vec<Rank>,
}

/// The call that an error of these kinds is of, and the ranks that it names.
fn of_interest(error: &Error) -> Option<(&CallSite, Vec<Rank>)> {
    match error {
        Error::RankDied(e) => Some((&e.site, vec![e.peer])),
        Error::Deadline(e) => Some((&e.site, e.peers.clone())),
        Error::Mismatch(e) => Some((&e.site, vec![e.peer])),
        Error::GroupAborted(e) => Some((
            &e.site,
            match e.cause {
                Cause::RankDied { peer, .. } | Cause::Deadline { peer, .. } => vec![peer],
                _ => Vec::new(),
            },
        )),
        _ => None,
    }
}

impl Dumps {
    /// Writes this rank's file, and those of dead members, if that is wanted and the error says something new.
    #[cold]
    pub(crate) fn write(&self, group: &GroupShared, error: &Error) {
        let config = group.world.config();
        let (Some(directory), Some(host)) = (&config.dump_dir, group.world.host()) else { return };
        let Some((site, ranks)) = of_interest(error).filter(|_| host.home().is_here()) else { return };
        let mut state = lock(&self.state);
        let what = (site.group.to_string(), failure_code(error));
        if state.known.len() >= MAX_ERRORS || state.known.contains(&what) {
            return;
        }
        state.known.push(what);
        state.errors.push(json!({
            "kind": failure_name(failure_code(error)),
            "op": site.op,
            "tag": site.tag.as_ref().map(ToString::to_string),
            "group": site.group.as_str(),
            "ranks": ranks.iter().map(|rank| rank.0).collect::<Vec<_>>(),
            "text": error.to_string(),
            "at_ns": observe::now_ns(),
        }));
        let head = |rank: Rank, ending: Option<Ending>, errors: &[Value]| {
            head(group, rank, ending, errors, host.noted(rank).unwrap_or_default())
        };
        let own = head(config.rank, None, &state.errors);
        report(config.rank, put(directory, &own, true));
        for rank in group.view.ranks.iter().filter(|rank| **rank != config.rank) {
            let ending = match host.fate(*rank) {
                Fate::Gone(ending) if !matches!(ending, Ending::Left(_)) => ending,
                _ => continue,
            };
            if !state.dead.contains(rank) {
                state.dead.push(*rank);
                report(config.rank, put(directory, &head(*rank, Some(ending), &[]), false));
            }
        }
    }
}

fn report(rank: Rank, written: Result<(), (PathBuf, std::io::Error)>) {
    if let Err((path, error)) = written {
        log::error!("{rank}: what was noted of its calls could not be written to {}: {error}", path.display());
    }
}

/// What a file says before the operations, and these.
struct File {
    name: String,
    head: Value,
    noted: Noted,
}

fn head(group: &GroupShared, rank: Rank, ending: Option<Ending>, errors: &[Value], noted: Noted) -> File {
    let config = group.world.config();
    let system = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let job = observe::hash_of(&config.job);
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let head = json!({
        "format": DUMP_FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": system("osrelease"),
        "host": system("hostname"),
        "job": format!("{job:016x}"),
        "rank": rank.0,
        "size": config.size,
        "pid": noted.process,
        "written_by": config.rank.0,
        "ended": ending.map(|ending| ending.to_string()),
        "at_ns": observe::now_ns(),
        "at_unix_ms": u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        "since_ns": noted.since_ns,
        "errors": errors,
    });
    File { name: format!("foldcast-{job:016x}-rank{}-{}", rank.0, noted.process), head, noted }
}

impl File {
    /// The text: the head on the first line, then one operation a line, as many of the newest as fit.
    fn text(&self) -> String {
        let mut head = self.head.to_string();
        // The operations go into the same object.
        head.pop();
        let mut text = format!("{head},\n\"operations\": [\n");
        const END: &str = "\n]}\n";
        let mut separator = "";
        // What goes on is what is looked for.
        let (over, under_way): (Vec<_>, Vec<_>) =
            self.noted.operations.iter().rev().partition(|operation| operation.stage.is_over());
        for operation in under_way.into_iter().chain(over) {
            let line = operation_json(operation).to_string();
            if text.len() + separator.len() + line.len() + END.len() > MAX_DUMP_BYTES {
                break;
            }
            text.push_str(separator);
            text.push_str(&line);
            separator = ",\n";
        }
        text.push_str(END);
        text
    }
}

/// Writes a file beside its place and then gives it its name, in place of an older one if it `replaces` that.
fn put(directory: &Path, file: &File, replaces: bool) -> Result<(), (PathBuf, std::io::Error)> {
    let path = directory.join(format!("{}.json", file.name));
    let beside = directory.join(format!("{}.{}.part", file.name, std::process::id()));
    let write = || {
        fs::create_dir_all(directory)?;
        let mut part = fs::File::create(&beside)?;
        part.write_all(file.text().as_bytes())?;
        drop(part);
        if replaces {
            return fs::rename(&beside, &path);
        }
        let linked = match fs::hard_link(&beside, &path) {
            // Another rank was first, or this one told it itself before it died.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        };
        fs::remove_file(&beside).and(linked)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        (path.clone(), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::observe::{Operation, Stage};
    use types::{DataType, OpKind, Reduction, Summary, Tag};

    fn operation(number: u64, stage: Stage) -> Operation {
        Operation {
            summary: Summary::new(OpKind::AllReduce, DataType::Float32, Reduction::Sum, 4),
            tag: Some(Tag::Named("\u{1}".repeat(127).into())),
            group: "\"".repeat(127),
            group_id: u64::MAX,
            key: u64::MAX,
            is_blocking: false,
            stage,
            error: 0,
            awaited: Some((Rank(1), 1)),
            submitted_ns: Some(number),
            begun_ns: Some(u64::MAX),
            ended_ns: Some(u64::MAX),
        }
    }

    #[test]
    fn a_file_is_bounded_and_keeps_what_goes_on_and_what_is_new() {
        let mut operations = vec![operation(0, Stage::Waiting)];
        operations.extend((1..4096).map(|number| operation(number, Stage::Done)));
        let noted = Noted { operations, ..Noted::default() };
        let text = File { name: "f".into(), head: json!({ "format": DUMP_FORMAT }), noted }.text();
        assert!(text.len() <= MAX_DUMP_BYTES && text.len() > MAX_DUMP_BYTES / 2, "{}", text.len());
        let value: Value = serde_json::from_str(&text).expect("whole JSON");
        let kept: Vec<u64> = value["operations"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|operation| operation["submitted_ns"].as_u64().expect("a number"))
            .collect();
        assert_eq!(kept[..3], [0, 4095, 4094]);
    }

    #[test]
    fn a_file_without_operations_is_json_too() {
        let file = File { name: "f".into(), head: json!({ "format": DUMP_FORMAT }), noted: Noted::default() };
        let value: Value = serde_json::from_str(&file.text()).expect("whole JSON");
        assert_eq!(value["operations"], json!([]));
    }
}
