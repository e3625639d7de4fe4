//! Which rank runs on which cores.

use rustix::io;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this thread may use, in ascending order.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Binds this thread, and the processes that it makes from now on.
pub(super) fn bind(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    sched_setaffinity(None, &set)
}

/// The share of `rank` of `size`: contiguous, and disjoint from the others' unless there are more ranks than cores; then
/// one core, in turn. Empty only if no core is allowed.
pub(super) fn share(allowed: &[usize], rank: usize, size: usize) -> &[usize] {
    let count = allowed.len();
    if size > count {
        let core = rank % count.max(1);
        return allowed.get(core..=core).unwrap_or_default();
    }
    &allowed[rank * count / size..(rank + 1) * count / size]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_contiguous_disjoint_complete_and_even() {
        for count in 1..40 {
            let allowed: Vec<usize> = (0..count).map(|core| core * 2 + 1).collect();
            for size in 1..=count {
                let shares: Vec<&[usize]> = (0..size).map(|rank| share(&allowed, rank, size)).collect();
                assert_eq!(shares.concat(), allowed, "{size} ranks on {count} cores");
                let lengths: Vec<usize> = shares.iter().map(|share| share.len()).collect();
                assert!(lengths.iter().all(|&length| length == count / size || length == count / size + 1));
            }
        }
    }

    #[test]
    fn more_ranks_than_cores_take_them_in_turn() {
        let allowed = [3, 5, 8];
        let shares: Vec<&[usize]> = (0..5).map(|rank| share(&allowed, rank, 5)).collect();
        assert_eq!(shares, [&[3][..], &[5], &[8], &[3], &[5]]);
        assert!(share(&[], 2, 5).is_empty());
    }
}
