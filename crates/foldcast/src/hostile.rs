//! What must hold whatever the environment, a file or another rank says: for the tests below and the fuzz targets in
//! `fuzz/`.

use core::time::Duration;

use types::error::Mismatch;
use types::{CallSite, GroupName, Rank};

use crate::config::{Config, MAX_RANKS, RANK_PAIRS};
use crate::costs::{self, Machine};
use crate::rank_table::RankTable;
use crate::{sets, settings};

/// Variables, `NAME=VALUE` one a line.
///
/// # Panics
/// If something does not hold.
pub fn environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let variables: Vec<(&str, &str)> = text.split('\n').filter_map(|line| line.split_once('=')).collect();
    let find = |name: &str| {
        let value = variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        // What a file says is for `rank_table`.
        value.map(|value| if name == "RANK_TABLE_FILE" { format!("/nonexistent/{value}") } else { value })
    };
    match Config::read(&find) {
        Ok(config) => {
            assert!((1..=MAX_RANKS).contains(&config.size) && config.rank.index() < config.size, "{config:?}");
            assert!(
                config.local_rank < config.size && (1..=Config::MAX_THREADS).contains(&config.threads),
                "{config:?}"
            );
            // Whoever claims ranks is honoured or refused.
            for (rank, size) in RANK_PAIRS {
                let claimed = find(size).filter(|value| !value.is_empty());
                let both = claimed.filter(|_| find(rank).is_some_and(|value| !value.is_empty()));
                assert!(both.is_none_or(|size| size.trim().parse() == Ok(config.size)), "{config:?} from {text:?}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The text of a rank table.
///
/// # Panics
/// If something does not hold.
pub fn rank_table(bytes: &[u8]) {
    match RankTable::parse(&String::from_utf8_lossy(bytes)) {
        Ok(table) => {
            assert!((1..=MAX_RANKS).contains(&table.size()));
            assert!((0..20).filter_map(|device| table.rank_of(device)).all(|rank| rank < table.size()));
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// The text of a file of costs, and of what the system says of its processors.
///
/// # Panics
/// If something does not hold.
pub fn costs(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let machine = machine();
    match costs::parse(&text, &machine) {
        Ok(constants) => assert_eq!(costs::parse(&costs::print(&constants, &machine), &machine), Ok(constants)),
        Err(why) => assert!(!why.is_empty()),
    }
    let _ = costs::count(&text);
    let _ = costs::model(bytes);
}

fn machine() -> Machine {
    Machine { cpu: "Made-up CPU @ 3.0 GHz".into(), cores: 4 }
}

/// The lists of names that ranks tell each other when they differ, one rank's after the other, with a zero byte between.
///
/// # Panics
/// If something does not hold.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let listings: Vec<_> = (0..).map(Rank).zip(text.split('\0').map(str::to_owned)).take(8).collect();
    let said = sets::differences(&listings);
    assert!(said.len() <= sets::MOST_SAID, "{} bytes", said.len());
    let site = CallSite { rank: Rank(0), op: "allreduce", tag: None, group: GroupName::world() };
    let (values, elapsed) = (Vec::new(), Duration::ZERO);
    let [expected, got, detail] = [const { String::new() }; 3];
    let mut mismatch = Mismatch { site, field: "parts", peer: Rank(0), expected, got, values, detail, elapsed };
    if sets::alone::explains(&mut mismatch, &listings) {
        let longest = mismatch.values.iter().map(|(_, value)| value.len()).max();
        assert!(longest.is_some_and(|longest| longest <= sets::MOST_SAID) && mismatch.field != "parts");
    }
    if listings.iter().all(|(_, list)| *list == listings[0].1) {
        assert_eq!(said, "");
    }
}

/// What a group's first member hands out with the memory.
///
/// # Panics
/// If something does not hold.
pub fn handed_out(bytes: &[u8]) {
    let choice = settings::taken_over(bytes);
    assert_eq!(settings::taken_over(&settings::handed_out(&choice)), choice);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::hostile::drive;
    use plan::{Choice, Constants};

    fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn environments() {
        let made = seeds(&[
            "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=4\nMASTER_ADDR=127.0.0.1\nMASTER_PORT=29500",
            "RANK_ID=0\nRANK_SIZE=8\nDEVICE_ID=0\nRANK_TABLE_FILE=t.json\nHCCL_EXEC_TIMEOUT=0",
            "CM_CHIEF_IP=10.0.0.1\nCM_WORKER_SIZE=4\nDEVICE_ID=3\nHCCL_CONNECT_TIMEOUT=7",
            "FOLDCAST_RANK=0\nFOLDCAST_WORLD_SIZE=2\nFOLDCAST_TIMEOUT=inf\nFOLDCAST_WARN_AFTER=0.5\nFOLDCAST_JOB=x",
            "FOLDCAST_PRODUCT=atlas-a2\nFOLDCAST_THREADS=3\nFOLDCAST_CORES=2\nFOLDCAST_COSTS=off\nFOLDCAST_ALGO=flat",
            "SLURM_NTASKS=4\nPMI_RANK=0\nPMI_SIZE=4\nFOLDCAST_POOL_BYTES=1000",
        ]);
        drive("environment", &made, environment);
    }

    #[test]
    fn rank_tables() {
        let made = seeds(&[
            r#"{"version":"1.0","server_list":[{"server_id":"n","device":[{"device_id":"0","rank_id":"0"}]}]}"#,
            r#"{"server_list":[{"device":[{"device_id":1,"rank_id":1},{"device_id":0,"rank_id":0}]},{"device":[]}]}"#,
            r#"{"group_list":[{"instance_list":[{"pod_name":"p","devices":[{"device_id":"0","device_ip":""}]}]}]}"#,
        ]);
        drive("rank_table", &made, rank_table);
    }

    #[test]
    fn files_of_costs() {
        let good = costs::print(&Constants::default(), &machine());
        drive("costs", &seeds(&[&good, "0-3,8", "model name\t: A B\n\n", "CPU part : 0xd0c\n"]), costs);
    }

    #[test]
    fn lists_of_names() {
        let made =
            seeds(&["a\t1\nb\t2\0b\t2\na\t1\0a\t1", "a\t1\na\t1\0a\t1\na\t2", "grad/W\t3\0grad/W\t4\0grad/b\t4"]);
        drive("names", &made, names);
    }

    #[test]
    fn settings_of_the_first_member() {
        let forced = Choice { forced: Some("flat"), ..Choice::default() };
        let made = [settings::handed_out(&Choice::default()), settings::handed_out(&forced)];
        drive("handed_out", &made, handed_out);
    }
}
