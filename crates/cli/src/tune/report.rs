//! What was measured, and what was made of it.

use core::fmt;
use std::path::PathBuf;

use foldcast::Bytes;
use foldcast::costs::{Costs, Machine};
use foldcast::plans::fit::Observation;
use foldcast::plans::{Choice, Constants};
use serde_json::{Value, json};

use crate::explain::print_costs;

pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) old: &'a Costs,
    pub(super) new: &'a Constants,
    pub(super) observations: &'a [Observation],
    /// Where the costs were kept.
    pub(super) file: Option<PathBuf>,
}

impl Report<'_> {
    /// Over 2 to 16 ranks: the ranks, the size and the factor of the largest predicted step between a size and its double.
    fn largest_step(&self) -> (usize, usize, f64) {
        let choice = Choice { constants: *self.new, forced: None };
        let steps = (2..=16).map(|ranks| (ranks, choice.largest_step(ranks)));
        let largest = steps.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b));
        let (ranks, (bytes, factor)) = largest.expect("the range has numbers of ranks");
        (ranks, bytes, factor)
    }

    /// By how much predictions are off: the median and the largest of |predicted / measured - 1|.
    pub(super) fn errors(&self, constants: &Constants) -> (f64, f64) {
        let off = |one: &Observation| (one.predicted_us(constants) / one.time_us - 1.0).abs();
        let mut errors: Vec<f64> = self.observations.iter().map(off).collect();
        errors.sort_by(f64::total_cmp);
        let largest = errors.last().copied().unwrap_or_default();
        (errors.get(errors.len() / 2).copied().unwrap_or_default(), largest)
    }

    pub(super) fn json(&self) -> Value {
        let Report { machine, old, new, observations, file } = self;
        let (ranks, bytes, factor) = self.largest_step();
        let observation = |one: &Observation| {
            json!({
                "algorithm": one.algorithm,
                "ranks": one.shape.ranks,
                "bytes": one.shape.bytes,
                "measured_us": one.time_us,
                "predicted_us": one.predicted_us(new),
            })
        };
        json!({
            "cpu": machine.cpu,
            "cores": machine.cores,
            "old": print_costs(&old.constants),
            "old_from": old.file,
            "new": print_costs(new),
            "file": file,
            "measured": observations.iter().map(observation).collect::<Vec<_>>(),
            "largest_step": { "ranks": ranks, "bytes": bytes, "factor": factor },
        })
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { machine, old, new, observations, file } = self;
        let source = old.file.as_ref().map_or("built in".to_owned(), |file| file.display().to_string());
        writeln!(f, "{} cores of {}", machine.cores, machine.cpu)?;
        writeln!(f, "\n{:<22}{:>12}{:>12}", "cost", "old", "new")?;
        for ((name, old), new) in Constants::NAMES.iter().zip(old.constants.values()).zip(new.values()) {
            if name.ends_with("bytes") {
                writeln!(f, "{name:<22}{old:>12}{new:>12}")?;
            } else {
                writeln!(f, "{name:<22}{old:>12.4}{new:>12.4}")?;
            }
        }
        writeln!(f, "old costs: {source}")?;
        writeln!(f, "\n{:<26}{:>5}{:>12}{:>13}{:>14}", "algorithm", "ranks", "size", "measured us", "predicted us")?;
        for one in *observations {
            let size = Bytes(u64::try_from(one.shape.bytes).unwrap_or(u64::MAX)).to_string();
            let (ranks, time, predicted) = (one.shape.ranks, one.time_us, one.predicted_us(new));
            writeln!(f, "{:<26}{ranks:>5}{size:>12}{time:>13.2}{predicted:>14.2}", one.algorithm)?;
        }
        for (what, constants) in [("old", &old.constants), ("new", new)] {
            let (median, largest) = self.errors(constants);
            writeln!(f, "{what} costs are off by {:.0} % (median), {:.0} % (most)", median * 100.0, largest * 100.0)?;
        }
        let (ranks, bytes, factor) = self.largest_step();
        let size = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        writeln!(
            f,
            "largest predicted step on 2 to 16 ranks: twice {size} takes {factor:.2} times as long on {ranks} ranks"
        )?;
        match file {
            Some(file) => writeln!(f, "kept in {}", file.display()),
            None => writeln!(f, "not kept"),
        }
    }
}
