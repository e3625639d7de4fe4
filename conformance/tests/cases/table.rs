//! The table in the README: which test is of which report. It is made of the names in the sources:
//! `UPDATE=1 cargo test -p foldcast-conformance table` writes it anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !matches!(name.to_str(), Some("target" | "__pycache__")) {
            sources(&path, found);
        } else if matches!(path.extension().and_then(|end| end.to_str()), Some("rs" | "py")) {
            found.push(path);
        }
    }
}

/// The functions of all tests that may carry a report's name: name, and file with name.
fn functions() -> BTreeMap<String, String> {
    let root = root();
    let mut files = Vec::new();
    for directory in ["bindings", "conformance", "crates", "tests/python"] {
        sources(&root.join(directory), &mut files);
    }
    let mut found = BTreeMap::new();
    for file in files {
        let shown = file.strip_prefix(&root).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().map(str::trim_start) {
            let function = ["fn ", "def "].iter().find_map(|word| line.strip_prefix(word));
            let Some(name) = function.and_then(|rest| rest.split('(').next()) else { continue };
            found.insert(format!("{shown}::{name}"), name.strip_prefix("test_").unwrap_or(name).to_owned());
        }
    }
    found
}

/// What the tests of a report have in their names: its library and its number.
fn tag(address: &str) -> String {
    let parts: Vec<&str> = address.trim_start_matches("https://github.com/").split('/').collect();
    let &[_, library, _, number] = parts.as_slice() else { panic!("no report: {address}") };
    format!("{}_{number}", library.to_lowercase().replace('-', "_"))
}

fn is_of(function: &str, tag: &str) -> bool {
    function.match_indices(tag).any(|(at, _)| {
        let (before, after) = (&function[..at], &function[at + tag.len()..]);
        (before.is_empty() || before.ends_with('_')) && !after.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// A row with its last cell as it must be: the tests, else the reason for which there are none.
fn row(line: &str, functions: &BTreeMap<String, String>) -> String {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let &[number, report, what, tests] = cells.as_slice() else { panic!("no row: {line}") };
    let address = report.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).expect(line);
    let tag = tag(address);
    let of: Vec<_> = functions.iter().filter(|(_, function)| is_of(function, &tag)).collect();
    let tests = match of.as_slice() {
        [] if tests.starts_with("waits: ") => tests.to_owned(),
        [] => "none yet".to_owned(),
        some => some.iter().map(|(place, _)| format!("`{place}`")).collect::<Vec<_>>().join(", "),
    };
    format!("| {number} | {report} | {what} | {tests} |")
}

#[test]
fn the_table_names_the_tests_that_there_are() {
    let file = root().join("conformance/README.md");
    let text = fs::read_to_string(&file).unwrap();
    let functions = functions();
    let is_row = |line: &str| line.starts_with("| ") && line.contains("](https://github.com/");
    let line = |line: &str| if is_row(line) { row(line, &functions) } else { line.to_owned() };
    let right = text.lines().map(|old| line(old) + "\n").collect::<String>();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &right).unwrap();
    } else if let Some((old, new)) = text.lines().zip(right.lines()).find(|(old, new)| old != new) {
        panic!(
            "conformance/README.md is out of date (UPDATE=1 cargo test -p foldcast-conformance table):\n{old}\nmust be\n{new}"
        );
    }
    // Each report has a test, or waits for something.
    let rows: Vec<String> = right.lines().filter(|line| is_row(line)).map(str::to_owned).collect();
    assert!(rows.len() > 100, "{} rows", rows.len());
    for row in rows {
        assert!(!row.ends_with("| none yet |"), "{row}");
    }
}

#[test]
fn tags_are_made_of_library_and_number() {
    assert_eq!(tag("https://github.com/NVIDIA/nccl/issues/1417"), "nccl_1417");
    assert_eq!(tag("https://github.com/ROCm/legacy-rocm-build/issues/6565"), "legacy_rocm_build_6565");
    assert!(is_of("nccl_422_and_horovod_3662_wrap", "horovod_3662") && is_of("nccl_422", "nccl_422"));
    assert!(!is_of("nccl_4221_x", "nccl_422") && !is_of("xnccl_422", "nccl_422"));
}
