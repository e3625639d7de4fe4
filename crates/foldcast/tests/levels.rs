//! Ranks whose processors have different instruction sets get the same bits: real ranks, each held to a level of its own.

mod support;

use foldcast::{Buffers, CallOptions, Communicator, DataType, Reduction};
use kernels::Level;
use support::{all_well, ranks_with};

#[allow(dead_code, clippy::unwrap_used, reason = "the oracle of the kernels' tests, of which this uses a part")]
#[path = "../../kernels/tests/fold/oracle.rs"]
mod oracle;

const VARIABLE: &str = "LEVELS_TEST_LEVEL";
/// From less than a vector to more than a chunk, with and without a rest.
const COUNTS: [usize; 5] = [1, 31, 1_000, 40_003, 100_000];

/// Bytes that are numbers of every kind, NaNs and subnormals among them.
fn input(rank: usize, bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::try_from(rank + 1).expect("few ranks"));
    let mut input = Vec::with_capacity(bytes + 8);
    while input.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let special = [0u64, 0x7f80_0000_7fc0_0001, 0x0001_0000_8000_0001, 0x7c00_fc00_7e01_8001];
        let word = if state % 16 < 4 { special[usize::try_from(state % 4).expect("small")] } else { state };
        input.extend(word.to_le_bytes());
    }
    input.truncate(bytes);
    input
}

fn body(communicator: &Communicator) {
    let wanted = std::env::var(VARIABLE).expect("the test sets it");
    assert_eq!(kernels::dispatch(), wanted, "the level was forced before the first call");
    let (rank, ranks) = (communicator.rank().index(), communicator.size());
    for (case, dtype) in DataType::ALL.into_iter().enumerate() {
        for (reduction, count) in Reduction::ALL.into_iter().flat_map(|r| COUNTS.map(|count| (r, count))) {
            // The largest size once for each type: what it adds are chunks.
            if count == COUNTS[COUNTS.len() - 1] && Reduction::ALL[case % Reduction::ALL.len()] != reduction {
                continue;
            }
            let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| input(rank, count * dtype.size())).collect();
            let mut output = vec![0; inputs[rank].len()];
            let buffers = Buffers::Separate { input: &inputs[rank], output: &mut output };
            let done = communicator.world().all_reduce(dtype, reduction, buffers, &CallOptions::default());
            assert_eq!(done, Ok(()), "{dtype:?} {reduction:?} {count}");
            let expected = oracle::fold(dtype, reduction, &inputs);
            assert!(output == expected, "rank {rank} on {wanted}: {dtype:?} {reduction:?} {count}: other bits");
        }
    }
}

/// Every level that this machine has, and all of them in one job, each on another rank.
#[test]
fn ranks_on_different_levels_get_the_same_bits() {
    if let Ok(name) = std::env::var(VARIABLE) {
        let level = Level::ALL.into_iter().find(|level| level.name() == name).expect("a level of this machine");
        assert_eq!(kernels::force(level), Ok(()));
    }
    let test = "ranks_on_different_levels_get_the_same_bits";
    let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
    assert!(levels.contains(&Level::Portable));
    let of_job = |levels: &[Level]| levels.iter().map(|level| [(VARIABLE, level.name())]).collect::<Vec<_>>();
    for level in &levels {
        all_well(&ranks_with(test, &of_job(&[*level, *level]), body));
    }
    let mixed: Vec<Level> = (0..3.max(levels.len())).map(|rank| levels[rank % levels.len()]).collect();
    all_well(&ranks_with(test, &of_job(&mixed), body));
}
