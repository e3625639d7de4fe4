//! The files that ranks leave: read whole, or as far as they go.

use std::ffi::OsStr;
use std::path::Path;

use foldcast::Rank;
use foldcast::blackbox::observe::Operation;
use foldcast::blackbox::{DUMP_FORMAT, MAX_DUMP_BYTES, operation_from_json};
use serde_json::Value;

/// Files that are looked at.
const MAX_FILES: usize = 3 * 4096;

/// An error that a rank met.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: String,
    pub(super) text: String,
}

/// What one file says.
#[derive(Clone, Debug)]
pub(super) struct Dump {
    pub(super) job: String,
    pub(super) rank: Rank,
    pub(super) size: u64,
    pub(super) process: u64,
    /// Who wrote it: the rank itself, or another one for it.
    pub(super) written_by: Rank,
    /// How the rank ended, if another one wrote this.
    pub(super) ended: Option<String>,
    /// When it was written, by the clock of the operations.
    pub(super) at_ns: u64,
    pub(super) at_unix_ms: u64,
    pub(super) failures: Vec<Failure>,
    /// In the order in which the rank came to them.
    pub(super) operations: Vec<Operation>,
    /// Whether the file was cut short.
    pub(super) is_cut: bool,
}

/// The files of a directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) dumps: Vec<Dump>,
    /// Files of which nothing could be read.
    pub(super) unreadable: usize,
}

/// Reads a directory, or one file.
pub(super) fn read(path: &Path) -> Result<Found, String> {
    let refused = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = if std::fs::metadata(path).map_err(refused)?.is_dir() {
        let entries = std::fs::read_dir(path).map_err(refused)?;
        entries.flatten().map(|entry| entry.path()).filter(|path| is_ours(path)).take(MAX_FILES).collect()
    } else {
        vec![path.to_owned()]
    };
    files.sort();
    let mut found = Found::default();
    for file in files {
        match read_file(&file) {
            Some(dump) => found.dumps.push(dump),
            None => found.unreadable += 1,
        }
    }
    Ok(found)
}

/// Whether a file has the name of one that a rank wrote, or of one that it was writing.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("foldcast-") && (name.ends_with(".json") || name.ends_with(".part"))
}

fn read_file(path: &Path) -> Option<Dump> {
    let size = std::fs::metadata(path).ok()?.len();
    if usize::try_from(size).ok()? > MAX_DUMP_BYTES {
        return None;
    }
    parse(&String::from_utf8_lossy(&std::fs::read(path).ok()?))
}

/// The head stands on the first line, each operation on one of its own: so what was cut short is whole up to some line.
fn parse(text: &str) -> Option<Dump> {
    if let Ok(value) = serde_json::from_str(text) {
        return dump(&value, false);
    }
    let mut lines = text.lines();
    let head = lines.next()?.strip_suffix(',')?;
    let mut value: Value = serde_json::from_str(&format!("{head}}}")).ok()?;
    // After the line that names the list.
    let operations = lines.skip(1).map(|line| line.strip_suffix(',').unwrap_or(line));
    value["operations"] = operations.map_while(|line| serde_json::from_str::<Value>(line).ok()).collect();
    dump(&value, true)
}

fn dump(value: &Value, is_cut: bool) -> Option<Dump> {
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let rank = |key: &str| number(key).and_then(|rank| u32::try_from(rank).ok()).map(Rank);
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    if text("format")? != DUMP_FORMAT {
        return None;
    }
    let failure = |failure: &Value| {
        let text = |key: &str| failure.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Failure { kind: text("kind")?, text: text("text")? })
    };
    let list = |key: &str| value.get(key).and_then(Value::as_array).map(|list| &list[..]).unwrap_or_default();
    let mut operations: Vec<Operation> = list("operations").iter().filter_map(operation_from_json).collect();
    operations.sort_by_key(Operation::came_ns);
    Some(Dump {
        job: text("job")?,
        rank: rank("rank")?,
        size: number("size")?,
        process: number("pid")?,
        written_by: rank("written_by")?,
        ended: text("ended"),
        at_ns: number("at_ns")?,
        at_unix_ms: number("at_unix_ms")?,
        failures: list("errors").iter().filter_map(failure).collect(),
        operations,
        is_cut,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"at_ns":9,"at_unix_ms":8,"ended":null,"errors":[],"format":"foldcast operations 1","job":"0a","pid":7,"rank":1,"size":2,"written_by":1"#;

    fn operation(number: u64) -> String {
        format!(
            r#"{{"begun_ns":{number},"blocking":true,"bytes":4,"dtype":"float32","group":"g","group_id":1,"key":{number},"number":{number},"op":"allreduce","reduction":"sum","state":"done"}}"#
        )
    }

    #[test]
    fn a_file_that_was_cut_at_any_place_gives_what_is_whole() {
        let operations: Vec<_> = (1..=5).map(operation).collect();
        let text = format!("{HEAD},\n\"operations\": [\n{}\n]}}\n", operations.join(",\n"));
        let whole = parse(&text).expect("whole");
        assert_eq!((whole.operations.len(), whole.is_cut, whole.rank), (5, false, Rank(1)));
        let mut kept = 0;
        for end in 0..text.trim_end().len() {
            let Some(cut) = parse(&text[..end]) else {
                assert!(end <= HEAD.len(), "nothing of {end} bytes");
                continue;
            };
            assert!(cut.is_cut && cut.operations.len() >= kept, "{end}");
            kept = cut.operations.len();
        }
        assert_eq!(kept, 5);
    }

    #[test]
    fn what_is_no_file_of_ours_is_none() {
        for text in [
            "",
            "{",
            "{}",
            "[1]",
            "null",
            r#"{"format":"other"}"#,
            "\u{0}\u{1}",
            &HEAD.replace("\"rank\":1", "\"rank\":-1"),
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
