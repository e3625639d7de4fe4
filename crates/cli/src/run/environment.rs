//! The variables that a rank gets, and those that it does not.

use std::ffi::OsStr;

use foldcast::Rank;

use super::launch;

/// What tells rank `rank` of `size` its place, in the words of every framework that is asked for it; and how many cores
/// it has for itself.
pub(super) fn of_rank(rank: Rank, size: usize, cores: usize, server: &launch::Server) -> Vec<(&'static str, String)> {
    let (rank, size) = (rank.0.to_string(), size.to_string());
    vec![
        ("RANK", rank.clone()),
        ("WORLD_SIZE", size.clone()),
        ("LOCAL_RANK", rank.clone()),
        ("LOCAL_WORLD_SIZE", size.clone()),
        ("RANK_ID", rank.clone()),
        ("RANK_SIZE", size),
        ("DEVICE_ID", rank),
        ("FOLDCAST_CORES", cores.to_string()),
        ("PYTHONUNBUFFERED", "1".into()),
        (launch::JOB_VARIABLE, server.job().into()),
        (launch::LAUNCHER_VARIABLE, server.address().into()),
    ]
}

const FOREIGN_PREFIXES: [&str; 6] = ["CM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "MPI_LOCAL"];
const FOREIGN_NAMES: [&str; 7] = [
    "RANK_TABLE_FILE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "HYDI_CONTROL_FD",
];

/// Whether another launcher uses this variable to say which rank a process is, or how many there are.
pub(super) fn is_foreign(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    FOREIGN_NAMES.iter().any(|foreign| foreign.as_bytes() == name)
        || FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_other_launchers_are_known() {
        for name in ["RANK_TABLE_FILE", "CM_CHIEF_IP", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "GROUP_RANK", "PMI_RANK"] {
            assert!(is_foreign(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "MASTER_ADDR", "OMP_NUM_THREADS", "CMAKE", "RANK_TABLE_FILE_2", "SLURM_JOB_ID", ""] {
            assert!(!is_foreign(OsStr::new(name)), "{name}");
        }
    }
}
