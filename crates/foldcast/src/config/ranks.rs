//! Who this process is among how many, and of which job: what launchers say.

use types::transport::Geometry;
use types::{Error, Result};

use super::{Env, number};
use crate::rank_table::RankTable;

/// Pairs of variables that give rank and number of ranks, the first that is set counts; others must agree.
pub(crate) const RANK_PAIRS: [(&str, &str); 5] = [
    ("FOLDCAST_RANK", "FOLDCAST_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("RANK_ID", "RANK_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];

/// Variables by which others claim several ranks in a way that does not say enough: refused where nothing else does,
/// unless the value is the second. The third is what would do.
const FOREIGN_CLAIMS: [(&str, &str, &str); 2] = [
    ("SLURM_NTASKS", "1", "ranks that srun has started, or rank variables such as RANK and WORLD_SIZE"),
    ("PMIX_RANK", "", "rank variables beside it, such as RANK and WORLD_SIZE"),
];

/// What srun tells the tasks of a step: their number, a task's own, and the number of hosts.
const SLURM_STEP: [&str; 3] = ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_NODES"];

/// Variables that tell one step of Slurm from another, where they say the ranks.
const SLURM_JOB: [&str; 2] = ["SLURM_JOB_ID", "SLURM_STEP_ID"];

/// The variable with the path of a rank table.
const RANK_TABLE: &str = "RANK_TABLE_FILE";

/// Variables that give the number of ranks on this host.
pub(super) const LOCAL_SIZES: [&str; 3] = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

/// What some launchers that speak PMI call the job.
const PMI_JOB: &str = "PMI_JOBID";

/// Variables that tell one job from another where there is no `FOLDCAST_JOB`.
const JOB_VARIABLES: [&str; 9] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "RANK_TABLE_FILE",
    "CM_CHIEF_IP",
    "CM_CHIEF_PORT",
    "PMIX_NAMESPACE",
    PMI_JOB,
    "I_MPI_HYDRA_UUID",
];

/// More ranks than this on one host are taken for a mistake.
pub(crate) const MAX_RANKS: usize = Geometry::MAX_RANKS;

/// Rank and size of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Whether Slurm says so, and nothing nearer.
    is_of_slurm: bool,
}

/// What the environment says of the world.
pub(super) fn claim(env: Env<'_>) -> Result<Claim> {
    if let Some((rank, size)) = ranks(env)? {
        return Ok(Claim { rank, size, is_of_slurm: false });
    }
    if let Some((rank, size)) = slurm(env)? {
        return Ok(Claim { rank, size, is_of_slurm: true });
    }
    for (name, harmless, enough) in FOREIGN_CLAIMS {
        if let Some(value) = env(name).filter(|value| value.trim() != harmless) {
            let expected = format!("{enough} (1 for a single process)");
            return Err(Error::invalid("RANK", expected, format!("none, with {name}={value}")));
        }
    }
    Ok(Claim { rank: 0, size: 1, is_of_slurm: false })
}

/// Rank and size as a step of srun has them. They come last: what is started inside of a step by something else, such as mpirun,
/// inherits them.
fn slurm(env: Env<'_>) -> Result<Option<(usize, usize)>> {
    let [tasks, task, hosts] = SLURM_STEP;
    let Some(size) = number(env, tasks)? else { return Ok(None) };
    if size == 1 {
        return Ok(Some((0, 1)));
    }
    let rank = number(env, task)?.ok_or_else(|| incomplete(tasks, task))?;
    check(task, rank, tasks, size)?;
    if let Some(hosts_claimed) = number(env, hosts)?.filter(|number| *number > 1) {
        let expected = format!("1, with {tasks}={size}: jobs that span hosts are not supported yet");
        return Err(Error::invalid(hosts, expected, hosts_claimed.to_string()));
    }
    Ok(Some((rank, size)))
}

/// The value of a variable that a launcher does not set, where something else says the same.
///
/// MPICH's mpirun tells ranks which they are and not of which job: but all of a host are started by one process.
pub(super) fn of_launcher(name: &str) -> Option<String> {
    const MOST_ANCESTORS: usize = 64;
    if name != PMI_JOB || std::env::var_os("PMI_RANK").is_none() {
        return None;
    }
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..MOST_ANCESTORS {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (program, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        if ["hydra_", "mpiexec"].iter().any(|launcher| program.starts_with(launcher)) {
            return Some(format!("started by process {process}"));
        }
        process = rest.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 1)?;
    }
    None
}

/// Rank and size as variables or a rank table say them.
fn ranks(env: Env<'_>) -> Result<Option<(usize, usize)>> {
    let table = env(RANK_TABLE).is_some();
    let chief = ["CM_CHIEF_IP", "CM_WORKER_SIZE"].into_iter().find(|name| env(name).is_some());
    let mut found: Option<(&str, usize, usize)> = None;
    for (rank_name, size_name) in RANK_PAIRS {
        let (rank, size) = match (number(env, rank_name)?, number(env, size_name)?) {
            (Some(rank), Some(size)) => (rank, size),
            (None, None) => continue,
            // The table says the rest.
            _ if rank_name == "RANK_ID" && table => continue,
            (Some(_), None) => return Err(incomplete(rank_name, size_name)),
            (None, Some(_)) => return Err(incomplete(size_name, rank_name)),
        };
        check(rank_name, rank, size_name, size)?;
        match found {
            Some((first, other_rank, other_size)) if (other_rank, other_size) != (rank, size) => {
                let expected = format!("rank {other_rank} of {other_size}, as {first} and its partner say");
                return Err(Error::invalid(rank_name, expected, format!("rank {rank} of {size}")));
            }
            Some(_) => {}
            None => found = Some((rank_name, rank, size)),
        }
    }
    if let Some(chief) = chief.filter(|_| table && found.is_none_or(|(name, ..)| name == "RANK_ID")) {
        return Err(Error::invalid(RANK_TABLE, format!("no value, since {chief} is set"), "both: one of them must go"));
    }
    if let Some((_, rank, size)) = found {
        return Ok(Some((rank, size)));
    }
    if let Some(file) = env(RANK_TABLE) {
        return by_table(env, &file).map(Some);
    }
    if chief.is_some() {
        return chief_and_workers(env).map(Some);
    }
    Ok(None)
}

/// Rank and size where the table must say at least one of them.
fn by_table(env: Env<'_>, file: &str) -> Result<(usize, usize)> {
    let table = RankTable::load(file).map_err(|why| {
        Error::invalid(
            RANK_TABLE,
            "the path of a rank table, or RANK_ID and RANK_SIZE beside it",
            format!("{file:?}: {why}"),
        )
    })?;
    let size = table.size();
    if let Some(other) = number(env, "RANK_SIZE")?.filter(|other| *other != size) {
        let expected = format!("{size}, the number of devices in RANK_TABLE_FILE={file:?}");
        return Err(Error::invalid("RANK_SIZE", expected, other.to_string()));
    }
    let rank = match number(env, "RANK_ID")? {
        Some(rank) => rank,
        None => match number(env, "DEVICE_ID")? {
            Some(device) => table.rank_of(device).ok_or_else(|| {
                let expected = format!("a device that one rank of RANK_TABLE_FILE={file:?} has, or RANK_ID beside it");
                Error::invalid("DEVICE_ID", expected, device.to_string())
            })?,
            None if size == 1 => 0,
            None => {
                let expected = format!("a rank below {size}, since RANK_TABLE_FILE={file:?} has so many");
                return Err(Error::invalid("RANK_ID", expected, "nothing"));
            }
        },
    };
    check("RANK_ID", rank, "RANK_SIZE", size)?;
    Ok((rank, size))
}

/// The `CM_*` variables name devices, not ranks: on one host the device's number is the rank.
fn chief_and_workers(env: Env<'_>) -> Result<(usize, usize)> {
    let Some(size) = number(env, "CM_WORKER_SIZE")? else {
        return Err(incomplete("CM_CHIEF_IP", "CM_WORKER_SIZE"));
    };
    match number(env, "DEVICE_ID")? {
        Some(device) => {
            check("DEVICE_ID", device, "CM_WORKER_SIZE", size)?;
            Ok((device, size))
        }
        None if size == 1 => Ok((0, 1)),
        None => Err(incomplete("CM_WORKER_SIZE", "DEVICE_ID")),
    }
}

fn check(rank_name: &str, rank: usize, size_name: &str, size: usize) -> Result<()> {
    if size == 0 || size > MAX_RANKS {
        return Err(Error::invalid(size_name, format!("1 to {MAX_RANKS}"), size.to_string()));
    }
    if rank >= size {
        return Err(Error::invalid(rank_name, format!("below {size_name}={size}"), rank.to_string()));
    }
    Ok(())
}

fn incomplete(set: &str, unset: &str) -> Error {
    Error::invalid(unset, format!("a value, since {set} is set"), "nothing")
}

/// What the ranks of one job have in common and no other job has.
pub(super) fn job(env: Env<'_>, claim: Claim) -> String {
    if let Some(job) = env("FOLDCAST_JOB") {
        return job;
    }
    let mut key = format!("ranks={}", claim.size);
    let of_slurm = SLURM_JOB.iter().filter(|_| claim.is_of_slurm);
    for name in JOB_VARIABLES.iter().chain(of_slurm) {
        if let Some(value) = env(name) {
            key.push_str(&format!("\n{name}={value}"));
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use types::Rank;

    use super::*;
    use crate::config::tests::{read, refusal};

    #[test]
    fn every_pair_of_variables_is_honoured() {
        for (rank, size) in RANK_PAIRS {
            let config = read(&[(rank, "2"), (size, "5")]).unwrap();
            assert_eq!((config.rank, config.size), (Rank(2), 5), "{rank}");
        }
        let config = read(&[("CM_CHIEF_IP", "10.0.0.1"), ("CM_WORKER_SIZE", "4"), ("DEVICE_ID", "3")]).unwrap();
        assert_eq!((config.rank, config.size), (Rank(3), 4));
    }

    #[test]
    fn a_claim_of_ranks_that_cannot_be_honoured_is_refused() {
        assert!(refusal(&[("RANK_SIZE", "8")]).contains("RANK_ID"));
        assert!(refusal(&[("RANK", "0")]).contains("WORLD_SIZE"));
        assert!(refusal(&[("RANK", "8"), ("WORLD_SIZE", "8")]).contains("below WORLD_SIZE=8"));
        assert!(refusal(&[("RANK", "-1"), ("WORLD_SIZE", "8")]).contains("\"-1\""));
        assert!(refusal(&[("RANK", "0"), ("WORLD_SIZE", "0")]).contains("WORLD_SIZE"));
        assert!(refusal(&[("RANK", "0"), ("WORLD_SIZE", "1000000")]).contains("4096"));
        let missing = refusal(&[("RANK_TABLE_FILE", "/x.json")]);
        assert!(
            missing.contains("RANK_TABLE_FILE") && missing.contains("/x.json") && missing.contains("RANK_ID"),
            "{missing}"
        );
        assert!(refusal(&[("CM_CHIEF_IP", "10.0.0.1")]).contains("CM_WORKER_SIZE"));
        assert!(refusal(&[("CM_WORKER_SIZE", "2")]).contains("DEVICE_ID"));
        // A batch script is one process, whatever it may start.
        let script = refusal(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]);
        assert!(script.contains("SLURM_NTASKS=4") && script.contains("srun"), "{script}");
        assert!(refusal(&[("PMIX_RANK", "2")]).contains("PMIX_RANK=2"));
        assert_eq!(read(&[("SLURM_NTASKS", "1"), ("SLURM_PROCID", "0")]).unwrap().size, 1);
        assert_eq!(read(&[("SLURM_NTASKS", "4"), ("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().size, 1);
        let hosts = [("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")];
        assert!(refusal(&hosts).contains("span hosts"));
    }

    #[test]
    fn a_step_of_slurm_on_one_host_is_honoured() {
        let step = |rank, tasks, hosts| {
            [
                ("SLURM_PROCID", rank),
                ("SLURM_STEP_NUM_TASKS", tasks),
                ("SLURM_STEP_NUM_NODES", hosts),
                ("SLURM_NTASKS", tasks),
                ("SLURM_JOB_ID", "77"),
                ("SLURM_STEP_ID", "0"),
                ("PMIX_RANK", rank),
            ]
        };
        let config = read(&step("2", "4", "1")).unwrap();
        assert_eq!((config.rank, config.size, config.local_rank), (Rank(2), 4, 2));
        let mut other = step("2", "4", "1");
        other[5].1 = "1";
        assert_ne!(read(&other).unwrap().job, config.job, "another step of the same job");
        assert_eq!(read(&step("0", "1", "1")).unwrap().size, 1);
        let hosts = refusal(&step("2", "4", "2"));
        assert!(hosts.contains("SLURM_STEP_NUM_NODES") && hosts.contains("span hosts"), "{hosts}");
        assert!(refusal(&step("4", "4", "1")).contains("below SLURM_STEP_NUM_TASKS=4"));
        assert!(refusal(&[("SLURM_STEP_NUM_TASKS", "4")]).contains("SLURM_PROCID"));
        // What mpirun has started in a step is what mpirun says.
        let inside = [&step("0", "1", "1")[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]].concat();
        assert_eq!(read(&inside).map(|config| (config.rank.0, config.size)), Ok((3, 4)));
    }

    #[test]
    fn ranks_of_mpich_on_several_hosts_are_refused() {
        let of = |local| [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", local)];
        assert_eq!(read(&of("4")).unwrap().rank, Rank(1));
        assert!(refusal(&of("2")).contains("span hosts"));
    }

    #[test]
    fn a_rank_table_says_what_the_variables_leave_out() {
        let file = std::env::temp_dir().join(format!("foldcast-table-{}.json", std::process::id()));
        let devices = r#"[{"device_id": "7", "rank_id": "0"}, {"device_id": "3", "rank_id": "1"}]"#;
        std::fs::write(&file, format!(r#"{{"version": "1.0", "server_list": [{{"device": {devices}}}]}}"#)).unwrap();
        let table = ("RANK_TABLE_FILE", file.to_str().unwrap());
        let of = |more: &[(&str, &str)]| read(&[&[table], more].concat()).map(|config| (config.rank.0, config.size));
        assert_eq!(of(&[("RANK_ID", "1")]), Ok((1, 2)));
        assert_eq!(of(&[("DEVICE_ID", "3")]), Ok((1, 2)));
        assert_eq!(of(&[("RANK_ID", "0"), ("DEVICE_ID", "3")]), Ok((0, 2)));
        // Where the variables say all, nobody needs the file.
        assert_eq!(of(&[("RANK_ID", "4"), ("RANK_SIZE", "8")]), Ok((4, 8)));
        assert_eq!(of(&[("RANK", "4"), ("WORLD_SIZE", "8")]), Ok((4, 8)));
        let refused = |more: &[(&str, &str)]| refusal(&[&[table], more].concat());
        assert!(refused(&[]).contains("RANK_ID"));
        assert!(refused(&[("RANK_ID", "2")]).contains("below RANK_SIZE=2"));
        assert!(refused(&[("RANK_SIZE", "3"), ("DEVICE_ID", "3")]).contains("expected 2, the number of devices"));
        assert!(refused(&[("DEVICE_ID", "0")]).contains("DEVICE_ID"));
        assert!(refused(&[("RANK_ID", "0"), ("CM_CHIEF_IP", "10.0.0.1")]).contains("CM_CHIEF_IP"));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn variables_that_contradict_each_other_are_refused() {
        let same = [("RANK", "1"), ("WORLD_SIZE", "2"), ("RANK_ID", "1"), ("RANK_SIZE", "2")];
        assert_eq!(read(&same).unwrap().rank, Rank(1));
        let other = [("RANK", "1"), ("WORLD_SIZE", "2"), ("RANK_ID", "0"), ("RANK_SIZE", "2")];
        assert!(refusal(&other).contains("RANK_ID"));
    }

    #[test]
    fn jobs_differ_where_their_variables_do() {
        let job = |port: &str| read(&[("MASTER_PORT", port), ("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap().job;
        assert_ne!(job("1"), job("2"));
        assert_eq!(job("1"), job("1"));
        assert_eq!(read(&[("FOLDCAST_JOB", "abc")]).unwrap().job, "abc");
    }
}
