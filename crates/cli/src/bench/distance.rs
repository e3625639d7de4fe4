//! How far cores are from each other: small calls depend on it, and a virtual machine's cores may be moved while they run.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use bench::{Ranks, line_round_trip_ns};
use foldcast::{Reduction, Result};

use super::rank::World;
use super::{REFUSED, say};
use crate::run::cores;

/// For how long ranks that are not measuring stay away from the cores.
const MEASURING: Duration = Duration::from_millis(3);

/// Medians that differ by more than this factor are of cores that were moved meanwhile: those of one state differ by a fifth.
const MOVED: f64 = 1.6;

/// The round trip of a cache line between two cores, in ns, before the cases and after them: the first one that rank 0 may use, and
/// the first other one that rank 1 may use. `None` where there is no other one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RoundTrips {
    pub(super) cores: Option<[usize; 2]>,
    pub(super) before: Option<f64>,
    pub(super) after: Option<f64>,
}

impl RoundTrips {
    /// In words, as lines of a table's foot; empty if nothing was measured.
    pub(super) fn lines(&self) -> String {
        let (Some([one, other]), Some(before), Some(after)) = (self.cores, self.before, self.after) else {
            return String::new();
        };
        let moved = if before.max(after) > MOVED * before.min(after) {
            "# the cores were nearer to each other for a part of the time: times of small sizes may be of either state\n"
        } else {
            ""
        };
        format!(
            "# a cache line's round trip between cores {one} and {other}: {before:.0} ns before, {after:.0} ns after\n{moved}"
        )
    }
}

/// Between which cores to measure; all ranks must call it.
pub(super) fn cores(world: &mut World) -> Result<Option<[usize; 2]>> {
    let mine = cores::allowed().unwrap_or_default();
    let one = told_by(world, 0, mine.first().copied())?;
    let other = told_by(world, 1, mine.into_iter().find(|&core| Some(core) != one))?;
    Ok(one.zip(other).map(|(one, other)| [one, other]))
}

/// Measures a round trip on rank 0, while the others sleep; all ranks must call it.
pub(super) fn measure(world: &mut World, cores: Option<[usize; 2]>) -> Result<Option<f64>> {
    let Some([one, other]) = cores else { return Ok(None) };
    world.barrier()?;
    let measured = if world.rank() == 0 {
        line_round_trip_ns(one, other)
    } else {
        thread::sleep(MEASURING);
        None
    };
    world.barrier()?;
    Ok(measured)
}

/// What a rank says, if there is one of that number: a core.
#[allow(clippy::as_conversions, reason = "a core's number, far below 2^53, or -1")]
fn told_by(world: &mut World, rank: usize, core: Option<usize>) -> Result<Option<usize>> {
    let value = core.filter(|_| world.rank() == rank).map_or(-1.0, |core| core as f64);
    let told = world.combine(value, Reduction::Max)?;
    Ok((told >= 0.0).then_some(told as usize))
}

/// `foldcast bench round-trip`: prints the number alone.
pub(super) fn tell() -> ExitCode {
    let Ok(cores) = cores::allowed() else {
        say("the system does not say which cores this process may use");
        return ExitCode::from(REFUSED);
    };
    let &[one, other, ..] = &cores[..] else {
        say("there is only one core that this process may use, and no way between two");
        return ExitCode::from(REFUSED);
    };
    let Some(ns) = line_round_trip_ns(one, other) else {
        say(&format!("no threads can be bound to the cores {one} and {other}"));
        return ExitCode::from(REFUSED);
    };
    // Whoever closes the pipe has read enough.
    let _ = writeln!(std::io::stdout(), "{ns:.1}");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_foot_says_both_times_and_whether_they_are_of_one_state() {
        let lines = |before, after| RoundTrips { cores: Some([0, 3]), before, after }.lines();
        assert_eq!(lines(None, None), "");
        let steady = lines(Some(55.4), Some(60.0));
        assert!(
            steady.ends_with(" cores 0 and 3: 55 ns before, 60 ns after\n") && steady.lines().count() == 1,
            "{steady}"
        );
        for (before, after) in [(55.0, 320.0), (320.0, 55.0)] {
            let moved = lines(Some(before), Some(after));
            assert!(moved.contains("either state") && moved.lines().all(|line| line.starts_with("# ")), "{moved}");
        }
    }
}
