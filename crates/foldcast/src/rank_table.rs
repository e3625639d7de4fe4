//! The rank table, a JSON file that says which devices take part: `RANK_TABLE_FILE`.
//!
//! It is read where variables leave out what it says. There are two forms:
//!
//! * version 1.0: `server_list`, for each server a list `device`, whose entries have `device_id` and `rank_id`;
//! * an older one without `version`: `group_list`, whose groups have an `instance_list`, each with a list `devices`; there the
//!   ranks are not named.
//!
//! All values are strings; numbers are taken too, since files in the wild are loose. What else is in the file (addresses, names,
//! numbers of servers and devices) is not looked at.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::config::MAX_RANKS;

/// An entry has some 150 bytes, and there are 4,096 at most.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankTable {
    /// For each rank the device that it has, as far as the table names ranks and devices.
    devices: BTreeMap<usize, Option<usize>>,
    /// Number of devices.
    size: usize,
}

impl RankTable {
    /// Reads a file. The error says why it is of no use.
    pub(crate) fn load(path: &str) -> Result<RankTable, String> {
        let path = Path::new(path);
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        // Opening a pipe would wait.
        if !metadata.is_file() {
            return Err("it is no regular file".into());
        }
        if metadata.len() > MAX_FILE_BYTES {
            return Err(format!("it has more than {MAX_FILE_BYTES} bytes"));
        }
        let mut text = String::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    /// Reads the text of a table. The error says why it is none.
    pub(crate) fn parse(text: &str) -> Result<RankTable, String> {
        let table: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let (hosts, ranks_are_named) = match (list(&table, "server_list"), list(&table, "group_list")) {
            (Some(servers), None) => (of_each(servers, "server_list", "device")?, true),
            (None, Some(groups)) => {
                let instances = of_each(groups, "group_list", "instance_list")?.concat();
                (of_each(&instances, "instance_list", "devices")?, false)
            }
            _ => return Err("it has neither a server_list nor, in the older form, a group_list".into()),
        };
        let hosts: Vec<_> = hosts.into_iter().filter(|devices| !devices.is_empty()).collect();
        let size = hosts.iter().map(Vec::len).sum();
        if size == 0 || size > MAX_RANKS {
            return Err(format!("it has {size} devices, and 1 to {MAX_RANKS} are possible"));
        }
        if hosts.len() > 1 {
            return Err(format!(
                "its devices are on {} hosts: jobs that span hosts are not supported yet",
                hosts.len()
            ));
        }
        let mut devices = BTreeMap::new();
        for device in hosts.iter().flatten().filter(|_| ranks_are_named) {
            let rank = number(device, "rank_id")?.ok_or("one of its devices has no rank_id")?;
            if rank >= size {
                return Err(format!("it has rank_id {rank}, and {size} devices"));
            }
            if devices.insert(rank, number(device, "device_id")?).is_some() {
                return Err(format!("it has rank_id {rank} twice"));
            }
        }
        Ok(RankTable { devices, size })
    }

    /// Number of ranks.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// The rank that has this device, if the table says so, and says so once.
    pub(crate) fn rank_of(&self, device: usize) -> Option<usize> {
        let mut ranks = self.devices.iter().filter(|(_, own)| **own == Some(device)).map(|(rank, _)| *rank);
        ranks.next().filter(|_| ranks.next().is_none())
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Option<&'a [Value]> {
    value[name].as_array().map(Vec::as_slice)
}

/// The inner list of each entry of an outer one.
fn of_each(outer: &[Value], outer_name: &str, name: &str) -> Result<Vec<Vec<Value>>, String> {
    let inner = |entry: &Value| list(entry, name).map(<[Value]>::to_vec);
    let lists: Option<Vec<_>> = outer.iter().map(inner).collect();
    lists.ok_or_else(|| format!("an entry of its {outer_name} has no list {name}"))
}

/// A whole number, as text or as a number; `None` if it is missing or empty.
fn number(entry: &Value, name: &str) -> Result<Option<usize>, String> {
    let wrong = || format!("its {name} {} is no whole number from 0", entry[name]);
    match &entry[name] {
        Value::Null => Ok(None),
        Value::String(text) if text.trim().is_empty() => Ok(None),
        Value::String(text) => text.trim().parse().map(Some).map_err(|_| wrong()),
        other => other.as_u64().and_then(|number| usize::try_from(number).ok()).map(Some).ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [{"server_id": "node_0",
        "device": [{"device_id": "4", "device_ip": "192.168.1.8", "rank_id": "0"},
                   {"device_id": "5", "device_ip": "192.168.1.9", "rank_id": "1"}]}]}"#;
    const OLDER: &str = r#"{"status": "completed", "group_count": "1", "group_list": [{"group_name": "worker",
        "instance_count": "1", "device_count": "2", "instance_list": [{"pod_name": "ascend0", "server_id": "10.0.0.1",
        "devices": [{"device_id": "0", "device_ip": "192.1.1.1"}, {"device_id": "1", "device_ip": ""}]}]}]}"#;

    #[test]
    fn both_forms_are_read() {
        let table = RankTable::parse(TWO).expect("a table");
        assert_eq!((table.size(), table.rank_of(4), table.rank_of(5), table.rank_of(0)), (2, Some(0), Some(1), None));
        let table = RankTable::parse(OLDER).expect("a table");
        assert_eq!((table.size(), table.rank_of(0)), (2, None));
    }

    #[test]
    fn loose_files_are_read() {
        let loose = r#"{"server_list": [{"device": [{"rank_id": 1, "device_id": "", "more": {}}, {"rank_id": " 0 "}]},
            {"device": []}]}"#;
        let table = RankTable::parse(loose).expect("a table");
        assert_eq!((table.size(), table.rank_of(0)), (2, None));
        let twice = TWO.replace("\"5\"", "\"4\"");
        assert_eq!(RankTable::parse(&twice).expect("a table").rank_of(4), None, "two ranks have it");
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_reason() {
        let with = |second: &str| TWO.replace(r#""rank_id": "1""#, second);
        let refused = [
            (String::new(), "EOF"),
            ("[]".into(), "neither a server_list"),
            (r#"{"server_list": {}}"#.into(), "neither a server_list"),
            (r#"{"server_list": []}"#.into(), "0 devices"),
            (r#"{"server_list": [{}]}"#.into(), "no list device"),
            (r#"{"group_list": [{"instance_list": [{}]}]}"#.into(), "no list devices"),
            (with(r#""rank_id": "0""#), "rank_id 0 twice"),
            (with(r#""rank_id": "2""#), "rank_id 2, and 2 devices"),
            (with(r#""rank": "1""#), "no rank_id"),
            (with(r#""rank_id": "-1""#), "rank_id \"-1\""),
            (with(r#""rank_id": 1.5"#), "rank_id 1.5"),
            (TWO.replace("},\n", "}]}, {\"device\": [\n"), "on 2 hosts"),
        ];
        for (text, reason) in refused {
            let error = RankTable::parse(&text).expect_err(&text);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn files_that_are_none_are_refused() {
        for (path, reason) in [("/nonexistent/table.json", "No such file"), ("/", "no regular file"), ("\0", "")] {
            let error = RankTable::load(path).expect_err(path);
            assert!(error.contains(reason), "{error}");
        }
        assert!(RankTable::load("/dev/zero").expect_err("endless").contains("no regular file"));
    }
}
